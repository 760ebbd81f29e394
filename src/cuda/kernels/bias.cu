/* bias.cu - a bias added to every row, and its gradient: the sums of the columns. */
#include "cuda/kernels/bias.h"
#include "cuda/kernels/plain.h"

/* The sum is an fp32 sum, rounded once. dst may be source: a thread reads before it writes. */
extern "C" __global__ void __launch_bounds__(OCT_ROWS_THREADS)
    add_bias(const oct_add_bias_params p) {
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

/* ---- column sums: leaves of 128 rows in order, joined as a binary tree ------------------ */

#define LEAF_ROWS 128
#define AHEAD 16       /* rows of a leaf read before they are summed */
#define LEVELS 10      /* above a round of 64 leaves; the last takes whatever is more */
#define ROUND_LEVELS 6 /* log2(OCT_GRAD_LEAVES) */

struct two {
    float x, y;
};

template <class T> static inline two load_two(const T *at, bool paired, bool second) {
    T both[2] = {};
    if (paired && second) {
        if (sizeof(T) == 2) {
            uint32_t word = *(const uint32_t *)at;
            memcpy(both, &word, sizeof both);
        } else {
            uint2 words = *(const uint2 *)at;
            memcpy(both, &words, sizeof both);
        }
    } else {
        both[0] = at[0];
        both[1] = second ? at[1] : both[1];
    }
    return {oct_to_float(both[0]), oct_to_float(both[1])};
}

/* Two columns of `rows` rows, in order from +0. */
template <class T>
static inline two leaf_sum(const T *at, int64_t stride, int rows, bool paired, bool second) {
    two sum = {0.0f, 0.0f};
    int r = 0;
    for (; r + AHEAD <= rows; r += AHEAD) {
        two next[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            next[i] = load_two(at + (r + i) * stride, paired, second);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            sum.x += next[i].x;
            sum.y += next[i].y;
        }
    }
    for (; r < rows; r++) {
        two next = load_two(at + r * stride, paired, second);
        sum.x += next.x;
        sum.y += next.y;
    }
    return sum;
}

/* A round's sums, joined in pairs, pairs in pairs: node i of level l lies at i << l. A node
 * that has no partner, the last one where bit l of `count` is set, stays where it is. */
static inline void join_round(float (*sums)[OCT_GRAD_COLS], int count) {
    int pair = (int)threadIdx.x % (OCT_GRAD_COLS / 2);
    int leaf = (int)threadIdx.x / (OCT_GRAD_COLS / 2);
    __syncthreads();
    for (int level = 0; level < ROUND_LEVELS; level++) {
        int other = leaf + (1 << level);
        if ((leaf & ((2 << level) - 1)) == 0 && leaf + (2 << level) <= count) {
            sums[leaf][2 * pair] += sums[other][2 * pair];
            sums[leaf][2 * pair + 1] += sums[other][2 * pair + 1];
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

/* What is left on the levels, from the smallest up: `last` leaves of a round, then rounds. */
static inline float total(const float (*sums)[OCT_GRAD_COLS],
                          const float (*above)[OCT_GRAD_COLS], int last, int64_t rounds) {
    int col = (int)threadIdx.x;
    float out = 0.0f;
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

template <class T> static inline void column_sums(const oct_bias_grad_params &p) {
    __shared__ float sums[OCT_GRAD_LEAVES][OCT_GRAD_COLS];
    __shared__ float above[LEVELS][OCT_GRAD_COLS];
    int64_t first = (int64_t)blockIdx.x * OCT_GRAD_COLS;
    int pair = (int)threadIdx.x % (OCT_GRAD_COLS / 2);
    int leaf = (int)threadIdx.x / (OCT_GRAD_COLS / 2);
    int64_t col = first + 2 * pair, rounds = 0;
    int count = 0; /* leaves of this round */
    for (int64_t row = 0; row < p.rows; row += LEAF_ROWS * OCT_GRAD_LEAVES) {
        int64_t left = p.rows - row - leaf * LEAF_ROWS;
        int64_t leaves = (p.rows - row + LEAF_ROWS - 1) / LEAF_ROWS;
        count = leaves < OCT_GRAD_LEAVES ? (int)leaves : OCT_GRAD_LEAVES;
        if (left > 0 && col < p.cols) {
            const T *at =
                (const T *)p.source.at + (row + leaf * LEAF_ROWS) * p.source.stride + col;
            two sum = leaf_sum(at, p.source.stride, left < LEAF_ROWS ? (int)left : LEAF_ROWS,
                               p.paired != 0, col + 1 < p.cols);
            sums[leaf][2 * pair] = sum.x;
            sums[leaf][2 * pair + 1] = sum.y;
        }
        join_round(sums, count);
        if (count == OCT_GRAD_LEAVES) {
            if (threadIdx.x < OCT_GRAD_COLS) {
                carry_round(above, sums[0][threadIdx.x], rounds);
            }
            rounds++;
            count = 0;
            __syncthreads();
        }
    }
    if (threadIdx.x < OCT_GRAD_COLS && first + threadIdx.x < p.cols) {
        float value[8] = {total(sums, above, count, rounds)};
        oct_plain_row row = oct_plain_row_of(p.dst, 0);
        oct_store_some(row, first + threadIdx.x, oct_eight_of(value, p.dst.dtype), 1);
    }
}

extern "C" __global__ void __launch_bounds__(OCT_GRAD_THREADS)
    bias_grad_f32(const oct_bias_grad_params p) {
    column_sums<float>(p);
}

extern "C" __global__ void __launch_bounds__(OCT_GRAD_THREADS)
    bias_grad_bf16(const oct_bias_grad_params p) {
    column_sums<oct_bf16>(p);
}

extern "C" __global__ void __launch_bounds__(OCT_GRAD_THREADS)
    bias_grad_f16(const oct_bias_grad_params p) {
    column_sums<oct_f16>(p);
}
