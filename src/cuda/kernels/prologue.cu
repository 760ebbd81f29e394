/* prologue.cu - norms and activations of the input, and their gradients: the CPU's bits.
 *
 * Elements are those of format/norm.h and format/activation.h, as are the order of sums over a
 * row and the one NaN. Kernels over whole rows have a block for each; the others 8 columns of 4
 * rows a thread. */
#include "cuda/kernels/chain.h"
#include "cuda/kernels/column_sums.h"
#include "cuda/kernels/plain.h"
#include "cuda/kernels/prologue.h"
#include "format/norm.h"

/* ---- sums over a row --------------------------------------------------------------------- */

static_assert(OCT_LINE_THREADS * OCT_ROWS_COLS == OCT_NORM_LANES, "a thread has 8 lanes");

/* Lane 8 t + j of the order in norm.h is `lanes[j]` of thread t. Halves are folded between
 * warps, then within one, then within a thread. Every thread gets the sum. */
static inline float fold(float *lanes, float (*shared)[OCT_LINE_THREADS]) {
    int t = (int)threadIdx.x;
#pragma unroll
    for (int half = OCT_LINE_THREADS / 2; half >= OCT_WARP; half /= 2) {
        __syncthreads();
        for (int j = 0; t < 2 * half && j < 8; j++) {
            shared[j][t] = lanes[j];
        }
        __syncthreads();
        for (int j = 0; t < half && j < 8; j++) {
            lanes[j] += shared[j][t + half];
        }
    }
    if (t < OCT_WARP) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
#pragma unroll
            for (int by = OCT_WARP / 2; by > 0; by /= 2) {
                lanes[j] += __shfl_down_sync(OCT_ALL_LANES, lanes[j], by);
            }
        }
#pragma unroll
        for (int half = 4; half > 0; half /= 2) {
            for (int j = 0; j < half; j++) {
                lanes[j] += lanes[j + half];
            }
        }
    }
    __syncthreads();
    if (t == 0) {
        shared[0][0] = lanes[0];
    }
    __syncthreads();
    return shared[0][0];
}

static inline bool is_centred(const oct_prologue_params &p) {
    return p.prologue == OCTET_LAYERNORM;
}

static inline void take_floats(float *out, const oct_plain &from, int64_t row, int64_t col,
                               int count) {
    oct_eight_floats(out, oct_take(oct_plain_row_of(from, row), col, count), from.dtype);
}

/* The sum of a row, or of the squares of its differences from `mean`. */
static inline float row_sum(const oct_prologue_params &p, float mean, bool squares,
                            float (*shared)[OCT_LINE_THREADS]) {
    float lanes[8] = {}, x[8];
    int64_t cols = p.shape.cols;
    for (int64_t col = 8 * (int64_t)threadIdx.x; col < cols; col += OCT_NORM_LANES) {
        int count = oct_columns_left(cols, col);
        take_floats(x, p.x, blockIdx.x, col, count);
        for (int j = 0; j < 8; j++) {
            float apart = x[j] - mean;
            lanes[j] += j >= count ? 0.0f : squares ? apart * apart : x[j];
        }
    }
    return fold(lanes, shared);
}

static inline void statistics(const oct_prologue_params &p) {
    __shared__ float shared[8][OCT_LINE_THREADS];
    int64_t row = blockIdx.x, cols = p.shape.cols;
    bool centred = is_centred(p);
    float mean = centred ? oct_norm_mean(row_sum(p, 0.0f, false, shared), cols) : 0.0f;
    float rstd = oct_norm_rstd(row_sum(p, mean, true, shared), cols, p.eps);
    if (threadIdx.x == 0 && centred) {
        p.stats[2 * row] = mean;
        p.stats[2 * row + 1] = rstd;
    } else if (threadIdx.x == 0) {
        p.stats[row] = rstd;
    }
}

/* ---- f(x) -------------------------------------------------------------------------------- */

static inline oct_norm_row norm_of(const oct_prologue_params &p, int64_t row) {
    oct_norm_row norm = {0.0f, 0.0f};
    if (is_centred(p)) {
        norm.mean = p.stats[2 * row];
        norm.rstd = p.stats[2 * row + 1];
    } else {
        norm.rstd = p.stats[row];
    }
    return norm;
}

static inline void take_factors(float *out, const oct_prologue_params &p, int64_t col,
                                int count) {
    take_floats(out, p.gamma, 0, col, count);
    for (int j = 0; j < 8; j++) {
        out[j] = oct_norm_factor(out[j], p.zero_centered != 0);
    }
}

