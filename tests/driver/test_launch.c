/* test_launch.c - a GPU opened, its modules compiled once, launches, and errors in words.
 *
 * Through a driver that only keeps account: no GPU is needed. */
#define _XOPEN_SOURCE 700
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda/device.h"
#include "cuda/embedded.h"
#include "fake_cuda.h"
#include "test.h"

static fake_cuda *fake;

/* The fake's account begins anew. */
static octet_cuda *begin(const char *cache) {
    if (!fake) {
        fake_cuda_get *get = NULL;
        void *found = dlsym(dlopen(TEST_FAKE_CUDA, RTLD_NOW), "fake_cuda_state");
        memcpy(&get, &found, sizeof found);
        fake = get();
    }
    memset(fake, 0, sizeof *fake);
    fake->arch = 90;
    fake->driver_version = 13000;
    octet_cuda_options options = OCTET_CUDA_OPTIONS_INIT;
    octet_cuda *cuda = NULL;
    octet_error err = {OCTET_OK, 0, ""};
    options.cache = cache;
    CHECK_EQ_INT(setenv("OCTET_CUDA_DRIVER", TEST_FAKE_CUDA, 1), 0);
    CHECK_OF(octet_cuda_open(&cuda, &options, &err) == OCTET_OK, err.text);
    return cuda;
}

/* No call was made without the GPU's context, and the thread's own one is back. */
static void end(octet_cuda *cuda) {
    octet_cuda_close(cuda);
    CHECK_EQ_INT(fake->homeless, 0);
    CHECK_EQ_INT(fake->pushes, fake->pops);
    CHECK_EQ_INT(fake->strict_loads, 0);
}

static const int parameters[3] = {1, 2, 3};

static oct_cuda_launch launch_of(const char *kernel) {
    oct_cuda_launch launch = {.module = OCT_MODULE_per_tensor,
                              .kernel = kernel,
                              .grid = {5, 6, 7},
                              .threads = 256,
                              .params = parameters,
                              .params_bytes = sizeof parameters};
    return launch;
}

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
    options = (octet_cuda_options)OCTET_CUDA_OPTIONS_INIT;
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

/* A driver on its way out; what the thread had current is not ours to take away. */
TEST(launch__a_context_that_was_not_entered_is_not_left) {
    octet_cuda *cuda = begin("");
    octet_error err = {OCTET_OK, 0, ""};
    oct_cuda_on on = {.cuda = cuda};
    oct_cuda_launch launch = launch_of("some_kernel");
    CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, &err), OCTET_OK);
    fake->push_result = 4;
    CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, &err), OCTET_DEVICE);
    CHECK(strstr(err.text, "cuCtxPushCurrent: CUDA error 4") != NULL);
    CHECK_EQ_INT(fake->launches, 1);
    octet_cuda_close(cuda);
    CHECK(fake->pushes == 1 && fake->pops == 1 && fake->unloads == 1 && fake->releases == 1);
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

TEST(launch__a_kernel_or_memory_that_is_not_there_is_told) {
    octet_cuda *cuda = begin("");
    octet_error err = {OCTET_OK, 0, ""};
    oct_cuda_on on = {.cuda = cuda};
    oct_cuda_launch launch = launch_of("absent_kernel");
    CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, &err), OCTET_DEVICE);
    CHECK(strstr(err.text, "absent_kernel") && strstr(err.text, "CUDA_ERROR_NOT_FOUND"));
    launch = launch_of("greedy");
    launch.shared_bytes = 300000;
    CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, &err), OCTET_UNSUPPORTED);
    CHECK_EQ_STR(err.text, "greedy needs 300000 bytes of shared memory; a block on Fake 7 has "
                           "232448 at most");
    launch.shared_bytes = 200000;
    CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, &err), OCTET_OK);
    CHECK(fake->attributes == 1 && fake->compiles == 1);
    end(cuda);
}

TEST(launch__a_failed_compile_gives_the_log_and_the_next_call_works) {
    octet_cuda *cuda = begin("");
    octet_error err = {OCTET_OK, 0, ""};
    oct_cuda_on on = {.cuda = cuda};
    oct_cuda_launch launch = launch_of("some_kernel");
    fake->compile_result = 6;
    CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, &err), OCTET_DEVICE);
    CHECK_EQ_STR(err.text, "cuda/kernels/per_tensor.cu does not compile for sm_90a with NVRTC "
                           "13.0: kernel.cu(3): error: expected a ;");
    fake->compile_result = 0;
    fake->load_result = OCT_CU_OUT_OF_MEMORY;
    CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, &err), OCTET_NO_MEMORY);
    CHECK_EQ_STR(err.text, "cuModuleLoadData: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
    fake->load_result = 0;
    CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, &err), OCTET_OK);
    end(cuda);
}

