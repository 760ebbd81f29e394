/* list.h - the launches of a run as a list: decided once, walked by every run of the same kind.
 * Operations put launches on a stream, or into a list if oct_cuda_on has one. A list is made
 * with placeholder addresses. It stores references: a region of the run's memory and an offset
 * in bytes. Parameters of kernels have no padding (tests/cuda/test_list.c), so every word with
 * the pattern of a placeholder is one. */
#ifndef OCT_CUDA_LIST_H
#define OCT_CUDA_LIST_H

#include "cuda/cuda.h"

#define OCT_LIST_REGIONS 64
/* The largest region: placeholders beyond it would be ambiguous. */
#define OCT_LIST_BYTES ((int64_t)1 << 39)
/* Decisions depend on addresses only modulo this. */
#define OCT_LIST_ALIGN 256

/* The placeholder for the start of a region whose address has these low bits. No real address,
 * float, double or count in a kernel's parameters looks like it. */
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

/* The position of a walk. Before it: the first launch. If cuBLASLt refuses a product that it
 * had proposed, the walk ends there with `refused`: this launch, which has done nothing, and
 * its step. */
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
