/* bytes_avx512.c - the byte transpose by whole cache lines: 64 rows by 16 columns. */
#include "cpu/isa.h"

#if OCT_X86

#include "cpu/avx2.h"
#include "cpu/avx512.h"

/* Row i interleaved with row i + 8, in each quarter of the registers apart. */
OCT_AVX512_INLINE void interleave(__m512i out[16], const __m512i x[16]) {
    for (int i = 0; i < 8; i++) {
        out[2 * i] = _mm512_unpacklo_epi8(x[i], x[i + 8]);
        out[2 * i + 1] = _mm512_unpackhi_epi8(x[i], x[i + 8]);
    }
}

/* Rows i, i + 16, i + 32 and i + 48: 16 bytes of each. */
OCT_AVX512_INLINE __m512i load_rows(const oct_bytes *x, int64_t i) {
    const uint8_t *at = x->at + i * x->stride;
    int64_t step = 16 * x->stride;
    __m512i rows = _mm512_castsi128_si512(_mm_loadu_si128((const void *)at));
    rows = _mm512_inserti32x4(rows, _mm_loadu_si128((const void *)(at + step)), 1);
    rows = _mm512_inserti32x4(rows, _mm_loadu_si128((const void *)(at + 2 * step)), 2);
    return _mm512_inserti32x4(rows, _mm_loadu_si128((const void *)(at + 3 * step)), 3);
}

/* Four times interleaved, a 16 x 16 square has turned; here four squares at once, so that 64
 * bytes of a column come out together. */
OCT_AVX512_INLINE void turn(const oct_bytes *out, const oct_bytes *x, bool away) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i++) {
        a[i] = load_rows(x, i);
    }
    interleave(b, a);
    interleave(a, b);
    interleave(b, a);
    interleave(a, b);
    for (int i = 0; i < 16; i++) {
        void *at = out->at + i * out->stride;
        if (away) {
            _mm512_stream_si512(at, a[i]);
        } else {
            _mm512_storeu_si512(at, a[i]);
        }
    }
}

OCT_AVX512_INLINE void turn_tiles(const oct_bytes *out, const oct_bytes *x, int64_t rows,
                                  int64_t cols, bool away) {
    for (int64_t r = 0; r < rows; r += 64) {
        for (int64_t c = 0; c < cols; c += 16) {
            oct_bytes from = {x->at + r * x->stride + c, x->stride};
            oct_bytes to = {out->at + c * out->stride + r, out->stride};
            turn(&to, &from, away);
        }
    }
}

/* What is left below and to the right of the whole tiles. */
static void turn_rest(const oct_bytes *out, const oct_bytes *x, int64_t rows, int64_t cols) {
    int64_t whole_rows = rows / 64 * 64, whole_cols = cols / 16 * 16;
    oct_bytes below = {x->at + whole_rows * x->stride, x->stride};
    oct_bytes after = {out->at + whole_rows, out->stride};
    oct_transpose__avx2(&after, &below, rows - whole_rows, cols);
    oct_bytes right = {x->at + whole_cols, x->stride};
    oct_bytes under = {out->at + whole_cols * out->stride, out->stride};
    oct_transpose__avx2(&under, &right, whole_rows, cols - whole_cols);
}

OCT_AVX512 static void transpose__avx512(const oct_bytes *out, const oct_bytes *x, int64_t rows,
                                         int64_t cols) {
    turn_tiles(out, x, rows / 64 * 64, cols / 16 * 16, false);
    turn_rest(out, x, rows, cols);
}

/* Whole cache lines are written without being read first. The fence orders them before whatever
 * tells other threads that the work is done. */
OCT_AVX512 static void transpose_away__avx512(const oct_bytes *out, const oct_bytes *x,
                                              int64_t rows, int64_t cols) {
    bool lines = (uintptr_t)out->at % 64 == 0 && out->stride % 64 == 0;
    if (!lines) {
        transpose__avx512(out, x, rows, cols);
        return;
    }
    turn_tiles(out, x, rows / 64 * 64, cols / 16 * 16, true);
    turn_rest(out, x, rows, cols);
    _mm_sfence();
}

void oct_bytes__avx512(oct_table *table) {
    oct_kernels *k = &table->kernels;
    k->transpose = transpose__avx512;
    k->transpose_away = transpose_away__avx512;
}

#endif
