/* check_meaning.h - what the arguments ask for happens: outputs, gradients, bias, saving. */
#ifndef OCTET_CHECK_MEANING_H
#define OCTET_CHECK_MEANING_H

#include "check_chain.h"
#include "check_slots.h"

/* One plan of a chain under test. */
typedef struct check_case {
    check_report *report;
    const check_chain *chain;
    const octet_plan *plan;
    const octet_linear_args *args;
    check_wants wants;
} check_case;

#define MEANS(at, held, ...) CHECK_LAW((at)->report, LAW_MEANING, held, __VA_ARGS__)

/* ---- header ---------------------------------------------------------------------------- */

static inline void check_header(const check_case *at) {
    const octet_plan *plan = at->plan;
    const check_wants *wants = &at->wants;
    MEANS(at,
          plan->extents.m == wants->m && plan->extents.k == wants->k &&
              plan->extents.n == wants->n,
          "its extents are not those of its arguments");
    MEANS(at, memcmp(&plan->device, &at->args->input.device, sizeof plan->device) == 0,
          "its device is not its input's");
    MEANS(at,
          plan->prologue == at->args->prologue && plan->eps == at->args->eps &&
              plan->zero_centered == at->args->zero_centered,
          "its prologue is not that of its arguments");
    MEANS(at, (int)plan->tp_size == wants->tp && plan->recipe == at->args->recipe.kind,
          "it does not say its group's size or its recipe");
}

/* ---- arguments ------------------------------------------------------------------------- */

static inline const octet_proto *check_proto_of(const check_case *at, int name) {
    return name == OCTET_NAME_INPUT         ? &at->args->input
           : name == OCTET_NAME_WEIGHT      ? &at->args->weight
           : name == OCTET_NAME_BIAS        ? &at->args->bias
           : name == OCTET_NAME_GAMMA       ? &at->args->gamma
           : name == OCTET_NAME_BETA        ? &at->args->beta
           : name == OCTET_NAME_GRAD_OUTPUT ? &at->chain->args.grad_output
                                            : NULL;
}

/* The quantizer that a tensor arrives with; scheme NONE where it is made here. */
static inline const octet_quantizer *check_given(const check_case *at, int name) {
    static const octet_quantizer none;
    const octet_proto *proto = check_proto_of(at, name);
    return proto ? &proto->quantizer : &none;
}

/* A port of a tensor as the caller knows it: one of its buffers. */
static inline bool check_is_given(const octet_port *port, const octet_proto *proto) {
    octet_proto flat;
    check_parts_list list;
    if (octet_proto_flatten(&flat, proto, NULL) != OCTET_OK ||
        !check_list_parts(&list, &flat.quantizer, (octet_dtype)flat.dtype, flat.shape)) {
        return false;
    }
    for (int i = 0; i < list.count; i++) {
        int64_t bytes = 0;
        if (list.parts[i] == port->part) {
            return octet_proto_bytes(&bytes, &list.buffers[i], NULL) == OCTET_OK &&
                   bytes == port->bytes && list.buffers[i].dtype == port->dtype;
        }
    }
    return false;
}

static inline void check_arguments(const check_case *at) {
    for (int i = 0; i < at->plan->arg_count; i++) {
        const octet_port *port = &at->plan->args[i];
        const octet_proto *proto = check_proto_of(at, port->name);
        if (proto && port->form == OCTET_FORM_GIVEN) {
            MEANS(at, check_is_given(port, proto), "argument %d is not what the caller has", i);
        }
    }
}

/* ---- results --------------------------------------------------------------------------- */

typedef struct check_result {
    octet_plan_name name;
    bool exists;
    int64_t rows, cols;
    octet_dtype dtype;
    octet_quantizer quantizer;
} check_result;

static inline octet_quantizer check_rowwise(const octet_quantizer *quantizer) {
    octet_quantizer changed = {.size = sizeof changed};
    if (quantizer->scheme != OCTET_SCHEME_NONE &&
        octet_quantizer_with_usage(&changed, quantizer, true, false, NULL) != OCTET_OK) {
        changed.scheme = OCTET_SCHEMES;
    }
    return changed;
}

