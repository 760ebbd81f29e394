/* test_op_faults.c - every op, with every call of torch failing once: an error in words or the
 * right result, nothing left behind, and the next call works. */
#define _GNU_SOURCE /* setenv */
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"
#include "fake_torch.h"
#include "octet/signature.h"
#include "test.h"
#include "torch/cuda.h"
#include "torch/ops.h"
#include "torch/request.h"
#include "torch/state.h"

/* What throw.cpp has: the ops are called without it here. */
static void no_kernel(oct_torch_value *stack, uint64_t inputs, uint64_t outputs) {
    (void)stack;
    (void)inputs;
    (void)outputs;
}

#define X(name, schema) no_kernel,
const oct_torch_kernel oct_torch_kernels[] = {OCT_TORCH_OPS(X)};
const oct_torch_kernel oct_torch_into_kernels[] = {OCT_TORCH_INTO_OPS(X)};
#undef X

static void begin(void) {
    octet_error err = {OCTET_OK, 0, ""};
    CHECK_OF(fake_torch_begin(&err) == OCTET_OK, err.text);
    CHECK_EQ_INT(setenv("OCTET_CUDA_DRIVER", TEST_FAKE_CUDA, 1), 0);
    CHECK_EQ_INT(setenv("OCTET_CACHE", "", 1), 0);
    CHECK_EQ_INT(oct_torch_cuda_load(NULL, "", NULL), OCTET_OK);
}

/* ---- calls of ops ------------------------------------------------------------------------ */

enum { MOST = 16 };

/* What a call wrote or made: handles of the test's own. */
typedef struct results {
    oct_torch_tensor *at[MOST];
    int count;
} results;

typedef struct op_case op_case;
struct op_case {
    const char *name;
    octet_status (*run)(results *out, const op_case *c, octet_error *err);
    octet_plan_kind kind;
    const char *words, *rule;
    int64_t m, k, n;
    int phase;
    octet_device_kind where;
};

/* What most ops take. */
typedef struct pieces {
    oct_torch_value written, read, sizes, words;
    int outputs; /* tensors that are made */
} pieces;

static oct_torch_value of_port(const octet_port *port, const op_case *c) {
    return fake_tensor((octet_dtype)port->dtype, c->where, port->ndim, port->shape);
}

static oct_torch_value block_of(int64_t bytes, const op_case *c) {
    return fake_tensor(OCTET_U8, c->where, 1, &bytes);
}

static bool is_tensor(const op_case *c) {
    return c->kind == OCTET_PLAN_QUANTIZE || c->kind == OCTET_PLAN_DEQUANTIZE;
}

static octet_chain chain_of(const op_case *c) {
    octet_chain chain;
    octet_error err = {OCTET_OK, 0, ""};
    oct_request request = {.kind = c->kind,
                           .text = c->words,
                           .sizes = {c->m, c->k, c->n},
                           .rank = is_tensor(c) ? 2 : 3,
                           .threads = 1};
    memset(&chain, 0, sizeof chain);
    CHECK_OF(oct_request_chain(&chain, &request, &err) == OCTET_OK, err.text);
    return chain;
}

enum { HISTORY = 4 }; /* rows of a state after its scales */

/* An argument as the ops take it: amaxes that are raised are part of a state. */
static oct_torch_value of_argument(const octet_port *port, const op_case *c) {
    int64_t state[] = {1 + HISTORY, port->shape[port->ndim - 1]};
    return oct_is_state(port) ? fake_tensor(OCTET_F32, c->where, 2, state) : of_port(port, c);
}

