/* transpose.c - the other direction of bytes that are each other's transpose. */
#include "cpu/schemes.h"

#define SIDE 128

typedef struct turn_work {
    const oct_matrix *dst, *source;
    octet_use have, want;
    const oct_kernels *kernels;
    oct_grid grid; /* of source's lines and elements */
} turn_work;

/* Bytes: a tile of lines becomes a tile of elements. */
static void turn_bytes(const turn_work *work, const oct_rect *at) {
    const uint8_t *from = work->source->parts[oct_data_part(work->have)];
    uint8_t *to = work->dst->parts[oct_data_part(work->want)];
    oct_bytes x = {(uint8_t *)(uintptr_t)from + at->row * work->grid.cols + at->col,
                   work->grid.cols};
    oct_bytes out = {to + at->col * work->grid.rows + at->row, work->grid.rows};
    work->kernels->transpose(&out, &x, at->rows, at->cols);
}

/* Nibbles: unpacked, turned, packed. */
static void turn_nibbles(const turn_work *work, const oct_rect *at) {
    uint8_t lines[SIDE * SIDE], turned[SIDE * SIDE];
    const uint8_t *from = work->source->parts[oct_data_part(work->have)];
    uint8_t *to = work->dst->parts[oct_data_part(work->want)];
    int64_t stride = oct_line_bytes(work->source, work->have);
    for (int64_t i = 0; i < at->rows; i++) {
        work->kernels->unpack(lines + i * SIDE, from + (at->row + i) * stride + at->col / 2,
                              at->cols);
    }
    oct_bytes out = {turned, SIDE}, x = {lines, SIDE};
    work->kernels->transpose(&out, &x, at->rows, at->cols);
    stride = oct_line_bytes(work->dst, work->want);
    for (int64_t i = 0; i < at->cols; i++) {
        work->kernels->pack(to + (at->col + i) * stride + at->row / 2, turned + i * SIDE,
                            at->rows);
    }
}

/* Where both directions are stored as the rows lie. */
static void copy_bytes(const turn_work *work, const oct_rect *at) {
    bool row = work->have == OCTET_USE_ROW;
    oct_rect plain = row ? *at : (oct_rect){at->col, at->row, at->cols, at->rows};
    oct_bytes x = oct_data_at(work->source, oct_data_part(work->have), &plain);
    oct_bytes out = oct_data_at(work->dst, oct_data_part(work->want), &plain);
    for (int64_t r = 0; r < plain.rows; r++) {
        memcpy(out.at + r * out.stride, x.at + r * x.stride, (size_t)plain.cols);
    }
}

static void turn_task(void *arg, int64_t begin, int64_t end) {
    const turn_work *work = arg;
    const oct_scheme *scheme = oct_scheme_of(&work->source->quantizer);
    for (int64_t i = begin; i < end; i++) {
        oct_rect rect = oct_grid_down(&work->grid, i);
        if (scheme->as_rows) {
            copy_bytes(work, &rect);
        } else if (scheme->packed) {
            turn_nibbles(work, &rect);
        } else {
            turn_bytes(work, &rect);
        }
    }
}

/* Square blocks: the scale of (line i, block j) is that of the lines of block j at block i. */
static void turn_scales(const turn_work *work) {
    const octet_quantizer *q = &work->dst->quantizer;
    oct_scales from = oct_scales_of(work->source, work->have);
    oct_scales to = oct_scales_of(work->dst, work->want);
    const uint8_t *x = work->source->parts[oct_scale_part(work->have)];
    uint8_t *out = work->dst->parts[oct_scale_part(work->want)];
    size_t size = (size_t)oct_scale_bytes(q);
    memset(out, 0, (size_t)to.count * size);
    for (int64_t i = 0; i < to.lines; i += (int64_t)1 << to.share) {
        for (int64_t j = 0; j < to.blocks; j++) {
            int64_t at = oct_scale_at(&from, j * q->block_rows, i / q->block_rows);
            memcpy(out + (size_t)oct_scale_at(&to, i, j) * size, x + (size_t)at * size, size);
        }
    }
}

static void copy_float(const oct_matrix *dst, octet_part to, const oct_matrix *source,
                       octet_part from) {
    if (dst->parts[to] && source->parts[from] && dst->parts[to] != source->parts[from]) {
        memcpy(dst->parts[to], source->parts[from], sizeof(float));
    }
}

void oct_cpu_transpose(const oct_matrix *dst, const oct_matrix *source, octet_use have,
                       const oct_threads *threads) {
    bool row = have == OCTET_USE_ROW;
    octet_use want = row ? OCTET_USE_COL : OCTET_USE_ROW;
    turn_work work = {dst, source, have, want, oct_cpu_kernels(), {0}};
    work.grid = (oct_grid){row ? source->rows : source->cols, row ? source->cols : source->rows,
                           SIDE, SIDE};
    oct_parallel(threads, oct_grid_count(&work.grid), turn_task, &work);
    if (source->quantizer.block_cols) {
        turn_scales(&work);
    }
    copy_float(dst, OCTET_PART_SCALE, source, OCTET_PART_SCALE);
    copy_float(dst, oct_amax_part(want), source, oct_amax_part(have));
}
