/* quantize.c - every part of a quantized tensor but its amaxes, by the scheme's function. */
#include "cuda/quantize.h"

typedef octet_status (*scheme_fn)(const oct_cuda_quantize_call *calls, int count,
                                  octet_error *err);

static const scheme_fn schemes[OCTET_SCHEMES] = {
    [OCTET_FP8_TENSOR] = oct_cuda_quantize_per_tensor,
    [OCTET_FP8_DELAYED] = oct_cuda_quantize_per_tensor,
    [OCTET_FP8_BLOCK] = oct_cuda_quantize_block,
    [OCTET_MXFP8] = oct_cuda_quantize_mxfp8,
    [OCTET_NVFP4] = oct_cuda_quantize_nvfp4,
    [OCTET_MXFP4] = oct_cuda_quantize_mxfp4,
};

uint32_t oct_cuda_tiles(int64_t rows, int64_t cols) {
    return (uint32_t)(oct_size_ceil_div(rows, OCT_TILE) * oct_size_ceil_div(cols, OCT_TILE));
}

uint32_t oct_cuda_slabs(oct_quantize_params *p, uint8_t dtype) {
    int64_t cols = OCT_SLAB_COLS(dtype == OCTET_F32 ? 4 : 2);
    int64_t across = oct_size_ceil_div(p->cols, cols);
    p->across = (uint32_t)(across ? across : 1);
    return (uint32_t)(oct_size_ceil_div(p->rows, OCT_TILE) * across);
}

uint32_t oct_cuda_ahead(const oct_cuda_quantize_call *call) {
    return (uint32_t)oct_cuda_facts_of(call->on->cuda)->processors;
}

/* As many rounds as it takes, and then no more blocks than that needs. */
void oct_cuda_pipe(oct_cuda_launch *launch, const octet_cuda *cuda) {
    const oct_cuda_facts *facts = oct_cuda_facts_of(cuda);
    uint32_t tiles = launch->grid[0], most = (uint32_t)facts->processors * OCT_PIPE_RESIDENT;
    if (facts->shared_bytes >= OCT_PIPE_LEAST && tiles > most) {
        uint32_t rounds = (tiles + most - 1) / most;
        launch->grid[0] = (tiles + rounds - 1) / rounds;
        launch->shared_bytes = OCT_NEXT_BYTES;
    }
}

uint32_t oct_cuda_tile_threads(uint8_t dtype) {
    return dtype == OCTET_F32 ? 256 : 128;
}

/* The largest unit, from `most` down to `least`, at whose multiples lines that are `bytes` long
 * begin; 0 where there is none. */
static uint8_t unit_of(const void *data, int64_t bytes, unsigned most, unsigned least) {
    for (unsigned unit = most; unit >= least; unit /= 2) {
        if ((uintptr_t)data % unit == 0 && bytes % unit == 0) {
            return (uint8_t)unit;
        }
    }
    return 0;
}

/* What a patch's codes of one line may be written by. */
static uint8_t codes_unit(const oct_matrix *dst, octet_use use) {
    const octet_quantizer *q = &dst->quantizer;
    const void *data = dst->parts[oct_data_part(use)];
    if (oct_scheme_of(q)->packed) {
        return unit_of(data, oct_line_bytes(dst, use), 8, 8);
    }
    return oct_is_turned(q, use) ? unit_of(data, dst->rows, 16, 4)
                                 : unit_of(data, dst->cols, 8, 8);
}

oct_quantize_params oct_cuda_quantize_params(const oct_matrix *dst, const oct_matrix *source) {
    oct_quantize_params p = {.source = source->parts[0], .rows = source->rows};
    int64_t size = source->dtype == OCTET_F32 ? 4 : 2;
    int64_t across = oct_size_ceil_div(source->cols, OCT_TILE);
    p.cols = source->cols;
    p.stride = source->stride;
    p.row = dst->parts[OCTET_PART_ROW_DATA];
    p.col = dst->parts[OCTET_PART_COL_DATA];
    p.row_scale = dst->parts[OCTET_PART_ROW_SCALE];
    p.col_scale = dst->parts[OCTET_PART_COL_SCALE];
    if (dst->quantizer.block_cols) {
        p.row_at = oct_scales_of(dst, OCTET_USE_ROW);
        p.col_at = oct_scales_of(dst, OCTET_USE_COL);
    }
    p.across = (uint32_t)(across ? across : 1);
    p.wide_source = unit_of(p.source, p.stride * size, 16, 16) != 0;
    p.wide_row = codes_unit(dst, OCTET_USE_ROW);
    p.wide_col = codes_unit(dst, OCTET_USE_COL);
    return p;
}

octet_status oct_cuda_launch_fp8(const oct_cuda_quantize_call *call, oct_cuda_launch *launch,
                                 const char *const names[3][2], octet_error *err) {
    launch->input = call->source->dtype;
    launch->kernel =
        names[oct_dtype_index(launch->input)][call->dst->quantizer.format == OCTET_E5M2];
    return oct_cuda_launch_kernel(call->on, launch, err);
}

static bool is_folded(const oct_matrix *copy) {
    return copy->quantizer.scheme != OCTET_SCHEME_NONE;
}

static bool is_wanted(const oct_matrix *copy) {
    return copy && (copy->parts[OCTET_PART_VALUES] || is_folded(copy));
}

/* Bf16 in whole vectors, beside codes that are stored so. */
static bool copy_fits(const oct_matrix *copy, const oct_matrix *dst, octet_use use) {
    return !is_wanted(copy) ||
           (!is_folded(copy) && copy->dtype == OCTET_BF16 && copy->stride == dst->cols &&
            unit_of(copy->parts[OCTET_PART_VALUES], copy->cols * 2, 16, 16) &&
            codes_unit(dst, use));
}

