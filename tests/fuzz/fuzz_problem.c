/* fuzz_problem.c - any text given as a problem, as an op's words or as a rule of delayed
 * scaling: read, printed back and planned, or refused.
 *
 * Two bytes choose sizes for the forms that take them apart; the rest is the text. */
#include "fuzz.h"
#include "torch/request.h"
#include "torch/rule.h"

#define PRINTER(name, type)                                                                    \
    static size_t name(char *text, size_t size, const void *value) {                           \
        return octet_##name(text, size, (const type *)value);                                  \
    }
PRINTER(linear_print, octet_linear_args)
PRINTER(linear_print_words, octet_linear_args)
PRINTER(linear_backward_print, octet_linear_backward_args)
PRINTER(linear_backward_print_words, octet_linear_backward_args)
PRINTER(plan_print, octet_plan)

static const int64_t axes[16] = {0,   1,    2,    3,  7,         16,        31,        32,
                                 128, 1000, 4096, -1, INT32_MAX, INT64_MAX, INT64_MIN, 5};

/* What a reader may ask of a plan without memory. */
static void read_plan(const octet_plan *plan) {
    char *text = fuzz_printed(plan_print, plan);
    free(text);
    uint8_t buffers[OCTET_PLAN_BUFFERS];
    LAW(octet_arena_buffers(buffers, plan) <= OCTET_PLAN_BUFFERS);
    LAW(plan->saved_bytes >= 0 && plan->workspace_bytes >= 0);
    for (int phase = 0; phase < plan->phases; phase++) {
        octet_regions regions = {.size = sizeof regions};
        octet_phase_regions(&regions, plan, phase);
        LAW(regions.count >= 0 && regions.count <= OCTET_REGIONS);
    }
}

static void plan_all(const octet_linear_backward_args *args) {
    static octet_chain chain;
    octet_error err = {OCTET_OK, 0, ""};
    octet_status status = octet_plan_chain(&chain, args, &err);
    if (status) {
        fuzz_refused(status, &err, NULL);
        return;
    }
    LAW(chain.count >= 1 && chain.count <= OCTET_CHAIN_PLANS);
    for (int i = 0; i < chain.count; i++) {
        octet_plan was = chain.plans[i];
        const octet_plan *previous = i ? &chain.plans[i - 1] : NULL;
        read_plan(&was);
        status = octet_plan_bind(&chain.plans[i], previous, &was.extents, &err);
        LAW(!status); /* a chain is made at sizes that it can be bound to */
        LAW(octet_plan_equal(&was, &chain.plans[i]));
        LAW(octet_plan_hash(&was) == octet_plan_hash(&chain.plans[i]));
    }
    octet_signature signature;
    octet_backward_signature backward;
    for (int flat = 0; flat < 2; flat++) {
        octet_signature_of(&signature, &chain, flat);
        octet_backward_signature_of(&backward, &chain, flat);
        LAW(signature.arg_count <= OCTET_PLAN_ARGS && backward.read_count <= OCTET_PLAN_ARGS);
    }
}

static void ask_linear(const octet_linear_args *args) {
    octet_quantizer quantizer;
    octet_gather gather;
    octet_error err = {OCTET_OK, 0, ""};
    octet_status (*const questions[])(octet_quantizer *, const octet_linear_args *,
                                      octet_error *) = {octet_linear_cache_quantizer,
                                                        octet_linear_parameter_quantizer,
                                                        octet_linear_shared_input};
    for (size_t i = 0; i < sizeof questions / sizeof questions[0]; i++) {
        octet_status status = questions[i](&quantizer, args, &err);
        if (status) {
            fuzz_refused(status, &err, NULL);
        } else {
            LAW(!quantizer.scheme || !octet_quantizer_check(&quantizer, &err));
        }
    }
    octet_status status = octet_linear_choose_gather(&gather, args, &err);
    if (status) {
        fuzz_refused(status, &err, NULL);
    }
}

