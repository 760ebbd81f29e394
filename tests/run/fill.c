/* fill.c - the data of a Linear layer, and the arguments and memory of its plans. */
#include "fill.h"

/* ---- data ------------------------------------------------------------------------------ */

static run_values product(const run_values *a, const run_values *b, bool turn_a, bool turn_b) {
    int64_t rows = turn_a ? a->cols : a->rows, inner = turn_a ? a->rows : a->cols;
    run_values made = run_values_make(rows, turn_b ? b->rows : b->cols);
    for (int64_t r = 0; r < made.rows; r++) {
        for (int64_t c = 0; c < made.cols; c++) {
            double sum = 0;
            for (int64_t i = 0; i < inner; i++) {
                sum += *(turn_a ? run_cell(a, i, r) : run_cell(a, r, i)) *
                       *(turn_b ? run_cell(b, c, i) : run_cell(b, i, c));
            }
            *run_cell(&made, r, c) = sum;
        }
    }
    return made;
}

static float scale_for(const octet_recipe *recipe, octet_role role, const run_values *values) {
    octet_quantizer q;
    double amax = run_amax(values);
    if (octet_recipe_quantizer(&q, recipe, role, NULL) || amax == 0) {
        return 1.0f;
    }
    return (float)((q.format == OCTET_E5M2 ? 57344 : 448) / (1.5 * amax));
}

/* With a prologue these are only of a like size: its steps are checked one by one. */
static void multiply(run_layer *l, const octet_linear_args *args) {
    bool adds_bias = args->bias.dtype && !args->return_bias;
    run_values x = run_values_cut(&l->x, 0, 0, l->x.rows, l->w.cols);
    l->y = product(&x, &l->w, false, true);
    l->dx = product(&l->dy, &l->w, false, false);
    l->dw = product(&l->dy, &x, true, false);
    run_values_free(&x);
    l->db = run_values_make(1, l->w.rows);
    for (int64_t i = 0; i < l->y.rows * l->y.cols; i++) {
        l->y.at[i] += adds_bias ? l->b.at[i % l->y.cols] : 0;
        l->db.at[i % l->y.cols] += l->dy.at[i];
    }
}

/* What amaxes are raised from: smaller, larger, and what is no amax. */
static void fill_amaxes(run_layer *l, uint64_t seed) {
    const float kinds[] = {0.0f, 0x1p-20f, 0x1p90f, NAN, -1.0f, -0.0f, INFINITY};
    for (int i = 0; i < 6; i++) {
        l->amax[i / 3][i % 3] = kinds[(seed + (uint64_t)i) % 7];
    }
}

void run_make_layer(run_group *group) {
    const octet_linear_args *args = &group->args.forward;
    const octet_extents *e = &group->plans[0].extents;
    run_layer *l = &group->layer;
    uint64_t state = group->options.seed;
    bool column = args->parallel == OCTET_PARALLEL_COLUMN;
    int ranks = group->ranks;
    int64_t m = column && args->sequence_parallel ? e->m * ranks : e->m;
    int64_t k = column ? e->k : e->k * ranks, n = column ? e->n * ranks : e->n;
    octet_dtype main_dtype = args->main_grad_dtype ? args->main_grad_dtype : OCTET_F32;
    int wide = octet_prologue_is_gated((octet_prologue)args->prologue) ? 2 : 1;
    l->x = run_values_random(m, k * wide, (octet_dtype)args->input.dtype, &state);
    l->w = run_values_random(n, k, (octet_dtype)args->weight.dtype, &state);
    l->b = run_values_random(1, n, args->bias.dtype ? args->bias.dtype : OCTET_F32, &state);
    l->dy = run_values_random(m, n, (octet_dtype)group->args.grad_output.dtype, &state);
    octet_dtype bias_main = args->bias_main_grad_dtype ? args->bias_main_grad_dtype : OCTET_F32;
    l->main_grad = run_values_random(n, k, main_dtype, &state);
    l->bias_main_grad = run_values_random(1, n, bias_main, &state);
    octet_dtype gamma = args->gamma.dtype ? args->gamma.dtype : OCTET_F32;
    octet_dtype beta = args->beta.dtype ? args->beta.dtype : OCTET_F32;
    l->gamma = run_values_random(1, k, gamma, &state);
    l->beta = run_values_random(1, k, beta, &state);
    multiply(l, args);
    const run_values *forward[] = {&l->x, &l->w, &l->y}, *backward[] = {&l->dy, &l->dx};
    for (int i = 0; i < 3; i++) {
        l->scale[0][i] = scale_for(&args->recipe, (octet_role)i, forward[i]);
    }
    for (int i = 0; i < 2; i++) {
        octet_role role = (octet_role)(OCTET_GRAD_OUTPUT + i);
        l->scale[1][i] = scale_for(&args->recipe, role, backward[i]);
    }
    fill_amaxes(l, group->options.seed);
    l->seed = (int64_t)run_next(&state);
}

