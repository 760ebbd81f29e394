/* bias.cu - a bias added to every row, and its gradient: the sums of the columns. */
#include "cuda/kernels/bias.h"
#include "cuda/kernels/chain.h"
#include "cuda/kernels/column_sums.h"
#include "cuda/kernels/plain.h"
#include "cuda/kernels/slab.h"

/* The sum is an fp32 sum, rounded once. dst may be source: a thread reads before it writes. */
extern "C" __global__ void __launch_bounds__(OCT_ROWS_THREADS)
    add_bias(const oct_add_bias_params p) {
    oct_after();
    oct_rows_at at = oct_rows_place(p.shape);
    int count = oct_columns_left(p.shape.cols, at.col);
    if (count == 0) {
        return;
    }
    float bias[8], x[8];
    oct_eight raw[OCT_ROWS_DEEP];
    oct_eight_floats(bias, oct_take(oct_plain_row_of(p.bias, 0), at.col, count), p.bias.dtype);
    oct_take_rows(raw, p.source, p.shape, at);
#pragma unroll
    for (int k = 0; k < OCT_ROWS_DEEP; k++) {
        int64_t row = at.row + k * at.step;
        if (row < p.shape.rows) {
            oct_eight_floats(x, raw[k], p.source.dtype);
            for (int i = 0; i < 8; i++) {
                x[i] += bias[i];
            }
            oct_put(oct_plain_row_of(p.dst, row), at.col, oct_eight_of(x, p.dst.dtype), count);
        }
    }
}

/* ---- column sums of tiles ------------------------------------------------------------ */

/* As the casts leave them that have read the matrix. */
template <class T> static inline void sum_columns(const oct_quantize_params &q) {
    __shared__ oct_tile_leaves<oct_slab<T>::cols> leaves;
    oct_patch<T> patch = oct_slab_patch<T>(q, blockIdx.x);
    oct_patch_load(patch, q);
    oct_leaves_put(leaves, patch);
    __syncthreads();
    oct_leaves_store(leaves, patch, q);
}

#define SUMS(name, T)                                                                          \
    extern "C" __global__ void __launch_bounds__(OCT_SLAB_THREADS, 3)                          \
        sum_columns_##name(const __grid_constant__ oct_quantize_params q) {                    \
        oct_after();                                                                           \
        sum_columns<T>(q);                                                                     \
    }

SUMS(f32, float)
SUMS(bf16, oct_bf16)
SUMS(f16, oct_f16)

/* ---- tiles joined as a binary tree ------------------------------------------------------ */

#define LEVELS 10      /* above a round of 64 tiles; the last takes whatever is more */
#define ROUND_LEVELS 6 /* log2(OCT_GRAD_TILES) */

/* This thread's tile of a round, and its two columns. */
struct share {
    int pair, tile;
    int64_t col;
};

static inline void load_two(float *to, const oct_bias_grad_params &p, int64_t tile,
                            const share &s) {
    const float *at = p.sums + tile * p.cols + s.col;
    if (p.paired) {
        uint2 both = *(const uint2 *)at;
        to[0] = oct_bits_f32(both.x);
        to[1] = oct_bits_f32(both.y);
    } else {
        to[0] = at[0];
        to[1] = s.col + 1 < p.cols ? at[1] : 0.0f;
    }
}

/* A round's sums, joined in pairs, pairs in pairs: node i of level l lies at i << l. A node
 * that has no partner, the last one where bit l of `count` is set, stays where it is. */
static inline void join_round(float (*sums)[OCT_GRAD_COLS], int count, const share &s) {
    __syncthreads();
    for (int level = 0; level < ROUND_LEVELS; level++) {
        int other = s.tile + (1 << level);
        if ((s.tile & ((2 << level) - 1)) == 0 && s.tile + (2 << level) <= count) {
            sums[s.tile][2 * s.pair] += sums[other][2 * s.pair];
            sums[s.tile][2 * s.pair + 1] += sums[other][2 * s.pair + 1];
        }
        __syncthreads();
    }
}