/* Arguments by whether they are written, and the arenas that earlier plans saved. */
static void add_arguments(pieces *p, const octet_chain *chain, const op_case *c) {
    const octet_plan *plan = &chain->plans[oct_chain_at(c->kind)];
    bool restores[2] = {false, false}, saves = false;
    for (int i = 0; i < plan->arg_count; i++) {
        if (!oct_is_in_state(plan, i)) {
            fake_list_add(plan->args[i].is_mutable ? p->written : p->read,
                          of_argument(&plan->args[i], c));
        }
    }
    for (int i = 0; i < plan->buffer_count; i++) {
        const octet_plan_buffer *b = &plan->buffers[i];
        saves = saves || b->place == OCTET_PLACE_SAVED;
        if (b->place == OCTET_PLACE_RESTORED) {
            restores[b->port] = true;
        }
    }
    for (int i = 0; i < 2; i++) {
        if (restores[i]) {
            fake_list_add(p->read, block_of(chain->plans[i].saved_bytes, c));
        }
    }
    p->outputs = saves;
    for (int i = 0; i < plan->out_count; i++) {
        p->outputs += plan->outs[i].alias == OCTET_ABSENT;
    }
}

/* What a region of a phase lies in. */
static oct_torch_value of_region(const octet_region *region, const octet_chain *chain,
                                 const op_case *c) {
    const octet_plan *plan = &chain->plans[oct_chain_at(c->kind)];
    switch ((octet_place)region->place) {
    case OCTET_PLACE_ARG:
        return of_argument(&plan->args[region->port], c);
    case OCTET_PLACE_OUT:
        return of_port(&plan->outs[region->port], c);
    case OCTET_PLACE_EXCHANGE:
        return of_port(&plan->exchanges[region->port], c);
    case OCTET_PLACE_SAVED:
        return block_of(plan->saved_bytes, c);
    default:
        return block_of(chain->plans[region->port].saved_bytes, c);
    }
}

static void add_regions(pieces *p, const octet_chain *chain, const op_case *c) {
    octet_regions regions;
    oct_phase_tensors(&regions, &chain->plans[oct_chain_at(c->kind)], c->phase);
    for (int i = 0; i < regions.count; i++) {
        const octet_region *region = &regions.at[i];
        fake_list_add(region->is_written ? p->written : p->read, of_region(region, chain, c));
    }
}

static pieces pieces_of(const op_case *c) {
    octet_chain chain = chain_of(c);
    pieces p = {.written = fake_list(), .read = fake_list(), .words = fake_text(c->words)};
    p.sizes = fake_sizes((int64_t[]){c->m, c->k, c->n}, is_tensor(c) ? 2 : 3);
    if (c->run && c->phase >= 0) {
        add_regions(&p, &chain, c);
    } else {
        add_arguments(&p, &chain, c);
    }
    return p;
}

/* ---- results ----------------------------------------------------------------------------- */

static oct_torch_list *as_list(oct_torch_value value) {
    return (oct_torch_list *)(uintptr_t)value;
}

static void keep(results *out, oct_torch_value tensor) {
    out->at[out->count++] = (oct_torch_tensor *)(uintptr_t)tensor;
}

/* One more handle on every tensor of a list. */
static void hold(results *out, oct_torch_value list) {
    for (size_t i = 0; i < as_list(list)->count; i++) {
        keep(out, as_list(list)->items[i]);
        out->at[out->count - 1]->handles++;
    }
}

/* The list that an op gave. */
static octet_status take(results *out, octet_status status, const oct_torch_value *list) {
    for (size_t i = 0; !status && i < as_list(*list)->count; i++) {
        keep(out, as_list(*list)->items[i]);
    }
    if (!status) {
        (void)oct_torch.torch_delete_list(as_list(*list));
    }
    return status;
}

static uint64_t drop(results *out) {
    uint64_t found = 0;
    for (int i = 0; i < out->count; i++) {
        const unsigned char *bytes = out->at[i]->data;
        for (int64_t at = 0; at < fake_tensor_bytes(out->at[i]); at++) {
            found = (found ^ bytes[at]) * 0x100000001b3u;
        }
        (void)oct_torch.aoti_torch_delete_tensor_object(out->at[i]);
    }
    out->count = 0;
    return found;
}

/* ---- the ops ----------------------------------------------------------------------------- */

