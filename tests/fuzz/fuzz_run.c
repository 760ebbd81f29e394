/* fuzz_run.c - a problem planned, printed, bound and run on memory of exactly the plan's bytes.
 *
 * Four bytes choose data, split and threads; the rest is a problem, or a proto, which is
 * quantized and dequantized. It is run with every instruction set of the machine, serially and
 * split: bytes are the same for every split, and for every instruction set but where products
 * went in. */
#include "fuzz.h"
#include "fuzz_memory.h"

#define MOST_ELEMENTS (1 << 13) /* of a matrix */
#define MOST_PRODUCTS (1 << 17)
#define MOST_BYTES (8 << 20)

static bool is_small(const octet_plan *plan) {
    octet_extents e = plan->extents;
    int64_t most = MOST_ELEMENTS;
    bool thin = e.m <= most && e.k <= most && e.n <= most && e.m * e.k <= most &&
                e.m * e.n <= most && e.k * e.n <= most && e.m * e.k * e.n <= MOST_PRODUCTS;
    int64_t bytes = plan->saved_bytes + plan->workspace_bytes;
    for (int i = 0; thin && i < plan->exchange_count; i++) {
        thin = plan->exchanges[i].bytes <= MOST_BYTES;
    }
    return thin && bytes <= MOST_BYTES && plan->tp_size <= 8 && plan->device.kind == OCTET_CPU;
}

/* A plan bound to other sizes and back is the plan. */
static void bind_there_and_back(const octet_chain *chain, uint8_t byte) {
    static octet_chain moved;
    octet_extents back = chain->plans[0].extents, there = {byte, byte / 2, byte % 7};
    octet_error err = {OCTET_OK, 0, ""};
    moved = *chain;
    if (octet_chain_bind(&moved, &there, &err) || octet_chain_bind(&moved, &back, &err)) {
        fuzz_refused(err.status, &err, NULL);
        return;
    }
    for (int i = 0; i < chain->count; i++) {
        LAW(octet_plan_equal(&moved.plans[i], &chain->plans[i]));
    }
}

static void run_everywhere(const octet_chain *chain, const fuzz_choice *choice) {
    static fuzz_results first_set, first, other;
    int best = fuzz_best_isa();
    for (int isa = best; isa >= 0; isa--) {
        fuzz_use_isa(isa);
        fuzz_choice serial = *choice;
        serial.split = FUZZ_SERIAL;
        serial.fill = (uint8_t)~choice->fill;
        fuzz_run_chain(&first, chain, &serial);
        fuzz_run_chain(&other, chain, choice);
        fuzz_same(&first, &other, chain, false);
        fuzz_results_free(&other);
        if (isa == best) {
            first_set = first;
        } else {
            fuzz_same(&first_set, &first, chain, true);
            fuzz_results_free(&first);
        }
    }
    fuzz_results_free(&first_set);
    fuzz_use_isa(best);
}

static void try_chain(octet_chain *chain, const fuzz_choice *choice) {
    bool small = true;
    for (int i = 0; i < chain->count; i++) {
        char text[16];
        (void)octet_plan_print(text, sizeof text, &chain->plans[i]);
        small = small && is_small(&chain->plans[i]);
    }
    if (small) {
        run_everywhere(chain, choice);
    }
}

static void try_problem(octet_linear_backward_args *args, const fuzz_choice *choice) {
    static octet_chain chain;
    octet_error err = {OCTET_OK, 0, ""};
    args->forward.threads = choice->lanes;
    octet_status status = octet_plan_chain(&chain, args, &err);
    if (status) {
        fuzz_refused(status, &err, NULL);
        return;
    }
    bind_there_and_back(&chain, choice->fill);
    try_chain(&chain, choice);
}

static void try_tensor(const octet_proto *proto, const fuzz_choice *choice) {
    static octet_chain chain;
    octet_error err = {OCTET_OK, 0, ""};
    octet_proto plain = *proto;
    memset(&plain.quantizer, 0, sizeof plain.quantizer);
    for (int back = 0; back < 2; back++) {
        chain = (octet_chain){.size = sizeof chain, .count = 1};
        chain.plans[0] = OCTET_PLAN_INIT;
        octet_status status =
            back ? octet_plan_dequantize(&chain.plans[0], proto, &err)
                 : octet_plan_quantize(&chain.plans[0], &plain, &proto->quantizer, &err);
        if (status) {
            fuzz_refused(status, &err, NULL);
        } else {
            try_chain(&chain, choice);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    octet_linear_backward_args args;
    octet_linear_args forward;
    octet_proto proto;
    fuzz_bytes in = {data, size};
    fuzz_choice choice = {.seed = fuzz_u8(&in), .fill = fuzz_u8(&in)};
    uint8_t crew = fuzz_u8(&in), kinds = fuzz_u8(&in);
    choice.threads = crew & 7;
    choice.lanes = crew >> 3 & 7;
    choice.split = kinds & 3;
    choice.values = kinds >> 2 & 3;
    choice.apart = kinds >> 4 & 3;
    char *text = fuzz_text(&in);
    if (!octet_linear_backward_parse(&args, text, NULL)) {
        try_problem(&args, &choice);
    } else if (!octet_linear_parse(&forward, text, NULL)) {
        if (!octet_linear_backward_make(&args, &forward, NULL)) {
            try_problem(&args, &choice);
        }
    } else if (!octet_proto_parse(&proto, text, NULL) && proto.quantizer.scheme) {
        try_tensor(&proto, &choice);
    }
    free(text);
    return 0;
}
