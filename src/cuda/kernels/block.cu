/* block.cu - FP8 in blocks of 128, rows, columns or squares, with one fp32 scale each.
 *
 * Codes and scales are those of src/cpu/block.c, bit for bit. A tile is one block along its
 * rows, one along its columns, and one square. */
#include "cuda/kernels/patch.h"

#include "cuda/kernels/block.h"

/* Factors of 16 rows follow each other; those of the next 16 begin in other banks. */
#define SPACED(row) ((row) + (row) / 16 * 4)

/* The amaxes of a tile's lines, a share from each of the warps beside or below each other, and
 * what they become. */
struct block_lines {
    uint32_t row_most[4][OCT_TILE];
    uint32_t col_most[2][OCT_TILE];
    alignas(16) float row_factor[SPACED(OCT_TILE)];
    alignas(16) float col_factor[OCT_TILE];
};

template <class T>
static inline void measure_rows(block_lines &lines, const oct_patch<T> &patch) {
    typedef oct_shape<T> shape;
    constexpr int each = OCT_PATCH_ROWS / shape::across;
    uint32_t most[OCT_PATCH_ROWS];
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        most[r] = oct_patch_row_max(patch, r);
    }
    oct_share_max<OCT_PATCH_ROWS, shape::across>(most, patch.lane_across, shape::down);
#pragma unroll
    for (int i = 0; i < each; i++) {
        lines.row_most[patch.warp_across][patch.row + patch.lane_across * each + i] = most[i];
    }
}

template <class T>
static inline void measure_cols(block_lines &lines, const oct_patch<T> &patch) {
    typedef oct_shape<T> shape;
    uint32_t most[shape::cols];
    oct_patch_col_max(most, patch);
    oct_share_max<shape::cols, shape::cols>(most, (int)threadIdx.x % shape::down, 1);
    static_assert(shape::down == shape::cols, "as many lanes below each other as columns");
    lines.col_most[patch.band][patch.col + (int)threadIdx.x % shape::down] = most[0];
}

/* The scale of line `at` of a tile, stored with its inverse; lines up to the next multiple of 4
 * are padding. */
static inline float settle(uint32_t most, const oct_scale_rule *rule, float *inverse,
                           int64_t line, int64_t lines) {
    float factor = oct_scale_of(oct_bits_f32(most), rule);
    if (line < oct_round_up(lines, 4)) {
        *inverse = line < lines ? 1.0f / factor : 0.0f;
    }
    return factor;
}

template <class T>
static inline void settle_lines(block_lines &lines, const oct_patch<T> &patch,
                                const oct_block_params &p) {
    const oct_quantize_params &q = p.q;
    for (int i = (int)threadIdx.x; i < 2 * OCT_TILE; i += oct_shape<T>::threads) {
        int at = i % OCT_TILE;
        if (i < OCT_TILE && q.row) {
            uint32_t most =
                oct_max_bits(oct_max_bits(lines.row_most[0][at], lines.row_most[1][at]),
                             oct_max_bits(lines.row_most[2][at], lines.row_most[3][at]));
            int64_t line = patch.tile_row + at;
            float *to =
                (float *)q.row_scale + oct_scale_at(&q.row_at, line, patch.tile_col / OCT_TILE);
            lines.row_factor[SPACED(at)] = settle(most, &p.rule, to, line, q.rows);
        } else if (i >= OCT_TILE && q.col) {
            uint32_t most = lines.col_most[0][at];
            most = oct_shape<T>::bands == 2 ? oct_max_bits(most, lines.col_most[1][at]) : most;
            int64_t line = patch.tile_col + at;
            float *to =
                (float *)q.col_scale + oct_scale_at(&q.col_at, line, patch.tile_row / OCT_TILE);
            lines.col_factor[at] = settle(most, &p.rule, to, line, q.cols);
        }
    }
}

/* 1 x 128: each direction on its own. */
template <class T, int FORMAT> static inline void quantize_lines(const oct_block_params &p) {
    __shared__ block_lines lines;
    oct_patch<T> patch = oct_patch_of<T>(p.q);
    oct_patch_load(patch, p.q);
    if (p.q.row) {
        measure_rows(lines, patch);
    }
    if (p.q.col) {
        measure_cols(lines, patch);
    }
    __syncthreads();
    settle_lines(lines, patch, p);
    __syncthreads();
    if (p.q.row) {
        const float *factors = lines.row_factor + SPACED(patch.row);
        oct_patch_encode_rows<T, FORMAT>(patch,
                                         oct_patch_rows_of(patch, p.q, p.q.row, p.q.wide_row),
                                         [=](int r, int) { return factors[r]; });
    }
    if (p.q.col) {
        const float *factors = lines.col_factor + patch.col;
        oct_patch_encode_turned<T, FORMAT>(patch, p.q, [=](int, int c) { return factors[c]; });
    }
}

/* By four threads: a square's scale, and the padding behind the last one of a line. */
static inline void store_square(float *scales, const oct_scales *at, int64_t line,
                                int64_t block, float inverse) {
    int ahead = (int)threadIdx.x % OCT_WARP;
    bool last = block + 1 == at->blocks && block + ahead < oct_round_up(at->blocks, 4);
    if (ahead == 0 || (ahead < 4 && last)) {
        scales[oct_scale_at(at, line, block + ahead)] = ahead == 0 ? inverse : 0.0f;
    }
}

/* 128 x 128: one scale, columns are the rows turned. */
template <class T, int FORMAT> static inline void quantize_square(const oct_block_params &p) {
    __shared__ uint32_t shares[oct_shape<T>::threads / OCT_WARP];
    const oct_quantize_params &q = p.q;
    oct_patch<T> patch = oct_patch_of<T>(q);
    oct_patch_load(patch, q);
    uint32_t most = oct_warp_max(oct_patch_max(patch));
    if (threadIdx.x % OCT_WARP == 0) {
        shares[threadIdx.x / OCT_WARP] = most;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < oct_shape<T>::threads / OCT_WARP; i++) {
        most = oct_max_bits(most, shares[i]);
    }
    float factor = oct_scale_of(oct_bits_f32(most), &p.rule);
    if (q.row && threadIdx.x < OCT_WARP) {
        store_square((float *)q.row_scale, &q.row_at, patch.tile_row, patch.tile_col / OCT_TILE,
                     1.0f / factor);
    }
    if (q.col && threadIdx.x / OCT_WARP == 1) {
        store_square((float *)q.col_scale, &q.col_at, patch.tile_col, patch.tile_row / OCT_TILE,
                     1.0f / factor);
    }
    oct_patch_encode<T, FORMAT>(patch, q, factor);
}

#define KERNEL(name, T, format)                                                                \
    extern "C" __global__ void __launch_bounds__(oct_shape<T>::threads,                        \
                                                 oct_shape<T>::resident)                       \
        block_lines_##name(oct_block_params p) {                                               \
        quantize_lines<T, format>(p);                                                          \
    }                                                                                          \
    extern "C" __global__ void __launch_bounds__(oct_shape<T>::threads,                        \
                                                 oct_shape<T>::resident)                       \
        block_square_##name(oct_block_params p) {                                              \
        quantize_square<T, format>(p);                                                         \
    }

KERNEL(f32_e4m3, float, OCTET_E4M3)
KERNEL(f32_e5m2, float, OCTET_E5M2)
KERNEL(bf16_e4m3, oct_bf16, OCTET_E4M3)
KERNEL(bf16_e5m2, oct_bf16, OCTET_E5M2)
KERNEL(f16_e4m3, oct_f16, OCTET_E4M3)
KERNEL(f16_e5m2, oct_f16, OCTET_E5M2)
