/* prologue.c - norms and activations of the input, and their gradients, on a GPU. */
#include "cuda/kernels/prologue.h"

#include "core/size.h"
#include "cuda/kernels/bias.h"
#include "cuda/quantize.h"
#include "format/prologue.h"

/* Columns of a plain matrix from `first` on. */
static oct_plain part_of(const oct_matrix *m, int64_t first) {
    oct_matrix part = *m;
    if (part.parts[0]) {
        part.parts[0] = (char *)part.parts[0] + first * (m->dtype == OCTET_F32 ? 4 : 2);
    }
    return oct_plain_of(&part);
}

static oct_plain vector_of(const oct_vector *v, int64_t cols) {
    oct_matrix row = {.dtype = v->dtype, .rows = 1, .cols = cols, .stride = cols};
    row.parts[0] = (void *)(uintptr_t)v->at;
    return oct_plain_of(&row);
}

/* cols: those of f(x). */
static oct_prologue_params params_of(const oct_prologue_call *call, int64_t cols) {
    bool gated = oct_prologue_is_gated(call->prologue);
    oct_prologue_params p = {.shape = oct_rows_of(call->x->rows, cols),
                             .dst = oct_plain_of(call->dst),
                             .x = oct_plain_of(call->x),
                             .gamma = vector_of(&call->gamma, cols),
                             .beta = vector_of(&call->beta, cols),
                             .stats = (float *)(uintptr_t)call->stats,
                             .amax = call->amax,
                             .sums = call->sums,
                             .amaxes = call->amaxes > 1 ? (uint32_t)call->amaxes : 1,
                             .eps = call->eps,
                             .prologue = call->prologue,
                             .zero_centered = call->zero_centered};
    if (gated) {
        p.gate = part_of(call->x, cols);
    }
    if (gated && call->grad) {
        p.gated = part_of(call->dst, cols);
    }
    if (call->grad) {
        p.grad = oct_plain_of(call->grad);
    }
    return p;
}

oct_applied_params oct_cuda_applied_of(const oct_prologue_call *call) {
    bool gated = oct_prologue_is_gated(call->prologue);
    int64_t cols = gated ? call->x->cols / 2 : call->x->cols;
    oct_applied_params f = {.x = oct_plain_of(call->x),
                            .gamma = vector_of(&call->gamma, cols),
                            .beta = vector_of(&call->beta, cols),
                            .stats = call->stats,
                            .prologue = call->prologue,
                            .zero_centered = call->zero_centered};
    if (gated) {
        f.gate = part_of(call->x, cols);
    }
    return f;
}

/* A kernel by the dtype of x, F32 first. */
typedef const char *const by_dtype[3];
#define BY_DTYPE(name) {name "_f32", name "_bf16", name "_f16"}

/* A block for each row. */
static octet_status by_row(const oct_cuda_on *on, const oct_prologue_params *p,
                           by_dtype kernels, octet_error *err) {
    oct_cuda_launch launch = {.module = OCT_MODULE_prologue,
                              .input = p->x.dtype,
                              .kernel = kernels[oct_dtype_index(p->x.dtype)],
                              .grid = {(uint32_t)p->shape.rows, 1, 1},
                              .threads = OCT_LINE_THREADS,
                              .params = p,
                              .params_bytes = sizeof *p};
    return oct_cuda_launch_kernel(on, &launch, err);
}

/* A thread for 8 columns of 4 rows. */
static octet_status by_part(const oct_cuda_on *on, const oct_prologue_params *p,
                            by_dtype kernels, octet_error *err) {
    oct_cuda_launch launch = {.module = OCT_MODULE_prologue,
                              .input = p->x.dtype,
                              .kernel = kernels[oct_dtype_index(p->x.dtype)],
                              .grid = {oct_rows_blocks(&p->shape), 1, 1},
                              .threads = OCT_ROWS_THREADS,
                              .params = p,
                              .params_bytes = sizeof *p};
    return oct_cuda_launch_kernel(on, &launch, err);
}

octet_status oct_cuda_statistics(const oct_cuda_on *on, const oct_prologue_call *call,
                                 octet_error *err) {
    static by_dtype kernels = BY_DTYPE("norm_statistics");
    oct_prologue_params p = params_of(call, call->x->cols);
    p.stats = call->dst->parts[0];
    return by_row(on, &p, kernels, err);
}

octet_status oct_cuda_prologue(const oct_cuda_on *on, const oct_prologue_call *call,
                               octet_error *err) {
    static by_dtype kernels[] = {
        [OCT_ACT_NONE] = BY_DTYPE("norm_apply"),       [OCT_ACT_GELU] = BY_DTYPE("gelu_apply"),
        [OCT_ACT_QGELU] = BY_DTYPE("qgelu_apply"),     [OCT_ACT_RELU] = BY_DTYPE("relu_apply"),
        [OCT_ACT_SRELU] = BY_DTYPE("srelu_apply"),     [OCT_ACT_SILU] = BY_DTYPE("silu_apply"),
        [OCT_ACT_SIGMOID] = BY_DTYPE("sigmoid_apply"),
    };
    oct_prologue_params p = params_of(call, call->dst->cols);
    return by_part(on, &p, kernels[oct_prologue_activation(call->prologue)], err);
}

octet_status oct_cuda_prologue_grad(const oct_cuda_on *on, const oct_prologue_call *call,
                                    octet_error *err) {
    static by_dtype kernels[] = {
        [OCT_ACT_NONE] = BY_DTYPE("norm_grad"),       [OCT_ACT_GELU] = BY_DTYPE("gelu_grad"),
        [OCT_ACT_QGELU] = BY_DTYPE("qgelu_grad"),     [OCT_ACT_RELU] = BY_DTYPE("relu_grad"),
        [OCT_ACT_SRELU] = BY_DTYPE("srelu_grad"),     [OCT_ACT_SILU] = BY_DTYPE("silu_grad"),
        [OCT_ACT_SIGMOID] = BY_DTYPE("sigmoid_grad"),
    };
    oct_prologue_params p = params_of(call, call->grad->cols);
    oct_activation act = oct_prologue_activation(call->prologue);
    return oct_prologue_is_norm(call->prologue) ? by_row(on, &p, kernels[act], err)
                                                : by_part(on, &p, kernels[act], err);
}

octet_status oct_cuda_gamma_grad(const oct_cuda_on *on, const oct_prologue_call *call,
                                 octet_error *err) {
    static by_dtype kernels = BY_DTYPE("gamma_sums");
    oct_prologue_params p = params_of(call, call->grad->cols);
    oct_cuda_launch launch = {.module = OCT_MODULE_prologue,
                              .input = p.x.dtype,
                              .kernel = kernels[oct_dtype_index(p.x.dtype)],
                              .grid = {oct_cuda_tiles(p.shape.rows, p.shape.cols), 1, 1},
                              .threads = OCT_LINE_THREADS,
                              .params = &p,
                              .params_bytes = sizeof p};
    octet_status status = oct_cuda_launch_kernel(on, &launch, err);
    oct_cuda_joining joining = {call->dst, call->sums, p.shape.rows, false};
    return status ? status : oct_cuda_bias_grad(on, &joining, err);
}
