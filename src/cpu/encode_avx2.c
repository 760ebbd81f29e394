/* encode_avx2.c - quantized codes and block scales, 8 at a time, as format/narrow.h does. */
#include "cpu/isa.h"

#if OCT_X86

#include "cpu/avx2.h"
#include "cpu/small_format.h"

/* The code of each float in the low bits of its lane. */
OCT_AVX2_INLINE __m256i codes_of(__m256 value, const oct_small_format f) {
    __m256i bits = _mm256_castps_si256(value);
    __m256i magnitude = _mm256_and_si256(bits, oct_word8(OCT_F32_MAGNITUDE));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    __m256i limited = _mm256_min_epu32(magnitude, oct_word8(f.most));
    __m256i shift = oct_word8((uint32_t)f.shift);
    __m256i odd = _mm256_and_si256(_mm256_srlv_epi32(limited, shift), oct_word8(1));
    __m256i half = oct_word8((1u << (f.shift - 1)) - 1u - f.base);
    __m256i code =
        _mm256_srlv_epi32(_mm256_add_epi32(_mm256_add_epi32(limited, half), odd), shift);
    __m256i magic = oct_word8(f.magic);
    __m256 sum = _mm256_add_ps(_mm256_castsi256_ps(limited), _mm256_castsi256_ps(magic));
    __m256i below = _mm256_sub_epi32(_mm256_castps_si256(sum), magic);
    __m256i small = _mm256_cmpgt_epi32(oct_word8(f.least), limited);
    code = _mm256_blendv_epi8(code, below, small);
    __m256i sign = _mm256_srlv_epi32(bits, oct_word8((uint32_t)f.sign));
    code = _mm256_or_si256(code, _mm256_and_si256(sign, oct_word8(0x80000000u >> f.sign)));
    return _mm256_blendv_epi8(code, oct_word8(f.nan), nan);
}

/* 32 codes as bytes: words and then bytes are packed within halves, which are then put in
 * order. */
OCT_AVX2_INLINE __m256i bytes_of(const __m256i codes[4]) {
    __m256i low = _mm256_packus_epi32(codes[0], codes[1]);
    __m256i high = _mm256_packus_epi32(codes[2], codes[3]);
    const __m256i order = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0);
    return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
}

/* What is known before the loop, for the compiler to fold in. */
typedef struct encoding {
    oct_small_format format;
    octet_dtype dtype;
    int shift; /* a block is 2^shift columns */
} encoding;

/* Factors of 8 columns from c on. */
OCT_AVX2_INLINE __m256 factors_at(const float *factors, int64_t c, int shift) {
    return shift == 0 ? _mm256_loadu_ps(factors + c) : _mm256_set1_ps(factors[c >> shift]);
}

/* Whole groups of 32 columns; gives how many columns that are. */
OCT_AVX2_INLINE int64_t encode_row(uint8_t *out, const void *row, int64_t n,
                                   const float *factors, const encoding e) {
    int64_t c = 0;
    for (; c + 32 <= n; c += 32) {
        __m256i codes[4];
        for (int64_t i = 0; i < 4; i++) {
            __m256 by = factors_at(factors, c + 8 * i, e.shift);
            __m256 value = oct_load8(row, c + 8 * i, e.dtype);
            codes[i] = codes_of(_mm256_mul_ps(value, by), e.format);
        }
        _mm256_storeu_si256((void *)(out + c), bytes_of(codes));
    }
    return c;
}

OCT_AVX2_INLINE void encode_tile(const oct_bytes *out, const oct_tile *x, const oct_factors *by,
                                 const oct_small_format format, octet_dtype dtype) {
    int shift = by->block == 1 ? 0 : __builtin_ctzll((unsigned long long)by->block);
    for (int64_t r = 0; r < x->rows; r++) {
        const float *factors = by->factors + r * by->row_step;
        const void *row = oct_tile_row(x, r);
        uint8_t *to = out->at + r * out->stride;
        if (shift == 0) {
            (void)encode_row(to, row, x->cols, factors, (encoding){format, dtype, 0});
        } else {
            (void)encode_row(to, row, x->cols, factors, (encoding){format, dtype, shift});
        }
    }
}

