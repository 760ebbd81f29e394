/* cuda.c - steps and delayed scaling as calls of the CUDA device, on the caller's stream. */
#include "cuda/cuda.h"
#include "cuda/list.h"
#include "cuda/room.h"
#include "run/run.h"

static oct_cuda_on on_of(const oct_phase *phase) {
    return (oct_cuda_on){phase->exec->cuda, phase->exec->stream, true, phase->list};
}

/* ---- amaxes ---------------------------------------------------------------------------- */

/* Whether a step measures an amax in parts: each block of threads writes its own maximum, and
 * nothing need be zero before. Example: current scaling on one rank. */
static bool writes_shares(const octet_plan *plan, const octet_step *step) {
    return step->op == OCTET_OP_AMAX && step->amax != OCTET_ABSENT &&
           plan->buffers[step->amax].bytes > (int64_t)sizeof(float);
}

static uint64_t sums_of(const octet_plan *plan, const octet_step *step) {
    return step->sums == OCTET_ABSENT
               ? 0
               : (uint64_t)1 << plan->tensors[step->sums].buffers[OCTET_PART_VALUES];
}

/* The buffers that must be zero before the first step of a phase, as bits: kernels raise amaxes
 * in them, and ZERO steps ask for nothing else. Not those that a step accumulates into: they
 * are raised from the caller's value. */
static uint64_t raised(const octet_plan *plan, int phase) {
    uint64_t bits = 0;
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        if (step->phase != phase || step->accumulate || writes_shares(plan, step)) {
            continue;
        }
        if (step->op == OCTET_OP_AMAX || step->op == OCTET_OP_ZERO) {
            bits |= step->writes & ~sums_of(plan, step);
        } else if (step->op == OCTET_OP_PROLOGUE && step->amax != OCTET_ABSENT) {
            bits |= (uint64_t)1 << step->amax;
        } else if (step->op == OCTET_OP_QUANTIZE && step->scale != OCTET_ABSENT &&
                   step->amax != OCTET_ABSENT) {
            bits |= (uint64_t)1 << step->amax;
        }
    }
    return bits;
}

/* Whether b adjoins a in the same arena or port, with nothing but an arena's padding between.
 */
static bool adjoins(const octet_plan_buffer *a, const octet_plan_buffer *b) {
    bool in_arena = b->place == OCTET_PLACE_SAVED || b->place == OCTET_PLACE_WORK;
    int64_t gap = b->offset - a->offset - a->bytes;
    return a->port == b->port && gap >= 0 && gap < (in_arena ? OCTET_ALIGN : 1);
}

/* The first of these buffers that has bytes and lies in the place, from `from` on. */
static uint8_t next_of(const octet_plan *plan, uint64_t bits, octet_place place, int from) {
    for (int i = from; i < plan->buffer_count; i++) {
        const octet_plan_buffer *b = &plan->buffers[i];
        if ((bits >> i & 1) && b->place == place && b->bytes) {
            return (uint8_t)i;
        }
    }
    return OCTET_ABSENT;
}

/* The span of buffers that begins with *first, which becomes the one behind it. */
static oct_cuda_span span_of(uint8_t *first, const octet_plan *plan, uint64_t bits,
                             const octet_memory *memory) {
    octet_place place = (octet_place)plan->buffers[*first].place;
    uint8_t last = *first, next = next_of(plan, bits, place, last + 1);
    while (next != OCTET_ABSENT && adjoins(&plan->buffers[last], &plan->buffers[next])) {
        last = next;
        next = next_of(plan, bits, place, last + 1);
    }
    const octet_plan_buffer *a = &plan->buffers[*first], *b = &plan->buffers[last];
    oct_cuda_span span = {oct_memory_at(plan, memory, *first),
                          b->offset + b->bytes - a->offset};
    *first = next;
    return span;
}

/* Zeros what kernels raise in a phase, in one launch for a few spans. */
static octet_status zero_raised(const oct_phase *phase, octet_error *err) {
    const octet_plan *plan = phase->plan;
    oct_cuda_on on = on_of(phase);
    oct_cuda_span spans[OCT_ZERO_SPANS];
    uint64_t bits = raised(plan, phase->index);
    octet_status status = OCTET_OK;
    int count = 0;
    for (int place = 0; bits && !status && place < OCTET_PLACES; place++) {
        uint8_t first = next_of(plan, bits, (octet_place)place, 0);
        while (first != OCTET_ABSENT && !status) {
            spans[count++] = span_of(&first, plan, bits, phase->memory);
            if (count == OCT_ZERO_SPANS) {
                status = oct_cuda_zero_spans(&on, spans, count, err);
                count = 0;
            }
        }
    }
    return status || !count ? status : oct_cuda_zero_spans(&on, spans, count, err);
}

