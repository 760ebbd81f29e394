/* fake_torch.c - tensors, lists and texts in plain memory; any call may be told to fail. */
#include "fake_torch.h"

#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

#define X(name, parameters) EXPORT int32_t name parameters;
OCT_TORCH_CALLS(X)
#undef X
#define X(name) EXPORT int32_t name(void);
OCT_TORCH_CODES(X)
#undef X
EXPORT int32_t torch_library_def_with_tags(oct_torch_library *library, const char *schema,
                                           const int32_t *tags, int32_t count);
EXPORT int32_t torch_tag_pt2_compliant_tag(void);
EXPORT const char *torch_exception_get_what_without_backtrace(void);
EXPORT int32_t aoti_torch_get_current_cuda_stream(int32_t index, void **stream);
EXPORT int32_t aoti_torch_get_current_device_index(int32_t *index);
EXPORT int32_t aoti_torch_cuda_caching_allocator_raw_alloc(uint64_t bytes, void **out);
EXPORT int32_t aoti_torch_cuda_caching_allocator_raw_delete(void *block);

fake_torch torch;

/* The first line of every function. */
#define MAY_FAIL                                                                               \
    if (fails(__func__)) {                                                                     \
        return 1;                                                                              \
    }

static bool fails(const char *name) {
    if (++torch.calls != torch.fail_at) {
        return false;
    }
    torch.failed = name;
    return true;
}

octet_status fake_torch_begin(octet_error *err) {
    memset(&torch, 0, sizeof torch);
    torch.threads = 1;
    return oct_torch_load(NULL, err);
}

/* Not by calloc: a test may let that fail for the ops. */
static void *zeroed(size_t size) {
    void *made = aligned_alloc(16, (size + 15) / 16 * 16);
    return memset(made, 0, size);
}

/* ---- tensors ----------------------------------------------------------------------------- */

/* Those that are alive. */
static oct_torch_tensor *first;

static void drop_tensor(oct_torch_tensor *tensor) {
    if (--tensor->handles == 0) {
        oct_torch_tensor **at = &first;
        while (*at != tensor) {
            at = &(*at)->next;
        }
        *at = tensor->next;
        torch.tensors--;
        free(tensor->data);
        free(tensor);
    }
}

void fake_torch_drop_all(void) {
    while (first) {
        first->handles = 1;
        drop_tensor(first);
    }
}

/* What cannot be deleted is gone all the same. */
int32_t aoti_torch_delete_tensor_object(oct_torch_tensor *tensor) {
    drop_tensor(tensor);
    MAY_FAIL
    return 0;
}

int32_t aoti_torch_new_tensor_handle(oct_torch_tensor *tensor, oct_torch_tensor **out) {
    MAY_FAIL
    tensor->handles++;
    *out = tensor;
    return 0;
}

int32_t aoti_torch_get_data_ptr(oct_torch_tensor *tensor, void **data) {
    MAY_FAIL
    *data = tensor->data;
    return 0;
}

int32_t aoti_torch_get_dim(oct_torch_tensor *tensor, int64_t *dim) {
    MAY_FAIL
    *dim = tensor->dim;
    return 0;
}

int32_t aoti_torch_get_sizes(oct_torch_tensor *tensor, int64_t **sizes) {
    MAY_FAIL
    *sizes = tensor->sizes;
    return 0;
}

int32_t aoti_torch_get_strides(oct_torch_tensor *tensor, int64_t **strides) {
    MAY_FAIL
    *strides = tensor->strides;
    return 0;
}

int32_t aoti_torch_get_dtype(oct_torch_tensor *tensor, int32_t *dtype) {
    MAY_FAIL
    *dtype = tensor->dtype;
    return 0;
}

int32_t aoti_torch_get_device_type(oct_torch_tensor *tensor, int32_t *kind) {
    MAY_FAIL
    *kind = tensor->kind;
    return 0;
}

int32_t aoti_torch_get_device_index(oct_torch_tensor *tensor, int32_t *index) {
    MAY_FAIL
    *index = tensor->kind == OCTET_CUDA ? 0 : -1;
    return 0;
}

int64_t fake_tensor_bytes(const oct_torch_tensor *tensor) {
    int64_t bytes = octet_dtype_bits((octet_dtype)tensor->dtype) / 8;
    for (int64_t i = 0; i < tensor->dim; i++) {
        bytes *= tensor->sizes[i];
    }
    return bytes;
}

