/* list.h - what a run launches, as a list: decided once, walked by every run of its kind.
 *
 * Operations put launches on a stream, or into a list where oct_cuda_on has one. A list is made
 * with addresses that stand in for the caller's: what it holds are references, a region of the
 * run's memory and the bytes from its start. No bytes of a kernel's parameters are padding
 * (tests/cuda/test_list.c), so a word of them that is such an address is one. */
#ifndef OCT_CUDA_LIST_H
#define OCT_CUDA_LIST_H

#include "cuda/cuda.h"

#define OCT_LIST_REGIONS 64
/* Of a region, at most: further addresses cannot be distinguished. */
#define OCT_LIST_BYTES ((int64_t)1 << 39)
/* Decisions look at this much of an address. */
#define OCT_LIST_ALIGN 256

/* What stands for the start of a region whose address has these low bits. No processor has such
 * an address, no float or double of a kernel is that NaN, and no number is so large. */
#define OCT_LIST_STAND_IN 0x7FFA
static inline void *oct_list_stand_in(int region, uint8_t low) {
    uint64_t word =
        (uint64_t)OCT_LIST_STAND_IN << 48 | (uint64_t)region << 40 | OCT_LIST_BYTES | low;
    return (void *)(uintptr_t)word;
}

typedef struct oct_cuda_list oct_cuda_list;

/* An empty one. Allocates, as what fills it does. */
octet_status oct_list_make(oct_cuda_list **out, octet_cuda *cuda, octet_error *err);
void oct_list_free(oct_cuda_list *list);
/* What is put into it from now on belongs to this step. */
void oct_list_step(oct_cuda_list *list, int step);
/* Bits: the regions that it refers to. */
uint64_t oct_list_regions(const oct_cuda_list *list);

/* Where a walk stands: before it, the launch to begin with. After one that cuBLASLt did not
 * take though it had proposed it: that launch, which has done nothing, and its step; `refused`.
 */
typedef struct oct_list_place {
    int at, step;
    bool refused;
} oct_list_place;

/* Puts the launches on the stream. `starts` are the regions' addresses. The GPU's context is
 * current. Allocates nothing, locks nothing. */
octet_status oct_list_walk(oct_list_place *place, const oct_cuda_list *list,
                           const uint64_t *starts, void *stream, octet_error *err);
/* The first launch behind this step's. */
int oct_list_behind(const oct_cuda_list *list, int at);

/* For people and tests: a line for each launch, without addresses; as by snprintf. */
size_t oct_list_print(char *text, size_t size, const oct_cuda_list *list);

#endif
