/* test_checker.c - the checker of plans is checked: good plans pass, each fault is caught. */
#include "matrix.h"
#include "mutations_prologue.h"
#include "test.h"

/* ---- good plans ------------------------------------------------------------------------ */

static const matrix_row bases[] = {
    {.level = {[OPT_RECIPE] = MATRIX_NONE, [OPT_BIAS] = 1, [OPT_BIAS_GRAD] = 1}},
    {.level = {[OPT_RECIPE] = MATRIX_MXFP8, [OPT_BIAS] = 1, [OPT_BIAS_GRAD] = 1}},
    {.level = {[OPT_RECIPE] = MATRIX_DELAYED, [OPT_QUANTIZE_OUTPUT] = 1}},
    {.level = {[OPT_RECIPE] = MATRIX_DELAYED, [OPT_RAISE_AMAX] = 1, [OPT_MAIN_GRAD] = 1}},
    {.level = {[OPT_RECIPE] = MATRIX_DELAYED, [OPT_RAISE_AMAX] = 2}},
    {.level = {[OPT_RECIPE] = MATRIX_NVFP4, [OPT_MAIN_GRAD] = 2}},
    {.level = {[OPT_RECIPE] = MATRIX_NVFP4, [OPT_DEVICE] = 3}},
    {.level = {[OPT_RECIPE] = MATRIX_ROUNDED}},
    {.level = {[OPT_RECIPE] = MATRIX_BLOCK, [OPT_MAIN_GRAD] = 1, [OPT_DEVICE] = 3}},
    {.level = {[OPT_RECIPE] = MATRIX_MXFP8, [OPT_DELAY] = 1, [OPT_DEVICE] = 4}},
    {.level = {[OPT_RECIPE] = MATRIX_MXFP8, [OPT_DEVICE] = 3}},
    {.level = {[OPT_RECIPE] = MATRIX_CURRENT, [OPT_BIAS] = 1, [OPT_RETURN_BIAS] = 1}},
    {.level = {[OPT_RECIPE] = MATRIX_CURRENT, [OPT_PARALLEL] = 1, [OPT_SEQUENCE] = 1}},
    {.level = {[OPT_RECIPE] = MATRIX_NVFP4, [OPT_PARALLEL] = 1, [OPT_SEQUENCE] = 1}},
    {.level = {[OPT_RECIPE] = MATRIX_CURRENT, [OPT_PARALLEL] = 2, [OPT_BIAS] = 1}},
    {.level = {[OPT_RECIPE] = MATRIX_BLOCK, [OPT_PARALLEL] = 2, [OPT_SEQUENCE] = 1}},
    {.level = {[OPT_RECIPE] = MATRIX_MXFP8, [OPT_DEVICE] = 1, [OPT_OVERRIDE] = 2}},
    {.level = {[OPT_RECIPE] = MATRIX_CURRENT,
               [OPT_DEVICE] = 3,
               [OPT_BIAS] = 1,
               [OPT_BIAS_GRAD] = 1}},
    {.level = {[OPT_RECIPE] = MATRIX_CURRENT,
               [OPT_DEVICE] = 3,
               [OPT_BIAS] = 1,
               [OPT_BIAS_GRAD] = 1,
               [OPT_BIAS_MAIN_GRAD] = 1}},
    {.level = {[OPT_RECIPE] = MATRIX_MXFP8,
               [OPT_DELAY] = 1,
               [OPT_BIAS] = 2,
               [OPT_BIAS_GRAD] = 1,
               [OPT_BIAS_MAIN_GRAD] = 2}},
    {.level = {[OPT_RECIPE] = MATRIX_MXFP8, [OPT_INPUT_GRAD] = 1, [OPT_WEIGHT_GRAD] = 1}},
    {.level = {[OPT_RECIPE] = MATRIX_MXFP8, [OPT_PROLOGUE] = 2}},
    {.level = {[OPT_RECIPE] = MATRIX_CURRENT, [OPT_PROLOGUE] = 1, [OPT_DEVICE] = 3}},
    {.level = {[OPT_RECIPE] = MATRIX_NONE, [OPT_PROLOGUE] = 4}},
    {.level = {[OPT_RECIPE] = MATRIX_MXFP8, [OPT_PROLOGUE] = 4}},
    {.level = {[OPT_RECIPE] = MATRIX_MXFP8, [OPT_PROLOGUE] = 4}, .save = OCTET_SAVE_MEMORY},
    {.level = {[OPT_RECIPE] = MATRIX_DELAYED, [OPT_PROLOGUE] = 1}, .save = OCTET_SAVE_MEMORY},
};
#define BASES ((int)(sizeof bases / sizeof bases[0]))