static oct_torch_tensor *new_tensor(int64_t dim, const int64_t *sizes, int32_t dtype,
                                    int32_t kind) {
    oct_torch_tensor *tensor = zeroed(sizeof *tensor);
    int64_t stride = 1;
    tensor->handles = 1;
    tensor->dim = dim;
    tensor->dtype = dtype;
    tensor->kind = kind;
    for (int64_t i = dim - 1; i >= 0; i--) {
        tensor->sizes[i] = sizes[i];
        tensor->strides[i] = stride;
        stride *= sizes[i];
    }
    tensor->data = aligned_alloc(256, (size_t)(fake_tensor_bytes(tensor) + 511) / 256 * 256);
    tensor->next = first;
    first = tensor;
    torch.tensors++;
    torch.tensors_made++;
    return tensor;
}

/* Nobody here asks for other strides than those of a dense tensor. */
int32_t aoti_torch_empty_strided(int64_t dim, const int64_t *sizes, const int64_t *strides,
                                 int32_t dtype, int32_t kind, int32_t index,
                                 oct_torch_tensor **out) {
    MAY_FAIL(void) strides;
    (void)index;
    if (torch.reason) {
        return 1;
    }
    *out = new_tensor(dim, sizes, dtype, kind);
    memset((*out)->data, 0xa5, (size_t)fake_tensor_bytes(*out)); /* the same in every run */
    return 0;
}

/* The element of a dense tensor that is the i-th in order; of a strided one, where it lies. */
static int64_t place_of(const oct_torch_tensor *tensor, int64_t i) {
    int64_t at = 0;
    for (int64_t axis = tensor->dim - 1; axis >= 0; axis--) {
        at += i % tensor->sizes[axis] * tensor->strides[axis];
        i /= tensor->sizes[axis];
    }
    return at;
}

int32_t aoti_torch_copy_(oct_torch_tensor *to, oct_torch_tensor *from, int32_t later) {
    MAY_FAIL(void) later;
    int64_t size = octet_dtype_bits((octet_dtype)to->dtype) / 8;
    for (int64_t i = 0; i < fake_tensor_bytes(to) / size; i++) {
        memcpy((char *)to->data + place_of(to, i) * size,
               (char *)from->data + place_of(from, i) * size, (size_t)size);
    }
    return 0;
}

/* 0.5, 0.625, ...; bytes of quantized data are small codes. */
oct_torch_value fake_tensor(octet_dtype dtype, octet_device_kind kind, int64_t dim,
                            const int64_t *sizes) {
    static const uint16_t bf16[] = {0x3f00, 0x3f20, 0xbf40, 0x3f60, 0xbf80, 0x3fa0, 0x3fc0};
    oct_torch_tensor *tensor = new_tensor(dim, sizes, (int32_t)dtype, (int32_t)kind);
    int64_t size = octet_dtype_bits(dtype) / 8;
    memset(tensor->data, 0, (size_t)fake_tensor_bytes(tensor));
    for (int64_t i = 0; i < fake_tensor_bytes(tensor) / size; i++) {
        uint32_t word = (uint32_t)bf16[i % 7] << 16;
        char *at = (char *)tensor->data + i * size;
        memcpy(at, dtype == OCTET_F32 ? (char *)&word : (const char *)&bf16[i % 7],
               (size_t)(size < 4 ? size : 4));
    }
    return (uintptr_t)tensor;
}

/* ---- lists and texts --------------------------------------------------------------------- */

int32_t torch_new_list_reserve_size(size_t count, oct_torch_list **out) {
    MAY_FAIL(void) count;
    *out = (oct_torch_list *)(uintptr_t)fake_list();
    return 0;
}

oct_torch_value fake_list(void) {
    oct_torch_list *list = zeroed(sizeof *list);
    torch.lists++;
    return (uintptr_t)list;
}

void fake_list_add(oct_torch_value list, oct_torch_value tensor) {
    oct_torch_list *to = (oct_torch_list *)(uintptr_t)list;
    to->items[to->count++] = tensor;
}

oct_torch_value fake_sizes(const int64_t *sizes, int count) {
    oct_torch_value list = fake_list();
    for (int i = 0; i < count; i++) {
        fake_list_add(list, (oct_torch_value)sizes[i]);
    }
    return list;
}

int32_t torch_list_size(oct_torch_list *list, size_t *count) {
    MAY_FAIL
    *count = list->count;
    return 0;
}

int32_t torch_list_get_item(oct_torch_list *list, size_t at, oct_torch_value *value) {
    MAY_FAIL
    *value = list->items[at];
    return 0;
}

