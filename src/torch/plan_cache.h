/* plan_cache.h - plans that were made before, for ops that are called again and again. */
#ifndef OCT_TORCH_PLAN_CACHE_H
#define OCT_TORCH_PLAN_CACHE_H

#include "torch/request.h"

#define OCT_CACHED_STRUCTURES 256 /* plans without sizes, remembered at most */
#define OCT_CACHED_PLANS 1024     /* plans at their sizes, likewise */

/* The plan of a request, made or remembered: the same value either way. A text is read and
 * planned once; other sizes of it cost their numbers alone. A failure is not remembered. The
 * plan stays as it is until oct_plan_release, whatever others do meanwhile. Any number of
 * threads may call at once; none ever waits for another. */
octet_status oct_plan_get(const octet_plan **out, const oct_request *request, octet_error *err);
void oct_plan_release(const octet_plan *plan);
/* One more release is needed. */
void oct_plan_pin(const octet_plan *plan);

/* Runs a plan of oct_plan_get, as octet_run does. On a GPU its second run makes a list
 * of launches, which is cached with the plan for later runs; sizes that come once cost no list.
 */
octet_status oct_plan_run(const octet_plan *plan, const octet_memory *memory,
                          const octet_exec *exec, octet_error *err);

/* All plans of a request's text, at whatever sizes. */
octet_status oct_chain_get(const octet_chain **out, const oct_request *request,
                           octet_error *err);
void oct_chain_release(const octet_chain *chain);

/* Blocks that a plan of oct_plan_get has, known since it was made: it saves one, it reads the
 * one that the forward saved, and that the backward saved. An empty block is one, too. */
typedef struct oct_plan_blocks {
    bool saves;
    bool restores[2];
} oct_plan_blocks;
const oct_plan_blocks *oct_plan_blocks_of(const octet_plan *plan);

/* How many are remembered now, how many may be, and how often a text was planned. */
typedef struct oct_plan_counts {
    int structures, most_structures;
    int plans, most_plans;
    int prepared; /* plans of those that have their launches decided */
    long long plannings;
} oct_plan_counts;
oct_plan_counts oct_plan_count(void);

#endif