/* Of what is made in both directions, not the columns alone. */
oct_copies oct_cuda_copies(const oct_cuda_quantize_call *call) {
    const octet_quantizer *q = &call->dst->quantizer;
    const oct_matrix *row = call->live->row_copy, *col = call->live->col_copy;
    bool casts = oct_has_byte_scales(q) && !q->four_over_six;
    bool whole = call->source->dtype != OCTET_F32 && call->source->rows % 16 == 0;
    oct_copies none = {NULL, NULL};
    bool alone = is_wanted(col) && !is_wanted(row) && call->dst->parts[OCTET_PART_ROW_DATA];
    if (!casts || !whole || alone || oct_cuda_copy_waits(call->source) ||
        !copy_fits(row, call->dst, OCTET_USE_ROW) ||
        !copy_fits(col, call->dst, OCTET_USE_COL)) {
        return none;
    }
    return (oct_copies){is_wanted(row) ? row->parts[OCTET_PART_VALUES] : NULL,
                        is_wanted(col) ? col->parts[OCTET_PART_VALUES] : NULL};
}

/* Of whole vectors, beside codes that are stored so; nothing is rounded up then. */
static bool fold_fits(const oct_matrix *copy, const oct_matrix *dst, octet_use use) {
    return !is_wanted(copy) || (is_folded(copy) && codes_unit(dst, use));
}

static void *part_of(const oct_matrix *copy, octet_part part) {
    return is_wanted(copy) ? copy->parts[part] : NULL;
}

oct_folds oct_cuda_folds(const oct_cuda_quantize_call *call) {
    const oct_matrix *row = call->live->row_copy, *col = call->live->col_copy;
    const oct_matrix *source = call->source;
    bool any = (is_wanted(row) && is_folded(row)) || (is_wanted(col) && is_folded(col));
    bool whole = source->dtype != OCTET_F32 && source->rows % 16 == 0 && source->cols % 16 == 0;
    bool alone = is_wanted(col) && !is_wanted(row) && call->dst->parts[OCTET_PART_ROW_DATA];
    if (!any || !whole || alone || oct_cuda_copy_waits(source) ||
        !fold_fits(row, call->dst, OCTET_USE_ROW) ||
        !fold_fits(col, call->dst, OCTET_USE_COL)) {
        return (oct_folds){NULL, NULL, NULL, NULL};
    }
    return (oct_folds){part_of(row, OCTET_PART_ROW_DATA), part_of(col, OCTET_PART_COL_DATA),
                       part_of(row, OCTET_PART_ROW_SCALE), part_of(col, OCTET_PART_COL_SCALE)};
}

void oct_cuda_leave_out(oct_quantize_params *p, const oct_copies *copies,
                        const oct_cuda_quantize_call *call) {
    p->row = copies->row && call->live->row_passes ? NULL : p->row;
    p->col = copies->col && call->live->col_passes ? NULL : p->col;
}

static octet_status make_copy(const oct_cuda_quantize_call *call, const oct_matrix *copy,
                              octet_use use, octet_error *err) {
    return is_folded(copy) ? oct_cuda_fold(call->on, copy, call->dst, use, err)
                           : oct_cuda_decode(call->on, copy, call->dst, use, err);
}

/* Copies that a cast does not make are decoded from its bytes, or folded. */
static octet_status decode_copies(const oct_cuda_quantize_call *call, octet_error *err) {
    const oct_matrix *row = call->live->row_copy, *col = call->live->col_copy;
    oct_copies made = oct_cuda_copies(call);
    oct_folds folds = oct_cuda_folds(call);
    octet_status status = OCTET_OK;
    if (oct_cuda_copy_waits(call->source)) {
        return status;
    }
    if (is_wanted(row) && !made.row && !folds.row) {
        status = make_copy(call, row, OCTET_USE_ROW, err);
    }
    if (!status && is_wanted(col) && !made.col && !folds.col) {
        status = make_copy(call, col, OCTET_USE_COL, err);
    }
    return status;
}

/* One, or two of a kind. */
static octet_status quantize(const oct_cuda_quantize_call *calls, int count, octet_error *err) {
    octet_status status = schemes[calls->dst->quantizer.scheme](calls, count, err);
    for (int i = 0; i < count && !status; i++) {
        status = decode_copies(&calls[i], err);
    }
    return status;
}

octet_status oct_cuda_quantize(const oct_cuda_on *on, const oct_matrix *dst,
                               const oct_matrix *source, const oct_cuda_live *live,
                               octet_error *err) {
    oct_cuda_quantize_call call = {on, dst, source, live};
    return quantize(&call, 1, err);
}

static bool is_alike(const oct_cuda_quantizing *a, const oct_cuda_quantizing *b) {
    const octet_quantizer *p = &a->dst->quantizer, *q = &b->dst->quantizer;
    return schemes[p->scheme] == schemes[q->scheme] && p->format == q->format &&
           a->source->dtype == b->source->dtype;
}

octet_status oct_cuda_quantize_two(const oct_cuda_on *on, const oct_cuda_quantizing two[2],
                                   octet_error *err) {
    oct_cuda_quantize_call calls[2];
    for (int i = 0; i < 2; i++) {
        const oct_cuda_quantizing *of = &two[1 - i];
        calls[i] = (oct_cuda_quantize_call){on, of->dst, of->source, &of->live};
    }
    if (is_alike(&two[0], &two[1])) {
        return quantize(calls, 2, err);
    }
    octet_status status = quantize(&calls[0], 1, err);
    return status ? status : quantize(&calls[1], 1, err);
}
