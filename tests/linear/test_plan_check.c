/* test_plan_check.c - octet_plan_check: every plan that the library makes passes, and what
 * could touch memory wrongly does not. */
#include <stdlib.h>

#include "matrix.h"
#include "mutations_prologue.h"
#include "test.h"

#define ROWS 6000
#define SPOILED_ROWS 400 /* of these each fault is tried on */

static const matrix_size sizes[] = {{96, 64, 80}, {0, 64, 80}, {33, 129, 31}, {128, 256, 8}};

/* A drawn problem's plans; false: the combination is refused. */
static bool draw(check_chain *out, matrix_random *random) {
    octet_linear_backward_args args = OCTET_LINEAR_BACKWARD_ARGS_INIT;
    matrix_row row = matrix_draw(random);
    const matrix_size *size = &sizes[matrix_below(random, 4)];
    return !matrix_args(&args, &row, size, NULL) && !check_chain_make(out, &args, NULL);
}

TEST(plan_check__every_plan_of_the_library_passes) {
    matrix_random random = {7};
    int passed = 0;
    for (int i = 0; i < ROWS; i++) {
        check_chain chain;
        for (int n = draw(&chain, &random) ? 0 : chain.count; n < chain.count; n++) {
            octet_error err = {OCTET_OK, 0, ""};
            bool good = octet_plan_check(&chain.plans[n], &err) == OCTET_OK;
            if (!CHECK_OF(good, err.text) && test_failures < 4) {
                char text[OCTET_LINEAR_TEXT];
                (void)octet_linear_backward_print(text, sizeof text, &chain.args);
                printf("    plan %d of %s\n", n, text);
            }
            passed += good;
        }
    }
    CHECK(passed > ROWS / 2);
}

TEST(plan_check__plans_of_one_tensor_pass) {
    static const char *const texts[] = {"fp8-tensor:e4m3+row+col", "fp8-delayed:e5m2",
                                        "fp8-block:e4m3/1x128",    "mxfp8:e4m3",
                                        "nvfp4:e2m1/1x16+rht+sr",  "mxfp4:e2m1"};
    for (int i = 0; i < 6; i++) {
        octet_error err = {OCTET_OK, 0, ""};
        octet_quantizer q;
        octet_plan plan = OCTET_PLAN_INIT;
        octet_proto proto = octet_proto_make(OCTET_BF16, 2, (int64_t[]){70, 96});
        CHECK_EQ_INT(octet_quantizer_parse(&q, texts[i], &err), OCTET_OK);
        CHECK_EQ_INT(octet_plan_quantize(&plan, &proto, &q, &err), OCTET_OK);
        CHECK_OF(octet_plan_check(&plan, &err) == OCTET_OK, err.text);
        proto.quantizer = q;
        CHECK_EQ_INT(octet_plan_dequantize(&plan, &proto, &err), OCTET_OK);
        CHECK_OF(octet_plan_check(&plan, &err) == OCTET_OK, err.text);
    }
}

/* Products in chunks, of columns and of rows: a padded copy is of a chunk, others of all. */
TEST(plan_check__plans_in_chunks_pass) {
    static const char *const recipes[] = {"delayed", "current", "block",
                                          "mxfp8",   "nvfp4",   "none"};
    static const char *const devices[] = {"cpu", "cuda:0/90", "cuda:0/100"};
    static const char *const chunks[] = {"parallel=row sequence tp=2 chunks=4",
                                         "parallel=column sequence tp=2 chunks=2",
                                         "parallel=column sequence tp=2 gather_chunks=4",
                                         "parallel=row sequence tp=2 gather_chunks=2"};
    for (int i = 0; i < 6 * 3 * 4; i++) {
        char text[OCTET_LINEAR_TEXT];
        octet_error err = {OCTET_OK, 0, ""};
        octet_linear_args args;
        octet_linear_backward_args back;
        static octet_chain chain;
        (void)snprintf(text, sizeof text,
                       "linear m=2048 k=1024 n=1024 in=bf16 recipe=%s %s device=%s",
                       recipes[i % 6], chunks[i / 6 % 4], devices[i / 24]);
        CHECK_OF(octet_linear_parse(&args, text, &err) == OCTET_OK, err.text);
        CHECK_EQ_INT(octet_linear_backward_make(&back, &args, &err), OCTET_OK);
        CHECK_OF(octet_plan_chain(&chain, &back, &err) == OCTET_OK, err.text);
        CHECK(chain.plans[0].chunks > 1 || chain.plans[1].chunks > 1);
        for (int n = 0; n < chain.count; n++) {
            CHECK_OF(octet_plan_check(&chain.plans[n], &err) == OCTET_OK, err.text);
        }
    }
}