static bool make_base(check_chain *out, int index) {
    const matrix_size size = {96, 64, 80};
    octet_linear_backward_args args = OCTET_LINEAR_BACKWARD_ARGS_INIT;
    octet_error err = {OCTET_OK, 0, ""};
    octet_status status = matrix_args(&args, &bases[index], &size, &err);
    status = status ? status : check_chain_make(out, &args, &err);
    if (!CHECK_EQ_INT(status, OCTET_OK)) {
        printf("    base %d: %s\n", index, err.text);
    }
    return status == OCTET_OK;
}

TEST(checker__good_plans_break_no_law) {
    for (int i = 0; i < BASES; i++) {
        check_report report = {.problem = "a base of this test"};
        check_chain chain;
        if (make_base(&chain, i)) {
            CHECK(check_chain_laws(&report, &chain));
        }
    }
}

/* ---- one fault at a time --------------------------------------------------------------- */

static const mutation mutations[] = {
    {"a write is dropped", LAW_READS, drop_a_write},
    {"steps are reversed", LAW_READS, reverse_steps},
    {"a step is in a later phase than its reader", LAW_READS, advance_a_step},
    {"a result of a collective is read in its own phase", LAW_READS, hasten_after_collective},
    {"a phase is announced that does not come", LAW_READS, add_a_phase},
    {"a buffer is written twice", LAW_WRITES, write_twice},
    {"an argument is written", LAW_WRITES, write_an_argument},
    {"a restored slot is written", LAW_WRITES, write_a_restored_slot},
    {"an offset is not aligned", LAW_WRITES, shift_an_offset},
    {"two buffers overlap", LAW_WRITES, overlap_two},
    {"two buffers of one step overlap", LAW_WRITES, overlap_two_of_a_step},
    {"the workspace is too small", LAW_WRITES, shrink_the_workspace},
    {"a buffer leaves its port", LAW_WRITES, leave_a_port},
    {"an output is not written", LAW_OUTPUTS, leave_an_output_unwritten},
    {"an output too many is promised", LAW_OUTPUTS, promise_another_output},
    {"a written output is called an alias", LAW_OUTPUTS, call_an_output_an_alias},
    {"an argument is called mutable", LAW_OUTPUTS, call_an_argument_mutable},
    {"a result is not used", LAW_OUTPUTS, compute_in_vain},
    {"what a collective delivers is not used", LAW_OUTPUTS, forget_an_exchange},
    {"a saved slot is dropped", LAW_SLOTS, drop_a_saved_slot},
    {"two slots are swapped", LAW_SLOTS, swap_two_slots},
    {"a slot is looked for elsewhere", LAW_SLOTS, look_elsewhere},
    {"a slot is never read", LAW_SLOTS, ignore_a_slot},
    {"a slot is decoded by another format", LAW_SLOTS, misread_a_slot},
    {"backward takes what was not saved", LAW_SLOTS, take_what_was_not_saved},
    {"an alias is not marked", LAW_SAVED, alias_without_mark},
    {"a slot is in the workspace", LAW_SAVED, save_scratch},
    {"saved_bytes counts too much", LAW_SAVED, count_too_much},
    {"aliased_bytes counts too much", LAW_SAVED, count_aliases_wrong},
    {"a shape is wrong", LAW_SHAPES, change_a_shape},
    {"a dimension is wrong", LAW_SHAPES, change_a_dim},
    {"a port's bytes are wrong", LAW_SHAPES, change_bytes},
    {"a buffer names another tensor", LAW_SHAPES, take_anothers_buffer},
    {"a tensor lost its buffers", LAW_SHAPES, lose_a_buffer},
    {"a tensor has another layout", LAW_SHAPES, change_a_layout},
    {"operands are swapped", LAW_GEMMS, swap_operands},
    {"a product is taken for another", LAW_GEMMS, mistake_the_product},
    {"an operand is read in the wrong direction", LAW_GEMMS, read_across},
    {"one operand of wgrad is transformed", LAW_GEMMS, transform_one_operand},
    {"a product adds where nobody asked", LAW_GEMMS, add_unasked},
    {"a product accumulates otherwise", LAW_GEMMS, accumulate_otherwise},
    {"a product is invariant unasked, or is not", LAW_GEMMS, be_invariant_unasked},
    {"an emulated product is called native", LAW_GEMMS, claim_to_be_native},
    {"a product works in its result", LAW_GEMMS, work_in_the_result},
    {"products have lost their scratch", LAW_MASKS, lose_the_scratch},
    {"scales are not in tensor-core order", LAW_GEMMS, leave_scales_in_order},
    {"a decoded operand has no room", LAW_MEANING, lose_a_decoded_operand},
    {"exact products were asked for", LAW_MEANING, ask_for_exact_products},
    {"operands are folded along the wrong direction", LAW_MEANING, fold_across},
    {"another operand's fold is multiplied", LAW_MEANING, swap_folded_operands},
    {"a padded operand has no room", LAW_GEMMS, lose_a_padded_operand},
    {"a product's scratch is too small", LAW_GEMMS, shrink_the_scratch},
    {"what was read is summed once more", LAW_MEANING, sum_once_more},
    {"a copy is there for whole rows", LAW_GEMMS, pad_what_is_whole},
    {"beta is not added", LAW_MEANING, forget_beta},
    {"beta is taken for gamma", LAW_MEANING, take_beta_for_gamma},
    {"backward leaves gamma out", LAW_MEANING, forget_gamma_in_backward},
    {"a norm has no statistics", LAW_MEANING, norm_without_statistics},
    {"another prologue was asked for", LAW_MEANING, ask_for_another_function},
    {"memory was to be saved", LAW_MEANING, ask_for_memory},
    {"no 8 bits were asked for", LAW_MEANING, ask_for_speed},
    {"no cast of a weight was to be saved", LAW_MEANING, ask_for_no_weight},
    {"gamma was to be zero-centered, or not", LAW_MEANING, ask_for_zero_centered},
    {"gamma's gradient was not wanted", LAW_MEANING, freeze_gamma},
    {"the input's gradient was not wanted", LAW_MEANING, freeze_x},
    {"x is cast instead of f(x)", LAW_MEANING, cast_x_itself},
    {"the weight's cast applies the prologue", LAW_MEANING, apply_to_the_weight},
    {"a cast makes other columns of f(x)", LAW_MEANING, apply_into_other_columns},
    {"dx is made without the gradient of f(x)", LAW_MEANING, grad_of_x_from_x},
    {"the output was to be quantized", LAW_MEANING, ask_for_a_quantized_output},
    {"the output was to have another dtype", LAW_MEANING, ask_for_another_dtype},
    {"no gradient of the input was wanted", LAW_MEANING, ask_for_no_input_grad},
    {"no gradient of the weight was wanted", LAW_MEANING, ask_for_no_weight_grad},
    {"the gradient was to go to main_grad", LAW_MEANING, ask_for_main_grad},
    {"main_grad was to be overwritten", LAW_MEANING, ask_to_overwrite_main_grad},
    {"the bias's gradient was to go to its main_grad", LAW_MEANING, ask_for_bias_main_grad},
    {"the bias's main_grad was to be overwritten", LAW_MEANING,
     ask_to_overwrite_bias_main_grad},
    {"the bias's main_grad is of another dtype", LAW_MEANING, ask_for_another_bias_main_grad},
    {"the bias was to be handed back", LAW_MEANING, ask_for_the_bias_back},
    {"no copy of the weight was to be saved", LAW_MEANING, ask_to_save_no_weight},
    {"the input itself was to be saved", LAW_MEANING, ask_to_save_the_input},
    {"the weight was to come from the cache", LAW_MEANING, ask_for_the_cache},
    {"it was for another device", LAW_MEANING, ask_for_another_device},
    {"it was for another recipe", LAW_MEANING, ask_for_another_recipe},
    {"backward was not to be quantized", LAW_MEANING, ask_for_a_plain_backward},
    {"the input was of another dtype", LAW_MEANING, ask_with_another_input},
    {"the bias is added before the sum", LAW_MEANING, add_the_bias_early},
    {"scales are swapped", LAW_MEANING, take_anothers_scale},
    {"amaxes are swapped", LAW_MEANING, take_anothers_amax},
    {"an amax is not recorded", LAW_MEANING, zero_an_amax},
    {"an amax is raised or not, against the options", LAW_MEANING, turn_a_raise},
    {"amaxes are asked for elsewhere", LAW_MEANING, ask_for_another_amax},
    {"amaxes are asked for or not", LAW_MEANING, ask_for_no_amax},
    {"it rounds stochastically without a seed", LAW_MEANING, round_without_a_seed},
    {"it rounds by another role's random bits", LAW_MEANING, round_by_anothers_bits},
    {"two tensors are rounded by the same bits", LAW_MEANING, round_two_by_the_same_bits},
    {"the seed is marked mutable", LAW_MEANING, mark_the_seed_mutable},
    {"a product's factor is made by nobody", LAW_MEANING, lose_a_note},
    {"a factor is made of what is not measured", LAW_READS, hasten_a_note},
    {"there was to be no group", LAW_GROUP, ask_for_no_group},
    {"there was to be a group", LAW_GROUP, ask_for_a_group},
    {"the other gather was wanted", LAW_GROUP, ask_for_another_gather},
    {"another collective is called", LAW_GROUP, sum_instead_of_gather},
    {"an amax is of this rank alone", LAW_GROUP, measure_alone},
};
#define MUTATIONS (sizeof mutations / sizeof mutations[0])