/* A column of a wider matrix, so that it is copied first. */
static oct_torch_value input_of(const op_case *c) {
    oct_torch_value made = fake_tensor(OCTET_F32, c->where, 2, (int64_t[]){c->m, 2 * c->k});
    oct_torch_tensor *tensor = (oct_torch_tensor *)(uintptr_t)made;
    tensor->sizes[1] = c->k;
    tensor->strides[1] = 2;
    return made;
}

static octet_status run_quantize(results *out, const op_case *c, octet_error *err) {
    oct_torch_value stack[] = {input_of(c), fake_list(), fake_text(c->words)};
    return take(out, oct_op_quantize(stack, err), stack);
}

static octet_status run_quantize_into(results *out, const op_case *c, octet_error *err) {
    octet_chain chain = chain_of(c);
    oct_torch_value stack[] = {fake_list(), input_of(c), fake_list(), fake_text(c->words)};
    for (int i = 0; i < chain.plans[0].out_count; i++) {
        fake_list_add(stack[0], of_port(&chain.plans[0].outs[i], c));
    }
    hold(out, stack[0]);
    return oct_op_quantize_into(stack, err);
}

static octet_status run_dequantize(results *out, const op_case *c, octet_error *err) {
    pieces p = pieces_of(c);
    oct_torch_value stack[] = {p.read, p.sizes, p.words};
    (void)take(out, OCTET_OK, &p.written);
    octet_status status = oct_op_dequantize(stack, err);
    if (!status) {
        keep(out, stack[0]);
    }
    return status;
}

static octet_status run_linear(results *out, const op_case *c, octet_error *err) {
    static octet_status (*const ops[])(oct_torch_value *, octet_error *) = {
        oct_op_linear, oct_op_linear_backward, oct_op_linear_wgrad};
    pieces p = pieces_of(c);
    oct_torch_value stack[] = {p.read, p.sizes, p.words};
    (void)take(out, OCTET_OK, &p.written);
    return take(out, ops[c->kind](stack, err), stack);
}

static octet_status run_seeded(results *out, const op_case *c, octet_error *err) {
    pieces p = pieces_of(c);
    oct_torch_value seed = fake_tensor(OCTET_I64, c->where, 1, (int64_t[]){1});
    oct_torch_value stack[] = {p.read, seed, p.sizes, p.words};
    (void)take(out, OCTET_OK, &p.written);
    return take(out, oct_op_linear_seeded(stack, err), stack);
}

/* The tensors of an op that writes are on the stack itself. */
static octet_status take_fixed(results *out, octet_status status, const oct_torch_value *stack,
                               int count) {
    for (int i = 0; i < count && !status; i++) {
        keep(out, stack[i]);
    }
    return status;
}

static octet_status run_into(results *out, const op_case *c, octet_error *err) {
    pieces p = pieces_of(c);
    oct_torch_value stack[MOST] = {p.written, p.read, p.sizes, p.words};
    hold(out, p.written);
    octet_status status = oct_op_linear_into(stack, (uint64_t)p.outputs, err);
    return take_fixed(out, status, stack, p.outputs);
}

/* With a rule the state, which comes first, is updated, too. */
static octet_status run_backward_into(results *out, const op_case *c, octet_error *err) {
    pieces p = pieces_of(c);
    oct_torch_value stack[MOST] = {p.written, p.read, p.sizes, p.words,
                                   fake_text(c->rule ? c->rule : "")};
    hold(out, p.written);
    octet_status status = oct_op_linear_backward_into(stack, (uint64_t)p.outputs, err);
    return take_fixed(out, status, stack, p.outputs);
}

static octet_status run_wgrad_into(results *out, const op_case *c, octet_error *err) {
    pieces p = pieces_of(c);
    oct_torch_value stack[] = {as_list(p.written)->items[0], p.read, p.sizes, p.words};
    hold(out, p.written);
    (void)oct_torch.torch_delete_list(as_list(p.written));
    return oct_op_linear_wgrad_into(stack, err);
}

