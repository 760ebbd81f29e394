/* nvfp4_block.h - the scale of a block of 16, its codes, and what they are worth. */
#ifndef OCT_CUDA_KERNELS_NVFP4_BLOCK_H
#define OCT_CUDA_KERNELS_NVFP4_BLOCK_H

#include "cuda/kernels/e2m1.h"
#include "cuda/kernels/patch.h"
#include "format/scaling.h"

#define OCT_NV_BLOCK 16

/* ---- scales ---------------------------------------------------------------------------- */

/* A word of E as what peaks begin with. */
template <class E> static inline uint32_t oct_nv_first(uint32_t word) {
#if OCT_PTX && __CUDA_ARCH__ >= 860
    return sizeof(E) == 2 ? word : word & OCT_F32_MAGNITUDE;
#else
    return word & (sizeof(E) == 2 ? 0x7fff7fffu : OCT_F32_MAGNITUDE);
#endif
}

/* The amax of 16 stored elements; one that is NaN is kept or ignored. */
template <class E, bool KEEP> static inline uint32_t oct_nv_max(const uint32_t *words) {
    uint32_t most = KEEP ? oct_nv_first<E>(words[0]) : oct_peak<E>(0u, words[0]);
#pragma unroll
    for (int i = 1; i < OCT_NV_BLOCK * (int)sizeof(E) / 4; i++) {
        most = KEEP ? oct_peak_or_nan<E>(most, words[i]) : oct_peak<E>(most, words[i]);
    }
    return oct_peak_bits<E>(most);
}

struct oct_nv_scale {
    uint32_t code;
    float value, factor;
};

/* oct_nv_code, for Inf has the code of FLT_MAX, and oct_nv_multiplier; the factor of a block
 * that is not tame is to be made again. */
static inline oct_nv_scale oct_nv_scale_of(uint32_t most, const oct_nv_global &global) {
    oct_nv_scale scale;
    scale.code = oct_encode_e4m3(oct_bits_f32(most) * global.sixth);
    scale.value = oct_decode_e4m3(scale.code);
    scale.factor = oct_quick_inverse(scale.value * global.decode);
    return scale;
}

/* Whether a block of the amax `most`, or NaN, is like nearly all: no NaN is in it, its scale is
 * not 0, and no element is so far past it that its code would have to be clipped. */
static inline bool oct_nv_is_tame(uint32_t most, const oct_nv_scale &scale) {
    return oct_bits_f32(most) * scale.factor < 7.0f;
}

/* The factor of a block that is tame or all zeros, from what its scale is worth. */
static inline float oct_nv_quick_factor(float value, float decode) {
    return oct_least(oct_quick_inverse(value * decode), FLT_MAX);
}

/* The factor of any block; of one that is all zeros it does not matter. */
static inline float oct_nv_slow_factor(uint32_t most, const oct_nv_scale &scale,
                                       const oct_nv_global &global) {
    return most == 0 ? 1.0f : oct_least(1.0f / (scale.value * global.decode), FLT_MAX);
}

/* ---- codes ----------------------------------------------------------------------------- */

/* Codes to nearest of bf16 are not clipped: elements of a block that is not tame are. */
template <class E, bool RANDOM>
inline constexpr bool oct_nv_clipped = RANDOM || !oct_is_bf16<E>;

/* The largest magnitude, as E stores it, that elements may keep. Where codes are not clipped
 * those past it become 6 / factor, about: a float's encoding is its logarithm but for 9% of a
 * doubling, so a difference of encodings is a quotient but for 7%, and what comes to between 5
 * and 7 has the code of 6. */
template <class E, bool RANDOM> static inline uint32_t oct_nv_limit(float factor) {
    if (!oct_nv_clipped<E, RANDOM>) {
        return (0x803f0000u - oct_f32_bits(factor)) >> 16;
    }
    return sizeof(E) == 4 ? OCT_F32_INF : oct_is_bf16<E> ? 0x7f80u : 0x7c00u;
}

/* A word of E, each of whose elements is no larger than `limit` and no NaN. A NaN loses its
 * sign, for its code has none: added to what is missing to 2^15, it alone has the last bit. */