/* An error has room for 500 characters; warnings come first in a log, and may be many. */
TEST(launch__what_is_told_of_the_log_begins_with_the_first_error) {
    octet_cuda *cuda = begin("");
    octet_error err = {OCTET_OK, 0, ""};
    oct_cuda_on on = {.cuda = cuda};
    oct_cuda_launch launch = launch_of("some_kernel");
    char log[4096] = "";
    for (int i = 0; i < 20; i++) {
        size_t used = strlen(log);
        (void)snprintf(log + used, sizeof log - used,
                       "per_tensor.cu(%d): warning #177-D: variable \"v\" is unused\n", i);
    }
    strcat(log, "per_tensor.cu(99): error: expected a ;\n");
    fake->log = log;
    fake->compile_result = 6;
    CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, &err), OCTET_DEVICE);
    CHECK_OF(strstr(err.text, "NVRTC 13.0: per_tensor.cu(99): error: expected a ;"), err.text);
    fake->log = "nothing in particular";
    CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, &err), OCTET_DEVICE);
    CHECK_OF(strstr(err.text, "NVRTC 13.0: nothing in particular"), err.text);
    fake->log = "";
    fake->compile_result = 1;
    CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, &err), OCTET_NO_MEMORY);
    CHECK_OF(strstr(err.text, "NVRTC_ERROR_OUT_OF_MEMORY"), err.text);
    end(cuda);
}

TEST(launch__the_error_of_an_earlier_kernel_is_not_blamed_on_this_one) {
    octet_cuda *cuda = begin("");
    octet_error err = {OCTET_OK, 0, ""};
    oct_cuda_on on = {.cuda = cuda};
    oct_cuda_launch launch = launch_of("innocent");
    fake->launch_result = 700;
    CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, &err), OCTET_DEVICE);
    CHECK(strstr(err.text, "CUDA_ERROR_ILLEGAL_ADDRESS (an illegal access)") &&
          strstr(err.text, "launched earlier") && strstr(err.text, "CUDA_LAUNCH_BLOCKING"));
    static const int others[] = {214, 220, 226, 702, 710, 714, 715, 716, 717, 718, 719, 721};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        fake->launch_result = others[i];
        CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, &err), OCTET_DEVICE);
        CHECK_OF(strstr(err.text, "launched earlier") != NULL, err.text);
    }
    fake->launch_result = 12345;
    CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, &err), OCTET_DEVICE);
    CHECK_EQ_STR(err.text, "cuLaunchKernel of innocent: CUDA error 12345 (no description)");
    end(cuda);
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

static void launch_once(const char *cache) {
    octet_cuda *cuda = begin(cache);
    oct_cuda_on on = {.cuda = cuda};
    oct_cuda_launch launch = launch_of("some_kernel");
    CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, NULL), OCTET_OK);
    end(cuda);
}

/* The path of a module in a cache's folder. */
static bool entry_of(char path[512], const char *folder) {
    bool found = false;
    DIR *inside = opendir(folder);
    for (struct dirent *e; inside && (e = readdir(inside));) {
        if (strstr(e->d_name, ".cubin")) {
            (void)snprintf(path, 512, "%s/%s", folder, e->d_name);
            found = true;
        }
    }
    return inside && closedir(inside) == 0 && found;
}

TEST(launch__what_is_in_the_cache_is_not_compiled) {
    char folder[] = "/tmp/octet-launch-XXXXXX", path[512] = "";
    CHECK(mkdtemp(folder) != NULL);
    launch_once(folder);
    CHECK_EQ_INT(fake->compiles, 1);
    launch_once(folder);
    CHECK(fake->compiles == 0 && fake->loads == 1);
    CHECK(entry_of(path, folder) && strstr(path, "/per_tensor-"));
    CHECK_EQ_INT(truncate(path, 200), 0);
    launch_once(folder);
    CHECK_EQ_INT(fake->compiles, 1);
    CHECK(remove(path) == 0 && rmdir(folder) == 0);
    launch_once("");
    CHECK_EQ_INT(fake->compiles, 1);
}