static octet_status run_phase(results *out, const op_case *c, octet_error *err) {
    pieces p = pieces_of(c);
    oct_torch_value stack[] = {p.written,
                               p.read,
                               fake_list(),
                               p.sizes,
                               p.words,
                               (oct_torch_value)c->kind,
                               (oct_torch_value)c->phase};
    hold(out, p.written);
    return oct_op_linear_phase(stack, err);
}

static octet_status run_record(results *out, const op_case *c, octet_error *err) {
    oct_torch_value state = fake_tensor(OCTET_F32, c->where, 2, (int64_t[]){1 + HISTORY, 3});
    oct_torch_value stack[] = {state, fake_tensor(OCTET_F32, c->where, 1, (int64_t[]){3})};
    keep(out, state);
    out->at[0]->handles++;
    return oct_op_delayed_record(stack, err);
}

static octet_status run_update(results *out, const op_case *c, octet_error *err) {
    oct_torch_value stack[] = {fake_list(), fake_text(c->rule)};
    for (int i = 0; i < 3; i++) {
        fake_list_add(stack[0],
                      fake_tensor(OCTET_F32, c->where, 2, (int64_t[]){1 + HISTORY, 3}));
    }
    hold(out, stack[0]);
    return oct_op_delayed_update(stack, err);
}

/* ---- faults ------------------------------------------------------------------------------ */

#define COLUMN "in=bf16 recipe=mxfp8 parallel=column tp=2 sequence"
#define DELAYED "in=bf16 recipe=delayed:history=4 raise_amax main_grad=add"
#define LATER "in=bf16 recipe=block delay_wgrad"

static const op_case cases[] = {
    {"quantize", run_quantize, OCTET_PLAN_QUANTIZE, "f32 mxfp8:e4m3+row", NULL, 16, 32, 0, -1,
     OCTET_CPU},
    {"quantize on a GPU", run_quantize, OCTET_PLAN_QUANTIZE,
     "f32 fp8-tensor:e4m3+row device=cuda:0/90", NULL, 16, 32, 0, -1, OCTET_CUDA},
    {"quantize_into", run_quantize_into, OCTET_PLAN_QUANTIZE, "f32 fp8-tensor:e4m3+row", NULL,
     16, 32, 0, -1, OCTET_CPU},
    {"dequantize", run_dequantize, OCTET_PLAN_DEQUANTIZE, "f32 mxfp8:e4m3/1x32+row", NULL, 16,
     32, 0, -1, OCTET_CPU},
    {"linear", run_linear, OCTET_PLAN_LINEAR, "in=bf16 recipe=block bias", NULL, 128, 256, 256,
     -1, OCTET_CPU},
    {"linear_seeded", run_seeded, OCTET_PLAN_LINEAR, "in=bf16 recipe=nvfp4", NULL, 16, 32, 48,
     -1, OCTET_CPU},
    {"linear_backward", run_linear, OCTET_PLAN_LINEAR_BACKWARD, "in=bf16 recipe=mxfp8 bias",
     NULL, 16, 32, 48, -1, OCTET_CPU},
    {"linear_wgrad", run_linear, OCTET_PLAN_LINEAR_WGRAD, LATER, NULL, 16, 32, 48, -1,
     OCTET_CPU},
    {"linear_wgrad_into", run_wgrad_into, OCTET_PLAN_LINEAR_WGRAD, LATER " main_grad=add", NULL,
     16, 32, 48, -1, OCTET_CPU},
    {"linear_into", run_into, OCTET_PLAN_LINEAR, DELAYED, NULL, 16, 32, 48, -1, OCTET_CPU},
    {"linear_backward_into", run_backward_into, OCTET_PLAN_LINEAR_BACKWARD, DELAYED,
     "delayed:history=4", 16, 32, 48, -1, OCTET_CPU},
    {"linear_backward_into, no rule", run_backward_into, OCTET_PLAN_LINEAR_BACKWARD, DELAYED,
     NULL, 16, 32, 48, -1, OCTET_CPU},
    {"linear_phase 0", run_phase, OCTET_PLAN_LINEAR, COLUMN, NULL, 64, 64, 64, 0, OCTET_CPU},
    {"linear_phase 1", run_phase, OCTET_PLAN_LINEAR, COLUMN, NULL, 64, 64, 64, 1, OCTET_CPU},
    {"linear_phase of backward", run_phase, OCTET_PLAN_LINEAR_BACKWARD, COLUMN, NULL, 64, 64,
     64, 0, OCTET_CPU},
    {"delayed_record", run_record, OCTET_PLAN_LINEAR, "", NULL, 0, 0, 0, -1, OCTET_CPU},
    {"delayed_update", run_update, OCTET_PLAN_LINEAR, "", "input delayed:history=4", 0, 0, 0,
     -1, OCTET_CPU},
};

