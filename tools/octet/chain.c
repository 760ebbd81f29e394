/* chain.c - the plans of a problem on one rank, with data and memory to run them. */
#include "chain.h"

#include <stdlib.h>
#include <string.h>

#include "problems.h"
#include "prologue.h"

void *oct_cli_chain_memory(oct_cli_chain *chain, int64_t bytes) {
    size_t room = ((size_t)bytes + OCTET_ARENA_ALIGN) & ~(size_t)(OCTET_ARENA_ALIGN - 1);
    void *memory = aligned_alloc(OCTET_ARENA_ALIGN, room);
    size_t count = (size_t)chain->block_count + 1;
    chain->blocks = oct_cli_memory(chain->blocks, count * sizeof(void *));
    if (memory == NULL) {
        fprintf(stderr, "octet: no memory for %zu bytes\n", room);
        exit(OCT_CLI_ERROR);
    }
    memset(memory, 0xFF, room);
    chain->blocks[chain->block_count++] = memory;
    return memory;
}

void oct_cli_chain_drop(oct_cli_chain *chain) {
    oct_cli_matrix *all[] = {&chain->x,     &chain->w,         &chain->b,
                             &chain->gamma, &chain->beta,      &chain->f,
                             &chain->dy,    &chain->main_grad, &chain->bias_main_grad};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        oct_cli_matrix_drop(all[i]);
    }
    for (int i = 0; i < chain->block_count; i++) {
        free(chain->blocks[i]);
    }
    free(chain->blocks);
    memset(chain, 0, sizeof *chain);
}

/* ---- data ------------------------------------------------------------------------------ */

float oct_cli_chain_scale(const oct_cli_chain *chain, octet_role role, double amax) {
    octet_quantizer q;
    const octet_recipe *recipe = &chain->args.forward.recipe;
    if (octet_recipe_quantizer(&q, recipe, role, NULL) != OCTET_OK || !(amax > 0)) {
        return 1;
    }
    return (float)((q.format == OCTET_E5M2 ? 57344 : 448) / (1.5 * amax));
}

static octet_status make_data(oct_cli_chain *chain, octet_error *err) {
    const octet_linear_args *args = &chain->args.forward;
    octet_proto dy;
    octet_status status = octet_proto_flatten(&dy, &chain->args.grad_output, err);
    if (status != OCTET_OK) {
        return status;
    }
    const octet_extents *e = &chain->plans[0].extents;
    octet_dtype bias = args->bias.dtype != OCTET_NONE ? args->bias.dtype : OCTET_F32;
    octet_dtype main_grad = args->main_grad_dtype ? args->main_grad_dtype : OCTET_F32;
    octet_dtype bias_main_grad =
        args->bias_main_grad_dtype ? args->bias_main_grad_dtype : OCTET_F32;
    bool gated = octet_prologue_is_gated((octet_prologue)args->prologue);
    chain->x =
        oct_cli_matrix_random(e->m, gated ? 2 * e->k : e->k, (octet_dtype)args->input.dtype, 1);
    chain->w = oct_cli_matrix_random(e->n, e->k, (octet_dtype)args->weight.dtype, 2);
    chain->b = oct_cli_matrix_random(1, e->n, bias, 3);
    chain->dy = oct_cli_matrix_random(dy.shape[0], e->n, (octet_dtype)dy.dtype, 4);
    chain->main_grad = oct_cli_matrix_random(e->n, e->k, main_grad, 5);
    chain->bias_main_grad = oct_cli_matrix_random(1, e->n, bias_main_grad, 6);
    octet_dtype gamma = args->gamma.dtype ? args->gamma.dtype : OCTET_F32;
    octet_dtype beta = args->beta.dtype ? args->beta.dtype : OCTET_F32;
    chain->gamma = oct_cli_matrix_random(1, e->k, gamma, 7);
    chain->beta = oct_cli_matrix_random(1, e->k, beta, 8);
    chain->f = args->prologue
                   ? oct_cli_prologue(chain)
                   : oct_cli_matrix_random(e->m, e->k, (octet_dtype)args->input.dtype, 1);
    double x = oct_cli_matrix_amax(&chain->f), w = oct_cli_matrix_amax(&chain->w);
    double grad = oct_cli_matrix_amax(&chain->dy);
    float *scales = chain->scale[0], *grad_scales = chain->scale[1];
    scales[OCTET_SLOT_INPUT] = oct_cli_chain_scale(chain, OCTET_INPUT, x);
    scales[OCTET_SLOT_WEIGHT] = oct_cli_chain_scale(chain, OCTET_WEIGHT, w);
    scales[OCTET_SLOT_OUTPUT] = oct_cli_chain_scale(chain, OCTET_OUTPUT, 1);
    grad_scales[OCTET_SLOT_GRAD_OUTPUT] = oct_cli_chain_scale(chain, OCTET_GRAD_OUTPUT, grad);
    grad_scales[OCTET_SLOT_GRAD_INPUT] = oct_cli_chain_scale(chain, OCTET_GRAD_INPUT, 1);
    chain->seed = 20;
    return OCTET_OK;
}