/* What a module depends on besides its source: each of these is compiled, then found. */
TEST(launch__the_cache_tells_drivers_architectures_and_inputs_apart) {
    char folder[] = "/tmp/octet-launch-XXXXXX", path[512];
    static const struct {
        int arch, driver_version;
        uint8_t input;
    } cases[] = {{90, 13000, OCTET_NONE}, {90, 13000, OCTET_BF16}, {90, 13000, OCTET_F32},
                 {90, 13010, OCTET_NONE}, {80, 13000, OCTET_NONE}, {90, 12080, OCTET_NONE}};
    CHECK(mkdtemp(folder) != NULL);
    for (int i = 0; i < 12; i++) {
        octet_cuda_options options = OCTET_CUDA_OPTIONS_INIT;
        oct_cuda_launch launch = launch_of("some_kernel");
        oct_cuda_on on = {.cuda = NULL};
        end(begin("")); /* a new account */
        fake->arch = cases[i % 6].arch;
        fake->driver_version = cases[i % 6].driver_version;
        launch.input = cases[i % 6].input;
        options.cache = folder;
        CHECK_EQ_INT(octet_cuda_open(&on.cuda, &options, NULL), OCTET_OK);
        CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, NULL), OCTET_OK);
        CHECK_EQ_INT(fake->compiles, i < 6);
        end(on.cuda);
    }
    while (entry_of(path, folder)) {
        CHECK_EQ_INT(remove(path), 0);
    }
    CHECK_EQ_INT(rmdir(folder), 0);
}

/* Whole, and of the same facts, but no code to the driver: a stand-in's, say. */
TEST(launch__what_the_driver_refuses_of_the_cache_is_compiled_again) {
    char folder[] = "/tmp/octet-launch-XXXXXX", path[512];
    octet_error err = {OCTET_OK, 0, ""};
    oct_cuda_launch launch = launch_of("some_kernel");
    static const int refusals[] = {200, 209, 300};
    CHECK(mkdtemp(folder) != NULL);
    launch_once(folder);
    for (int i = 0; i < 3; i++) {
        oct_cuda_on on = {.cuda = begin(folder)};
        fake->load_result = refusals[i];
        fake->bad_loads = 1;
        CHECK_OF(oct_cuda_launch_kernel(&on, &launch, &err) == OCTET_OK, err.text);
        CHECK(fake->compiles == 1 && fake->loads == 2 && fake->launches == 1);
        end(on.cuda);
    }
    oct_cuda_on on = {.cuda = begin(folder)};
    fake->load_result = OCT_CU_OUT_OF_MEMORY; /* which no other code would change */
    CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, &err), OCTET_NO_MEMORY);
    CHECK(fake->compiles == 0 && fake->loads == 1);
    fake->load_result = 200;
    CHECK_EQ_INT(oct_cuda_launch_kernel(&on, &launch, &err), OCTET_DEVICE);
    CHECK(strstr(err.text, "cuModuleLoadData") && fake->compiles == 1 && fake->loads == 3);
    end(on.cuda);
    while (entry_of(path, folder)) {
        CHECK_EQ_INT(remove(path), 0);
    }
    CHECK_EQ_INT(rmdir(folder), 0);
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

static void unmake(void *kept, octet_cuda *cuda) {
    freed += kept == cuda;
}

TEST(launch__what_is_kept_is_made_once_and_freed_with_the_gpu) {
    static const oct_cuda_keeper keeper = {make, unmake};
    octet_cuda *cuda = begin("");
    void *kept = NULL;
    CHECK_EQ_INT(oct_cuda_kept(&kept, cuda, &keeper, NULL), OCTET_NO_MEMORY);
    CHECK_EQ_INT(oct_cuda_kept(&kept, cuda, &keeper, NULL), OCTET_OK);
    CHECK_EQ_INT(oct_cuda_kept(&kept, cuda, &keeper, NULL), OCTET_OK);
    CHECK(kept == cuda && made == 2 && freed == 0);
    end(cuda);
    CHECK_EQ_INT(freed, 1);
}

TEST_MAIN(launch__facts_are_the_gpus, launch__bad_options_and_old_gpus_are_refused,
          launch__passes_what_it_was_given,
          launch__compiles_for_the_exact_gpu_without_fusing_or_flushing,
          launch__compiles_for_the_type_of_input_alone,
          launch__a_gpu_that_the_compiler_does_not_know_is_refused,
          launch__a_name_at_another_address_is_the_same_kernel,
          launch__a_run_enters_the_context_once,
          launch__a_context_that_was_not_entered_is_not_left,
          launch__threads_compile_a_module_once_and_look_a_kernel_up_once,
          launch__a_kernel_or_memory_that_is_not_there_is_told,
          launch__a_failed_compile_gives_the_log_and_the_next_call_works,
          launch__what_is_told_of_the_log_begins_with_the_first_error,
          launch__the_error_of_an_earlier_kernel_is_not_blamed_on_this_one,
          launch__fills_and_copies_reach_every_byte,
          launch__what_is_in_the_cache_is_not_compiled,
          launch__the_cache_tells_drivers_architectures_and_inputs_apart,
          launch__what_the_driver_refuses_of_the_cache_is_compiled_again,
          launch__what_is_kept_is_made_once_and_freed_with_the_gpu)