/* Calls without which an op works all the same. */
static bool is_harmless(const char *name) {
    return strstr(name, "delete") || strstr(name, "num_threads") || strstr(name, "parallel") ||
           strstr(name, "current_device_index") || strstr(name, "raw_alloc");
}

/* Runs an op with its call `fail_at` failing; gives the digest of its results. */
static uint64_t run_case(const op_case *c, int fail_at, octet_status *status,
                         octet_error *err) {
    results out = {.count = 0};
    memset(err, 0, sizeof *err);
    torch.calls = 0;
    torch.fail_at = fail_at;
    torch.failed = NULL;
    *status = c->run(&out, c, err);
    torch.fail_at = 0;
    uint64_t found = drop(&out);
    if (torch.failed && strstr(torch.failed, "torch_list_")) {
        fake_torch_drop_all();
    }
    CHECK_OF(torch.tensors == 0 && torch.lists == 0 && torch.strings == 0 && torch.blocks == 0,
             c->name);
    return found;
}

TEST(op_faults__every_call_of_torch_may_fail_in_every_op) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const op_case *c = &cases[i];
        octet_status status;
        octet_error err;
        begin();
        torch.threads = 4;
        uint64_t right = run_case(c, 0, &status, &err);
        int calls = torch.calls;
        CHECK_OF(status == OCTET_OK && calls > 10, err.text[0] ? err.text : c->name);
        for (int at = 1; at <= calls && !status; at++) {
            octet_status failure;
            uint64_t found = run_case(c, at, &failure, &err);
            /* Of a list that is only deleted, nothing is needed. */
            bool late = torch.failed && strstr(torch.failed, "get_item") && !failure;
            if (torch.failed && !is_harmless(torch.failed) && !late) {
                CHECK_OF(failure == OCTET_DEVICE || failure == OCTET_NO_MEMORY, torch.failed);
                CHECK_OF(err.status == failure && err.text[0], torch.failed);
            } else {
                CHECK_OF(failure == OCTET_OK && found == right, c->name);
            }
            CHECK_OF(run_case(c, 0, &failure, &err) == right && !failure, c->name);
        }
    }
}

/* ---- memory ------------------------------------------------------------------------------ */

/* The linker puts these before the C library's, where it can. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);

static int allocation, lost_allocation; /* 0: none is lost */

static bool is_lost(void) {
    return lost_allocation && ++allocation == lost_allocation;
}

void *__wrap_malloc(size_t size) {
    return is_lost() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size) {
    return is_lost() ? NULL : __real_calloc(count, size);
}

/* Runs an op with its allocation `at` failing. Whether it was refused for it. */
static bool run_without(const op_case *c, int at) {
    octet_status status;
    octet_error err;
    allocation = 0;
    lost_allocation = at;
    (void)run_case(c, 0, &status, &err);
    bool lost = at && allocation >= at;
    lost_allocation = 0;
    CHECK_OF(status == OCTET_OK || (lost && status == OCTET_NO_MEMORY), err.text);
    return status != OCTET_OK;
}

