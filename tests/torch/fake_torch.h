/* fake_torch.h - a torch that is none: its functions by their names, which the program exports,
 * so that the ops find them as they find torch's. */
#ifndef OCTET_TEST_TORCH_FAKE_TORCH_H
#define OCTET_TEST_TORCH_FAKE_TORCH_H

#include "torch/api.h"

/* dtypes and devices have Octet's own numbers. */
struct oct_torch_tensor {
    int64_t dim, sizes[OCTET_MAX_RANK + 1], strides[OCTET_MAX_RANK + 1];
    int32_t dtype, kind;
    int handles;
    void *data;
    oct_torch_tensor *next;
};

/* Values, as torch's is: it owns no handle of theirs. */
struct oct_torch_list {
    oct_torch_value items[160];
    size_t count;
};

struct oct_torch_string {
    const char *text;
    size_t length;
};

typedef struct fake_torch {
    int tensors, tensors_made; /* alive, and ever */
    int blocks, blocks_made;   /* of memory without a tensor */
    int lists, strings;        /* alive */
    int defined, implemented;  /* ops */
    uint32_t threads;
    int32_t device;
    bool no_memory;
    const char *reason; /* why no tensor can be made; NULL: it can */
    int calls;          /* since fake_torch_begin, of those that may fail */
    int fail_at;        /* which of them does, from 1 on; 0: none */
    const char *failed; /* its name */
} fake_torch;

extern fake_torch torch;

/* Forgets what was; the ops find this torch. */
octet_status fake_torch_begin(octet_error *err);

/* Where torch has not handed a tensor out of a list, nobody can delete it: the test does. */
void fake_torch_drop_all(void);

/* Dense. Its bytes are a pattern of numbers that are finite in every dtype. */
oct_torch_value fake_tensor(octet_dtype dtype, octet_device_kind kind, int64_t dim,
                            const int64_t *sizes);
oct_torch_value fake_text(const char *text);
oct_torch_value fake_list(void);
void fake_list_add(oct_torch_value list, oct_torch_value tensor);
oct_torch_value fake_sizes(const int64_t *sizes, int count);
int64_t fake_tensor_bytes(const oct_torch_tensor *tensor);

#endif