/* The tensor that is in the outputs (or arguments) of this name; -1 when there is none. */
static inline int check_tensor_in(const octet_plan *plan, octet_place place, int name,
                                  int form) {
    const octet_port *ports = place == OCTET_PLACE_ARG ? plan->args : plan->outs;
    for (int i = 0; i < plan->buffer_count; i++) {
        const octet_plan_buffer *buffer = &plan->buffers[i];
        if (buffer->place == place && ports[buffer->port].name == name &&
            (form < 0 || ports[buffer->port].form == form)) {
            return buffer->tensor;
        }
    }
    return -1;
}

static inline void check_result_is(const check_case *at, const check_result *want) {
    const octet_plan *plan = at->plan;
    int index = check_tensor_in(plan, OCTET_PLACE_OUT, (int)want->name, -1);
    if (!MEANS(at, (index >= 0) == want->exists, "result %d %s", want->name,
               want->exists ? "is missing" : "is there and nobody asked for it") ||
        !want->exists) {
        return;
    }
    const octet_plan_tensor *tensor = &plan->tensors[index];
    int64_t rows = check_dim(plan, &tensor->rows), cols = check_dim(plan, &tensor->cols);
    MEANS(at, rows == want->rows && cols == want->cols,
          "result %d is %lld x %lld, not %lld x %lld", want->name, (long long)rows,
          (long long)cols, (long long)want->rows, (long long)want->cols);
    MEANS(at, tensor->dtype == want->dtype, "result %d is %s, not %s", want->name,
          octet_dtype_name((octet_dtype)tensor->dtype), octet_dtype_name(want->dtype));
    MEANS(at,
          tensor->quantizer.scheme == want->quantizer.scheme &&
              (want->quantizer.scheme == OCTET_SCHEME_NONE ||
               octet_quantizer_equal(&tensor->quantizer, &want->quantizer)),
          "result %d has another quantizer than it was asked for", want->name);
    uint64_t outs = check_place_mask(plan, OCTET_PLACE_OUT, -1);
    MEANS(at, (check_tensor_mask(plan, index) & ~outs) == 0, "result %d is not all handed out",
          want->name);
}

static inline int64_t check_output_rows(const check_case *at) {
    const octet_linear_args *args = at->args;
    if (!args->sequence_parallel || args->parallel == OCTET_PARALLEL_NONE) {
        return at->wants.m;
    }
    return args->parallel == OCTET_PARALLEL_COLUMN ? at->wants.m * at->wants.tp
                                                   : at->wants.m / at->wants.tp;
}

static inline void check_y(const check_case *at) {
    const octet_linear_args *args = at->args;
    check_result want = {
        .name = OCTET_NAME_OUTPUT,
        .exists = at->plan->kind == OCTET_PLAN_LINEAR,
        .rows = check_output_rows(at),
        .cols = at->wants.n,
        .dtype = (octet_dtype)(args->output_dtype ? args->output_dtype : args->input.dtype),
    };
    if (args->quantize_output) {
        want.quantizer = check_rowwise(&at->wants.role[OCTET_OUTPUT]);
    }
    check_result_is(at, &want);
}

static inline void check_grads(const check_case *at) {
    const octet_linear_args *args = at->args;
    const check_wants *wants = &at->wants;
    bool backward = at->plan->kind == OCTET_PLAN_LINEAR_BACKWARD;
    bool last = at->plan == &at->chain->plans[check_wgrad_stage(at->chain)];
    bool writes_weight = wants->wgrad && last && at->plan->kind != OCTET_PLAN_LINEAR;
    check_result dx = {.name = OCTET_NAME_GRAD_INPUT,
                       .exists = backward && wants->dx,
                       .rows = wants->m,
                       .cols = wants->k * (wants->gated ? 2 : 1),
                       .dtype = (octet_dtype)args->input.dtype};
    check_result dw = {.name = OCTET_NAME_GRAD_WEIGHT,
                       .exists = writes_weight && args->main_grad == OCTET_MAIN_GRAD_NONE,
                       .rows = wants->n,
                       .cols = wants->k,
                       .dtype = (octet_dtype)args->weight.dtype,
                       .quantizer = check_rowwise(&wants->role[OCTET_GRAD_WEIGHT])};
    check_result db = {.name = OCTET_NAME_GRAD_BIAS,
                       .exists = backward && wants->bias_grad &&
                                 args->bias_main_grad == OCTET_MAIN_GRAD_NONE,
                       .rows = 1,
                       .cols = wants->n,
                       .dtype = (octet_dtype)args->bias.dtype};
    if (args->quantize_grad_input) {
        dx.quantizer = check_rowwise(&wants->role[OCTET_GRAD_INPUT]);
    }
    check_result gamma = {.name = OCTET_NAME_GRAD_GAMMA,
                          .exists = backward && wants->gamma_grad,
                          .rows = 1,
                          .cols = wants->k,
                          .dtype = (octet_dtype)args->gamma.dtype};
    check_result beta = {.name = OCTET_NAME_GRAD_BETA,
                         .exists = backward && wants->beta_grad,
                         .rows = 1,
                         .cols = wants->k,
                         .dtype = (octet_dtype)args->beta.dtype};
    check_result_is(at, &gamma);
    check_result_is(at, &beta);
    check_result_is(at, &dx);
    check_result_is(at, &dw);
    check_result_is(at, &db);
}