/* How many of the bases the mutation could spoil; each must be caught by its law. */
static int try_mutation(const mutation *fault, const check_chain *chains) {
    int applied = 0;
    for (int i = 0; i < BASES; i++) {
        check_chain spoiled = chains[i];
        check_report report = {.problem = fault->name, .quiet = true};
        if (!fault->spoil(&spoiled)) {
            continue;
        }
        applied++;
        check_chain_laws(&report, &spoiled);
        if (!CHECK(report.broken[fault->law] > 0)) {
            printf("    base %d, \"%s\": law %s did not notice\n", i, fault->name,
                   check_law_names[fault->law]);
        }
    }
    return applied;
}

static check_chain good[BASES];

static bool make_bases(void) {
    bool made = true;
    for (int i = 0; i < BASES; i++) {
        made &= make_base(&good[i], i);
    }
    return made;
}

TEST(checker__each_fault_is_caught_by_its_law) {
    if (!make_bases()) {
        return;
    }
    for (size_t i = 0; i < MUTATIONS; i++) {
        if (!CHECK(try_mutation(&mutations[i], good) > 0)) {
            printf("    \"%s\" applies to no base\n", mutations[i].name);
        }
    }
}

/* ---- every bit of every mask ----------------------------------------------------------- */

static bool caught(const check_chain *chain, check_law law) {
    check_report report = {.problem = "a spoiled base", .quiet = true};
    check_chain_laws(&report, chain);
    return report.broken[law] > 0;
}

