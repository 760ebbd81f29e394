/* nvrtc.h - a module's source made into code for one architecture. */
#ifndef OCT_CUDA_NVRTC_H
#define OCT_CUDA_NVRTC_H

#include "cuda/api.h"
#include "cuda/cache.h"
#include "cuda/embedded.h"

#define OCT_BUILD_TEXT 72

/* NVRTC and what it can do. */
typedef struct oct_compiler {
    oct_nvrtc call;
    int major, minor;
    char build[OCT_BUILD_TEXT]; /* which build of that version */
} oct_compiler;

/* `folders` is options.libraries; `driver_version` is CUDA's 1000 * major + 10 * minor, for a
 * driver cannot load what a newer major version's compiler made. */
octet_status oct_compiler_open(oct_compiler *out, const char *folders, int driver_version,
                               octet_error *err);

/* "sm_90a" for compute capability 9.0: with the instructions of that architecture alone, where
 * it has any. An architecture newer than the compiler runs what was made for the nearest older
 * one of its generation. */
#define OCT_ARCH_TEXT 16
octet_status oct_compiler_arch(char out[OCT_ARCH_TEXT], const oct_compiler *compiler, int arch,
                               octet_error *err);

/* The embedded source of a module; NULL where this build has none. */
const oct_cuda_text *oct_module_source(const char *module);

/* One compilation, of the kernels for one type of input or of all. The compiler's log goes to
 * log[0 .. log_bytes), where it is not NULL. */
typedef struct oct_compile {
    const oct_cuda_text *source;
    const char *arch;
    char *log;
    size_t log_bytes;
    uint8_t input; /* OCTET_F32, OCTET_BF16 or OCTET_F16; OCTET_NONE: any */
} oct_compile;

/* Every fact that the compiled module depends on: out->facts, a key for the cache. */
void oct_compiler_key(oct_cache_key *out, const oct_compiler *compiler, const oct_compile *what,
                      int driver_version);

/* OCTET_DEVICE with the compiler's log, from its first error on, where the source does not
 * compile. */
octet_status oct_compiler_run(oct_cubin *out, const oct_compiler *compiler,
                              const oct_compile *what, octet_error *err);

#endif
