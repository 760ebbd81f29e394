/* emulate_watch.h - every access to memory of an emulated kernel is looked at.
 *
 * A GPU runs threads in any order; the emulation in one. So what it must not depend on is
 * checked: two threads touch a byte, one of them changes it, and nothing orders them; or a
 * thread touches global memory of a launch before it has waited for that launch. The compiler
 * calls these functions, as ThreadSanitizer's, where kernels are compiled with it. */
#ifndef OCTET_TEST_CUDA_EMULATE_WATCH_H
#define OCTET_TEST_CUDA_EMULATE_WATCH_H

#include <stddef.h>
#include <stdint.h>

/* Where the thread of a kernel is that runs now. */
struct watched_thread {
    uint32_t launch;       /* its number: launches in the order of their streams */
    uint32_t block;        /* of the grid */
    uint32_t barriers;     /* of the block so far, */
    uint16_t warp_syncs;   /* and of the warp */
    uint16_t thread;       /* of the block */
    bool may_overtake;     /* it may begin before the launch in front of it has ended */
    bool waited;           /* it has called oct_after */
    const char *stack;     /* its own memory, */
    size_t stack_bytes;    /* which no other thread sees */
    const char *shared[2]; /* the block's: of static variables, and dynamic */
    size_t shared_bytes[2];
};

/* The thread that runs now; emulate.cpp's. */
const watched_thread &watched_now();
/* By a thread that does not go on for now. */
void watched_settle();

#endif
