/* replay.h - runs that are repeated on the same memory: captured, and launched as one CUDA
 * graph. */
#ifndef OCT_TORCH_REPLAY_H
#define OCT_TORCH_REPLAY_H

#include "octet.h"
#include "octet/run.h"

#define OCT_GRAPHS 2048 /* the most graphs that are cached; a small GPU may have fewer */

/* A plan of oct_plan_get on memory; then, if not NULL, a state whose scales are updated. */
typedef struct oct_run {
    const octet_plan *plan;
    const octet_memory *memory;
    const octet_delayed *updates;
} oct_run;

/* Runs it. On a GPU the fourth run of the same plan on the same addresses is captured. From
 * then on one driver call launches all its kernels. Launches are most of a small run's host
 * time, and torch's allocator mostly gives each step the addresses of the step before. Kernels,
 * parameters and order are the same as without capture, so results do not change. Kernels are
 * launched one by one on a stream that is being captured, if another thread uses the table, if
 * the table is full, and always if $OCTET_CUDA_REPLAY is 0 or $CUDA_LAUNCH_BLOCKING is set. Any
 * number of threads may call at the same time; none waits for another except to capture. */
octet_status oct_replay_run(const oct_run *run, const octet_exec *exec, octet_error *err);

/* Allows or forbids replays from now on, whatever the environment says. Returns the old
 * setting. */
bool oct_replay_allow(bool allow);

/* How many graphs are cached, how many may be, and how many runs were replays. */
typedef struct oct_replay_counts {
    int graphs, most;
    int64_t replays;
} oct_replay_counts;
oct_replay_counts oct_replay_count(void);

#endif
