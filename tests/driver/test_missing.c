/* test_missing.c - a machine without CUDA: no GPUs, and errors that say what to do. */
#define _XOPEN_SOURCE 700
#include <stdlib.h>
#include <unistd.h>

#include "cuda/api.h"
#include "cuda/library.h"
#include "cuda/nvrtc.h"
#include "octet.h"
#include "test.h"

/* In this order, for a driver that was found stays for the life of the process. */
TEST(missing__no_driver_is_no_gpus_and_an_error_that_names_it) {
    octet_error err = {OCTET_OK, 0, ""};
    octet_device device = {OCTET_CPU, 0, 0};
    octet_cuda *cuda = NULL;
    octet_cuda_options options = OCTET_CUDA_OPTIONS_INIT;
    CHECK_EQ_INT(setenv("OCTET_CUDA_DRIVER", "/nowhere/libcuda.so", 1), 0);
    CHECK_EQ_INT(octet_cuda_count(), 0);
    CHECK_EQ_INT(octet_cuda_device(&device, 0, &err), OCTET_UNSUPPORTED);
    CHECK(strstr(err.text, "no CUDA driver") && strstr(err.text, "/nowhere/libcuda.so"));
    CHECK_EQ_INT(octet_cuda_open(&cuda, &options, NULL), OCTET_UNSUPPORTED);
    CHECK(cuda == NULL && device.kind == OCTET_CPU);
    octet_cuda_close(NULL);
}

TEST(missing__an_old_driver_is_told_by_the_function_it_lacks) {
    octet_error err = {OCTET_OK, 0, ""};
    octet_device device;
    CHECK_EQ_INT(setenv("OCTET_CUDA_DRIVER", TEST_OLD_CUDA, 1), 0);
    CHECK_EQ_INT(octet_cuda_count(), 0);
    CHECK_EQ_INT(octet_cuda_device(&device, 0, &err), OCTET_UNSUPPORTED);
    CHECK(strstr(err.text, "cuDriverGetVersion") && strstr(err.text, "install"));
}

