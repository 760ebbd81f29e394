/* gemm.c - one product on a GPU: by cuBLASLt if it can do it, else by Octet's own kernels.
 * Few rows: a product of few rows of a with a b in blocks has its own kernel, which reads b
 * once, in place. cuBLASLt takes longer, above all if b must be decoded for it.
 * Native: the bytes and scales are passed as they are.
 * Emulated: the operands are decoded first (codes times block scales, exact in bf16 or f32).
 * The factors that were left out become alpha, in device memory, so that the host waits for
 * nothing.
 * Sums: some results go through fp32 sums in scratch; a kernel then multiplies them by the
 * factors, adds and rounds once. These are factors of single rows or columns, results that
 * cuBLASLt cannot write from such operands, and a bias whose dtype differs from a narrow
 * result's.
 * Padding: FP8 rows that are not a multiple of 16 bytes are copied into longer rows with zeros,
 * which add nothing to a product. Such rows of dst come from sums. With 128-blocks, so do
 * columns of dst beyond a multiple of 8; rows beyond a multiple of 8 are a product of their
 * own.
 * Folded: a native product of copies, FP8 in blocks of 128 with padded rows.
 * Accuracy: the product of all factors in alpha is one fp32. If it leaves the normal range, the
 * result loses accuracy. The own kernel keeps the CPU's bound there, too. */
#include "cuda/kernels/moves.h"
#include "cuda/list_fill.h"

static octet_status decode_operands(const oct_cuda_on *on, const oct_cuda_gemm_call *call,
                                    octet_error *err) {
    octet_status status = OCTET_OK;
    if (call->a_copy.parts[OCTET_PART_VALUES] && !call->a_made) {
        status = oct_cuda_decode(on, &call->a_copy, &call->a, call->a_use, err);
    }
    if (!status && call->b_copy.parts[OCTET_PART_VALUES] && !call->b_made) {
        status = oct_cuda_decode(on, &call->b_copy, &call->b, call->b_use, err);
    }
    return status;
}

/* Both copies are there afterwards. */
static octet_status fold_operands(const oct_cuda_on *on, oct_cuda_gemm_call *call,
                                  octet_error *err) {
    octet_status status = OCTET_OK;
    if (!call->a_made) {
        status = oct_cuda_fold(on, &call->a_copy, &call->a, call->a_use, err);
    }
    if (!status && !call->b_made) {
        status = oct_cuda_fold(on, &call->b_copy, &call->b, call->b_use, err);
    }
    call->a_made = call->b_made = true;
    return status;
}

static octet_status compute_alpha(const oct_cuda_on *on, const oct_gemm_params *own,
                                  const oct_lt_product *product, octet_error *err) {
    if (!product->matmul.device_alpha || product->alpha_made) {
        return OCTET_OK;
    }
    oct_gemm_alpha_params params = {.a = own->a.factor,
                                    .b = own->b.factor,
                                    .unit = own->a.unit * own->b.unit,
                                    .beta = product->matmul.accumulate ? 1.0f : 0.0f,
                                    .out = (float *)(uintptr_t)product->memory.alpha};
    oct_cuda_launch launch = {.module = OCT_MODULE_sums,
                              .kernel = "gemm_alpha",
                              .grid = {1, 1, 1},
                              .threads = 1,
                              .params = &params,
                              .params_bytes = sizeof params};
    return oct_cuda_launch_kernel(on, &launch, err);
}

/* A call and what has been decided of it. */
typedef struct job {
    const oct_cuda_on *on;
    const oct_cuda_gemm_call *call;
    oct_gemm_params own;
    oct_lt *lt;
    oct_lt_product product;
    oct_lt_algorithm chosen[3]; /* algorithms for all chunks but the last, for the last, and for
                                 * the rest */
} job;

/* Enters the context around the library's call; launches of kernels enter it themselves. */
static octet_status find(oct_lt_algorithm *out, bool *found, const job *j,
                         const oct_lt_product *product, octet_error *err) {
    bool pushed;
    octet_status status = oct_cuda_enter_on(j->on, &pushed, err);
    *found = false;
    if (!status) {
        status = oct_lt_find(out, found, j->lt, product, err);
        oct_cuda_leave(j->on->cuda, pushed);
    }
    return status;
}

/* ---- copies ---------------------------------------------------------------------------- */

