/* decode_avx2.c - values of codes, plain rows to and from floats, and the transform. */
#include "cpu/isa.h"

#if OCT_X86

#include "cpu/avx2.h"
#include "cpu/decode_loop.h"
#include "format/hadamard.h"

/* As oct_e4m3_decode: below 8, where there is no leading bit, 2^-6 is added and taken away. */
OCT_AVX2_INLINE __m256 e4m3_values(__m256i code) {
    __m256i magnitude = _mm256_and_si256(code, oct_word8(0x7f));
    __m256i small = _mm256_cmpgt_epi32(oct_word8(8), magnitude);
    __m256i nan = _mm256_cmpeq_epi32(magnitude, oct_word8(0x7f));
    __m256i bits = _mm256_add_epi32(_mm256_slli_epi32(magnitude, 20), oct_word8(0x3c000000u));
    bits = _mm256_add_epi32(bits, _mm256_and_si256(small, oct_word8(0x00800000u)));
    __m256 less = _mm256_and_ps(_mm256_castsi256_ps(small), _mm256_set1_ps(0x1p-6f));
    __m256 value = _mm256_sub_ps(_mm256_castsi256_ps(bits), less);
    bits = _mm256_blendv_epi8(_mm256_castps_si256(value), oct_word8(0x7ff00000u), nan);
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, oct_word8(0x80)), 24);
    return _mm256_castsi256_ps(_mm256_or_si256(bits, sign));
}

/* E5M2 is the upper half of F16. */
OCT_AVX2_INLINE __m256 e5m2_values(__m128i codes) {
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(codes), 8));
}

OCT_AVX2_INLINE __m256 values_of(const uint8_t *codes, octet_dtype format) {
    __m128i bytes = _mm_loadl_epi64((const void *)codes);
    switch (format) {
    case OCTET_E4M3:
        return e4m3_values(_mm256_cvtepu8_epi32(bytes));
    case OCTET_E5M2:
        return e5m2_values(bytes);
    default:
        return oct_e2m1_values8(_mm256_cvtepu8_epi32(bytes));
    }
}

OCT_AVX2_INLINE void decode_tile(const oct_tile *out, const oct_bytes *codes,
                                 const oct_factors *by, octet_dtype format, octet_dtype dtype) {
    int shift = by->block == 1 ? 0 : __builtin_ctzll((unsigned long long)by->block);
    for (int64_t r = 0; r < out->rows; r++) {
        const float *factors = by->factors + r * by->row_step;
        const uint8_t *from = codes->at + r * codes->stride;
        void *row = oct_tile_row(out, r);
        for (int64_t c = 0; c + 8 <= out->cols; c += 8) {
            __m256 factor =
                shift == 0 ? _mm256_loadu_ps(factors + c) : _mm256_set1_ps(factors[c >> shift]);
            __m256 value = values_of(from + c, format);
            oct_store8(row, c, _mm256_mul_ps(value, factor), dtype);
        }
    }
}

/* The last columns, fewer than 8, lie in one block or are blocks of their own. */
static void decode_rest(const oct_tile *out, const oct_bytes *codes, const oct_factors *by,
                        octet_dtype format) {
    int64_t done = out->cols / 8 * 8;
    oct_tile rest = {oct_plain_at(out->at, done, out->dtype), out->stride, out->rows,
                     out->cols - done, out->dtype};
    oct_bytes from = {codes->at + done, codes->stride};
    oct_factors last = {by->factors + done / by->block, 1, by->row_step};
    last.block = by->block > 1 ? OCT_WHOLE_ROW : 1;
    oct_kernels_reference.decode(&rest, &from, &last, format);
}

OCT_AVX2 static void decode__avx2(const oct_tile *out, const oct_bytes *codes,
                                  const oct_factors *by, octet_dtype format) {
    oct_decode_any(out, codes, by, format, decode_tile);
    if (out->cols % 8) {
        decode_rest(out, codes, by, format);
    }
}

/* ---- plain rows ------------------------------------------------------------------------ */

OCT_AVX2 static void widen__avx2(float *out, const void *x, int64_t count, octet_dtype dtype) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        _mm256_storeu_ps(out + i, oct_load8(x, i, dtype));
    }
    oct_kernels_reference.widen(out + i, oct_plain_at(x, i, dtype), count - i, dtype);
}

OCT_AVX2 static void narrow__avx2(void *out, const float *x, int64_t count, octet_dtype dtype) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        oct_store8(out, i, _mm256_loadu_ps(x + i), dtype);
    }
    oct_kernels_reference.narrow(oct_plain_at(out, i, dtype), x + i, count - i, dtype);
}

/* ---- the transform --------------------------------------------------------------------- */

OCT_AVX2_INLINE void stage(__m256 x[OCT_HADAMARD_ROWS], int distance) {
    for (int i = 0; i < OCT_HADAMARD_ROWS; i++) {
        if ((i & distance) == 0) {
            __m256 u = x[i], v = x[i + distance];
            x[i] = _mm256_add_ps(u, v);
            x[i + distance] = _mm256_sub_ps(u, v);
        }
    }
}

/* 8 columns; out's rows are x->cols apart. */
OCT_AVX2_INLINE void transform(float *out, const oct_tile *x, int64_t c, uint32_t signs) {
    __m256 group[OCT_HADAMARD_ROWS];
    for (int r = 0; r < OCT_HADAMARD_ROWS; r++) {
        __m256 value =
            r < x->rows ? oct_load8(oct_tile_row(x, r), c, x->dtype) : _mm256_setzero_ps();
        group[r] = _mm256_mul_ps(value, _mm256_set1_ps(signs >> r & 1u ? -0.25f : 0.25f));
    }
    stage(group, 1);
    stage(group, 2);
    stage(group, 4);
    stage(group, 8);
    for (int r = 0; r < OCT_HADAMARD_ROWS; r++) {
        __m256i bits = _mm256_and_si256(oct_bf16_round8(group[r]), oct_word8(0xffff0000u));
        _mm256_storeu_si256((void *)(out + r * x->cols + c), bits);
    }
}

OCT_AVX2 static void hadamard__avx2(float *out, const oct_tile *x, uint32_t signs) {
    int64_t c = 0;
    for (; c + 8 <= x->cols; c += 8) {
        transform(out, x, c, signs);
    }
    float rest[OCT_HADAMARD_ROWS * 8];
    oct_tile last = {oct_plain_at(x->at, c, x->dtype), x->stride, x->rows, x->cols - c,
                     x->dtype};
    oct_kernels_reference.hadamard(rest, &last, signs);
    for (int r = 0; r < OCT_HADAMARD_ROWS; r++) {
        memcpy(out + r * x->cols + c, rest + r * last.cols, (size_t)last.cols * sizeof *out);
    }
}

void oct_decode__avx2(oct_table *table) {
    oct_kernels *k = &table->kernels;
    k->decode = decode__avx2;
    k->hadamard = hadamard__avx2;
    k->widen = widen__avx2;
    k->narrow = narrow__avx2;
}

#endif
