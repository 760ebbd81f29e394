/* block_tile.h - a tile of FP8 in blocks of 128: rows, columns or squares.
 *
 * Codes and scales are those of src/cpu/block.c, bit for bit. A tile is one or two blocks along
 * its rows, one along its columns, and one or two squares beside each other. `load` takes this
 * thread's patch. */
#ifndef OCT_CUDA_KERNELS_BLOCK_TILE_H
#define OCT_CUDA_KERNELS_BLOCK_TILE_H

#include "cuda/kernels/chain.h"
#include "cuda/kernels/column_sums.h"
#include "cuda/kernels/slab.h"

#include "cuda/kernels/block.h"

/* Lanes that share a block of 128 columns: 16, or all 32. */
template <class T> struct lanes_of {
    static constexpr int count = OCT_TILE / oct_slab<T>::each;
};

template <class T> using block_leaves = oct_tile_leaves<oct_slab<T>::cols>;

/* Factors are made while patches fill the registers; they become scales at the end. Lines up to
 * the next multiple of 4 are padding. */
static inline void store_scale(void *scales, const oct_scales *at, int64_t line, int64_t block,
                               float factor) {
    if (block < at->blocks && line < oct_round_up(at->lines, 4)) {
        ((float *)scales)[oct_scale_at(at, line, block)] =
            line < at->lines ? 1.0f / factor : 0.0f;
    }
}

/* ---- 1 x 128: each direction on its own ------------------------------------------------ */

/* The maxima of columns, as they are stored, from each warp, and what they become; the factors
 * of a warp's 16 rows, in one or two blocks. */
template <class T> struct block_lines {
    uint4 peaks[OCT_SLAB_WARPS][OCT_WARP];
    alignas(16) float col_factor[oct_slab<T>::cols];
    alignas(16) float row_factor[OCT_SLAB_WARPS][OCT_WARP];
};

/* Of 8 rows from `first` on, over the 8 lanes of a group: row first + lane % 8. */
template <class T>
static inline uint32_t eight_rows_max(const oct_patch<T> &patch, int first, int lane) {
    uint32_t most[8];
#pragma unroll
    for (int r = 0; r < 8; r++) {
        most[r] = oct_patch_row_max(patch, first + r);
    }
    oct_share_max<8, 8>(most, lane % 8, 1);
#pragma unroll
    for (int apart = 8; apart < lanes_of<T>::count; apart *= 2) {
        uint32_t other = __shfl_xor_sync(OCT_ALL_LANES, most[0], apart);
        most[0] = oct_max_bits(most[0], other);
    }
    return most[0];
}

/* By a warp: a lane has row lane % 16 in the block that it lies in. */
template <class T>
static inline void settle_rows(block_lines<T> &lines, const oct_patch<T> &patch,
                               const oct_scale_rule *rule) {
    int lane = (int)threadIdx.x % OCT_WARP;
    uint32_t upper = eight_rows_max(patch, 0, lane), lower = eight_rows_max(patch, 8, lane);
    lines.row_factor[threadIdx.x / OCT_WARP][lane] =
        oct_scale_of(oct_bits_f32(lane & 8 ? lower : upper), rule);
    __syncwarp();
}

template <class T> static inline uint32_t column_max(const block_lines<T> &lines, int col) {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < OCT_SLAB_WARPS; i++) {
        const T *peaks = (const T *)&lines.peaks[i][0];
        uint32_t bits = oct_f32_bits(oct_to_float(peaks[col]));
        most = oct_max_bits(most, bits & OCT_F32_MAGNITUDE);
    }
    return most;
}

/* By all threads, a column each, after a barrier. */
template <class T>
static inline void settle_cols(block_lines<T> &lines, const oct_scale_rule *rule) {
    int col = (int)threadIdx.x;
    if (col < oct_slab<T>::cols) {
        lines.col_factor[col] = oct_scale_of(oct_bits_f32(column_max(lines, col)), rule);
    }
}

template <class T>
static inline void store_scales(const block_lines<T> &lines, const oct_patch<T> &patch,
                                const oct_quantize_params &q) {
    int lane = (int)threadIdx.x % OCT_WARP, col = (int)threadIdx.x;
    if (q.row) {
        store_scale(q.row_scale, &q.row_at, patch.tile_row + patch.row + lane % OCT_PATCH_ROWS,
                    patch.tile_col / OCT_TILE + lane / lanes_of<T>::count,
                    lines.row_factor[threadIdx.x / OCT_WARP][lane]);
    }
    if (q.col && col < oct_slab<T>::cols) {
        store_scale(q.col_scale, &q.col_at, patch.tile_col + col, patch.tile_row / OCT_TILE,
                    lines.col_factor[col]);
    }
}

template <class T, int FORMAT>
static inline void encode_cols(oct_slab_turned<T> &turned, const oct_patch<T> &patch,
                               const float *factors) {
#pragma unroll
    for (int c = 0; c < oct_slab<T>::each; c++) {
        uint32_t codes[4];
        float one = factors[c];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            codes[i] = oct_encode4<FORMAT>(oct_patch_at(patch, 4 * i, c) * one,
                                           oct_patch_at(patch, 4 * i + 1, c) * one,
                                           oct_patch_at(patch, 4 * i + 2, c) * one,
                                           oct_patch_at(patch, 4 * i + 3, c) * one);
        }
        oct_slab_put(turned, patch, c, uint4{codes[0], codes[1], codes[2], codes[3]});
    }
}