/* Rounds and stores 8 elements; the largest of them and `most`. */
static inline uint32_t put_rounded(const oct_plain &dst, int64_t row, int64_t col, float *x,
                                   int count, uint32_t most) {
    oct_eight rounded = oct_eight_of(x, dst.dtype);
    oct_put(oct_plain_row_of(dst, row), col, rounded, count);
    oct_eight_floats(x, rounded, dst.dtype);
    float largest = oct_bits_f32(most);
    for (int j = 0; j < 8; j++) {
        largest = j < count ? oct_larger(largest, x[j]) : largest;
    }
    return oct_f32_bits(largest);
}

/* By whole warps: the blocks share the amaxes. */
static inline void put_amax(const oct_prologue_params &p, uint32_t most) {
    if (p.amax) {
        most = oct_warp_max(most);
        if (threadIdx.x % OCT_WARP == 0 && most) {
            atomicMax((uint32_t *)p.amax + blockIdx.x % p.amaxes, most);
        }
    }
}

static inline void apply_norm(const oct_prologue_params &p) {
    oct_rows_at at = oct_rows_place(p.shape);
    int count = oct_columns_left(p.shape.cols, at.col);
    uint32_t most = 0;
    if (count > 0) {
        float factors[8], beta[8], x[8];
        oct_eight raw[OCT_ROWS_DEEP];
        oct_take_rows(raw, p.x, p.shape, at);
        take_factors(factors, p, at.col, count);
        if (p.beta.at) {
            take_floats(beta, p.beta, 0, at.col, count);
        }
#pragma unroll
        for (int k = 0; k < OCT_ROWS_DEEP; k++) {
            int64_t row = at.row + k * at.step;
            if (row < p.shape.rows) {
                oct_norm_row norm = norm_of(p, row);
                oct_eight_floats(x, raw[k], p.x.dtype);
                for (int j = 0; j < 8; j++) {
                    x[j] = oct_normed(&norm, x[j]) * factors[j];
                    x[j] = oct_one_nan(p.beta.at ? x[j] + beta[j] : x[j]);
                }
                most = put_rounded(p.dst, row, at.col, x, count, most);
            }
        }
    }
    put_amax(p, most);
}

template <oct_activation ACT> static inline void apply(const oct_prologue_params &p) {
    oct_rows_at at = oct_rows_place(p.shape);
    int count = oct_columns_left(p.shape.cols, at.col);
    uint32_t most = 0;
    if (count > 0) {
        float x[8], gate[8];
        oct_eight raw[OCT_ROWS_DEEP], gates[OCT_ROWS_DEEP];
        oct_take_rows(raw, p.x, p.shape, at);
        if (p.gate.at) {
            oct_take_rows(gates, p.gate, p.shape, at);
        }
#pragma unroll
        for (int k = 0; k < OCT_ROWS_DEEP; k++) {
            int64_t row = at.row + k * at.step;
            if (row < p.shape.rows) {
                oct_eight_floats(x, raw[k], p.x.dtype);
                for (int j = 0; j < 8; j++) {
                    x[j] = oct_act(ACT, x[j]);
                }
                if (p.gate.at) {
                    oct_eight_floats(gate, gates[k], p.x.dtype);
                    for (int j = 0; j < 8; j++) {
                        x[j] *= gate[j];
                    }
                }
                for (int j = 0; j < 8; j++) {
                    x[j] = oct_one_nan(x[j]);
                }
                most = put_rounded(p.dst, row, at.col, x, count, most);
            }
        }
    }
    put_amax(p, most);
}

/* ---- dx ---------------------------------------------------------------------------------- */

/* g = grad factor, and x normed; zeros behind the last column. */
static inline void take_grads(float *g, float *normed, const oct_prologue_params &p,
                              const oct_norm_row &norm, int64_t col) {
    float factors[8];
    int count = oct_columns_left(p.shape.cols, col);
    take_factors(factors, p, col, count);
    take_floats(g, p.grad, blockIdx.x, col, count);
    take_floats(normed, p.x, blockIdx.x, col, count);
    for (int j = 0; j < 8; j++) {
        g[j] = j < count ? g[j] * factors[j] : 0.0f;
        normed[j] = j < count ? oct_normed(&norm, normed[j]) : 0.0f;
    }
}