octet_status run_quantize(run_group *group, void *parts[OCTET_PARTS], const run_values *values,
                          const run_quantizing *how) {
    octet_plan plan = OCTET_PLAN_INIT;
    octet_memory memory = OCTET_MEMORY_INIT;
    octet_exec exec = OCTET_EXEC_INIT;
    int64_t shape[] = {values->rows, values->cols};
    octet_proto proto = octet_proto_make(how->dtype, 2, shape);
    octet_status status = octet_plan_quantize(&plan, &proto, &how->quantizer, &group->err);
    if (status) {
        return status;
    }
    void *x = run_allocate(group, plan.args[0].bytes, 0);
    for (int64_t i = 0; i < values->rows * values->cols; i++) {
        run_store(x, how->dtype, i, values->at[i]);
    }
    memory.args[0] = x;
    for (int i = 0; i < plan.step_count; i++) {
        plan.steps[i].stream = plan.steps[i].seed == OCTET_ABSENT ? 0 : how->stream;
    }
    for (int i = 1; i < plan.arg_count; i++) {
        memory.args[i] = plan.args[i].name == OCTET_NAME_SCALE ? (const void *)&how->scale
                                                               : (const void *)how->seed;
    }
    for (int i = 0; i < plan.out_count; i++) {
        memory.outs[i] = run_allocate(group, plan.outs[i].bytes, 0x5A);
        parts[plan.outs[i].part] = plan.outs[i].name == OCTET_NAME_AMAX ? NULL : memory.outs[i];
    }
    memory.workspace = run_allocate(group, plan.workspace_bytes, 0xFF);
    memory.workspace_bytes = plan.workspace_bytes;
    return octet_run(&plan, &memory, &exec, &group->err);
}

/* ---- the memory of one plan on one rank ------------------------------------------------- */

const run_values *run_whole(const run_layer *l, int name) {
    switch (name) {
    case OCTET_NAME_INPUT:
        return &l->x;
    case OCTET_NAME_WEIGHT:
        return &l->w;
    case OCTET_NAME_BIAS:
        return &l->b;
    case OCTET_NAME_GAMMA:
        return &l->gamma;
    case OCTET_NAME_BETA:
        return &l->beta;
    case OCTET_NAME_GRAD_OUTPUT:
        return &l->dy;
    case OCTET_NAME_OUTPUT:
        return &l->y;
    case OCTET_NAME_GRAD_INPUT:
        return &l->dx;
    case OCTET_NAME_GRAD_WEIGHT:
        return &l->dw;
    case OCTET_NAME_GRAD_BIAS:
        return &l->db;
    case OCTET_NAME_BIAS_MAIN_GRAD:
        return &l->bias_main_grad;
    default:
        return &l->main_grad;
    }
}

static const octet_proto *proto_of(const run_group *group, int name) {
    const octet_linear_args *args = &group->args.forward;
    return name == OCTET_NAME_INPUT    ? &args->input
           : name == OCTET_NAME_WEIGHT ? &args->weight
                                       : &group->args.grad_output;
}

static octet_status give_quantized(run_group *group, int rank, const void **at,
                                   const octet_port *port) {
    const octet_proto *proto = proto_of(group, port->name);
    octet_proto flat;
    run_quantizing how = {proto->quantizer, (octet_dtype)proto->dtype, 1.0f, &group->layer.seed,
                          OCTET_STREAM_ALONE};
    octet_status status = octet_proto_flatten(&flat, proto, &group->err);
    if (!status && port->form == OCTET_FORM_CACHED) {
        how.stream = OCTET_STREAM_WEIGHT; /* as the first microbatch's forward */
        status =
            octet_linear_cache_quantizer(&how.quantizer, &group->args.forward, &group->err);
    }
    if (status) {
        return status;
    }
    how.scale = port->name == OCTET_NAME_GRAD_OUTPUT
                    ? group->layer.scale[1][0]
                    : group->layer.scale[0][port->name == OCTET_NAME_WEIGHT];
    void *parts[OCTET_PARTS] = {NULL};
    run_values local =
        run_local(run_whole(&group->layer, port->name), rank, flat.shape[0], flat.shape[1]);
    status = run_quantize(group, parts, &local, &how);
    run_values_free(&local);
    *at = parts[port->part];
    return status;
}

