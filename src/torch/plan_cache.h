/* plan_cache.h - plans that were made before, for ops that are called again and again. */
#ifndef OCT_TORCH_PLAN_CACHE_H
#define OCT_TORCH_PLAN_CACHE_H

#include "torch/request.h"

#define OCT_CACHED_STRUCTURES 256 /* the most plans without sizes that are cached */
#define OCT_CACHED_PLANS 1024     /* the most bound plans that are cached */

/* The plan of a request, new or cached: the value is the same. A text is parsed and planned
 * once; other sizes of it are only bound. A failure is not cached. The plan does not change
 * until oct_plan_release, whatever other threads do. Any number of threads may call at the same
 * time; none waits for another. */
octet_status oct_plan_get(const octet_plan **out, const oct_request *request, octet_error *err);
void oct_plan_release(const octet_plan *plan);
/* One more release is needed. */
void oct_plan_pin(const octet_plan *plan);

/* Runs a plan of oct_plan_get, as octet_run does. On a GPU the second run makes a list of
 * launches, which is cached with the plan; sizes that occur only once need no list. */
octet_status oct_plan_run(const octet_plan *plan, const octet_memory *memory,
                          const octet_exec *exec, octet_error *err);

/* All plans of a request's text, at any sizes. */
octet_status oct_chain_get(const octet_chain **out, const oct_request *request,
                           octet_error *err);
void oct_chain_release(const octet_chain *chain);

/* The arenas of a plan of oct_plan_get: whether it saves one, and whether it reads those that
 * forward and backward saved. An empty arena counts, too. */
typedef struct oct_plan_arenas {
    bool saves;
    bool restores[2];
} oct_plan_arenas;
const oct_plan_arenas *oct_plan_arenas_of(const octet_plan *plan);

/* How many plans are cached, how many may be, and how often a text was planned. */
typedef struct oct_plan_counts {
    int structures, most_structures;
    int plans, most_plans;
    int prepared; /* plans that have a list of launches */
    long long plannings;
} oct_plan_counts;
oct_plan_counts oct_plan_count(void);

#endif
