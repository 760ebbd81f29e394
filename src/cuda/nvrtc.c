/* nvrtc.c - a module's source made into code for one architecture. */
#define _GNU_SOURCE /* dladdr */
#include "cuda/nvrtc.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/text.h"
#include "cuda/build_id.h"
#include "cuda/library.h"
#include "cuda/target.h"

/* How every kernel is compiled: numbers must be those of the CPU, so nothing is fused, flushed
 * or approximated. A function without a word on where it runs is the device's. */
static const char *const options[] = {
    "-std=c++20",  "-default-device", "--fmad=false",
    "--ftz=false", "--prec-div=true", "--prec-sqrt=true",
};
enum { OPTIONS = sizeof options / sizeof options[0] };

/* The option for a type of input. */
static const char *const inputs[] = {[OCTET_NONE] = NULL,
                                     [OCTET_F32] = "-DOCT_TAKES_F32",
                                     [OCTET_BF16] = "-DOCT_TAKES_BF16",
                                     [OCTET_F16] = "-DOCT_TAKES_F16"};

static const oct_symbol symbols[] = {
#define X(result, name, parameters) {#name, offsetof(oct_nvrtc, name)},
    OCT_NVRTC_CALLS(X)
#undef X
        {NULL, 0},
};

static const char *const sonames[] = {"libnvrtc.so.13", "libnvrtc.so.12", NULL};

static octet_status status_of(int result) {
    return result == 1 ? OCTET_NO_MEMORY : OCTET_DEVICE;
}

static octet_status failed(const oct_compiler *compiler, const char *call, int result,
                           octet_error *err) {
    const char *text = compiler->call.nvrtcGetErrorString(result);
    return oct_fail(err, status_of(result), "%s: %s", call, text ? text : "unknown error");
}

/* NVRTC opens its built-in functions by their plain name, which nothing finds in a folder that
 * the system does not know; once loaded, it finds them. */
