/* test_pairs.c - steps that a GPU does two at a time keep the plan's order, and what a step
 * needs lies in the workspace until then. */
#include "linear/check_chain.h"
#include "linear/check_view.h"
#include "linear/matrix.h"
#include "run/run.h"
#include "test.h"

enum { ROWS = 4000 };

static uint64_t state = 88172645463325252u;

static uint32_t draw(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32) % below;
}

/* The plans of options at random; none where they exclude each other. */
static int plans_of(check_chain *chain) {
    static const matrix_size size = {96, 64, 80};
    octet_linear_backward_args args = OCTET_LINEAR_BACKWARD_ARGS_INIT;
    matrix_row row = {.chunks = 0};
    for (int i = 0; i < OPTIONS; i++) {
        bool plain = draw(100) < matrix_table[i].plain;
        row.level[i] = plain ? 0 : (uint8_t)draw(matrix_table[i].count);
    }
    row.level[OPT_RECIPE] = (uint8_t)draw(matrix_table[OPT_RECIPE].count);
    row.level[OPT_DEVICE] = (uint8_t)draw(matrix_table[OPT_DEVICE].count);
    octet_status status = matrix_args(&args, &row, &size, NULL);
    return status || check_chain_make(chain, &args, NULL) ? 0 : chain->count;
}

/* Whether a step may be done before others that come before it: none of them makes what it
 * reads, nor has to do with what it writes. */
static bool may_hasten(const octet_plan *plan, const uint8_t *with, int from, int step) {
    const octet_step *hastened = &plan->steps[step];
    bool may = step > from && hastened->phase == plan->steps[from].phase;
    for (int i = from; may && i < step; i++) {
        bool is_done = false; /* with an earlier one, itself hastened */
        for (int k = 0; k < from; k++) {
            is_done = is_done || with[k] == i;
        }
        const octet_step *other = &plan->steps[i];
        may = is_done || (!(other->writes & hastened->reads) &&
                          !((other->reads | other->writes) & hastened->writes));
    }
    return may;
}

static int check_pairs(const octet_plan *plan, int phase) {
    uint8_t with[OCTET_PLAN_STEPS];
    uint64_t seen = 0;
    int pairs = 0;
    oct_pairs_of(with, plan, phase);
    for (int i = 0; i < OCTET_PLAN_STEPS; i++) {
        if (with[i] == OCTET_ABSENT) {
            continue;
        }
        int other = with[i];
        CHECK(i < plan->step_count && other < plan->step_count);
        CHECK(plan->steps[i].phase == phase && plan->steps[i].op == plan->steps[other].op);
        CHECK(with[other] == OCTET_ABSENT && !check_has(seen, i) && !check_has(seen, other));
        CHECK(may_hasten(plan, with, i, other));
        seen |= check_bit(i) | check_bit(other);
        pairs++;
    }
    return pairs;
}

TEST(pairs__are_independent_and_each_step_is_in_one) {
    static check_chain chain;
    int pairs = 0;
    for (int row = 0; row < ROWS; row++) {
        int count = plans_of(&chain);
        for (int i = 0; i < count; i++) {
            for (int phase = 0; phase < chain.plans[i].phases; phase++) {
                pairs += check_pairs(&chain.plans[i], phase);
            }
        }
    }
    CHECK(pairs > ROWS / 4);
}

