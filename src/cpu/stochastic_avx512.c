/* stochastic_avx512.c - random bytes for 16 blocks at once, and E2M1 codes by them. */
#include "cpu/isa.h"

#if OCT_X86

#include "cpu/avx512.h"

OCT_AVX512_INLINE __m512i word(uint32_t bits) {
    return _mm512_set1_epi32((int)bits);
}

/* Both halves of the product of each lane with a number. */
OCT_AVX512_INLINE void multiply(__m512i *high, __m512i *low, __m512i x, uint32_t by) {
    __m512i even = _mm512_mul_epu32(x, word(by));
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), word(by));
    *high = _mm512_mask_blend_epi32((__mmask16)0xaaaa, _mm512_srli_epi64(even, 32), odd);
    *low = _mm512_mask_blend_epi32((__mmask16)0xaaaa, even, _mm512_slli_epi64(odd, 32));
}

/* Philox4x32-10 of 16 counters with one key, as format/philox.h. */
OCT_AVX512_INLINE void philox(__m512i c[4], uint64_t seed) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        __m512i even_high, even_low, odd_high, odd_low;
        multiply(&even_high, &even_low, c[0], 0xd2511f53u);
        multiply(&odd_high, &odd_low, c[2], 0xcd9e8d57u);
        c[0] = _mm512_ternarylogic_epi32(odd_high, c[1], word(k0), 0x96); /* xor of three */
        c[1] = odd_low;
        c[2] = _mm512_ternarylogic_epi32(even_high, c[3], word(k1), 0x96);
        c[3] = even_low;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
}

/* Four words of 16 blocks become 16 bytes of each: row i of out has blocks i, i + 4, ... */
OCT_AVX512_INLINE void gather_blocks(__m512i out[4], const __m512i c[4]) {
    __m512i a = _mm512_unpacklo_epi32(c[0], c[1]), b = _mm512_unpackhi_epi32(c[0], c[1]);
    __m512i d = _mm512_unpacklo_epi32(c[2], c[3]), e = _mm512_unpackhi_epi32(c[2], c[3]);
    out[0] = _mm512_unpacklo_epi64(a, d);
    out[1] = _mm512_unpackhi_epi64(a, d);
    out[2] = _mm512_unpacklo_epi64(b, e);
    out[3] = _mm512_unpackhi_epi64(b, e);
}

OCT_AVX512_INLINE void sixteen_blocks(uint8_t out[256], const oct_random *which,
                                      uint64_t first) {
    uint32_t low[16], high[16];
    __m512i rows[4];
    for (uint32_t i = 0; i < 16; i++) {
        uint64_t block = first + i * which->step;
        low[i] = (uint32_t)block;
        high[i] = (uint32_t)(block >> 32);
    }
    __m512i c[4] = {_mm512_loadu_si512(low), _mm512_loadu_si512(high), word(which->direction),
                    word(which->stream)};
    philox(c, which->seed);
    gather_blocks(rows, c);
    for (int i = 0; i < 4; i++) {
        uint8_t *at = out + 16 * i;
        _mm_storeu_si128((void *)at, _mm512_castsi512_si128(rows[i]));
        _mm_storeu_si128((void *)(at + 64), _mm512_extracti32x4_epi32(rows[i], 1));
        _mm_storeu_si128((void *)(at + 128), _mm512_extracti32x4_epi32(rows[i], 2));
        _mm_storeu_si128((void *)(at + 192), _mm512_extracti32x4_epi32(rows[i], 3));
    }
}

OCT_AVX512 static void random__avx512(uint8_t *out, const oct_random *which, int64_t count) {
    uint8_t last[256];
    for (int64_t i = 0; i < count; i += 16) {
        uint64_t first = which->first + (uint64_t)i * which->step;
        if (i + 16 <= count) {
            sixteen_blocks(out + 16 * i, which, first);
        } else {
            sixteen_blocks(last, which, first);
            memcpy(out + 16 * i, last, (size_t)(count - i) * 16);
        }
    }
}

/* As oct_e2m1_encode_stochastic. */
OCT_AVX512_INLINE __m512i codes_of(__m512 value, __m512i random) {
    __m512i bits = _mm512_castps_si512(value), one = word(0x3f800000u);
    __m512i magnitude = _mm512_and_si512(bits, word(OCT_F32_MAGNITUDE));
    __m512i exponent = _mm512_max_epu32(_mm512_srli_epi32(magnitude, 23), word(127));
    __m512i part = _mm512_slli_epi32(_mm512_sub_epi32(exponent, word(9)), 23);
    __m512 more = _mm512_mul_ps(_mm512_cvtepi32_ps(random), _mm512_castsi512_ps(part));
    __m512i sum = _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(magnitude), more));
    __m512i code = _mm512_srli_epi32(_mm512_max_epu32(sum, one), 22);
    code = _mm512_min_epu32(_mm512_sub_epi32(code, word(252)), word(7));
    code = _mm512_mask_sub_epi32(code, _mm512_cmplt_epu32_mask(sum, one), code, word(1));
    __mmask16 none = _mm512_cmplt_epu32_mask(sum, word(0x3f000000u));
    code = _mm512_mask_sub_epi32(code, none, code, word(1));
    __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 28), word(8));
    __mmask16 number = _mm512_cmple_epu32_mask(magnitude, word(OCT_F32_INF));
    return _mm512_mask_or_epi32(code, number, code, sign);
}

OCT_AVX512 static void encode_stochastic__avx512(const oct_bytes *out, const oct_tile *x,
                                                 const oct_factors *by,
                                                 const oct_bytes *random) {
    int shift = by->block == 1 ? 0 : __builtin_ctzll((unsigned long long)by->block);
    for (int64_t r = 0; r < x->rows; r++) {
        const float *factors = by->factors + r * by->row_step;
        const void *row = oct_tile_row(x, r);
        for (int64_t c = 0; c < x->cols; c += 16) {
            __mmask16 some = oct_some(x->cols - c);
            __m512 factor = shift == 0 ? _mm512_maskz_loadu_ps(some, factors + c)
                                       : _mm512_set1_ps(factors[c >> shift]);
            __m128i bytes = _mm_maskz_loadu_epi8(some, random->at + r * random->stride + c);
            __m512 value = _mm512_mul_ps(oct_load16(row, c, some, x->dtype), factor);
            __m512i codes = codes_of(value, _mm512_cvtepu8_epi32(bytes));
            _mm_mask_storeu_epi8(out->at + r * out->stride + c, some,
                                 _mm512_cvtepi32_epi8(codes));
        }
    }
}

void oct_stochastic__avx512(oct_table *table) {
    oct_kernels *k = &table->kernels;
    k->encode_stochastic = encode_stochastic__avx512;
    k->random = random__avx512;
}

#endif
