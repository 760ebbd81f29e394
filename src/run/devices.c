/* devices.c - the devices: a row for each kind, and nothing else looks at a kind. */
#include "cpu/target.h"
#include "cuda/target.h"
#include "run/run.h"

static const struct {
    const oct_target *target; /* what planners ask */
    const oct_runner *runner; /* what does it */
} devices[] = {
    [OCTET_CPU] = {&oct_cpu_target, &oct_cpu_runner},
    [OCTET_CUDA] = {&oct_cuda_target, &oct_cuda_runner},
};

static int row_of(const octet_device *device) {
    int rows = (int)(sizeof devices / sizeof devices[0]);
    return device->kind < rows ? device->kind : OCTET_CPU;
}

const oct_target *oct_target_of(const octet_device *device) {
    return devices[row_of(device)].target;
}

const oct_runner *oct_runner_of(const octet_device *device) {
    return devices[row_of(device)].runner;
}

const oct_runner *oct_runner_beside(const octet_exec *exec) {
    return devices[exec && exec->cuda ? OCTET_CUDA : OCTET_CPU].runner;
}
