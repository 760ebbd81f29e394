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
#include "test.h"

#define EXPORT __attribute__((visibility("default")))

/* ---- a torch ---------------------------------------------------------------------------- */

struct oct_torch_tensor {
    int64_t dim, sizes[4], strides[4];
    int32_t dtype, kind;
    int handles; /* a list holds one */
    void *data;
};

struct oct_torch_list {
    oct_torch_value items[8];
    size_t count;
};

struct oct_torch_string {
    const char *text;
};

static struct {
    int tensors, tensors_made; /* alive, and ever */
    int blocks, blocks_made;
    int32_t device;
    bool no_memory;
    const char *reason; /* why no tensor can be made; NULL: it can */
} torch;

static int32_t delete_tensor(oct_torch_tensor *tensor) {
    if (--tensor->handles) {
        return 0;
    }
    torch.tensors--;
    free(tensor->data);
    free(tensor);
    return 0;
}

static int32_t get_data_ptr(oct_torch_tensor *tensor, void **data) {
    *data = tensor->data;
    return 0;
}

static int32_t get_dim(oct_torch_tensor *tensor, int64_t *dim) {
    *dim = tensor->dim;
    return 0;
}

static int32_t get_sizes(oct_torch_tensor *tensor, int64_t **sizes) {
    *sizes = tensor->sizes;
    return 0;
}

static int32_t get_strides(oct_torch_tensor *tensor, int64_t **strides) {
    *strides = tensor->strides;
    return 0;
}

static int32_t get_dtype(oct_torch_tensor *tensor, int32_t *dtype) {
    *dtype = tensor->dtype;
    return 0;
}

static int32_t get_device_type(oct_torch_tensor *tensor, int32_t *kind) {
    *kind = tensor->kind;
    return 0;
}

static int32_t get_device_index(oct_torch_tensor *tensor, int32_t *index) {
    *index = tensor->kind == OCTET_CUDA ? 0 : -1;
    return 0;
}

static int32_t empty_strided(int64_t dim, const int64_t *sizes, const int64_t *strides,
                             int32_t dtype, int32_t kind, int32_t index,
                             oct_torch_tensor **out) {
    oct_torch_tensor *tensor = torch.reason ? NULL : calloc(1, sizeof *tensor);
    int64_t bytes = octet_dtype_bits((octet_dtype)dtype) / 8;
    (void)index;
    if (!tensor) {
        return 1;
    }
    tensor->handles = 1;
    tensor->dim = dim;
    tensor->dtype = dtype;
    tensor->kind = kind;
    for (int64_t i = 0; i < dim; i++) {
        tensor->sizes[i] = sizes[i];
        tensor->strides[i] = strides[i];
        bytes *= sizes[i];
    }
    tensor->data = aligned_alloc(256, (size_t)(bytes + 255) / 256 * 256 + 256);
    torch.tensors++;
    torch.tensors_made++;
    *out = tensor;
    return 0;
}

static int32_t new_list(size_t count, oct_torch_list **out) {
    (void)count;
    *out = calloc(1, sizeof **out);
    return 0;
}

static int32_t list_size(oct_torch_list *list, size_t *count) {
    *count = list->count;
    return 0;
}

/* Lists hold tensors only. */
static int32_t list_get(oct_torch_list *list, size_t at, oct_torch_value *value) {
    *value = list->items[at];
    ((oct_torch_tensor *)(uintptr_t)*value)->handles++;
    return 0;
}

static int32_t list_push(oct_torch_list *list, oct_torch_value value) {
    list->items[list->count++] = value;
    return 0;
}

static int32_t delete_list(oct_torch_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        (void)delete_tensor((oct_torch_tensor *)(uintptr_t)list->items[i]);
    }
    free(list);
    return 0;
}

static int32_t string_length(oct_torch_string *string, size_t *length) {
    *length = strlen(string->text);
    return 0;
}

static int32_t string_text(oct_torch_string *string, const char **text) {
    *text = string->text;
    return 0;
}

static int32_t delete_string(oct_torch_string *string) {
    free(string);
    return 0;
}

static int32_t num_threads(uint32_t *count) {
    *count = 1;
    return 0;
}

static const char *exception(void) {
    return torch.reason;
}

EXPORT int32_t aoti_torch_get_current_cuda_stream(int32_t index, void **stream);
EXPORT int32_t aoti_torch_get_current_cuda_stream(int32_t index, void **stream) {
    *stream = NULL;
    return index;
}

EXPORT int32_t aoti_torch_get_current_device_index(int32_t *index);
EXPORT int32_t aoti_torch_get_current_device_index(int32_t *index) {
    *index = torch.device;
    return 0;
}

EXPORT int32_t aoti_torch_cuda_caching_allocator_raw_alloc(uint64_t bytes, void **out);
EXPORT int32_t aoti_torch_cuda_caching_allocator_raw_alloc(uint64_t bytes, void **out) {
    if (torch.no_memory) {
        return 1;
    }
    torch.blocks++;
    torch.blocks_made++;
    *out = aligned_alloc(256, (size_t)(bytes + 255) / 256 * 256);
    return 0;
}