/* Done before the first step. */
static octet_status do_nothing(const oct_work *work, const oct_cuda_on *on, octet_error *err) {
    (void)work;
    (void)on;
    (void)err;
    return OCTET_OK;
}

/* ---- steps ----------------------------------------------------------------------------- */

static octet_status do_cast(const oct_work *work, const oct_cuda_on *on, octet_error *err) {
    return oct_cuda_cast(on, &work->dst, &work->a, err);
}

static oct_cuda_amaxing amaxing_of(const oct_work *work) {
    return (oct_cuda_amaxing){work->amax, work->amaxes, &work->a, work->step->accumulate};
}

static octet_status do_amax(const oct_work *work, const oct_cuda_on *on, octet_error *err) {
    oct_cuda_amaxing one = amaxing_of(work);
    return work->step->dst == OCTET_ABSENT
               ? oct_cuda_amax(on, &one, err)
               : oct_cuda_amax_parts(on, &work->dst, &work->a, work->sums.parts[0], err);
}

static oct_cuda_live live_of(const oct_work *work) {
    bool stored = work->step->scale != OCTET_ABSENT;
    return (oct_cuda_live){.scale = work->scale,
                           .amax = stored ? NULL : work->amax,
                           .new_amax = stored ? work->amax : NULL,
                           .seed = work->seed,
                           .stream = work->step->stream,
                           .sums = work->sums.parts[OCTET_PART_VALUES],
                           .amaxes = work->amaxes,
                           .alphas = work->alphas,
                           .row_copy = &work->a_copy,
                           .col_copy = &work->b_copy,
                           .row_passes = work->step->row_unread,
                           .col_passes = work->step->col_unread,
                           .measured = work->a_measured};
}

static octet_status do_quantize(const oct_work *work, const oct_cuda_on *on, octet_error *err) {
    oct_cuda_live live = live_of(work);
    return oct_cuda_quantize(on, &work->dst, &work->a, &live, err);
}

/* A cast that reads the prologue of its operand. */
static octet_status quantize_applied(const oct_work *work, const octet_plan *plan,
                                     const oct_cuda_on *on, octet_error *err) {
    oct_prologue_call call = oct_prologue_of(work, plan);
    oct_matrix source = oct_applied_of(&call);
    oct_cuda_live live = live_of(work);
    live.apply = &call;
    return oct_cuda_quantize(on, &work->dst, &source, &live, err);
}

static octet_status do_dequantize(const oct_work *work, const oct_cuda_on *on,
                                  octet_error *err) {
    return oct_cuda_dequantize(on, &work->dst, &work->a, (octet_use)work->step->a_use, err);
}

static octet_status do_transpose(const oct_work *work, const oct_cuda_on *on,
                                 octet_error *err) {
    return oct_cuda_transpose(on, &work->dst, &work->a, (octet_use)work->step->a_use, err);
}

static octet_status do_swizzle(const oct_work *work, const oct_cuda_on *on, octet_error *err) {
    return oct_cuda_swizzle(on, &work->dst, &work->a, (octet_use)work->step->a_use, err);
}

static octet_status do_assemble(const oct_work *work, const oct_cuda_on *on, octet_error *err) {
    return work->step->chunk == OCTET_ABSENT
               ? oct_cuda_assemble(on, &work->dst, &work->a, work->chunk.ranks, err)
               : oct_cuda_take(on, &work->dst, &work->a, &work->chunk, err);
}

static octet_status do_join(const oct_work *work, const oct_cuda_on *on, octet_error *err) {
    return oct_cuda_join(on, &work->dst, &work->a, &work->chunk, err);
}

/* A matrix of fp32 in scratch; without rows none. */
static oct_matrix room_at(const oct_work *work, int64_t at, int64_t rows, int64_t cols) {
    oct_matrix m = {.dtype = OCTET_F32, .rows = rows, .cols = cols, .stride = cols};
    m.parts[OCTET_PART_VALUES] = rows ? (char *)work->scratch + at : NULL;
    return m;
}

/* Lays out a product's scratch. All products of a plan have the same one: what it has beyond
 * the needs of this one is the rest's, as far as any product has a use for it. */
