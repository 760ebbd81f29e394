/* recording.h - launches kept as a graph of their own, so that one call launches them all. */
#ifndef OCT_CUDA_RECORDING_H
#define OCT_CUDA_RECORDING_H

#include "octet.h"
#include "octet/run.h"

/* Kernels with their parameters, as CUDA's executable graph. It holds addresses, not memory. */
typedef struct oct_cuda_recording oct_cuda_recording;

/* How many recordings a GPU has memory for: the driver takes some 128 KiB of it for each, and
 * they are to have a 512th. At least one. */
int64_t oct_cuda_recordings(const octet_cuda *cuda);

/* What is to be recorded: it launches on exec's stream, and nowhere else. */
typedef struct oct_cuda_launches {
    octet_status (*launch)(const void *arg, const octet_exec *exec, octet_error *err);
    const void *arg;
} oct_cuda_launches;

/* Keeps what would be launched, and launches nothing. NULL where it cannot: a launch fails, the
 * driver refuses, or there are fills and copies among the launches, which a graph ties to the
 * allocations that it meets. Threads that record on one GPU do so one after the other. */
oct_cuda_recording *oct_cuda_record(const octet_exec *exec, const oct_cuda_launches *launches);

/* Launches all of it on exec's stream, in order after what is there. One thread at a time. */
octet_status oct_cuda_replay(const oct_cuda_recording *recording, const octet_exec *exec,
                             octet_error *err);

/* It may still run. */
void oct_cuda_recording_free(oct_cuda_recording *recording);

/* Whether what is put on exec's stream goes into somebody's graph; also where the driver cannot
 * say. */
bool oct_cuda_is_captured(const octet_exec *exec);

#endif
