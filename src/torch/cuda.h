/* cuda.h - torch's GPUs: Octet's handle on each, torch's current stream and memory there. */
#ifndef OCT_TORCH_CUDA_H
#define OCT_TORCH_CUDA_H

#include "torch/api.h"

/* Sets the path of libtorch_cuda (NULL: it is linked into the program), and the folders of its
 * NVRTC and cuBLASLt, joined by ':'. Call it once, before the first op runs. Without it, ops on
 * a GPU fail with the message that torch has no CUDA. */
octet_status oct_torch_cuda_load(const char *path, const char *libraries, octet_error *err);

/* The octet_device of GPU `index`. The driver is asked once for each GPU. */
octet_status oct_torch_cuda_device(octet_device *out, int index, octet_error *err);

/* Sets exec's GPU and stream: torch's current stream of GPU `index` on this thread. */
octet_status oct_torch_cuda_exec(octet_exec *exec, int index, octet_error *err);

/* Memory on GPU `index` for work on its current stream. It comes from torch's caching
 * allocator, without a tensor around it: making the tensor costs more than the memory. False:
 * use a tensor instead, because this torch has no such function, the GPU is not the thread's
 * current one, or no memory is left. */
bool oct_torch_cuda_take(void **out, int index, int64_t bytes);
void oct_torch_cuda_give_back(void *memory);

/* How many cuBLASLt algorithms are cached for all GPUs in use, and in *most how many may be;
 * without a GPU, the limit of one. */
int oct_torch_cuda_algorithms(int *most);

#endif
