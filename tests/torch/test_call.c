/* test_call.c - an op on a torch that is none: what it asks of torch, and gives back. */
#define _GNU_SOURCE /* setenv */
#include "torch/cuda.h"
#include "torch/ops.h"
#include "torch/tensor.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"
#include "fake_torch.h"
#include "test.h"

static void begin(void) {
    octet_error err = {OCTET_OK, 0, ""};
    CHECK_OF(fake_torch_begin(&err) == OCTET_OK, err.text);
    CHECK_EQ_INT(setenv("OCTET_CUDA_DRIVER", TEST_FAKE_CUDA, 1), 0);
    CHECK_EQ_INT(setenv("OCTET_CACHE", "", 1), 0);
    CHECK_EQ_INT(oct_torch_cuda_load(NULL, "", NULL), OCTET_OK);
}

static oct_torch_value tensor_of(int64_t rows, int64_t cols, octet_dtype dtype,
                                 octet_device_kind kind) {
    return fake_tensor(dtype, kind, 2, (int64_t[]){rows, cols});
}

/* Quantizes 16 x 32 with its own amax, which is measured in a workspace; gives how many tensors
 * it has made for that. */
static int quantize(octet_device_kind kind, octet_status wanted) {
    octet_error err = {OCTET_OK, 0, ""};
    oct_torch_value stack[3] = {tensor_of(16, 32, OCTET_F32, kind), fake_list(),
                                fake_text("f32 fp8-tensor:e4m3+row")};
    int before = torch.tensors_made;
    octet_status status = oct_op_quantize(stack, &err);
    if (!CHECK_EQ_INT(status, wanted) || status) {
        printf("    %s\n", err.text);
        return 0;
    }
    oct_torch_list *out = (oct_torch_list *)(uintptr_t)stack[0];
    int outputs = (int)out->count, made = torch.tensors_made - before;
    for (size_t i = 0; i < out->count; i++) {
        (void)oct_torch.aoti_torch_delete_tensor_object(
            (oct_torch_tensor *)(uintptr_t)out->items[i]);
    }
    (void)oct_torch.torch_delete_list(out);
    return made - outputs;
}

static fake_cuda *driver(void) {
    fake_cuda *(*state)(void) = NULL;
    void *library = dlopen(TEST_FAKE_CUDA, RTLD_NOW);
    void *found = library ? dlsym(library, "fake_cuda_counts") : NULL;
    memcpy(&state, &found, sizeof found);
    return state ? state() : NULL;
}

static void *open_first(void *arg) {
    octet_exec *exec = arg;
    return oct_torch_cuda_exec(exec, 0, NULL) ? NULL : arg;
}

