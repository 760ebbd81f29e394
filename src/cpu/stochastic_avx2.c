/* stochastic_avx2.c - random bytes for 8 blocks at once, and E2M1 codes by them. */
#include "cpu/isa.h"

#if OCT_X86

#include "cpu/avx2.h"

/* Both halves of the product of each lane with a number. */
OCT_AVX2_INLINE void multiply(__m256i *high, __m256i *low, __m256i x, uint32_t by) {
    __m256i even = _mm256_mul_epu32(x, oct_word8(by));
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), oct_word8(by));
    *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}

/* Philox4x32-10 of 8 counters with one key, as format/philox.h. */
OCT_AVX2_INLINE void philox(__m256i c[4], uint64_t seed) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        __m256i even_high, even_low, odd_high, odd_low;
        multiply(&even_high, &even_low, c[0], 0xd2511f53u);
        multiply(&odd_high, &odd_low, c[2], 0xcd9e8d57u);
        c[0] = _mm256_xor_si256(_mm256_xor_si256(odd_high, c[1]), oct_word8(k0));
        c[1] = odd_low;
        c[2] = _mm256_xor_si256(_mm256_xor_si256(even_high, c[3]), oct_word8(k1));
        c[3] = even_low;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
}

/* Four words of 8 blocks become 16 bytes of each: row i of out has blocks i and i + 4. */
OCT_AVX2_INLINE void gather_blocks(__m256i out[4], const __m256i c[4]) {
    __m256i a = _mm256_unpacklo_epi32(c[0], c[1]), b = _mm256_unpackhi_epi32(c[0], c[1]);
    __m256i d = _mm256_unpacklo_epi32(c[2], c[3]), e = _mm256_unpackhi_epi32(c[2], c[3]);
    out[0] = _mm256_unpacklo_epi64(a, d);
    out[1] = _mm256_unpackhi_epi64(a, d);
    out[2] = _mm256_unpacklo_epi64(b, e);
    out[3] = _mm256_unpackhi_epi64(b, e);
}

OCT_AVX2_INLINE void eight_blocks(uint8_t out[128], const oct_random *which, uint64_t first) {
    uint32_t low[8], high[8];
    __m256i rows[4];
    for (uint32_t i = 0; i < 8; i++) {
        uint64_t block = first + i * which->step;
        low[i] = (uint32_t)block;
        high[i] = (uint32_t)(block >> 32);
    }
    __m256i c[4] = {_mm256_loadu_si256((const void *)low),
                    _mm256_loadu_si256((const void *)high), oct_word8(which->direction),
                    oct_word8(which->stream)};
    philox(c, which->seed);
    gather_blocks(rows, c);
    for (int i = 0; i < 4; i++) {
        uint8_t *at = out + 16 * i;
        _mm_storeu_si128((void *)at, _mm256_castsi256_si128(rows[i]));
        _mm_storeu_si128((void *)(at + 64), _mm256_extracti128_si256(rows[i], 1));
    }
}

OCT_AVX2 static void random__avx2(uint8_t *out, const oct_random *which, int64_t count) {
    uint8_t last[128];
    for (int64_t i = 0; i < count; i += 8) {
        uint64_t first = which->first + (uint64_t)i * which->step;
        if (i + 8 <= count) {
            eight_blocks(out + 16 * i, which, first);
        } else {
            eight_blocks(last, which, first);
            memcpy(out + 16 * i, last, (size_t)(count - i) * 16);
        }
    }
}

/* As oct_e2m1_encode_stochastic. Magnitudes are below 2^31, so signed comparisons will do. */
OCT_AVX2_INLINE __m256i codes_of(__m256 value, __m256i random) {
    __m256i bits = _mm256_castps_si256(value), one = oct_word8(0x3f800000u);
    __m256i magnitude = _mm256_and_si256(bits, oct_word8(OCT_F32_MAGNITUDE));
    __m256i exponent = _mm256_max_epu32(_mm256_srli_epi32(magnitude, 23), oct_word8(127));
    __m256i part = _mm256_slli_epi32(_mm256_sub_epi32(exponent, oct_word8(9)), 23);
    __m256 more = _mm256_mul_ps(_mm256_cvtepi32_ps(random), _mm256_castsi256_ps(part));
    __m256i sum = _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(magnitude), more));
    __m256i code = _mm256_srli_epi32(_mm256_max_epu32(sum, one), 22);
    code = _mm256_min_epu32(_mm256_sub_epi32(code, oct_word8(252)), oct_word8(7));
    code = _mm256_add_epi32(code, _mm256_cmpgt_epi32(one, sum));
    code = _mm256_add_epi32(code, _mm256_cmpgt_epi32(oct_word8(0x3f000000u), sum));
    __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 28), oct_word8(8));
    __m256i nan = _mm256_cmpgt_epi32(magnitude, oct_word8(OCT_F32_INF));
    return _mm256_or_si256(code, _mm256_andnot_si256(nan, sign));
}

OCT_AVX2_INLINE void encode_row(uint8_t *out, const oct_tile *x, int64_t r,
                                const oct_factors *by, const uint8_t *random) {
    int shift = by->block == 1 ? 0 : __builtin_ctzll((unsigned long long)by->block);
    const float *factors = by->factors + r * by->row_step;
    const void *row = oct_tile_row(x, r);
    for (int64_t c = 0; c + 8 <= x->cols; c += 8) {
        __m256 factor =
            shift == 0 ? _mm256_loadu_ps(factors + c) : _mm256_set1_ps(factors[c >> shift]);
        __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(random + c)));
        __m256i codes = codes_of(_mm256_mul_ps(oct_load8(row, c, x->dtype), factor), bytes);
        __m128i words =
            _mm_packus_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
        _mm_storel_epi64((void *)(out + c), _mm_packus_epi16(words, words));
    }
}

OCT_AVX2 static void encode_stochastic__avx2(const oct_bytes *out, const oct_tile *x,
                                             const oct_factors *by, const oct_bytes *random) {
    for (int64_t r = 0; r < x->rows; r++) {
        encode_row(out->at + r * out->stride, x, r, by, random->at + r * random->stride);
    }
    int64_t done = x->cols / 8 * 8;
    oct_tile rest = {oct_plain_at(x->at, done, x->dtype), x->stride, x->rows, x->cols - done,
                     x->dtype};
    oct_bytes to = {out->at + done, out->stride}, from = {random->at + done, random->stride};
    oct_factors last = {by->factors + done / by->block, 1, by->row_step};
    last.block = by->block > 1 ? OCT_WHOLE_ROW : 1; /* fewer than 8 columns lie in one block */
    if (rest.cols) {
        oct_kernels_reference.encode_stochastic(&to, &rest, &last, &from);
    }
}

void oct_stochastic__avx2(oct_table *table) {
    oct_kernels *k = &table->kernels;
    k->encode_stochastic = encode_stochastic__avx2;
    k->random = random__avx2;
}

#endif