template <class T, int FORMAT, class F>
static inline void quantize_lines(oct_slab_turned<T> &turned, block_leaves<T> &leaves,
                                  const oct_block_params &p, uint32_t tile, const F &load) {
    __shared__ block_lines<T> lines;
    oct_patch<T> patch = oct_slab_patch<T>(p.q, tile);
    load(patch, p.q);
    if (p.q.ahead) {
        oct_ask_for_tile<T, oct_slab<T>::cols>(p.q, tile + p.q.ahead);
    }
    if (p.q.sums) {
        oct_leaves_put(leaves, patch);
    }
    if (p.q.col) {
        lines.peaks[threadIdx.x / OCT_WARP][threadIdx.x % OCT_WARP] = oct_patch_peaks(patch);
    }
    if (p.q.col || p.q.sums) {
        __syncthreads();
    }
    if (p.q.col) {
        settle_cols(lines, &p.rule);
    }
    if (p.q.sums) {
        oct_leaves_store(leaves, patch, p.q);
    }
    if (p.q.row) {
        settle_rows(lines, patch, &p.rule);
        int first = (int)threadIdx.x % OCT_WARP / lanes_of<T>::count * OCT_PATCH_ROWS;
        const float *factors = lines.row_factor[threadIdx.x / OCT_WARP] + first;
        oct_patch_encode_rows<T, FORMAT>(patch,
                                         oct_patch_rows_of(patch, p.q, p.q.row, p.q.wide_row),
                                         [=](int r, int) { return factors[r]; });
    }
    if (p.q.col) {
        __syncthreads();
        encode_cols<T, FORMAT>(turned, patch, lines.col_factor + patch.col);
        __syncthreads();
        oct_slab_store(turned, patch, p.q);
    }
    store_scales(lines, patch, p.q);
}

/* ---- 128 x 128: one scale, columns are the rows turned ---------------------------------- */

/* The maxima of squares from each warp, and what they become. */
template <class T> struct block_squares {
    static constexpr int count = oct_slab<T>::cols / OCT_TILE;
    uint32_t most[count][OCT_SLAB_WARPS];
    float factor[count];
};

/* By a thread for each square, after a barrier. */
template <class T>
static inline void settle_square(block_squares<T> &squares, const oct_scale_rule *rule) {
    int square = (int)threadIdx.x / OCT_WARP;
    if (square >= block_squares<T>::count || threadIdx.x % OCT_WARP > 0) {
        return;
    }
    uint32_t most = 0;
#pragma unroll
    for (int warp = 0; warp < OCT_SLAB_WARPS; warp++) {
        most = oct_max_bits(most, squares.most[square][warp]);
    }
    squares.factor[square] = oct_scale_of(oct_bits_f32(most), rule);
}

/* A square's scale, and by the lanes behind the first the padding behind the last of a line. */
static inline void store_square(void *scales, const oct_scales *at, int64_t line, int64_t block,
                                float factor) {
    int ahead = (int)threadIdx.x % OCT_WARP;
    bool last = block + 1 == at->blocks && block + ahead < oct_round_up(at->blocks, 4);
    if (ahead == 0 || (ahead < 4 && last)) {
        ((float *)scales)[oct_scale_at(at, line, block + ahead)] =
            ahead == 0 ? 1.0f / factor : 0.0f;
    }
}

/* By a warp for each square that exists. */
template <class T>
static inline void store_squares(const block_squares<T> &squares, const oct_patch<T> &patch,
                                 const oct_quantize_params &q) {
    int square = (int)threadIdx.x / OCT_WARP;
    int64_t row = patch.tile_row, col = patch.tile_col + square * OCT_TILE;
    if (square >= block_squares<T>::count || col >= q.cols) {
        return;
    }
    if (q.row) {
        store_square(q.row_scale, &q.row_at, row, col / OCT_TILE, squares.factor[square]);
    }
    if (q.col) {
        store_square(q.col_scale, &q.col_at, col, row / OCT_TILE, squares.factor[square]);
    }
}

template <class T, int FORMAT, class F>
static inline void quantize_square(oct_slab_turned<T> &turned, block_leaves<T> &leaves,
                                   const oct_block_params &p, uint32_t tile, const F &load) {
    __shared__ block_squares<T> squares;
    oct_patch<T> patch = oct_slab_patch<T>(p.q, tile);
    load(patch, p.q);
    if (p.q.ahead) {
        oct_ask_for_tile<T, oct_slab<T>::cols>(p.q, tile + p.q.ahead);
    }
    if (p.q.sums) {
        oct_leaves_put(leaves, patch);
    }
    uint32_t most = oct_patch_max(patch);
    int mine = (int)threadIdx.x % OCT_WARP / lanes_of<T>::count;
#pragma unroll
    for (int i = 0; i < block_squares<T>::count; i++) {
        uint32_t all = oct_warp_max(i == mine ? most : 0u);
        if (threadIdx.x % OCT_WARP == 0) {
            squares.most[i][threadIdx.x / OCT_WARP] = all;
        }
    }
    __syncthreads();
    settle_square(squares, &p.rule);
    if (p.q.sums) {
        oct_leaves_store(leaves, patch, p.q);
    }
    __syncthreads();
    oct_slab_encode<T, FORMAT>(turned, patch, p.q, squares.factor[mine]);
    __syncthreads();
    if (p.q.col) {
        oct_slab_store(turned, patch, p.q);
    }
    store_squares(squares, patch, p.q);
}

template <class T, int FORMAT, class F>
static inline void quantize(const oct_block_params &p, uint32_t tile, const F &load) {
    __shared__ oct_slab_turned<T> turned;
    __shared__ block_leaves<T> leaves;
    if (p.square) {
        quantize_square<T, FORMAT>(turned, leaves, p, tile, load);
    } else {
        quantize_lines<T, FORMAT>(turned, leaves, p, tile, load);
    }
}

#endif
