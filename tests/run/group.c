/* group.c - the plans of a Linear layer on ranks that run in turn. */
#include "fill.h"

/* Every byte is to be written: where ranks agree on an amax, no other source has these. */
static void ask_for_all(octet_plan *plan) {
    for (int i = 0; i < plan->step_count; i++) {
        plan->steps[i].row_unread = plan->steps[i].col_unread = 0;
    }
}

/* Amaxes are in front of the workspace, where no other buffer lies. */
static bool is_amax(const octet_plan *plan, const octet_plan_buffer *b) {
    return b->part == OCTET_PART_ROW_AMAX || b->part == OCTET_PART_COL_AMAX ||
           plan->tensors[b->tensor].form == OCTET_FORM_MEASURED;
}

/* No two buffers of the workspace share bytes, so that each step can be checked by what it
 * left. */
static void lay_apart(octet_plan *plan) {
    int64_t end = 0;
    for (int i = 0; i < plan->buffer_count; i++) {
        octet_plan_buffer *b = &plan->buffers[i];
        bool first = b->place == OCTET_PLACE_WORK && is_amax(plan, b);
        end = first && b->offset + b->bytes > end ? b->offset + b->bytes : end;
    }
    for (int sized = 0; sized < 2; sized++) { /* what products work in is behind the rest */
        for (int i = 0; i < plan->buffer_count; i++) {
            octet_plan_buffer *b = &plan->buffers[i];
            if (b->place == OCTET_PLACE_WORK && !is_amax(plan, b) && b->sized == sized) {
                b->offset = (end + OCTET_ALIGN - 1) / OCTET_ALIGN * OCTET_ALIGN;
                end = b->offset + b->bytes;
            }
        }
    }
    plan->workspace_bytes = (end + OCTET_ALIGN - 1) / OCTET_ALIGN * OCTET_ALIGN;
}

octet_status run_group_make(run_group *group, const octet_linear_backward_args *args,
                            const run_options *options) {
    memset(group, 0, sizeof *group);
    group->args = *args;
    group->options = *options;
    octet_linear_args *call = &group->args.forward;
    call->threads = (uint32_t)(options->lanes ? options->lanes : options->threads);
    for (int i = 0; i < RUN_PLANS; i++) {
        group->plans[i] = OCTET_PLAN_INIT;
    }
    bool grads = call->input_requires_grad || call->weight_requires_grad ||
                 (call->bias.dtype && call->bias_requires_grad && !call->return_bias) ||
                 call->gamma_requires_grad || call->beta_requires_grad;
    octet_status status = octet_plan_linear(&group->plans[0], call, &group->err);
    group->count = 1;
    if (!status && grads) {
        status = octet_plan_linear_backward(&group->plans[1], &group->args, &group->err);
        group->count = 2;
    }
    if (!status && call->delay_wgrad && call->weight_requires_grad) {
        status = octet_plan_linear_wgrad(&group->plans[2], &group->args, &group->err);
        group->count = 3;
    }
    if (status) {
        return status;
    }
    group->ranks = call->parallel && call->tp_size > 1 ? (int)call->tp_size : 1;
    for (int plan = 0; group->ranks > 1 && plan < group->count; plan++) {
        ask_for_all(&group->plans[plan]);
    }
    for (int plan = 0; !options->shared && plan < group->count; plan++) {
        lay_apart(&group->plans[plan]);
    }
    run_make_layer(group);
    for (int rank = 0; rank < group->ranks && !status; rank++) {
        for (int plan = 0; plan < group->count && !status; plan++) {
            status = run_give_memory(group, rank, plan);
        }
    }
    return status;
}

/* ---- running --------------------------------------------------------------------------- */

/* A rank's buffer that a collective reads, as one piece: rows of an argument may lie apart. */
static const void *dense(run_group *group, int rank, int plan, int buffer) {
    const octet_plan_buffer *b = &group->plans[plan].buffers[buffer];
    char *from = run_at(group, rank, plan, buffer);
    int64_t stride =
        b->place == OCTET_PLACE_ARG ? group->memory[rank][plan].arg_strides[b->port] : 0;
    if (!stride) {
        return from;
    }
    int64_t size = octet_dtype_bits((octet_dtype)b->dtype) / 8, row = b->shape[1] * size;
    char *made = run_allocate(group, b->bytes, 0);
    for (int64_t r = 0; r < b->shape[0]; r++) {
        memcpy(made + r * row, from + r * stride * size, (size_t)row);
    }
    return made;
}

