/* scan_avx512.c - amaxes and column sums, 16 or 32 elements at a time.
 *
 * Magnitudes are compared as integers, 16-bit types as they are. A NaN is above Inf: only where
 * the largest of many turns out to be one are they looked at again, NaNs taken for 0. */
#include "cpu/isa.h"

#if OCT_X86

#include "cpu/avx512.h"

/* Magnitudes of up to 16 elements (F32) or 32 (the others), as integers of the type's width. */
OCT_AVX512_INLINE __m512i magnitudes(const void *row, int64_t index, int64_t left,
                                     octet_dtype dtype) {
    const void *at = oct_plain_at(row, index, dtype);
    __m512i all = dtype == OCTET_F32 ? _mm512_set1_epi32((int)OCT_F32_MAGNITUDE)
                                     : _mm512_set1_epi16(0x7fff);
    if (left >= (dtype == OCTET_F32 ? 16 : 32)) {
        return _mm512_and_si512(_mm512_loadu_si512(at), all);
    }
    if (dtype == OCTET_F32) {
        return _mm512_and_si512(_mm512_maskz_loadu_epi32(oct_some(left), at), all);
    }
    return _mm512_and_si512(_mm512_maskz_loadu_epi16((1u << left) - 1u, at), all);
}

OCT_AVX512_INLINE __m512i larger(__m512i a, __m512i b, octet_dtype dtype) {
    return dtype == OCTET_F32 ? _mm512_max_epu32(a, b) : _mm512_max_epu16(a, b);
}

OCT_AVX512_INLINE __m512i without_nan(__m512i x, octet_dtype dtype) {
    if (dtype == OCTET_F32) {
        __m512i inf = _mm512_set1_epi32((int)OCT_F32_INF);
        return _mm512_maskz_mov_epi32(_mm512_cmple_epu32_mask(x, inf), x);
    }
    __m512i inf = _mm512_set1_epi16(dtype == OCTET_BF16 ? 0x7f80 : 0x7c00);
    return _mm512_maskz_mov_epi16(_mm512_cmple_epu16_mask(x, inf), x);
}

/* Elements in a vector. */
OCT_AVX512_INLINE int64_t lanes(octet_dtype dtype) {
    return dtype == OCTET_F32 ? 16 : 32;
}

/* The largest lane. */
OCT_AVX512_INLINE uint32_t largest(__m512i x, octet_dtype dtype) {
    if (dtype == OCTET_F32) {
        return _mm512_reduce_max_epu32(x);
    }
    __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    __m128i few =
        _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    __m128i least = _mm_minpos_epu16(_mm_xor_si128(few, _mm_set1_epi16(-1)));
    return ~(uint32_t)_mm_cvtsi128_si32(least) & 0xffffu;
}

/* An element's magnitude as that of a float. */
OCT_AVX512_INLINE uint32_t as_float(uint32_t magnitude, octet_dtype dtype) {
    if (dtype == OCTET_F32) {
        return magnitude;
    }
    return dtype == OCTET_BF16 ? magnitude << 16
                               : oct_f32_bits(oct_f16_decode((uint16_t)magnitude));
}

OCT_AVX512_INLINE uint32_t above(octet_dtype dtype) {
    return dtype == OCTET_F32 ? OCT_F32_INF : dtype == OCTET_BF16 ? 0x7f80u : 0x7c00u;
}

OCT_AVX512_INLINE __m512i scan(const void *row, int64_t n, octet_dtype dtype, bool careful) {
    int64_t step = lanes(dtype), c = 0;
    __m512i most[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(),
                       _mm512_setzero_si512()};
    for (; !careful && c + 4 * step <= n; c += 4 * step) {
        for (int i = 0; i < 4; i++) {
            most[i] = larger(most[i], magnitudes(row, c + i * step, step, dtype), dtype);
        }
    }
    for (; c < n; c += step) {
        __m512i x = magnitudes(row, c, n - c, dtype);
        most[0] = larger(most[0], careful ? without_nan(x, dtype) : x, dtype);
    }
    return larger(larger(most[0], most[1], dtype), larger(most[2], most[3], dtype), dtype);
}

OCT_AVX512_INLINE uint32_t scan_row(const void *row, int64_t n, octet_dtype dtype) {
    uint32_t most = largest(scan(row, n, dtype, false), dtype);
    if (most > above(dtype)) {
        most = largest(scan(row, n, dtype, true), dtype);
    }
    return as_float(most, dtype);
}

OCT_AVX512_INLINE uint32_t scan_tile(const oct_tile *x, octet_dtype dtype) {
    uint32_t most = 0;
    for (int64_t r = 0; r < x->rows; r++) {
        uint32_t found = scan_row(oct_tile_row(x, r), x->cols, dtype);
        most = found > most ? found : most;
    }
    return most;
}

OCT_AVX512 static uint32_t absmax__avx512(const oct_tile *x) {
    switch (x->dtype) {
    case OCTET_F32:
        return scan_tile(x, OCTET_F32);
    case OCTET_BF16:
        return scan_tile(x, OCTET_BF16);
    default:
        return scan_tile(x, OCTET_F16);
    }
}

