/* gemm.c - one product on a GPU: by cuBLASLt where it takes it, else by the own kernel.
 *
 * A native product hands the bytes over as they are, with their scales. An emulated one decodes
 * its operands first (codes times block scales, which bf16 holds exactly, or f32) and gives the
 * factors that were left out to alpha, on the device: nothing waits for a number. Factors of
 * single rows or columns, results that cuBLASLt cannot write from such operands, and a bias of
 * another dtype than a narrow result go through fp32 sums in scratch, which a kernel
 * multiplies, adds to and rounds once. FP8 whose rows are not whole 16 bytes is copied into
 * rows that are, with zeros, which add nothing to a product; such rows of dst come of sums.
 *
 * With alpha the factors' product is one fp32: where it leaves the normal range, so does the
 * result's accuracy. The own kernel keeps the CPU's bound there as well. */
#include "core/fail.h"
#include "cuda/lt.h"

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

/* Adds the copy of an operand, if there is one. */
static int add_padding(oct_cuda_padding *out, const oct_gemm_operand *o,
                       const oct_matrix *copy) {
    *out = (oct_cuda_padding){.dst = copy,
                              .from = o->data,
                              .lines = o->across ? o->depth : o->outer,
                              .length = o->across ? o->outer : o->depth};
    return copy->parts[OCTET_PART_VALUES] != NULL;
}

/* What the library reads in place of the operands' own bytes. */
static octet_status copy_operands(const oct_cuda_on *on, const oct_cuda_gemm_call *call,
                                  const oct_gemm_params *own, octet_error *err) {
    oct_cuda_padding paddings[2];
    if (!call->native) {
        return decode_operands(on, call, err);
    }
    int count = add_padding(&paddings[0], &own->a, &call->a_copy);
    count += add_padding(&paddings[count], &own->b, &call->b_copy);
    return count ? oct_cuda_pad(on, paddings, count, err) : OCTET_OK;
}

