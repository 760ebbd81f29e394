/* test_launch.c - a GPU opened, its modules compiled once, and launches.
 *
 * Through a driver that only keeps account: no GPU is needed. */
#define _XOPEN_SOURCE 700
#include <pthread.h>

#include "cuda/embedded.h"
#include "fake_gpu.h"

TEST(launch__facts_are_the_gpus) {
    octet_cuda *cuda = begin("");
    const oct_cuda_facts *facts = oct_cuda_facts_of(cuda);
    octet_device device = oct_cuda_device_of(cuda);
    CHECK(facts->index == 0 && facts->arch == 90 && facts->processors == 132);
    CHECK(facts->shared_bytes == 232448 && facts->l2_bytes == 50 << 20);
    CHECK_EQ_STR(facts->name, "Fake 7");
    CHECK(device.kind == OCTET_CUDA && device.index == 0 && device.arch == 90);
    CHECK(fake->retains == 1 && fake->releases == 0);
    end(cuda);
    CHECK_EQ_INT(fake->releases, 1);
}

TEST(launch__bad_options_and_old_gpus_are_refused) {
    octet_error err = {OCTET_OK, 0, ""};
    octet_cuda *cuda = begin(""), *other = NULL;
    octet_cuda_options options = {0};
    CHECK_EQ_INT(octet_cuda_open(&other, &options, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_cuda_open(&other, NULL, &err), OCTET_INVALID);
    options = OCTET_CUDA_OPTIONS_INIT;
    CHECK_EQ_INT(octet_cuda_open(NULL, &options, &err), OCTET_INVALID);
    options.index = 3000000000u;
    CHECK_EQ_INT(octet_cuda_open(&other, &options, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "GPU 3000000000 was asked for") != NULL);
    options.index = 0;
    fake->arch = 75;
    CHECK_EQ_INT(octet_cuda_open(&other, &options, &err), OCTET_UNSUPPORTED);
    CHECK_EQ_STR(err.text,
                 "Fake 7 has compute capability 7.5; Octet's kernels need 8.0 or more");
    fake->arch = 90;
    fake->driver_version = 11080;
    CHECK_EQ_INT(octet_cuda_open(&other, &options, &err), OCTET_UNSUPPORTED);
    CHECK_EQ_STR(err.text, "the driver serves CUDA 11.8; Octet's kernels need 12.0 or more: "
                           "install a newer driver");
    fake->driver_version = 12000;
    fake->retain_result = OCT_CU_OUT_OF_MEMORY;
    CHECK_EQ_INT(octet_cuda_open(&other, &options, &err), OCTET_NO_MEMORY);
    CHECK(other == NULL);
    end(cuda);
}

TEST(launch__passes_what_it_was_given) {
    octet_cuda *cuda = begin("");
    oct_cuda_on on = {.cuda = cuda};
    oct_cuda_launch launch = launch_of("some_kernel");
    CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, NULL), OCTET_OK);
    CHECK_EQ_STR(fake->kernel, "some_kernel");
    CHECK(fake->grid[0] == 5 && fake->grid[1] == 6 && fake->grid[2] == 7);
    CHECK(fake->threads == 256 && fake->params_bytes == sizeof parameters);
    CHECK_EQ_INT(memcmp(fake->params, parameters, sizeof parameters), 0);
    launch.grid[1] = 0;
    CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, NULL), OCTET_OK);
    CHECK_EQ_INT(fake->launches, 1);
    end(cuda);
}

