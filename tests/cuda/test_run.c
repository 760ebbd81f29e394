/* test_run.c - whole layers on emulated GPUs: every step and every result is right. */
#define _GNU_SOURCE /* setenv */
#include <stdlib.h>

#include "../run/check.h"
#include "device.h"
#include "emulate_launch.h"
#include "linear/matrix.h"
#include "test.h"

static const matrix_size sizes[] = {
    {17, 33, 13}, {1, 40, 24}, {32, 32, 16}, {0, 16, 8}, {39, 70, 44}, {131, 7, 5}, {7, 0, 9},
};
#define SIZES ((int)(sizeof sizes / sizeof sizes[0]))

#define GPUS 6   /* levels of OPT_DEVICE; the first is the CPU */
#define HOPPER 3 /* the level that the rest of these tests runs on */
#define ONE_RANK 2

/* Layers that ran, their products, and those that cuBLASLt multiplied. */
typedef struct tally {
    int64_t layers, products, matmuls;
} tally;

static octet_cuda *gpu_of(int level) {
    static octet_cuda *gpus[GPUS];
    gpus[level] = gpus[level] ? gpus[level] : cuda_open(matrix_device(level).arch);
    return gpus[level];
}

/* Where plans are made for this GPU, whichever it is of those with its architecture. */
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

/* Those that may be cuBLASLt's: no invariant ones. */
static int64_t products_of(const run_group *group) {
    int64_t products = 0;
    for (int plan = 0; plan < group->count; plan++) {
        for (int i = 0; i < group->plans[plan].step_count; i++) {
            const octet_step *step = &group->plans[plan].steps[i];
            products += step->op == OCTET_OP_GEMM && !step->invariant;
        }
    }
    return products * group->ranks;
}

static void run_args(run_report *report, tally *ran, octet_linear_backward_args *args,
                     const run_options *options) {
    char problem[OCTET_LINEAR_TEXT];
    run_group group;
    int matmuls = emulated_matmuls();
    put_on(args, options->cuda);
    octet_linear_backward_print(problem, sizeof problem, args);
    report->problem = problem;
    octet_status status = run_group_make(&group, args, options);
    status = status ? status : run_group_run(&group);
    if (run_expect(report, status == OCTET_OK, "%s", group.err.text)) {
        ran->layers++;
        ran->products += products_of(&group);
        ran->matmuls += emulated_matmuls() - matmuls;
        run_check_steps(report, &group);
        run_check_ends(report, &group);
    }
    run_group_free(&group);
}

/* A row's layer, if there is one, on the GPU that it names. */
static void run_row(run_report *report, tally *ran, const matrix_row *row,
                    const matrix_size *size, uint64_t seed) {
    octet_linear_backward_args args;
    run_options options = {.seed = seed,
                           .fill = 0xFF,
                           .strided = seed & 1,
                           .cuda = gpu_of(row->level[OPT_DEVICE])};
    if (matrix_args(&args, row, size, NULL) == OCTET_OK) {
        run_args(report, ran, &args, &options);
    }
}

static void finish(const run_report *report, const tally *ran, int64_t least) {
    printf("%" PRId64 " layers, %" PRId64 " products, %" PRId64 " by the library, %" PRId64
           " checks, closest to its bound %.3f\n",
           ran->layers, ran->products, ran->matmuls, report->checks, report->closest);
    CHECK_EQ_INT(report->failures, 0);
    CHECK(ran->layers >= least);
}

TEST(cuda_run__every_option_under_every_recipe) {
    run_report report = {0};
    tally ran = {0};
    uint64_t seed = 1;
    for (int recipe = 0; recipe < matrix_table[OPT_RECIPE].count; recipe++) {
        for (int option = 0; option < OPTIONS; option++) {
            bool skipped = option == OPT_RECIPE || option == OPT_DEVICE || option == OPT_TP;
            for (int level = 0; !skipped && level < matrix_table[option].count; level++) {
                matrix_row row = {.chunks = 0};
                row.level[OPT_RECIPE] = (uint8_t)recipe;
                row.level[OPT_TP] = ONE_RANK;
                row.level[OPT_DEVICE] = HOPPER;
                row.level[OPT_BIAS] = 1;
                row.level[option] = (uint8_t)level;
                seed++;
                run_row(&report, &ran, &row, &sizes[seed % SIZES], seed);
            }
        }
    }
    finish(&report, &ran, 2000);
}

