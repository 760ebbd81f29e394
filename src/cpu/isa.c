/* isa.c - the list of instruction sets, and the one that the process runs. */
#include "cpu/isa.h"

#include <pthread.h>
#include <string.h>

#include "core/environment.h"
#include "cpu/cpu.h"

#if OCT_X86
#include <cpuid.h>
#endif

#define MOST 9 /* files of one instruction set */

typedef struct isa_row {
    const char *name;
    bool (*has)(void);      /* whether the machine has what this set adds to the one before */
    oct_bring *bring[MOST]; /* in any order; NULL after the last */
} isa_row;

static bool has_reference(void) {
    return true;
}

#if OCT_X86
/* Asked of the processor: not every compiler knows the word. Its registers are AVX's, so where
 * the system saves those of avx2 it saves these. */
static bool has_f16c(void) {
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static bool has_avx512bf16(void) {
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
}
#endif

/* Lowest first. A machine has a set only if it has all the ones before. */
static const isa_row isas[] = {
    {"reference",
     has_reference,
     {oct_kernels__reference, oct_pack__reference, oct_gemm__reference, oct_stream__reference}},
#if OCT_X86
    {"avx2",
     has_avx2,
     {oct_scan__avx2, oct_encode__avx2, oct_stochastic__avx2, oct_decode__avx2, oct_bytes__avx2,
      oct_pack__avx2, oct_gemm__avx2, oct_stream__avx2, oct_activation__avx2}},
    {"avx512",
     has_avx512,
     {oct_scan__avx512, oct_encode__avx512, oct_stochastic__avx512, oct_decode__avx512,
      oct_bytes__avx512, oct_pack__avx512, oct_gemm__avx512, oct_stream__avx512,
      oct_activation__avx512}},
    {"avx512bf16",
     has_avx512bf16,
     {oct_pack__avx512bf16, oct_gemm__avx512bf16, oct_stream__avx512bf16}},
#endif
};

enum { ISAS = sizeof isas / sizeof isas[0] };

/* The process runs one table. It is written once, before any caller reads it. */
static struct {
    pthread_once_t once;
    int isa;
    oct_table table;
} chosen = {.once = PTHREAD_ONCE_INIT};

/* OCTET_CPU can only lower the choice: another word, or more than the machine has, is as none.
 */
static int choose_isa(void) {
    const char *wanted = oct_environment("OCTET_CPU");
    int isa = 0;
    while (isa + 1 < ISAS && isas[isa + 1].has() &&
           !(wanted && strcmp(wanted, isas[isa].name) == 0)) {
        isa++;
    }
    return isa;
}

const char *oct_isa_name(int isa) {
    return isa >= 0 && isa < ISAS ? isas[isa].name : NULL;
}

oct_table oct_isa_table(int isa) {
    oct_table table = {0};
    for (int level = 0; level <= isa; level++) {
        for (int n = 0; n < MOST && isas[level].bring[n]; n++) {
            isas[level].bring[n](&table);
        }
    }
    return table;
}

static void choose(void) {
    chosen.isa = choose_isa();
    chosen.table = oct_isa_table(chosen.isa);
}

int oct_cpu_isa(void) {
    (void)pthread_once(&chosen.once, choose);
    return chosen.isa;
}

const oct_table *oct_cpu_table(void) {
    (void)pthread_once(&chosen.once, choose);
    return &chosen.table;
}

const oct_kernels *oct_cpu_kernels(void) {
    return &oct_cpu_table()->kernels;
}

const char *oct_cpu_name(void) {
    return oct_isa_name(oct_cpu_isa());
}