static double reduced(const void *const pieces[RUN_RANKS], int ranks, const octet_step *step,
                      octet_dtype dtype, int64_t index) {
    bool max = step->collective == OCTET_ALL_REDUCE_MAX;
    double value = 0;
    for (int rank = 0; rank < ranks; rank++) {
        double one = run_load(pieces[rank], dtype, index);
        value = max ? fmax(value, one) : value + one;
    }
    return value;
}

static void collect(run_group *group, int plan, const octet_step *step) {
    const octet_plan_buffer *from = &group->plans[plan].buffers[step->from];
    const octet_plan_buffer *to = &group->plans[plan].buffers[step->to];
    octet_dtype dtype = (octet_dtype)from->dtype;
    int64_t count = to->bytes / (octet_dtype_bits(dtype) / 8);
    /* Of a chunk, these rows alone, which lie one after the other. */
    bool chunk = step->chunk != OCTET_ABSENT;
    int64_t sent = chunk ? from->bytes / group->plans[plan].chunks : from->bytes;
    const void *pieces[RUN_RANKS];
    for (int rank = 0; rank < group->ranks; rank++) {
        const char *all = dense(group, rank, plan, step->from);
        pieces[rank] = all + (chunk ? step->chunk * sent : 0);
    }
    for (int rank = 0; rank < group->ranks; rank++) {
        char *out = run_at(group, rank, plan, step->to);
        int64_t first = step->collective == OCTET_REDUCE_SCATTER ? rank * count : 0;
        for (int peer = 0; step->collective == OCTET_ALL_GATHER && peer < group->ranks;
             peer++) {
            memcpy(out + peer * sent, pieces[peer], (size_t)sent);
        }
        for (int64_t i = 0; step->collective != OCTET_ALL_GATHER && i < count; i++) {
            run_store(out, dtype, i, reduced(pieces, group->ranks, step, dtype, first + i));
        }
    }
}

static octet_status run_phases(run_group *group, int plan, const octet_exec *exec) {
    const octet_plan *p = &group->plans[plan];
    run_phase *run = group->options.run ? group->options.run : octet_run_phase;
    octet_status status = OCTET_OK;
    for (int phase = 0; phase < p->phases && !status; phase++) {
        for (int rank = 0; rank < group->ranks && !status; rank++) {
            status = run(p, phase, &group->memory[rank][plan], exec, &group->err);
        }
        for (int i = 0; i < p->step_count && !status; i++) {
            if (p->steps[i].phase == phase && p->steps[i].op == OCTET_OP_COLLECTIVE) {
                collect(group, plan, &p->steps[i]);
            }
        }
    }
    return status;
}

octet_status run_group_run(run_group *group) {
    octet_exec exec = OCTET_EXEC_INIT;
    exec.cuda = group->options.cuda;
    octet_pool *pool = NULL;
    octet_status status = OCTET_OK;
    if (group->options.threads > 1) {
        status = octet_pool_create(&pool, group->options.threads, &group->err);
        exec.threads = (uint32_t)group->options.threads;
        exec.parallel_for = octet_pool_parallel_for;
        exec.pool = pool;
    }
    for (int plan = 0; plan < group->count && !status; plan++) {
        status = run_phases(group, plan, &exec);
    }
    octet_pool_free(pool);
    return status;
}

/* ---- results ----------------------------------------------------------------------------- */

bool run_same_results(const run_group *a, const run_group *b) {
    bool same = a->count == b->count;
    for (int plan = 0; same && plan < a->count; plan++) {
        const octet_plan *p = &a->plans[plan];
        for (int i = 0; i < p->buffer_count; i++) {
            const octet_plan_buffer *buffer = &p->buffers[i];
            bool mutable_arg =
                buffer->place == OCTET_PLACE_ARG && p->args[buffer->port].is_mutable;
            bool result = buffer->place == OCTET_PLACE_OUT ||
                          buffer->place == OCTET_PLACE_SAVED || mutable_arg;
            for (int rank = 0; result && rank < a->ranks; rank++) {
                same = same && memcmp(run_at(a, rank, plan, i), run_at(b, rank, plan, i),
                                      (size_t)buffer->bytes) == 0;
            }
        }
    }
    return same;
}
