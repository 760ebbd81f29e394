/* isa.h - the instruction sets, lowest first, and the kernels that run with each.
 *
 * The table of an instruction set is the table of the one below it, with the kernels that the
 * set brings put over those it had. The lowest is the reference, which has every kernel. So a
 * new set may bring one kernel and nothing else. */
#ifndef OCT_CPU_ISA_H
#define OCT_CPU_ISA_H

#include "cpu/gemm.h"
#include "cpu/kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define OCT_X86 1
#else
#define OCT_X86 0
#endif

/* Every kernel of the device. */
typedef struct oct_table {
    oct_kernels kernels;
    oct_gemm_kernels gemm;
} oct_table;

/* What one file has for one instruction set: writes its kernels into the table and leaves the
 * other entries as they are. isa.c lists them all. */
typedef void oct_bring(oct_table *table);

oct_bring oct_kernels__reference, oct_pack__reference, oct_gemm__reference,
    oct_stream__reference;
#if OCT_X86
oct_bring oct_scan__avx2, oct_encode__avx2, oct_stochastic__avx2, oct_decode__avx2,
    oct_bytes__avx2, oct_pack__avx2, oct_gemm__avx2, oct_stream__avx2, oct_activation__avx2;
oct_bring oct_scan__avx512, oct_encode__avx512, oct_stochastic__avx512, oct_decode__avx512,
    oct_bytes__avx512, oct_pack__avx512, oct_gemm__avx512, oct_stream__avx512,
    oct_activation__avx512;
oct_bring oct_pack__avx512bf16, oct_gemm__avx512bf16, oct_stream__avx512bf16;
#endif

/* Instruction sets are numbered: 0 is the reference, and each contains the ones before it.
 * Any thread may call these functions. */

/* The best that the machine has, or the lower one that OCTET_CPU names. Chosen at the first
 * call, for the process. */
int oct_cpu_isa(void);
/* The table of that one. */
const oct_table *oct_cpu_table(void);
/* The word of any; NULL where there is none with this number. */
const char *oct_isa_name(int isa);
/* The table of any, made anew: for tests, which may change it. */
oct_table oct_isa_table(int isa);

#endif