/* Before any other test, for a GPU stays open. */
TEST(call__threads_that_open_a_gpu_at_once_share_it) {
    enum { THREADS = 6 };
    pthread_t threads[THREADS];
    octet_exec execs[THREADS];
    begin();
    for (int i = 0; i < THREADS; i++) {
        execs[i] = OCTET_EXEC_INIT;
        CHECK_EQ_INT(pthread_create(&threads[i], NULL, open_first, &execs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *good = NULL;
        CHECK(pthread_join(threads[i], &good) == 0 && good == &execs[i]);
        CHECK(execs[i].cuda && execs[i].cuda == execs[0].cuda);
    }
    CHECK_EQ_INT(driver()->retains - driver()->releases, 1);
}

/* torch's wheels have some twenty folders, and site-packages may lie deep. */
TEST(call__folders_of_libraries_may_be_long) {
    char folders[20000];
    octet_error err = {OCTET_OK, 0, ""};
    memset(folders, 'x', sizeof folders);
    folders[0] = '/';
    folders[sizeof folders - 1] = 0;
    begin();
    CHECK_OF(oct_torch_cuda_load(NULL, folders, &err) == OCTET_OK, err.text);
}

TEST(call__a_workspace_on_a_gpu_is_memory_without_a_tensor) {
    begin();
    CHECK_EQ_INT(quantize(OCTET_CUDA, OCTET_OK), 0);
    CHECK(torch.blocks_made == 1 && torch.blocks == 0 && torch.tensors == 0);
}

TEST(call__a_workspace_where_torch_has_no_such_memory_is_a_tensor) {
    begin();
    CHECK_EQ_INT(quantize(OCTET_CPU, OCTET_OK), 1);
    torch.device = 1;
    CHECK_EQ_INT(quantize(OCTET_CUDA, OCTET_OK), 1);
    torch.device = 0;
    torch.no_memory = true;
    CHECK_EQ_INT(quantize(OCTET_CUDA, OCTET_OK), 1);
    CHECK(torch.blocks_made == 0 && torch.tensors == 0);
}

/* Where a kernel of somebody's has failed before, memory is not what is missing. */
TEST(call__why_torch_makes_no_tensor_is_told) {
    static const struct {
        const char *reason;
        octet_status status;
    } cases[] = {
        {"CUDA out of memory. Tried to allocate 20.00 GiB.", OCTET_NO_MEMORY},
        {"DefaultCPUAllocator: can't allocate memory", OCTET_NO_MEMORY},
        {"CUDA error: out of memory", OCTET_NO_MEMORY},
        {"CUDA error: an illegal memory access was encountered", OCTET_DEVICE},
    };
    const octet_device gpu = {OCTET_CUDA, 0, 90};
    const oct_shape shape = {.sizes = {5}, .rank = 1};
    for (int i = 0; i < 8; i++) {
        octet_error err = {OCTET_OK, 0, ""};
        oct_tensors none = {.count = 0};
        begin();
        torch.reason = cases[i % 4].reason;
        if (i >= 4) { /* a torch that does not say */
            oct_torch.torch_exception_get_what_without_backtrace = NULL;
        }
        CHECK_EQ_INT(oct_new_tensor(&none, OCTET_U8, &shape, &gpu, &err),
                     i < 4 ? cases[i].status : OCTET_NO_MEMORY);
        CHECK(strstr(err.text, "torch cannot allocate a u8 tensor of 5") != NULL);
        CHECK_EQ_INT(strstr(err.text, torch.reason) != NULL, i < 4);
    }
}

/* A state and amaxes, or two states, on devices of their own. */
static octet_status update_state(bool record, octet_device_kind a, octet_device_kind b,
                                 octet_error *err) {
    oct_torch_value first = tensor_of(5, 3, OCTET_F32, a);
    oct_torch_value second = tensor_of(record ? 1 : 5, 3, OCTET_F32, b);
    if (record) {
        return oct_op_delayed_record((oct_torch_value[]){first, second}, err);
    }
    oct_torch_value states = fake_list();
    fake_list_add(states, first);
    fake_list_add(states, second);
    oct_torch_value stack[] = {states, fake_text("input delayed:history=4")};
    return oct_op_delayed_update(stack, err);
}

TEST(call__a_state_on_two_devices_is_refused) {
    for (int i = 0; i < 8; i++) {
        octet_device_kind a = i & 1 ? OCTET_CUDA : OCTET_CPU;
        octet_device_kind b = i & 2 ? OCTET_CUDA : OCTET_CPU;
        octet_error err = {OCTET_OK, 0, ""};
        begin();
        octet_status status = update_state(i & 4, a, b, &err);
        CHECK_OF(status == (a == b ? OCTET_OK : OCTET_INVALID), err.text);
        CHECK_EQ_INT(a != b, strstr(err.text, "another device") != NULL);
        CHECK_EQ_INT(torch.tensors, 0);
    }
}

/* A driver that would say something else the second time. */
TEST(call__what_a_gpu_is_is_asked_once) {
    begin();
    CHECK_EQ_INT(quantize(OCTET_CUDA, OCTET_OK), 0);
    if (CHECK(driver() != NULL)) {
        driver()->arch = 80;
        CHECK_EQ_INT(quantize(OCTET_CUDA, OCTET_OK), 0);
        driver()->arch = 90;
    }
    CHECK(torch.blocks_made == 2 && torch.blocks == 0 && torch.tensors == 0);
}

TEST_MAIN(call__threads_that_open_a_gpu_at_once_share_it,
          call__folders_of_libraries_may_be_long,
          call__a_workspace_on_a_gpu_is_memory_without_a_tensor,
          call__a_workspace_where_torch_has_no_such_memory_is_a_tensor,
          call__why_torch_makes_no_tensor_is_told, call__a_state_on_two_devices_is_refused,
          call__what_a_gpu_is_is_asked_once)