/* The casts of x and w before fprop, and before those their amaxes. */
TEST(pairs__are_what_is_measured_and_cast_alike) {
    static const struct {
        const char *recipe;
        int pairs;
    } cases[] = {{"none", 0}, {"mxfp8", 1}, {"current", 2}, {"block", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        octet_linear_args args;
        octet_plan plan = OCTET_PLAN_INIT;
        char text[96];
        (void)snprintf(text, sizeof text, "linear m=64 k=32 n=48 in=bf16 recipe=%s device=cuda",
                       cases[i].recipe);
        CHECK_EQ_INT(octet_linear_parse(&args, text, NULL), OCTET_OK);
        CHECK_EQ_INT(octet_plan_linear(&plan, &args, NULL), OCTET_OK);
        CHECK_EQ_INT(check_pairs(&plan, 0), cases[i].pairs);
    }
}

/* ---- the workspace ----------------------------------------------------------------------- */

/* When a step is done: its place in the order of a device that does pairs, or does none. */
typedef struct order {
    int at[OCTET_PLAN_STEPS];
} order;

static order order_of(const octet_plan *plan, bool in_pairs) {
    order made;
    uint8_t with[OCTET_PLAN_STEPS];
    for (int i = 0; i < plan->step_count; i++) {
        made.at[i] = i;
    }
    for (int phase = 0; in_pairs && phase < plan->phases; phase++) {
        oct_pairs_of(with, plan, phase);
        for (int i = 0; i < plan->step_count; i++) {
            if (with[i] != OCTET_ABSENT) {
                made.at[with[i]] = i;
            }
        }
    }
    return made;
}

static bool uses(const octet_step *step, int buffer) {
    return check_has(step->reads | step->writes, buffer) || step->scratch == buffer;
}

static bool is_amax(const octet_plan *plan, int buffer) {
    const octet_plan_buffer *b = &plan->buffers[buffer];
    return b->part == OCTET_PART_ROW_AMAX || b->part == OCTET_PART_COL_AMAX ||
           plan->tensors[b->tensor].form == OCTET_FORM_MEASURED;
}

/* Whether a step uses one buffer between the first and the last that use the other. Kernels
 * raise amaxes from a zero that is written before all steps. */
static bool are_needed_together(const octet_plan *plan, const order *when, int a, int b) {
    int first[2] = {INT32_MAX, INT32_MAX}, last[2] = {-1, -1};
    for (int i = 0; i < plan->step_count; i++) {
        for (int k = 0; k < 2; k++) {
            int buffer = k ? b : a, at = when->at[i];
            bool amax = is_amax(plan, buffer);
            if (uses(&plan->steps[i], buffer)) {
                first[k] = amax ? 0 : at < first[k] ? at : first[k];
                last[k] = at > last[k] ? at : last[k];
            }
        }
    }
    return first[0] <= last[1] && first[1] <= last[0];
}

static bool share_bytes(const octet_plan_buffer *a, const octet_plan_buffer *b) {
    return a->place == OCTET_PLACE_WORK && b->place == OCTET_PLACE_WORK && a->bytes &&
           b->bytes && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

/* How many bytes less the workspace has than its buffers. */
static int64_t check_workspace(const octet_plan *plan) {
    order orders[2] = {order_of(plan, false), order_of(plan, true)};
    int64_t all = 0;
    for (int a = 0; a < plan->buffer_count; a++) {
        const octet_plan_buffer *x = &plan->buffers[a];
        bool works = x->place == OCTET_PLACE_WORK;
        all += works ? (x->bytes + OCTET_ALIGN - 1) / OCTET_ALIGN * OCTET_ALIGN : 0;
        CHECK(!works ||
              (x->offset % OCTET_ALIGN == 0 && x->offset + x->bytes <= plan->workspace_bytes));
        for (int b = 0; b < a; b++) {
            if (share_bytes(x, &plan->buffers[b])) {
                CHECK(!are_needed_together(plan, &orders[0], a, b));
                CHECK(!are_needed_together(plan, &orders[1], a, b));
            }
        }
    }
    CHECK(plan->workspace_bytes <= all);
    return all - plan->workspace_bytes;
}

TEST(workspace__what_a_step_needs_is_there) {
    static check_chain chain;
    int smaller = 0;
    for (int row = 0; row < ROWS; row++) {
        int count = plans_of(&chain);
        for (int i = 0; i < count; i++) {
            smaller += check_workspace(&chain.plans[i]) > 0;
        }
    }
    CHECK(smaller > ROWS / 8);
}

/* Backward behind SwiGLU: f(x), and what x decodes to, are not there when wgrad runs. */
TEST(workspace__of_an_activations_backward_is_shared) {
    static octet_chain chain;
    octet_linear_backward_args args;
    const char *problem = "linear-backward m=16384 k=14336 n=4096 in=bf16 recipe=delayed "
                          "prologue=swiglu save=memory device=cuda:0/90";
    CHECK_EQ_INT(octet_linear_backward_parse(&args, problem, NULL), OCTET_OK);
    CHECK_EQ_INT(octet_plan_chain(&chain, &args, NULL), OCTET_OK);
    CHECK(check_workspace(&chain.plans[1]) >= 700 << 20);
}

TEST_MAIN(pairs__are_independent_and_each_step_is_in_one,
          pairs__are_what_is_measured_and_cast_alike, workspace__what_a_step_needs_is_there,
          workspace__of_an_activations_backward_is_shared)
