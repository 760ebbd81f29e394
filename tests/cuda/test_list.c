/* test_list.c - prepared plans launch what runs that decide do, on whatever memory. */
#include <stdlib.h>

#include "core/matrix.h"
#include "octet.h"

/* A word of parameters is an address or it is not: padding could be either. */
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
#include "cuda/kernels/amax.h"
#include "cuda/kernels/bias.h"
#include "cuda/kernels/block.h"
#include "cuda/kernels/delayed.h"
#include "cuda/kernels/dequantize.h"
#include "cuda/kernels/four_over_six.h"
#include "cuda/kernels/gemm.h"
#undef OCT_TURN_THREADS
#include "cuda/kernels/moves.h"
#include "cuda/kernels/mxfp4.h"
#include "cuda/kernels/mxfp8.h"
#include "cuda/kernels/nvfp4.h"
#include "cuda/kernels/per_tensor.h"
#include "cuda/kernels/quantize.h"
#include "cuda/kernels/thin.h"
#include "cuda/kernels/zero.h"
#pragma GCC diagnostic pop

#include "../run/check.h"
#include "device.h"
#include "emulate_launch.h"
#include "linear/matrix.h"
#include "run/run.h"
#include "test.h"

#define GPUS 6 /* levels of OPT_DEVICE; the first is the CPU */

static octet_cuda *gpu_of(int level) {
    static octet_cuda *gpus[GPUS];
    gpus[level] = gpus[level] ? gpus[level] : cuda_open(matrix_device(level).arch);
    return gpus[level];
}

/* ---- ways to run a phase --------------------------------------------------------------- */

/* Other memory of the same kind: far apart from each other, aligned as they are. */
static octet_memory moved(const octet_memory *memory) {
    octet_memory like = *memory;
    for (int i = 0; i < OCT_REGIONS; i++) {
        const char *at = oct_region_start(memory, i);
        if (at) {
            uintptr_t other = ((uintptr_t)(i + 1) << 40) + (uintptr_t)at % 4096;
            oct_region_put(&like, i, (char *)other);
        }
    }
    return like;
}

static int launched(void) {
    return emulated_launches() + emulated_matmuls() + emulated_fills();
}

/* Of a region, as far as it is compared: the rest of a workspace is a product's scratch. */
static size_t length_of(const oct_region *r) {
    return r->need < 1 << 20 ? (size_t)r->need : 1 << 20;
}

/* What a phase may write: its bytes, one region after the other. */
static char *bytes_of(const oct_regions *regions) {
    size_t bytes = 1;
    for (int i = 0; i < regions->count; i++) {
        bytes += regions->at[i].is_written ? length_of(&regions->at[i]) : 0;
    }
    char *copy = malloc(bytes), *to = copy;
    for (int i = 0; i < regions->count; i++) {
        const oct_region *r = &regions->at[i];
        if (r->is_written) {
            memcpy(to, r->at, length_of(r));
            to += length_of(r);
        }
    }
    return copy;
}

/* Whether they are these; *where is the first region that is not. */
static bool are(const oct_regions *regions, const char *bytes, int *where) {
    *where = -1;
    for (int i = 0; i < regions->count && *where < 0; i++) {
        const oct_region *r = &regions->at[i];
        if (r->is_written) {
            *where = memcmp(bytes, r->at, length_of(r)) ? r->index : -1;
            bytes += length_of(r);
        }
    }
    return *where < 0;
}

static void bring_back(const oct_regions *regions, const char *bytes) {
    for (int i = 0; i < regions->count; i++) {
        const oct_region *r = &regions->at[i];
        if (r->is_written) {
            memcpy((void *)(uintptr_t)r->at, bytes, length_of(r));
            bytes += length_of(r);
        }
    }
}

static struct {
    const char *problem;
    int phases, launches;
} both;

