/* cpu.c - steps and delayed scaling as calls of the CPU device. */
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/float_mode.h"
#include "format/scaling.h"
#include "run/run.h"

static void do_zero(const oct_work *work, const oct_threads *threads) {
    (void)threads;
    if (work->to_bytes) {
        memset(work->to, 0, (size_t)work->to_bytes);
    }
}

static void do_cast(const oct_work *work, const oct_threads *threads) {
    oct_cpu_cast(&work->dst, &work->a, threads);
}

/* An amax as the step says: instead of what is there, or to raise it. */
static void put_amax(const oct_work *work, float amax) {
    *work->amax = work->step->accumulate ? oct_delayed_larger(*work->amax, amax) : amax;
}

static void do_amax(const oct_work *work, const oct_threads *threads) {
    if (work->step->dst == OCTET_ABSENT) {
        float amax;
        oct_cpu_amax(&amax, &work->a, threads);
        put_amax(work, amax);
    } else {
        oct_cpu_amax_parts(&work->dst, &work->a, threads);
    }
}

/* apply: what source is the result of; NULL: it lies in memory. */
static void quantize(const oct_work *work, const oct_matrix *source,
                     const oct_prologue_call *apply, const oct_threads *threads) {
    bool stored = work->step->scale != OCTET_ABSENT;
    bool measures = stored && work->amax;
    float amax = 0;
    oct_live live = {.scale = work->scale,
                     .amax = stored ? NULL : work->amax,
                     .new_amax = measures ? &amax : NULL,
                     .seed = work->seed ? (uint64_t)*work->seed : 0,
                     .stream = work->step->stream,
                     .apply = apply};
    oct_cpu_quantize(&work->dst, source, &live, threads);
    if (measures) {
        put_amax(work, amax);
    }
}

static void do_quantize(const oct_work *work, const oct_threads *threads) {
    quantize(work, &work->a, NULL, threads);
}

/* A step that reads the prologue of its operand: a cast, or the amax before it. */
static void apply_in(const oct_work *work, const octet_plan *plan, const oct_threads *threads) {
    oct_prologue_call call = oct_prologue_of(work, plan);
    if (work->step->op == OCTET_OP_AMAX) {
        float amax;
        oct_cpu_prologue_amax(&amax, &call, threads);
        put_amax(work, amax);
        return;
    }
    oct_matrix source = oct_applied_of(&call);
    quantize(work, &source, &call, threads);
}

static void do_dequantize(const oct_work *work, const oct_threads *threads) {
    oct_cpu_dequantize(&work->dst, &work->a, (octet_use)work->step->a_use, threads);
}

static void do_transpose(const oct_work *work, const oct_threads *threads) {
    oct_cpu_transpose(&work->dst, &work->a, (octet_use)work->step->a_use, threads);
}

static void do_swizzle(const oct_work *work, const oct_threads *threads) {
    (void)threads;
    oct_cpu_swizzle(&work->dst, &work->a, (octet_use)work->step->a_use, false);
}

static void do_assemble(const oct_work *work, const oct_threads *threads) {
    (void)threads;
    if (work->step->chunk == OCTET_ABSENT) {
        oct_cpu_assemble(&work->dst, &work->a, work->chunk.ranks);
    } else {
        oct_cpu_take(&work->dst, &work->a, &work->chunk);
    }
}

static void do_join(const oct_work *work, const oct_threads *threads) {
    oct_cpu_join(&work->dst, &work->a, &work->chunk, threads);
}

static void do_gemm(const oct_work *work, const oct_threads *threads) {
    oct_cpu_gemm_call call = {.gemm = (octet_gemm)work->step->gemm,
                              .dst = work->dst,
                              .a = work->a,
                              .b = work->b,
                              .a_use = (octet_use)work->step->a_use,
                              .b_use = (octet_use)work->step->b_use,
                              .b_first = work->b_first,
                              .bias = work->bias.at,
                              .bias_dtype = (octet_dtype)work->bias.dtype,
                              .accumulate = work->step->accumulate,
                              .invariant = work->step->invariant,
                              .scratch = work->scratch,
                              .lanes = (int)(work->scratch_bytes / OCT_CPU_LANE_BYTES)};
    oct_cpu_gemm(&call, threads);
}

static void do_add_bias(const oct_work *work, const oct_threads *threads) {
    oct_cpu_add_bias(&work->dst, &work->a, work->bias.at, (octet_dtype)work->bias.dtype,
                     threads);
}

