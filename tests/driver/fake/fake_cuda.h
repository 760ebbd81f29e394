/* fake_cuda.h - what a test says to, and asks of, a driver that has no GPU. */
#ifndef OCTET_TEST_DRIVER_FAKE_CUDA_H
#define OCTET_TEST_DRIVER_FAKE_CUDA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct fake_cuda {
    /* What the next calls answer: CUresults, nvrtcResults, facts. */
    atomic_int retain_result, load_result, launch_result, memset_result, compile_result;
    atomic_int push_result, graph_result;
    atomic_int is_capturing;  /* of every stream but those that the driver made */
    atomic_int bad_loads;     /* so many modules are refused first, with load_result */
    atomic_size_t memory_mib; /* that the GPU has */
    int arch, driver_version;
    const char *log; /* of a compilation; NULL: an error's */
    /* What was called. */
    atomic_int retains, releases, compiles, loads, unloads, functions, launches, fills, copies;
    atomic_int attributes, pushes, pops;
    atomic_int streams, graphs, graph_execs; /* there now */
    atomic_int graph_launches, graph_nodes;  /* nodes: of those that were launched */
    atomic_int
        strict_loads;    /* while the thread's capture mode was not relaxed; so are graphs */
    atomic_int homeless; /* calls that need the GPU's context, without it */
    char options[512], source[64];
    int headers;
    /* Of the first launch. */
    char kernel[64];
    unsigned grid[3], threads, shared_bytes;
    bool overtakes;
    unsigned char params[64];
    size_t params_bytes;
} fake_cuda;

/* Exported as fake_cuda_counts: fake_cuda *(void). */
typedef fake_cuda *fake_cuda_get(void);

#endif
