/* replay.h - runs that come again on the same memory: captured, and launched as one graph. */
#ifndef OCT_TORCH_REPLAY_H
#define OCT_TORCH_REPLAY_H

#include "octet.h"
#include "octet/run.h"

#define OCT_GRAPHS 2048 /* cached at most; a GPU may have memory for fewer */

/* A plan of oct_plan_get on memory, and then, where it is not NULL, a state whose scales are
 * updated.
 */
typedef struct oct_run {
    const octet_plan *plan;
    const octet_memory *memory;
    const octet_delayed *updates;
} oct_run;

/* Runs it. On a GPU a run of the same plan on the same addresses as three before it is
 * captured, and from then on one call to the driver launches all its kernels: most of a small
 * run's host time is the launches, and torch's allocator gives the tensors of each step where
 * it gave those of the last. Kernels, parameters and order are those of a run that is not
 * captured, so nothing that it computes depends on it. Launched one by one are: runs on a
 * stream that is being captured, those that meet another thread here, those past the bound, and
 * all of them where $OCTET_CUDA_REPLAY is 0 or $CUDA_LAUNCH_BLOCKING is set. Any number of
 * threads may call at once; none waits for another but to capture. */
octet_status oct_replay_run(const oct_run *run, const octet_exec *exec, octet_error *err);

/* Whether runs may be replayed from now on, whatever the environment says; gives what was. */
bool oct_replay_allow(bool allow);

/* How many graphs are cached now, how many may be, and how many runs were one of them. */
typedef struct oct_replay_counts {
    int graphs, most;
    int64_t replays;
} oct_replay_counts;
oct_replay_counts oct_replay_count(void);

#endif
