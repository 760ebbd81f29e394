/* threads.h - torch's threads, for problems that are worth dividing. */
#ifndef OCT_TORCH_THREADS_H
#define OCT_TORCH_THREADS_H

#include "torch/problem.h"

/* The workers that a problem is divided among: torch's, or 1 where waking a second one takes
 * longer than the work. */
uint32_t oct_problem_threads(const oct_problem *problem);

/* Runs tasks on torch's own pool, so that there is no second one to compete with. */
octet_exec oct_exec_make(uint32_t threads);

#endif
