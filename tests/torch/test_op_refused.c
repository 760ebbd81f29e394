/* test_op_refused.c - arguments that an op refuses: in words, and nothing of them is left. */
#define _GNU_SOURCE /* setenv */
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"
#include "fake_torch.h"
#include "test.h"
#include "torch/cuda.h"
#include "torch/ops.h"
#include "torch/tensor.h"

#define WORDS "in=bf16 recipe=mxfp8"

static void begin(void) {
    octet_error err = {OCTET_OK, 0, ""};
    CHECK_OF(fake_torch_begin(&err) == OCTET_OK, err.text);
    CHECK_EQ_INT(setenv("OCTET_CUDA_DRIVER", TEST_FAKE_CUDA, 1), 0);
    CHECK_EQ_INT(setenv("OCTET_CACHE", "", 1), 0);
}

static oct_torch_value tensor_of(octet_dtype dtype, int64_t rows, int64_t cols) {
    return fake_tensor(dtype, OCTET_CPU, 2, (int64_t[]){rows, cols});
}

static oct_torch_value vector_of(int64_t size, octet_device_kind where) {
    return fake_tensor(OCTET_F32, where, 1, &size);
}

static oct_torch_value list_of(const oct_torch_value *tensors, int count) {
    oct_torch_value list = fake_list();
    for (int i = 0; i < count; i++) {
        fake_list_add(list, tensors[i]);
    }
    return list;
}

/* A call that was refused by these words, and took all that it was given. */
static void check_refused(octet_status status, const octet_error *err, const char *words) {
    CHECK_EQ_INT(status, OCTET_INVALID);
    CHECK_OF(strstr(err->text, words) != NULL, err->text);
    CHECK_OF(torch.tensors == 0 && torch.lists == 0 && torch.strings == 0, words);
}

/* ---- tensors of a plan ------------------------------------------------------------------- */

/* Input and weight of 16 x 32 by 48, and other tensors behind them. */
static void refuse_linear(octet_plan_kind kind, int others, const char *words) {
    octet_error err = {OCTET_OK, 0, ""};
    begin();
    oct_torch_value args = fake_list();
    if (kind == OCTET_PLAN_LINEAR) {
        fake_list_add(args, tensor_of(OCTET_BF16, 16, 32));
        fake_list_add(args, tensor_of(OCTET_BF16, 48, 32));
    } else {
        fake_list_add(args, tensor_of(OCTET_BF16, 16, 48));
    }
    for (int i = 0; i < others; i++) {
        fake_list_add(args, tensor_of(OCTET_U8, 1, 1));
    }
    oct_torch_value stack[] = {args, fake_sizes((int64_t[]){16, 32, 48}, 3), fake_text(WORDS)};
    check_refused(kind == OCTET_PLAN_LINEAR ? oct_op_linear(stack, &err)
                                            : oct_op_linear_backward(stack, &err),
                  &err, words);
}

TEST(op_refused__tensors_that_a_plan_does_not_take) {
    refuse_linear(OCTET_PLAN_LINEAR, 1, "3 tensors; the plan takes 2");
    refuse_linear(OCTET_PLAN_LINEAR, 90, "more than ");
    refuse_linear(OCTET_PLAN_LINEAR_BACKWARD, 0, "the arena saved by forward is missing");
    refuse_linear(OCTET_PLAN_LINEAR_BACKWARD, 1, "a restored arena has 2 axes instead of one");
    refuse_linear(OCTET_PLAN_LINEAR_BACKWARD, 3, "instead of one");
}

TEST(op_refused__an_input_of_too_many_axes) {
    octet_error err = {OCTET_OK, 0, ""};
    int64_t sizes[OCTET_MAX_RANK + 2];
    for (int i = 0; i < OCTET_MAX_RANK + 2; i++) {
        sizes[i] = 1;
    }
    begin();
    oct_torch_value stack[] = {fake_tensor(OCTET_F32, OCTET_CPU, OCTET_MAX_RANK + 1, sizes),
                               fake_list(), fake_text("f32 mxfp8:e4m3+row")};
    check_refused(oct_op_quantize(stack, &err), &err, "a tensor of 17 axes; at most 16");
    oct_torch_value linear[] = {fake_list(), fake_sizes(sizes, OCTET_MAX_RANK + 2),
                                fake_text(WORDS)};
    check_refused(oct_op_linear(linear, &err), &err, "18 sizes; at most 16 axes");
}

TEST(op_refused__outputs_that_are_not_those_of_the_plan) {
    octet_error err = {OCTET_OK, 0, ""};
    begin();
    oct_torch_value one[] = {tensor_of(OCTET_U8, 16, 32)};
    oct_torch_value stack[] = {list_of(one, 1), tensor_of(OCTET_F32, 16, 32), fake_list(),
                               fake_text("f32 mxfp8:e4m3+row")};
    check_refused(oct_op_quantize_into(stack, &err), &err,
                  "1 outputs were given; the plan has 2");
    oct_torch_value none[] = {fake_list(), fake_sizes((int64_t[]){16, 32}, 2),
                              fake_text("f32 mxfp8:e4m3+row")};
    check_refused(oct_op_dequantize(none, &err), &err, "0 tensors; the plan has 2 arguments");
}

