/* pack.c - an operand decoded into panels, a chunk of rows at a time. */
#include "cpu/pack.h"

#include <string.h>

#include "format/bits.h"

/* One-byte scales in the order of the storage row: in place, or gathered. */
static const uint8_t *scale_codes(const oct_reader *reader, int64_t row, int64_t first,
                                  int64_t count) {
    const oct_view *v = reader->view;
    const uint8_t *codes = v->scale;
    int64_t step = v->lines_down ? v->scales.line_step : v->scales.block_step;
    if (!v->scales.tiles && step == 1) {
        return codes + oct_scale_index(v, row, first);
    }
    for (int64_t n = 0; n < count; n++) {
        reader->room->codes[n] = codes[oct_scale_index(v, row, first + n)];
    }
    return reader->room->codes;
}

/* Powers of two for bf16: what they add to an element's encoding. A scale that does not fit
 * stands for zeros only. */
static void scale_exponents(const oct_reader *reader, int64_t row, int64_t first,
                            int64_t count) {
    const oct_view *v = reader->view;
    int16_t *out = (int16_t *)reader->room->scales;
    if (v->scale_format == OCTET_F32) {
        for (int64_t n = 0; n < count; n++) {
            float scale = ((const float *)v->scale)[oct_scale_index(v, row, first + n)];
            out[n] = (int16_t)(((int)(oct_f32_bits(scale) >> 23) - 127) * 128);
        }
        return;
    }
    const uint8_t *codes = scale_codes(reader, row, first, count);
    for (int64_t n = 0; n < count; n++) {
        out[n] = (int16_t)((codes[n] - 127) * 128);
    }
}

void oct_pack_scales(const oct_reader *reader, const oct_span *span, float *out) {
    const oct_view *v = reader->view;
    int64_t row = span->row, first = span->from >> v->shift;
    int64_t count = ((span->count - 1) >> v->shift) + 1;
    if (v->scale_format == OCTET_F32) {
        for (int64_t n = 0; n < count; n++) {
            out[n] = ((const float *)v->scale)[oct_scale_index(v, row, first + n)];
        }
        return;
    }
    const uint8_t *codes = scale_codes(reader, row, first, count);
    oct_decode_call call = {.out = out, .codes = codes, .count = count};
    reader->packer->f32[v->scale_format](&call);
}

/* The scales of a span into the room. */
static void fetch_scales(const oct_reader *reader, const oct_span *span) {
    const oct_view *v = reader->view;
    int64_t first = span->from >> v->shift;
    int64_t count = ((span->count - 1) >> v->shift) + 1;
    if (!v->scale || span->count <= 0) {
        return;
    }
    if (reader->bf16 && v->format != OCTET_E2M1) {
        scale_exponents(reader, span->row, first, count);
    } else {
        oct_pack_scales(reader, span, reader->room->scales);
    }
}

/* The span's elements times the scales that lie in the room. */
static void decode_span(const oct_reader *reader, const oct_span *span, void *out) {
    const oct_view *v = reader->view;
    const oct_decode *decode = reader->bf16 ? reader->packer->bf16 : reader->packer->f32;
    oct_decode_call call = {
        .out = out,
        .codes = v->data + span->row * v->pitch + oct_code_bytes(v, span->from),
        .count = span->count,
        .scales = v->scale ? reader->room->scales : NULL,
        .shift = v->shift,
    };
    if (span->count > 0) {
        decode[v->format](&call);
    }
}

void oct_pack_row(const oct_reader *reader, const oct_span *span, void *out) {
    fetch_scales(reader, span);
    decode_span(reader, span, out);
}

static int64_t element_bytes(const oct_reader *reader) {
    return reader->bf16 ? 2 : 4;
}

/* The storage rows of one panel, one chunk of them, turned. The chunk ends with zeros. */
static void pack_chunk_along(const oct_reader *reader, const oct_block *chunk,
                             const oct_panels *panel) {
    int64_t filled = chunk->depth * element_bytes(reader), steps = (filled + 3) / 4;
    size_t rest = (size_t)(oct_round_up(steps, 16) * 4 - filled);
    char *row = (char *)reader->room->rows;
    for (int64_t r = 0; r < chunk->count; r++, row += OCT_PACK_CHUNK * 4) {
        oct_span span = {chunk->first + r, chunk->from, chunk->depth};
        oct_expect(reader->view, &span, panel->used / 2);
        oct_pack_row(reader, &span, row);
        if (rest) {
            memset(row + filled, 0, rest);
        }
    }
    reader->packer->turn(panel->out, panel->stride, (const uint32_t *)reader->room->rows,
                         OCT_PACK_CHUNK, steps);
}

/* Storage rows run along the product: panel by panel, chunk by chunk. */
static void pack_along(const oct_reader *reader, const oct_block *block,
                       const oct_panels *panels) {
    int64_t length = OCT_PACK_CHUNK * 4 / element_bytes(reader);
    for (int64_t at = 0, n = 0; at < block->count; at += panels->used, n++) {
        for (int64_t p = 0; p < block->depth; p += length) {
            oct_block chunk = {block->first + at, oct_min(panels->used, block->count - at),
                               block->from + p, oct_min(length, block->depth - p)};
            oct_panels panel = *panels;
            panel.out += n * panels->pitch + p / length * OCT_PACK_CHUNK * panels->stride;
            pack_chunk_along(reader, &chunk, &panel);
        }
    }
}

/* Row p of the block, zero past its depth. The scales that lie in the room are used again where
 * the row shares them. */
static const void *row_across(const oct_reader *reader, const oct_block *block, int64_t p,
                              bool odd) {
    const oct_view *v = reader->view;
    int64_t bytes = element_bytes(reader), skip = block->first & (((int64_t)1 << v->shift) - 1);
    char *out = (char *)reader->room->rows + (odd ? OCT_PACK_ROW * 4 : 0);
    if (p >= block->depth) {
        /* Nothing is read into the two rows any more: they stay zero once they are. */
        if (p < block->depth + 2) {
            memset(out, 0, OCT_PACK_ROW * 4);
        }
        return out;
    }
    oct_span span = {block->from + p, block->first - skip, block->count + skip};
    if (p == 0 || (span.row & (v->row_run - 1)) == 0) {
        fetch_scales(reader, &span);
    }
    oct_expect(v, &span, 12);
    decode_span(reader, &span, out);
    return out + skip * bytes;
}

/* Storage rows run across the product: step by step, every panel at once. */
static void pack_across(const oct_reader *reader, const oct_block *block,
                        const oct_panels *panels) {
    int64_t each = reader->bf16 ? 2 : 1;
    int64_t steps = oct_round_up((block->depth + each - 1) / each, 16);
    int64_t count = oct_size_ceil_div(block->count, panels->used);
    for (int64_t step = 0; step < steps; step++) {
        oct_panels at = *panels;
        at.out += step * panels->stride;
        if (reader->bf16) {
            const void *even = row_across(reader, block, 2 * step, false);
            const void *odd = row_across(reader, block, 2 * step + 1, true);
            reader->packer->zip(&at, count, even, odd);
        } else {
            reader->packer->spread(&at, count, row_across(reader, block, step, false));
        }
    }
}

void oct_pack(const oct_reader *reader, const oct_block *block, const oct_panels *panels) {
    if (reader->view->across) {
        pack_across(reader, block, panels);
    } else {
        pack_along(reader, block, panels);
    }
}