/* Whole shapes are cuBLASLt's, whatever is multiplied; of odd ones, those that it takes. */
TEST(cuda_run__every_recipe_on_every_gpu) {
    static const matrix_size whole = {160, 64, 96}, odd = {37, 150, 21};
    run_report report = {0};
    tally ran = {0}, odds = {0};
    for (int i = 0; i < matrix_table[OPT_RECIPE].count * (GPUS - 1); i++) {
        matrix_row row = {.chunks = 0};
        row.level[OPT_RECIPE] = (uint8_t)(i / (GPUS - 1));
        row.level[OPT_TP] = ONE_RANK;
        row.level[OPT_DEVICE] = (uint8_t)(1 + i % (GPUS - 1));
        row.level[OPT_BIAS] = (uint8_t)(1 + i % 2);
        row.level[OPT_MAIN_GRAD] = (uint8_t)(i % 3);
        run_row(&report, &ran, &row, &whole, 2 * (uint64_t)i);
        test_report(ran.matmuls == ran.products, TEST_HERE("the library multiplies"),
                    "%s: %d of %d", report.problem, (int)ran.matmuls, (int)ran.products);
        run_row(&report, &odds, &row, &odd, 2 * (uint64_t)i + 1);
    }
    finish(&report, &ran, 100);
    finish(&report, &odds, 100);
    CHECK(odds.matmuls > 0 && odds.matmuls < odds.products);
}

/* Without the library. */
TEST(cuda_run__own_kernels) {
    run_report report = {0};
    tally ran = {0};
    matrix_random random = {11};
    CHECK_EQ_INT(setenv("OCTET_CUDA_GEMM", "own", 1), 0);
    run_options options = {.fill = 0xFF, .cuda = cuda_open(90)};
    for (int i = 0; i < 600; i++) {
        octet_linear_backward_args args;
        matrix_row row = matrix_draw(&random);
        row.level[OPT_RECIPE] = (uint8_t)(i % matrix_table[OPT_RECIPE].count);
        row.level[OPT_PARALLEL] = row.level[OPT_SEQUENCE] = 0;
        row.level[OPT_TP] = ONE_RANK;
        row.level[OPT_DEVICE] = HOPPER;
        options.seed = (uint64_t)i;
        options.strided = i % 2;
        if (matrix_args(&args, &row, &sizes[i % SIZES], NULL) == OCTET_OK) {
            run_args(&report, &ran, &args, &options);
        }
    }
    octet_cuda_close(options.cuda);
    CHECK_EQ_INT(unsetenv("OCTET_CUDA_GEMM"), 0);
    finish(&report, &ran, 100);
    CHECK_EQ_INT(ran.matmuls, 0);
}

/* Several ranks, too: shards are gathered as bytes and assembled. */
TEST(cuda_run__options_at_random) {
    static const matrix_size shard = {1, 18, 12}; /* of a sequence, it is up to 512 rows */
    run_report report = {0};
    tally ran = {0};
    matrix_random random = {7};
    for (int i = 0; i < 400; i++) {
        matrix_row row = matrix_draw(&random);
        bool sequence = row.level[OPT_PARALLEL] && row.level[OPT_SEQUENCE];
        row.level[OPT_DEVICE] = (uint8_t)(1 + i % (GPUS - 1));
        run_row(&report, &ran, &row, sequence ? &shard : &sizes[i % SIZES], (uint64_t)i + 1000);
    }
    finish(&report, &ran, 200);
}

/* Per-tensor FP8 is cuBLASLt's in every shape, on every GPU that has it. */
TEST(cuda_run__per_tensor_layers_of_any_shape_are_the_librarys) {
    static const int sides[3][3] = {{48, 37, 40}, {64, 45, 72}, {32, 51, 24}};
    static const char *const ends[] = {" out=f32", " bias", " bias=f32 out=f32",
                                       " main_grad=add", " main_grad=overwrite bias"};
    run_report report = {0};
    tally ran = {0};
    for (int i = 0; i < 27 * (GPUS - 2) * 3; i++) {
        octet_linear_backward_args args;
        int shape = i % 27, gpu = 2 + i / 27 % (GPUS - 2);
        run_options options = {.seed = (uint64_t)i, .fill = 0xFF, .cuda = gpu_of(gpu)};
        char text[256];
        (void)snprintf(text, sizeof text,
                       "linear-backward m=%d k=%d n=%d in=bf16 recipe=%s%s device=cuda:0/%d",
                       sides[0][shape % 3], sides[1][shape / 3 % 3], sides[2][shape / 9],
                       i % 2 ? "current" : "delayed", ends[i % 5],
                       (int)matrix_device(gpu).arch);
        if (CHECK_EQ_INT(octet_linear_backward_parse(&args, text, NULL), OCTET_OK)) {
            run_args(&report, &ran, &args, &options);
            test_report(ran.matmuls == ran.products, TEST_HERE("the library multiplies"),
                        "%s: %d of %d", text, (int)ran.matmuls, (int)ran.products);
        }
    }
    finish(&report, &ran, 300);
}

