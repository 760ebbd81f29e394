/* list_item.h - what a list is made of: for what fills it and what walks it. */
#ifndef OCT_CUDA_LIST_ITEM_H
#define OCT_CUDA_LIST_ITEM_H

#include "cuda/list_fill.h"
#include "cuda/open.h"

#define OCT_LIST_PARAMS 4096 /* bytes of a kernel's, at most */

typedef enum oct_list_kind {
    OCT_LIST_KERNEL,
    OCT_LIST_FILL,
    OCT_LIST_FILL_BYTES,
    OCT_LIST_COPY,
    OCT_LIST_PRODUCT
} oct_list_kind;

/* A word of an item's parameters that is an address. */
typedef struct oct_list_reference {
    uint32_t at;     /* bytes from the start of the parameters */
    uint32_t region; /* of the run's memory, */
    int64_t offset;  /* and bytes from its start */
} oct_list_reference;

/* Parameters of a fill or a copy are its addresses, of a product its oct_lt_memory. */
typedef struct oct_list_item {
    uint8_t kind;
    uint8_t step;
    uint16_t references;
    uint32_t first; /* of its references */
    uint32_t params, bytes;
    uint32_t value;          /* of a fill */
    int64_t count;           /* of a fill's elements or a copy's bytes */
    const oct_kernel *ready; /* a kernel's */
    oct_cuda_launch launch;  /* its grid and its name; `params` are the list's */
    int product;             /* its index */
} oct_list_item;

typedef struct oct_list_matmul {
    oct_lt *lt;
    oct_lt_product part; /* addresses in its `memory` are stand-ins */
    oct_lt_algorithm algorithm;
    int64_t number, rows;
    bool adds;
    atomic_bool launched; /* once: the library has loaded its kernel */
} oct_list_matmul;

/* An array that grows. */
typedef struct oct_list_array {
    void *at;
    int count, room;
} oct_list_array;

struct oct_cuda_list {
    octet_cuda *cuda;
    int step;
    oct_list_array items, references, products, bytes;
};

static inline oct_list_item *oct_list_at(const oct_cuda_list *list, int index) {
    return (oct_list_item *)list->items.at + index;
}

#endif
