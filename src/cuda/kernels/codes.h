/* codes.h - codes of FP8 and FP4 as f16, which holds them exactly. */
#ifndef OCT_CUDA_KERNELS_CODES_H
#define OCT_CUDA_KERNELS_CODES_H

#include "format/e4m3.h"
#include "format/f16.h"

/* Two f16 from two E4M3 codes in the low bytes. */
static __device__ __forceinline__ uint32_t oct_f16_of_e4m3(uint32_t codes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint32_t out;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out) : "h"(static_cast<uint16_t>(codes)));
    return out;
#elif defined(__CUDA_ARCH__)
    /* With the exponent where f16 has it, 2^8 is missing. */
    uint32_t spread = __byte_perm(codes, 0, 0x1404) >> 1;
    uint32_t out, low = codes & 0x7f, high = codes >> 8 & 0x7f;
    asm("mul.rn.f16x2 %0, %1, %2;"
        : "=r"(out)
        : "r"((spread & 0x3f803f80u) | (spread << 1 & 0x80008000u)), "r"(0x5c005c00u));
    return out | (low == 0x7f ? 0x7fffu : 0u) | (high == 0x7f ? 0x7fff0000u : 0u);
#else
    uint32_t low = oct_f16_encode(oct_e4m3_decode(static_cast<uint8_t>(codes)));
    uint32_t high = oct_f16_encode(oct_e4m3_decode(static_cast<uint8_t>(codes >> 8)));
    return low | high << 16;
#endif
}

/* The products of two pairs of f16. */
static __device__ __forceinline__ uint32_t oct_f16_times(uint32_t x, uint32_t y) {
#if defined(__CUDA_ARCH__)
    uint32_t out;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(x), "r"(y));
    return out;
#else
    auto value = [](uint32_t bits) { return oct_f16_decode(static_cast<uint16_t>(bits)); };
    uint32_t low = oct_f16_encode(value(x) * value(y));
    return low | static_cast<uint32_t>(oct_f16_encode(value(x >> 16) * value(y >> 16))) << 16;
#endif
}

/* Two f16 from two E2M1 codes in the low byte: their upper bytes are looked up. */
static __device__ __forceinline__ uint32_t oct_f16_of_e2m1(uint32_t codes) {
    uint32_t select = (codes & 0x7u) << 4 | (codes & 0x70u) << 8;
    uint32_t upper = __byte_perm(0x3e3c3800u, 0x46444240u, select) & 0xff00ff00u;
    return upper | (codes & 0x8u) << 12 | (codes & 0x80u) << 24;
}

/* 16 codes of E4M3, two a word. */
static __device__ __forceinline__ void oct_f16_of_16_e4m3(uint32_t *out, const uint32_t *raw) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        out[i] = oct_f16_of_e4m3(raw[i / 2] >> i % 2 * 16 & 0xffffu);
    }
}

/* Nibbles i and i + 4 of 8 E2M1 codes as f16, 2^14 too small: exponent and mantissa lie where
 * f16 has them. Times an E4M3 scale they are still exact, as whole multiples of 2^-24. */
static __device__ __forceinline__ uint32_t oct_f16_nibbles(uint32_t codes, int i) {
    uint32_t low = i < 3 ? codes << (9 - 4 * i) : codes >> 3;
    return (low & 0x0e000e00u) | (codes << (12 - 4 * i) & 0x80008000u);
}

#endif
