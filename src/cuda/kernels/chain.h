/* chain.h - a kernel that begins while the one before it in the stream ends.
 *
 * From compute capability 9.0 on a launch may overtake the end of its predecessor (launch.c):
 * its blocks begin when all of that one's have called oct_after, or ended. So every kernel
 * calls it before it reads or writes global memory. Then the predecessor, and with it all that
 * came before, has ended and its writes are there. Compiled for less, it is nothing.
 *
 * What an earlier launch of the same run has read may be read without waiting: that launch
 * waited for whoever wrote it, before this one began. */
#ifndef OCT_CUDA_KERNELS_CHAIN_H
#define OCT_CUDA_KERNELS_CHAIN_H

static inline void oct_after(void) {
#if defined(OCTET_EMULATED)
    emulated_after();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#endif