/* Of a ragged result the library leaves sums of 1024 rows at a time; on a GPU that reads bytes
 * across the product, rows are rounded up as well. */
TEST(cuda_run__sums_of_a_ragged_result_come_in_parts) {
    static const char *const texts[] = {
        "linear-backward m=2100 k=16 n=17 in=bf16 bias recipe=current device=cuda:0/90",
        "linear-backward m=2100 k=17 n=16 in=bf16 recipe=delayed device=cuda:0/89",
        ("linear-backward m=24 k=17 n=2100 in=bf16 main_grad=add recipe=current "
         "device=cuda:0/100"),
        "linear-backward m=2104 k=16 n=17 in=bf16 bias recipe=block grad=x device=cuda:0/90",
        "linear-backward m=24 k=17 n=2104 in=bf16 main_grad=add recipe=block device=cuda:0/90",
    };
    static const int gpus[] = {HOPPER, HOPPER - 1, HOPPER + 1, HOPPER, HOPPER};
    static const int products[] = {3, 3, 3, 2, 3};
    static const int matmuls[] = {5, 5, 5, 4, 5}; /* one of the results is tall and ragged */
    run_report report = {0};
    for (int i = 0; i < 5; i++) {
        octet_linear_backward_args args;
        run_options options = {.seed = (uint64_t)i, .fill = 0xFF, .cuda = gpu_of(gpus[i])};
        tally ran = {0};
        if (CHECK_EQ_INT(octet_linear_backward_parse(&args, texts[i], NULL), OCTET_OK)) {
            run_args(&report, &ran, &args, &options);
            CHECK_EQ_INT(ran.products, products[i]);
            CHECK_EQ_INT(ran.matmuls, matmuls[i]);
        }
    }
    CHECK_EQ_INT(report.failures, 0);
}

/* 128-blocks of any number of rows, too: fprop and dgrad in two parts, wgrad in one. */
TEST(cuda_run__blocks_of_any_number_of_rows_are_the_librarys) {
    static const int rows[] = {19, 37, 131, 200};
    run_report report = {0};
    for (int i = 0; i < 8; i++) {
        octet_linear_backward_args args;
        run_options options = {.seed = (uint64_t)i, .fill = 0xFF, .cuda = gpu_of(HOPPER)};
        tally ran = {0};
        char text[256];
        (void)snprintf(
            text, sizeof text,
            "linear-backward m=%d k=144 n=80 in=bf16 recipe=block%s device=cuda:0/90",
            rows[i % 4], i < 4 ? " bias" : " main_grad=add out=f32");
        if (CHECK_EQ_INT(octet_linear_backward_parse(&args, text, NULL), OCTET_OK)) {
            run_args(&report, &ran, &args, &options);
            CHECK_EQ_INT(ran.products, 3);
            CHECK_EQ_INT(ran.matmuls, rows[i % 4] % 8 ? 5 : 3);
        }
    }
    CHECK_EQ_INT(report.failures, 0);
}

/* A library from before 12.9 has no 128-blocks: plans that ask it are for 8.9, and run. */
TEST(cuda_run__a_library_without_blocks_multiplies_them_decoded) {
    run_report report = {0};
    tally ran = {0};
    octet_linear_backward_args args;
    octet_device device = {0};
    run_options options = {.seed = 1, .fill = 0xFF, .cuda = gpu_of(HOPPER)};
    const char *text = "linear-backward m=200 k=144 n=80 in=bf16 recipe=block device=cuda:0/90";
    emulated_library_version(120803);
    CHECK_EQ_INT(octet_cuda_target(&device, options.cuda, NULL), OCTET_OK);
    CHECK_EQ_INT(device.arch, 89);
    if (CHECK_EQ_INT(octet_linear_backward_parse(&args, text, NULL), OCTET_OK)) {
        run_args(&report, &ran, &args, &options);
    }
    emulated_library_version(130002);
    CHECK_EQ_INT(octet_cuda_target(&device, options.cuda, NULL), OCTET_OK);
    CHECK_EQ_INT(device.arch, 90);
    finish(&report, &ran, 1);
    CHECK_EQ_INT(ran.matmuls, 3);
}