/* A full round is carried upward like 1 added to a binary number, `rounds` before it. */
static inline void carry_round(float (*above)[OCT_GRAD_COLS], float sum, int64_t rounds) {
    int col = (int)threadIdx.x, level = 0;
    for (; level < LEVELS - 1 && (rounds >> level & 1); level++) {
        sum = above[level][col] + sum;
    }
    if (level == LEVELS - 1 && rounds >> level) {
        sum = above[level][col] + sum;
    }
    above[level][col] = sum;
}

/* What is left on the levels, from the smallest up: `out` of a last tile that is no node,
 * `last` nodes of a round, then rounds. */
static inline float total(float out, const float (*sums)[OCT_GRAD_COLS],
                          const float (*above)[OCT_GRAD_COLS], int last, int64_t rounds) {
    int col = (int)threadIdx.x;
    for (int level = 0; level < ROUND_LEVELS; level++) {
        if (last >> level & 1) {
            out += sums[((last >> level) - 1) << level][col];
        }
    }
    for (int level = 0; level < LEVELS; level++) {
        bool held = level == LEVELS - 1 ? rounds >> level != 0 : (rounds >> level & 1) != 0;
        out += held ? above[level][col] : 0.0f;
    }
    return out;
}

/* The sum of one column, with what is there where it is added, rounded once. */
static inline void put_total(const oct_bias_grad_params &p, int64_t col, float *value) {
    oct_plain_row dst = oct_plain_row_of(p.dst, 0);
    if (p.accumulate) {
        float old[8];
        oct_eight_floats(old, oct_load_some(dst, col, 1), p.dst.dtype);
        value[0] += old[0];
    }
    oct_store_some(dst, col, oct_eight_of(value, p.dst.dtype), 1);
}

extern "C" __global__ void __launch_bounds__(OCT_GRAD_THREADS)
    bias_grad(const oct_bias_grad_params p) {
    oct_after();
    __shared__ float sums[OCT_GRAD_TILES][OCT_GRAD_COLS], above[LEVELS][OCT_GRAD_COLS];
    __shared__ float rest[OCT_GRAD_COLS]; /* of a last tile that is no node */
    int64_t block = (int64_t)blockIdx.x * OCT_GRAD_COLS, rounds = 0;
    int64_t nodes = (p.rows + OCT_LEAF_ROWS - 1) / OCT_LEAF_ROWS / OCT_LEAVES;
    share s = {(int)threadIdx.x % (OCT_GRAD_COLS / 2), (int)threadIdx.x / (OCT_GRAD_COLS / 2),
               block};
    s.col += 2 * s.pair;
    int count = 0; /* nodes of this round */
    if (threadIdx.x < OCT_GRAD_COLS) {
        rest[threadIdx.x] = 0.0f;
    }
    __syncthreads();
    for (int64_t first = 0; first * OCT_TILE < p.rows; first += OCT_GRAD_TILES) {
        int64_t tile = first + s.tile, left = nodes - first;
        count = left < OCT_GRAD_TILES ? (int)left : OCT_GRAD_TILES;
        if (tile * OCT_TILE < p.rows && s.col < p.cols) {
            load_two((tile < nodes ? sums[s.tile] : rest) + 2 * s.pair, p, tile, s);
        }
        join_round(sums, count, s);
        if (count == OCT_GRAD_TILES) {
            if (threadIdx.x < OCT_GRAD_COLS) {
                carry_round(above, sums[0][threadIdx.x], rounds);
            }
            rounds++;
            count = 0;
            __syncthreads();
        }
    }
    if (threadIdx.x < OCT_GRAD_COLS && block + threadIdx.x < p.cols) {
        float value[8] = {total(rest[threadIdx.x], sums, above, count, rounds)};
        put_total(p, block + threadIdx.x, value);
    }
}
