/* nvfp4_cols.h - the columns of a patch as NVFP4, transformed or not; a block is a thread's. */
#ifndef OCT_CUDA_KERNELS_NVFP4_COLS_H
#define OCT_CUDA_KERNELS_NVFP4_COLS_H

#include "cuda/kernels/nvfp4_work.h"
#include "cuda/kernels/transform.h"
#include "format/philox.h"

/* Where the codes of a patch's columns go, 16 each. */
struct oct_nv_lines {
    uint8_t *to;
    uint8_t *scales;        /* a tile's, that of the first column; the next is 8 bytes on */
    int count;              /* bytes of a column that exist */
    bool wide;              /* all of them, in all columns, and aligned */
    uint32_t codes, values; /* whether they and what they are worth are made */
};

/* The transform keeps all outputs of the last group of rows. */
template <class T> static inline oct_nv_lines oct_nv_lines_of(const oct_nv_work<T> &work) {
    const oct_patch<T> &patch = work.patch;
    const oct_nvfp4_params &p = work.p;
    int count = patch.rows_left < OCT_NV_BLOCK ? (patch.rows_left + 1) / 2 : OCT_NV_BLOCK / 2;
    count = p.hadamard && patch.rows_left > 0 ? OCT_NV_BLOCK / 2 : count;
    oct_nv_lines lines;
    lines.to =
        p.q.col + (patch.tile_col + patch.col) * p.col_bytes + (patch.tile_row + patch.row) / 2;
    lines.scales =
        work.shared.scales[1].codes + oct_tile_scale_at<2>(patch.col, patch.row / OCT_NV_BLOCK);
    lines.count = count;
    lines.wide =
        count == OCT_NV_BLOCK / 2 && patch.cols_left >= oct_shape<T>::cols && p.q.wide_col;
    lines.codes = oct_in_register(p.q.col ? 1u : 0u);
    lines.values = oct_in_register(work.copies.col ? 1u : 0u);
    return lines;
}

/* The codes of column c; `to` is its place. */
template <class T>
static inline void oct_nv_store_col(const oct_nv_work<T> &work, const oct_nv_lines &lines,
                                    uint8_t *to, int c, uint2 codes) {
    if (lines.wide) {
        *(uint2 *)to = codes;
    } else if (c < work.patch.cols_left && lines.count == OCT_NV_BLOCK / 2 &&
               work.p.q.wide_col) {
        *(uint2 *)to = codes;
    } else if (c < work.patch.cols_left) {
        oct_nv_store_codes(to, codes, lines.count);
    }
}

/* What the codes of columns are worth, where it is wanted; by now it lies in place of the
 * patch. */
template <class T> static inline void oct_nv_copy_cols(const oct_nv_work<T> &work) {
    uint16_t *to = oct_nv_copy_at(work, work.copies.col, 0);
    if (!to) {
        return;
    }
#pragma unroll 4
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        uint32_t words[4];
        oct_nv_load_row(words, work, r);
        oct_write16(to, uint4{words[0], words[1], words[2], words[3]});
        to += work.p.q.cols;
    }
}

/* Random words of column c's block; 0 where none are needed. */
template <class T, bool RANDOM>
static inline void oct_nv_draw_col(uint32_t random[4], const oct_nv_work<T> &work, int c) {
    const oct_patch<T> &patch = work.patch;
    random[0] = random[1] = random[2] = random[3] = 0;
    if (RANDOM) {
        int64_t line = patch.tile_col + patch.col + c;
        int64_t block =
            line * work.p.q.col_at.blocks + (patch.tile_row + patch.row) / OCT_NV_BLOCK;
        oct_random_words(random, work.seed, (uint64_t)block, 1, work.p.stream);
    }
}

/* A column as it is quantized: 16 elements of E, which is T, or bf16 where they have been
 * transformed. */
template <class E> struct oct_nv_col {
    uint32_t words[OCT_NV_BLOCK * (int)sizeof(E) / 4];
    oct_nv_scale scale;
};

/* The scale of a column; whether it is tame. */
template <class T, class E>
static inline bool oct_nv_scale_col(oct_nv_col<E> &col, const oct_nv_work<T> &work,
                                    const oct_nv_global &global) {
    uint32_t most = oct_nv_max<E, true>(col.words);
    col.scale = oct_nv_scale_of(work.square ? work.square_most : most, global);
    return oct_nv_is_tame(most, col.scale);
}

/* The same of any column, and its elements as they are encoded. */
template <class T, class E, bool RANDOM>
static inline void oct_nv_tame_col(oct_nv_col<E> &col, const oct_nv_work<T> &work,
                                   const oct_nv_global &global) {
    uint32_t most = work.square ? work.square_most : oct_nv_max<E, false>(col.words);
    col.scale = oct_nv_scale_of(most, global);
    col.scale.factor = oct_nv_slow_factor(most, col.scale, global);
    uint32_t limit = oct_nv_limit<E, RANDOM>(col.scale.factor);
#pragma unroll
    for (int i = 0; i < OCT_NV_BLOCK * (int)sizeof(E) / 4; i++) {
        col.words[i] = oct_nv_tamed<E>(col.words[i], limit);
    }
}

