/* run.c - the steps of a plan as calls of the CPU device. */
#include <string.h>

#include "core/fail.h"
#include "cpu/cpu.h"
#include "linear/run_memory.h"
#include "quant/layout.h"

typedef struct running {
    const octet_plan *plan;
    const octet_memory *memory;
    oct_threads threads;
} running;

static void *at(const running *r, uint8_t buffer) {
    return oct_memory_at(r->plan, r->memory, buffer);
}

/* A tensor with those of its parts that the mask names, so that a kernel sees no memory which
 * the step does not list. */
static oct_matrix matrix_of(const running *r, uint8_t tensor, uint64_t mask) {
    const octet_plan_tensor *t = &r->plan->tensors[tensor];
    oct_matrix matrix = {.quantizer = t->quantizer, .dtype = t->dtype};
    (void)oct_dim_number(&matrix.rows, &t->rows, &r->plan->extents);
    (void)oct_dim_number(&matrix.cols, &t->cols, &r->plan->extents);
    for (int part = 0; part < OCTET_PARTS; part++) {
        uint8_t buffer = t->buffers[part];
        if (buffer != OCTET_ABSENT && (mask >> buffer & 1)) {
            matrix.parts[part] = at(r, buffer);
        }
    }
    uint8_t values = t->buffers[OCTET_PART_VALUES];
    matrix.stride = matrix.cols;
    if (values != OCTET_ABSENT && r->plan->buffers[values].place == OCTET_PLACE_ARG) {
        int64_t stride = r->memory->arg_strides[r->plan->buffers[values].port];
        matrix.stride = stride ? stride : matrix.cols;
    }
    return matrix;
}

static oct_matrix source_of(const running *r, const octet_step *step) {
    return matrix_of(r, step->a, step->reads);
}

/* ---- one function per op --------------------------------------------------------------- */

static void run_zero(const running *r, const octet_step *step) {
    const octet_plan_buffer *to = &r->plan->buffers[step->to];
    if (to->bytes) {
        memset(at(r, step->to), 0, (size_t)to->bytes);
    }
}

static void run_cast(const running *r, const octet_step *step) {
    oct_matrix dst = matrix_of(r, step->dst, step->writes), a = source_of(r, step);
    oct_cpu_cast(&dst, &a, &r->threads);
}

static void run_amax(const running *r, const octet_step *step) {
    oct_matrix a = source_of(r, step);
    if (step->dst == OCTET_ABSENT) {
        oct_cpu_amax(at(r, step->amax), &a, &r->threads);
        return;
    }
    oct_matrix dst = matrix_of(r, step->dst, step->writes);
    oct_cpu_amax_parts(&dst, &a, &r->threads);
}

static void run_quantize(const running *r, const octet_step *step) {
    oct_matrix dst = matrix_of(r, step->dst, step->writes | step->reads);
    oct_matrix a = source_of(r, step);
    bool stored = step->scale != OCTET_ABSENT;
    const int64_t *random = at(r, step->random);
    oct_live live = {.scale = at(r, step->scale),
                     .amax = stored ? NULL : at(r, step->amax),
                     .new_amax = stored ? at(r, step->amax) : NULL,
                     .seed = random ? (uint64_t)random[0] + (uint64_t)random[1] : 0};
    oct_cpu_quantize(&dst, &a, &live, &r->threads);
}

static void run_dequantize(const running *r, const octet_step *step) {
    oct_matrix dst = matrix_of(r, step->dst, step->writes), a = source_of(r, step);
    oct_cpu_dequantize(&dst, &a, (octet_use)step->a_use, &r->threads);
}

static void run_transpose(const running *r, const octet_step *step) {
    oct_matrix dst = matrix_of(r, step->dst, step->writes), a = source_of(r, step);
    oct_cpu_transpose(&dst, &a, (octet_use)step->a_use, &r->threads);
}

static void run_swizzle(const running *r, const octet_step *step) {
    oct_matrix dst = matrix_of(r, step->dst, step->writes), a = source_of(r, step);
    oct_cpu_swizzle(&dst, &a, (octet_use)step->a_use, false);
}

static void run_assemble(const running *r, const octet_step *step) {
    oct_matrix dst = matrix_of(r, step->dst, step->writes), a = source_of(r, step);
    oct_cpu_assemble(&dst, &a, r->plan->tp_size);
}

static void run_gemm(const running *r, const octet_step *step) {
    uint8_t scratch = oct_memory_scratch(r->plan);
    int64_t lanes = r->plan->buffers[scratch].bytes / OCT_CPU_LANE_BYTES;
    oct_cpu_gemm_call call = {.gemm = (octet_gemm)step->gemm,
                              .dst = matrix_of(r, step->dst, step->writes),
                              .a = source_of(r, step),
                              .b = matrix_of(r, step->b, step->reads),
                              .a_use = (octet_use)step->a_use,
                              .b_use = (octet_use)step->b_use,
                              .bias = at(r, step->bias),
                              .accumulate = step->accumulate,
                              .scratch = at(r, scratch),
                              .lanes = (int)lanes};
    if (call.bias) {
        call.bias_dtype = (octet_dtype)r->plan->buffers[step->bias].dtype;
    }
    oct_cpu_gemm(&call, &r->threads);
}

