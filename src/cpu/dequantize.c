/* dequantize.c - a plain tensor from the bytes of one direction.
 *
 * A value is fl32(value of the code x factor), rounded once to the tensor's dtype. The factor
 * is the stored scale; NVFP4's is fl32(fl32(scale x amax) x fl32(1 / 2688)). Columnwise codes
 * that carry a Hadamard transform are transformed back in fp32 before they are rounded. */
#include "cpu/schemes.h"
#include "format/hadamard.h"

#define WIDE 256  /* columns of a tile of columnwise bytes */
#define TALL 64   /* its rows at most */
#define PACKED 32 /* of packed codes: a block's at most */
#define ROW_TILE_ROWS 4
#define ROW_TILE_COLS 1024
#define FACTORS 256 /* of a tile, in either direction */
#define CODES (TALL * WIDE)

typedef struct decode_work {
    const oct_matrix *dst, *source;
    octet_use use;
    const oct_kernels *kernels;
    oct_scales scales;
    oct_grid grid;
} decode_work;

static float factor_at(const decode_work *work, int64_t line, int64_t block) {
    const oct_matrix *m = work->source;
    const void *scales = m->parts[oct_scale_part(work->use)];
    int64_t at = oct_scale_at(&work->scales, line, block);
    uint8_t format = oct_scheme_of(&m->quantizer)->scale_format;
    if (format == OCTET_F32) {
        return ((const float *)scales)[at];
    }
    uint8_t code = ((const uint8_t *)scales)[at];
    if (format == OCTET_E8M0) {
        return oct_e8m0_decode(code);
    }
    const float *amax = m->parts[oct_amax_part(work->use)];
    float most = amax[m->quantizer.row_scaled ? line : 0];
    return oct_e4m3_decode(code) * most * oct_nv_unit(&m->quantizer);
}

/* Rowwise: a factor per block of each row. Columnwise: one per column, for a tile's rows lie in
 * one block. */
static oct_factors factors_of(float *factors, const decode_work *work, const oct_rect *rect) {
    int64_t block = work->source->quantizer.block_cols;
    if (block == 0) {
        factors[0] = *(const float *)work->source->parts[OCTET_PART_SCALE];
        return (oct_factors){factors, OCT_WHOLE_ROW, 0};
    }
    if (work->use == OCTET_USE_COL) {
        for (int64_t c = 0; c < rect->cols; c++) {
            factors[c] = factor_at(work, rect->col + c, rect->row / block);
        }
        return (oct_factors){factors, 1, 0};
    }
    int64_t across = oct_size_ceil_div(rect->cols, block), first = rect->col / block;
    for (int64_t i = 0; i < rect->rows * across; i++) {
        factors[i] = factor_at(work, rect->row + i / across, first + i % across);
    }
    return (oct_factors){factors, block, across};
}

/* Nibbles to bytes, along the lines of the direction. */
static void unpack_lines(uint8_t *out, const decode_work *work, const oct_rect *at) {
    int64_t stride = oct_line_bytes(work->source, work->use);
    const uint8_t *data = work->source->parts[oct_data_part(work->use)];
    for (int64_t i = 0; i < at->rows; i++) {
        work->kernels->unpack(out + i * at->cols, data + (at->row + i) * stride + at->col / 2,
                              at->cols);
    }
}

/* A tile's codes, one a byte, as the rows lie: where they are, or in scratch. */
static oct_bytes codes_of(uint8_t *scratch, const decode_work *work, const oct_rect *rect) {
    const octet_quantizer *q = &work->source->quantizer;
    bool row = work->use == OCTET_USE_ROW, packed = oct_scheme_of(q)->packed;
    octet_part part = oct_data_part(work->use);
    oct_bytes tile = {scratch, rect->cols};
    if (packed && row) {
        unpack_lines(scratch, work, rect);
    } else if (packed) {
        uint8_t lines[WIDE * PACKED];
        oct_rect turned = {rect->col, rect->row, rect->cols, rect->rows};
        turned.cols = q->hadamard ? OCT_HADAMARD_ROWS : rect->rows;
        unpack_lines(lines, work, &turned);
        work->kernels->transpose(&tile, &(oct_bytes){lines, turned.cols}, turned.rows,
                                 turned.cols);
    } else if (!oct_is_turned(q, work->use)) {
        tile = oct_data_at(work->source, part, rect);
    } else {
        oct_bytes turned = oct_turned_at(work->source, part, rect);
        work->kernels->transpose(&tile, &turned, rect->cols, rect->rows);
    }
    return tile;
}

/* Decodes all 16 rows of a group, transforms its columns back and keeps the rows that exist. */
static void decode_transformed(const decode_work *work, const oct_tile *out,
                               const oct_bytes *codes, const oct_factors *by) {
    float group[OCT_HADAMARD_ROWS * WIDE];
    uint32_t signs = oct_hadamard_signs(&work->source->quantizer);
    oct_tile all = {group, out->cols, OCT_HADAMARD_ROWS, out->cols, OCTET_F32};
    work->kernels->decode(&all, codes, by, OCTET_E2M1);
    for (int64_t c = 0; c < out->cols; c++) {
        float column[OCT_HADAMARD_ROWS];
        for (int64_t r = 0; r < OCT_HADAMARD_ROWS; r++) {
            column[r] = group[r * out->cols + c];
        }
        oct_hadamard_undo(column, signs);
        for (int64_t r = 0; r < out->rows; r++) {
            oct_plain_store(oct_tile_row(out, r), c, column[r], out->dtype);
        }
    }
}

static void decode_task(void *arg, int64_t begin, int64_t end) {
    const decode_work *work = arg;
    const octet_quantizer *q = &work->source->quantizer;
    uint8_t scratch[CODES];
    float factors[FACTORS];
    for (int64_t i = begin; i < end; i++) {
        oct_rect rect = oct_grid_at(&work->grid, i);
        oct_tile out = oct_tile_of(work->dst, &rect);
        oct_bytes codes = codes_of(scratch, work, &rect);
        oct_factors by = factors_of(factors, work, &rect);
        if (q->hadamard && work->use == OCTET_USE_COL) {
            decode_transformed(work, &out, &codes, &by);
        } else {
            work->kernels->decode(&out, &codes, &by, (octet_dtype)q->format);
        }
    }
}

void oct_cpu_dequantize(const oct_matrix *dst, const oct_matrix *source, octet_use use,
                        const oct_threads *threads) {
    const octet_quantizer *q = &source->quantizer;
    decode_work work = {dst, source, use, oct_cpu_kernels(), {0}, {0}};
    bool row = use == OCTET_USE_ROW;
    int64_t tall = q->block_cols && q->block_cols < TALL ? q->block_cols : TALL;
    tall = q->hadamard ? OCT_HADAMARD_ROWS : tall;
    work.grid = (oct_grid){source->rows, source->cols, row ? ROW_TILE_ROWS : tall,
                           row ? ROW_TILE_COLS : WIDE};
    if (q->block_cols) {
        work.scales = oct_scales_of(source, use);
    }
    oct_parallel(threads, oct_grid_count(&work.grid), decode_task, &work);
}