/* A text and sizes that are new are planned: two allocations. */
TEST(op_faults__without_memory_for_a_plan_an_op_says_so_and_works_later) {
    int refused = 0;
    begin();
    for (int at = 1; at <= 4; at++) {
        char words[64];
        (void)snprintf(words, sizeof words, "in=bf16 recipe=current:eps=1e-%d", at);
        op_case c = {"linear", run_linear, OCTET_PLAN_LINEAR, words, NULL, 16, 32,
                     48,       -1,         OCTET_CPU};
        refused += run_without(&c, at);
        CHECK(!run_without(&c, 0));
        c.m += 16; /* the text is known: one allocation */
        refused += run_without(&c, 1);
        CHECK(!run_without(&c, 0));
    }
    CHECK_EQ_INT(refused, 2 + 4);
}

/* Rules, prepared launches and graphs are remembered where there is memory for that. */
TEST(op_faults__without_memory_to_remember_an_op_works) {
    begin();
    for (int at = 1; at <= 12; at++) {
        char rule[64];
        (void)snprintf(rule, sizeof rule, "input delayed:margin=%d,history=4", at);
        op_case update = {
            "delayed_update", run_update, OCTET_PLAN_LINEAR, "", rule, 0, 0, 0, -1, OCTET_CPU};
        op_case on_gpu = cases[1];
        CHECK(!run_without(&update, 1));
        on_gpu.m =
            16 * (at + 1); /* it is prepared by its second run, captured by a later one */
        CHECK(!run_without(&on_gpu, 0));
        for (int i = 0; i < 4; i++) {
            (void)run_without(&on_gpu, at);
        }
        CHECK(!run_without(&on_gpu, 0));
    }
}

/* ---- registration ------------------------------------------------------------------------ */

static void no_error(octet_status status, const char *text) {
    (void)status;
    (void)text;
}

TEST(op_faults__a_registration_that_torch_refuses_names_the_op) {
    octet_error err = {OCTET_OK, 0, ""};
    begin();
    torch.calls = 0;
    CHECK_OF(oct_torch_register(NULL, no_error, &err) == OCTET_OK, err.text);
    int calls = torch.calls, defined = torch.defined;
    CHECK(defined > 20 && torch.implemented == 2 * defined);
    for (int at = 1; at <= calls; at++) {
        torch.calls = 0;
        torch.fail_at = at;
        CHECK_EQ_INT(oct_torch_register(NULL, no_error, &err), OCTET_DEVICE);
        CHECK_OF(strstr(err.text, "torch refused the ") && strstr(err.text, " of octet::"),
                 err.text);
    }
    torch.fail_at = 0;
}

/* One that is older than every function that Octet asks for. */
TEST(op_faults__what_is_no_torch_is_refused_by_name) {
    octet_error err = {OCTET_OK, 0, ""};
    begin();
    CHECK_EQ_INT(oct_torch_register("/nowhere/libtorch_cpu.so", no_error, &err), OCTET_DEVICE);
    CHECK_OF(strstr(err.text, "cannot open /nowhere/libtorch_cpu.so"), err.text);
    CHECK_EQ_INT(oct_torch_register(TEST_FAKE_CUDA, no_error, &err), OCTET_UNSUPPORTED);
    CHECK_OF(strstr(err.text, "no aoti_torch_library_init_def: Octet needs torch 2.10"),
             err.text);
    CHECK_EQ_INT(oct_torch_cuda_load(TEST_FAKE_CUDA, "", &err), OCTET_UNSUPPORTED);
    CHECK_OF(strstr(err.text, "aoti_torch_get_current_cuda_stream"), err.text);
    static char folders[40000];
    memset(folders, 'x', sizeof folders - 1);
    CHECK_EQ_INT(oct_torch_cuda_load(NULL, folders, &err), OCTET_INVALID);
    CHECK_OF(strstr(err.text, "characters of library folders"), err.text);
}

TEST_MAIN(op_faults__every_call_of_torch_may_fail_in_every_op,
          op_faults__without_memory_for_a_plan_an_op_says_so_and_works_later,
          op_faults__without_memory_to_remember_an_op_works,
          op_faults__a_registration_that_torch_refuses_names_the_op,
          op_faults__what_is_no_torch_is_refused_by_name)