static const oct_cli_matrix *matrix_of(const oct_cli_chain *chain, uint8_t name) {
    switch (name) {
    case OCTET_NAME_INPUT:
        return &chain->x;
    case OCTET_NAME_WEIGHT:
        return &chain->w;
    case OCTET_NAME_BIAS:
        return &chain->b;
    case OCTET_NAME_GAMMA:
        return &chain->gamma;
    case OCTET_NAME_BETA:
        return &chain->beta;
    case OCTET_NAME_GRAD_OUTPUT:
        return &chain->dy;
    case OCTET_NAME_BIAS_MAIN_GRAD:
        return &chain->bias_main_grad;
    default:
        return &chain->main_grad;
    }
}

static void *store(oct_cli_chain *chain, const oct_cli_matrix *values, octet_dtype dtype) {
    int64_t count = values->rows * values->cols;
    void *memory = oct_cli_chain_memory(chain, count * octet_dtype_bits(dtype) / 8);
    for (int64_t i = 0; i < count; i++) {
        oct_cli_store(memory, dtype, i, values->at[i]);
    }
    return memory;
}

/* ---- the memory of one plan ------------------------------------------------------------ */

/* A quantized argument: all buffers of `name` and its form at once, wherever they are ports. */
static octet_status give_quantized(oct_cli_chain *chain, int plan, const octet_port *first,
                                   octet_error *err) {
    const octet_linear_args *args = &chain->args.forward;
    uint8_t name = first->name, form = first->form;
    const octet_proto *given = name == OCTET_NAME_INPUT    ? &args->input
                               : name == OCTET_NAME_WEIGHT ? &args->weight
                                                           : &chain->args.grad_output;
    octet_quantizer q = given->quantizer;
    octet_plan quantize = OCTET_PLAN_INIT;
    octet_memory memory = OCTET_MEMORY_INIT;
    octet_exec exec = OCTET_EXEC_INIT;
    octet_proto plain;
    octet_status status = octet_proto_flatten(&plain, given, err);
    memset(&plain.quantizer, 0, sizeof plain.quantizer);
    if (status == OCTET_OK && form == OCTET_FORM_CACHED) {
        status = octet_linear_cache_quantizer(&q, args, err);
    }
    if (status == OCTET_OK) {
        status = octet_plan_quantize(&quantize, &plain, &q, err);
    }
    if (status != OCTET_OK) {
        return status;
    }
    memory.args[0] = store(chain, matrix_of(chain, name), (octet_dtype)given->dtype);
    for (int i = 1; i < quantize.arg_count; i++) {
        bool scale = quantize.args[i].name == OCTET_NAME_SCALE;
        const float *slot = name == OCTET_NAME_GRAD_OUTPUT
                                ? &chain->scale[1][OCTET_SLOT_GRAD_OUTPUT]
                            : name == OCTET_NAME_WEIGHT ? &chain->scale[0][OCTET_SLOT_WEIGHT]
                                                        : &chain->scale[0][OCTET_SLOT_INPUT];
        memory.args[i] = scale ? (const void *)slot : (const void *)&chain->seed;
    }
    for (int i = 0; i < quantize.out_count; i++) {
        memory.outs[i] = oct_cli_chain_memory(chain, quantize.outs[i].bytes);
    }
    memory.workspace_bytes = quantize.workspace_bytes;
    memory.workspace = oct_cli_chain_memory(chain, quantize.workspace_bytes);
    status = octet_run(&quantize, &memory, &exec, err);
    for (int i = 0; i < chain->plans[plan].arg_count; i++) {
        const octet_port *port = &chain->plans[plan].args[i];
        for (int j = 0; j < quantize.out_count; j++) {
            if (port->name == name && port->form == form &&
                port->part == quantize.outs[j].part) {
                chain->memory[plan].args[i] = memory.outs[j];
            }
        }
    }
    return status;
}

static octet_status give_argument(oct_cli_chain *chain, int plan, int index, octet_error *err) {
    const octet_port *port = &chain->plans[plan].args[index];
    const void **at = &chain->memory[plan].args[index];
    if (*at != NULL) {
        return OCTET_OK; /* saved by the plan before, or given with its other buffers */
    }
    if (port->name == OCTET_NAME_SCALE) {
        *at = chain->scale[plan > 0];
    } else if (port->name == OCTET_NAME_AMAX) {
        *at = chain->amax[plan > 0];
    } else if (port->name == OCTET_NAME_SEED) {
        *at = &chain->seed;
    } else if (port->part != OCTET_PART_VALUES) {
        return give_quantized(chain, plan, port, err);
    } else {
        *at = store(chain, matrix_of(chain, port->name), (octet_dtype)port->dtype);
    }
    return OCTET_OK;
}

