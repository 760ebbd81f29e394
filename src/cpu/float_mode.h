/* float_mode.h - kernels compute in the default floating-point mode, whatever the caller's is.
 *
 * A host may have switched its threads to flush subnormal numbers to zero
 * (torch.set_flush_denormal, a library linked with -ffast-math), to another rounding, or to
 * trap. The bytes of a tensor must not depend on that: a step takes the default mode, on every
 * thread that does a part of it, and gives back the mode that it found. */
#ifndef OCT_CPU_FLOAT_MODE_H
#define OCT_CPU_FLOAT_MODE_H

#include <stdint.h>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

/* The control register as it was. */
typedef uint64_t oct_float_mode;

/* To nearest, subnormal numbers are numbers, nothing traps. */
#define OCT_MXCSR_DEFAULT 0x1F80u
#define OCT_MXCSR_FLAGS 0x3Fu /* what has happened: no mode */

static inline oct_float_mode oct_float_mode_take(void) {
#if defined(__SSE2__)
    uint32_t found = _mm_getcsr();
    if ((found & ~OCT_MXCSR_FLAGS) != OCT_MXCSR_DEFAULT) {
        _mm_setcsr(OCT_MXCSR_DEFAULT);
    }
    return found;
#elif defined(__aarch64__)
    uint64_t found;
    __asm__ volatile("mrs %0, fpcr" : "=r"(found));
    if (found) {
        __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    }
    return found;
#else
    return 0; /* the mode is the caller's: docs/cpu.md */
#endif
}

static inline void oct_float_mode_give_back(oct_float_mode found) {
#if defined(__SSE2__)
    if (((uint32_t)found & ~OCT_MXCSR_FLAGS) != OCT_MXCSR_DEFAULT) {
        _mm_setcsr((uint32_t)found);
    }
#elif defined(__aarch64__)
    if (found) {
        __asm__ volatile("msr fpcr, %0" : : "r"(found));
    }
#else
    (void)found;
#endif
}

#endif