/* Prepares on memory that is nowhere; launches nothing meanwhile. */
static octet_status run_prepared(const octet_plan *plan, int phase, const octet_memory *memory,
                                 const octet_exec *exec, octet_error *err) {
    octet_memory like = moved(memory);
    octet_prepared *prepared = NULL;
    int before = launched();
    octet_status status = octet_prepare(&prepared, plan, phase, &like, exec, err);
    CHECK_EQ_INT(launched(), before);
    status = status ? status : octet_run_prepared(prepared, memory, exec, err);
    octet_prepared_free(prepared);
    return status;
}

/* As octet_run_phase: by that and then, on the same memory, prepared. */
static octet_status run_both(const octet_plan *plan, int phase, const octet_memory *memory,
                             const octet_exec *exec, octet_error *err) {
    oct_regions regions;
    int where = -1, start = launched();
    octet_status status = oct_memory_regions(&regions, plan, phase, memory, err);
    if (status) {
        return status;
    }
    char *before = bytes_of(&regions);
    status = octet_run_phase(plan, phase, memory, exec, err);
    char *after = bytes_of(&regions);
    int between = launched();
    bring_back(&regions, before);
    status = status ? status : run_prepared(plan, phase, memory, exec, err);
    test_report(are(&regions, after, &where), TEST_HERE("prepared, it leaves the same bytes"),
                "%s, phase %d: region %d", both.problem, phase, where);
    test_report(launched() - between == between - start, TEST_HERE("it launches as much"),
                "%s, phase %d: %d and %d", both.problem, phase, between - start,
                launched() - between);
    both.phases++;
    both.launches += between - start;
    free(before);
    free(after);
    return status;
}

/* The bytes that a layer leaves, all of its memory. */
static octet_status run_with(run_phase *run, const octet_linear_backward_args *args,
                             run_options options, octet_error *err) {
    run_group group;
    options.run = run;
    octet_status status = run_group_make(&group, args, &options);
    status = status ? status : run_group_run(&group);
    *err = group.err;
    run_group_free(&group);
    return status;
}

static void put_on(octet_linear_backward_args *args, octet_cuda *cuda) {
    octet_device device = {0};
    CHECK_EQ_INT(octet_cuda_target(&device, cuda, NULL), OCTET_OK);
    args->forward.input.device = args->forward.weight.device = device;
    args->grad_output.device = device;
    octet_proto *others[] = {&args->forward.bias, &args->forward.gamma, &args->forward.beta};
    for (int i = 0; i < 3; i++) {
        if (others[i]->dtype) {
            others[i]->device = device;
        }
    }
}

/* ---- the same bytes -------------------------------------------------------------------- */

static void check_same(octet_linear_backward_args *args, const run_options *options) {
    char problem[OCTET_LINEAR_TEXT];
    octet_error err = {OCTET_OK, 0, ""};
    put_on(args, options->cuda);
    octet_linear_backward_print(problem, sizeof problem, args);
    both.problem = problem;
    octet_status status = run_with(run_both, args, *options, &err);
    test_report(status == OCTET_OK, TEST_HERE("the layer runs"), "%s: %s", problem, err.text);
}

TEST(list__leaves_the_bytes_that_runs_leave_that_decide) {
    static const matrix_size sizes[] = {
        {17, 33, 13}, {1, 40, 24}, {32, 32, 16},  {0, 16, 8},   {39, 70, 44},
        {131, 7, 5},  {7, 0, 9},   {160, 64, 96}, {16, 32, 32}, {200, 144, 80}};
    static const matrix_size shard = {1, 18, 12};
    matrix_random random = {23};
    int ran = 0;
    for (int i = 0; i < 480; i++) {
        octet_linear_backward_args args;
        matrix_row row = matrix_draw(&random);
        bool sequence = row.level[OPT_PARALLEL] && row.level[OPT_SEQUENCE];
        row.level[OPT_RECIPE] = (uint8_t)(i % matrix_table[OPT_RECIPE].count);
        row.level[OPT_DEVICE] = (uint8_t)(1 + i / 3 % (GPUS - 1));
        run_options options = {.seed = (uint64_t)i,
                               .fill = 0xFF,
                               .strided = i % 2,
                               .cuda = gpu_of(row.level[OPT_DEVICE])};
        if (matrix_args(&args, &row, sequence ? &shard : &sizes[i % 10], NULL) == OCTET_OK) {
            check_same(&args, &options);
            ran++;
        }
    }
    printf("%d layers, %d phases, %d launches\n", ran, both.phases, both.launches);
    CHECK(ran > 200 && both.launches > 5 * both.phases / 2);
}

