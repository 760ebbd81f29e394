/* cuda.h - torch's GPUs: Octet's handle on each, torch's current stream and memory there. */
#ifndef OCT_TORCH_CUDA_H
#define OCT_TORCH_CUDA_H

#include "torch/api.h"

/* Says where torch's CUDA half lies (NULL: in the program itself), and the folders of its NVRTC
 * and cuBLASLt, joined by ':'. Once, before the first op runs; without it ops on a GPU say that
 * torch has no CUDA. */
octet_status oct_torch_cuda_load(const char *path, const char *libraries, octet_error *err);

/* GPU `index` as plans name it. The driver is asked once for each. */
octet_status oct_torch_cuda_device(octet_device *out, int index, octet_error *err);

/* exec's GPU and stream: the current stream that torch has for GPU `index` on this thread. */
octet_status oct_torch_cuda_exec(octet_exec *exec, int index, octet_error *err);

/* Memory on GPU `index` for work on its current stream, from the allocator of torch's tensors
 * but without a tensor around it, which costs more than the memory. False: it has to be a
 * tensor, since this torch cannot, the GPU is not the thread's current one, or none is left. */
bool oct_torch_cuda_take(void **out, int index, int64_t bytes);
void oct_torch_cuda_give_back(void *memory);

/* Algorithms of cuBLASLt that all GPUs in use remember, and how many they may; without a GPU
 * that is one's bound. */
int oct_torch_cuda_algorithms(int *most);

#endif