/* A GPU runs plans for older ones, not for newer ones. */
TEST(cuda_run__plans_for_other_architectures) {
    static const int archs[] = {80, 89, 90, 100};
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++) {
        octet_linear_args args;
        octet_plan plan = OCTET_PLAN_INIT;
        octet_memory memory = OCTET_MEMORY_INIT;
        octet_exec exec = OCTET_EXEC_INIT;
        octet_error err = {OCTET_OK, 0, ""};
        CHECK_EQ_INT(octet_linear_parse(&args, "linear m=4 k=8 n=8 in=f32 grad=none", NULL),
                     OCTET_OK);
        octet_device device = oct_cuda_device_of(gpu_of(HOPPER));
        device.arch = (uint16_t)archs[i];
        args.input.device = args.weight.device = device;
        CHECK_EQ_INT(octet_plan_linear(&plan, &args, NULL), OCTET_OK);
        exec.cuda = gpu_of(HOPPER);
        CHECK_EQ_INT(octet_run(&plan, &memory, &exec, &err), OCTET_INVALID); /* no memory */
        CHECK_EQ_INT(strstr(err.text, "exec's GPU is") != NULL, archs[i] > 90);
    }
}

/* Whole eights of so many rows, and what is behind them. Few rows of whole lines are the own
 * kernel's. */
static int parts(int rows, int length) {
    return rows <= 16 && length % 16 == 0 ? 0 : (rows >= 8) + (rows % 8 > 0);
}

/* 128-blocks are cuBLASLt's in every shape but of few rows, whichever operands have squares. It
 * does not write rows of a main_grad that lie any number of elements apart. */
TEST(cuda_run__block_layers_of_any_shape_are_the_librarys) {
    static const int sides[] = {1, 7, 8, 9, 15, 16, 17, 127, 128, 129, 200, 250};
    static const char *const recipes[] = {"block", "block+w.no2d", "block+nopow2"};
    static const char *const ends[] = {" out=f32", " bias", " bias=f32 out=f32",
                                       " main_grad=add", " main_grad=overwrite bias=f32"};
    run_report report = {0};
    tally all = {0};
    for (int i = 0; i < 300; i++) {
        octet_linear_backward_args args;
        run_options options = {
            .seed = (uint64_t)i, .fill = 0xFF, .strided = i % 5 < 3, .cuda = gpu_of(HOPPER)};
        int m = sides[i % 12], k = sides[(i / 2 + i / 12) % 12], n = sides[(i / 3 + 5) % 12];
        tally ran = {0};
        char text[256];
        (void)snprintf(text, sizeof text,
                       "linear-backward m=%d k=%d n=%d in=bf16 recipe=%s%s device=cuda:0/90", m,
                       k, n, recipes[i % 7 % 3], ends[i % 5]);
        if (CHECK_EQ_INT(octet_linear_backward_parse(&args, text, NULL), OCTET_OK)) {
            run_args(&report, &ran, &args, &options);
            test_report(ran.matmuls == parts(m, k) + parts(m, n) + parts(n, m),
                        TEST_HERE("the library multiplies"), "%s: %d parts", text,
                        (int)ran.matmuls);
        }
        all.layers += ran.layers;
        all.products += ran.products;
        all.matmuls += ran.matmuls;
    }
    finish(&report, &all, 300);
}

/* Folded MXFP8 likewise. Its copies have whole lines, so few rows of E4M3 are the own kernel's
 * in every shape; gradients of E5M2 are not. */
static int folded_parts(int rows, bool e4m3) {
    return rows <= 16 && e4m3 ? 0 : (rows >= 8) + (rows % 8 > 0);
}