/* The two means, from a thread's share of their sums. */
static inline oct_norm_means means_of(const oct_prologue_params &p, float *grads,
                                      float *along) {
    __shared__ float shared[8][OCT_LINE_THREADS];
    oct_norm_means means = {0.0f, 0.0f};
    if (is_centred(p)) {
        means.grad = oct_norm_mean(fold(grads, shared), p.shape.cols);
    }
    means.along = oct_norm_mean(fold(along, shared), p.shape.cols);
    return means;
}

static inline void put_grads(const oct_prologue_params &p, const oct_norm_row &norm,
                             const oct_norm_means &means, int64_t col, float *g,
                             const float *normed) {
    for (int j = 0; j < 8; j++) {
        g[j] = oct_norm_grad(&norm, &means, g[j], normed[j]);
    }
    oct_put(oct_plain_row_of(p.dst, blockIdx.x), col, oct_eight_of(g, p.dst.dtype),
            oct_columns_left(p.shape.cols, col));
}

static inline void add_grads(float *grads, float *along, const float *g, const float *normed) {
    for (int j = 0; j < 8; j++) {
        grads[j] += g[j];
        along[j] += g[j] * normed[j];
    }
}

/* Columns that a thread holds in registers, in eights: rows of up to 4096 are read once. */
#define HELD 4

static inline void grad_of_held_row(const oct_prologue_params &p, const oct_norm_row &norm) {
    float grads[8] = {}, along[8] = {}, g[HELD][8], normed[HELD][8];
    int64_t first = 8 * (int64_t)threadIdx.x;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        take_grads(g[i], normed[i], p, norm, first + i * OCT_NORM_LANES);
    }
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        if (first + i * OCT_NORM_LANES < p.shape.cols) {
            add_grads(grads, along, g[i], normed[i]);
        }
    }
    oct_norm_means means = means_of(p, grads, along);
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        put_grads(p, norm, means, first + i * OCT_NORM_LANES, g[i], normed[i]);
    }
}

static inline void grad_of_norm(const oct_prologue_params &p) {
    oct_norm_row norm = norm_of(p, blockIdx.x);
    if (p.shape.cols <= HELD * OCT_NORM_LANES) {
        grad_of_held_row(p, norm);
        return;
    }
    int64_t cols = p.shape.cols, first = 8 * (int64_t)threadIdx.x;
    float grads[8] = {}, along[8] = {}, g[8], normed[8];
    for (int64_t col = first; col < cols; col += OCT_NORM_LANES) {
        take_grads(g, normed, p, norm, col);
        add_grads(grads, along, g, normed);
    }
    oct_norm_means means = means_of(p, grads, along);
    for (int64_t col = first; col < cols; col += OCT_NORM_LANES) {
        take_grads(g, normed, p, norm, col);
        put_grads(p, norm, means, col, g, normed);
    }
}

/* One row of a thread: the gradients of x and of its gate. */
template <oct_activation ACT>
static inline void grad_row(const oct_prologue_params &p, int64_t row, int64_t col, int count) {
    float x[8], gate[8], grad[8];
    take_floats(x, p.x, row, col, count);
    take_floats(grad, p.grad, row, col, count);
    if (p.gate.at) {
        take_floats(gate, p.gate, row, col, count);
    }
    for (int j = 0; j < 8; j++) {
        oct_act_both both = oct_act_slope(ACT, x[j]);
        float slope = grad[j] * both.slope, value = grad[j] * both.value;
        x[j] = oct_one_nan(p.gate.at ? slope * gate[j] : slope);
        gate[j] = oct_one_nan(value);
    }
    oct_put(oct_plain_row_of(p.dst, row), col, oct_eight_of(x, p.dst.dtype), count);
    if (p.gate.at) {
        oct_put(oct_plain_row_of(p.gated, row), col, oct_eight_of(gate, p.dst.dtype), count);
    }
}

template <oct_activation ACT> static inline void apply_grad(const oct_prologue_params &p) {
    oct_rows_at at = oct_rows_place(p.shape);
    int count = oct_columns_left(p.shape.cols, at.col);
#pragma unroll 1 /* the code of four rows would take long to compile */
    for (int k = 0; k < OCT_ROWS_DEEP; k++) {
        int64_t row = at.row + k * at.step;
        if (row < p.shape.rows && count > 0) {
            grad_row<ACT>(p, row, at.col, count);
        }
    }
}

/* ---- gamma ------------------------------------------------------------------------------- */

static_assert(OCT_LINE_THREADS == OCT_TILE && OCT_LEAVES * OCT_ROWS_COLS * 16 == OCT_TILE * 8,
              "a tile of 128 columns: 16 threads of 8, for each of its leaves");