static void set_scratch(oct_cuda_gemm_call *call, const oct_work *work) {
    enum { MOST = OCT_CUDA_SUMS_BYTES + OCT_CUDA_WORKSPACE_BYTES };
    const octet_step *step = work->step;
    bool down = step->gemm == OCTET_WGRAD;
    if (!step->native || step->a_copy == OCTET_ABSENT) { /* nothing is padded */
        call->scratch = work->scratch;
        call->scratch_bytes = work->scratch_bytes < MOST ? work->scratch_bytes : MOST;
        return;
    }
    oct_target_product product = {.a = &work->a.quantizer,
                                  .b = &work->b.quantizer,
                                  .gemm = step->gemm,
                                  .a_use = step->a_use,
                                  .b_use = step->b_use,
                                  .support = OCTET_SUPPORT_NATIVE,
                                  .dst = work->dst.dtype,
                                  .rows = work->dst.rows,
                                  .cols = work->dst.cols,
                                  .depth = down ? work->a.rows : work->a.cols};
    oct_cuda_room room;
    (void)oct_cuda_room_of(&room, &product); /* the plan has found that it fits */
    int64_t rest = work->scratch_bytes - room.rest_at;
    call->dst_copy = room_at(work, 0, room.sum_rows, room.sum_cols);
    call->b_scales = room_at(work, room.scales_at, room.scale_rows, room.scale_cols);
    call->scratch = rest > 0 ? (char *)work->scratch + room.rest_at : NULL;
    call->scratch_bytes = rest < MOST ? rest : MOST;
}

static octet_status do_gemm(const oct_work *work, const oct_cuda_on *on, octet_error *err) {
    const octet_step *step = work->step;
    oct_cuda_gemm_call call = {.gemm = (octet_gemm)step->gemm,
                               .dst = work->dst,
                               .a = work->a,
                               .b = work->b,
                               .a_use = (octet_use)step->a_use,
                               .b_use = (octet_use)step->b_use,
                               .b_first = work->b_first,
                               .a_copy = work->a_copy,
                               .b_copy = work->b_copy,
                               .a_made = work->a_made,
                               .b_made = work->b_made,
                               .bias = work->bias,
                               .alpha = work->alpha,
                               .accumulate = step->accumulate,
                               .split = step->split,
                               .native = step->native,
                               .invariant = step->invariant};
    set_scratch(&call, work);
    return oct_cuda_gemm(on, &call, err);
}

static octet_status do_add_bias(const oct_work *work, const oct_cuda_on *on, octet_error *err) {
    return oct_cuda_add_bias(on, &work->dst, &work->a, &work->bias, err);
}

static octet_status do_bias_grad(const oct_work *work, const oct_cuda_on *on,
                                 octet_error *err) {
    float *sums = work->sums.parts[OCTET_PART_VALUES];
    octet_status status =
        work->sums_made ? OCTET_OK : oct_cuda_sum_columns(on, sums, &work->a, err);
    oct_cuda_joining joining = {&work->dst, sums, work->a.rows, work->step->accumulate};
    return status ? status : oct_cuda_bias_grad(on, &joining, err);
}

typedef octet_status prologue_op(const oct_cuda_on *, const oct_prologue_call *, octet_error *);

static prologue_op *const prologue_ops[OCTET_OPS] = {
    [OCTET_OP_STATISTICS] = oct_cuda_statistics,
    [OCTET_OP_PROLOGUE] = oct_cuda_prologue,
    [OCTET_OP_PROLOGUE_GRAD] = oct_cuda_prologue_grad,
    [OCTET_OP_GAMMA_GRAD] = oct_cuda_gamma_grad,
};