/* What the plan before this one saved of its arguments and outputs, and the blocks it saved. */
static void give_restored(oct_cli_chain *chain, int plan) {
    const octet_plan *before = &chain->plans[plan - 1], *now = &chain->plans[plan];
    const octet_memory *from = &chain->memory[plan - 1];
    octet_memory *to = &chain->memory[plan];
    for (int i = 0; i < now->restored_count; i++) {
        const octet_plan_buffer *there = &before->buffers[before->saved[i]];
        const octet_plan_buffer *here = &now->buffers[now->restored[i]];
        if (here->place == OCTET_PLACE_ARG) {
            to->args[here->port] = there->place == OCTET_PLACE_OUT ? from->outs[there->port]
                                                                   : from->args[there->port];
        }
    }
    for (int i = 0; i < plan; i++) {
        to->restored[i] = chain->memory[i].saved;
        to->restored_bytes[i] = chain->memory[i].saved_bytes;
    }
}

static octet_status give_memory(oct_cli_chain *chain, int plan, octet_error *err) {
    const octet_plan *p = &chain->plans[plan];
    octet_memory *m = &chain->memory[plan];
    octet_status status = OCTET_OK;
    *m = OCTET_MEMORY_INIT;
    if (plan > 0) {
        give_restored(chain, plan);
    }
    for (int i = 0; i < p->arg_count && status == OCTET_OK; i++) {
        status = give_argument(chain, plan, i, err);
    }
    for (int i = 0; i < p->out_count; i++) {
        m->outs[i] = oct_cli_chain_memory(chain, p->outs[i].bytes);
    }
    for (int i = 0; i < p->exchange_count; i++) {
        m->exchanges[i] = oct_cli_chain_memory(chain, p->exchanges[i].bytes);
    }
    m->saved_bytes = p->saved_bytes;
    m->saved = oct_cli_chain_memory(chain, p->saved_bytes);
    m->workspace_bytes = p->workspace_bytes;
    m->workspace = oct_cli_chain_memory(chain, p->workspace_bytes);
    return status;
}

/* ---- planning and running -------------------------------------------------------------- */

static octet_status read_problem(oct_cli_chain *chain, const char *problem, octet_error *err) {
    if (oct_cli_is_backward(problem)) {
        return octet_linear_backward_parse(&chain->args, problem, err);
    }
    octet_linear_args args;
    octet_status status = octet_linear_parse(&args, problem, err);
    return status == OCTET_OK ? octet_linear_backward_make(&chain->args, &args, err) : status;
}

static octet_status make_plans(oct_cli_chain *chain, octet_error *err) {
    const octet_linear_args *args = &chain->args.forward;
    for (int i = 0; i < OCT_CLI_PLANS; i++) {
        chain->plans[i] = OCTET_PLAN_INIT;
    }
    bool has_backward = args->input_requires_grad || args->weight_requires_grad ||
                        (args->bias_requires_grad && !args->return_bias) ||
                        args->gamma_requires_grad || args->beta_requires_grad;
    octet_status status = octet_plan_linear(&chain->plans[0], args, err);
    chain->count = 1;
    if (status == OCTET_OK && has_backward) {
        status = octet_plan_linear_backward(&chain->plans[1], &chain->args, err);
        chain->count = 2;
    }
    if (status == OCTET_OK && args->delay_wgrad && args->weight_requires_grad) {
        status = octet_plan_linear_wgrad(&chain->plans[2], &chain->args, err);
        chain->count = 3;
    }
    return status;
}

octet_status oct_cli_chain_make(oct_cli_chain *chain, const char *problem, uint32_t threads,
                                octet_error *err) {
    memset(chain, 0, sizeof *chain);
    octet_status status = read_problem(chain, problem, err);
    if (status == OCTET_OK) {
        uint32_t *asked = &chain->args.forward.threads;
        *asked = threads > *asked ? threads : *asked;
        status = make_plans(chain, err);
    }
    if (status == OCTET_OK) {
        status = make_data(chain, err);
    }
    for (int i = 0; i < chain->count && status == OCTET_OK; i++) {
        status = give_memory(chain, i, err);
    }
    return status;
}

octet_status oct_cli_chain_run(const oct_cli_chain *chain, int plan, const octet_exec *exec,
                               octet_error *err) {
    octet_status status = OCTET_OK;
    for (int phase = 0; phase < chain->plans[plan].phases && status == OCTET_OK; phase++) {
        status = octet_run_phase(&chain->plans[plan], phase, &chain->memory[plan], exec, err);
    }
    return status;
}

bool oct_cli_chain_has_collectives(const oct_cli_chain *chain) {
    for (int i = 0; i < chain->count; i++) {
        for (int step = 0; step < chain->plans[i].step_count; step++) {
            if (chain->plans[i].steps[step].op == OCTET_OP_COLLECTIVE) {
                return true;
            }
        }
    }
    return false;
}