/* A gradient that goes to the caller's memory. */
typedef struct check_into {
    octet_plan_name name;
    bool wanted;
    uint8_t how, dtype; /* octet_main_grad, octet_dtype */
    int64_t cols;       /* 0: it is a vector of N */
} check_into;

/* An argument, written, and read only to be added to. */
static inline void check_written(const check_case *at, const check_into *want) {
    const octet_plan *plan = at->plan;
    int port = check_find_port(plan->args, plan->arg_count, want->name);
    if (!MEANS(at, (port >= 0) == want->wanted, "main_grad %d is %s", want->name,
               want->wanted ? "missing" : "there and nobody asked for it") ||
        !want->wanted) {
        return;
    }
    const octet_port *to = &plan->args[port];
    int dtype = want->dtype ? want->dtype : OCTET_F32;
    uint64_t mask = check_place_mask(plan, OCTET_PLACE_ARG, port);
    bool read = (check_all_reads(plan) & mask) != 0;
    MEANS(at, to->is_mutable && (check_all_writes(plan) & mask) == mask && mask,
          "main_grad %d is not written as a mutable argument", want->name);
    MEANS(at, read == (want->how == OCTET_MAIN_GRAD_ADD), "main_grad %d is %s", want->name,
          read ? "overwritten, yet it is read" : "added to, yet it is not read");
    MEANS(at,
          to->dtype == dtype && to->ndim == 1 + (want->cols > 0) &&
              to->shape[0] == at->wants.n && to->shape[1] == want->cols,
          "main_grad %d has another shape or dtype", want->name);
}

/* The weight's in the plan that does wgrad, the bias's in backward's. */
static inline void check_main_grads(const check_case *at) {
    const octet_plan *plan = at->plan;
    const octet_linear_args *args = at->args;
    bool last = plan == &at->chain->plans[check_wgrad_stage(at->chain)];
    check_into weight = {OCTET_NAME_MAIN_GRAD,
                         args->main_grad != OCTET_MAIN_GRAD_NONE && at->wants.wgrad && last &&
                             plan->kind != OCTET_PLAN_LINEAR,
                         args->main_grad, args->main_grad_dtype, at->wants.k};
    check_into bias = {OCTET_NAME_BIAS_MAIN_GRAD,
                       args->bias_main_grad != OCTET_MAIN_GRAD_NONE && at->wants.bias_grad &&
                           plan->kind == OCTET_PLAN_LINEAR_BACKWARD,
                       args->bias_main_grad, args->bias_main_grad_dtype, 0};
    check_written(at, &weight);
    check_written(at, &bias);
}

/* Ranks gather an operand of this plan's: the input of fprop, or grad_output of dgrad. What is
 * quantized when all of it is there is not cut. */
static inline bool check_cuts_gather(const check_case *at) {
    bool column = at->args->parallel == OCTET_PARALLEL_COLUMN;
    int role = column ? OCTET_INPUT : OCTET_GRAD_OUTPUT;
    bool later = at->args->gather == OCTET_GATHER_HIGH_PRECISION &&
                 at->wants.role[role].scheme != OCTET_SCHEME_NONE &&
                 (column || at->args->recipe.override_ == OCTET_OVERRIDE_NONE);
    bool here = column ? at->plan->kind == OCTET_PLAN_LINEAR
                       : at->plan->kind == OCTET_PLAN_LINEAR_BACKWARD && at->wants.dgrad;
    return at->args->sequence_parallel && at->wants.tp > 1 && at->args->gather_chunks > 1 &&
           here && !later;
}