/* What could make a run read or write where it must not, or what nobody wrote. */
static const struct {
    const char *name;
    mutate_fn spoil;
} faults[] = {
    {"a write is dropped", drop_a_write},
    {"steps are reversed", reverse_steps},
    {"a step is in a later phase than its reader", advance_a_step},
    {"a result of a collective is read in its own phase", hasten_after_collective},
    {"a phase is announced that does not come", add_a_phase},
    {"an argument is written", write_an_argument},
    {"a restored slot is written", write_a_restored_slot},
    {"an offset is not aligned", shift_an_offset},
    {"two buffers overlap", overlap_two},
    {"two buffers of one step overlap", overlap_two_of_a_step},
    {"the workspace is too small", shrink_the_workspace},
    {"a buffer leaves its port", leave_a_port},
    {"a written output is called an alias", call_an_output_an_alias},
    {"a slot is in the workspace", save_scratch},
    {"saved_bytes counts too much", count_too_much},
    {"aliased_bytes counts too much", count_aliases_wrong},
    {"a shape is wrong", change_a_shape},
    {"a dimension is wrong", change_a_dim},
    {"a port's bytes are wrong", change_bytes},
    {"a tensor lost its buffers", lose_a_buffer},
    {"a tensor has another layout", change_a_layout},
    {"products have lost their scratch", lose_the_scratch},
    {"a product's scratch is too small", shrink_the_scratch},
    {"it rounds stochastically without a seed", round_without_a_seed},
    {"a norm has no statistics", norm_without_statistics},
};
#define FAULTS ((int)(sizeof faults / sizeof faults[0]))

static bool passes(const check_chain *chain) {
    bool good = true;
    for (int n = 0; n < chain->count && good; n++) {
        good = octet_plan_check(&chain->plans[n], NULL) == OCTET_OK;
    }
    return good;
}

TEST(plan_check__faults_that_touch_memory_are_refused) {
    int applied[FAULTS] = {0};
    matrix_random random = {11};
    for (int i = 0; i < SPOILED_ROWS; i++) {
        check_chain chain;
        if (!draw(&chain, &random)) {
            continue;
        }
        for (int f = 0; f < FAULTS; f++) {
            check_chain spoiled = chain;
            if (faults[f].spoil(&spoiled) &&
                memcmp(&spoiled.plans, &chain.plans, sizeof chain.plans) != 0) {
                applied[f]++;
                CHECK_OF(!passes(&spoiled), faults[f].name);
            }
        }
    }
    for (int f = 0; f < FAULTS; f++) {
        CHECK_OF(applied[f] > 0, faults[f].name);
    }
}

/* Every flipped bit of a mask makes a step read or write what its operands do not say. */
TEST(plan_check__every_flipped_mask_is_refused) {
    matrix_random random = {5};
    for (int i = 0; i < 40; i++) {
        check_chain chain;
        octet_plan *plan = &chain.plans[0];
        if (!draw(&chain, &random) || plan->device.kind != OCTET_CPU) {
            continue;
        }
        for (int s = 0; s < plan->step_count; s++) {
            for (int b = 0; b < plan->buffer_count; b++) {
                plan->steps[s].reads ^= check_bit(b);
                CHECK(octet_plan_check(plan, NULL) != OCTET_OK);
                plan->steps[s].reads ^= check_bit(b);
                plan->steps[s].writes ^= check_bit(b);
                CHECK(octet_plan_check(plan, NULL) != OCTET_OK);
                plan->steps[s].writes ^= check_bit(b);
            }
        }
    }
}

/* ---- any byte: what passes is run in memory of exactly the size it asks for ----------------
 */

static void *exactly(int64_t bytes) {
    /* A sanitizer sees the first byte behind it. */
    void *made = bytes ? aligned_alloc(OCTET_ARENA_ALIGN, (size_t)bytes) : NULL;
    if (made) {
        memset(made, 0, (size_t)bytes);
    }
    return made;
}

static int64_t rounded(int64_t bytes) {
    return (bytes + OCTET_ARENA_ALIGN - 1) / OCTET_ARENA_ALIGN * OCTET_ARENA_ALIGN;
}

static bool run_exactly(const octet_plan *plan) {
    octet_memory memory = OCTET_MEMORY_INIT;
    octet_exec exec = OCTET_EXEC_INIT;
    for (int i = 0; i < plan->arg_count; i++) {
        memory.args[i] = calloc(1, (size_t)plan->args[i].bytes + !plan->args[i].bytes);
    }
    for (int i = 0; i < plan->out_count; i++) {
        memory.outs[i] = calloc(1, (size_t)plan->outs[i].bytes + !plan->outs[i].bytes);
    }
    memory.saved = exactly(rounded(memory.saved_bytes = plan->saved_bytes));
    memory.workspace = exactly(rounded(memory.workspace_bytes = plan->workspace_bytes));
    bool ran = octet_run(plan, &memory, &exec, NULL) == OCTET_OK;
    for (int i = 0; i < plan->arg_count; i++) {
        free((void *)(uintptr_t)memory.args[i]);
    }
    for (int i = 0; i < plan->out_count; i++) {
        free(memory.outs[i]);
    }
    free(memory.saved);
    free(memory.workspace);
    return ran;
}

