/* test_signature.c - what a front end is told of a call, against what its plans do. */
#include <string.h>

#include "octet.h"
#include "test.h"

static octet_linear_args parse(const char *words) {
    octet_linear_args args = OCTET_LINEAR_ARGS_INIT;
    const int64_t sizes[] = {4, 32, 64, 16};
    octet_error err;
    octet_status status = octet_linear_parse_words(&args, words, sizes, 4, &err);
    if (status) {
        test_report(false, TEST_HERE("words are read"), "%s: %s", words, err.text);
    }
    return args;
}

static octet_chain chain_of(const octet_linear_args *args) {
    octet_linear_backward_args back;
    octet_chain chain = {.count = 0};
    octet_error err;
    octet_status status = octet_linear_backward_make(&back, args, &err);
    status = status ? status : octet_plan_chain(&chain, &back, &err);
    if (status) {
        test_report(false, TEST_HERE("the call is planned"), "%s", err.text);
    }
    return chain;
}

static octet_signature sign(const char *words, bool flat) {
    octet_linear_args args = parse(words);
    octet_chain chain = chain_of(&args);
    octet_signature s;
    octet_signature_of(&s, &chain, flat);
    return s;
}

static octet_backward_signature sign_backward(const char *words) {
    octet_linear_args args = parse(words);
    octet_chain chain = chain_of(&args);
    octet_backward_signature s;
    octet_backward_signature_of(&s, &chain, false);
    return s;
}

static bool is(const octet_call_tensor *group, const char *name, int start, int count) {
    char text[64];
    (void)octet_call_tensor_print(text, sizeof text, group);
    return !strcmp(text, name) && group->start == start && group->count == count;
}

TEST(words__are_a_problem_without_its_sizes) {
    static const char *const rows[] = {
        "in=bf16", "in=bf16 bias recipe=mxfp8", "in=f32 w=bf16 recipe=nvfp4 grad=x",
        "in=bf16 recipe=current cache=read delay_wgrad device=cuda:0/90"};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        octet_linear_args args = parse(rows[i]);
        char words[OCTET_LINEAR_TEXT], whole[OCTET_LINEAR_TEXT];
        (void)octet_linear_print_words(words, sizeof words, &args);
        CHECK_EQ_STR(words, rows[i]);
        CHECK_EQ_INT(args.input.rank, 3);
        CHECK_EQ_INT(args.input.shape[1], 32);
        CHECK_EQ_INT(args.weight.shape[0], 16);
        octet_linear_args again;
        (void)octet_linear_print(whole, sizeof whole, &args);
        CHECK_EQ_INT(octet_linear_parse(&again, whole, NULL), OCTET_OK);
        CHECK(octet_linear_equal(&args, &again));
    }
}