OCT_AVX2_INLINE void encode_format(const oct_bytes *out, const oct_tile *x,
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

/* The columns that are left are in whole blocks of 16, 32 and more, or one block. */
static void encode_rest(const oct_bytes *out, const oct_tile *x, const oct_factors *by,
                        octet_dtype format) {
    int64_t done = x->cols / 32 * 32;
    oct_tile rest = {oct_plain_at(x->at, done, x->dtype), x->stride, x->rows, x->cols - done,
                     x->dtype};
    oct_bytes to = {out->at + done, out->stride};
    oct_factors last = {by->factors + done / by->block, by->block, by->row_step};
    last.block = by->block > 16 ? OCT_WHOLE_ROW : by->block; /* they begin inside a block */
    oct_kernels_reference.encode(&to, &rest, &last, format);
}

OCT_AVX2 static void encode__avx2(const oct_bytes *out, const oct_tile *x,
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
    if (x->cols % 32) {
        encode_rest(out, x, by, format);
    }
}

/* ---- block scales ---------------------------------------------------------------------- */

OCT_AVX2_INLINE void put_codes(uint8_t *out, __m256i codes) {
    __m128i words =
        _mm_packus_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
    _mm_storel_epi64((void *)out, _mm_packus_epi16(words, words));
}

/* As oct_scale_of. */
OCT_AVX2 static void fp8_scales__avx2(float *inverses, float *factors, const uint32_t *amaxes,
                                      int64_t count, const oct_scale_rule *rule) {
    const __m256 zero = _mm256_setzero_ps(), one = _mm256_set1_ps(1.0f);
    const __m256 most = _mm256_set1_ps(FLT_MAX), epsilon = _mm256_set1_ps(rule->epsilon);
    const __m256 kept = _mm256_castsi256_ps(oct_word8(rule->pow2 ? 0xff800000u : 0xffffffffu));
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256 amax = _mm256_loadu_ps((const float *)(const void *)(amaxes + i));
        amax = _mm256_blendv_ps(amax, epsilon, _mm256_cmp_ps(amax, epsilon, _CMP_LT_OQ));
        __m256 special = _mm256_or_ps(_mm256_cmp_ps(amax, zero, _CMP_EQ_OQ),
                                      _mm256_cmp_ps(amax, most, _CMP_NLE_UQ));
        __m256 scale = _mm256_div_ps(_mm256_set1_ps(rule->aim), amax);
        __m256 over = _mm256_cmp_ps(scale, most, _CMP_GT_OQ);
        scale = _mm256_blendv_ps(scale, _mm256_set1_ps(rule->overflow), over);
        scale = _mm256_blendv_ps(_mm256_and_ps(scale, kept), one, special);
        _mm256_storeu_ps(factors + i, scale);
        _mm256_storeu_ps(inverses + i, _mm256_div_ps(one, scale));
    }
    oct_kernels_reference.fp8_scales(inverses + i, factors + i, amaxes + i, count - i, rule);
}

/* As oct_e8m0_encode and oct_e8m0_reciprocal; amaxes are not NaN. */
OCT_AVX2 static void mx_scales__avx2(uint8_t *codes, float *factors, const uint32_t *amaxes,
                                     int64_t count, octet_dtype format) {
    const __m256 unit = _mm256_set1_ps(oct_mx_unit((uint8_t)format));
    const __m256i last = oct_word8(254);
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256 amax = _mm256_loadu_ps((const float *)(const void *)(amaxes + i));
        __m256i bits = _mm256_castps_si256(_mm256_mul_ps(amax, unit));
        __m256i up = _mm256_srli_epi32(_mm256_add_epi32(bits, oct_word8(0x007fffffu)), 23);
        __m256i more = _mm256_cmpgt_epi32(bits, oct_word8(OCT_E8M0_LEAST));
        __m256i code = _mm256_and_si256(_mm256_min_epu32(up, last), more);
        __m256i factor = _mm256_slli_epi32(_mm256_sub_epi32(last, code), 23);
        factor = _mm256_blendv_epi8(factor, oct_word8(OCT_E8M0_LEAST),
                                    _mm256_cmpeq_epi32(code, last));
        put_codes(codes + i, code);
        _mm256_storeu_si256((void *)(factors + i), factor);
    }
    oct_kernels_reference.mx_scales(codes + i, factors + i, amaxes + i, count - i, format);
}

/* Codes that are not negative and not NaN, as floats. */
OCT_AVX2_INLINE __m256 e4m3_value(__m256i code) {
    __m256i small = _mm256_cmpgt_epi32(oct_word8(8), code);
    __m256i bits = _mm256_add_epi32(_mm256_slli_epi32(code, 20), oct_word8(0x3c000000u));
    bits = _mm256_add_epi32(bits, _mm256_and_si256(small, oct_word8(0x00800000u)));
    __m256 less = _mm256_and_ps(_mm256_castsi256_ps(small), _mm256_set1_ps(0x1p-6f));
    return _mm256_sub_ps(_mm256_castsi256_ps(bits), less);
}

/* As oct_nv_code and oct_nv_multiplier. */
OCT_AVX2 static void nv_scales__avx2(uint8_t *codes, float *factors, const uint32_t *amaxes,
                                     int64_t count, const oct_nv_global *global) {
    const __m256 most = _mm256_set1_ps(FLT_MAX);
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256 amax = _mm256_loadu_ps((const float *)(const void *)(amaxes + i));
        __m256 value = _mm256_mul_ps(amax, _mm256_set1_ps(global->sixth));
        __m256i code = codes_of(_mm256_min_ps(value, most), oct_small_e4m3);
        __m256 step = _mm256_mul_ps(e4m3_value(code), _mm256_set1_ps(global->decode));
        __m256 factor = _mm256_min_ps(_mm256_div_ps(_mm256_set1_ps(1.0f), step), most);
        put_codes(codes + i, code);
        _mm256_storeu_ps(factors + i, factor);
    }
    oct_kernels_reference.nv_scales(codes + i, factors + i, amaxes + i, count - i, global);
}

void oct_encode__avx2(oct_table *table) {
    oct_kernels *k = &table->kernels;
    k->encode = encode__avx2;
    k->fp8_scales = fp8_scales__avx2;
    k->mx_scales = mx_scales__avx2;
    k->nv_scales = nv_scales__avx2;
}

#endif