static const char *const problems[] = {
    "linear m=5 k=48 n=40 in=bf16 recipe=mxfp8 bias",
    "linear m=20 k=33 n=17 in=f32 recipe=nvfp4",
    "linear m=20 k=64 n=32 in=bf16 recipe=delayed quantize_output",
    "linear m=20 k=64 n=32 in=f16 recipe=current prologue=layernorm beta=f32 eps=1e-5",
};

/* Each byte of the plan in turn becomes another; spoiled plans are refused or harmless. */
TEST(plan_check__a_spoiled_byte_is_refused_or_harmless) {
    for (int i = 0; i < 4; i++) {
        octet_linear_args args;
        octet_plan plan = OCTET_PLAN_INIT;
        octet_error err = {OCTET_OK, 0, ""};
        int64_t refused = 0, harmless = 0;
        CHECK_EQ_INT(octet_linear_parse(&args, problems[i], &err), OCTET_OK);
        CHECK_EQ_INT(octet_plan_linear(&plan, &args, &err), OCTET_OK);
        CHECK_OF(octet_plan_check(&plan, &err) == OCTET_OK, err.text);
        uint8_t *bytes = (uint8_t *)&plan;
        for (size_t at = 0; at < sizeof plan; at++) {
            static const uint8_t flips[] = {1, 0x80, 0xFF};
            for (int f = 0; f < 3; f++) {
                bytes[at] ^= flips[f];
                bool good = octet_plan_check(&plan, NULL) == OCTET_OK;
                refused += !good;
                if (good && plan.device.kind == OCTET_CPU) {
                    harmless++;
                    (void)run_exactly(&plan);
                }
                bytes[at] ^= flips[f];
            }
        }
        CHECK(refused > 20 * harmless && harmless > 0);
        CHECK(run_exactly(&plan));
    }
}

TEST(plan_check__nothing_is_refused_by_name) {
    octet_error err;
    octet_plan plan = OCTET_PLAN_INIT;
    CHECK_EQ_INT(octet_plan_check(NULL, &err), OCTET_INVALID);
    CHECK_EQ_STR(err.text, "plan is NULL");
    CHECK_EQ_INT(octet_plan_check(&plan, &err), OCTET_INVALID);
    plan.size = 3;
    CHECK_EQ_INT(octet_plan_check(&plan, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "octet_plan.size is 3") != NULL);
}

/* Plans whose rows are gathered in pieces, and the same where a piece is none. */
TEST(plan_check__gathers_in_chunks_join_pieces) {
    static const char *const words[] = {
        "in=bf16 recipe=mxfp8 parallel=column tp=2 sequence gather_chunks=2",
        "in=bf16 recipe=none parallel=column tp=2 sequence gather_chunks=2",
        "in=bf16 recipe=block parallel=row tp=2 sequence gather_chunks=4",
        "in=bf16 recipe=current parallel=column tp=2 sequence gather_chunks=2 delay_wgrad",
    };
    static octet_chain chain;
    for (int w = 0; w < 4; w++) {
        const int64_t sizes[] = {1024, 512, 512};
        octet_linear_backward_args args;
        octet_error err = {OCTET_OK, 0, ""};
        int joins = 0;
        CHECK_OF(!octet_linear_backward_parse_words(&args, words[w], sizes, 3, &err), err.text);
        CHECK_OF(!octet_plan_chain(&chain, &args, &err), err.text);
        for (int i = 0; i < chain.count; i++) {
            CHECK_OF(!octet_plan_check(&chain.plans[i], &err), err.text);
            for (int at = 0; at < chain.plans[i].step_count; at++) {
                octet_plan spoiled = chain.plans[i];
                if (spoiled.steps[at].op != OCTET_OP_JOIN) {
                    continue;
                }
                joins++;
                spoiled.steps[at].chunk = OCTET_ABSENT;
                CHECK_EQ_INT(octet_plan_check(&spoiled, &err), OCTET_INVALID);
                spoiled = chain.plans[i];
                spoiled.tensors[spoiled.steps[at].a].rows.mul++;
                CHECK_EQ_INT(octet_plan_check(&spoiled, &err), OCTET_INVALID);
            }
        }
        CHECK_OF(joins > 1, words[w]);
    }
}

TEST_MAIN(plan_check__gathers_in_chunks_join_pieces,
          plan_check__every_plan_of_the_library_passes, plan_check__plans_of_one_tensor_pass,
          plan_check__plans_in_chunks_pass, plan_check__faults_that_touch_memory_are_refused,
          plan_check__every_flipped_mask_is_refused,
          plan_check__a_spoiled_byte_is_refused_or_harmless,
          plan_check__nothing_is_refused_by_name)
