/* list_fill.c - launches put into a list, with references for addresses. */
#include "cuda/list_fill.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "cuda/list_item.h"

/* ---- arrays ------------------------------------------------------------------------------ */

/* Room for `more` elements behind the others; NULL: there is no memory. */
static void *add(oct_list_array *a, int more, size_t each) {
    if (more > a->room - a->count) {
        int room = 2 * a->room + more + 8;
        void *at = realloc(a->at, (size_t)room * each);
        if (!at) {
            return NULL;
        }
        a->at = at;
        a->room = room;
    }
    void *added = (char *)a->at + (size_t)a->count * each;
    a->count += more;
    return added;
}

static octet_status no_memory(octet_error *err) {
    return oct_fail(err, OCTET_NO_MEMORY, "no memory for a list of launches");
}

octet_status oct_list_make(oct_cuda_list **out, octet_cuda *cuda, octet_error *err) {
    *out = calloc(1, sizeof **out);
    if (!*out) {
        return no_memory(err);
    }
    (*out)->cuda = cuda;
    return OCTET_OK;
}

void oct_list_free(oct_cuda_list *list) {
    if (list) {
        free(list->items.at);
        free(list->references.at);
        free(list->products.at);
        free(list->bytes.at);
        free(list);
    }
}

void oct_list_step(oct_cuda_list *list, int step) {
    list->step = step;
}

/* ---- putting in -------------------------------------------------------------------------- */

static bool is_stand_in(uint64_t word) {
    return word >> 48 == OCT_LIST_STAND_IN && (word >> 40 & 0xFF) < OCT_LIST_REGIONS;
}

/* The low bits of a region's start are not known here: they count as bytes of the offset, and
 * oct_list_walk is given starts on boundaries. */
static oct_list_reference reference_of(uint32_t at, uint64_t word) {
    int64_t within = (int64_t)(word & (((uint64_t)1 << 40) - 1));
    return (oct_list_reference){at, (uint32_t)(word >> 40 & 0xFF), within - OCT_LIST_BYTES};
}

/* Copies the parameters into the list, and finds where they have addresses. */
static bool copy_params(oct_cuda_list *list, oct_list_item *one, const void *params,
                        size_t bytes) {
    char *copy = add(&list->bytes, (int)((bytes + 15) / 16 * 16), 1);
    if (!copy) {
        return false;
    }
    memcpy(copy, params, bytes);
    one->params = (uint32_t)(copy - (char *)list->bytes.at);
    one->bytes = (uint32_t)bytes;
    one->first = (uint32_t)list->references.count;
    for (size_t at = 0; at + sizeof(uint64_t) <= bytes; at += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, copy + at, sizeof word);
        if (is_stand_in(word)) {
            oct_list_reference *r = add(&list->references, 1, sizeof *r);
            if (!r) {
                return false;
            }
            *r = reference_of((uint32_t)at, word);
            one->references++;
        }
    }
    return true;
}

static octet_status put(oct_cuda_list *list, oct_list_item one, const void *params,
                        size_t bytes, octet_error *err) {
    one.step = (uint8_t)list->step;
    if (bytes > OCT_LIST_PARAMS) {
        return oct_fail(err, OCTET_UNSUPPORTED, "a launch has %zu bytes of parameters; %d",
                        bytes, OCT_LIST_PARAMS);
    }
    if (!copy_params(list, &one, params, bytes)) {
        return no_memory(err);
    }
    oct_list_item *to = add(&list->items, 1, sizeof *to);
    if (!to) {
        return no_memory(err);
    }
    *to = one;
    return OCTET_OK;
}

octet_status oct_list_kernel(oct_cuda_list *list, const oct_cuda_launch *launch,
                             octet_error *err) {
    oct_list_item one = {.kind = OCT_LIST_KERNEL, .launch = *launch};
    octet_status status = oct_cuda_kernel(&one.ready, list->cuda, launch, err);
    one.launch.params = NULL;
    return status ? status : put(list, one, launch->params, launch->params_bytes, err);
}

octet_status oct_list_fill(oct_cuda_list *list, void *to, uint32_t value, int64_t count,
                           bool bytes, octet_error *err) {
    oct_list_item one = {
        .kind = bytes ? OCT_LIST_FILL_BYTES : OCT_LIST_FILL, .value = value, .count = count};
    return put(list, one, &to, sizeof to, err);
}

octet_status oct_list_copy(oct_cuda_list *list, void *to, const void *from, int64_t bytes,
                           octet_error *err) {
    oct_list_item one = {.kind = OCT_LIST_COPY, .count = bytes};
    const void *addresses[2] = {to, from};
    return put(list, one, addresses, sizeof addresses, err);
}

octet_status oct_list_multiply(oct_cuda_list *list, const oct_list_product *given,
                               octet_error *err) {
    oct_list_matmul *p = add(&list->products, 1, sizeof *p);
    if (!p) {
        return no_memory(err);
    }
    p->lt = given->lt;
    p->part = *given->part;
    p->algorithm = *given->algorithm;
    p->number = given->number;
    p->rows = given->rows;
    p->adds = given->adds;
    atomic_init(&p->launched, p->algorithm.found == OCT_LT_FOUND);
    oct_list_item one = {.kind = OCT_LIST_PRODUCT, .product = list->products.count - 1};
    return put(list, one, &p->part.memory, sizeof p->part.memory, err);
}
