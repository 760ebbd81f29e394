/* cuda.h - torch's GPUs: Octet's handle on each, and torch's current stream there. */
#ifndef OCT_TORCH_CUDA_H
#define OCT_TORCH_CUDA_H

#include "torch/api.h"

/* Says where torch's CUDA half lies, and the folders of its NVRTC and cuBLASLt, joined by ':'.
 * Once, before the first op runs; without it ops on a GPU say that torch has no CUDA. */
octet_status oct_torch_cuda_load(const char *path, const char *libraries, octet_error *err);

/* exec's GPU and stream: the current stream that torch has for GPU `index` on this thread. */
octet_status oct_torch_cuda_exec(octet_exec *exec, int index, octet_error *err);

#endif
