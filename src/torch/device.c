/* device.c - one row for each kind of device. No other file of the ops looks at the kind. */
#include "torch/device.h"

#include "torch/cuda.h"

/* ---- the CPU ----------------------------------------------------------------------------- */

static octet_status cpu_device(octet_device *out, int index, octet_error *err) {
    (void)index;
    (void)err;
    *out = (octet_device){OCTET_CPU, 0, 0};
    return OCTET_OK;
}

static octet_status cpu_exec(octet_exec *exec, int index, octet_error *err) {
    (void)exec;
    (void)index;
    (void)err;
    return OCTET_OK;
}

static bool cpu_take(void **out, int index, int64_t bytes) {
    (void)index;
    (void)bytes;
    *out = NULL;
    return false;
}

static void cpu_give_back(void *memory) {
    (void)memory;
}

/* ---- rows -------------------------------------------------------------------------------- */

typedef struct row {
    bool is_host; /* there is only one, without an index, and its memory is the host's */
    octet_status (*device)(octet_device *out, int index, octet_error *err);
    octet_status (*exec)(octet_exec *exec, int index, octet_error *err);
    bool (*take)(void **out, int index, int64_t bytes);
    void (*give_back)(void *memory);
} row;

/* In the order of oct_torch.devices. */
static const row rows[] = {
    [OCTET_CPU] = {true, cpu_device, cpu_exec, cpu_take, cpu_give_back},
    [OCTET_CUDA] = {false, oct_torch_cuda_device, oct_torch_cuda_exec, oct_torch_cuda_take,
                    oct_torch_cuda_give_back},
};

_Static_assert(sizeof rows / sizeof *rows == sizeof oct_torch.devices / sizeof(int32_t),
               "torch has a number for each");

/* A device type without kernels is refused later, when the tensor is checked against its plan.
 */
static const row *row_of_type(int32_t type) {
    const row *found = &rows[OCTET_CPU];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        found = oct_torch.devices[i] == type ? &rows[i] : found;
    }
    return found;
}

static const row *row_of(const octet_device *device) {
    return &rows[device->kind];
}

/* ---- tensors ----------------------------------------------------------------------------- */

octet_status oct_look(oct_tensor_facts *out, oct_torch_tensor *tensor, octet_error *err) {
    int64_t *sizes = NULL, *strides = NULL;
    if (oct_torch.aoti_torch_get_dim(tensor, &out->dim) ||
        oct_torch.aoti_torch_get_sizes(tensor, &sizes) ||
        oct_torch.aoti_torch_get_strides(tensor, &strides) ||
        oct_torch.aoti_torch_get_dtype(tensor, &out->dtype) ||
        oct_torch.aoti_torch_get_device_type(tensor, &out->device) ||
        oct_torch.aoti_torch_get_device_index(tensor, &out->index)) {
        return oct_torch_fail(err, OCTET_DEVICE, "torch cannot say what a tensor is");
    }
    out->sizes = sizes;
    out->strides = strides;
    out->elements = 1;
    for (int64_t i = 0; i < out->dim; i++) {
        out->elements *= sizes[i];
    }
    return OCTET_OK;
}

octet_status oct_tensor_device(octet_device *out, const oct_tensor_facts *of,
                               octet_error *err) {
    return row_of_type(of->device)->device(out, of->index, err);
}

octet_status oct_tensor_exec(octet_exec *out, const oct_tensor_facts *of, octet_error *err) {
    *out = OCTET_EXEC_INIT;
    return row_of_type(of->device)->exec(out, of->index, err);
}

/* ---- devices ----------------------------------------------------------------------------- */

void oct_device_where(int32_t *type, int32_t *index, const octet_device *device) {
    const row *is = row_of(device);
    *type = oct_torch.devices[is - rows];
    *index = is->is_host ? -1 : device->index;
}

bool oct_device_is(const octet_device *device, int32_t type, int32_t index) {
    const row *is = row_of(device);
    return type == oct_torch.devices[is - rows] && (is->is_host || index == device->index);
}

bool oct_device_is_host(const octet_device *device) {
    return row_of(device)->is_host;
}

octet_status oct_device_exec(octet_exec *exec, const octet_device *device, octet_error *err) {
    return row_of(device)->exec(exec, device->index, err);
}

bool oct_device_take(void **out, const octet_device *device, int64_t bytes) {
    return row_of(device)->take(out, device->index, bytes);
}

void oct_device_give_back(const octet_device *device, void *memory) {
    row_of(device)->give_back(memory);
}
