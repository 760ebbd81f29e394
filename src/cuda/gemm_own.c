/* gemm_own.c - which of the project's own kernels multiplies two operands, and its grid. */
#include "core/fail.h"
#include "cuda/gemm.h"

static bool has(const oct_gemm_params *p, octet_dtype format) {
    return p->a.format == format || p->b.format == format;
}

/* Steps after which the sums of an operand's blocks are scaled: a block's length in steps. */
static uint8_t flush_of(const oct_gemm_operand *o) {
    bool apart = o->scale && o->scale_format != OCTET_E4M3;
    return apart ? (uint8_t)((1 << o->shift) / OCT_GEMM_STEP) : 0;
}

static uint8_t flush_both(const oct_gemm_params *p) {
    uint8_t a = flush_of(&p->a), b = flush_of(&p->b);
    return a && b ? (a < b ? a : b) : a | b;
}

/* Tensor cores do not multiply plain f32 here, nor f16, nor bf16 beside blocks whose sums are
 * scaled: those are the library's. */
static bool needs_floats(const oct_gemm_params *p) {
    return has(p, OCTET_F32) || has(p, OCTET_F16) || (has(p, OCTET_BF16) && flush_both(p));
}

static const char *kernel_of(const oct_gemm_params *p) {
    return needs_floats(p)      ? "gemm_f32"
           : has(p, OCTET_BF16) ? "gemm_bf16"
           : p->flush           ? "gemm_f16_scaled"
                                : "gemm_f16";
}

octet_status oct_gemm_own_launch(oct_cuda_launch *out, oct_gemm_params *p, octet_error *err) {
    p->flush = flush_both(p);
    int64_t tile = needs_floats(p) ? OCT_GEMM_TILE_F32 : OCT_GEMM_TILE;
    int64_t rows = oct_size_ceil_div(p->a.outer, tile);
    int64_t cols = oct_size_ceil_div(p->b.outer, tile);
    if (rows > INT32_MAX / (cols ? cols : 1)) {
        return oct_fail(err, OCTET_UNSUPPORTED,
                        "a product of %lld x %lld has more tiles than a grid has blocks",
                        (long long)p->a.outer, (long long)p->b.outer);
    }
    p->rows = (uint32_t)rows;
    p->cols = (uint32_t)cols;
    *out = (oct_cuda_launch){.module = OCT_MODULE_gemm,
                             .kernel = kernel_of(p),
                             .grid = {(uint32_t)(rows * cols), 1, 1},
                             .threads = OCT_GEMM_THREADS,
                             .params = p,
                             .params_bytes = sizeof *p};
    return OCTET_OK;
}

octet_status oct_gemm_own(const oct_cuda_on *on, const oct_cuda_gemm_call *call,
                          octet_error *err) {
    oct_gemm_params params = oct_gemm_params_of(call);
    oct_cuda_launch launch;
    octet_status status = oct_gemm_own_launch(&launch, &params, err);
    return status ? status : oct_cuda_launch_kernel(on, &launch, err);
}