TEST(op_refused__a_text_with_a_zero_or_too_long) {
    static char text[OCTET_LINEAR_TEXT + 1];
    octet_error err = {OCTET_OK, 0, ""};
    memset(text, 'x', OCTET_LINEAR_TEXT);
    for (int i = 0; i < 2; i++) {
        begin();
        oct_torch_value words = fake_text(i ? text : WORDS);
        ((oct_torch_string *)(uintptr_t)words)->length += i ? 0 : 3;
        oct_torch_value stack[] = {fake_list(), fake_sizes((int64_t[]){1, 1, 1}, 3), words};
        check_refused(oct_op_linear(stack, &err), &err, "none of them 0");
    }
}

TEST(op_refused__plans_and_phases_that_there_are_not) {
    static const int64_t pairs[][2] = {{-1, 0}, {3, 0}, {0, -1}, {0, 1 << 20}};
    octet_error err = {OCTET_OK, 0, ""};
    for (int i = 0; i < 4; i++) {
        begin();
        oct_torch_value stack[] = {fake_list(),
                                   fake_list(),
                                   fake_list(),
                                   fake_sizes((int64_t[]){16, 32, 48}, 3),
                                   fake_text(WORDS),
                                   (oct_torch_value)pairs[i][0],
                                   (oct_torch_value)pairs[i][1]};
        check_refused(oct_op_linear_phase(stack, &err), &err, "there is none");
    }
}

/* ---- delayed scaling --------------------------------------------------------------------- */

/* amaxes of a history of 3 slots. */
static void refuse_record(oct_torch_value amax, const char *words) {
    octet_error err = {OCTET_OK, 0, ""};
    oct_torch_value stack[] = {tensor_of(OCTET_F32, 4, 3), amax};
    check_refused(oct_op_delayed_record(stack, &err), &err, words);
}

TEST(op_refused__a_state_that_does_not_fit) {
    begin();
    refuse_record(vector_of(2, OCTET_CPU), "2 amaxes for a history of 3 slots");
    refuse_record(tensor_of(OCTET_F32, 2, 3), "3 amaxes for a history of 3 slots");
    refuse_record(tensor_of(OCTET_BF16, 1, 3), "dense float32");
    refuse_record(fake_tensor(OCTET_F32, OCTET_CPU, 3, (int64_t[]){1, 1, 3}), "dense float32");
    oct_torch_value strided = vector_of(3, OCTET_CPU);
    ((oct_torch_tensor *)(uintptr_t)strided)->strides[0] = 2;
    refuse_record(strided, "dense float32");
    strided = tensor_of(OCTET_F32, 1, 3);
    ((oct_torch_tensor *)(uintptr_t)strided)->strides[1] = 2;
    refuse_record(strided, "dense float32");
}

static void refuse_update(const oct_torch_value *states, int count, const char *words) {
    octet_error err = {OCTET_OK, 0, ""};
    oct_torch_value stack[] = {list_of(states, count), fake_text("input delayed:history=4")};
    check_refused(oct_op_delayed_update(stack, &err), &err, words);
}

TEST(op_refused__states_that_are_not_updated_together) {
    begin();
    oct_torch_value scales[] = {vector_of(3, OCTET_CPU)};
    refuse_update(scales, 1, "a history of 0 rows; the recipe uses 4");
    int64_t sizes[] = {5, 3};
    oct_torch_value apart[] = {tensor_of(OCTET_F32, 5, 3),
                               fake_tensor(OCTET_F32, OCTET_CUDA, 2, sizes)};
    refuse_update(apart, 2, "state 1 is on another device than state 0");
    oct_torch_value brief[] = {tensor_of(OCTET_F32, 4, 3)};
    refuse_update(brief, 1, "a history of 3 rows; the recipe uses 4");
    oct_torch_value narrow[] = {tensor_of(OCTET_BF16, 5, 3)};
    refuse_update(narrow, 1, "dense float32");
}

/* ---- GPUs -------------------------------------------------------------------------------- */

/* Before torch's half for CUDA is known, and by indices that are none. */
TEST(op_refused__a_gpu_that_torch_has_not) {
    octet_exec exec = OCTET_EXEC_INIT;
    octet_device device;
    octet_error err = {OCTET_OK, 0, ""};
    begin();
    CHECK_EQ_INT(oct_torch_cuda_exec(&exec, 0, &err), OCTET_UNSUPPORTED);
    CHECK_OF(strstr(err.text, "cuda:0, but this torch has no CUDA") != NULL, err.text);
    CHECK_EQ_INT(oct_torch_cuda_load("/nowhere", "", NULL), OCTET_UNSUPPORTED);
    CHECK_EQ_INT(oct_torch_cuda_load(NULL, "", NULL), OCTET_OK);
    CHECK_EQ_INT(oct_torch_cuda_exec(&exec, -1, &err), OCTET_UNSUPPORTED);
    CHECK_EQ_INT(oct_torch_cuda_exec(&exec, 64, &err), OCTET_UNSUPPORTED);
    CHECK(oct_torch_cuda_device(&device, -1, &err) != OCTET_OK && err.text[0]);
    CHECK(oct_torch_cuda_device(&device, 64, &err) != OCTET_OK && err.text[0]);
    int most = 0;
    CHECK(oct_torch_cuda_algorithms(&most) == 0 && most > 0);
}

TEST_MAIN(op_refused__a_gpu_that_torch_has_not, op_refused__tensors_that_a_plan_does_not_take,
          op_refused__an_input_of_too_many_axes,
          op_refused__outputs_that_are_not_those_of_the_plan,
          op_refused__a_text_with_a_zero_or_too_long,
          op_refused__plans_and_phases_that_there_are_not,
          op_refused__a_state_that_does_not_fit,
          op_refused__states_that_are_not_updated_together)