TEST(cuda_run__folded_layers_of_any_shape_are_the_librarys) {
    static const int sides[] = {1, 7, 8, 9, 15, 16, 17, 127, 128, 129, 200, 250};
    static const char *const recipes[] = {"mxfp8", "mxfp8+2d", "mxfp8:format=hybrid"};
    static const char *const ends[] = {" out=f32", " bias", " bias=f32 out=f32",
                                       " main_grad=add", " main_grad=overwrite bias=f32"};
    run_report report = {0};
    tally all = {0};
    for (int i = 0; i < 200; i++) {
        octet_linear_backward_args args;
        run_options options = {
            .seed = (uint64_t)i, .fill = 0xFF, .strided = i % 5 < 3, .cuda = gpu_of(HOPPER)};
        int m = sides[i % 12], k = sides[(i / 2 + i / 12) % 12], n = sides[(i / 3 + 5) % 12];
        bool e4m3 = i % 7 % 3 < 2;
        tally ran = {0};
        char text[256];
        (void)snprintf(text, sizeof text,
                       "linear-backward m=%d k=%d n=%d in=bf16 recipe=%s%s device=cuda:0/90", m,
                       k, n, recipes[i % 7 % 3], ends[i % 5]);
        if (CHECK_EQ_INT(octet_linear_backward_parse(&args, text, NULL), OCTET_OK)) {
            run_args(&report, &ran, &args, &options);
            test_report(ran.matmuls == folded_parts(m, true) + folded_parts(m, e4m3) +
                                           folded_parts(n, e4m3),
                        TEST_HERE("the library multiplies"), "%s: %d parts", text,
                        (int)ran.matmuls);
        }
        all.layers += ran.layers;
        all.products += ran.products;
        all.matmuls += ran.matmuls;
    }
    finish(&report, &all, 200);
}

/* Casts compute norms, those that fold what they cast among them. */
TEST(cuda_run__norms_in_casts) {
    static const int sides[] = {1, 16, 32, 37, 128, 144, 250};
    static const char *const recipes[] = {"mxfp8",   "mxfp8+2d", "block",
                                          "delayed", "current",  "mxfp8:product=exact"};
    static const char *const norms[] = {"rmsnorm eps=1e-5", "layernorm eps=1e-5 beta=f32",
                                        "rmsnorm eps=1e-5 zero_centered"};
    static const char *const dtypes[] = {"bf16", "f16", "f32"};
    run_report report = {0};
    tally ran = {0};
    int applied = 0;
    for (int i = 0; i < 7 * 6 * 3; i++) {
        octet_linear_backward_args args;
        octet_plan plan = OCTET_PLAN_INIT;
        run_options options = {
            .seed = (uint64_t)i, .fill = 0xFF, .strided = i % 4 == 3, .cuda = gpu_of(HOPPER)};
        int recipe = i / 7 % 6; /* delayed scaling does not save x */
        char text[256];
        (void)snprintf(text, sizeof text,
                       "linear-backward m=%d k=%d n=24 in=%s recipe=%s prologue=%s%s "
                       "device=cuda:0/90",
                       sides[i % 7], sides[(i / 3 + 1) % 7], dtypes[i % 5 % 3], recipes[recipe],
                       norms[i / 42], recipe != 3 && i % 2 ? " save_original_input" : "");
        if (CHECK_EQ_INT(octet_linear_backward_parse(&args, text, NULL), OCTET_OK)) {
            run_args(&report, &ran, &args, &options);
            CHECK_EQ_INT(octet_plan_linear(&plan, &args.forward, NULL), OCTET_OK);
            for (int k = 0; k < plan.step_count; k++) {
                applied += plan.steps[k].apply;
            }
        }
    }
    CHECK_EQ_INT(applied, 7 * 5 * 3);
    finish(&report, &ran, 100);
}

