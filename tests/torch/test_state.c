/* test_state.c - delayed scaling's state is one tensor where plans have two arguments. */
#include "torch/state.h"

#include <string.h>

#include "test.h"

static const char *const problems[] = {
    "recipe=delayed raise_amax",
    "recipe=delayed raise_amax quantize_output quantize_grad_input bias",
    "recipe=delayed raise_amax calibrate bias",
    "recipe=delayed raise_amax main_grad=add delay_wgrad",
    "recipe=delayed raise_amax cache=read",
    "recipe=delayed raise_amax grad=none",
    "recipe=delayed raise_amax save=memory bias",
    "recipe=delayed skip_amax bias",
    "recipe=delayed bias",
    "recipe=nvfp4 main_grad=add",
    "recipe=mxfp8 bias delay_wgrad",
};
enum { PROBLEMS = sizeof problems / sizeof *problems };

static bool plan_of(octet_chain *chain, const char *words) {
    octet_linear_backward_args args;
    octet_error err;
    static const int64_t sizes[] = {16, 32, 48};
    char text[OCTET_LINEAR_TEXT];
    (void)snprintf(text, sizeof text, "in=bf16 %s", words);
    octet_status status = octet_linear_backward_parse_words(&args, text, sizes, 3, &err);
    status = status ? status : octet_plan_chain(chain, &args, &err);
    return CHECK_OF(status == OCTET_OK, status ? err.text : words);
}

static bool raises(const char *words) {
    return strstr(words, "raise_amax") != NULL;
}

/* ---- signatures -------------------------------------------------------------------------- */

/* What the pool of a backward holds at an index, whoever counts: the gradient, a saved tensor,
 * the block, or what is lent. Scales and their state are both the state where it is joined. */
static int meaning(const octet_signature *s, int index, bool joined) {
    int first = 1 + s->saved_count + s->saves_arena;
    if (index < first || index == OCTET_ABSENT) {
        return index;
    }
    int lent = s->lent[index - first];
    return 1000 + (joined && lent == OCTET_LENT_SCALE ? OCTET_LENT_HISTORY : lent);
}

/* Indices into the pool of a backward. */
typedef struct listed {
    const octet_signature *of;
    const uint8_t *at;
    int count;
} listed;

static bool is_scale(const listed *list, int i) {
    return meaning(list->of, list->at[i], false) == 1000 + OCTET_LENT_SCALE;
}

static void check_indices(listed before, listed after, bool joined) {
    int at = 0;
    for (int i = 0; i < before.count; i++) {
        if (joined && is_scale(&before, i)) {
            continue;
        }
        if (CHECK(at < after.count)) {
            CHECK_EQ_INT(meaning(after.of, after.at[at], joined),
                         meaning(before.of, before.at[i], joined));
        }
        at++;
    }
    CHECK_EQ_INT(at, after.count);
}

TEST(state__signatures_count_scales_with_their_state) {
    for (int i = 0; i < PROBLEMS; i++) {
        octet_chain chain;
        octet_signature were, are;
        if (!plan_of(&chain, problems[i])) {
            continue;
        }
        octet_signature_of(&were, &chain, false);
        are = were;
        oct_join_state(&are);
        int at = 0, calibrates = strstr(problems[i], "calibrate") != NULL;
        for (int j = 0; j < were.arg_count; j++) {
            bool inside = raises(problems[i]) && were.args[j].name == OCTET_NAME_SCALE;
            at += !inside && CHECK(were.args[j].name == are.args[at].name);
        }
        CHECK_EQ_INT(at, are.arg_count);
        CHECK_EQ_INT(are.arg_count < were.arg_count, raises(problems[i]) && !calibrates);
        for (int j = 0; j < were.saved_count; j++) {
            octet_saved was = were.saved[j], is = are.saved[j];
            CHECK(was.is_argument == is.is_argument);
            CHECK(is.is_argument ? were.args[was.index].name == are.args[is.index].name
                                 : was.index == is.index);
        }
    }
}

TEST(state__a_backward_finds_what_it_takes) {
    for (int i = 0; i < PROBLEMS; i++) {
        octet_chain chain;
        octet_signature were, are;
        octet_backward_signature before, after;
        if (!plan_of(&chain, problems[i]) || chain.count < 2) {
            continue;
        }
        octet_signature_of(&were, &chain, false);
        octet_backward_signature_of(&before, &chain, false);
        are = were;
        after = before;
        oct_join_state(&are);
        oct_join_state_of_backward(&after, &were);
        bool joined = before.raises_amaxes;
        CHECK_EQ_INT(are.lent_count, were.lent_count - joined);
        check_indices((listed){&were, before.read, before.read_count},
                      (listed){&are, after.read, after.read_count}, joined);
        check_indices((listed){&were, before.written, before.written_count},
                      (listed){&are, after.written, after.written_count}, joined);
        check_indices((listed){&were, before.later, before.later_count},
                      (listed){&are, after.later, after.later_count}, joined);
    }
}

/* ---- addresses --------------------------------------------------------------------------- */

TEST(state__scales_are_its_first_row_and_amaxes_the_next) {
    octet_chain chain;
    float state[2][OCTET_FORWARD_SLOTS];
    if (!plan_of(&chain, problems[0])) {
        return;
    }
    octet_memory memory = OCTET_MEMORY_INIT;
    const octet_plan *plan = &chain.plans[0];
    int scale = -1, amax = -1;
    for (int i = 0; i < plan->arg_count; i++) {
        scale = plan->args[i].name == OCTET_NAME_SCALE ? i : scale;
        amax = plan->args[i].name == OCTET_NAME_AMAX ? i : amax;
    }
    if (!CHECK(scale >= 0 && amax >= 0)) {
        return;
    }
    CHECK(oct_is_in_state(plan, scale) && !oct_is_in_state(plan, amax));
    CHECK(oct_is_state(&plan->args[amax]) && !oct_is_state(&plan->args[scale]));
    oct_put_argument(&memory, plan, amax, state);
    CHECK(memory.args[scale] == state[0] && memory.args[amax] == state[1]);
    oct_put_argument(&memory, plan, 0, state[1]);
    CHECK(memory.args[0] == state[1] && memory.args[scale] == state[0]);
}

TEST(state__a_phase_takes_one_tensor_for_both) {
    for (int i = 0; i < PROBLEMS; i++) {
        octet_chain chain;
        octet_regions were, are;
        if (!plan_of(&chain, problems[i])) {
            continue;
        }
        for (int j = 0; j < chain.count; j++) {
            octet_phase_regions(&were, &chain.plans[j], 0);
            oct_phase_tensors(&are, &chain.plans[j], 0);
            int found = 0;
            for (int k = 0; k < were.count; k++) {
                const octet_region *r = &were.at[k];
                found +=
                    !(r->place == OCTET_PLACE_ARG && oct_is_in_state(&chain.plans[j], r->port));
            }
            CHECK_EQ_INT(are.count, found);
        }
    }
}

TEST_MAIN(state__signatures_count_scales_with_their_state,
          state__a_backward_finds_what_it_takes,
          state__scales_are_its_first_row_and_amaxes_the_next,
          state__a_phase_takes_one_tensor_for_both)
