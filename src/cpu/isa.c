/* isa.c - the machine's best instruction set, or the one the environment names. */
#include "cpu/isa.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"

static const char *const names[] = {"reference", "avx2", "avx512", "avx512bf16"};

/* 0 until the first call, then 1 + the choice. Threads that meet in the first call store the
 * same number, for the machine and the environment are the same to all of them. */
static atomic_int chosen;

static oct_isa best(void) {
#if OCT_X86
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("f16c")) {
        return OCT_ISA_REFERENCE;
    }
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
        return OCT_ISA_AVX2;
    }
    bool bf16 = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
    return bf16 ? OCT_ISA_AVX512BF16 : OCT_ISA_AVX512;
#else
    return OCT_ISA_REFERENCE;
#endif
}

/* OCTET_CPU can only lower the choice: another word, or more than the machine has, is as none.
 */
static oct_isa choose(void) {
    oct_isa limit = best();
    const char *wanted = getenv("OCTET_CPU");
    for (int isa = OCT_ISA_REFERENCE; wanted && isa < (int)limit; isa++) {
        if (strcmp(wanted, names[isa]) == 0) {
            return (oct_isa)isa;
        }
    }
    return limit;
}

oct_isa oct_cpu_isa(void) {
    int known = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (known == 0) {
        known = 1 + (int)choose();
        atomic_store_explicit(&chosen, known, memory_order_relaxed);
    }
    return (oct_isa)(known - 1);
}

const char *oct_cpu_name(void) {
    return names[oct_cpu_isa()];
}