TEST(words__refuse_sizes_that_are_none) {
    const int64_t sizes[] = {4, -1, 8, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    octet_linear_args args;
    octet_error err;
    CHECK_EQ_INT(octet_linear_parse_words(&args, "in=bf16", sizes, 3, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "size 1 is -1") != NULL);
    CHECK_EQ_INT(octet_linear_parse_words(&args, "in=bf16", sizes, 1, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "1 sizes") != NULL);
    CHECK_EQ_INT(octet_linear_parse_words(&args, "in=bf16", sizes, OCTET_MAX_RANK + 1, &err),
                 OCTET_INVALID);
    CHECK_EQ_INT(octet_linear_parse_words(&args, "m=4 in=bf16", sizes + 2, 3, &err),
                 OCTET_INVALID);
    CHECK(strstr(err.text, "'m' is given twice") != NULL);
    CHECK_EQ_INT(octet_linear_parse_words(&args, "recipe=mxfp8", sizes + 2, 3, &err),
                 OCTET_INVALID);
    CHECK(strstr(err.text, "'in='") != NULL);
}

TEST(signature__of_a_plain_call) {
    octet_signature s = sign("in=bf16 bias recipe=mxfp8", false);
    CHECK_EQ_INT(s.arg_count, 3);
    CHECK(is(&s.args[0], "input", 0, 1) && is(&s.args[2], "bias", 2, 1));
    CHECK_EQ_INT(s.out_count, 1);
    CHECK(is(&s.outs[0], "output", 0, 1));
    CHECK_EQ_INT(s.returned, 2); /* the output and the block */
    CHECK(s.saves_arena && s.saved_count == 0 && s.lent_count == 0 && s.has_backward);
    CHECK_EQ_INT(s.collective_count, 0);
}

/* A quantized weight is one argument, or one for each of its buffers; it is saved once. */
TEST(signature__of_a_quantized_weight) {
    static const char words[] = "in=bf16 recipe=mxfp8 qw=mxfp8:e4m3/1x32+row+col";
    octet_signature whole = sign(words, false), flat = sign(words, true);
    CHECK_EQ_INT(whole.arg_count, 2);
    CHECK(whole.args[1].count > 1 && flat.arg_count == 1 + whole.args[1].count);
    CHECK_EQ_INT(whole.saved_count, 1);
    CHECK(whole.saved[0].is_argument && whole.saved[0].index == 1);
    CHECK(flat.saved_count > 1 && flat.saved[0].is_argument && flat.saved[0].index > 0);
}

/* Without a recipe backward reads forward's own arguments: nothing is copied. */
TEST(signature__backward_finds_its_arguments_in_the_pool) {
    octet_signature s = sign("in=bf16 bias", false);
    octet_backward_signature b = sign_backward("in=bf16 bias");
    CHECK_EQ_INT(s.saved_count, 2);
    CHECK(!s.saves_arena);
    CHECK_EQ_INT(b.read_count, 3); /* the gradient, and the two that were saved */
    CHECK_EQ_INT(b.read[0], 0);
    CHECK(b.read[1] != b.read[2] && b.read[1] <= 2 && b.read[2] <= 2);
    CHECK_EQ_INT(b.returned, 3);
    for (int i = 0; i < 3; i++) {
        CHECK(b.grads[i].count == 1 && b.grads[i].start == i);
    }
}

TEST(signature__says_what_a_layer_lends) {
    static const struct {
        const char *words;
        int count;
        uint8_t lent[3];
    } rows[] = {
        {"in=bf16 recipe=delayed raise_amax", 2, {OCTET_LENT_SCALE, OCTET_LENT_HISTORY, 0}},
        {"in=bf16 recipe=delayed skip_amax", 1, {OCTET_LENT_SCALE, 0, 0}},
        {"in=bf16 recipe=nvfp4", 1, {OCTET_LENT_SEED, 0, 0}},
        {"in=bf16 recipe=mxfp8 main_grad=add", 1, {OCTET_LENT_MAIN_GRAD, 0, 0}},
        {"in=bf16 recipe=mxfp8 delay_wgrad", 1, {OCTET_LENT_QUEUE, 0, 0}},
        {"in=bf16 recipe=nvfp4 grad=none", 0, {0, 0, 0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        octet_signature s = sign(rows[i].words, false);
        CHECK_EQ_INT(s.lent_count, rows[i].count);
        CHECK(!memcmp(s.lent, rows[i].lent, (size_t)rows[i].count));
    }
}

/* A later weight gradient takes the block of backward, too. */
TEST(signature__of_a_delayed_wgrad) {
    octet_backward_signature b = sign_backward("in=bf16 recipe=mxfp8 delay_wgrad");
    CHECK(b.later_count >= 2);
    CHECK_EQ_INT(b.later[b.later_count - 1], OCTET_ABSENT);
    CHECK(b.grads[1].count == 0);
}

/* Phases and collectives of a call that ranks share. */
TEST(signature__lists_the_collectives) {
    octet_signature s = sign("in=bf16 recipe=mxfp8 tp=2 parallel=column sequence", false);
    CHECK(s.phases > 1 && s.collective_count > 0);
    for (int i = 0; i < s.collective_count; i++) {
        CHECK_EQ_INT(s.collectives[i].kind, OCTET_ALL_GATHER);
        CHECK(s.collectives[i].phase < s.phases);
        CHECK_EQ_INT(s.collectives[i].begin, 1); /* the bytes are made first, */
        CHECK_EQ_INT(s.collectives[i].end, 1);   /* and multiplied next */
    }
}

/* What forward saved is gathered beside dgrad; dgrad's sums are scattered beside wgrad. */
TEST(signature__says_what_runs_beside_a_collective) {
    octet_backward_signature s =
        sign_backward("in=bf16 recipe=mxfp8 tp=2 parallel=column sequence");
    int gathers = 0, scatters = 0;
    CHECK_EQ_INT(s.phases, 2);
    for (int i = 0; i < s.collective_count; i++) {
        const octet_collective_call *c = &s.collectives[i];
        bool gathers_input = c->kind == OCTET_ALL_GATHER;
        gathers += gathers_input;
        scatters += c->kind == OCTET_REDUCE_SCATTER;
        CHECK_EQ_INT(c->begin, gathers_input ? 0 : 1);
        CHECK_EQ_INT(c->end, gathers_input ? 1 : 2);
    }
    CHECK_EQ_INT(gathers, 2); /* data and scales */
    CHECK_EQ_INT(scatters, 1);
}

static const char *const shared[] = {
    "in=bf16 bias recipe=nvfp4 tp=2 parallel=column sequence",
    "in=bf16 bias recipe=nvfp4 tp=2 parallel=row sequence delay_wgrad",
    "in=bf16 recipe=current tp=2 parallel=column sequence delay_wgrad",
    "in=bf16 recipe=current tp=2 parallel=row sequence delay_wgrad",
    "in=bf16 recipe=mxfp8 tp=4 parallel=row sequence",
    "in=bf16 recipe=delayed tp=2 parallel=column sequence",
    "in=bf16 bias tp=2 parallel=row",
};
enum { SHARED = sizeof shared / sizeof *shared };

/* The buffers of a saved block one after the other, as they lie in it. */
TEST(block__lists_its_buffers_by_their_offsets) {
    for (int i = 0; i < SHARED; i++) {
        octet_linear_args args = parse(shared[i]);
        octet_chain chain = chain_of(&args);
        for (int at = 0; at < chain.count; at++) {
            const octet_plan *plan = &chain.plans[at];
            uint8_t buffers[OCTET_PLAN_BUFFERS];
            int64_t offset = 0;
            int count = octet_arena_buffers(buffers, plan);
            for (int j = 0; j < count; j++) {
                const octet_plan_buffer *b = &plan->buffers[buffers[j]];
                CHECK_EQ_INT(b->offset, offset);
                offset += (b->bytes + OCTET_ALIGN - 1) / OCTET_ALIGN * OCTET_ALIGN;
            }
            CHECK_EQ_INT(offset, plan->saved_bytes);
        }
    }
}

/* The buffer that a collective's place, port and item name, in the plan that made it. */
static const octet_plan_buffer *named(const octet_chain *chain, int at, uint8_t place,
                                      uint8_t port, uint8_t item) {
    uint8_t buffers[OCTET_PLAN_BUFFERS];
    const octet_plan *plan = &chain->plans[place == OCTET_PLACE_RESTORED ? port : at];
    CHECK(item < octet_arena_buffers(buffers, plan));
    return &plan->buffers[buffers[item]];
}

/* Where a collective meets a block, its item lies where the step's own buffer does. */
TEST(collectives__find_their_buffers_in_blocks) {
    int met = 0;
    for (int i = 0; i < SHARED; i++) {
        octet_linear_args args = parse(shared[i]);
        octet_chain chain = chain_of(&args);
        for (int at = 0; at < chain.count; at++) {
            octet_collective_call calls[OCTET_PLAN_EXCHANGES];
            const octet_plan *plan = &chain.plans[at];
            int count = octet_collectives_of(calls, &chain, at), next = 0;
            for (int j = 0; j < plan->step_count; j++) {
                if (plan->steps[j].op != OCTET_OP_COLLECTIVE) {
                    continue;
                }
                const octet_collective_call *c = &calls[next++];
                const octet_plan_buffer *from = &plan->buffers[plan->steps[j].from];
                CHECK(c->from_place == from->place && c->from_port == from->port);
                CHECK(c->begin <= c->phase + 1 && c->end > c->phase && c->end <= plan->phases);
                if (from->place == OCTET_PLACE_SAVED || from->place == OCTET_PLACE_RESTORED) {
                    const octet_plan_buffer *found =
                        named(&chain, at, c->from_place, c->from_port, c->from_item);
                    CHECK(found->offset == from->offset && found->bytes == from->bytes);
                    met++;
                }
            }
            CHECK_EQ_INT(next, count);
        }
    }
    CHECK(met > 3);
}

/* A phase's regions hold all that its steps touch, and no workspace outlives a phase. */
TEST(phases__list_what_they_touch) {
    for (int i = 0; i < SHARED; i++) {
        octet_linear_args args = parse(shared[i]);
        octet_chain chain = chain_of(&args);
        const octet_plan *plan = &chain.plans[chain.count > 1];
        uint64_t seen = 0;
        for (int phase = 0; phase < plan->phases; phase++) {
            octet_regions regions;
            uint64_t here = 0, writes = 0;
            octet_phase_regions(&regions, plan, phase);
            for (int j = 0; j < plan->step_count; j++) {
                const octet_step *step = &plan->steps[j];
                bool mine = step->phase == phase && step->op != OCTET_OP_COLLECTIVE;
                here |= mine ? step->reads | step->writes : 0;
                writes |= mine ? step->writes : 0;
            }
            for (int j = 0; j < plan->buffer_count; j++) {
                const octet_plan_buffer *b = &plan->buffers[j];
                int found = -1;
                for (int k = 0; k < regions.count; k++) {
                    const octet_region *r = &regions.at[k];
                    bool block = b->place == OCTET_PLACE_SAVED;
                    found = r->place == b->place && (block || r->port == b->port) ? k : found;
                }
                bool used = here >> j & 1, work = b->place == OCTET_PLACE_WORK;
                CHECK(!used || work == (found < 0));
                CHECK(!(writes >> j & 1) || work || regions.at[found].is_written);
                CHECK(!(used && work && (seen >> j & 1)));
            }
            seen |= here;
        }
    }
}

/* A chain at other sizes is the chain of those sizes. */
TEST(chain__binds_to_other_sizes) {
    octet_linear_args args = parse("in=bf16 bias recipe=nvfp4 delay_wgrad"), other = args;
    octet_chain chain = chain_of(&args);
    other.input.shape[0] = 7;
    octet_chain wanted = chain_of(&other);
    octet_extents sizes = {7 * 32, 64, 16}, negative = {-1, 64, 16};
    CHECK_EQ_INT(chain.count, 3);
    CHECK_EQ_INT(octet_chain_bind(&chain, &sizes, NULL), OCTET_OK);
    for (int i = 0; i < 3; i++) {
        CHECK(octet_plan_equal(&chain.plans[i], &wanted.plans[i]));
    }
    octet_error err;
    octet_plan alone = chain.plans[1];
    CHECK_EQ_INT(octet_plan_bind(&alone, NULL, &sizes, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "previous is NULL") != NULL);
    CHECK_EQ_INT(octet_plan_bind(&chain.plans[0], NULL, &negative, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "m=-1") != NULL);
    CHECK(octet_plan_equal(&chain.plans[0], &wanted.plans[0]));
}

TEST_MAIN(chain__binds_to_other_sizes, words__are_a_problem_without_its_sizes,
          words__refuse_sizes_that_are_none, signature__of_a_plain_call,
          signature__of_a_quantized_weight, signature__backward_finds_its_arguments_in_the_pool,
          signature__says_what_a_layer_lends, signature__of_a_delayed_wgrad,
          signature__lists_the_collectives, signature__says_what_runs_beside_a_collective,

          block__lists_its_buffers_by_their_offsets, collectives__find_their_buffers_in_blocks,
          phases__list_what_they_touch)