/* The product that is made in chunks, whose sums ranks share or whose operand they gather; and
 * in so many as the call asks for. */
static inline octet_gemm check_cut_product(const check_case *at) {
    bool column = at->args->parallel == OCTET_PARALLEL_COLUMN, rows = check_cuts_gather(at);
    octet_gemm gemm = column != rows ? OCTET_DGRAD : OCTET_FPROP;
    bool shares = at->args->sequence_parallel && at->wants.tp > 1 && at->args->chunks > 1 &&
                  (column ? at->plan->kind == OCTET_PLAN_LINEAR_BACKWARD && at->wants.dgrad
                          : at->plan->kind == OCTET_PLAN_LINEAR);
    uint32_t want = rows ? at->args->gather_chunks : shares ? at->args->chunks : 1;
    MEANS(at, at->plan->chunks == want && at->plan->by_rows == rows, "it has %d chunks%s",
          at->plan->chunks, at->plan->by_rows ? " of rows" : "");
    return gemm;
}

/* Each of them once, in order; two tensors may be put together. */
static inline void check_chunks(const check_case *at) {
    int next[OCTET_OPS] = {0};
    for (int i = 0; i < at->plan->step_count; i++) {
        const octet_step *step = &at->plan->steps[i];
        if (step->chunk != OCTET_ABSENT) {
            int due = next[step->op]++;
            due = step->op == OCTET_OP_JOIN ? due % at->plan->chunks : due;
            MEANS(at, step->chunk == due && step->chunk < at->plan->chunks,
                  "step %d is chunk %d, not the next", i, step->chunk);
        }
    }
}

/* Forward applies the prologue once, whoever does wgrad again where it has no cast of f(x). */
static inline void check_prologue_counts(const check_case *at) {
    const octet_plan *plan = at->plan;
    const check_wants *wants = &at->wants;
    bool forward = plan->kind == OCTET_PLAN_LINEAR;
    bool backward = plan->kind == OCTET_PLAN_LINEAR_BACKWARD;
    bool last = plan == &at->chain->plans[check_wgrad_stage(at->chain)];
    bool again = !forward && wants->wgrad && last;
    for (int i = 0; i < plan->restored_count; i++) {
        const octet_plan_tensor *t = check_tensor_of(plan, plan->restored[i]);
        again = again && !(t->name == OCTET_NAME_INPUT && t->form == OCTET_FORM_QUANTIZED);
    }
    bool has = at->args->prologue != OCTET_PROLOGUE_NONE;
    int casts = 0, measures = 0;
    for (int i = 0; i < plan->step_count; i++) {
        casts += plan->steps[i].apply && plan->steps[i].op == OCTET_OP_QUANTIZE;
        measures += plan->steps[i].apply && plan->steps[i].op == OCTET_OP_AMAX;
    }
    MEANS(at, measures <= casts, "it measures f(x), and casts it by another step");
    MEANS(at, check_count_ops(plan, OCTET_OP_PROLOGUE) + casts == (has && (forward || again)),
          "it does not apply its prologue once where it has to");
    MEANS(at, check_count_ops(plan, OCTET_OP_STATISTICS) == (wants->norm && forward),
          "it does not make row statistics once, in forward");
    MEANS(at,
          check_count_ops(plan, OCTET_OP_PROLOGUE_GRAD) == (has && backward && wants->dx) &&
              check_count_ops(plan, OCTET_OP_GAMMA_GRAD) == (backward && wants->gamma_grad),
          "it does not do its prologue's backward once where it is wanted");
}

