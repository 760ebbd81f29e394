/* pack.h - an operand as the product sees it, and its decoding into panels.
 *
 * A product is dst(i, j) = sum over p of a(i, p) b(j, p). A view says where the element (outer
 * index, p) of one operand lies: its bytes form storage rows, and either a storage row runs
 * along the product (one outer index, all p) or across it (one p, all outer indices).
 * A panel is a slice of the outer indices laid out for the micro-kernel: for each step of the
 * product the words of its outer indices, where a word is a float or the two bf16 of
 * consecutive p. */
#ifndef OCT_CPU_PACK_H
#define OCT_CPU_PACK_H

#include "cpu/cpu.h"
#include "cpu/scales.h"

#define OCT_PACK_CHUNK 128  /* words of a storage row decoded at a time: whole blocks */
#define OCT_PACK_OUTER 1024 /* outer indices packed at a time, at most */
#define OCT_PACK_SLACK 128  /* elements before and after them that may be decoded as well */
#define OCT_PACK_ROW (OCT_PACK_OUTER + 2 * OCT_PACK_SLACK)

typedef struct oct_view {
    const uint8_t *data;
    int64_t pitch; /* bytes from one storage row to the next */
    int64_t outer, depth;
    const void *scale; /* block scales in the order of `scales`, or NULL */
    oct_scales scales;
    const float *factors; /* left out of the elements: one per outer index, or NULL, */
    double factor;        /* and one of the whole operand */
    int64_t row_run;      /* storage rows that share their scales, 1 << row_shift */
    int row_shift;
    int shift; /* log2 of the elements of a storage row that share one */
    octet_dtype format, scale_format;
    bool across;     /* storage rows run across the product */
    bool lines_down; /* blocks lie along the storage's columns */
} oct_view;

/* Decodes `count` contiguous elements; element c is multiplied by scale number c >> shift, if
 * there are scales; shift is 0 or at least 4. To F32: in fp32, scales are floats. To BF16:
 * exactly; scales of E2M1 are floats, those of E4M3 and E5M2 are int16 exponents times 128,
 * and every product but 0, Inf and NaN is a normal bf16. Codes past count are not read; up to
 * 31 elements past it may be written. NaN codes become NaN. */
typedef struct oct_decode_call {
    void *out;
    const uint8_t *codes;
    int64_t count;
    const void *scales; /* or NULL; readable for 31 elements past count */
    int shift;
} oct_decode_call;

typedef void (*oct_decode)(const oct_decode_call *call);

/* Panels of `used` outer indices; each step of a panel is `stride` words, of which those past
 * `used` are there for alignment only: nobody uses what is computed from them. */
typedef struct oct_panels {
    uint32_t *out;
    int64_t pitch; /* words from one panel to the next */
    int used, stride;
} oct_panels;

/* What an instruction set brings to packing. */
typedef struct oct_packer {
    oct_decode f32[OCTET_DTYPES], bf16[OCTET_DTYPES]; /* by octet_dtype */
    /* panel[step][0 .. stride) = rows[0 .. stride)[step], pitch in words; steps is rounded up
     * to 16. */
    void (*turn)(uint32_t *panel, int stride, const uint32_t *rows, int64_t pitch,
                 int64_t steps);
    /* One step of `count` panels: from a row of floats, or from two rows of bf16. */
    void (*spread)(const oct_panels *panels, int64_t count, const float *row);
    void (*zip)(const oct_panels *panels, int64_t count, const uint16_t *even,
                const uint16_t *odd);
} oct_packer;

/* Room for what packing needs besides the panels, 64-byte aligned. */
typedef struct oct_pack_room {
    float rows[OCT_PACK_CHUNK * 64]; /* decoded rows: 64 along, or 2 across the product */
    float scales[OCT_PACK_ROW];
    uint8_t codes[OCT_PACK_ROW]; /* scales before they are decoded */
} oct_pack_room;

/* How an operand is read. */
typedef struct oct_reader {
    const oct_packer *packer;
    const oct_view *view;
    oct_pack_room *room;
    bool bf16; /* else floats */
} oct_reader;

