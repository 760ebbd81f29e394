/* bytes_avx2.c - bytes and nibbles that change place, 16 and 32 at a time. */
#include "cpu/isa.h"

#if OCT_X86

#include "cpu/avx2.h"

/* ---- transpose ------------------------------------------------------------------------- */

/* Bytes of pairs of rows interleaved: (a0 b0 a1 b1 ...), the first 8 columns then the last 8,
 * in each half of the registers apart. */
OCT_AVX2_INLINE void interleave(__m256i out[16], const __m256i x[16]) {
    for (int i = 0; i < 8; i++) {
        out[2 * i] = _mm256_unpacklo_epi8(x[i], x[i + 8]);
        out[2 * i + 1] = _mm256_unpackhi_epi8(x[i], x[i + 8]);
    }
}

/* 32 rows by 16 columns. Interleaving row i with row i + 8 four times turns a 16 x 16 square:
 * each time a row number's top bit moves to the bottom of the column number. The two halves of
 * a register hold rows 0..15 and 16..31, so that 32 bytes of a column come out together. */
OCT_AVX2_INLINE void turn(const oct_bytes *out, const oct_bytes *x) {
    __m256i a[16], b[16];
    for (int i = 0; i < 16; i++) {
        __m128i upper = _mm_loadu_si128((const void *)(x->at + i * x->stride));
        __m128i lower = _mm_loadu_si128((const void *)(x->at + (i + 16) * x->stride));
        a[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(upper), lower, 1);
    }
    interleave(b, a);
    interleave(a, b);
    interleave(b, a);
    interleave(a, b);
    for (int i = 0; i < 16; i++) {
        _mm256_storeu_si256((void *)(out->at + i * out->stride), a[i]);
    }
}

static void turn_rest(const oct_bytes *out, const oct_bytes *x, int64_t rows, int64_t cols) {
    for (int64_t c = 0; c < cols; c++) {
        for (int64_t r = 0; r < rows; r++) {
            out->at[c * out->stride + r] = x->at[r * x->stride + c];
        }
    }
}

/* Columns outside: a column's bytes are written one after the other. */
OCT_AVX2 void oct_transpose__avx2(const oct_bytes *out, const oct_bytes *x, int64_t rows,
                                  int64_t cols) {
    int64_t whole_rows = rows / 32 * 32, whole_cols = cols / 16 * 16;
    for (int64_t c = 0; c < whole_cols; c += 16) {
        for (int64_t r = 0; r < whole_rows; r += 32) {
            oct_bytes from = {x->at + r * x->stride + c, x->stride};
            oct_bytes to = {out->at + c * out->stride + r, out->stride};
            turn(&to, &from);
        }
    }
    oct_bytes below = {x->at + whole_rows * x->stride, x->stride};
    oct_bytes after = {out->at + whole_rows, out->stride};
    turn_rest(&after, &below, rows - whole_rows, cols);
    oct_bytes right = {x->at + whole_cols, x->stride};
    oct_bytes under = {out->at + whole_cols * out->stride, out->stride};
    turn_rest(&under, &right, whole_rows, cols - whole_cols);
}

/* ---- nibbles --------------------------------------------------------------------------- */

OCT_AVX2 static void pack__avx2(uint8_t *out, const uint8_t *x, int64_t count) {
    const __m256i weights = _mm256_set1_epi16(0x1001); /* 1 and 16 */
    int64_t i = 0;
    for (; i + 64 <= count; i += 64) {
        __m256i a = _mm256_loadu_si256((const void *)(x + i));
        __m256i b = _mm256_loadu_si256((const void *)(x + i + 32));
        __m256i pairs = _mm256_packus_epi16(_mm256_maddubs_epi16(a, weights),
                                            _mm256_maddubs_epi16(b, weights));
        _mm256_storeu_si256((void *)(out + i / 2), _mm256_permute4x64_epi64(pairs, 0xd8));
    }
    oct_kernels_reference.pack(out + i / 2, x + i, count - i);
}

OCT_AVX2 static void pack_rows__avx2(uint8_t *out, const uint8_t *low, const uint8_t *high,
                                     int64_t count) {
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        __m256i a = _mm256_loadu_si256((const void *)(low + i));
        __m256i b = _mm256_loadu_si256((const void *)(high + i));
        __m256i pair = _mm256_or_si256(a, _mm256_slli_epi16(b, 4));
        _mm256_storeu_si256((void *)(out + i), pair);
    }
    oct_kernels_reference.pack_rows(out + i, low + i, high + i, count - i);
}

OCT_AVX2 static void unpack__avx2(uint8_t *out, const uint8_t *x, int64_t count) {
    const __m128i nibble = _mm_set1_epi8(0xf);
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        __m128i pairs = _mm_loadu_si128((const void *)(x + i / 2));
        __m128i low = _mm_and_si128(pairs, nibble);
        __m128i high = _mm_and_si128(_mm_srli_epi16(pairs, 4), nibble);
        _mm_storeu_si128((void *)(out + i), _mm_unpacklo_epi8(low, high));
        _mm_storeu_si128((void *)(out + i + 16), _mm_unpackhi_epi8(low, high));
    }
    oct_kernels_reference.unpack(out + i, x + i / 2, count - i);
}

void oct_bytes__avx2(oct_table *table) {
    oct_kernels *k = &table->kernels;
    k->transpose = oct_transpose__avx2;
    k->transpose_away = oct_transpose__avx2;
    k->pack = pack__avx2;
    k->pack_rows = pack_rows__avx2;
    k->unpack = unpack__avx2;
}

#endif
