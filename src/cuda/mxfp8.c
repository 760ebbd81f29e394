/* mxfp8.c - blocks of 32 with one E8M0 scale: along rows, along columns, or squares. */
#include "cuda/kernels/mxfp8.h"

#include "cuda/quantize.h"

static const char *const names[3][2] = {
    {"mxfp8_f32_e4m3", "mxfp8_f32_e5m2"},
    {"mxfp8_bf16_e4m3", "mxfp8_bf16_e5m2"},
    {"mxfp8_f16_e4m3", "mxfp8_f16_e5m2"},
};
static const char *const folded_names[3][2] = {
    {NULL, NULL}, /* fp32 is folded from its bytes */
    {"mxfp8_folded_bf16_e4m3", "mxfp8_folded_bf16_e5m2"},
    {"mxfp8_folded_f16_e4m3", "mxfp8_folded_f16_e5m2"},
};

static oct_mxfp8_params params_of(const oct_cuda_quantize_call *call) {
    oct_mxfp8_params p = {.q = oct_cuda_quantize_params(call->dst, call->source)};
    p.q.sums = call->live->sums;
    p.copies = oct_cuda_copies(call);
    oct_cuda_leave_out(&p.q, &p.copies, call);
    p.q.ahead = p.copies.row || p.copies.col ? 0 : oct_cuda_ahead(call);
    p.square = oct_is_square(&call->dst->quantizer);
    return p;
}

static octet_status cast_applied(const oct_cuda_quantize_call *call, octet_error *err) {
    static const char *const applied[3][2] = {
        {"mxfp8_applied_f32_e4m3", "mxfp8_applied_f32_e5m2"},
        {"mxfp8_applied_bf16_e4m3", "mxfp8_applied_bf16_e5m2"},
        {"mxfp8_applied_f16_e4m3", "mxfp8_applied_f16_e5m2"},
    };
    oct_mxfp8_applied p = {params_of(call), oct_cuda_applied_of(call->live->apply)};
    oct_cuda_launch launch = {.module = OCT_MODULE_mxfp8_applied,
                              .grid = {oct_cuda_tiles(p.of.q.rows, p.of.q.cols), 1, 1},
                              .threads = oct_cuda_tile_threads(call->source->dtype),
                              .params = &p,
                              .params_bytes = sizeof p};
    p.of.q.ahead = 0; /* its source is not read */
    return oct_cuda_launch_fp8(call, &launch, applied, err);
}

static octet_status cast(const oct_cuda_quantize_call *calls, int count, octet_error *err) {
    uint8_t dtype = calls->source->dtype;
    oct_mxfp8_two p = {.of = {params_of(&calls[0])}};
    oct_cuda_launch launch = {.module = OCT_MODULE_mxfp8,
                              .grid = {0, 1, 1},
                              .threads = oct_cuda_tile_threads(dtype),
                              .params = &p,
                              .params_bytes = sizeof p};
    p.split = launch.grid[0] = oct_cuda_tiles(p.of[0].q.rows, p.of[0].q.cols);
    if (count > 1) {
        p.of[1] = params_of(&calls[1]);
        launch.grid[0] += oct_cuda_tiles(p.of[1].q.rows, p.of[1].q.cols);
    }
    return oct_cuda_launch_fp8(calls, &launch, names, err);
}

static oct_mxfp8_folded_params folded_params_of(const oct_cuda_quantize_call *call) {
    oct_mxfp8_folded_params p = {.q = oct_cuda_quantize_params(call->dst, call->source)};
    p.q.sums = call->live->sums;
    p.folds = oct_cuda_folds(call);
    p.q.row = p.folds.row && call->live->row_passes ? NULL : p.q.row;
    p.q.col = p.folds.col && call->live->col_passes ? NULL : p.q.col;
    p.square = oct_is_square(&call->dst->quantizer);
    return p;
}

static octet_status fold_applied(const oct_cuda_quantize_call *call, octet_error *err) {
    static const char *const applied[3][2] = {
        {NULL, NULL},
        {"mxfp8_folded_applied_bf16_e4m3", "mxfp8_folded_applied_bf16_e5m2"},
        {"mxfp8_folded_applied_f16_e4m3", "mxfp8_folded_applied_f16_e5m2"},
    };
    oct_mxfp8_folded_applied p = {folded_params_of(call),
                                  oct_cuda_applied_of(call->live->apply)};
    oct_cuda_launch launch = {.module = OCT_MODULE_mxfp8_folded_applied,
                              .grid = {oct_cuda_tiles(p.of.q.rows, p.of.q.cols), 1, 1},
                              .threads = oct_cuda_tile_threads(call->source->dtype),
                              .params = &p,
                              .params_bytes = sizeof p};
    return oct_cuda_launch_fp8(call, &launch, applied, err);
}

static octet_status cast_and_fold(const oct_cuda_quantize_call *calls, int count,
                                  octet_error *err) {
    uint8_t dtype = calls->source->dtype;
    oct_mxfp8_folded_two p = {.of = {folded_params_of(&calls[0])}};
    oct_cuda_launch launch = {.module = OCT_MODULE_mxfp8_folded,
                              .grid = {0, 1, 1},
                              .threads = oct_cuda_tile_threads(dtype),
                              .params = &p,
                              .params_bytes = sizeof p};
    p.split = launch.grid[0] = oct_cuda_tiles(p.of[0].q.rows, p.of[0].q.cols);
    if (count > 1) {
        p.of[1] = folded_params_of(&calls[1]);
        launch.grid[0] += oct_cuda_tiles(p.of[1].q.rows, p.of[1].q.cols);
    }
    return oct_cuda_launch_fp8(calls, &launch, folded_names, err);
}

static bool folds(const oct_cuda_quantize_call *call) {
    oct_folds made = oct_cuda_folds(call);
    return made.row || made.col;
}

/* Two that are not done by one kernel are done one after the other. */
octet_status oct_cuda_quantize_mxfp8(const oct_cuda_quantize_call *calls, int count,
                                     octet_error *err) {
    bool first = folds(&calls[0]);
    if (calls->live->apply) {
        return first ? fold_applied(calls, err) : cast_applied(calls, err);
    }
    if (count == 1 || first == folds(&calls[1])) {
        return first ? cast_and_fold(calls, count, err) : cast(calls, count, err);
    }
    octet_status status = oct_cuda_quantize_mxfp8(&calls[0], 1, err);
    return status ? status : oct_cuda_quantize_mxfp8(&calls[1], 1, err);
}
