/* folding.h - codes of MXFP8 under the scale of another block.
 *
 * Four blocks of 32 get the largest of their scales, 2^e. The codes of a block whose scale is
 * 2^(e - d) are worth 2^d less under it: they are multiplied by 2^-d and rounded to their
 * format again, to nearest, ties to even. A result that is a normal number is exact; others are
 * off by half of the format's least step at most. NaN and Inf stay the codes that they are. */
#ifndef OCT_CUDA_KERNELS_FOLDING_H
#define OCT_CUDA_KERNELS_FOLDING_H

#include "cuda/kernels/decode.h"
#include "format/e8m0.h"

/* 2^-d, as a float and as two f16; 0 where every code becomes 0. */
struct oct_shift {
    float one;
    uint32_t halves;
};

static inline oct_shift oct_shift_by(uint32_t d) {
    uint32_t half = d < 15u ? (15u - d) << 10 : d < 25u ? 1u << (24u - d) : 0u;
    return {d < 64u ? oct_bits_f32((127u - d) << 23) : 0.0f, half | half << 16};
}

static inline uint32_t oct_byte_of(uint32_t word, int i) {
    return word >> (8 * i) & 0xffu;
}

/* The largest of four E8M0 scales. */
static inline uint32_t oct_most_of_four(uint32_t codes) {
    uint32_t low = oct_byte_of(codes, 0), high = oct_byte_of(codes, 2);
    low = low > oct_byte_of(codes, 1) ? low : oct_byte_of(codes, 1);
    high = high > oct_byte_of(codes, 3) ? high : oct_byte_of(codes, 3);
    return low > high ? low : high;
}

/* For the codes of block i of the four. */
static inline oct_shift oct_shift_of(uint32_t codes, int i) {
    return oct_shift_by(oct_most_of_four(codes) - oct_byte_of(codes, i));
}

/* Two codes of E4M3. As f16, products that do not become 0 are exact. */
static inline uint32_t oct_fold_e4m3(uint32_t codes, const oct_shift &by) {
#if OCT_PTX && __CUDA_ARCH__ >= 890
    uint16_t out;
    asm("{ .reg .b32 both; cvt.rn.f16x2.e4m3x2 both, %1; mul.rn.f16x2 both, both, %2;"
        "  cvt.rn.satfinite.e4m3x2.f16x2 %0, both; }"
        : "=h"(out)
        : "h"((uint16_t)codes), "r"(by.halves));
    return out;
#else
    uint32_t low = oct_encode_e4m3(oct_e4m3_decode((uint8_t)codes) * by.one);
    return low | oct_encode_e4m3(oct_e4m3_decode((uint8_t)(codes >> 8)) * by.one) << 8;
#endif
}

/* Four codes in a word; those without a number are `special`, from the least on. */
template <int FORMAT>
static inline uint32_t oct_fold_four(uint32_t codes, const oct_shift &by) {
    constexpr uint32_t special = FORMAT == OCTET_E4M3 ? 0x7f7f7f7fu : 0x7c7c7c7cu;
    uint32_t signs = (codes & special) + (0x80808080u - special);
    uint32_t out;
    if constexpr (FORMAT == OCTET_E4M3) {
        out = oct_fold_e4m3(codes & 0xffffu, by) | oct_fold_e4m3(codes >> 16, by) << 16;
    } else {
        float x[4];
        oct_decode_two(x, codes & 0xffffu, FORMAT);
        oct_decode_two(x + 2, codes >> 16, FORMAT);
        out = oct_encode4<FORMAT>(x[0] * by.one, x[1] * by.one, x[2] * by.one, x[3] * by.one);
    }
    return oct_choose_bits(codes, out, oct_pick_signs(signs, signs, 0x3210));
}

#endif
