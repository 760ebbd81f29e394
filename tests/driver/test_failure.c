/* test_failure.c - what fails is told in words, and the next call works; what is in the cache
 * is used, or does no harm.
 *
 * Through a driver that only keeps account: no GPU is needed. */
#define _XOPEN_SOURCE 700
#include <dirent.h>
#include <unistd.h>

#include "fake_gpu.h"

/* A driver on its way out; what the thread had current is not ours to take away. */
TEST(failure__a_context_that_was_not_entered_is_not_left) {
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

TEST(failure__a_kernel_or_memory_that_is_not_there_is_told) {
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

TEST(failure__a_failed_compile_gives_the_log_and_the_next_call_works) {
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
TEST(failure__what_is_told_of_the_log_begins_with_the_first_error) {
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

TEST(failure__the_error_of_an_earlier_kernel_is_not_blamed_on_this_one) {
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
    CHECK_EQ_STR(err.text, "cuLaunchKernelEx of innocent: CUDA error 12345 (no description)");
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

TEST(failure__what_is_in_the_cache_is_not_compiled) {
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
TEST(failure__the_cache_tells_drivers_architectures_and_inputs_apart) {
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
TEST(failure__what_the_driver_refuses_of_the_cache_is_compiled_again) {
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

TEST_MAIN(failure__a_context_that_was_not_entered_is_not_left,
          failure__a_kernel_or_memory_that_is_not_there_is_told,
          failure__a_failed_compile_gives_the_log_and_the_next_call_works,
          failure__what_is_told_of_the_log_begins_with_the_first_error,
          failure__the_error_of_an_earlier_kernel_is_not_blamed_on_this_one,
          failure__what_is_in_the_cache_is_not_compiled,
          failure__the_cache_tells_drivers_architectures_and_inputs_apart,
          failure__what_the_driver_refuses_of_the_cache_is_compiled_again)