/* Where the GPU has the instructions, and graphs of its driver take such launches. */
TEST(launch__overtakes_the_end_of_its_predecessor) {
    octet_cuda *cuda = begin("");
    static const struct {
        int arch, driver;
        bool overtakes;
    } cases[] = {{80, 13000, false}, {89, 13000, false}, {90, 12020, false}, {90, 12030, true},
                 {90, 0, false},     {100, 13000, true}, {120, 13000, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        octet_cuda_options options = OCTET_CUDA_OPTIONS_INIT;
        oct_cuda_on on = {.cuda = NULL};
        oct_cuda_launch launch = launch_of("some_kernel");
        options.cache = "";
        fake->arch = cases[i].arch;
        fake->driver_version = cases[i].driver;
        fake->launches = 0;
        CHECK_EQ_INT(octet_cuda_open(&on.cuda, &options, NULL), OCTET_OK);
        CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, NULL), OCTET_OK);
        CHECK(fake->overtakes == cases[i].overtakes);
        octet_cuda_close(on.cuda);
    }
    end(cuda);
}

TEST(launch__compiles_for_the_exact_gpu_without_fusing_or_flushing) {
    octet_cuda *cuda = begin("");
    oct_cuda_on on = {.cuda = cuda};
    oct_cuda_launch launch = launch_of("some_kernel");
    CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, NULL), OCTET_OK);
    CHECK_EQ_STR(fake->options, "-std=c++20 -default-device --fmad=false --ftz=false "
                                "--prec-div=true --prec-sqrt=true "
                                "--gpu-architecture=sm_90a ");
    CHECK_EQ_STR(fake->source, "cuda/kernels/per_tensor.cu");
    CHECK(fake->headers > 20 && fake->headers < oct_cuda_text_count);
    end(cuda);
    static const struct {
        int arch;
        const char *name;
    } cases[] = {{80, "=sm_80 "},   {87, "=sm_86 "},    {89, "=sm_89 "},
                 {103, "=sm_100 "}, {120, "=sm_120a "}, {100, "=sm_100a "}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fake->arch = cases[i].arch;
        octet_cuda_options options = OCTET_CUDA_OPTIONS_INIT;
        options.cache = "";
        CHECK_EQ_INT(octet_cuda_open(&on.cuda, &options, NULL), OCTET_OK);
        CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, NULL), OCTET_OK);
        CHECK_OF(strstr(fake->options, cases[i].name) != NULL, cases[i].name);
        octet_cuda_close(on.cuda);
    }
}

/* Kernels for one type of input are a module of their own, on disk and on the GPU. */
TEST(launch__compiles_for_the_type_of_input_alone) {
    octet_cuda *cuda = begin("");
    oct_cuda_on on = {.cuda = cuda};
    static const struct {
        uint8_t input;
        const char *option;
    } cases[] = {{OCTET_F32, "-DOCT_TAKES_F32 "},
                 {OCTET_BF16, "-DOCT_TAKES_BF16 "},
                 {OCTET_F16, "-DOCT_TAKES_F16 "}};
    for (int i = 0; i < 3; i++) {
        oct_cuda_launch launch = launch_of("some_kernel");
        launch.input = cases[i].input;
        for (int again = 0; again < 2; again++) {
            CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, NULL), OCTET_OK);
        }
        CHECK_OF(strstr(fake->options, cases[i].option) != NULL, fake->options);
        CHECK_EQ_INT(fake->compiles, i + 1);
    }
    CHECK(fake->loads == 3 && fake->functions == 3 && fake->launches == 6);
    end(cuda);
    CHECK_EQ_INT(fake->unloads, 3);
}

TEST(launch__a_gpu_that_the_compiler_does_not_know_is_refused) {
    octet_cuda *cuda = begin("");
    octet_error err = {OCTET_OK, 0, ""};
    octet_cuda_options options = OCTET_CUDA_OPTIONS_INIT;
    oct_cuda_on on = {.cuda = NULL};
    oct_cuda_launch launch = launch_of("some_kernel");
    fake->arch = 130;
    CHECK_EQ_INT(octet_cuda_open(&on.cuda, &options, NULL), OCTET_OK);
    CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, &err), OCTET_UNSUPPORTED);
    CHECK(strstr(err.text, "NVRTC 13.0 does not know compute capability 13.0") != NULL);
    octet_cuda_close(on.cuda);
    end(cuda);
}

