/* api.h - torch's stable C functions: declared by hand, found in the loaded libtorch. */
#ifndef OCT_TORCH_API_H
#define OCT_TORCH_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "octet.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the stable ABI that Octet uses: torch 2.10. */
#define OCT_TORCH_ABI ((uint64_t)2 << 56 | (uint64_t)10 << 48)

/* Handles are pointers to torch's own objects; a value on an op's stack is 64 bits: a handle,
 * or the low bytes of a number. */
typedef struct oct_torch_tensor oct_torch_tensor;
typedef struct oct_torch_list oct_torch_list;
typedef struct oct_torch_string oct_torch_string;
typedef struct oct_torch_library oct_torch_library;
typedef uint64_t oct_torch_value;
typedef void (*oct_torch_kernel)(oct_torch_value *stack, uint64_t inputs, uint64_t outputs);
typedef void (*oct_torch_task)(int64_t begin, int64_t end, void *arg);
typedef void (*oct_torch_set_error)(octet_status status, const char *text);

/* X(name, parameters): each returns 0 on success. All are in every torch from 2.10 on; those of
 * the first group came with 2.9 or earlier, those that begin with torch_ with 2.10. */
#define OCT_TORCH_CALLS(X)                                                                     \
    X(aoti_torch_library_init_def,                                                             \
      (const char *, const char *, uint32_t, oct_torch_library **))                            \
    X(aoti_torch_library_init_impl,                                                            \
      (const char *, const char *, const char *, uint32_t, oct_torch_library **))              \
    X(aoti_torch_library_def, (oct_torch_library *, const char *))                             \
    X(aoti_torch_delete_tensor_object, (oct_torch_tensor *))                                   \
    X(aoti_torch_new_tensor_handle, (oct_torch_tensor *, oct_torch_tensor **))                 \
    X(aoti_torch_get_data_ptr, (oct_torch_tensor *, void **))                                  \
    X(aoti_torch_get_dim, (oct_torch_tensor *, int64_t *))                                     \
    X(aoti_torch_get_sizes, (oct_torch_tensor *, int64_t **))                                  \
    X(aoti_torch_get_strides, (oct_torch_tensor *, int64_t **))                                \
    X(aoti_torch_get_dtype, (oct_torch_tensor *, int32_t *))                                   \
    X(aoti_torch_get_device_type, (oct_torch_tensor *, int32_t *))                             \
    X(aoti_torch_get_device_index, (oct_torch_tensor *, int32_t *))                            \
    X(aoti_torch_empty_strided, (int64_t, const int64_t *, const int64_t *, int32_t, int32_t,  \
                                 int32_t, oct_torch_tensor **))                                \
    X(aoti_torch_copy_, (oct_torch_tensor *, oct_torch_tensor *, int32_t))                     \
    X(torch_library_impl, (oct_torch_library *, const char *, oct_torch_kernel, uint64_t))     \
    X(torch_new_list_reserve_size, (size_t, oct_torch_list **))                                \
    X(torch_list_size, (oct_torch_list *, size_t *))                                           \
    X(torch_list_get_item, (oct_torch_list *, size_t, oct_torch_value *))                      \
    X(torch_list_push_back, (oct_torch_list *, oct_torch_value))                               \
    X(torch_delete_list, (oct_torch_list *))                                                   \
    X(torch_string_length, (oct_torch_string *, size_t *))                                     \
    X(torch_string_c_str, (oct_torch_string *, const char **))                                 \
    X(torch_delete_string, (oct_torch_string *))                                               \
    X(torch_get_num_threads, (uint32_t *))                                                     \
    X(torch_parallel_for, (int64_t, int64_t, int64_t, oct_torch_task, void *))

/* X(name): torch's number for a dtype or a device type. */
#define OCT_TORCH_CODES(X)                                                                     \
    X(aoti_torch_dtype_float32)                                                                \
    X(aoti_torch_dtype_bfloat16)                                                               \
    X(aoti_torch_dtype_float16)                                                                \
    X(aoti_torch_dtype_uint8)                                                                  \
    X(aoti_torch_dtype_int64)                                                                  \
    X(aoti_torch_device_type_cpu)                                                              \
    X(aoti_torch_device_type_cuda)

typedef struct oct_torch_functions {
#define X(name, parameters) int32_t(*name) parameters;
    OCT_TORCH_CALLS(X)
#undef X
#define X(name) int32_t (*name)(void);
    OCT_TORCH_CODES(X)
#undef X
    /* Since 2.12; NULL before. */
    int32_t (*torch_library_def_with_tags)(oct_torch_library *, const char *, const int32_t *,
                                           int32_t);
    int32_t (*torch_tag_pt2_compliant_tag)(void);
    /* The text of this thread's last exception; NULL if torch is older. */
    const char *(*torch_exception_get_what_without_backtrace)(void);
    /* Makes an op's failure Python's current error. Called with the GIL. */
    oct_torch_set_error set_python_error;
    int32_t dtypes[OCTET_DTYPES]; /* torch's numbers; -1: torch has none that Octet uses */
    int32_t devices[2];           /* by octet_device_kind */
} oct_torch_functions;

/* Set once, by oct_torch_register, before the first op exists; read-only from then on. */
extern oct_torch_functions oct_torch;

/* Finds every function in the libtorch at `path`, which is loaded already. */
octet_status oct_torch_load(const char *path, octet_error *err);

/* Writes a failure with its text, printf-style, and returns its status. */
octet_status oct_torch_fail(octet_error *err, octet_status status, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;

#ifdef __cplusplus
}
#endif

#endif
