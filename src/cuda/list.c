/* list.c - a list of launches walked: references become addresses, and nothing is decided. */
#include "cuda/list.h"

#include <string.h>

#include "core/text.h"
#include "cuda/list_item.h"

uint64_t oct_list_regions(const oct_cuda_list *list) {
    const oct_list_reference *r = list->references.at;
    uint64_t regions = 0;
    for (int i = 0; i < list->references.count; i++) {
        regions |= (uint64_t)1 << r[i].region;
    }
    return regions;
}

int oct_list_behind(const oct_cuda_list *list, int at) {
    int step = oct_list_at(list, at)->step;
    while (at < list->items.count && oct_list_at(list, at)->step == step) {
        at++;
    }
    return at;
}

/* ---- walking ----------------------------------------------------------------------------- */

/* A run on memory. */
typedef struct walk {
    const oct_cuda_list *list;
    const uint64_t *starts;
    void *stream;
} walk;

/* The item's parameters with this run's addresses. */
static void resolve(void *params, const walk *w, const oct_list_item *one) {
    const oct_list_reference *r =
        (const oct_list_reference *)w->list->references.at + one->first;
    memcpy(params, (const char *)w->list->bytes.at + one->params, one->bytes);
    for (int i = 0; i < one->references; i++) {
        uint64_t address = w->starts[r[i].region] + (uint64_t)r[i].offset;
        memcpy((char *)params + r[i].at, &address, sizeof address);
    }
}

static octet_status walk_kernel(const walk *w, const oct_list_item *one, octet_error *err) {
    _Alignas(16) char params[OCT_LIST_PARAMS];
    resolve(params, w, one);
    return oct_cuda_launch_ready(w->list->cuda, one->ready, &one->launch,
                                 &(oct_cuda_params){params, w->stream}, err);
}

static octet_status walk_bytes(const walk *w, const oct_list_item *one, octet_error *err) {
    const oct_driver *driver = w->list->cuda->driver;
    uint64_t at[2] = {0};
    size_t count = (size_t)one->count;
    resolve(at, w, one);
    int result = one->kind == OCT_LIST_COPY
                     ? driver->cuMemcpyDtoDAsync_v2(at[0], at[1], count, w->stream)
                 : one->kind == OCT_LIST_FILL
                     ? driver->cuMemsetD32Async(at[0], one->value, count, w->stream)
                     : driver->cuMemsetD8Async(at[0], (uint8_t)one->value, count, w->stream);
    return result ? oct_cuda_failed(
                        err, one->kind == OCT_LIST_COPY ? "cuMemcpyDtoDAsync" : "cuMemsetAsync",
                        result)
                  : OCTET_OK;
}

static octet_status walk_product(bool *refused, const walk *w, const oct_list_item *one,
                                 octet_error *err) {
    oct_list_matmul *p = (oct_list_matmul *)w->list->products.at + one->product;
    oct_lt_product part = p->part;
    oct_lt_algorithm algorithm = p->algorithm;
    bool launched = atomic_load_explicit(&p->launched, memory_order_relaxed);
    algorithm.found = launched ? OCT_LT_FOUND : OCT_LT_FRESH;
    resolve(&part.memory, w, one);
    octet_status status = oct_lt_run(refused, p->lt, &part, &algorithm, w->stream, err);
    if (!status && !*refused && !launched) {
        atomic_store_explicit(&p->launched, true, memory_order_relaxed);
    }
    return !status && *refused && p->number > 0 && p->adds
               ? oct_lt_part_refused(err, p->number, p->rows)
               : status;
}

octet_status oct_list_walk(oct_list_place *place, const oct_cuda_list *list,
                           const uint64_t *starts, void *stream, octet_error *err) {
    walk w = {list, starts, stream};
    octet_status status = OCTET_OK;
    place->refused = false;
    while (!status && place->at < list->items.count) {
        const oct_list_item *one = oct_list_at(list, place->at);
        place->step = one->step;
        status = one->kind == OCT_LIST_KERNEL    ? walk_kernel(&w, one, err)
                 : one->kind == OCT_LIST_PRODUCT ? walk_product(&place->refused, &w, one, err)
                                                 : walk_bytes(&w, one, err);
        if (status || place->refused) {
            break;
        }
        place->at++;
    }
    return status;
}

/* ---- text -------------------------------------------------------------------------------- */

static void print_references(oct_writer *to, const oct_cuda_list *list,
                             const oct_list_item *one) {
    const oct_list_reference *r = (const oct_list_reference *)list->references.at + one->first;
    for (int i = 0; i < one->references; i++) {
        oct_write(to, " ");
        oct_write_i64(to, r[i].region);
        oct_write(to, "+");
        oct_write_i64(to, r[i].offset);
    }
}

/* Blocks and threads of a kernel, m, n and k of a product, elements or bytes. */
static void sizes_of(int64_t out[3], const oct_cuda_list *list, const oct_list_item *one) {
    const oct_list_matmul *p = (const oct_list_matmul *)list->products.at + one->product;
    bool kernel = one->kind == OCT_LIST_KERNEL, multiplies = one->kind == OCT_LIST_PRODUCT;
    out[0] = kernel ? one->launch.grid[0] : multiplies ? p->part.matmul.m : one->count;
    out[1] = kernel ? one->launch.grid[1] : multiplies ? p->part.matmul.n : 1;
    out[2] = kernel ? one->launch.threads : multiplies ? p->part.matmul.k : 1;
}

size_t oct_list_print(char *text, size_t size, const oct_cuda_list *list) {
    static const char *const names[] = {"", "fill", "fill bytes", "copy", "product"};
    oct_writer to = oct_writer_start(text, size);
    for (int i = 0; i < list->items.count; i++) {
        const oct_list_item *one = oct_list_at(list, i);
        int64_t sizes[3];
        sizes_of(sizes, list, one);
        oct_write(&to, one->kind == OCT_LIST_KERNEL ? one->launch.kernel : names[one->kind]);
        for (int k = 0; k < 3; k++) {
            oct_write(&to, k ? " x " : " ");
            oct_write_i64(&to, sizes[k]);
        }
        oct_write(&to, ":");
        print_references(&to, list, one);
        oct_write(&to, "\n");
    }
    return to.length;
}