EXPORT int32_t aoti_torch_cuda_caching_allocator_raw_delete(void *block);
EXPORT int32_t aoti_torch_cuda_caching_allocator_raw_delete(void *block) {
    torch.blocks--;
    free(block);
    return 0;
}

/* dtypes and devices have Octet's own numbers. */
static void begin(void) {
    oct_torch_functions *f = &oct_torch;
    memset(&torch, 0, sizeof torch);
    f->aoti_torch_delete_tensor_object = delete_tensor;
    f->aoti_torch_get_data_ptr = get_data_ptr;
    f->aoti_torch_get_dim = get_dim;
    f->aoti_torch_get_sizes = get_sizes;
    f->aoti_torch_get_strides = get_strides;
    f->aoti_torch_get_dtype = get_dtype;
    f->aoti_torch_get_device_type = get_device_type;
    f->aoti_torch_get_device_index = get_device_index;
    f->aoti_torch_empty_strided = empty_strided;
    f->torch_new_list_reserve_size = new_list;
    f->torch_list_size = list_size;
    f->torch_list_get_item = list_get;
    f->torch_list_push_back = list_push;
    f->torch_delete_list = delete_list;
    f->torch_string_length = string_length;
    f->torch_string_c_str = string_text;
    f->torch_delete_string = delete_string;
    f->torch_get_num_threads = num_threads;
    f->torch_exception_get_what_without_backtrace = exception;
    for (int i = 0; i < OCTET_DTYPES; i++) {
        f->dtypes[i] = i;
    }
    f->devices[OCTET_CPU] = OCTET_CPU;
    f->devices[OCTET_CUDA] = OCTET_CUDA;
    CHECK_EQ_INT(setenv("OCTET_CUDA_DRIVER", TEST_FAKE_CUDA, 1), 0);
    CHECK_EQ_INT(setenv("OCTET_CACHE", "", 1), 0);
    CHECK_EQ_INT(oct_torch_cuda_load(NULL, "", NULL), OCTET_OK);
}

/* ---- its ops ---------------------------------------------------------------------------- */

static oct_torch_value tensor_of(int64_t rows, int64_t cols, octet_dtype dtype,
                                 octet_device_kind kind) {
    oct_torch_tensor *tensor = NULL;
    (void)empty_strided(2, (int64_t[]){rows, cols}, (int64_t[]){cols, 1}, (int32_t)dtype,
                        (int32_t)kind, 0, &tensor);
    memset(tensor->data, 0, (size_t)(rows * cols * octet_dtype_bits(dtype) / 8));
    return (uintptr_t)tensor;
}

static oct_torch_value text_of(const char *text) {
    oct_torch_string *string = calloc(1, sizeof *string);
    string->text = text;
    return (uintptr_t)string;
}

/* Quantizes 16 x 32 with its own amax, which is measured in a workspace; gives how many tensors
 * it has made for that. */
static int quantize(octet_device_kind kind, octet_status wanted) {
    oct_torch_list *live = NULL;
    octet_error err = {OCTET_OK, 0, ""};
    (void)new_list(0, &live);
    oct_torch_value stack[3] = {tensor_of(16, 32, OCTET_F32, kind), (uintptr_t)live,
                                text_of("f32 fp8-tensor:e4m3+row")};
    int before = torch.tensors_made;
    octet_status status = oct_op_quantize(stack, &err);
    if (!CHECK_EQ_INT(status, wanted) || status) {
        printf("    %s\n", err.text);
        return 0;
    }
    oct_torch_list *out = (oct_torch_list *)(uintptr_t)stack[0];
    int outputs = (int)out->count, made = torch.tensors_made - before;
    for (size_t i = 0; i < out->count; i++) {
        (void)delete_tensor((oct_torch_tensor *)(uintptr_t)out->items[i]);
    }
    free(out);
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

static oct_torch_value list_of(oct_torch_value item) {
    oct_torch_list *list = NULL;
    (void)new_list(1, &list);
    (void)list_push(list, item);
    return (uintptr_t)list;
}

/* History and amax, or scale and history, on devices of their own. */
static octet_status update_state(bool record, octet_device_kind a, octet_device_kind b,
                                 octet_error *err) {
    oct_torch_value first = tensor_of(record ? 4 : 1, 3, OCTET_F32, a);
    oct_torch_value second = tensor_of(record ? 1 : 4, 3, OCTET_F32, b);
    if (record) {
        return oct_op_delayed_record((oct_torch_value[]){first, second}, err);
    }
    oct_torch_value states = list_of(first);
    (void)list_push((oct_torch_list *)(uintptr_t)states, second);
    oct_torch_value stack[] = {states, text_of("input delayed:history=4")};
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
