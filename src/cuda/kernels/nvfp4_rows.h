/* nvfp4_rows.h - the rows of a patch as NVFP4; a block is shared by two or four lanes. */
#ifndef OCT_CUDA_KERNELS_NVFP4_ROWS_H
#define OCT_CUDA_KERNELS_NVFP4_ROWS_H

#include "cuda/kernels/nvfp4_work.h"
#include "format/philox.h"

/* The codes of row r, which begin at `to`. */
template <class T>
static inline void oct_nv_store_row(const oct_nv_work<T> &work, uint8_t *to, int r,
                                    uint32_t codes) {
    constexpr int bytes = oct_shape<T>::cols / 2;
    const oct_patch<T> &patch = work.patch;
    if (patch.full && work.p.q.wide_row) {
        if (bytes == 4) {
            *(uint32_t *)to = codes;
        } else {
            *(uint16_t *)to = (uint16_t)codes;
        }
    } else if (r < patch.rows_left) {
        int count = (patch.cols_left + 1) / 2;
        oct_nv_store_codes(to, {codes, 0}, count < bytes ? count : bytes);
    }
}

/* A row's part of a block: its elements as they are encoded, what they are multiplied by, and
 * its scale as bf16 in both halves of a word. */
struct oct_nv_part {
    uint32_t words[4];
    float factor;
    uint32_t worth;
};

/* Of row r, whose scale `thread` has made as its i-th. */
template <class T, bool RANDOM>
static inline oct_nv_part oct_nv_take_part(const oct_nv_work<T> &work, int r, int i,
                                           int thread) {
    oct_nv_part part;
    uint32_t worth = work.shared.worth[i][thread];
    float value = oct_bits_f32(worth << 16);
    part.worth = oct_pick_bytes(worth, worth, 0x1010);
    part.factor = oct_nv_quick_factor(value, work.row_decode);
    oct_nv_load_row(part.words, work, r);
    if (work.careful) {
        part.factor = work.p.row_scaled ? work.shared.factors[i][thread]
                                        : oct_least(1.0f / (value * work.row_decode), FLT_MAX);
        oct_nv_tame_row<T, RANDOM>(part.words, part.factor);
    }
    return part;
}

/* The random words of this lane's part of one row after the other, of which each of the lanes
 * that share blocks has drawn those of one. */
template <class T>
static inline void oct_nv_share_random(uint32_t out[][2], const uint32_t words[4], int mine) {
#pragma unroll
    for (int j = 0; j < 2 && oct_nv_row<T>::lanes == 2; j++) {
        uint32_t keep = mine ? words[2 + j] : words[j], give = mine ? words[j] : words[2 + j];
        uint32_t got = __shfl_xor_sync(OCT_ALL_LANES, give, 1);
        out[0][j] = mine ? got : keep;
        out[1][j] = mine ? keep : got;
    }
    int first = (int)threadIdx.x % OCT_WARP - mine;
#pragma unroll
    for (int k = 0; k < oct_nv_row<T>::lanes && oct_nv_row<T>::lanes == 4; k++) {
        uint32_t all[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            all[i] = __shfl_sync(OCT_ALL_LANES, words[i], first + k);
        }
        out[k][0] = mine & 2 ? (mine & 1 ? all[3] : all[2]) : (mine & 1 ? all[1] : all[0]);
        out[k][1] = 0;
    }
}

/* Of row r, as it is stored, without NaNs; from shared memory, so that registers need not hold
 * the patch. */
template <class T> static inline uint32_t oct_nv_row_peak(const oct_nv_work<T> &work, int r) {
    uint32_t words[4];
    oct_nv_load_row(words, work, r);
    return oct_peak<T>(oct_peak<T>(oct_peak<T>(oct_peak<T>(0u, words[0]), words[1]), words[2]),
                       words[3]);
}

/* The same of a row in registers, and a NaN is kept. */
template <class T> static inline uint32_t oct_nv_row_peak_or_nan(const uint4 &v) {
    uint32_t most = oct_peak_or_nan<T>(oct_nv_first<T>(v.x), v.y);
    return oct_peak_or_nan<T>(oct_peak_or_nan<T>(most, v.z), v.w);
}