/* ---- by blocks ------------------------------------------------------------------------- */

OCT_AVX512_INLINE void scan_blocks(uint32_t *out, const oct_tile *x, int64_t block,
                                   octet_dtype dtype) {
    for (int64_t r = 0; r < x->rows; r++) {
        const void *row = oct_tile_row(x, r);
        for (int64_t c = 0; c < x->cols; c += block) {
            const void *at = oct_plain_at(row, c, dtype);
            *out++ = scan_row(at, oct_min(block, x->cols - c), dtype);
        }
    }
}

OCT_AVX512_INLINE void blocks_of(uint32_t *out, const oct_tile *x, octet_dtype dtype,
                                 int64_t block) {
    switch (block) {
    case 16:
        scan_blocks(out, x, 16, dtype);
        break;
    case 32:
        scan_blocks(out, x, 32, dtype);
        break;
    default:
        scan_blocks(out, x, block, dtype);
    }
}

OCT_AVX512 static void absmax_blocks__avx512(uint32_t *out, const oct_tile *x, int64_t block) {
    switch (x->dtype) {
    case OCTET_F32:
        blocks_of(out, x, OCTET_F32, block);
        break;
    case OCTET_BF16:
        blocks_of(out, x, OCTET_BF16, block);
        break;
    default:
        blocks_of(out, x, OCTET_F16, block);
    }
}

/* ---- by columns ------------------------------------------------------------------------ */

OCT_AVX512_INLINE __m512i scan_down(const oct_tile *x, int64_t col, octet_dtype dtype,
                                    bool careful) {
    __m512i most = _mm512_setzero_si512();
    for (int64_t r = 0; r < x->rows; r++) {
        __m512i found = magnitudes(oct_tile_row(x, r), col, x->cols - col, dtype);
        most = larger(most, careful ? without_nan(found, dtype) : found, dtype);
    }
    return most;
}

OCT_AVX512_INLINE bool any_nan(__m512i x, octet_dtype dtype) {
    __m512i inf = dtype == OCTET_F32 ? _mm512_set1_epi32((int)OCT_F32_INF)
                                     : _mm512_set1_epi16((short)above(dtype));
    return dtype == OCTET_F32 ? _mm512_cmpgt_epu32_mask(x, inf) != 0
                              : _mm512_cmpgt_epu16_mask(x, inf) != 0;
}

/* 16 magnitudes of a type as those of floats. */
OCT_AVX512_INLINE void put_columns(uint32_t *out, __m256i x, int64_t left, octet_dtype dtype) {
    __m512i wide = dtype == OCTET_BF16 ? _mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)
                                       : _mm512_castps_si512(_mm512_cvtph_ps(x));
    _mm512_mask_storeu_epi32(out, oct_some(left), wide);
}

OCT_AVX512_INLINE void scan_columns(uint32_t *out, const oct_tile *x, octet_dtype dtype) {
    for (int64_t c = 0; c < x->cols; c += lanes(dtype)) {
        int64_t left = x->cols - c;
        __m512i most = scan_down(x, c, dtype, false);
        if (any_nan(most, dtype)) {
            most = scan_down(x, c, dtype, true);
        }
        if (dtype == OCTET_F32) {
            _mm512_mask_storeu_epi32(out + c, oct_some(left), most);
            continue;
        }
        put_columns(out + c, _mm512_castsi512_si256(most), left, dtype);
        if (left > 16) {
            put_columns(out + c + 16, _mm512_extracti64x4_epi64(most, 1), left - 16, dtype);
        }
    }
}

OCT_AVX512 static void absmax_columns__avx512(uint32_t *out, const oct_tile *x) {
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

/* ---- sums ------------------------------------------------------------------------------ */

OCT_AVX512_INLINE void sum_down(float *out, const oct_tile *x, octet_dtype dtype) {
    for (int64_t c = 0; c < x->cols; c += 64) {
        __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                          _mm512_setzero_ps()};
        __mmask16 some[4];
        for (int64_t i = 0; i < 4; i++) {
            int64_t left = x->cols - c - 16 * i;
            some[i] = oct_some(left > 0 ? left : 0);
        }
        for (int64_t r = 0; r < x->rows; r++) {
            const void *row = oct_tile_row(x, r);
            for (int64_t i = 0; i < 4; i++) {
                sums[i] = _mm512_add_ps(sums[i], oct_load16(row, c + 16 * i, some[i], dtype));
            }
        }
        for (int64_t i = 0; i < 4; i++) {
            _mm512_mask_storeu_ps(out + c + 16 * i, some[i], sums[i]);
        }
    }
}

OCT_AVX512 static void sum_columns__avx512(float *out, const oct_tile *x) {
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

void oct_scan__avx512(oct_table *table) {
    oct_kernels *k = &table->kernels;
    k->absmax = absmax__avx512;
    k->absmax_columns = absmax_columns__avx512;
    k->absmax_blocks = absmax_blocks__avx512;
    k->sum_columns = sum_columns__avx512;
}

#endif