/* A part of a storage row: elements [from, from + count), from a multiple of 1 << shift. */
typedef struct oct_span {
    int64_t row, from, count;
} oct_span;

/* A part of an operand: outer indices [first, first + count), p in [from, from + depth), from a
 * multiple of OCT_PACK_CHUNK. */
typedef struct oct_block {
    int64_t first, count, from, depth;
} oct_block;

/* Where scale number n of a storage row lies, counted from its element 0. */
static inline int64_t oct_scale_index(const oct_view *v, int64_t row, int64_t n) {
    const oct_scales *s = &v->scales;
    int64_t run = row >> v->row_shift, line = run << v->row_shift;
    if (s->tiles) {
        return v->lines_down ? oct_scale_at(s, n, run) : oct_scale_at(s, line, n);
    }
    return v->lines_down ? n * s->line_step + run * s->block_step
                         : (s->share > 1 ? run : line) * s->line_step + n * s->block_step;
}

/* The bytes of `count` elements; an even number of them where two share a byte. */
static inline int64_t oct_code_bytes(const oct_view *v, int64_t count) {
    static const uint8_t bits[OCTET_DTYPES] = {
        [OCTET_F32] = 32, [OCTET_BF16] = 16, [OCTET_F16] = 16,
        [OCTET_E4M3] = 8, [OCTET_E5M2] = 8,  [OCTET_E2M1] = 4,
    };
    return count * bits[v->format] / 8;
}

/* Asks the memory for the same span of a later row: short pieces of distant rows are not
 * foreseen by the machine. Inlined, for a compiler may take a function that only prefetches for
 * one that does nothing. */
#if defined(__GNUC__)
__attribute__((always_inline))
#endif
static inline void
oct_expect(const oct_view *v, const oct_span *span, int64_t rows_later) {
#if defined(__GNUC__)
    int64_t rows = v->across ? v->depth : v->outer;
    const uint8_t *codes = v->data + oct_min(span->row + rows_later, rows - 1) * v->pitch;
    int64_t end = oct_code_bytes(v, span->from + span->count);
    for (int64_t at = oct_code_bytes(v, span->from); at < end; at += 64) {
        __builtin_prefetch(codes + at);
    }
    __builtin_prefetch(codes + end - 1);
#else
    (void)v, (void)span, (void)rows_later;
#endif
}

/* The operand m read through the bytes of `use`; by_rows: the product runs along its rows. */
oct_view oct_view_make(const oct_matrix *m, octet_use use, bool by_rows);
/* Its outer indices [first, first + count) alone; first begins a block, and a tile of 128 where
 * scales lie in the order of tensor cores. */
void oct_view_cut(oct_view *view, int64_t first, int64_t count);
/* Whether every element times its block scale is zero, a normal bf16, Inf or NaN: exactly. A
 * plain bf16 fits although it may be subnormal. */
bool oct_view_fits_bf16(const oct_view *view);
/* The same of one outer index, along which its storage row runs. */
bool oct_row_fits_bf16(const oct_view *view, int64_t row);
/* Whether every element times its block scale is 0, Inf or NaN, or of a magnitude within
 * 2^-103 .. 2^74. */
bool oct_view_is_moderate(const oct_view *view);
bool oct_row_is_moderate(const oct_view *view, int64_t row);
/* The same of one span of an operand with block scales, and of what shares them. */
bool oct_span_fits_bf16(const oct_view *view, const oct_span *span);

/* The scales of a span, one for each block, as floats; up to 31 more may be written. The span
 * is at most OCT_PACK_ROW blocks long. */
void oct_pack_scales(const oct_reader *reader, const oct_span *span, float *out);
/* The span's elements times their scales into out, which has OCT_PACK_SLACK elements more. */
void oct_pack_row(const oct_reader *reader, const oct_span *span, void *out);
/* The block as panels. Steps past its depth, up to a multiple of 16, are zero; the outer
 * indices that the last panel lacks may hold anything, for nobody uses what is computed from
 * them. */
void oct_pack(const oct_reader *reader, const oct_block *block, const oct_panels *panels);

#endif