TEST(missing__a_driver_that_comes_later_is_found) {
    octet_error err = {OCTET_OK, 0, ""};
    octet_device device = {OCTET_CPU, 0, 0};
    CHECK_EQ_INT(setenv("OCTET_CUDA_DRIVER", TEST_FAKE_CUDA, 1), 0);
    CHECK_EQ_INT(octet_cuda_count(), 1);
    CHECK_EQ_INT(octet_cuda_device(&device, 0, &err), OCTET_OK);
    CHECK(device.kind == OCTET_CUDA && device.index == 0 && device.arch == 90);
    CHECK_EQ_INT(octet_cuda_device(&device, 1, &err), OCTET_INVALID);
    CHECK_EQ_STR(err.text, "GPU 1 was asked for; the driver shows 1, counted from 0");
    CHECK_EQ_INT(octet_cuda_device(&device, -1, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_cuda_device(NULL, 0, &err), OCTET_INVALID);
}

TEST(missing__a_library_error_names_it_and_every_place_and_the_fix) {
    static const char *const sonames[] = {"liboctetabsent.so.2", "liboctetabsent.so.1", NULL};
    static const oct_symbol symbols[] = {{"absent", 0}, {NULL, 0}};
    oct_library library = {"Absent", sonames, "/one:/two", "install Absent"};
    octet_error err = {OCTET_OK, 0, ""};
    void *table = NULL;
    CHECK_EQ_INT(unsetenv("OCTET_CUDA_DRIVER"), 0);
    CHECK_EQ_INT(oct_library_load(&table, &library, symbols, &err), OCTET_UNSUPPORTED);
    CHECK_EQ_STR(err.text,
                 "no Absent: liboctetabsent.so.2 or liboctetabsent.so.1 is not loaded in this "
                 "process, not in the folders given: /one:/two, not where the system looks, "
                 "not in /usr/local/cuda/lib64; install Absent");
    library.folders = NULL;
    CHECK_EQ_INT(oct_library_load(&table, &library, symbols, &err), OCTET_UNSUPPORTED);
    CHECK(strstr(err.text, "in this process, not where the system looks") != NULL);
}

/* The loader's reason is the one to act on: it is there. */
TEST(missing__a_library_that_does_not_load_is_told_with_the_reason) {
    static const char *const sonames[] = {"liboctetbroken.so.1", NULL};
    static const oct_symbol symbols[] = {{"absent", 0}, {NULL, 0}};
    char folder[] = "/tmp/octet-missing-XXXXXX", path[64];
    octet_error err = {OCTET_OK, 0, ""};
    void *table = NULL;
    CHECK(mkdtemp(folder) != NULL);
    (void)snprintf(path, sizeof path, "%s/liboctetbroken.so.1", folder);
    FILE *file = fopen(path, "w");
    CHECK(file && fputs("not a library", file) >= 0 && fclose(file) == 0);
    oct_library library = {"Broken", sonames, folder, "install Broken"};
    CHECK_EQ_INT(oct_library_load(&table, &library, symbols, &err), OCTET_UNSUPPORTED);
    CHECK_OF(strstr(err.text, "no Broken: ") && strstr(err.text, path) &&
                 strstr(err.text, "does not load") && strstr(err.text, "install Broken"),
             err.text);
    CHECK(remove(path) == 0 && rmdir(folder) == 0);
}

TEST(missing__a_library_that_lacks_a_function_is_told_with_its_place) {
    static const char *const sonames[] = {"libold_cuda.so", NULL};
    static const oct_symbol symbols[] = {{"cuInit", 0}, {"absent", 0}, {NULL, 0}};
    oct_library library = {"Old", sonames, NULL, "install it"};
    char folder[4096];
    octet_error err = {OCTET_OK, 0, ""};
    void *table = NULL;
    (void)snprintf(folder, sizeof folder, "%.*s",
                   (int)(strrchr(TEST_OLD_CUDA, '/') - TEST_OLD_CUDA), TEST_OLD_CUDA);
    library.folders = folder;
    CHECK_EQ_INT(oct_library_load(&table, &library, symbols, &err), OCTET_UNSUPPORTED);
    CHECK_OF(strstr(err.text, "libold_cuda.so is too old, it has no absent; install it"),
             err.text);
}

/* The last folder that is given, after one that is empty and one that has nothing. */
TEST(missing__a_library_is_found_in_a_folder_that_is_given) {
    static const char *const sonames[] = {"libold_cuda.so", NULL};
    static const oct_symbol symbols[] = {{"cuInit", 0}, {NULL, 0}};
    char folders[4096];
    int length = (int)(strrchr(TEST_OLD_CUDA, '/') - TEST_OLD_CUDA);
    (void)snprintf(folders, sizeof folders, "/nowhere::%.*s", length, TEST_OLD_CUDA);
    oct_library library = {"Old", sonames, folders, "install it"};
    octet_error err = {OCTET_OK, 0, ""};
    int (*call)(unsigned) = NULL;
    CHECK_EQ_INT(oct_library_load(&call, &library, symbols, &err), OCTET_OK);
    CHECK_EQ_INT(call ? call(5) : 0, 5);
}

TEST(missing__an_older_driver_asks_for_the_older_compiler) {
    octet_error err = {OCTET_OK, 0, ""};
    oct_compiler compiler;
    if (oct_compiler_open(&compiler, NULL, 12080, &err)) {
        CHECK(strstr(err.text, "libnvrtc.so.12") && !strstr(err.text, "libnvrtc.so.13"));
    } else {
        CHECK_EQ_INT(compiler.major, 12);
    }
}

TEST_MAIN(missing__no_driver_is_no_gpus_and_an_error_that_names_it,
          missing__an_old_driver_is_told_by_the_function_it_lacks,
          missing__a_driver_that_comes_later_is_found,
          missing__a_library_error_names_it_and_every_place_and_the_fix,
          missing__a_library_that_does_not_load_is_told_with_the_reason,
          missing__a_library_that_lacks_a_function_is_told_with_its_place,
          missing__a_library_is_found_in_a_folder_that_is_given,
          missing__an_older_driver_asks_for_the_older_compiler)