/* Amaxes of row blocks, those whose scales this lane makes; 0 where there are no rows. Where a
 * warp finds a NaN it goes over its rows once more, without. `most` has room for all rows. */
template <class T>
static inline void oct_nv_measure_rows(uint32_t most[OCT_PATCH_ROWS], oct_nv_work<T> &work) {
    typedef oct_nv_row<T> row;
    int mine = work.patch.lane_across % row::lanes;
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        most[r] = oct_nv_row_peak_or_nan<T>(work.patch.raw[r]);
    }
    oct_share<OCT_PATCH_ROWS, row::lanes>(
        most, mine, 1, [](uint32_t a, uint32_t b) { return oct_peak_or_nan<T>(a, b); });
    uint32_t all = most[0];
#pragma unroll
    for (int i = 1; i < row::each; i++) {
        all = oct_peak_or_nan<T>(all, most[i]);
    }
    work.careful = __ballot_sync(OCT_ALL_LANES, oct_peak_bits<T>(all) > OCT_F32_INF) != 0;
    if (work.careful) {
#pragma unroll
        for (int r = 0; r < OCT_PATCH_ROWS; r++) {
            most[r] = oct_nv_row_peak(work, r);
        }
        oct_share<OCT_PATCH_ROWS, row::lanes>(
            most, mine, 1, [](uint32_t a, uint32_t b) { return oct_peak<T>(a, b); });
    }
#pragma unroll
    for (int i = 0; i < row::each; i++) {
        most[i] = oct_peak_bits<T>(most[i]);
        if (work.square) {
            most[i] = mine * row::each + i < work.patch.rows_left ? work.square_most : 0u;
        }
    }
}

/* Scales of N of this lane's rows from row i on, side by side, for a scale is a long chain of
 * steps; whether one was not tame. Padding has an amax of 0, and so a scale of 0. */
template <class T, int N>
static inline bool oct_nv_scale_some(const oct_nv_work<T> &work, int i, const uint32_t *most,
                                     const oct_nv_global &global) {
    const oct_patch<T> &patch = work.patch;
    int first = patch.row + patch.lane_across % oct_nv_row<T>::lanes * oct_nv_row<T>::each;
    uint8_t *codes =
        work.shared.scales[0].codes + oct_tile_scale_at<2>(first, patch.col / OCT_NV_BLOCK);
    bool wild = false;
#pragma unroll
    for (int k = 0; k < N; k++) {
        oct_nv_scale scale = oct_nv_scale_of(most[k], global);
        wild |= !oct_nv_is_tame(most[k], scale) && most[k] != 0;
        work.shared.worth[i + k][threadIdx.x] = oct_high_u16(oct_f32_bits(scale.value));
        codes[8 * (i + k)] = (uint8_t)scale.code; /* of 8 lines no two have a gap between */
    }
    return wild;
}

/* Rows with amaxes of their own, one after the other. */
template <class T>
static inline void oct_nv_scale_own_rows(oct_nv_work<T> &work,
                                         const uint32_t most[oct_nv_row<T>::each]) {
    constexpr int each = oct_nv_row<T>::each;
    const oct_patch<T> &patch = work.patch;
    const oct_nvfp4_params &p = work.p;
    int64_t line = patch.tile_row + patch.row + patch.lane_across % oct_nv_row<T>::lanes * each;
#pragma unroll
    for (int i = 0; i < each; i++) {
        work.shared.factors[i][threadIdx.x] = oct_bits_f32(most[i]);
    }
#pragma unroll 1
    for (int i = 0; i < each; i++) {
        uint32_t bits = oct_f32_bits(work.shared.factors[i][threadIdx.x]);
        oct_nv_global global = oct_nv_line_global(p, p.row_amax, line + i, p.q.rows);
        oct_nv_scale_some<T, 1>(work, i, &bits, global);
        work.shared.factors[i][threadIdx.x] =
            oct_nv_slow_factor(bits, oct_nv_scale_of(bits, global), global);
    }
    work.careful = true;
}