/* Tall and ragged, of blocks behind whole eights, with sums in parts. */
TEST(list__of_products_in_parts) {
    static const char *const texts[] = {
        "linear-backward m=2100 k=16 n=17 in=bf16 bias recipe=current device=cuda:0/90",
        "linear-backward m=24 k=17 n=2104 in=bf16 main_grad=add recipe=block device=cuda:0/90",
        "linear-backward m=131 k=144 n=80 in=bf16 recipe=block main_grad=add device=cuda:0/90",
        "linear-backward m=200 k=144 n=80 in=bf16 bias=f32 recipe=block device=cuda:0/90",
        "linear-backward m=16 k=512 n=64 in=bf16 recipe=mxfp8 device=cuda:0/90",
        "linear-backward m=272 k=128 n=400 in=bf16 recipe=nvfp4 device=cuda:0/90",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        octet_linear_backward_args args;
        run_options options = {.seed = i, .fill = 0xFF, .cuda = gpu_of(3)};
        if (CHECK_EQ_INT(octet_linear_backward_parse(&args, texts[i], NULL), OCTET_OK)) {
            check_same(&args, &options);
        }
    }
}

/* ---- one list -------------------------------------------------------------------------- */

#define LIST_TEXT 16384

/* What is prepared for a phase, printed. */
static void print_at(char text[LIST_TEXT], const octet_plan *plan, const octet_memory *memory,
                     const octet_exec *exec) {
    octet_prepared *prepared = NULL;
    octet_error err = {OCTET_OK, 0, ""};
    text[0] = '\0';
    if (CHECK_OF(octet_prepare(&prepared, plan, 0, memory, exec, &err) == OCTET_OK, err.text)) {
        CHECK(oct_prepared_print(text, LIST_TEXT, prepared) < LIST_TEXT);
    }
    octet_prepared_free(prepared);
}

static octet_status compare_lists(const octet_plan *plan, int phase, const octet_memory *memory,
                                  const octet_exec *exec, octet_error *err) {
    static char here[LIST_TEXT], there[LIST_TEXT], other[LIST_TEXT];
    octet_memory far = moved(memory), odd = *memory;
    print_at(here, plan, memory, exec);
    print_at(there, plan, &far, exec);
    CHECK_EQ_STR(here, there);
    CHECK(strstr(here, "product ") != NULL);
    odd.args[0] = (const char *)odd.args[0] + 2;
    print_at(other, plan, &odd, exec);
    CHECK(strcmp(here, other) != 0);
    return octet_run_phase(plan, phase, memory, exec, err);
}

TEST(list__is_the_same_wherever_memory_of_a_kind_lies) {
    static const char *const recipes[] = {"current", "block", "nvfp4"};
    for (int i = 0; i < 3; i++) {
        octet_linear_backward_args args;
        octet_error err = {OCTET_OK, 0, ""};
        char text[256];
        run_options options = {.seed = 5, .fill = 0xFF, .cuda = gpu_of(3)};
        (void)snprintf(text, sizeof text,
                       "linear-backward m=160 k=128 n=96 in=bf16 recipe=%s device=cuda:0/90",
                       recipes[i]);
        if (CHECK_EQ_INT(octet_linear_backward_parse(&args, text, NULL), OCTET_OK)) {
            put_on(&args, options.cuda);
            CHECK_OF(run_with(compare_lists, &args, options, &err) == OCTET_OK, err.text);
        }
    }
}