static void run_add_bias(const running *r, const octet_step *step) {
    oct_matrix dst = matrix_of(r, step->dst, step->writes), a = source_of(r, step);
    octet_dtype dtype = (octet_dtype)r->plan->buffers[step->bias].dtype;
    oct_cpu_add_bias(&dst, &a, at(r, step->bias), dtype, &r->threads);
}

static void run_bias_grad(const running *r, const octet_step *step) {
    oct_matrix dst = matrix_of(r, step->dst, step->writes), a = source_of(r, step);
    oct_cpu_bias_grad(&dst, &a, &r->threads);
}

/* Collectives are the caller's. */
static void (*const ops[OCTET_OPS])(const running *, const octet_step *) = {
    [OCTET_OP_ZERO] = run_zero,
    [OCTET_OP_CAST] = run_cast,
    [OCTET_OP_AMAX] = run_amax,
    [OCTET_OP_QUANTIZE] = run_quantize,
    [OCTET_OP_DEQUANTIZE] = run_dequantize,
    [OCTET_OP_TRANSPOSE] = run_transpose,
    [OCTET_OP_SWIZZLE] = run_swizzle,
    [OCTET_OP_ASSEMBLE] = run_assemble,
    [OCTET_OP_GEMM] = run_gemm,
    [OCTET_OP_ADD_BIAS] = run_add_bias,
    [OCTET_OP_BIAS_GRAD] = run_bias_grad,
};

/* ---- checks, and the steps in their order ---------------------------------------------- */

static octet_status check_structs(const octet_plan *plan, const octet_memory *memory,
                                  const octet_exec *exec, octet_error *err) {
    octet_status status = oct_need(plan, "plan", err);
    status = status ? status : oct_need(memory, "memory", err);
    status = status ? status : oct_need(exec, "exec", err);
    status = status ? status : oct_need_size(plan->size, sizeof *plan, "octet_plan", err);
    status = status ? status : oct_need_size(memory->size, sizeof *memory, "octet_memory", err);
    status = status ? status : oct_need_size(exec->size, sizeof *exec, "octet_exec", err);
    if (!status && plan->phases == 0) {
        status = oct_fail(err, OCTET_INVALID, "plan is empty: make it by an octet_plan_ call");
    }
    if (!status && plan->device.kind != OCTET_CPU) {
        status = oct_fail(err, OCTET_UNSUPPORTED,
                          "the plan is for cuda:%u; this library runs plans for cpu",
                          plan->device.index);
    }
    return status;
}

static octet_status run_checked(const octet_plan *plan, int phase, const octet_memory *memory,
                                const octet_exec *exec, octet_error *err) {
    octet_status status = oct_memory_check(plan, phase, memory, err);
    if (status) {
        return status;
    }
    bool parallel = exec->parallel_for && exec->threads > 1;
    int count = exec->threads > INT16_MAX ? INT16_MAX : (int)exec->threads;
    running r = {plan, memory, {NULL, NULL, 1}};
    if (parallel) {
        r.threads = (oct_threads){exec->parallel_for, exec->pool, count};
    }
    for (int i = 0; i < plan->step_count; i++) {
        if (plan->steps[i].phase == phase && plan->steps[i].op != OCTET_OP_COLLECTIVE) {
            ops[plan->steps[i].op](&r, &plan->steps[i]);
        }
    }
    return OCTET_OK;
}

octet_status octet_run_phase(const octet_plan *plan, int phase, const octet_memory *memory,
                             const octet_exec *exec, octet_error *err) {
    octet_status status = check_structs(plan, memory, exec, err);
    if (!status && (phase < 0 || phase >= plan->phases)) {
        status = oct_fail(err, OCTET_INVALID, "phase is %d; the plan has phases 0 to %d", phase,
                          plan->phases - 1);
    }
    return status ? status : run_checked(plan, phase, memory, exec, err);
}

octet_status octet_run(const octet_plan *plan, const octet_memory *memory,
                       const octet_exec *exec, octet_error *err) {
    octet_status status = check_structs(plan, memory, exec, err);
    for (int i = 0; !status && i < plan->step_count; i++) {
        if (plan->steps[i].op == OCTET_OP_COLLECTIVE) {
            status = oct_fail(err, OCTET_INVALID,
                              "step %d of the plan is a collective, which is the caller's: run "
                              "its phases one by one with octet_run_phase",
                              i + 1);
        }
    }
    return status ? status : run_checked(plan, 0, memory, exec, err);
}

const char *octet_cpu_name(void) {
    return oct_cpu_name();
}
