/* scan_avx2.c - amaxes and column sums, 8 or 16 elements at a time.
 *
 * Magnitudes are compared as integers, 16-bit types as they are. A NaN is above Inf: only where
 * the largest of many turns out to be one are they looked at again, by the reference. */
#include "cpu/isa.h"

#if OCT_X86

#include "cpu/avx2.h"

/* Magnitudes of 8 elements (F32) or 16 (the others), as integers of the type's width. */
OCT_AVX2_INLINE __m256i magnitudes(const void *row, int64_t index, octet_dtype dtype) {
    __m256i x = _mm256_loadu_si256(oct_plain_at(row, index, dtype));
    return _mm256_and_si256(x, dtype == OCTET_F32 ? oct_word8(OCT_F32_MAGNITUDE)
                                                  : _mm256_set1_epi16(0x7fff));
}

OCT_AVX2_INLINE __m256i larger(__m256i a, __m256i b, octet_dtype dtype) {
    return dtype == OCTET_F32 ? _mm256_max_epu32(a, b) : _mm256_max_epu16(a, b);
}

/* Elements in a vector. */
OCT_AVX2_INLINE int64_t lanes(octet_dtype dtype) {
    return dtype == OCTET_F32 ? 8 : 16;
}

/* The largest lane, as the magnitude of a float. */
OCT_AVX2_INLINE uint32_t largest(__m256i x, octet_dtype dtype) {
    __m128i a = _mm256_castsi256_si128(x), b = _mm256_extracti128_si256(x, 1);
    if (dtype == OCTET_F32) {
        a = _mm_max_epu32(a, b);
        a = _mm_max_epu32(a, _mm_shuffle_epi32(a, 0x4e));
        a = _mm_max_epu32(a, _mm_shuffle_epi32(a, 0xb1));
        return (uint32_t)_mm_cvtsi128_si32(a);
    }
    __m128i least = _mm_minpos_epu16(_mm_xor_si128(_mm_max_epu16(a, b), _mm_set1_epi16(-1)));
    uint16_t most = (uint16_t)(~(uint32_t)_mm_cvtsi128_si32(least) & 0xffffu);
    return oct_f32_bits(dtype == OCTET_BF16 ? oct_bf16_decode(most) : oct_f16_decode(most));
}

static uint32_t scan_rest(const void *row, int64_t begin, int64_t n, octet_dtype dtype) {
    oct_tile rest = {oct_plain_at(row, begin, dtype), n, 1, n - begin, dtype};
    return oct_kernels_reference.absmax(&rest);
}

OCT_AVX2_INLINE uint32_t scan_row(const void *row, int64_t n, octet_dtype dtype) {
    int64_t step = lanes(dtype), c = 0;
    __m256i a = _mm256_setzero_si256(), b = a;
    for (; c + 2 * step <= n; c += 2 * step) {
        a = larger(a, magnitudes(row, c, dtype), dtype);
        b = larger(b, magnitudes(row, c + step, dtype), dtype);
    }
    for (; c + step <= n; c += step) {
        a = larger(a, magnitudes(row, c, dtype), dtype);
    }
    uint32_t most = largest(larger(a, b, dtype), dtype);
    if (most > OCT_F32_INF) {
        return scan_rest(row, 0, n, dtype);
    }
    uint32_t rest = c < n ? scan_rest(row, c, n, dtype) : 0;
    return rest > most ? rest : most;
}

OCT_AVX2_INLINE uint32_t scan_tile(const oct_tile *x, octet_dtype dtype) {
    uint32_t most = 0;
    for (int64_t r = 0; r < x->rows; r++) {
        uint32_t found = scan_row(oct_tile_row(x, r), x->cols, dtype);
        most = found > most ? found : most;
    }
    return most;
}

OCT_AVX2 static uint32_t absmax__avx2(const oct_tile *x) {
    switch (x->dtype) {
    case OCTET_F32:
        return scan_tile(x, OCTET_F32);
    case OCTET_BF16:
        return scan_tile(x, OCTET_BF16);
    default:
        return scan_tile(x, OCTET_F16);
    }
}

