/* dequantize.c - a plain tensor from the bytes of one direction, on a GPU. */
#include "cuda/kernels/dequantize.h"
#include "core/size.h"
#include "cuda/device.h"
#include "format/scaling.h"
#include "format/scheme.h"

static oct_decode_params params_of(const oct_matrix *dst, const oct_matrix *source,
                                   octet_use use) {
    const octet_quantizer *q = &source->quantizer;
    const oct_scheme *scheme = oct_scheme_of(q);
    bool turned = oct_is_turned(q, use), by_column = use == OCTET_USE_COL && !turned;
    oct_decode_params p = {.shape = oct_rows_of(dst->rows, source->cols),
                           .dst = oct_plain_of(dst),
                           .codes = source->parts[oct_data_part(use)],
                           .length = dst->rows,
                           .scale_format =
                               scheme->one_scale ? OCTET_NONE : scheme->scale_format,
                           .format = q->format,
                           .row_scaled = q->row_scaled,
                           .by_column = by_column};
    p.scale = source->parts[scheme->one_scale ? OCTET_PART_SCALE : oct_scale_part(use)];
    p.block_shift = scheme->one_scale ? 7 : oct_log2(q->block_cols);
    p.line_bytes = oct_line_bytes(source, by_column ? OCTET_USE_ROW : use);
    if (!scheme->one_scale) {
        p.scales = oct_scales_of(source, use);
    }
    uintptr_t width = (turned ? 16u : 8u) / (scheme->packed ? 2u : 1u);
    p.wide = ((uintptr_t)p.codes | (uintptr_t)p.line_bytes) % width == 0;
    return p;
}

/* The kernel that streams whole rows into bf16; NULL where it does not apply. */
static const char *stream_of(const oct_decode_params *p) {
    static const char *const names[3][2] = {
        {"decode_e4m3_bf16", "decode_e5m2_bf16"},
        {"decode_e4m3_rows_bf16", "decode_e5m2_rows_bf16"},
        {"decode_e4m3_cols_bf16", "decode_e5m2_cols_bf16"},
    };
    bool whole = p->dst.dtype == OCTET_BF16 && p->dst.wide && p->wide &&
                 p->shape.cols % 8 == 0 && p->shape.rows <= (int64_t)OCT_STREAM_ROWS * 65535;
    if (!whole || p->scale_format == OCTET_F32) {
        return NULL;
    }
    if (p->format == OCTET_E2M1) {
        return p->amax                         ? NULL
               : p->scale_format == OCTET_E8M0 ? "decode_nibbles32_bf16"
                                               : "decode_nibbles_bf16";
    }
    int factors = p->scale_format == OCTET_E8M0 ? 1 + p->by_column : 0;
    return names[factors][p->format == OCTET_E5M2];
}

static octet_status launch_over(const oct_cuda_on *on, const oct_decode_params *p,
                                oct_cuda_launch launch, octet_error *err) {
    launch.module = OCT_MODULE_dequantize;
    launch.grid[2] = 1;
    launch.params = p;
    launch.params_bytes = sizeof *p;
    return oct_cuda_launch_kernel(on, &launch, err);
}

static octet_status decode_rows(const oct_cuda_on *on, const oct_decode_params *p,
                                octet_error *err) {
    const char *stream = stream_of(p);
    oct_cuda_launch launch = {.kernel = "decode_rows", .threads = OCT_ROWS_THREADS};
    launch.grid[0] = oct_rows_blocks(&p->shape);
    launch.grid[1] = 1;
    if (stream) {
        launch.kernel = stream;
        launch.threads = OCT_STREAM_THREADS;
        launch.grid[0] = (uint32_t)oct_size_ceil_div(p->shape.cols, OCT_STREAM_COLS);
        launch.grid[1] = (uint32_t)oct_size_ceil_div(p->shape.rows, OCT_STREAM_ROWS);
    }
    return launch_over(on, p, launch, err);
}

static octet_status decode_tiles(const oct_cuda_on *on, const oct_decode_params *p,
                                 const char *kernel, octet_error *err) {
    int64_t tiles = oct_size_ceil_div(p->shape.rows, OCT_DECODE_SIDE) *
                    oct_size_ceil_div(p->shape.cols, OCT_DECODE_SIDE);
    oct_cuda_launch launch = {.kernel = kernel, .threads = OCT_DECODE_THREADS};
    launch.grid[0] = (uint32_t)tiles;
    launch.grid[1] = 1;
    return launch_over(on, p, launch, err);
}

/* Whole pieces of lines of nibbles, 32 rows of 8, into bf16. */
static bool may_turn(const oct_decode_params *p) {
    uintptr_t all = (uintptr_t)p->codes | (uintptr_t)p->line_bytes;
    return p->format == OCTET_E2M1 && !p->amax && p->dst.dtype == OCTET_BF16 && p->dst.wide &&
           all % 16 == 0 && (uintptr_t)p->scale % 2 == 0 && p->shape.cols % 8 == 0 &&
           p->shape.rows % 32 == 0 && p->shape.rows <= (int64_t)OCT_TURN_ROWS * 65535;
}

static octet_status decode_turned(const oct_cuda_on *on, const oct_decode_params *p,
                                  octet_error *err) {
    if (!may_turn(p)) {
        return decode_tiles(on, p, "decode_turned", err);
    }
    oct_cuda_launch launch = {.kernel = "decode_turned_bf16", .threads = OCT_TURN_THREADS};
    launch.grid[0] = (uint32_t)oct_size_ceil_div(p->shape.cols, OCT_TURN_COLS);
    launch.grid[1] = (uint32_t)oct_size_ceil_div(p->shape.rows, OCT_TURN_ROWS);
    return launch_over(on, p, launch, err);
}

static octet_status decode(const oct_cuda_on *on, const oct_decode_params *p, bool turned,
                           octet_error *err) {
    return turned ? decode_turned(on, p, err) : decode_rows(on, p, err);
}

octet_status oct_cuda_dequantize(const oct_cuda_on *on, const oct_matrix *dst,
                                 const oct_matrix *source, octet_use use, octet_error *err) {
    const octet_quantizer *q = &source->quantizer;
    oct_decode_params p = params_of(dst, source, use);
    p.amax = source->parts[oct_amax_part(use)];
    p.unit = oct_nv_unit(q);
    if (q->hadamard && use == OCTET_USE_COL) {
        p.signs = oct_hadamard_signs(q);
        p.length = oct_round_up(dst->rows, OCT_HADAMARD_ROWS);
        return decode_tiles(on, &p, "decode_transformed", err);
    }
    return decode(on, &p, oct_is_turned(&source->quantizer, use), err);
}

octet_status oct_cuda_decode(const oct_cuda_on *on, const oct_matrix *dst,
                             const oct_matrix *source, octet_use use, octet_error *err) {
    if (source->quantizer.scheme == OCTET_SCHEME_NONE) {
        return oct_cuda_cast(on, dst, source, err);
    }
    oct_decode_params p = params_of(dst, source, use);
    p.scale = oct_scheme_of(&source->quantizer)->one_scale ? NULL : p.scale;
    return decode(on, &p, oct_is_turned(&source->quantizer, use), err);
}