/* What a call saves for memory is what it saves on a CPU, and its steps are a CPU's. */
TEST(cuda_run__saves_memory) {
    static const char *const recipes[] = {"delayed", "current", "block",
                                          "mxfp8",   "nvfp4",   "mxfp4"};
    static const char *const functions[] = {"rmsnorm eps=1e-5", "layernorm eps=1e-5 beta",
                                            "swiglu", "gelu", "srelu"};
    static const char *const options[] = {"", " delay_wgrad", " grad=x", " main_grad=add"};
    static const char *const dtypes[] = {"bf16", "f16", "f32"};
    run_report report = {0};
    tally ran = {0};
    int again = 0;
    for (int i = 0; i < 6 * 5 * 2; i++) {
        octet_linear_backward_args args;
        octet_plan plan = OCTET_PLAN_INIT;
        run_options how = {.seed = (uint64_t)i, .fill = 0xFF, .cuda = gpu_of(HOPPER)};
        char text[256];
        (void)snprintf(
            text, sizeof text,
            "linear-backward m=%d k=%d n=24 in=%s recipe=%s prologue=%s%s save=memory "
            "device=cuda:0/90",
            i % 3 ? 64 : 37, i % 4 ? 96 : 45, dtypes[i % 5 % 3], recipes[i / 2 % 6],
            functions[i / 12], options[i % 7 % 4]);
        if (CHECK_EQ_INT(octet_linear_backward_parse(&args, text, NULL), OCTET_OK)) {
            run_args(&report, &ran, &args, &how);
            CHECK_EQ_INT(octet_plan_linear_backward(&plan, &args, NULL), OCTET_OK);
            for (int k = 0; k < plan.step_count; k++) {
                again += plan.steps[k].apply || plan.steps[k].op == OCTET_OP_PROLOGUE;
            }
        }
    }
    CHECK(again > 20);
    finish(&report, &ran, 60);
}

TEST(cuda_run__main_grad_in_every_dtype) {
    static const char *const recipes[] = {"none",  "delayed", "current", "block",
                                          "mxfp8", "nvfp4",   "mxfp4",   "mxfp4+rht"};
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    run_report report = {0};
    tally ran = {0};
    for (int i = 0; i < 8 * 3 * 2 * 2; i++) {
        octet_linear_backward_args args;
        run_options options = {.seed = (uint64_t)i, .fill = 0xFF, .cuda = gpu_of(HOPPER)};
        char text[256];
        (void)snprintf(text, sizeof text,
                       "linear-backward m=%d k=32 n=48 in=bf16 recipe=%s main_grad=%s "
                       "main_grad_dtype=%s%s device=cuda:0/90",
                       i % 5 ? 16 : 19, recipes[i / 12], i % 2 ? "add" : "overwrite",
                       dtypes[i / 2 % 3], i / 6 % 2 ? " delay_wgrad" : "");
        if (CHECK_EQ_INT(octet_linear_backward_parse(&args, text, NULL), OCTET_OK)) {
            run_args(&report, &ran, &args, &options);
        }
    }
    finish(&report, &ran, 96);
}

/* Sums that a cast has left, and sums that a step of their own makes. */
TEST(cuda_run__bias_main_grad_in_every_dtype) {
    static const char *const recipes[] = {"none",  "delayed", "current",
                                          "block", "mxfp8",   "nvfp4"};
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    static const char *const ends[] = {"", " delay_wgrad main_grad=add", " grad=b"};
    run_report report = {0};
    tally ran = {0};
    for (int i = 0; i < 6 * 3 * 2 * 3; i++) {
        octet_linear_backward_args args;
        run_options options = {.seed = (uint64_t)i, .fill = 0xFF, .cuda = gpu_of(HOPPER)};
        char text[256];
        (void)snprintf(
            text, sizeof text,
            "linear-backward m=%d k=32 n=49 in=bf16 bias recipe=%s bias_main_grad=%s "
            "bias_main_grad_dtype=%s%s device=cuda:0/90",
            i % 5 ? 16 : 147, recipes[i / 18], i % 2 ? "add" : "overwrite", dtypes[i / 2 % 3],
            ends[i / 6 % 3]);
        if (CHECK_EQ_INT(octet_linear_backward_parse(&args, text, NULL), OCTET_OK)) {
            run_args(&report, &ran, &args, &options);
        }
    }
    finish(&report, &ran, 108);
}

/* Beside the products: what is measured, in one launch a pass, and what is cast, in one. NVFP4
 * measures and casts its weight apart, begins each pass with zeros, and has two copies to
 * decode; casts make the products' factors. */
TEST(cuda_run__few_launches_and_no_fill) {
    static const struct {
        const char *recipe;
        int launches;
    } cases[] = {{"current", 4}, {"block", 2}, {"nvfp4", 10}};
    run_report report = {0};
    tally ran = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        octet_linear_backward_args args;
        run_options options = {.seed = i, .fill = 0xFF, .cuda = gpu_of(HOPPER)};
        char text[256];
        (void)snprintf(text, sizeof text,
                       "linear-backward m=272 k=128 n=400 in=bf16 recipe=%s device=cuda:0/90",
                       cases[i].recipe);
        int launches = emulated_launches(), fills = emulated_fills();
        if (CHECK_EQ_INT(octet_linear_backward_parse(&args, text, NULL), OCTET_OK)) {
            run_args(&report, &ran, &args, &options);
        }
        CHECK_EQ_INT(emulated_launches() - launches, cases[i].launches);
        CHECK_EQ_INT(emulated_fills() - fills, 0);
    }
    finish(&report, &ran, 3);
    CHECK_EQ_INT(ran.matmuls, ran.products);
}