static void give_values(run_group *group, int rank, octet_memory *m, int index,
                        const octet_port *port) {
    bool vector = port->ndim == 1;
    int64_t rows = vector ? 1 : port->shape[0], cols = port->shape[vector ? 0 : 1];
    int64_t stride = group->options.strided && !vector ? cols + 3 : cols;
    octet_dtype dtype = (octet_dtype)port->dtype;
    int64_t count = rows ? (rows - 1) * stride + cols : 0;
    void *at = run_allocate(group, count * octet_dtype_bits(dtype) / 8, 0xFF);
    run_values local = run_local(run_whole(&group->layer, port->name), rank, rows, cols);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++) {
            run_store(at, dtype, r * stride + c, *run_cell(&local, r, c));
        }
    }
    run_values_free(&local);
    m->args[index] = at;
    m->arg_strides[index] = stride != cols ? stride : 0;
}

static const void *copy(run_group *group, const void *from, int64_t bytes) {
    return memcpy(run_allocate(group, bytes, 0), from, (size_t)bytes);
}

static octet_status give_argument(run_group *group, int rank, int plan, int index) {
    octet_memory *m = &group->memory[rank][plan];
    const octet_port *port = &group->plans[plan].args[index];
    if (m->args[index]) {
        return OCTET_OK; /* saved by the plan before */
    }
    if (port->name == OCTET_NAME_SCALE) {
        m->args[index] = copy(group, group->layer.scale[plan > 0], port->bytes);
    } else if (port->name == OCTET_NAME_AMAX) {
        m->args[index] = copy(group, group->layer.amax[plan > 0], port->bytes);
    } else if (port->name == OCTET_NAME_SEED) {
        m->args[index] = copy(group, &group->layer.seed, port->bytes);
    } else if (port->part != OCTET_PART_VALUES) {
        return give_quantized(group, rank, &m->args[index], port);
    } else {
        give_values(group, rank, m, index, port);
    }
    return OCTET_OK;
}

/* What the plan before this one saved: arguments it was given, outputs it made. */
static void give_restored(run_group *group, int rank, int plan) {
    const octet_plan *before = &group->plans[plan - 1], *now = &group->plans[plan];
    const octet_memory *from = &group->memory[rank][plan - 1];
    octet_memory *m = &group->memory[rank][plan];
    for (int i = 0; i < now->restored_count; i++) {
        const octet_plan_buffer *there = &before->buffers[before->saved[i]];
        const octet_plan_buffer *here = &now->buffers[now->restored[i]];
        if (here->place == OCTET_PLACE_ARG) {
            bool argument = there->place == OCTET_PLACE_ARG;
            m->args[here->port] = run_block_start(from, there);
            m->arg_strides[here->port] = argument ? from->arg_strides[there->port] : 0;
        }
    }
    for (int i = 0; i < plan; i++) {
        m->restored[i] = group->memory[rank][i].saved;
        m->restored_bytes[i] = group->memory[rank][i].saved_bytes;
    }
}

octet_status run_give_memory(run_group *group, int rank, int plan) {
    const octet_plan *p = &group->plans[plan];
    octet_memory *m = &group->memory[rank][plan];
    octet_status status = OCTET_OK;
    int fill = group->options.fill;
    *m = OCTET_MEMORY_INIT;
    if (plan) {
        give_restored(group, rank, plan);
    }
    for (int i = 0; i < p->arg_count && !status; i++) {
        status = give_argument(group, rank, plan, i);
    }
    for (int i = 0; i < p->out_count; i++) {
        bool alias = p->outs[i].alias != OCTET_ABSENT;
        m->outs[i] = alias ? NULL : run_allocate(group, p->outs[i].bytes, fill);
    }
    for (int i = 0; i < p->exchange_count; i++) {
        m->exchanges[i] = run_allocate(group, p->exchanges[i].bytes, fill);
    }
    m->saved = run_allocate(group, p->saved_bytes, fill);
    m->saved_bytes = p->saved_bytes;
    m->workspace = run_allocate(group, p->workspace_bytes, fill);
    m->workspace_bytes = p->workspace_bytes;
    return status;
}
