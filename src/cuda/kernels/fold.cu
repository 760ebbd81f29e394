/* fold.cu - MXFP8 in blocks of 128: the codes of four blocks under the largest of their scales.
 *
 * The scale of 128 is that of a block, as a float; its codes are what folding.h says. Blocks of
 * a thread block are a tile of 128 x 128, so that all of a fold lies in one. */
#include "cuda/kernels/chain.h"
#include "cuda/kernels/folding.h"

#include "cuda/kernels/fold.h"

#define SIDE OCT_FOLD_SIDE

/* Codes as the lines of `to` lie, where they are turned; and the four scales of each line, with
 * a gap behind every 16 lines: lines 16 k are in banks of their own. */
struct fold_tile {
    uint4 codes[SIDE * SIDE / 16];
    uint32_t scales[SIDE + SIDE / 16];
};

static inline uint32_t &scales_at(fold_tile &tile, int line) {
    return tile.scales[line + line / 16];
}

/* The four scales of a line of `to`; 0 where there is no block. */
static inline uint32_t scales_of(const oct_fold_params &p, int64_t row, int64_t col, int line) {
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int64_t r = row + (p.turned ? 32 * i : line), c = col + (p.turned ? line : 32 * i);
        if (r < p.rows && c < p.cols) {
            int64_t at = p.by_column ? oct_scale_at(&p.scales, c, r / 32)
                                     : oct_scale_at(&p.scales, r, c / 32);
            word |= (uint32_t)p.scale[at] << (8 * i);
        }
    }
    return word;
}

/* By a thread for each line: its four scales, and the one of its 128. */
static inline void settle_line(fold_tile &tile, const oct_fold_params &p, int64_t row,
                               int64_t col, int line) {
    uint32_t word = scales_of(p, row, col, line);
    int64_t at = (p.turned ? col : row) + line, there = p.turned ? p.cols : p.rows;
    scales_at(tile, line) = word;
    if (at < p.lines) {
        p.to_scale[(p.turned ? row : col) / SIDE * p.lines + at] =
            at < there ? oct_e8m0_decode((uint8_t)oct_most_of_four(word)) : 0.0f;
    }
}

/* 16 codes of a row; those outside are 0. */
static inline uint4 load_codes(const oct_fold_params &p, int64_t row, int64_t col) {
    const uint8_t *from = p.codes + row * p.cols + col;
    if (row < p.rows && col + 16 <= p.cols && p.wide) {
        return oct_stream16(from);
    }
    uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 16; i++) {
        if (row < p.rows && col + i < p.cols) {
            words[i / 4] |= (uint32_t)from[i] << (i % 4 * 8);
        }
    }
    return {words[0], words[1], words[2], words[3]};
}

/* A thread has 16 columns of 4 rows, which lie in one block each. */
template <int FORMAT>
static inline void store_rows(fold_tile &tile, const oct_fold_params &p, const uint4 x[4],
                              int64_t row, int64_t col) {
    int piece = (int)threadIdx.x % 8, four = (int)threadIdx.x / 8;
    int64_t to_col = col + 16 * piece;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int64_t to_row = row + 4 * four + i;
        oct_shift by = oct_shift_of(scales_at(tile, 4 * four + i), piece / 2);
        if (to_row < p.lines && to_col < p.pitch) {
            oct_write16(
                p.to + to_row * p.pitch + to_col,
                uint4{oct_fold_four<FORMAT>(x[i].x, by), oct_fold_four<FORMAT>(x[i].y, by),
                      oct_fold_four<FORMAT>(x[i].z, by), oct_fold_four<FORMAT>(x[i].w, by)});
        }
    }
}

/* Four rows of a column are a word. Word (column, rows / 4) lies at column * 32 + (rows / 4 ^
 * 4 (column / 16)): without conflicts both for the words of 8 threads along and 4 down the
 * rows, and for columns. */
template <int FORMAT> static inline void turn_rows(fold_tile &tile, const uint4 x[4]) {
    uint32_t *words = (uint32_t *)tile.codes;
    int piece = (int)threadIdx.x % 8, four = (int)threadIdx.x / 8;
#pragma unroll
    for (int w = 0; w < 4; w++) {
        uint32_t turned[4], rows[4] = {oct_word(x[0], w), oct_word(x[1], w), oct_word(x[2], w),
                                       oct_word(x[3], w)};
        oct_turn4(turned, rows);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int column = 16 * piece + 4 * w + i;
            oct_shift by = oct_shift_of(scales_at(tile, column), four / 8);
            words[column * 32 + (four ^ 4 * piece)] = oct_fold_four<FORMAT>(turned[i], by);
        }
    }
}

/* A thread has 16 rows of 4 columns. */
static inline void store_columns(const fold_tile &tile, const oct_fold_params &p, int64_t row,
                                 int64_t col) {
    int piece = (int)threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int column = (int)threadIdx.x / 8 + 32 * i;
        if (col + column < p.lines && row + 16 * piece < p.pitch) {
            oct_write16(p.to + (col + column) * p.pitch + row + 16 * piece,
                        tile.codes[column * 8 + (piece ^ column / 16)]);
        }
    }
}

template <int FORMAT> static inline void fold(const oct_fold_params &p) {
    __shared__ fold_tile tile;
    uint32_t down = blockIdx.x / p.across, beside = blockIdx.x - down * p.across;
    int64_t row = (int64_t)down * SIDE, col = (int64_t)beside * SIDE;
    int piece = (int)threadIdx.x % 8, four = (int)threadIdx.x / 8;
    uint4 x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] = load_codes(p, row + 4 * four + i, col + 16 * piece);
    }
    if (threadIdx.x < SIDE) {
        settle_line(tile, p, row, col, (int)threadIdx.x);
    }
    __syncthreads();
    if (!p.turned) {
        store_rows<FORMAT>(tile, p, x, row, col);
        return;
    }
    turn_rows<FORMAT>(tile, x);
    __syncthreads();
    store_columns(tile, p, row, col);
}

#define KERNEL(name, format)                                                                   \
    extern "C" __global__ void __launch_bounds__(OCT_FOLD_THREADS)                             \
        fold_##name(const oct_fold_params p) {                                                 \
        oct_after();                                                                           \
        fold<format>(p);                                                                       \
    }

KERNEL(e4m3, OCTET_E4M3)
KERNEL(e5m2, OCTET_E5M2)