/* Adds the copy of an operand, if there is one. */
static int add_padding(oct_cuda_padding *out, const oct_gemm_operand *o,
                       const oct_matrix *copy) {
    *out = (oct_cuda_padding){.dst = copy,
                              .from = o->data,
                              .lines = o->across ? o->depth : o->outer,
                              .length = o->across ? o->outer : o->depth};
    return copy->parts[OCTET_PART_VALUES] != NULL;
}

/* Scales need an entry for each outer index, padding included. */
static int add_scales(oct_cuda_padding *out, oct_matrix *room, const oct_gemm_operand *o,
                      const oct_matrix *copy) {
    const int64_t each = (int64_t)sizeof(float);
    *room = (oct_matrix){.dtype = OCTET_U8, .rows = copy->rows, .cols = copy->cols * each};
    room->parts[OCTET_PART_VALUES] = copy->parts[OCTET_PART_VALUES];
    *out = (oct_cuda_padding){.dst = room,
                              .from = o->scale,
                              .lines = o->scales.blocks,
                              .length = o->outer * each,
                              .pitch = o->scales.block_step * each};
    return copy->parts[OCTET_PART_VALUES] != NULL;
}

/* Makes the padded copies that the library reads instead of the operands' bytes. Of a, only
 * rows up to a multiple of 8; the rest has its own copy. */
static octet_status copy_operands(const job *j, octet_error *err) {
    const oct_cuda_gemm_call *call = j->call;
    oct_cuda_padding paddings[OCT_CUDA_PADDINGS];
    oct_matrix rooms[3];
    int count = 0;
    if (!call->native && !oct_gemm_is_folded(call)) {
        return decode_operands(j->on, call, err);
    }
    if (j->product.matmul.n > 0) {
        count = add_padding(&paddings[0], &j->own.a, &call->a_copy);
    }
    count += add_padding(&paddings[count], &j->own.b, &call->b_copy);
    count += add_scales(&paddings[count], &rooms[0], &j->own.b, &call->b_scales);
    count += oct_lt_rest_copies(&paddings[count], &rooms[1], &j->product, &j->own.a);
    return count ? oct_cuda_pad(j->on, paddings, count, err) : OCTET_OK;
}

/* ---- parts ----------------------------------------------------------------------------- */

/* The i-th part, and the row of dst that it begins with: chunks, then what is behind them. */
static int64_t part_of(oct_lt_product *out, const job *j, int64_t i) {
    const oct_lt_product *p = &j->product;
    int64_t first = i * p->chunk, left = p->matmul.n - first;
    if (left > 0) {
        *out = oct_lt_part(p, &j->own.a, first, left < p->chunk ? left : p->chunk);
        return first;
    }
    if (p->tail) {
        *out = oct_lt_part(p, &j->own.a, p->rows - OCT_LT_ROWS, OCT_LT_ROWS);
        return p->rows - OCT_LT_ROWS;
    }
    *out = oct_lt_rest(p, &j->own.a);
    return p->matmul.n;
}

static int64_t chunks_of(const oct_lt_product *p) {
    return p->matmul.n ? oct_size_ceil_div(p->matmul.n, p->chunk) : 0;
}

static int64_t parts_of(const oct_lt_product *p) {
    return chunks_of(p) + (p->tail || p->rest);
}

/* The index of the i-th part's algorithm in `chosen`. */
static int kind_of(const oct_lt_product *p, int64_t i) {
    int64_t last = chunks_of(p) - 1;
    return i < last ? 0 : i == last ? 1 : 2;
}

/* The number-th part. */
static octet_status run(bool *refused, job *j, const oct_lt_product *part, int64_t number,
                        octet_error *err) {
    oct_lt_algorithm *algorithm = &j->chosen[kind_of(&j->product, number)];
    bool pushed;
    *refused = false;
    if (j->on->list) {
        oct_list_product one = {
            j->lt, part, algorithm, number, j->product.rows, j->call->accumulate};
        return oct_list_multiply(j->on->list, &one, err);
    }
    octet_status status = oct_cuda_enter_on(j->on, &pushed, err);
    if (!status) {
        status = oct_lt_run(refused, j->lt, part, algorithm, j->on->stream, err);
        oct_cuda_leave(j->on->cuda, pushed);
    }
    return status;
}