template <class T> static inline void oct_nv_scale_rows(oct_nv_work<T> &work) {
    const oct_nvfp4_params &p = work.p;
    uint32_t most[OCT_PATCH_ROWS];
    oct_nv_measure_rows(most, work);
    if (p.row_scaled) {
        oct_nv_scale_own_rows(work, most);
    } else {
        oct_nv_global global = oct_nv_line_global(p, p.row_amax, 0, p.q.rows);
        bool wild = oct_nv_scale_some<T, oct_nv_row<T>::each>(work, 0, most, global);
        work.careful |= __ballot_sync(OCT_ALL_LANES, wild) != 0;
        work.row_decode = global.decode;
    }
    __syncwarp();
}

/* Where the codes of a patch's rows and what they are worth go. */
template <class T> struct oct_nv_places {
    uint8_t *to;
    uint16_t *copy;
    int64_t bytes, cols; /* from one row to the next */
};

template <class T> static inline oct_nv_places<T> oct_nv_places_of(const oct_nv_work<T> &work) {
    const oct_patch<T> &patch = work.patch;
    const oct_nvfp4_params &p = work.p;
    int64_t at = (patch.tile_row + patch.row) * p.row_bytes;
    return {p.q.row + at + (patch.tile_col + patch.col) / 2,
            oct_nv_copy_at(work, work.copies.row, 0), p.row_bytes, p.q.cols};
}

/* Rows i of the sharing lanes, which draw and scale for each other. A kernel without copies
 * makes codes. */
template <class T, int WAY>
static inline void oct_nv_encode_shared(const oct_nv_work<T> &work,
                                        const oct_nv_places<T> &places, int i,
                                        const uint32_t (*random)[2]) {
    typedef oct_nv_row<T> row;
    constexpr int cols = oct_shape<T>::cols;
    constexpr bool random_bits = (WAY & OCT_NV_STOCHASTIC) != 0,
                   copied = (WAY & OCT_NV_COPIED) != 0;
    int first = (int)threadIdx.x - work.patch.lane_across % row::lanes;
    oct_nv_part parts[row::lanes];
    uint32_t quads[row::lanes][2];
#pragma unroll
    for (int k = 0; k < row::lanes; k++) {
        parts[k] = oct_nv_take_part<T, random_bits>(work, k * row::each + i, i, first + k);
        oct_nv_encode<T, cols, random_bits>(quads[k], parts[k].words, parts[k].factor,
                                            random[k]);
    }
    if (!copied || work.row_codes) {
#pragma unroll
        for (int k = 0; k < row::lanes; k++) {
            oct_nv_store_row(work, places.to + k * row::each * places.bytes, k * row::each + i,
                             oct_nv_codes<T, cols>(quads[k], parts[k].words));
        }
    }
    if (copied && work.row_values) {
#pragma unroll
        for (int k = 0; k < row::lanes; k++) {
            oct_write16(places.copy + k * row::each * places.cols,
                        oct_nv_copy(quads[k], parts[k].words, parts[k].worth));
        }
    }
}

template <class T, int WAY> static inline void oct_nv_encode_rows(oct_nv_work<T> &work) {
    typedef oct_nv_row<T> row;
    const oct_patch<T> &patch = work.patch;
    const oct_nvfp4_params &p = work.p;
    int mine = patch.lane_across % row::lanes;
    int64_t block = (patch.tile_row + patch.row + mine * row::each) * p.q.row_at.blocks +
                    (patch.tile_col + patch.col) / OCT_NV_BLOCK;
    oct_nv_places<T> places = oct_nv_places_of(work);
    work.row_codes = oct_in_register(p.q.row ? 1u : 0u);
    work.row_values = oct_in_register(places.copy ? 1u : 0u);
#pragma unroll 1
    for (int i = 0; i < row::each; i++) {
        uint32_t drawn[4], random[row::lanes][2];
        if (WAY & OCT_NV_STOCHASTIC) {
            oct_random_words(drawn, work.seed, (uint64_t)block, 0, p.stream);
            oct_nv_share_random<T>(random, drawn, mine);
            block += p.q.row_at.blocks;
        }
        oct_nv_encode_shared<T, WAY>(work, places, i, random);
        places.to += places.bytes;
        places.copy += WAY & OCT_NV_COPIED ? places.cols : 0;
    }
}

#endif