template <class E> static inline uint32_t oct_nv_tamed(uint32_t word, uint32_t limit) {
    if (sizeof(E) == 4) {
        uint32_t magnitude = word & OCT_F32_MAGNITUDE;
        uint32_t sign = magnitude > OCT_F32_INF ? 0u : word ^ magnitude;
        return sign | (magnitude < limit ? magnitude : limit);
    }
    uint32_t magnitude = word & 0x7fff7fffu;
    uint32_t nans = magnitude + (oct_is_bf16<E> ? 0x007f007fu : 0x03ff03ffu);
    uint32_t least = oct_least_halves(magnitude, limit | limit << 16);
    return least | (word & ~nans & 0x80008000u);
}

/* Element i of stored ones, its magnitude times a factor. */
template <class E>
static inline float oct_nv_scaled(const uint32_t *words, int i, float factor) {
    uint4 word = {words[i * (int)sizeof(E) / 4], 0, 0, 0};
    return oct_magnitude(oct_patch_element<E>(word, sizeof(E) == 2 ? i % 2 : 0)) * factor;
}

/* N codes without signs, 4 or 8, in quads, to nearest. */
template <class E, int N>
static inline void oct_nv_nearest(uint32_t *quads, const uint32_t *words, float factor) {
    uint32_t sums[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        sums[i] = oct_e2m1_sum<oct_nv_clipped<E, false>>(oct_nv_scaled<E>(words, i, factor));
    }
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        quads[i] = oct_e2m1_quad(sums + 4 * i);
    }
}

/* Or at random; element i takes byte i of `random`. */
template <class E, int N>
static inline void oct_nv_random(uint32_t *quads, const uint32_t *words, float factor,
                                 const uint32_t *random) {
#pragma unroll
    for (int q = 0; q < N / 4; q++) {
        float a[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            a[i] = oct_e2m1_small(oct_nv_scaled<E>(words, 4 * q + i, factor));
        }
        uint32_t even = oct_pick_bytes(random[q], 0u, 0x4240);
        uint32_t odd = oct_pick_bytes(random[q], 0u, 0x4341);
        quads[q] = oct_e2m1_quad_of(oct_e2m1_raised(a[0], a[2], even),
                                    oct_e2m1_raised(a[1], a[3], odd));
    }
}

template <class E, int N, bool RANDOM>
static inline void oct_nv_encode(uint32_t *quads, const uint32_t *words, float factor,
                                 const uint32_t *random) {
    if constexpr (RANDOM) {
        oct_nv_random<E, N>(quads, words, factor, random);
    } else {
        oct_nv_nearest<E, N>(quads, words, factor);
    }
}

/* Codes with the signs of N stored elements. */
template <class E, int N>
static inline uint32_t oct_nv_codes(const uint32_t *quads, const uint32_t *words) {
    if constexpr (sizeof(E) == 2) {
        return oct_e2m1_signed(quads, words);
    }
    uint32_t codes = N == 8 ? oct_pick_bytes(quads[0], quads[N / 4 - 1], 0x5410) : quads[0];
#pragma unroll
    for (int i = 0; i < N; i++) {
        codes = (codes & ~(0x8u << 4 * i)) | (words[i] >> 28 & 0x8u) << 4 * i;
    }
    return codes;
}

/* What N codes with the signs of `words`, 16-bit floats, are worth, times the scale in both
 * halves of a word. */
template <int N>
static inline void oct_nv_values(uint32_t *out, const uint32_t *quads, const uint32_t *words,
                                 uint32_t scale) {
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        oct_e2m1_values(out + 2 * i, quads[i], scale);
    }
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        out[i] |= words[i] & 0x80008000u;
    }
}

/* Of 8 codes. */
static inline uint4 oct_nv_copy(const uint32_t quads[2], const uint32_t *words,
                                uint32_t scale) {
    uint32_t out[4];
    oct_nv_values<8>(out, quads, words, scale);
    return {out[0], out[1], out[2], out[3]};
}

#endif