static octet_status (*const ops[OCTET_OPS])(const oct_work *, const oct_cuda_on *,
                                            octet_error *) = {
    [OCTET_OP_ZERO] = do_nothing,
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

static void begin_step(const oct_phase *phase, const oct_work *work) {
    if (phase->list) {
        oct_list_step(phase->list, (int)(work->step - phase->plan->steps));
    }
}

static octet_status work_one(const oct_work *work, const oct_phase *phase, octet_error *err) {
    oct_cuda_on on = on_of(phase);
    begin_step(phase, work);
    if (work->step->apply) {
        return quantize_applied(work, phase->plan, &on, err);
    }
    if (prologue_ops[work->step->op]) {
        oct_prologue_call call = oct_prologue_of(work, phase->plan);
        return prologue_ops[work->step->op](&on, &call, err);
    }
    return ops[work->step->op](work, &on, err);
}

/* ---- two steps at once ----------------------------------------------------------------- */

static octet_status work_two(const oct_work *a, const oct_work *b, const oct_phase *phase,
                             octet_error *err) {
    oct_cuda_on on = on_of(phase);
    begin_step(phase, a);
    if (a->step->op == OCTET_OP_AMAX) {
        oct_cuda_amaxing two[2] = {amaxing_of(a), amaxing_of(b)};
        return oct_cuda_amax_two(&on, two, err);
    }
    oct_cuda_quantizing two[2] = {{&a->dst, &a->a, live_of(a)}, {&b->dst, &b->a, live_of(b)}};
    return oct_cuda_quantize_two(&on, two, err);
}

/* ---- phases ---------------------------------------------------------------------------- */

static octet_status check(const octet_plan *plan, const octet_exec *exec, octet_error *err) {
    return oct_cuda_serves(exec->cuda, &plan->device, err);
}

static void end(const oct_phase *phase) {
    oct_cuda_leave(phase->exec->cuda, phase->entered);
}

/* The GPU's context is entered once for all steps. */
static octet_status begin(oct_phase *phase, octet_error *err) {
    octet_status status = oct_cuda_enter(phase->exec->cuda, &phase->entered, err);
    if (status) {
        return status;
    }
    if (phase->list) {
        oct_list_step(phase->list, OCTET_ABSENT);
    }
    status = zero_raised(phase, err);
    if (status) {
        end(phase);
    }
    return status;
}

/* ---- lists ----------------------------------------------------------------------------- */

_Static_assert(OCT_REGIONS <= OCT_LIST_REGIONS && OCT_START_ALIGN == OCT_LIST_ALIGN,
               "regions and addresses are as lists have them");

static octet_status list_make(void **out, const octet_exec *exec, octet_error *err) {
    oct_cuda_list *list = NULL;
    octet_status status = oct_list_make(&list, exec->cuda, err);
    *out = list;
    return status;
}

static void list_free(void *list) {
    oct_list_free(list);
}

static uint64_t list_regions(const void *list) {
    return oct_list_regions(list);
}

static size_t list_print(char *text, size_t size, const void *list) {
    return oct_list_print(text, size, list);
}

/* cuBLASLt refused a product that it had proposed itself when the list was made. The whole step
 * is decided and launched anew, and the list goes on behind it. */
static octet_status do_again(oct_list_place *place, const oct_phase *phase, octet_error *err) {
    oct_phase direct = *phase;
    uint64_t done = 0;
    direct.list = NULL;
    oct_phase_decide(&direct);
    place->at = oct_list_behind(phase->list, place->at);
    return oct_run_step(&direct, place->step, &done, err);
}

static octet_status walk(bool *stale, const oct_phase *phase, const oct_starts *starts,
                         octet_error *err) {
    const octet_exec *exec = phase->exec;
    oct_list_place place = {0, 0, true};
    bool entered;
    octet_status status = oct_cuda_enter(exec->cuda, &entered, err);
    if (status) {
        return status;
    }
    while (!status && place.refused) {
        status = oct_list_walk(&place, phase->list, starts->at, exec->stream, err);
        if (!status && place.refused) {
            *stale = true;
            status = do_again(&place, phase, err);
        }
    }
    oct_cuda_leave(exec->cuda, entered);
    return status;
}

/* ---- delayed scaling ------------------------------------------------------------------- */

static octet_status record(const octet_delayed *state, const float *amax,
                           const octet_exec *exec, octet_error *err) {
    oct_cuda_on on = {.cuda = exec->cuda, .stream = exec->stream};
    return oct_cuda_delayed_record(&on, state, amax, err);
}

static octet_status update(const octet_delayed *state, const float *amax, const float *reduced,
                           const octet_exec *exec, octet_error *err) {
    oct_cuda_on on = {.cuda = exec->cuda, .stream = exec->stream};
    return oct_cuda_delayed_update(&on, state, amax, reduced, err);
}

static octet_status update_all(const octet_delayed *states, int count, const octet_exec *exec,
                               octet_error *err) {
    oct_cuda_on on = {.cuda = exec->cuda, .stream = exec->stream};
    return oct_cuda_delayed_update_all(&on, states, count, err);
}

const oct_runner oct_cuda_runner = {
    .check = check,
    .begin = begin,
    .end = end,
    .work = work_one,
    .work_two = work_two,
    .list_make = list_make,
    .stand_in = oct_list_stand_in,
    .walk = walk,
    .list_free = list_free,
    .list_regions = list_regions,
    .list_print = list_print,
    .record = record,
    .update = update,
    .update_all = update_all,
};