/* Chunks of a product begin within the weight's bytes, scales, and what they decode to. */
TEST(cuda_run__products_in_chunks) {
    static const char *const recipes[] = {"none",         "current",   "delayed",  "block",
                                          "block+w.no2d", "mxfp8",     "mxfp8+2d", "nvfp4",
                                          "mxfp4",        "nvfp4+no2d"};
    run_report report = {0};
    tally ran = {0};
    for (int i = 0; i < 10 * (GPUS - 1) * 4; i++) {
        bool row = i / 2 % 2, few = i % 2; /* rows of dst: 16 have kernels of their own */
        const char *recipe = recipes[i / 4 / (GPUS - 1)];
        int level = 1 + i / 4 % (GPUS - 1);
        int cols = strncmp(recipe, "block", 5) == 0 || level > HOPPER ? 256 : 96;
        octet_linear_backward_args args;
        run_options options = {
            .seed = (uint64_t)i, .fill = 0xFF, .strided = i % 2, .cuda = gpu_of(level)};
        char text[256];
        (void)snprintf(text, sizeof text,
                       "linear-backward m=%d k=%d n=%d in=bf16 bias recipe=%s parallel=%s tp=2 "
                       "sequence gather=high_precision chunks=2",
                       (few ? 8 : 20) * (row ? 2 : 1), row ? 32 : cols, row ? cols : 32, recipe,
                       row ? "row" : "column");
        if (CHECK_EQ_INT(octet_linear_backward_parse(&args, text, NULL), OCTET_OK)) {
            run_args(&report, &ran, &args, &options);
        }
    }
    finish(&report, &ran, 200);
}

/* Pieces of what is gathered are operands of their own, whose scales are taken from shards. */
TEST(cuda_run__gathers_in_chunks) {
    static const char *const recipes[] = {
        "none",  "current", "delayed", "block",
        "mxfp8", "nvfp4",   "mxfp4",   "nvfp4+rowscaled+norht"};
    run_report report = {0};
    tally ran = {0};
    for (int i = 0; i < 8 * (GPUS - 1) * 2; i++) {
        const char *recipe = recipes[i / 2 / (GPUS - 1)];
        int level = 1 + i / 2 % (GPUS - 1);
        bool row = i % 2, wide = strncmp(recipe, "block", 5) == 0;
        octet_linear_backward_args args;
        run_options options = {
            .seed = (uint64_t)i, .fill = 0xFF, .strided = i % 2, .cuda = gpu_of(level)};
        char text[256];
        (void)snprintf(text, sizeof text,
                       "linear-backward m=%d k=48 n=32 in=bf16 bias recipe=%s parallel=%s tp=2 "
                       "sequence gather_chunks=2",
                       (wide ? 128 : 32) * (row ? 2 : 1), recipe, row ? "row" : "column");
        if (CHECK_EQ_INT(octet_linear_backward_parse(&args, text, NULL), OCTET_OK)) {
            run_args(&report, &ran, &args, &options);
        }
    }
    finish(&report, &ran, 40);
}

TEST_MAIN(cuda_run__every_option_under_every_recipe, cuda_run__every_recipe_on_every_gpu,
          cuda_run__own_kernels, cuda_run__options_at_random,
          cuda_run__per_tensor_layers_of_any_shape_are_the_librarys,
          cuda_run__sums_of_a_ragged_result_come_in_parts,
          cuda_run__blocks_of_any_number_of_rows_are_the_librarys,
          cuda_run__a_library_without_blocks_multiplies_them_decoded,
          cuda_run__plans_for_other_architectures,
          cuda_run__block_layers_of_any_shape_are_the_librarys,
          cuda_run__folded_layers_of_any_shape_are_the_librarys, cuda_run__norms_in_casts,
          cuda_run__saves_memory, cuda_run__main_grad_in_every_dtype,
          cuda_run__bias_main_grad_in_every_dtype, cuda_run__few_launches_and_no_fill,
          cuda_run__products_in_chunks, cuda_run__gathers_in_chunks)