static void do_bias_grad(const oct_work *work, const oct_threads *threads) {
    oct_cpu_bias_grad(&work->dst, &work->a, work->step->accumulate, threads);
}

typedef void prologue_op(const oct_prologue_call *, const oct_threads *);

static prologue_op *const prologue_ops[OCTET_OPS] = {
    [OCTET_OP_STATISTICS] = oct_cpu_statistics,
    [OCTET_OP_PROLOGUE] = oct_cpu_prologue,
    [OCTET_OP_PROLOGUE_GRAD] = oct_cpu_prologue_grad,
    [OCTET_OP_GAMMA_GRAD] = oct_cpu_gamma_grad,
};

static void (*const ops[OCTET_OPS])(const oct_work *, const oct_threads *) = {
    [OCTET_OP_ZERO] = do_zero,
    [OCTET_OP_CAST] = do_cast,
    [OCTET_OP_AMAX] = do_amax,
    [OCTET_OP_QUANTIZE] = do_quantize,
    [OCTET_OP_DEQUANTIZE] = do_dequantize,
    [OCTET_OP_TRANSPOSE] = do_transpose,
    [OCTET_OP_SWIZZLE] = do_swizzle,
    [OCTET_OP_ASSEMBLE] = do_assemble,
    [OCTET_OP_JOIN] = do_join,
    [OCTET_OP_GEMM] = do_gemm,
    [OCTET_OP_ADD_BIAS] = do_add_bias,
    [OCTET_OP_BIAS_GRAD] = do_bias_grad,
};

/* What the plan and the memory check let through cannot fail. */
static octet_status work_one(const oct_work *work, const oct_phase *phase, octet_error *err) {
    const octet_exec *exec = phase->exec;
    oct_threads threads = {NULL, NULL, 1};
    (void)err;
    if (exec->parallel_for && exec->threads > 1) {
        int count = exec->threads > INT16_MAX ? INT16_MAX : (int)exec->threads;
        threads = (oct_threads){exec->parallel_for, exec->pool, count};
    }
    oct_float_mode mode = oct_float_mode_take();
    if (work->step->apply) {
        apply_in(work, phase->plan, &threads);
    } else if (prologue_ops[work->step->op]) {
        oct_prologue_call call = oct_prologue_of(work, phase->plan);
        prologue_ops[work->step->op](&call, &threads);
    } else {
        ops[work->step->op](work, &threads);
    }
    oct_float_mode_give_back(mode);
    return OCTET_OK;
}

/* ---- phases ---------------------------------------------------------------------------- */

/* Every exec has a CPU. */
static octet_status check(const octet_plan *plan, const octet_exec *exec, octet_error *err) {
    (void)plan;
    (void)exec;
    (void)err;
    return OCTET_OK;
}

static octet_status begin(oct_phase *phase, octet_error *err) {
    (void)phase;
    (void)err;
    return OCTET_OK;
}

static void end(const oct_phase *phase) {
    (void)phase;
}

/* ---- delayed scaling ------------------------------------------------------------------- */

static octet_status record(const octet_delayed *state, const float *amax,
                           const octet_exec *exec, octet_error *err) {
    (void)exec;
    (void)err;
    oct_float_mode mode = oct_float_mode_take();
    oct_cpu_delayed_record(state, amax);
    oct_float_mode_give_back(mode);
    return OCTET_OK;
}

static octet_status update(const octet_delayed *state, const float *amax, const float *reduced,
                           const octet_exec *exec, octet_error *err) {
    (void)exec;
    (void)err;
    oct_float_mode mode = oct_float_mode_take();
    if (amax) {
        oct_cpu_delayed_record(state, amax);
    }
    oct_cpu_delayed_update(state, reduced);
    oct_float_mode_give_back(mode);
    return OCTET_OK;
}

static octet_status update_all(const octet_delayed *states, int count, const octet_exec *exec,
                               octet_error *err) {
    for (int i = 0; i < count; i++) {
        (void)update(&states[i], NULL, NULL, exec, err);
    }
    return OCTET_OK;
}

const oct_runner oct_cpu_runner = {
    .check = check,
    .begin = begin,
    .end = end,
    .work = work_one,
    .record = record,
    .update = update,
    .update_all = update_all,
};

const char *octet_cpu_name(void) {
    return oct_cpu_name();
}