static void load_builtins(const oct_compiler *compiler) {
    Dl_info about;
    void *inside;
    char path[4096];
    memcpy(&inside, &compiler->call.nvrtcVersion, sizeof inside);
    if (!dladdr(inside, &about) || !about.dli_fname) {
        return;
    }
    const char *slash = strrchr(about.dli_fname, '/');
    int folder = slash ? (int)(slash - about.dli_fname) : 0;
    int length = snprintf(path, sizeof path, "%.*s/libnvrtc-builtins.so.%d.%d", folder,
                          about.dli_fname, compiler->major, compiler->minor);
    if (folder > 0 && length > 0 && (size_t)length < sizeof path) {
        (void)dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
}

octet_status oct_compiler_open(oct_compiler *out, const char *folders, int driver_version,
                               octet_error *err) {
    bool older = driver_version > 0 && driver_version < 13000;
    const oct_library library = {
        .title = "NVRTC",
        .sonames = older ? sonames + 1 : sonames,
        .folders = folders,
        .fix = older ? "pip install nvidia-cuda-nvrtc-cu12 (the driver is older than CUDA 13)"
                     : "pip install nvidia-cuda-nvrtc, or name its folder in the options",
    };
    octet_status status = oct_library_load(&out->call, &library, symbols, err);
    if (status) {
        return status;
    }
    int result = out->call.nvrtcVersion(&out->major, &out->minor);
    if (result) {
        return failed(out, "nvrtcVersion", result, err);
    }
    const void *inside;
    memcpy(&inside, &out->call.nvrtcVersion, sizeof inside);
    oct_build_id(out->build, sizeof out->build, inside);
    load_builtins(out);
    return OCTET_OK;
}

/* The best architecture in the compiler's list for this one: itself, else the nearest older one
 * of the same major version; 0 where there is none. */
static int nearest(const int *archs, int count, int arch) {
    int best = 0;
    for (int i = 0; i < count; i++) {
        if (archs[i] / 10 == arch / 10 && archs[i] <= arch && archs[i] > best) {
            best = archs[i];
        }
    }
    return best;
}

octet_status oct_compiler_arch(char out[OCT_ARCH_TEXT], const oct_compiler *compiler, int arch,
                               octet_error *err) {
    int count = 0, archs[256];
    int result = compiler->call.nvrtcGetNumSupportedArchs(&count);
    if (!result && (count < 0 || count > (int)(sizeof archs / sizeof archs[0]))) {
        return oct_fail(err, OCTET_DEVICE, "NVRTC lists %d architectures", count);
    }
    result = result ? result : compiler->call.nvrtcGetSupportedArchs(archs);
    if (result) {
        return failed(compiler, "nvrtcGetSupportedArchs", result, err);
    }
    int best = nearest(archs, count, arch);
    if (!best) {
        return oct_fail(err, OCTET_UNSUPPORTED,
                        "NVRTC %d.%d does not know compute capability %d.%d: a newer "
                        "nvidia-cuda-nvrtc does",
                        compiler->major, compiler->minor, arch / 10, arch % 10);
    }
    (void)snprintf(out, OCT_ARCH_TEXT, "sm_%d%s", best,
                   best == arch && oct_arch_has_own(arch) ? "a" : "");
    return OCTET_OK;
}

const oct_cuda_text *oct_module_source(const char *module) {
    char name[64];
    (void)snprintf(name, sizeof name, "cuda/kernels/%s.cu", module);
    for (int i = 0; i < oct_cuda_text_count; i++) {
        if (strcmp(oct_cuda_texts[i].name, name) == 0) {
            return &oct_cuda_texts[i];
        }
    }
    return NULL;
}

static bool is_header(const oct_cuda_text *text) {
    size_t length = strlen(text->name);
    return length > 2 && strcmp(text->name + length - 2, ".h") == 0;
}

/* Of the source and of every header it might include. */
static void hash_texts(char out[OCT_SHA256_TEXT], const oct_cuda_text *source) {
    oct_sha256 hash;
    oct_sha256_start(&hash);
    for (int i = 0; i < oct_cuda_text_count; i++) {
        const oct_cuda_text *text = &oct_cuda_texts[i];
        if (text == source || is_header(text)) {
            oct_sha256_add(&hash, text->name, strlen(text->name) + 1);
            oct_sha256_add(&hash, text->text, text->bytes + 1);
        }
    }
    oct_sha256_text(out, &hash);
}

void oct_compiler_key(oct_cache_key *out, const oct_compiler *compiler, const oct_compile *what,
                      int driver_version) {
    char texts[OCT_SHA256_TEXT];
    hash_texts(texts, what->source);
    oct_writer facts = oct_writer_start(out->facts, sizeof out->facts);
    const char *words[] = {"octet ", octet_version(), "\nsource ", what->source->name,
                           " ",      texts,           "\narch ",   what->arch,
                           NULL};
    for (int i = 0; words[i]; i++) {
        oct_write(&facts, words[i]);
    }
    const struct {
        const char *word;
        int number;
    } numbers[] = {
        {"\nnvrtc ", compiler->major}, {".", compiler->minor}, {"\ndriver ", driver_version}};
    for (int i = 0; i < 3; i++) {
        oct_write(&facts, numbers[i].word);
        oct_write_i64(&facts, numbers[i].number);
    }
    oct_write(&facts, "\nbuild ");
    oct_write(&facts, compiler->build);
    oct_write(&facts, "\noptions");
    for (int i = 0; i < OPTIONS; i++) {
        oct_write(&facts, " ");
        oct_write(&facts, options[i]);
    }
    if (inputs[what->input]) {
        oct_write(&facts, " ");
        oct_write(&facts, inputs[what->input]);
    }
    oct_write(&facts, "\n");
}

static octet_status create(void **program, const oct_compiler *compiler,
                           const oct_cuda_text *source, octet_error *err) {
    const char **texts = calloc(2 * (size_t)oct_cuda_text_count, sizeof *texts);
    if (!texts) {
        return oct_fail(err, OCTET_NO_MEMORY, "no memory to compile %s", source->name);
    }
    const char **names = texts + oct_cuda_text_count;
    int count = 0;
    for (int i = 0; i < oct_cuda_text_count; i++) {
        if (is_header(&oct_cuda_texts[i])) {
            texts[count] = (const char *)oct_cuda_texts[i].text;
            names[count++] = oct_cuda_texts[i].name;
        }
    }
    int result = compiler->call.nvrtcCreateProgram(program, (const char *)source->text,
                                                   source->name, count, texts, names);
    free(texts);
    return result ? failed(compiler, "nvrtcCreateProgram", result, err) : OCTET_OK;
}

/* From the line of the first error on, for there may be warnings before it. */
static const char *first_error(const char *log) {
    const char *at = strstr(log, ": error");
    while (at && at > log && at[-1] != '\n') {
        at--;
    }
    return at ? at : log;
}

static octet_status not_compiled(const oct_compiler *compiler, void *program, int result,
                                 const oct_compile *what, octet_error *err) {
    size_t bytes = 0;
    char *log = NULL;
    if (!compiler->call.nvrtcGetProgramLogSize(program, &bytes) && bytes > 1) {
        log = malloc(bytes);
    }
    if (log && compiler->call.nvrtcGetProgramLog(program, log)) {
        free(log);
        log = NULL;
    }
    const char *text = log ? log : compiler->call.nvrtcGetErrorString(result);
    if (what->log && what->log_bytes > 0) {
        (void)snprintf(what->log, what->log_bytes, "%s", text);
    }
    octet_status status = oct_fail(
        err, status_of(result), "%s does not compile for %s with NVRTC %d.%d: %s",
        what->source->name, what->arch, compiler->major, compiler->minor, first_error(text));
    free(log);
    return status;
}

static octet_status take(oct_cubin *out, const oct_compiler *compiler, void *program,
                         octet_error *err) {
    oct_cubin cubin = {NULL, 0};
    int result = compiler->call.nvrtcGetCUBINSize(program, &cubin.bytes);
    if (!result && cubin.bytes > 0) {
        cubin.data = malloc(cubin.bytes);
    }
    if (!result && !cubin.data) {
        return oct_fail(err, OCTET_NO_MEMORY, "no memory for a module of %zu bytes",
                        cubin.bytes);
    }
    result = result ? result : compiler->call.nvrtcGetCUBIN(program, (char *)cubin.data);
    if (result) {
        oct_cubin_free(&cubin);
        return failed(compiler, "nvrtcGetCUBIN", result, err);
    }
    *out = cubin;
    return OCTET_OK;
}

octet_status oct_compiler_run(oct_cubin *out, const oct_compiler *compiler,
                              const oct_compile *what, octet_error *err) {
    char arch[32];
    const char *all[OPTIONS + 2];
    memcpy(all, options, sizeof options);
    (void)snprintf(arch, sizeof arch, "--gpu-architecture=%s", what->arch);
    all[OPTIONS] = arch;
    all[OPTIONS + 1] = inputs[what->input];
    int count = OPTIONS + 1 + (all[OPTIONS + 1] != NULL);

    void *program = NULL;
    octet_status status = create(&program, compiler, what->source, err);
    if (status) {
        return status;
    }
    int result = compiler->call.nvrtcCompileProgram(program, count, all);
    status = result ? not_compiled(compiler, program, result, what, err)
                    : take(out, compiler, program, err);
    (void)compiler->call.nvrtcDestroyProgram(&program);
    return status;
}
