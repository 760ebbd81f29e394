/* encode_avx512.c - quantized codes and block scales, 16 at a time, as format/narrow.h does. */
#include "cpu/isa.h"

#if OCT_X86

#include "cpu/avx512.h"
#include "cpu/small_format.h"

OCT_AVX512_INLINE __m512i word(uint32_t bits) {
    return _mm512_set1_epi32((int)bits);
}

/* The code of each float in the low bits of its lane. */
OCT_AVX512_INLINE __m512i codes_of(__m512 value, const oct_small_format f) {
    __m512i bits = _mm512_castps_si512(value);
    __m512i magnitude = _mm512_and_si512(bits, word(OCT_F32_MAGNITUDE));
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    __m512i limited = _mm512_min_epu32(magnitude, word(f.most));
    __m512i shift = word((uint32_t)f.shift);
    __m512i odd = _mm512_and_si512(_mm512_srlv_epi32(limited, shift), word(1));
    __m512i half = word((1u << (f.shift - 1)) - 1u - f.base);
    __m512i code =
        _mm512_srlv_epi32(_mm512_add_epi32(_mm512_add_epi32(limited, half), odd), shift);
    __mmask16 small = _mm512_cmplt_epu32_mask(limited, word(f.least));
    __m512i magic = word(f.magic);
    __m512 sum = _mm512_add_ps(_mm512_castsi512_ps(limited), _mm512_castsi512_ps(magic));
    code = _mm512_mask_sub_epi32(code, small, _mm512_castps_si512(sum), magic);
    __m512i sign = _mm512_srlv_epi32(bits, word((uint32_t)f.sign));
    /* code | (sign & sign's place): 0xf8 is a | (b & c) */
    code = _mm512_ternarylogic_epi32(code, sign, word(0x80000000u >> f.sign), 0xf8);
    return _mm512_mask_mov_epi32(code, nan, word(f.nan));
}

/* Factors of 16 columns from c on. */
OCT_AVX512_INLINE __m512 factors_at(const float *factors, int64_t c, __mmask16 some,
                                    int shift) {
    return shift == 0 ? _mm512_maskz_loadu_ps(some, factors + c)
                      : _mm512_set1_ps(factors[c >> shift]);
}

/* 64 codes as bytes: words and then bytes are packed within quarters, which are then put in
 * order. */
OCT_AVX512_INLINE __m512i bytes_of(const __m512i codes[4]) {
    __m512i low = _mm512_packus_epi32(codes[0], codes[1]);
    __m512i high = _mm512_packus_epi32(codes[2], codes[3]);
    const __m512i order =
        _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    return _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high));
}

/* What is known before the loop, for the compiler to fold in. */
typedef struct encoding {
    oct_small_format format;
    octet_dtype dtype;
    int shift; /* a block is 2^shift columns */
} encoding;

OCT_AVX512_INLINE void encode_row(uint8_t *out, const void *row, int64_t n,
                                  const float *factors, const encoding e) {
    int64_t c = 0;
    for (; c + 64 <= n; c += 64) {
        __m512i codes[4];
        for (int i = 0; i < 4; i++) {
            __m512 by = factors_at(factors, c + 16 * i, (__mmask16)0xffff, e.shift);
            __m512 value = oct_load16(row, c + 16 * i, (__mmask16)0xffff, e.dtype);
            codes[i] = codes_of(_mm512_mul_ps(value, by), e.format);
        }
        _mm512_storeu_si512(out + c, bytes_of(codes));
    }
    for (; c < n; c += 16) {
        __mmask16 some = oct_some(n - c);
        __m512 by = factors_at(factors, c, some, e.shift);
        __m512 value = oct_load16(row, c, some, e.dtype);
        __m512i codes = codes_of(_mm512_mul_ps(value, by), e.format);
        _mm_mask_storeu_epi8(out + c, some, _mm512_cvtepi32_epi8(codes));
    }
}

OCT_AVX512_INLINE void encode_tile(const oct_bytes *out, const oct_tile *x,
                                   const oct_factors *by, const oct_small_format format,
                                   octet_dtype dtype) {
    int shift = by->block == 1 ? 0 : __builtin_ctzll((unsigned long long)by->block);
    for (int64_t r = 0; r < x->rows; r++) {
        const float *factors = by->factors + r * by->row_step;
        const void *row = oct_tile_row(x, r);
        uint8_t *to = out->at + r * out->stride;
        if (shift == 0) {
            encode_row(to, row, x->cols, factors, (encoding){format, dtype, 0});
        } else {
            encode_row(to, row, x->cols, factors, (encoding){format, dtype, shift});
        }
    }
}

OCT_AVX512_INLINE void encode_format(const oct_bytes *out, const oct_tile *x,
                                     const oct_factors *by, const oct_small_format format) {
    switch (x->dtype) {
    case OCTET_F32:
        encode_tile(out, x, by, format, OCTET_F32);
        break;
    case OCTET_BF16:
        encode_tile(out, x, by, format, OCTET_BF16);
        break;
    default:
        encode_tile(out, x, by, format, OCTET_F16);
    }
}

OCT_AVX512 static void encode__avx512(const oct_bytes *out, const oct_tile *x,
                                      const oct_factors *by, octet_dtype format) {
    switch (format) {
    case OCTET_E4M3:
        encode_format(out, x, by, oct_small_e4m3);
        break;
    case OCTET_E5M2:
        encode_format(out, x, by, oct_small_e5m2);
        break;
    default:
        encode_format(out, x, by, oct_small_e2m1);
    }
}

