/* threads.h - torch's threads, as many as a request is worth. */
#ifndef OCT_TORCH_THREADS_H
#define OCT_TORCH_THREADS_H

#include "torch/request.h"

/* The workers that a request is divided among: torch's, but no more than have enough to do. */
uint32_t oct_request_threads(const oct_request *request);

/* Runs tasks on so many workers of torch's own pool: there is no second one to compete with. */
octet_exec oct_exec_make(uint32_t threads);

#endif
