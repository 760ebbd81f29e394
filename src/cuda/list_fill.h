/* list_fill.h - how operations put what they launch into a list. */
#ifndef OCT_CUDA_LIST_FILL_H
#define OCT_CUDA_LIST_FILL_H

#include "cuda/list.h"
#include "cuda/lt.h"

/* The context is current: a kernel is made ready here, not where it is launched. */
octet_status oct_list_kernel(oct_cuda_list *list, const oct_cuda_launch *launch,
                             octet_error *err);
/* `count` of cuMemsetD32Async or, `bytes`, of cuMemsetD8Async. */
octet_status oct_list_fill(oct_cuda_list *list, void *to, uint32_t value, int64_t count,
                           bool bytes, octet_error *err);
octet_status oct_list_copy(oct_cuda_list *list, void *to, const void *from, int64_t bytes,
                           octet_error *err);

/* A sub-product: all that oct_lt_run takes, and the error text where it is refused. */
typedef struct oct_list_product {
    oct_lt *lt;
    const oct_lt_product *part;
    const oct_lt_algorithm *algorithm;
    int64_t number, rows; /* of the part; of the whole product */
    bool adds;            /* the whole product adds to dst */
} oct_list_product;
octet_status oct_list_multiply(oct_cuda_list *list, const oct_list_product *product,
                               octet_error *err);

#endif