/* ---- memory that is of another kind ---------------------------------------------------- */

static void check_refused(octet_prepared *prepared, const octet_plan *plan,
                          const octet_memory *memory, const octet_exec *exec) {
    octet_memory bad[4] = {*memory, *memory, *memory, *memory};
    int before = launched();
    bad[0].args[0] = NULL;
    bad[1].workspace_bytes = plan->workspace_bytes - 1;
    bad[2].size = 8;
    bad[3].outs[0] = (void *)(uintptr_t)memory->args[0];
    for (int i = 0; i < 4; i++) {
        CHECK_EQ_INT(octet_run_prepared(prepared, &bad[i], exec, NULL), OCTET_INVALID);
    }
    CHECK_EQ_INT(launched(), before);
}

/* Prepared for such memory; and for memory that begins elsewhere in a line of 256 bytes, and
 * has another stride. */
static octet_status run_odd(const octet_plan *plan, int phase, const octet_memory *memory,
                            const octet_exec *exec, octet_error *err) {
    octet_memory like[2] = {moved(memory), moved(memory)};
    octet_status status = OCTET_OK;
    like[1].args[0] = (const char *)like[1].args[0] + 16;
    like[1].arg_strides[0] = plan->args[0].shape[1] + 8;
    for (int i = 0; i < 2 && !status; i++) {
        octet_prepared *prepared = NULL;
        status = octet_prepare(&prepared, plan, phase, &like[i], exec, err);
        if (!status) {
            check_refused(prepared, plan, memory, exec);
            status = i ? octet_run_prepared(prepared, memory, exec, err) : OCTET_OK;
        }
        octet_prepared_free(prepared);
    }
    return status;
}

TEST(list__other_memory_is_run_as_it_is_and_bad_memory_refused) {
    run_report report = {0};
    run_options options = {.seed = 3, .fill = 0xFF, .cuda = gpu_of(3), .run = run_odd};
    run_check_layer(&report,
                    "linear-backward m=37 k=32 n=48 in=bf16 recipe=current device=cuda:0/90",
                    &options);
    CHECK_EQ_INT(report.failures, 0);
}

/* ---- a library that does not launch what it has proposed ------------------------------- */

static octet_status run_refused(const octet_plan *plan, int phase, const octet_memory *memory,
                                const octet_exec *exec, octet_error *err) {
    octet_prepared *prepared = NULL;
    octet_status status = octet_prepare(&prepared, plan, phase, memory, exec, err);
    int before = emulated_matmuls();
    emulated_matmul_status(15); /* CUBLAS_STATUS_NOT_SUPPORTED */
    status = status ? status : octet_run_prepared(prepared, memory, exec, err);
    emulated_matmul_status(0);
    /* That is kept, as the choice is. */
    status = status ? status : octet_run_prepared(prepared, memory, exec, err);
    CHECK_EQ_INT(emulated_matmuls(), before);
    octet_prepared_free(prepared);
    return status;
}

TEST(list__a_product_that_is_refused_is_the_own_kernels) {
    run_report report = {0};
    octet_cuda *cuda = cuda_open(90); /* which is told nothing yet */
    run_options options = {.seed = 9, .fill = 0xFF, .cuda = cuda, .run = run_refused};
    run_check_layer(&report,
                    "linear-backward m=80 k=96 n=48 in=bf16 recipe=current device=cuda:0/90",
                    &options);
    CHECK_EQ_INT(report.failures, 0);
    octet_cuda_close(cuda);
}

TEST_MAIN(list__leaves_the_bytes_that_runs_leave_that_decide, list__of_products_in_parts,
          list__is_the_same_wherever_memory_of_a_kind_lies,
          list__other_memory_is_run_as_it_is_and_bad_memory_refused,
          list__a_product_that_is_refused_is_the_own_kernels)
