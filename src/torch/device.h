/* device.h - maps torch's devices to Octet's, and says how ops run there. */
#ifndef OCT_TORCH_DEVICE_H
#define OCT_TORCH_DEVICE_H

#include "octet/run.h"
#include "torch/api.h"

/* Everything that ops ask of a tensor except its address. */
typedef struct oct_tensor_facts {
    int64_t dim, elements;
    const int64_t *sizes, *strides; /* torch's memory, valid as long as the tensor lives */
    int32_t dtype;                  /* torch's numbers */
    int32_t device, index;
} oct_tensor_facts;

octet_status oct_look(oct_tensor_facts *out, oct_torch_tensor *tensor, octet_error *err);
/* The device of a tensor, and the exec to run there. A CPU's exec is serial. */
octet_status oct_tensor_device(octet_device *out, const oct_tensor_facts *of, octet_error *err);
octet_status oct_tensor_exec(octet_exec *out, const oct_tensor_facts *of, octet_error *err);

/* What torch needs to make a tensor on a device. */
void oct_device_where(int32_t *type, int32_t *index, const octet_device *device);
/* Whether a tensor of this type and index is on the device. */
bool oct_device_is(const octet_device *device, int32_t type, int32_t index);
/* Whether its memory is host memory, which can be written without a launch. */
bool oct_device_is_host(const octet_device *device);
/* If the device is a GPU, sets it and torch's current stream in exec. */
octet_status oct_device_exec(octet_exec *exec, const octet_device *device, octet_error *err);
/* Memory without a tensor around it, if that is cheaper. False: use a tensor. Give back what
 * was taken; NULL is allowed. */
bool oct_device_take(void **out, const octet_device *device, int64_t bytes);
void oct_device_give_back(const octet_device *device, void *memory);

#endif