TEST(launch__a_name_at_another_address_is_the_same_kernel) {
    char copy[] = "some_kernel";
    octet_cuda *cuda = begin("");
    oct_cuda_on on = {.cuda = cuda};
    oct_cuda_launch launch = launch_of("some_kernel"), again = launch_of(copy);
    launch.shared_bytes = 100000;
    again.shared_bytes = 60000;
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, NULL), OCTET_OK);
        CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &again, NULL), OCTET_OK);
        CHECK_EQ_STR(fake->kernel, "some_kernel");
    }
    CHECK(fake->launches == 4 && fake->functions == 1 && fake->attributes == 1);
    end(cuda);
}

/* The thread has another context, or none, before and after. */
TEST(launch__a_run_enters_the_context_once) {
    octet_cuda *cuda = begin("");
    octet_proto proto = octet_proto_make(OCTET_BF16, 2, (int64_t[]){16, 16});
    octet_quantizer quantizer;
    octet_plan plan = OCTET_PLAN_INIT;
    octet_memory memory = OCTET_MEMORY_INIT;
    octet_exec exec = OCTET_EXEC_INIT;
    octet_error err = {OCTET_OK, 0, ""};
    static _Alignas(256) unsigned char bytes[8][4096];
    exec.cuda = cuda;
    proto.device = (octet_device){OCTET_CUDA, 0, 90};
    CHECK_EQ_INT(octet_quantizer_parse(&quantizer, "fp8-tensor:e4m3+row+col", &err), OCTET_OK);
    CHECK_EQ_INT(octet_plan_quantize(&plan, &proto, &quantizer, &err), OCTET_OK);
    CHECK(plan.arg_count == 1 && plan.out_count <= 6 && plan.workspace_bytes <= 4096);
    memory.args[0] = bytes[0];
    memory.workspace = bytes[1];
    memory.workspace_bytes = 4096;
    for (int i = 0; i < plan.out_count; i++) {
        memory.outs[i] = bytes[2 + i];
    }
    int before = fake->pushes;
    CHECK_OF(octet_run(&plan, &memory, &exec, &err) == OCTET_OK, err.text);
    CHECK(fake->launches >= 2 && fake->pushes == before + 1 && fake->pops == fake->pushes);
    fake->launch_result = 700;
    CHECK_EQ_INT(octet_run(&plan, &memory, &exec, &err), OCTET_DEVICE);
    CHECK(fake->pushes == before + 2 && fake->pops == fake->pushes);
    end(cuda);
}

typedef struct thread_work {
    const oct_cuda_on *on;
    int good;
} thread_work;

static void *launch_many(void *arg) {
    static const char *const kernels[] = {"a", "b", "c", "aa", "some_other_kernel"};
    thread_work *work = arg;
    for (int i = 0; i < 500; i++) {
        oct_cuda_launch launch = launch_of(kernels[i % 5]);
        launch.module = i % 2 ? OCT_MODULE_per_tensor : OCT_MODULE_block;
        launch.shared_bytes = (uint32_t)i % 7 * 30000;
        work->good += oct_cuda_launch_kernel(work->on, &launch, NULL) == OCTET_OK;
    }
    return NULL;
}