/* ---- block scales ---------------------------------------------------------------------- */

/* As oct_scale_of. */
OCT_AVX512 static void fp8_scales__avx512(float *inverses, float *factors,
                                          const uint32_t *amaxes, int64_t count,
                                          const oct_scale_rule *rule) {
    const __m512 zero = _mm512_setzero_ps(), one = _mm512_set1_ps(1.0f);
    const __m512 most = _mm512_set1_ps(FLT_MAX), epsilon = _mm512_set1_ps(rule->epsilon);
    for (int64_t i = 0; i < count; i += 16) {
        __mmask16 some = oct_some(count - i);
        __m512 amax = _mm512_castsi512_ps(_mm512_maskz_loadu_epi32(some, amaxes + i));
        amax = _mm512_mask_mov_ps(amax, _mm512_cmp_ps_mask(amax, epsilon, _CMP_LT_OQ), epsilon);
        __mmask16 special = _mm512_cmp_ps_mask(amax, zero, _CMP_EQ_OQ) |
                            _mm512_cmp_ps_mask(amax, most, _CMP_NLE_UQ);
        __m512 scale = _mm512_div_ps(_mm512_set1_ps(rule->aim), amax);
        __mmask16 over = _mm512_cmp_ps_mask(scale, most, _CMP_GT_OQ);
        scale = _mm512_mask_mov_ps(scale, over, _mm512_set1_ps(rule->overflow));
        if (rule->pow2) {
            scale = _mm512_and_ps(scale, _mm512_castsi512_ps(word(0xff800000u)));
        }
        scale = _mm512_mask_mov_ps(scale, special, one);
        _mm512_mask_storeu_ps(factors + i, some, scale);
        _mm512_mask_storeu_ps(inverses + i, some, _mm512_div_ps(one, scale));
    }
}

/* As oct_e8m0_encode and oct_e8m0_reciprocal; amaxes are not NaN. */
OCT_AVX512 static void mx_scales__avx512(uint8_t *codes, float *factors, const uint32_t *amaxes,
                                         int64_t count, octet_dtype format) {
    __m512 unit = _mm512_set1_ps(oct_mx_unit((uint8_t)format));
    for (int64_t i = 0; i < count; i += 16) {
        __mmask16 some = oct_some(count - i);
        __m512 amax = _mm512_castsi512_ps(_mm512_maskz_loadu_epi32(some, amaxes + i));
        __m512i bits = _mm512_castps_si512(_mm512_mul_ps(amax, unit));
        __m512i up = _mm512_srli_epi32(_mm512_add_epi32(bits, word(0x007fffffu)), 23);
        __mmask16 more = _mm512_cmpgt_epu32_mask(bits, word(OCT_E8M0_LEAST));
        __m512i code = _mm512_maskz_min_epu32(more, up, word(254));
        __m512i factor = _mm512_slli_epi32(_mm512_sub_epi32(word(254), code), 23);
        __mmask16 last = _mm512_cmpeq_epu32_mask(code, word(254));
        factor = _mm512_mask_mov_epi32(factor, last, word(OCT_E8M0_LEAST));
        _mm_mask_storeu_epi8(codes + i, some, _mm512_cvtepi32_epi8(code));
        _mm512_mask_storeu_epi32(factors + i, some, factor);
    }
}

/* Codes that are not negative and not NaN, as floats. */
OCT_AVX512_INLINE __m512 e4m3_value(__m512i code) {
    __mmask16 small = _mm512_cmplt_epu32_mask(code, word(8));
    __m512i bits = _mm512_add_epi32(_mm512_slli_epi32(code, 20), word(0x3c000000u));
    bits = _mm512_mask_add_epi32(bits, small, bits, word(0x00800000u));
    __m512 value = _mm512_castsi512_ps(bits);
    return _mm512_mask_sub_ps(value, small, value, _mm512_set1_ps(0x1p-6f));
}

/* As oct_nv_code and oct_nv_multiplier. */
OCT_AVX512 static void nv_scales__avx512(uint8_t *codes, float *factors, const uint32_t *amaxes,
                                         int64_t count, const oct_nv_global *global) {
    __m512 most = _mm512_set1_ps(FLT_MAX);
    for (int64_t i = 0; i < count; i += 16) {
        __mmask16 some = oct_some(count - i);
        __m512 amax = _mm512_castsi512_ps(_mm512_maskz_loadu_epi32(some, amaxes + i));
        __m512 value = _mm512_mul_ps(amax, _mm512_set1_ps(global->sixth));
        __m512i code = codes_of(_mm512_min_ps(value, most), oct_small_e4m3);
        __m512 step = _mm512_mul_ps(e4m3_value(code), _mm512_set1_ps(global->decode));
        __m512 factor = _mm512_min_ps(_mm512_div_ps(_mm512_set1_ps(1.0f), step), most);
        _mm_mask_storeu_epi8(codes + i, some, _mm512_cvtepi32_epi8(code));
        _mm512_mask_storeu_ps(factors + i, some, factor);
    }
}

void oct_encode__avx512(oct_table *table) {
    oct_kernels *k = &table->kernels;
    k->encode = encode__avx512;
    k->fp8_scales = fp8_scales__avx512;
    k->mx_scales = mx_scales__avx512;
    k->nv_scales = nv_scales__avx512;
}

#endif