static inline void check_gemm_counts(const check_case *at) {
    int counts[OCTET_GEMMS] = {0};
    for (int i = 0; i < at->plan->step_count; i++) {
        const octet_step *step = &at->plan->steps[i];
        counts[step->gemm] += step->op == OCTET_OP_GEMM;
    }
    bool backward = at->plan->kind == OCTET_PLAN_LINEAR_BACKWARD;
    bool last = at->plan == &at->chain->plans[check_wgrad_stage(at->chain)];
    int want[OCTET_GEMMS] = {
        [OCTET_FPROP] = at->plan->kind == OCTET_PLAN_LINEAR,
        [OCTET_DGRAD] = backward && at->wants.dgrad,
        [OCTET_WGRAD] = at->plan->kind != OCTET_PLAN_LINEAR && at->wants.wgrad && last,
    };
    want[check_cut_product(at)] *= at->plan->chunks;
    for (int i = 0; i < OCTET_GEMMS; i++) {
        MEANS(at, counts[i] == want[i], "it has %d GEMMs of kind %d, not %d", counts[i], i,
              want[i]);
    }
    MEANS(at,
          check_count_ops(at->plan, OCTET_OP_BIAS_GRAD) ==
              (backward && at->wants.bias_grad) + (backward && at->wants.beta_grad),
          "it sums grad_output where no grad_bias is wanted, or does not where it is");
    check_prologue_counts(at);
}

/* ---- bias ------------------------------------------------------------------------------ */

/* The step of the collective that sums the ranks' outputs; -1 when there is none. */
static inline int check_output_sum(const octet_plan *plan) {
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        if (step->op == OCTET_OP_COLLECTIVE &&
            check_name_of(plan, step->from) == OCTET_NAME_OUTPUT) {
            return i;
        }
    }
    return -1;
}

static inline void check_bias(const check_case *at) {
    const octet_plan *plan = at->plan;
    int port = check_find_port(plan->args, plan->arg_count, OCTET_NAME_BIAS);
    int out = check_find_port(plan->outs, plan->out_count, OCTET_NAME_BIAS);
    int sum = check_output_sum(plan), used = 0, read = 0;
    bool forward = plan->kind == OCTET_PLAN_LINEAR;
    uint64_t mask = port < 0 ? 0 : check_place_mask(plan, OCTET_PLACE_ARG, port);
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        read += (step->reads & mask) != 0;
        if (step->bias == OCTET_ABSENT || step->op == OCTET_OP_PROLOGUE || step->apply) {
            continue; /* a prologue adds beta */
        }
        used++;
        MEANS(at, check_name_of(plan, step->bias) == OCTET_NAME_BIAS,
              "step %d adds something else than the bias", i);
        MEANS(at,
              sum < 0 ||
                  (plan->steps[sum].phase < step->phase && step->op == OCTET_OP_ADD_BIAS),
              "step %d adds the bias before the ranks' outputs are summed", i);
    }
    bool adds = forward && at->wants.adds_bias, hands = forward && at->wants.hands_bias_back;
    int times = adds ? plan->chunks : 0;
    /* Pieces of rows may share a bias that was narrowed first. */
    bool shared = plan->by_rows && read == 1 && at->args->input.dtype == OCTET_F32;
    MEANS(at, used == times && (read == times || shared), "%d steps read the bias, %d add it",
          read, used);
    MEANS(at, (port >= 0) == (adds || hands), "the bias is %s",
          port >= 0 ? "taken" : "missing");
    MEANS(at, (out >= 0) == hands && (out < 0 || plan->outs[out].alias == port),
          "the bias is %s", out >= 0 ? "not handed back as it is" : "not handed back");
}

/* ---- what is saved ---------------------------------------------------------------------- */

static inline bool check_saves_original(const check_case *at) {
    return at->args->save_original_input ||
           at->args->recipe.override_ == OCTET_OVERRIDE_HIGH_PRECISION;
}

/* save=memory, and a recipe casts something for backward. */
static inline bool check_saves_memory(const check_case *at) {
    return at->args->save == OCTET_SAVE_MEMORY && at->args->prologue && !at->args->calibrate &&
           at->args->recipe.kind != OCTET_RECIPE_NONE &&
           at->args->recipe.override_ != OCTET_OVERRIDE_HIGH_PRECISION;
}

/* No bytes of f(x) are saved: backward has x for another reason, and can repeat the cast. */
static inline bool check_casts_again(const check_case *at) {
    return check_saves_memory(at) && (at->wants.dx || at->wants.gamma_grad) &&
           !at->wants.role[OCTET_INPUT].stochastic;
}

/* An activation's input is saved in 8 bits. */
static inline bool check_packs(const check_case *at) {
    return check_saves_memory(at) && at->wants.dx && !at->wants.norm &&
           at->args->recipe.override_ == OCTET_OVERRIDE_NONE && !at->args->save_original_input;
}

