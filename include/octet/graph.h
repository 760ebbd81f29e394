/* graph.h - runs on a GPU captured as one graph, for memory that stays where it is. */
#ifndef OCTET_GRAPH_H
#define OCTET_GRAPH_H

#include "octet/run.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What some runs launch, captured so that one call to the driver launches all of it: most of a
 * small run's host time is its launches. It is CUDA's executable graph of the same kernels with
 * the same parameters in the same order. It has addresses and no memory, so it may be launched
 * as long as the memory of its runs is there, or other memory in the same place. The driver
 * takes some 128 KiB of the GPU for one. */
typedef struct octet_graph octet_graph;

/* The runs: octet_run and what else takes an exec, with this one, whose stream is a hidden one.
 * Called once. */
typedef octet_status (*octet_runs)(const void *arg, const octet_exec *exec, octet_error *err);

/* Captures what the runs would launch on exec's GPU; nothing runs. Fails as they do, as CUDA
 * does, and with OCTET_UNSUPPORTED where they launch nothing, or fills and copies, which a
 * graph ties to the allocations that it meets. Other streams may be captured meanwhile. Threads
 * that capture on one GPU do so one after the other. Allocates. */
OCTET_API OCTET_CHECKED octet_status octet_capture(octet_graph **out, octet_runs runs,
                                                   const void *arg, const octet_exec *exec,
                                                   octet_error *err);
/* Launches it all on exec's stream, after what is there; a stream that is being captured does
 * not take it. One thread at a time. */
OCTET_API OCTET_CHECKED octet_status octet_replay(const octet_graph *graph,
                                                  const octet_exec *exec, octet_error *err);
/* It may still be running. Before its GPU is closed. NULL is allowed. */
OCTET_API void octet_graph_free(octet_graph *graph);

/* Whether what is put on exec's stream goes into somebody's graph; also where the driver cannot
 * say. False without a GPU. */
OCTET_API bool octet_is_captured(const octet_exec *exec);
/* How many graphs fit a 512th of a GPU's memory; at least one. A good bound for who caches them
 * by the addresses that come. */
OCTET_API int64_t octet_cuda_graphs(const octet_cuda *cuda);

#ifdef __cplusplus
}
#endif

#endif
