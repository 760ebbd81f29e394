/* threads.h - how many of torch's threads a request uses. */
#ifndef OCT_TORCH_THREADS_H
#define OCT_TORCH_THREADS_H

#include "torch/request.h"

/* The number of workers for a request: torch's, but only as many as have enough work. */
uint32_t oct_request_threads(const oct_request *request);

/* Runs tasks on so many workers of torch's own pool: there is no second one to compete with. */
octet_exec oct_exec_make(uint32_t threads);

#endif
