/* test_compile.c - every module compiles for the architecture that the environment names.
 *
 * OCTET_TEST_NVRTC is NVRTC's folder and OCTET_TEST_ARCH a compute capability such as 90;
 * without them the law is that a missing or unfit compiler says so.
 * tests/driver/test_compile.py runs it for every architecture and counts the modules. */
#include <stdlib.h>

#include "cuda/device.h"
#include "cuda/nvrtc.h"
#include "test.h"

static const char *const modules[] = {
#define X(name) #name,
    OCT_CUDA_MODULES(X)
#undef X
};

/* Compiles a module, or takes it from the folder of those that did. */
static bool take(oct_cubin *out, const oct_compiler *compiler, const oct_compile *what,
                 octet_error *err) {
    const char *folder = getenv("OCTET_TEST_KERNELS");
    oct_cache_key key = {.module = what->arch};
    oct_compiler_key(&key, compiler, what, 0);
    if (folder && oct_cache_read(out, folder, &key)) {
        return true;
    }
    if (oct_compiler_run(out, compiler, what, err)) {
        return false;
    }
    if (folder) {
        oct_cache_write(folder, &key, out);
    }
    return true;
}

/* An ELF file of more than headers; its log where it is not one. */
static bool compiles(const oct_compiler *compiler, const oct_compile *what) {
    octet_error err = {OCTET_OK, 0, ""};
    oct_cubin cubin = {NULL, 0};
    bool good = take(&cubin, compiler, what, &err);
    if (good) {
        good = cubin.bytes > 1000 && memcmp(cubin.data, "\177ELF", 4) == 0;
        printf("compiled %s for %s: %zu bytes\n", what->source->name, what->arch, cubin.bytes);
    } else {
        printf("%s\n%s\n", err.text, what->log);
    }
    oct_cubin_free(&cubin);
    return good;
}

static void compile_all(const oct_compiler *compiler, const char *arch) {
    static char log[1 << 16];
    for (int i = 0; i < OCT_MODULES; i++) {
        oct_compile what = {oct_module_source(modules[i]), arch, log, sizeof log, OCTET_NONE};
        if (what.source) {
            CHECK_OF(compiles(compiler, &what), what.source->name);
        }
    }
}

TEST(compile__every_module_for_an_architecture) {
    const char *folder = getenv("OCTET_TEST_NVRTC"), *number = getenv("OCTET_TEST_ARCH");
    octet_error err = {OCTET_OK, 0, ""};
    oct_compiler compiler;
    char arch[OCT_ARCH_TEXT];
    octet_status status = oct_compiler_open(&compiler, folder, 0, &err);
    if (!folder || !number) {
        CHECK(!status || (status == OCTET_UNSUPPORTED && strstr(err.text, "libnvrtc.so.13")));
    } else if (CHECK_OF(status == OCTET_OK, err.text)) {
        status = oct_compiler_arch(arch, &compiler, atoi(number), &err);
        if (CHECK_OF(status == OCTET_OK, err.text)) {
            compile_all(&compiler, arch);
        }
    }
}

TEST(compile__a_source_that_does_not_compile_fails_with_the_log) {
    static const oct_cuda_text source = {"cuda/kernels/wrong.cu",
                                         (const unsigned char *)"int wrong = nonsense;\n", 22};
    octet_error err = {OCTET_OK, 0, ""};
    oct_compiler compiler;
    octet_status status = oct_compiler_open(&compiler, getenv("OCTET_TEST_NVRTC"), 0, &err);
    if (!CHECK(status == OCTET_OK || status == OCTET_UNSUPPORTED) || status) {
        return;
    }
    char log[512] = "";
    oct_compile what = {&source, "sm_90a", log, sizeof log, OCTET_NONE};
    oct_cubin cubin;
    CHECK_EQ_INT(oct_compiler_run(&cubin, &compiler, &what, &err), OCTET_DEVICE);
    CHECK(strstr(err.text, "cuda/kernels/wrong.cu does not compile for sm_90a") &&
          strstr(err.text, "\"nonsense\" is undefined"));
    CHECK(strstr(log, "wrong.cu(1): error") != NULL);
}

TEST_MAIN(compile__every_module_for_an_architecture,
          compile__a_source_that_does_not_compile_fails_with_the_log)