/* Chooses for every part before any of them is run: *found false, and dst is as it was. */
static octet_status find_parts(bool *found, job *j, octet_error *err) {
    int64_t last = chunks_of(&j->product) - 1, parts = parts_of(&j->product);
    octet_status status = OCTET_OK;
    *found = true;
    for (int64_t i = 0; !status && *found && i < parts; i = i < last ? last : i + 1) {
        oct_lt_product part;
        (void)part_of(&part, j, i);
        status = find(&j->chosen[kind_of(&j->product, i)], found, j, &part, err);
    }
    return status;
}

static octet_status run_part(bool *refused, job *j, int64_t i, octet_error *err) {
    oct_lt_product part;
    int64_t first = part_of(&part, j, i);
    octet_status status = oct_lt_part_move(j->on, &part, &j->own.a, first, err);
    *refused = false;
    if (!status) {
        status = run(refused, j, &part, i, err);
    }
    bool finishes = !status && !*refused && part.sums;
    return finishes ? oct_lt_part_finish(j->on, &part, &j->own, first, err) : status;
}

/* If the library refuses to launch what it proposed, *done is false: what was written to dst
 * may be computed again, unless it was added. */
static octet_status run_parts(bool *done, job *j, octet_error *err) {
    int64_t parts = parts_of(&j->product);
    bool refused = false;
    octet_status status = copy_operands(j, err);
    status = status ? status : compute_alpha(j->on, &j->own, &j->product, err);
    for (int64_t i = 0; !status && !refused && i < parts; i++) {
        status = run_part(&refused, j, i, err);
        if (!status && refused && i > 0 && j->call->accumulate) {
            status = oct_lt_part_refused(err, i, j->product.rows);
        }
    }
    *done = !refused;
    if (!status && *done && j->product.bias_after) {
        status = oct_cuda_add_bias(j->on, &j->call->dst, &j->call->dst, &j->call->bias, err);
    }
    return status;
}

/* First with the bias in the library's epilogue; if that is not possible, without. */
static octet_status multiply(bool *done, job *j, octet_error *err) {
    bool found;
    octet_status status = find_parts(&found, j, err);
    if (!status && !found && j->product.matmul.bias_type != OCT_LT_NONE) {
        if (!oct_lt_leave_bias(&j->product, j->call)) {
            return OCTET_OK;
        }
        status = find_parts(&found, j, err);
    }
    return status || !found ? status : run_parts(done, j, err);
}

/* If the library can multiply MXFP8 or NVFP4, it does. It pads few rows of 128-blocks to eight.
 */
static bool is_thin(const job *j) {
    bool native = j->call->native && j->own.b.scale_format != OCTET_F32;
    return !native && !j->lt->library && oct_gemm_is_thin(&j->own);
}

static octet_status by_library(bool *done, job *j, octet_error *err) {
    if (!j->lt->api || j->own.a.depth == 0 ||
        !oct_lt_describe(&j->product, j->call, &j->lt->target)) {
        return OCTET_OK;
    }
    return multiply(done, j, err);
}

octet_status oct_cuda_gemm(const oct_cuda_on *on, const oct_cuda_gemm_call *given,
                           octet_error *err) {
    oct_cuda_gemm_call call = *given;
    call.a_made = call.a_made && !oct_cuda_copy_waits(&call.a);
    call.b_made = call.b_made && !oct_cuda_copy_waits(&call.b);
    job j = {.on = on, .call = &call, .own = oct_gemm_params_of(&call)};
    bool done = false;
    if (j.own.a.outer == 0 || j.own.b.outer == 0) {
        return OCTET_OK;
    }
    /* The library chooses by all three sizes, and may cut sums into parts. The own kernel is
     * chosen by the operands' formats, and a sum's order is that of its terms. */
    if (call.invariant) {
        return oct_gemm_own(on, &call, err);
    }
    octet_status status = oct_lt_get(&j.lt, on->cuda, err);
    /* Few rows are multiplied from the bytes, exactly, where both operands have theirs. */
    if (!status && oct_gemm_is_folded(&call) && !is_thin(&j)) {
        status = fold_operands(on, &call, err);
        j.own = oct_gemm_params_of(&call);
    }
    if (!status && is_thin(&j)) {
        return oct_gemm_thin(on, &j.own, err);
    }
    status = status ? status : by_library(&done, &j, err);
    return status || done ? status : oct_gemm_own(on, &call, err);
}

const char *oct_cuda_gemm_name(octet_cuda *cuda) {
    oct_lt *lt;
    return !oct_lt_get(&lt, cuda, NULL) && lt->api ? "cublaslt" : "own";
}
