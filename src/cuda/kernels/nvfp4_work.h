/* nvfp4_work.h - what a thread of an NVFP4 cast works on, and where its patch lies. */
#ifndef OCT_CUDA_KERNELS_NVFP4_WORK_H
#define OCT_CUDA_KERNELS_NVFP4_WORK_H

#include "cuda/kernels/nvfp4_block.h"
#include "cuda/kernels/patch.h"
#include "cuda/kernels/tile_scales.h"

#include "cuda/kernels/nvfp4.h"

/* How a kernel differs from others: what it does not do costs it no registers. */
enum { OCT_NV_NEAREST = 0, OCT_NV_STOCHASTIC = 1, OCT_NV_COPIED = 2, OCT_NV_WHOLE = 4 };

/* Lanes that share the blocks of a row, and the rows whose scales each of them makes. */
template <class T> struct oct_nv_row {
    static constexpr int lanes = OCT_NV_BLOCK / oct_shape<T>::cols;
    static constexpr int each = OCT_PATCH_ROWS / lanes;
};

/* A block's shared memory. Loops over a patch are not unrolled, or they would not fit the
 * instruction cache; so patches lie here, two words of a row beside each other, in columns that
 * are each thread's own. */
template <class T> struct oct_nv_shared {
    alignas(8) uint32_t words[OCT_PATCH_ROWS * 2][oct_shape<T>::threads][2];
    oct_tile_scales<2> scales[2];
    uint16_t worth[oct_nv_row<T>::each][oct_shape<T>::threads]; /* scales of rows as bf16 */
    float factors[oct_nv_row<T>::each][oct_shape<T>::threads];  /* where rows have own amaxes */
};

/* What a thread works on. */
template <class T> struct oct_nv_work {
    const oct_nvfp4_params &p;
    const oct_patch<T> &patch;
    oct_nv_shared<T> &shared;
    oct_copies copies; /* none in a kernel that makes none, which the compiler then knows */
    uint64_t seed;
    bool square;
    uint32_t square_most;
    bool careful; /* there are NaNs in the warp's patches, or elements past all codes */
    uint32_t row_codes, row_values; /* whether they are made */
    float row_decode;               /* oct_nv_global's, where rows share their amax */
};

/* What the blocks of a line share; a line outside the matrix has an amax of 0. */
static inline oct_nv_global oct_nv_line_global(const oct_nvfp4_params &p, const float *amax,
                                               int64_t line, int64_t lines) {
    int64_t at = p.row_scaled ? line : 0;
    return oct_nv_global_of(at < lines ? amax[at] : 0.0f, p.aim);
}

/* The low `count` bytes of codes, as many as exist. */
static inline void oct_nv_store_codes(uint8_t *to, uint2 codes, int count) {
#pragma unroll 1
    for (int i = 0; i < count; i++) {
        to[i] = (uint8_t)(codes.x & 0xffu);
        codes.x = codes.x >> 8 | codes.y << 24;
        codes.y >>= 8;
    }
}

/* Row r as it lies in shared memory. */
template <class T>
static inline void oct_nv_load_row(uint32_t words[4], const oct_nv_work<T> &work, int r) {
    uint2 low = *(const uint2 *)work.shared.words[2 * r][threadIdx.x];
    uint2 high = *(const uint2 *)work.shared.words[2 * r + 1][threadIdx.x];
    words[0] = low.x;
    words[1] = low.y;
    words[2] = high.x;
    words[3] = high.y;
}

/* And word w of it. */
template <class T>
static inline uint32_t &oct_nv_word(const oct_nv_work<T> &work, int r, int w) {
    return work.shared.words[2 * r + w / 2][threadIdx.x][w % 2];
}

/* A row's elements as they are encoded, where they are not all tame. */
template <class T, bool RANDOM>
static inline void oct_nv_tame_row(uint32_t words[4], float factor) {
    uint32_t limit = oct_nv_limit<T, RANDOM>(factor);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        words[i] = oct_nv_tamed<T>(words[i], limit);
    }
}

/* Where row r of a patch goes in a copy; NULL where there is none. */
template <class T>
static inline uint16_t *oct_nv_copy_at(const oct_nv_work<T> &work, uint16_t *copy, int r) {
    const oct_patch<T> &patch = work.patch;
    int64_t at = (patch.tile_row + patch.row + r) * work.p.q.cols + patch.tile_col + patch.col;
    return oct_shape<T>::cols == 8 && copy && patch.full ? copy + at : nullptr;
}

#endif