TEST(launch__threads_compile_a_module_once_and_look_a_kernel_up_once) {
    octet_cuda *cuda = begin("");
    oct_cuda_on on = {.cuda = cuda};
    pthread_t threads[4];
    thread_work work[4];
    for (int i = 0; i < 4; i++) {
        work[i] = (thread_work){&on, 0};
        CHECK_EQ_INT(pthread_create(&threads[i], NULL, launch_many, &work[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        CHECK_EQ_INT(pthread_join(threads[i], NULL), 0);
        CHECK_EQ_INT(work[i].good, 500);
    }
    CHECK(fake->compiles == 2 && fake->loads == 2 && fake->functions == 10);
    CHECK(fake->launches == 2000 && fake->attributes > 0 && fake->attributes <= 60);
    end(cuda);
    CHECK_EQ_INT(fake->unloads, 2);
}

TEST(launch__fills_and_copies_reach_every_byte) {
    octet_cuda *cuda = begin("");
    octet_error err = {OCTET_OK, 0, ""};
    oct_cuda_on on = {.cuda = cuda};
    uint32_t words[4] = {9, 9, 9, 9}, copy[4];
    unsigned char bytes[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    CHECK_EQ_INT(oct_cuda_fill(&on, words, 0x01020304, 3, &err), OCTET_OK);
    CHECK(words[0] == 0x01020304 && words[2] == 0x01020304 && words[3] == 9);
    CHECK_EQ_INT(oct_cuda_copy(&on, copy, words, sizeof words, &err), OCTET_OK);
    CHECK_EQ_INT(memcmp(copy, words, sizeof words), 0);
    CHECK_EQ_INT(oct_cuda_zero(&on, words, sizeof words, &err), OCTET_OK);
    CHECK(words[0] == 0 && words[3] == 0);
    CHECK_EQ_INT(oct_cuda_zero(&on, bytes + 1, 5, &err), OCTET_OK);
    CHECK(bytes[0] == 1 && bytes[1] == 0 && bytes[5] == 0 && bytes[6] == 1);
    CHECK_EQ_INT(oct_cuda_zero(&on, NULL, 0, &err), OCTET_OK);
    CHECK_EQ_INT(oct_cuda_zero(&on, bytes + 1, 0, &err), OCTET_OK);
    CHECK_EQ_INT(oct_cuda_fill(&on, NULL, 0, 0, &err), OCTET_OK);
    CHECK_EQ_INT(oct_cuda_copy(&on, NULL, NULL, 0, &err), OCTET_OK);
    CHECK(fake->fills == 3 && fake->copies == 1);
    fake->memset_result = 2;
    CHECK_EQ_INT(oct_cuda_fill(&on, words, 0, 1, &err), OCTET_NO_MEMORY);
    end(cuda);
}

static int made, freed;

static octet_status make(void **out, octet_cuda *cuda, octet_error *err) {
    (void)err;
    if (made++ == 0) {
        return OCTET_NO_MEMORY;
    }
    *out = cuda;
    return OCTET_OK;
}

static void unmake(void *held, octet_cuda *cuda) {
    freed += held == cuda;
}

TEST(launch__what_is_held_is_made_once_and_freed_with_the_gpu) {
    static const oct_cuda_holder holder = {make, unmake};
    octet_cuda *cuda = begin("");
    void *held = NULL;
    CHECK_EQ_INT(oct_cuda_held(&held, cuda, &holder, NULL), OCTET_NO_MEMORY);
    CHECK_EQ_INT(oct_cuda_held(&held, cuda, &holder, NULL), OCTET_OK);
    CHECK_EQ_INT(oct_cuda_held(&held, cuda, &holder, NULL), OCTET_OK);
    CHECK(held == cuda && made == 2 && freed == 0);
    end(cuda);
    CHECK_EQ_INT(freed, 1);
}

TEST_MAIN(launch__facts_are_the_gpus, launch__bad_options_and_old_gpus_are_refused,
          launch__passes_what_it_was_given, launch__overtakes_the_end_of_its_predecessor,
          launch__compiles_for_the_exact_gpu_without_fusing_or_flushing,
          launch__compiles_for_the_type_of_input_alone,
          launch__a_gpu_that_the_compiler_does_not_know_is_refused,
          launch__a_name_at_another_address_is_the_same_kernel,
          launch__a_run_enters_the_context_once,
          launch__threads_compile_a_module_once_and_look_a_kernel_up_once,
          launch__fills_and_copies_reach_every_byte,
          launch__what_is_held_is_made_once_and_freed_with_the_gpu)
