/* isa.h - which instruction set's kernels run, decided once for the process. */
#ifndef OCT_CPU_ISA_H
#define OCT_CPU_ISA_H

#if defined(__x86_64__) && defined(__GNUC__)
#define OCT_X86 1
#else
#define OCT_X86 0
#endif

/* Each contains the ones before it. */
typedef enum oct_isa {
    OCT_ISA_REFERENCE = 0,
    OCT_ISA_AVX2,      /* with FMA and F16C */
    OCT_ISA_AVX512,    /* F, BW, DQ and VL */
    OCT_ISA_AVX512BF16 /* with VBMI and the bf16 dot product */
} oct_isa;

/* The best the machine has, or the lower one that OCTET_CPU names. Any thread may call it. */
oct_isa oct_cpu_isa(void);

#endif