/* Column c: quads of its codes, which are stored at `to` where they are wanted. */
template <class T, class E, int WAY>
static inline void oct_nv_encode_col(uint32_t quads[4], const oct_nv_col<E> &col,
                                     const oct_nv_work<T> &work, const oct_nv_lines &lines,
                                     uint8_t *to, int c) {
    constexpr int half = 8 * (int)sizeof(E) / 4;
    constexpr bool random_bits = (WAY & OCT_NV_STOCHASTIC) != 0;
    uint32_t random[4];
    lines.scales[8 * c] = (uint8_t)(c < work.patch.cols_left ? col.scale.code : 0u);
    oct_nv_draw_col<T, random_bits>(random, work, c);
    oct_nv_encode<E, 8, random_bits>(quads, col.words, col.scale.factor, random);
    oct_nv_encode<E, 8, random_bits>(quads + 2, col.words + half, col.scale.factor, random + 2);
    if (!(WAY & OCT_NV_COPIED) || lines.codes) {
        oct_nv_store_col(work, lines, to, c,
                         {oct_nv_codes<E, 8>(quads, col.words),
                          oct_nv_codes<E, 8>(quads + 2, col.words + half)});
    }
}

/* What two columns are worth, in place of the patch's words w: their elements are in registers
 * by now. */
template <class T, class E>
static inline void oct_nv_keep_pair(const oct_nv_work<T> &work, const oct_nv_col<E> *cols,
                                    const uint32_t quads[][4], int w) {
    uint32_t values[2][OCT_NV_BLOCK / 2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        uint32_t scale = oct_f32_bits(cols[k].scale.value);
        oct_nv_values<OCT_NV_BLOCK>(values[k], quads[k], cols[k].words,
                                    oct_pick_bytes(scale, scale, 0x3232));
    }
#pragma unroll
    for (int r = 0; r < OCT_NV_BLOCK; r++) {
        oct_nv_word(work, r, w) =
            oct_pick_bytes(values[0][r / 2], values[1][r / 2], r % 2 ? 0x7632 : 0x5410);
    }
}

/* Column k of those that 16 words hold side by side, transformed and rounded to bf16. */
template <class T>
static inline void oct_nv_transform_col(uint32_t out[OCT_NV_BLOCK / 2], const uint32_t *words,
                                        int k, const oct_nvfp4_params &p) {
    float x[OCT_NV_BLOCK];
#pragma unroll
    for (int r = 0; r < OCT_NV_BLOCK; r++) {
        x[r] = oct_patch_element<T>(uint4{words[r], 0, 0, 0}, k);
    }
    oct_transform<T>(x, p.weights);
#pragma unroll
    for (int i = 0; i < OCT_NV_BLOCK / 2; i++) {
        out[i] = oct_bf16_pair(x[2 * i], x[2 * i + 1]);
    }
}

/* Column k of those that 16 words hold side by side. */
template <class T>
static inline void oct_nv_pick_col(uint32_t *out, const uint32_t *words, int k) {
    constexpr int each = oct_shape<T>::cols / 4;
#pragma unroll
    for (int i = 0; i < OCT_NV_BLOCK / each; i++) {
        out[i] = each == 1 ? words[i]
                           : oct_pick_bytes(words[each * i], words[each * i + each - 1],
                                            k ? 0x7632 : 0x5410);
    }
}

/* The columns of word w of each row, one or two, side by side: a scale is a long chain of
 * steps. */
template <class T, class E, int WAY, bool HADAMARD>
static inline void oct_nv_quantize_pair(const oct_nv_work<T> &work, const oct_nv_lines &lines,
                                        int w, const oct_nv_global &whole) {
    constexpr int each = oct_shape<T>::cols / 4;
    constexpr bool random_bits = (WAY & OCT_NV_STOCHASTIC) != 0;
    const oct_nvfp4_params &p = work.p;
    uint32_t words[OCT_NV_BLOCK], quads[each][4];
    oct_nv_col<E> cols[each];
    oct_nv_global global[each];
    bool tame = true;
#pragma unroll
    for (int r = 0; r < OCT_NV_BLOCK; r++) {
        words[r] = oct_nv_word(work, r, w);
    }
#pragma unroll
    for (int k = 0; k < each; k++) {
        int64_t line = work.patch.tile_col + work.patch.col + each * w + k;
        bool own = !HADAMARD && !random_bits && p.row_scaled;
        global[k] = own ? oct_nv_line_global(p, p.col_amax, line, p.q.cols) : whole;
        if constexpr (HADAMARD) {
            oct_nv_transform_col<T>(cols[k].words, words, k, p);
        } else {
            oct_nv_pick_col<T>(cols[k].words, words, k);
        }
        tame &= oct_nv_scale_col<T, E>(cols[k], work, global[k]);
    }
#pragma unroll
    for (int k = 0; k < each && !tame; k++) {
        oct_nv_tame_col<T, E, random_bits>(cols[k], work, global[k]);
    }
#pragma unroll
    for (int k = 0; k < each; k++) {
        oct_nv_encode_col<T, E, WAY>(quads[k], cols[k], work, lines, lines.to + k * p.col_bytes,
                                     each * w + k);
    }
    if constexpr ((WAY & OCT_NV_COPIED) != 0) {
        if (lines.values) {
            oct_nv_keep_pair<T, E>(work, cols, quads, w);
        }
    }
}

template <class T, class E, int WAY, bool HADAMARD>
static inline void oct_nv_quantize_cols(const oct_nv_work<T> &work) {
    constexpr int each = oct_shape<T>::cols / 4;
    const oct_nvfp4_params &p = work.p;
    oct_nv_global whole = oct_nv_line_global(p, p.col_amax, 0, p.q.cols);
    oct_nv_lines lines = oct_nv_lines_of(work);
#pragma unroll 1
    for (int w = 0; w < 4; w++) {
        oct_nv_quantize_pair<T, E, WAY, HADAMARD>(work, lines, w, whole);
        lines.to += each * p.col_bytes;
    }
}

#endif
