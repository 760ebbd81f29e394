/* doctor.c - octet doctor: what this build is, what this machine offers, and a self-check. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

#if defined(__clang__)
#define COMPILER "clang"
static const int compiler_version[3] = {__clang_major__, __clang_minor__, __clang_patchlevel__};
#elif defined(__GNUC__)
#define COMPILER "gcc"
static const int compiler_version[3] = {__GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__};
#else
#define COMPILER "unknown"
static const int compiler_version[3] = {0, 0, 0};
#endif

static bool is_little_endian(void) {
    uint16_t one = 1;
    uint8_t first;
    memcpy(&first, &one, 1);
    return first == 1;
}

static void show_build(void) {
    printf("octet %s\n\n", octet_version());
    oct_cli_table table = {.columns = 2};
    oct_cli_cell(&table, "compiler");
    const int *version = compiler_version;
    oct_cli_cell(&table, "%s %d.%d.%d, C%ld", COMPILER, version[0], version[1], version[2],
                 __STDC_VERSION__ / 100 % 100);
    oct_cli_cell(&table, "machine");
    oct_cli_cell(&table, "%zu-bit pointers, %s-endian", 8 * sizeof(void *),
                 is_little_endian() ? "little" : "big");
    oct_cli_cell(&table, "sizes in bytes");
    oct_cli_cell(&table, "quantizer %zu, proto %zu, recipe %zu, linear args %zu, plan %zu",
                 sizeof(octet_quantizer), sizeof(octet_proto), sizeof(octet_recipe),
                 sizeof(octet_linear_args), sizeof(octet_plan));
    oct_cli_table_print(&table);
}

/* What the processor has, whether or not anything here uses it. */
static void show_cpu(void) {
#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
    __builtin_cpu_init();
    const struct {
        const char *name;
        bool is_there;
    } flags[] = {
        {"avx2", __builtin_cpu_supports("avx2") != 0},
        {"avx512f", __builtin_cpu_supports("avx512f") != 0},
        {"avx512_bf16", __builtin_cpu_supports("avx512bf16") != 0},
    };
    fputs("  cpu has         ", stdout);
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        printf("%s%s: %s", i > 0 ? ", " : "", flags[i].name, flags[i].is_there ? "yes" : "no");
    }
    putchar('\n');
#endif
    printf("  kernels         %s\n", octet_cpu_name());
}

/* Every GPU that the driver shows, or why there is none. */
static void show_gpus(void) {
    octet_error err = {OCTET_OK, 0, ""};
    int count = octet_cuda_count();
    if (count == 0) {
        octet_device device;
        octet_status status = octet_cuda_device(&device, 0, &err);
        printf("  gpus            none%s%s\n", status == OCTET_INVALID ? "" : ": ",
               status == OCTET_INVALID ? "" : err.text);
    }
    for (int i = 0; i < count; i++) {
        octet_cuda_options options = OCTET_CUDA_OPTIONS_INIT;
        octet_cuda *cuda = NULL;
        char about[4096];
        options.index = (uint32_t)i;
        if (octet_cuda_open(&cuda, &options, &err)) {
            (void)snprintf(about, sizeof about, "%s", err.text);
        } else {
            (void)octet_cuda_print(about, sizeof about, cuda);
        }
        octet_cuda_close(cuda);
        printf("  gpu %-12d%s\n", i, about);
    }
}

/* What is set of the variables that change what runs: see docs/architecture.md. */
static void show_variables(void) {
    static const char *const names[] = {
        "OCTET_CPU",         "OCTET_CACHE",     "OCTET_CACHE_MIB",   "OCTET_CACHE_ENTRIES",
        "OCTET_MXFP8",       "OCTET_CUDA_GEMM", "OCTET_CUDA_ALGO",   "OCTET_CUDA_REPLAY",
        "OCTET_CHECK_RANKS", "OCTET_VERBOSE",   "OCTET_SHARE_CASTS", "CUDA_LAUNCH_BLOCKING",
    };
    int count = 0;
    fputs("  variables       ", stdout);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *value = getenv(names[i]);
        if (value) {
            printf("%s%s=%s", count++ ? ", " : "", names[i], value);
        }
    }
    puts(count ? "" : "none set");
}

static void show_schemes(void) {
    static const octet_device devices[] = {
        {.kind = OCTET_CPU},
        {.kind = OCTET_CUDA, .arch = 80},
        {.kind = OCTET_CUDA, .arch = 89},
        {.kind = OCTET_CUDA, .arch = 90},
        {.kind = OCTET_CUDA, .arch = 100},
        {.kind = OCTET_CUDA, .arch = 120},
    };
    enum { DEVICES = sizeof(devices) / sizeof(devices[0]) };
    oct_cli_table table = {.columns = 1 + DEVICES};
    oct_cli_cell(&table, "scheme");
    oct_cli_cell(&table, "cpu");
    for (int i = 1; i < DEVICES; i++) {
        oct_cli_cell(&table, "cuda %u.%u", devices[i].arch / 10u, devices[i].arch % 10u);
    }
    for (int scheme = OCTET_SCHEME_NONE + 1; scheme < OCTET_SCHEMES; scheme++) {
        oct_cli_cell(&table, "%s", octet_scheme_name((octet_scheme)scheme));
        for (int i = 0; i < DEVICES; i++) {
            octet_support support = octet_scheme_support((octet_scheme)scheme, &devices[i]);
            oct_cli_cell(&table, "%s", octet_support_name(support));
        }
    }
    puts("\nhow plans multiply each scheme, by device");
    oct_cli_table_print(&table);
}

static int run(const oct_cli_command *self, int count, char **words) {
    oct_cli_option none = {NULL, NULL};
    if (oct_cli_arguments(self, &count, words, &none) != OCT_CLI_OK) {
        return OCT_CLI_USAGE;
    }
    if (count != 0) {
        return oct_cli_misuse(self, "no argument is needed, %d given", count);
    }
    show_build();
    show_cpu();
    show_gpus();
    show_variables();
    show_schemes();
    puts("\nself-check");
    int wrong = oct_cli_self_check();
    if (wrong > 0) {
        return oct_cli_fail(self->name, "%d checks failed; do not trust this build", wrong);
    }
    puts("\nok");
    return OCT_CLI_OK;
}

const oct_cli_command oct_cli_doctor = {
    .name = "doctor",
    .usage = "",
    .summary = "what this build is and offers, and whether its numbers are right",
    .about = "Prints the version, the compiler, what the processor offers, which GPUs there "
             "are and\n"
             "with which libraries, or why there is none, the variables that are set, and\n"
             "which schemes a plan multiplies natively or by exact emulation on each kind of\n"
             "device. Then checks this build against known numbers and texts. Exit status 1\n"
             "when any check fails.",
    .example = "octet doctor",
    .run = run,
};
