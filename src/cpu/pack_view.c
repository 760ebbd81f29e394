/* pack_view.c - where the elements and scales of an operand lie. */
#include "cpu/pack.h"

#include <string.h>

#include "format/bits.h"

static void view_plain(oct_view *v, const oct_matrix *m) {
    v->data = m->parts[OCTET_PART_VALUES];
    v->format = (octet_dtype)m->dtype;
    v->pitch = m->stride * (m->dtype == OCTET_F32 ? 4 : 2);
}

static void view_per_tensor(oct_view *v, const oct_matrix *m) {
    v->factor = (double)*(const float *)m->parts[OCTET_PART_SCALE];
}

/* Square blocks: the scales of a block's first storage row serve all its rows. */
static void view_blocks(oct_view *v, const oct_matrix *m, octet_use use) {
    const octet_quantizer *q = &m->quantizer;
    v->scale = m->parts[oct_scale_part(use)];
    v->scales = oct_scales_of(m, use);
    v->scale_format = (octet_dtype)oct_scheme_of(q)->scale_format;
    v->lines_down = use == OCTET_USE_COL && oct_scheme_of(q)->as_rows;
    v->shift = v->lines_down ? 0 : oct_log2(q->block_cols);
    v->row_run = v->lines_down ? q->block_cols : q->block_rows;
    v->row_shift = oct_log2(v->row_run);
}

/* An element is code times block scale times amax / (6 Emax); the last factor is left out. */
static void view_amax(oct_view *v, const oct_matrix *m, octet_use use) {
    const float *amax = m->parts[oct_amax_part(use)];
    v->factor = 1.0 / (6.0 * (m->quantizer.max256 ? 256.0 : 448.0));
    if (m->quantizer.row_scaled) {
        v->factors = amax;
    } else {
        v->factor *= (double)*amax;
    }
}

oct_view oct_view_make(const oct_matrix *m, octet_use use, bool by_rows) {
    const octet_quantizer *q = &m->quantizer;
    bool turned = oct_is_turned(q, use);
    oct_view v = {.outer = by_rows ? m->cols : m->rows,
                  .depth = by_rows ? m->rows : m->cols,
                  .factor = 1.0,
                  .row_run = 1,
                  .across = by_rows != turned};
    if (q->scheme == OCTET_SCHEME_NONE) {
        view_plain(&v, m);
        return v;
    }
    v.data = m->parts[oct_data_part(use)];
    v.format = (octet_dtype)q->format;
    v.pitch = oct_line_bytes(m, turned ? OCTET_USE_COL : OCTET_USE_ROW);
    if (oct_scheme_of(q)->one_scale) {
        view_per_tensor(&v, m);
        return v;
    }
    view_blocks(&v, m, use);
    if (oct_scheme_of(q)->amax) {
        view_amax(&v, m, use);
    }
    return v;
}

void oct_view_cut(oct_view *v, int64_t first, int64_t count) {
    int64_t each = v->scale_format == OCTET_F32 ? 4 : 1;
    int64_t scale =
        v->across ? oct_scale_index(v, 0, first >> v->shift) : oct_scale_index(v, first, 0);
    v->data += v->across ? oct_code_bytes(v, first) : first * v->pitch;
    v->scale = v->scale ? (const char *)v->scale + scale * each : NULL;
    v->factors = v->factors ? v->factors + first : NULL;
    v->outer = count;
}

/* Which scales are looked for, by their exponent field. */
typedef struct scale_range {
    uint8_t least, most;
    bool power; /* of two */
} scale_range;

/* Those that keep every code of the format a normal bf16: the least code is 2^-9, 2^-16 or
 * 2^-1, the largest below 2^9, 2^16 or 2^3. */
static scale_range fitting(const oct_view *v) {
    uint8_t reach = v->format == OCTET_E4M3 ? 9 : v->format == OCTET_E5M2 ? 16 : 3;
    return (scale_range){(uint8_t)(1 + reach), (uint8_t)(255 - reach), true};
}

/* Exponent fields of a moderate float. */
enum { LEAST = 24, MOST = 200 };

/* Whether the codes that one scale stands for are all zero. */
static bool block_is_zero(const oct_view *v, int64_t row, int64_t block) {
    int64_t rows = v->across ? v->depth : v->outer, cols = v->across ? v->outer : v->depth;
    int64_t last_row = oct_min(row + v->row_run, rows);
    int64_t last_col = oct_min((block + 1) << v->shift, cols);
    bool packed = v->format == OCTET_E2M1;
    int64_t first = oct_code_bytes(v, block << v->shift);
    int64_t last = oct_code_bytes(v, last_col + (packed && last_col % 2));
    uint32_t found = 0;
    for (int64_t r = row; r < last_row; r++) {
        for (int64_t c = first; c < last; c++) {
            found |= v->data[r * v->pitch + c] & (packed ? 0x77u : 0x7fu);
        }
    }
    return found == 0;
}