int32_t torch_list_push_back(oct_torch_list *list, oct_torch_value value) {
    MAY_FAIL
    fake_list_add((uintptr_t)list, value);
    return 0;
}

/* As torch's: what the values mean stays. */
int32_t torch_delete_list(oct_torch_list *list) {
    free(list);
    torch.lists--;
    MAY_FAIL
    return 0;
}

oct_torch_value fake_text(const char *text) {
    oct_torch_string *string = zeroed(sizeof *string);
    string->text = text;
    string->length = strlen(text);
    torch.strings++;
    return (uintptr_t)string;
}

int32_t torch_string_length(oct_torch_string *string, size_t *length) {
    MAY_FAIL
    *length = string->length;
    return 0;
}

int32_t torch_string_c_str(oct_torch_string *string, const char **text) {
    MAY_FAIL
    *text = string->text;
    return 0;
}

int32_t torch_delete_string(oct_torch_string *string) {
    free(string);
    torch.strings--;
    MAY_FAIL
    return 0;
}

/* ---- threads, words, GPUs ---------------------------------------------------------------- */

int32_t torch_get_num_threads(uint32_t *count) {
    MAY_FAIL
    *count = torch.threads;
    return 0;
}

int32_t torch_parallel_for(int64_t begin, int64_t end, int64_t grain, oct_torch_task task,
                           void *arg) {
    MAY_FAIL
    for (int64_t at = begin; at < end; at += grain) {
        task(at, at + grain < end ? at + grain : end, arg);
    }
    return 0;
}

const char *torch_exception_get_what_without_backtrace(void) {
    return torch.reason;
}

int32_t aoti_torch_get_current_cuda_stream(int32_t index, void **stream) {
    MAY_FAIL
    *stream = NULL;
    return index;
}

int32_t aoti_torch_get_current_device_index(int32_t *index) {
    MAY_FAIL
    *index = torch.device;
    return 0;
}

int32_t aoti_torch_cuda_caching_allocator_raw_alloc(uint64_t bytes, void **out) {
    MAY_FAIL
    if (torch.no_memory) {
        return 1;
    }
    torch.blocks++;
    torch.blocks_made++;
    *out = aligned_alloc(256, (size_t)(bytes + 255) / 256 * 256);
    return 0;
}

int32_t aoti_torch_cuda_caching_allocator_raw_delete(void *block) {
    torch.blocks--;
    free(block);
    MAY_FAIL
    return 0;
}

/* ---- registration ------------------------------------------------------------------------ */

int32_t aoti_torch_library_init_def(const char *name, const char *file, uint32_t line,
                                    oct_torch_library **out) {
    MAY_FAIL(void) name;
    (void)file;
    (void)line;
    *out = NULL;
    return 0;
}

int32_t aoti_torch_library_init_impl(const char *name, const char *device, const char *file,
                                     uint32_t line, oct_torch_library **out) {
    MAY_FAIL(void) name;
    (void)device;
    (void)file;
    (void)line;
    *out = NULL;
    return 0;
}

int32_t aoti_torch_library_def(oct_torch_library *library, const char *schema) {
    MAY_FAIL(void) library;
    torch.defined += strchr(schema, '(') != NULL;
    return 0;
}

int32_t torch_library_def_with_tags(oct_torch_library *library, const char *schema,
                                    const int32_t *tags, int32_t count) {
    MAY_FAIL(void) library;
    torch.defined += strchr(schema, '(') != NULL && count == 1 && *tags == 77;
    return 0;
}

int32_t torch_tag_pt2_compliant_tag(void) {
    return 77;
}

int32_t torch_library_impl(oct_torch_library *library, const char *name,
                           oct_torch_kernel kernel, uint64_t abi) {
    MAY_FAIL(void) library;
    torch.implemented += *name && kernel && abi == OCT_TORCH_ABI;
    return 0;
}

int32_t aoti_torch_dtype_float32(void) {
    return OCTET_F32;
}

int32_t aoti_torch_dtype_bfloat16(void) {
    return OCTET_BF16;
}

int32_t aoti_torch_dtype_float16(void) {
    return OCTET_F16;
}

int32_t aoti_torch_dtype_uint8(void) {
    return OCTET_U8;
}

int32_t aoti_torch_dtype_int64(void) {
    return OCTET_I64;
}

int32_t aoti_torch_device_type_cpu(void) {
    return OCTET_CPU;
}

int32_t aoti_torch_device_type_cuda(void) {
    return OCTET_CUDA;
}