/* Sums of the columns of grad times x normed, of a tile of 128 rows: a thread has 8 columns of
 * a leaf, then joins the leaves of a column. */
static inline void sums_of_gamma(const oct_prologue_params &p) {
    __shared__ oct_tile_leaves<OCT_TILE> leaves;
    int leaf = (int)threadIdx.x / 16, local = (int)threadIdx.x % 16 * 8;
    uint32_t across = (uint32_t)((p.shape.cols + OCT_TILE - 1) / OCT_TILE);
    uint32_t down = blockIdx.x / across, beside = blockIdx.x - down * across;
    int64_t top = (int64_t)down * OCT_TILE, left = (int64_t)beside * OCT_TILE;
    int count = oct_columns_left(p.shape.cols, left + local);
    float sums[8] = {}, grad[8], x[8];
    for (int r = 0; r < OCT_LEAF_ROWS; r++) {
        int64_t row = top + leaf * OCT_LEAF_ROWS + r;
        if (row < p.shape.rows && count > 0) {
            oct_norm_row norm = norm_of(p, row);
            take_floats(grad, p.grad, row, left + local, count);
            take_floats(x, p.x, row, left + local, count);
            for (int j = 0; j < 8; j++) {
                sums[j] += grad[j] * oct_normed(&norm, x[j]);
            }
        }
    }
    for (int j = 0; j < 8; j++) {
        leaves.of[leaf][local + j] = sums[j];
    }
    __syncthreads();
    int64_t col = left + threadIdx.x;
    int used = oct_leaves_of(p.shape.rows - top);
    oct_leaf_sums joined = {};
#pragma unroll
    for (int i = 0; i < OCT_LEAVES; i++) {
        if (i < used && col < p.shape.cols) {
            oct_add_leaf(joined, leaves.of[i][threadIdx.x], i);
        }
    }
    if (col < p.shape.cols) {
        p.sums[down * p.shape.cols + col] = oct_tile_sum(joined, used);
    }
}

/* ---- kernels ----------------------------------------------------------------------------- */

/* The parameters, with x, f(x) and their gradients of a dtype that the compiler knows. */
template <uint8_t DTYPE> static inline oct_prologue_params typed(const oct_prologue_params &p) {
    oct_prologue_params q = p;
    q.dst.dtype = q.x.dtype = q.gated.dtype = q.gate.dtype = q.grad.dtype = DTYPE;
    return q;
}

#define KERNEL(name, THREADS, DTYPE, function)                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS)                                      \
        name(const __grid_constant__ oct_prologue_params p) {                                  \
        oct_after();                                                                           \
        function(typed<DTYPE>(p));                                                             \
    }

#define ACTIVATION(name, type, DTYPE, ACT)                                                     \
    KERNEL(name##_apply_##type, OCT_ROWS_THREADS, DTYPE, apply<ACT>)                           \
    KERNEL(name##_grad_##type, OCT_ROWS_THREADS, DTYPE, apply_grad<ACT>)

#define KERNELS(type, DTYPE)                                                                   \
    KERNEL(norm_statistics_##type, OCT_LINE_THREADS, DTYPE, statistics)                        \
    KERNEL(norm_apply_##type, OCT_ROWS_THREADS, DTYPE, apply_norm)                             \
    KERNEL(norm_grad_##type, OCT_LINE_THREADS, DTYPE, grad_of_norm)                            \
    KERNEL(gamma_sums_##type, OCT_LINE_THREADS, DTYPE, sums_of_gamma)                          \
    ACTIVATION(gelu, type, DTYPE, OCT_ACT_GELU)                                                \
    ACTIVATION(qgelu, type, DTYPE, OCT_ACT_QGELU)                                              \
    ACTIVATION(relu, type, DTYPE, OCT_ACT_RELU)                                                \
    ACTIVATION(srelu, type, DTYPE, OCT_ACT_SRELU)                                              \
    ACTIVATION(silu, type, DTYPE, OCT_ACT_SILU)                                                \
    ACTIVATION(sigmoid, type, DTYPE, OCT_ACT_SIGMOID)

#ifdef OCT_TAKES_F32
KERNELS(f32, OCTET_F32)
#endif
#ifdef OCT_TAKES_BF16
KERNELS(bf16, OCTET_BF16)
#endif
#ifdef OCT_TAKES_F16
KERNELS(f16, OCTET_F16)
#endif