static bool scale_fits(const oct_view *v, int64_t row, int64_t block, scale_range range) {
    int64_t at = oct_scale_index(v, row, block);
    if (v->scale_format == OCTET_E8M0) {
        uint32_t exponent = ((const uint8_t *)v->scale)[at];
        return (exponent >= range.least && exponent <= range.most) ||
               (exponent != 255 && block_is_zero(v, row, block));
    }
    uint32_t bits = oct_f32_bits(((const float *)v->scale)[at]), exponent = bits >> 23;
    return (!range.power || (bits & 0x007fffffu) == 0) && exponent >= range.least &&
           exponent <= range.most;
}

/* Whether all of 32 codes of scales fit: the loop that finds that nothing is unusual. */
static bool codes_fit(const uint8_t *codes, scale_range range) {
    uint8_t width = (uint8_t)(range.most - range.least);
    uint8_t bad[32];
    for (int n = 0; n < 32; n++) {
        bad[n] = (uint8_t)(codes[n] - range.least) > width;
    }
    uint64_t words[4];
    memcpy(words, bad, sizeof words);
    return (words[0] | words[1] | words[2] | words[3]) == 0;
}

static bool span_fits(const oct_view *view, const oct_span *span, scale_range range) {
    int64_t step = view->lines_down ? view->scales.line_step : view->scales.block_step;
    bool dense = view->scale_format == OCTET_E8M0 && !view->scales.tiles && step == 1;
    int64_t row = span->row >> view->row_shift << view->row_shift;
    int64_t block = span->from >> view->shift;
    int64_t end = ((span->from + span->count - 1) >> view->shift) + 1;
    const uint8_t *codes = view->scale;
    while (block < end) {
        bool whole = dense && end - block >= 32;
        if (whole && codes_fit(codes + oct_scale_index(view, row, block), range)) {
            block += 32;
            continue;
        }
        for (int64_t last = whole ? block + 32 : end; block < last; block++) {
            if (!scale_fits(view, row, block, range)) {
                return false;
            }
        }
    }
    return true;
}

bool oct_span_fits_bf16(const oct_view *view, const oct_span *span) {
    return span_fits(view, span, fitting(view));
}

/* Of every storage row of a view with blocks. */
static bool view_fits(const oct_view *view, scale_range range) {
    int64_t rows = view->across ? view->depth : view->outer;
    int64_t cols = view->across ? view->outer : view->depth;
    bool fits = true;
    for (int64_t row = 0; fits && cols && row < rows; row += view->row_run) {
        fits = span_fits(view, &(oct_span){row, 0, cols}, range);
    }
    return fits;
}

/* E2M1 codes times E4M3 scales have 6 bits and lie within 2^-10 .. 2688, so they always fit. */
bool oct_view_fits_bf16(const oct_view *view) {
    if (!view->scale || view->scale_format == OCTET_E4M3) {
        return view->format != OCTET_F32 && view->format != OCTET_F16;
    }
    return view_fits(view, fitting(view));
}

bool oct_row_fits_bf16(const oct_view *view, int64_t row) {
    if (!view->scale || view->scale_format == OCTET_E4M3) {
        return oct_view_fits_bf16(view);
    }
    return view->depth == 0 || oct_span_fits_bf16(view, &(oct_span){row, 0, view->depth});
}

/* A plain F32 or BF16, as the encoding of a float. */
static uint32_t plain_bits(const uint8_t *row, int64_t n, bool wide) {
    uint32_t bits;
    uint16_t upper;
    if (wide) {
        memcpy(&bits, row + n * 4, sizeof bits);
        return bits;
    }
    memcpy(&upper, row + n * 2, sizeof upper);
    return (uint32_t)upper << 16;
}

static bool row_is_moderate(const uint8_t *row, int64_t count, bool wide) {
    uint32_t bad = 0;
    for (int64_t n = 0; n < count; n++) {
        uint32_t magnitude = plain_bits(row, n, wide) & OCT_F32_MAGNITUDE;
        uint32_t exponent = magnitude >> 23;
        bad |= (exponent < LEAST || exponent > MOST) && exponent != 255 && magnitude != 0;
    }
    return !bad;
}

static bool plain_is_moderate(const oct_view *view) {
    int64_t rows = view->across ? view->depth : view->outer;
    int64_t cols = view->across ? view->outer : view->depth;
    bool moderate = true;
    for (int64_t row = 0; moderate && row < rows; row++) {
        const uint8_t *at = view->data + row * view->pitch;
        moderate = row_is_moderate(at, cols, view->format == OCTET_F32);
    }
    return moderate;
}

static const scale_range moderate = {LEAST + 16, MOST - 16, false};

bool oct_row_is_moderate(const oct_view *view, int64_t row) {
    if (view->format == OCTET_F32 || view->format == OCTET_BF16) {
        return row_is_moderate(view->data + row * view->pitch, view->depth,
                               view->format == OCTET_F32);
    }
    bool codes = !view->scale || view->scale_format == OCTET_E4M3 || view->depth == 0;
    return codes || span_fits(view, &(oct_span){row, 0, view->depth}, moderate);
}

/* Codes alone, F16 and E2M1 times E4M3 always are: they lie within 2^-24 .. 2^16. */
bool oct_view_is_moderate(const oct_view *view) {
    if (view->format == OCTET_F32 || view->format == OCTET_BF16) {
        return plain_is_moderate(view);
    }
    if (!view->scale || view->scale_format == OCTET_E4M3) {
        return true;
    }
    return view_fits(view, moderate);
}