static void flip_masks(check_chain *chain, octet_plan *plan) {
    for (int i = 0; i < plan->step_count; i++) {
        for (int b = 0; b < plan->buffer_count; b++) {
            plan->steps[i].reads ^= check_bit(b);
            CHECK(caught(chain, LAW_MASKS));
            plan->steps[i].reads ^= check_bit(b);
            plan->steps[i].writes ^= check_bit(b);
            CHECK(caught(chain, LAW_MASKS));
            plan->steps[i].writes ^= check_bit(b);
        }
    }
}

TEST(checker__each_flipped_mask_bit_is_caught) {
    for (int i = 0; make_bases() && i < BASES; i++) {
        for (int kind = 0; kind < good[i].count; kind++) {
            flip_masks(&good[i], &good[i].plans[kind]);
        }
    }
}

/* ---- structure ------------------------------------------------------------------------- */

TEST(checker__a_structure_that_depends_on_a_size_is_caught) {
    check_report report = {.problem = "two sizes", .quiet = true};
    if (!make_bases()) {
        return;
    }
    check_chain other = good[1];
    other.plans[0].buffers[0].bytes += 4;
    other.plans[0].extents.m++;
    check_chain_structure(&report, &good[1], &other);
    CHECK_EQ_INT(report.broken[LAW_SIZES], 0);
    other.plans[0].steps[0].native ^= 1;
    check_chain_structure(&report, &good[1], &other);
    CHECK_EQ_INT(report.broken[LAW_SIZES], 1);
    other.count--;
    check_chain_structure(&report, &good[1], &other);
    CHECK_EQ_INT(report.broken[LAW_SIZES], 3);
}

/* ---- any byte -------------------------------------------------------------------------- */

/* Spoils each byte of a stretch of a plan in turn; how many of them some law notices. */
static int64_t spoil_bytes(check_chain *chain, void *start, size_t bytes) {
    uint8_t *at = start;
    int64_t noticed = 0;
    for (size_t i = 0; i < bytes; i++) {
        check_report report = {.problem = "a spoiled byte", .quiet = true};
        at[i] ^= 1;
        noticed += !check_chain_laws(&report, chain);
        at[i] ^= 1;
    }
    return noticed;
}

/* A checker that trusted an index would crash here; one that looked away would notice little.
 */
TEST(checker__survives_any_byte_and_notices_most) {
    for (int i = 0; make_bases() && i < BASES; i++) {
        octet_plan *plan = &good[i].plans[0];
        size_t buffers = plan->buffer_count * sizeof plan->buffers[0];
        size_t steps = plan->step_count * sizeof plan->steps[0];
        int64_t noticed = spoil_bytes(&good[i], plan->buffers, buffers) +
                          spoil_bytes(&good[i], plan->steps, steps);
        CHECK(noticed * 10 > (int64_t)(buffers + steps) * 9);
        spoil_bytes(&good[i], plan, offsetof(octet_plan, args));
    }
}

TEST_MAIN(checker__good_plans_break_no_law, checker__each_fault_is_caught_by_its_law,
          checker__each_flipped_mask_bit_is_caught,
          checker__a_structure_that_depends_on_a_size_is_caught,
          checker__survives_any_byte_and_notices_most)