static void try_linear(const char *text) {
    octet_linear_args value, again;
    octet_error err = {OCTET_OK, 0, ""};
    octet_status status = octet_linear_parse(&value, text, &err);
    if (status) {
        fuzz_refused(status, &err, text);
        return;
    }
    char *printed = fuzz_printed(linear_print, &value);
    LAW(strlen(printed) < OCTET_LINEAR_TEXT);
    LAW(octet_linear_parse(&again, printed, NULL) == OCTET_OK);
    LAW(octet_linear_equal(&value, &again));
    LAW(octet_linear_hash(&value) == octet_linear_hash(&again));
    free(printed);
    free(fuzz_printed(linear_print_words, &value));
    LAW(octet_linear_check(&value, &err) == OCTET_OK);
    ask_linear(&value);
    octet_linear_backward_args backward;
    if (octet_linear_backward_make(&backward, &value, &err) == OCTET_OK) {
        plan_all(&backward);
    }
}

static void try_backward(const char *text) {
    octet_linear_backward_args value, again;
    octet_quantizer quantizer;
    octet_error err = {OCTET_OK, 0, ""};
    octet_status status = octet_linear_backward_parse(&value, text, &err);
    if (status) {
        fuzz_refused(status, &err, text);
        return;
    }
    char *printed = fuzz_printed(linear_backward_print, &value);
    LAW(octet_linear_backward_parse(&again, printed, NULL) == OCTET_OK);
    LAW(octet_linear_backward_equal(&value, &again));
    LAW(octet_linear_backward_hash(&value) == octet_linear_backward_hash(&again));
    free(printed);
    status = octet_linear_shared_grad(&quantizer, &value, &err);
    LAW(status || !quantizer.scheme || !octet_quantizer_check(&quantizer, &err));
    plan_all(&value);
}

static void try_words(const char *text, const int64_t sizes[3]) {
    octet_linear_backward_args value, again;
    octet_error err = {OCTET_OK, 0, ""};
    octet_status status = octet_linear_backward_parse_words(&value, text, sizes, 3, &err);
    if (status) {
        fuzz_refused(status, &err, text);
        return;
    }
    char *printed = fuzz_printed(linear_backward_print_words, &value);
    LAW(octet_linear_backward_parse_words(&again, printed, sizes, 3, NULL) == OCTET_OK);
    LAW(octet_linear_backward_equal(&value, &again));
    free(printed);
    plan_all(&value);
}

/* As the ops of torch ask. */
static void try_ops(const char *text, const int64_t sizes[3]) {
    octet_error err = {OCTET_OK, 0, ""};
    octet_delayed rule;
    for (int kind = 0; kind < OCTET_PLAN_KINDS; kind++) {
        static octet_plan plan;
        octet_extents extents;
        oct_request request = {.kind = (octet_plan_kind)kind, .text = text, .rank = 3};
        memcpy(request.sizes, sizes, 3 * sizeof *sizes);
        octet_status status = oct_request_plan(&plan, &request, &err);
        if (status) {
            fuzz_refused(status, &err, NULL);
            continue;
        }
        LAW(oct_request_extents(&extents, &request, &err) == OCTET_OK);
        for (int i = 0; i < plan.out_count; i++) {
            oct_shape shape;
            LAW(oct_port_shape(&shape, &plan, &plan.outs[i], &request, &err) == OCTET_OK);
        }
        read_plan(&plan);
    }
    for (int role = 0; role < OCTET_ROLES; role++) {
        octet_status status = oct_rule_get(&rule, text, (octet_role)role, &err);
        if (status) {
            fuzz_refused(status, &err, NULL);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_bytes in = {data, size};
    uint8_t first = fuzz_u8(&in), second = fuzz_u8(&in);
    int64_t sizes[3] = {axes[first & 15], axes[first >> 4], axes[second & 15]};
    char *text = fuzz_text(&in);
    try_linear(text);
    try_backward(text);
    try_words(text, sizes);
    if (second & 128) {
        try_ops(text, sizes);
    }
    free(text);
    return 0;
}