OCT_AVX2_INLINE void scan_blocks(uint32_t *out, const oct_tile *x, int64_t block,
                                 octet_dtype dtype) {
    for (int64_t r = 0; r < x->rows; r++) {
        const void *row = oct_tile_row(x, r);
        for (int64_t c = 0; c < x->cols; c += block) {
            const void *at = oct_plain_at(row, c, dtype);
            *out++ = scan_row(at, oct_min(block, x->cols - c), dtype);
        }
    }
}

OCT_AVX2 static void absmax_blocks__avx2(uint32_t *out, const oct_tile *x, int64_t block) {
    switch (x->dtype) {
    case OCTET_F32:
        scan_blocks(out, x, block, OCTET_F32);
        break;
    case OCTET_BF16:
        scan_blocks(out, x, block, OCTET_BF16);
        break;
    default:
        scan_blocks(out, x, block, OCTET_F16);
    }
}

/* ---- by columns ------------------------------------------------------------------------ */

/* Some columns of a tile. */
static oct_tile columns_of(const oct_tile *x, int64_t begin, int64_t count) {
    return (oct_tile){oct_plain_at(x->at, begin, x->dtype), x->stride, x->rows, count,
                      x->dtype};
}

/* 8 magnitudes of a 16-bit type as those of floats. */
OCT_AVX2_INLINE void put_columns(uint32_t *out, __m128i x, octet_dtype dtype) {
    __m256i wide = dtype == OCTET_BF16 ? _mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)
                                       : _mm256_castps_si256(_mm256_cvtph_ps(x));
    _mm256_storeu_si256((void *)out, wide);
}

OCT_AVX2_INLINE void scan_columns(uint32_t *out, const oct_tile *x, octet_dtype dtype) {
    int64_t step = lanes(dtype), c = 0;
    for (; c + step <= x->cols; c += step) {
        __m256i most = _mm256_setzero_si256();
        for (int64_t r = 0; r < x->rows; r++) {
            most = larger(most, magnitudes(oct_tile_row(x, r), c, dtype), dtype);
        }
        if (largest(most, dtype) > OCT_F32_INF) {
            oct_tile again = columns_of(x, c, step);
            oct_kernels_reference.absmax_columns(out + c, &again);
        } else if (dtype == OCTET_F32) {
            _mm256_storeu_si256((void *)(out + c), most);
        } else {
            put_columns(out + c, _mm256_castsi256_si128(most), dtype);
            put_columns(out + c + 8, _mm256_extracti128_si256(most, 1), dtype);
        }
    }
    oct_tile rest = columns_of(x, c, x->cols - c);
    oct_kernels_reference.absmax_columns(out + c, &rest);
}

OCT_AVX2 static void absmax_columns__avx2(uint32_t *out, const oct_tile *x) {
    switch (x->dtype) {
    case OCTET_F32:
        scan_columns(out, x, OCTET_F32);
        break;
    case OCTET_BF16:
        scan_columns(out, x, OCTET_BF16);
        break;
    default:
        scan_columns(out, x, OCTET_F16);
    }
}

OCT_AVX2_INLINE void sum_down(float *out, const oct_tile *x, octet_dtype dtype) {
    int64_t c = 0;
    for (; c + 32 <= x->cols; c += 32) {
        __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                          _mm256_setzero_ps()};
        for (int64_t r = 0; r < x->rows; r++) {
            const void *row = oct_tile_row(x, r);
            for (int64_t i = 0; i < 4; i++) {
                sums[i] = _mm256_add_ps(sums[i], oct_load8(row, c + 8 * i, dtype));
            }
        }
        for (int64_t i = 0; i < 4; i++) {
            _mm256_storeu_ps(out + c + 8 * i, sums[i]);
        }
    }
    oct_tile rest = columns_of(x, c, x->cols - c);
    oct_kernels_reference.sum_columns(out + c, &rest);
}

OCT_AVX2 static void sum_columns__avx2(float *out, const oct_tile *x) {
    switch (x->dtype) {
    case OCTET_F32:
        sum_down(out, x, OCTET_F32);
        break;
    case OCTET_BF16:
        sum_down(out, x, OCTET_BF16);
        break;
    default:
        sum_down(out, x, OCTET_F16);
    }
}

void oct_scan__avx2(oct_table *table) {
    oct_kernels *k = &table->kernels;
    k->absmax = absmax__avx2;
    k->absmax_columns = absmax_columns__avx2;
    k->absmax_blocks = absmax_blocks__avx2;
    k->sum_columns = sum_columns__avx2;
}

#endif