/* A quantized wgrad needs quantized bytes of the input only. */
static inline bool check_saves_bytes(const check_case *at) {
    const octet_linear_args *args = at->args;
    bool group = args->parallel == OCTET_PARALLEL_COLUMN && args->sequence_parallel;
    return at->wants.role[OCTET_INPUT].scheme && at->wants.role[OCTET_GRAD_OUTPUT].scheme &&
           at->wants.role[OCTET_WEIGHT].scheme && !check_saves_original(at) &&
           !check_casts_again(at) && args->input.quantizer.scheme == OCTET_SCHEME_NONE &&
           !(group && args->gather == OCTET_GATHER_HIGH_PRECISION);
}

/* With save=memory. Of what is saved of the input: no bytes of f(x); x in 8 bits, or itself. */
static inline void check_memory_slot(const check_case *at, int index) {
    const octet_plan *plan = at->plan;
    int buffer = plan->saved[index];
    int form = check_tensor_of(plan, buffer)->form;
    if (check_name_of(plan, buffer) != OCTET_NAME_INPUT) {
        return;
    }
    MEANS(at, form != OCTET_FORM_QUANTIZED || !check_casts_again(at),
          "slot %d saves bytes that backward can make again", index);
    MEANS(at, form != OCTET_FORM_GIVEN || !check_packs(at),
          "slot %d saves an input that is to be saved in 8 bits", index);
    MEANS(at, form != OCTET_FORM_PACKED || check_packs(at),
          "slot %d saves an input in 8 bits, and nobody asked for it", index);
}

static inline void check_saves(const check_case *at) {
    const octet_plan *plan = at->plan;
    bool may_save = at->chain->count > plan->kind + 1;
    MEANS(at, may_save || plan->saved_count == 0, "it saves %d slots for nobody",
          plan->saved_count);
    MEANS(at, plan->kind != OCTET_PLAN_LINEAR || plan->restored_count == 0,
          "forward takes slots");
    for (int i = 0; i < plan->saved_count; i++) {
        const octet_plan_buffer *buffer = &plan->buffers[plan->saved[i]];
        int name = check_name_of(plan, plan->saved[i]);
        bool stored = buffer->place == OCTET_PLACE_SAVED;
        bool values = buffer->part == OCTET_PART_VALUES;
        bool packed =
            check_tensor_of(plan, plan->saved[i])->form == OCTET_FORM_PACKED && !values;
        check_memory_slot(at, i);
        bool memory = at->args->save == OCTET_SAVE_MEMORY && !at->args->temporary_weight &&
                      !at->wants.role[OCTET_WEIGHT].stochastic;
        MEANS(at, !(stored && name == OCTET_NAME_WEIGHT && memory),
              "slot %d stores a weight that the caller has anyway", i);
        MEANS(at, !(stored && name == OCTET_NAME_WEIGHT && at->args->fsdp),
              "slot %d stores a weight that is gathered for the call", i);
        MEANS(at, !(stored && name == OCTET_NAME_INPUT && !values && check_saves_original(at)),
              "slot %d stores bytes of an input that is to be saved itself", i);
        bool back = at->args->prologue && at->wants.dgrad && plan->kind == OCTET_PLAN_LINEAR;
        MEANS(at, !(name == OCTET_NAME_INPUT && values && check_saves_bytes(at)) || back,
              "slot %d saves the input in high precision", i);
        MEANS(at, !(name == OCTET_NAME_INPUT && values && at->args->prologue && stored),
              "slot %d stores what a prologue made", i);
        MEANS(at, name != OCTET_NAME_INPUT || at->wants.wgrad || (back && (values || packed)),
              "slot %d saves the input, and wgrad is not wanted", i);
        MEANS(at, name != OCTET_NAME_WEIGHT || at->wants.dgrad,
              "slot %d saves the weight, and dgrad is not wanted", i);
    }
}

static inline void check_meaning(const check_case *at) {
    check_header(at);
    check_arguments(at);
    check_y(at);
    check_grads(at);
    check_main_grads(at);
    check_gemm_counts(at);
    check_chunks(at);
    check_bias(at);
    check_saves(at);
}

#endif
