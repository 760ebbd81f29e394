/* bias.cu - a bias added to every row, and its gradient: the sums of the columns. */
#include "cuda/kernels/bias.h"
#include "cuda/kernels/column_sums.h"
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

/* ---- column sums: tiles of 128 rows, joined as a binary tree ---------------------------- */

#define LEVELS 10      /* above a round of 64 tiles; the last takes whatever is more */
#define ROUND_LEVELS 6 /* log2(OCT_GRAD_TILES) */

struct two {
    float x, y;
};

/* This thread's tile of a round, and its columns. */
struct share {
    int pair, tile;
    int64_t col;
    bool paired, second; /* two columns may be read at once; there is a second one */
};

static inline share share_of(const oct_bias_grad_params &p) {
    share s;
    s.pair = (int)threadIdx.x % (OCT_GRAD_COLS / 2);
    s.tile = (int)threadIdx.x / (OCT_GRAD_COLS / 2);
    s.col = (int64_t)blockIdx.x * OCT_GRAD_COLS + 2 * s.pair;
    s.paired = p.paired != 0;
    s.second = s.col + 1 < p.cols;
    return s;
}

template <class T> static inline two load_two(const T *at, const share &s) {
    T both[2] = {};
    if (s.paired && s.second) {
        if (sizeof(T) == 2) {
            uint32_t word = *(const uint32_t *)at;
            memcpy(both, &word, sizeof both);
        } else {
            uint2 words = *(const uint2 *)at;
            memcpy(both, &words, sizeof both);
        }
    } else {
        both[0] = at[0];
        both[1] = s.second ? at[1] : both[1];
    }
    return {oct_to_float(both[0]), oct_to_float(both[1])};
}

/* Rows in order from +0. All are read before they are summed. */
template <class T>
static inline two leaf_sum(const T *at, int64_t stride, int rows, const share &s) {
    two sum = {0.0f, 0.0f}, next[OCT_LEAF_ROWS] = {};
#pragma unroll
    for (int r = 0; r < OCT_LEAF_ROWS; r++) {
        if (r < rows) {
            next[r] = load_two(at + r * stride, s);
        }
    }
#pragma unroll
    for (int r = 0; r < OCT_LEAF_ROWS; r++) {
        sum.x += next[r].x;
        sum.y += next[r].y;
    }
    return sum;
}

/* Where sums come from: the matrix, */
template <class T> struct from_matrix {
    static inline two tile_sum(const oct_bias_grad_params &p, int64_t row, const share &s) {
        int rows = oct_limited(p.rows - row), leaves = oct_leaves_of(p.rows - row);
        const T *at = (const T *)p.source.at + row * p.source.stride + s.col;
        oct_leaf_sums x = {}, y = {};
        for (int i = 0; i < leaves; i++) {
            two leaf = leaf_sum(at, p.source.stride, rows - i * OCT_LEAF_ROWS, s);
            oct_add_leaf(x, leaf.x, i);
            oct_add_leaf(y, leaf.y, i);
            at += OCT_LEAF_ROWS * p.source.stride;
        }
        return {oct_tile_sum(x, leaves), oct_tile_sum(y, leaves)};
    }
};

/* or a cast, which has left those of tiles. */
struct from_tiles {
    static inline two tile_sum(const oct_bias_grad_params &p, int64_t row, const share &s) {
        return load_two((const float *)p.source.at + row / OCT_TILE * p.cols + s.col, s);
    }
};

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

template <class FROM> static inline void column_sums(const oct_bias_grad_params &p) {
    __shared__ float sums[OCT_GRAD_TILES][OCT_GRAD_COLS], above[LEVELS][OCT_GRAD_COLS];
    __shared__ float rest[OCT_GRAD_COLS]; /* of a last tile that is no node */
    share s = share_of(p);
    int64_t nodes = (p.rows + OCT_LEAF_ROWS - 1) / OCT_LEAF_ROWS / OCT_LEAVES, rounds = 0;
    int count = 0; /* nodes of this round */
    if (threadIdx.x < OCT_GRAD_COLS) {
        rest[threadIdx.x] = 0.0f;
    }
    __syncthreads();
    for (int64_t first = 0; first * OCT_TILE < p.rows; first += OCT_GRAD_TILES) {
        int64_t tile = first + s.tile, left = nodes - first;
        count = left < OCT_GRAD_TILES ? (int)left : OCT_GRAD_TILES;
        if (tile * OCT_TILE < p.rows && s.col < p.cols) {
            two sum = FROM::tile_sum(p, tile * OCT_TILE, s);
            float *to = tile < nodes ? sums[s.tile] : rest;
            to[2 * s.pair] = sum.x;
            to[2 * s.pair + 1] = sum.y;
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
    int64_t col = (int64_t)blockIdx.x * OCT_GRAD_COLS + threadIdx.x;
    if (threadIdx.x < OCT_GRAD_COLS && col < p.cols) {
        float value[8] = {total(rest[threadIdx.x], sums, above, count, rounds)};
        oct_store_some(oct_plain_row_of(p.dst, 0), col, oct_eight_of(value, p.dst.dtype), 1);
    }
}

#define KERNEL(name, from)                                                                     \
    extern "C" __global__ void __launch_bounds__(OCT_GRAD_THREADS)                             \
        bias_grad_##name(const oct_bias_grad_params p) {                                       \
        column_sums<from>(p);                                                                  \
    }

KERNEL(f32, from_matrix<float>)
KERNEL(bf16, from_matrix<oct_bf16>)
KERNEL(f16, from_matrix<oct_f16>)
KERNEL(tiles, from_tiles)