static octet_status compute_alpha(const oct_cuda_on *on, const oct_gemm_params *own,
                                  const oct_lt_product *product, octet_error *err) {
    if (!product->problem.device_alpha) {
        return OCTET_OK;
    }
    oct_gemm_alpha_params params = {.a = own->a.factor,
                                    .b = own->b.factor,
                                    .unit = own->a.unit * own->b.unit,
                                    .beta = product->problem.accumulate ? 1.0f : 0.0f,
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
} job;

/* The library's context is this thread's where it is called, not where kernels are launched. */
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

static octet_status run(bool *refused, const job *j, const oct_lt_product *product,
                        oct_lt_algorithm *algorithm, octet_error *err) {
    bool pushed;
    octet_status status = oct_cuda_enter_on(j->on, &pushed, err);
    *refused = false;
    if (!status) {
        status = oct_lt_run(refused, j->lt, product, algorithm, j->on->stream, err);
        oct_cuda_leave(j->on->cuda, pushed);
    }
    return status;
}

/* The rows of dst from `first` on, as a product of their own: *part. */
static octet_status run_rows(oct_lt_product *part, bool *refused, const job *j, int64_t first,
                             octet_error *err) {
    oct_lt_algorithm algorithm;
    bool found;
    *part = oct_lt_part(&j->product, &j->own.a, first);
    octet_status status = find(&algorithm, &found, j, part, err);
    *refused = !found;
    if (!status && found) {
        status = oct_lt_part_move(j->on, part, &j->own.a, first, err);
        status = status ? status : run(refused, j, part, &algorithm, err);
    }
    return status;
}

static octet_status run_part(bool *refused, const job *j, int64_t first, octet_error *err) {
    oct_lt_product part;
    octet_status status = run_rows(&part, refused, j, first, err);
    return status || *refused ? status : oct_lt_part_finish(j->on, &part, &j->own, first, err);
}

/* dst may be read as well as written, so there is no way back once a part of it is done. */
static octet_status run_sums(bool *done, const job *j, octet_error *err) {
    const oct_lt_problem *p = &j->product.problem;
    int64_t last = (p->n - 1) / j->product.chunk * j->product.chunk;
    oct_lt_product ends[] = {oct_lt_part(&j->product, &j->own.a, 0),
                             oct_lt_part(&j->product, &j->own.a, last)};
    oct_lt_algorithm algorithm;
    bool found = true, refused = false;
    octet_status status = OCTET_OK;
    for (int i = 0; !status && found && i < 2; i++) {
        status = find(&algorithm, &found, j, &ends[i], err);
    }
    if (status || !found) {
        return status;
    }
    status = copy_operands(j->on, j->call, &j->own, err);
    for (int64_t first = 0; !status && first < p->n; first += j->product.chunk) {
        status = run_part(&refused, j, first, err);
        if (!status && refused && first > 0) {
            status = oct_fail(err, OCTET_DEVICE,
                              "cublasLtMatmul refused rows %lld on of a product of %lld",
                              (long long)first, (long long)p->n);
        }
        if (refused) {
            return status;
        }
        *done = true;
    }
    return status;
}

/* All rows of dst, or all that are whole eights. */
static oct_lt_product head_of(const job *j) {
    return j->product.tail ? oct_lt_part(&j->product, &j->own.a, 0) : j->product;
}

/* dst is not read, but by a product without a tail: what is done of it may be done again. */
static octet_status run_found(bool *done, const job *j, const oct_lt_product *head,
                              oct_lt_algorithm *algorithm, octet_error *err) {
    bool refused = false;
    octet_status status = copy_operands(j->on, j->call, &j->own, err);
    status = status ? status : compute_alpha(j->on, &j->own, head, err);
    status = status ? status : oct_lt_part_move(j->on, head, &j->own.a, 0, err);
    status = status ? status : run(&refused, j, head, algorithm, err);
    if (!status && !refused && j->product.tail) { /* the last eight rows */
        oct_lt_product tail;
        status = run_rows(&tail, &refused, j, j->product.problem.n - 8, err);
    }
    *done = !refused;
    if (!status && *done && j->product.bias_after) {
        status = oct_cuda_add_bias(j->on, &j->call->dst, &j->call->dst, &j->call->bias, err);
    }
    return status;
}

static octet_status run_direct(bool *done, job *j, octet_error *err) {
    oct_lt_algorithm algorithm;
    bool found;
    oct_lt_product head = head_of(j);
    octet_status status = find(&algorithm, &found, j, &head, err);
    if (!status && !found && j->product.problem.bias_type != OCT_LT_NONE) {
        if (!oct_lt_leave_bias(&j->product, j->call)) {
            return OCTET_OK;
        }
        if (j->product.sums) {
            return run_sums(done, j, err);
        }
        head = head_of(j);
        status = find(&algorithm, &found, j, &head, err);
    }
    return status || !found ? status : run_found(done, j, &head, &algorithm, err);
}

octet_status oct_cuda_gemm(const oct_cuda_on *on, const oct_cuda_gemm_call *call,
                           octet_error *err) {
    job j = {.on = on, .call = call, .own = oct_gemm_params_of(call)};
    bool done = false;
    if (j.own.a.outer == 0 || j.own.b.outer == 0) {
        return OCTET_OK;
    }
    octet_status status = oct_lt_get(&j.lt, on->cuda, err);
    if (!status && j.lt->api && j.own.a.depth > 0 &&
        oct_lt_describe(&j.product, call, &j.lt->target)) {
        status = j.product.sums ? run_sums(&done, &j, err) : run_direct(&done, &j, err);
    }
    return status || done ? status : oct_gemm_own(on, call, err);
}

const char *oct_cuda_gemm_name(octet_cuda *cuda) {
    oct_lt *lt;
    return !oct_lt_get(&lt, cuda, NULL) && lt->api ? "cublaslt" : "own";
}
