/* list.c - launches in a list: put in with references for addresses, and walked. */
#include "cuda/list.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/text.h"
#include "cuda/list_fill.h"
#include "cuda/state.h"

#define PARAMS 4096 /* bytes of a kernel's, at most */

typedef enum kind { KERNEL, FILL, FILL_BYTES, COPY, PRODUCT } kind;

/* A word of an item's parameters that is an address. */
typedef struct reference {
    uint32_t at;     /* bytes from the start of the parameters */
    uint32_t region; /* of the run's memory, */
    int64_t offset;  /* and bytes from its start */
} reference;

/* Parameters of a fill or a copy are its addresses, of a product its oct_lt_memory. */
typedef struct item {
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
} item;

typedef struct product {
    oct_lt *lt;
    oct_lt_product part; /* addresses in its `memory` are stand-ins */
    oct_lt_algorithm algorithm;
    int64_t number, rows;
    bool adds;
    atomic_bool launched; /* once: the library has loaded its kernel */
} product;

/* An array that grows. */
typedef struct array {
    void *at;
    int count, room;
} array;

struct oct_cuda_list {
    octet_cuda *cuda;
    int step;
    array items, references, products, bytes;
};

/* ---- arrays ------------------------------------------------------------------------------ */

/* Room for `more` elements behind the others; NULL: there is no memory. */
static void *add(array *a, int more, size_t each) {
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

static item *item_at(const oct_cuda_list *list, int index) {
    return (item *)list->items.at + index;
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

uint64_t oct_list_regions(const oct_cuda_list *list) {
    const reference *r = list->references.at;
    uint64_t regions = 0;
    for (int i = 0; i < list->references.count; i++) {
        regions |= (uint64_t)1 << r[i].region;
    }
    return regions;
}

int oct_list_behind(const oct_cuda_list *list, int at) {
    int step = item_at(list, at)->step;
    while (at < list->items.count && item_at(list, at)->step == step) {
        at++;
    }
    return at;
}

/* ---- putting in -------------------------------------------------------------------------- */

static bool is_stand_in(uint64_t word) {
    return word >> 48 == 0x7FFA && (word >> 40 & 0xFF) < OCT_LIST_REGIONS;
}

/* The low bits of a region's start are not known here: they count as bytes of the offset, and
 * oct_list_walk is given starts on boundaries. */
static reference reference_of(uint32_t at, uint64_t word) {
    int64_t within = (int64_t)(word & (((uint64_t)1 << 40) - 1));
    return (reference){at, (uint32_t)(word >> 40 & 0xFF), within - OCT_LIST_BYTES};
}

/* Keeps the parameters, and notes where they have addresses. */
static bool keep_params(oct_cuda_list *list, item *one, const void *params, size_t bytes) {
    char *kept = add(&list->bytes, (int)((bytes + 15) / 16 * 16), 1);
    if (!kept) {
        return false;
    }
    memcpy(kept, params, bytes);
    one->params = (uint32_t)(kept - (char *)list->bytes.at);
    one->bytes = (uint32_t)bytes;
    one->first = (uint32_t)list->references.count;
    for (size_t at = 0; at + sizeof(uint64_t) <= bytes; at += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, kept + at, sizeof word);
        if (is_stand_in(word)) {
            reference *r = add(&list->references, 1, sizeof *r);
            if (!r) {
                return false;
            }
            *r = reference_of((uint32_t)at, word);
            one->references++;
        }
    }
    return true;
}

static octet_status put(oct_cuda_list *list, item one, const void *params, size_t bytes,
                        octet_error *err) {
    one.step = (uint8_t)list->step;
    if (bytes > PARAMS) {
        return oct_fail(err, OCTET_UNSUPPORTED, "a launch has %zu bytes of parameters; %d",
                        bytes, PARAMS);
    }
    if (!keep_params(list, &one, params, bytes)) {
        return no_memory(err);
    }
    item *to = add(&list->items, 1, sizeof *to);
    if (!to) {
        return no_memory(err);
    }
    *to = one;
    return OCTET_OK;
}

octet_status oct_list_kernel(oct_cuda_list *list, const oct_cuda_launch *launch,
                             octet_error *err) {
    item one = {.kind = KERNEL, .launch = *launch};
    octet_status status = oct_cuda_kernel(&one.ready, list->cuda, launch, err);
    one.launch.params = NULL;
    return status ? status : put(list, one, launch->params, launch->params_bytes, err);
}

octet_status oct_list_fill(oct_cuda_list *list, void *to, uint32_t value, int64_t count,
                           bool bytes, octet_error *err) {
    item one = {.kind = bytes ? FILL_BYTES : FILL, .value = value, .count = count};
    return put(list, one, &to, sizeof to, err);
}

octet_status oct_list_copy(oct_cuda_list *list, void *to, const void *from, int64_t bytes,
                           octet_error *err) {
    item one = {.kind = COPY, .count = bytes};
    const void *addresses[2] = {to, from};
    return put(list, one, addresses, sizeof addresses, err);
}

octet_status oct_list_multiply(oct_cuda_list *list, const oct_list_product *given,
                               octet_error *err) {
    product *p = add(&list->products, 1, sizeof *p);
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
    item one = {.kind = PRODUCT, .product = list->products.count - 1};
    return put(list, one, &p->part.memory, sizeof p->part.memory, err);
}

/* ---- walking ----------------------------------------------------------------------------- */

/* A run on memory. */
typedef struct walk {
    const oct_cuda_list *list;
    const uint64_t *starts;
    void *stream;
} walk;

/* The item's parameters with this run's addresses. */
static void resolve(void *params, const walk *w, const item *one) {
    const reference *r = (const reference *)w->list->references.at + one->first;
    memcpy(params, (const char *)w->list->bytes.at + one->params, one->bytes);
    for (int i = 0; i < one->references; i++) {
        uint64_t address = w->starts[r[i].region] + (uint64_t)r[i].offset;
        memcpy((char *)params + r[i].at, &address, sizeof address);
    }
}

static octet_status walk_kernel(const walk *w, const item *one, octet_error *err) {
    _Alignas(16) char params[PARAMS];
    resolve(params, w, one);
    return oct_cuda_launch_ready(w->list->cuda, one->ready, &one->launch,
                                 &(oct_cuda_params){params, w->stream}, err);
}

static octet_status walk_bytes(const walk *w, const item *one, octet_error *err) {
    const oct_driver *driver = w->list->cuda->driver;
    uint64_t at[2] = {0};
    size_t count = (size_t)one->count;
    resolve(at, w, one);
    int result = one->kind == COPY
                     ? driver->cuMemcpyDtoDAsync_v2(at[0], at[1], count, w->stream)
                 : one->kind == FILL
                     ? driver->cuMemsetD32Async(at[0], one->value, count, w->stream)
                     : driver->cuMemsetD8Async(at[0], (uint8_t)one->value, count, w->stream);
    return result ? oct_cuda_failed(
                        err, one->kind == COPY ? "cuMemcpyDtoDAsync" : "cuMemsetAsync", result)
                  : OCTET_OK;
}

static octet_status walk_product(bool *refused, const walk *w, const item *one,
                                 octet_error *err) {
    product *p = (product *)w->list->products.at + one->product;
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
        const item *one = item_at(list, place->at);
        place->step = one->step;
        status = one->kind == KERNEL    ? walk_kernel(&w, one, err)
                 : one->kind == PRODUCT ? walk_product(&place->refused, &w, one, err)
                                        : walk_bytes(&w, one, err);
        if (status || place->refused) {
            break;
        }
        place->at++;
    }
    return status;
}

/* ---- text -------------------------------------------------------------------------------- */

static void print_references(oct_writer *to, const oct_cuda_list *list, const item *one) {
    const reference *r = (const reference *)list->references.at + one->first;
    for (int i = 0; i < one->references; i++) {
        oct_write(to, " ");
        oct_write_i64(to, r[i].region);
        oct_write(to, "+");
        oct_write_i64(to, r[i].offset);
    }
}

/* Blocks and threads of a kernel, m, n and k of a product, elements or bytes. */
static void sizes_of(int64_t out[3], const oct_cuda_list *list, const item *one) {
    const product *p = (const product *)list->products.at + one->product;
    bool kernel = one->kind == KERNEL, multiplies = one->kind == PRODUCT;
    out[0] = kernel ? one->launch.grid[0] : multiplies ? p->part.problem.m : one->count;
    out[1] = kernel ? one->launch.grid[1] : multiplies ? p->part.problem.n : 1;
    out[2] = kernel ? one->launch.threads : multiplies ? p->part.problem.k : 1;
}

size_t oct_list_print(char *text, size_t size, const oct_cuda_list *list) {
    static const char *const names[] = {"", "fill", "fill bytes", "copy", "product"};
    oct_writer to = oct_writer_start(text, size);
    for (int i = 0; i < list->items.count; i++) {
        const item *one = item_at(list, i);
        int64_t sizes[3];
        sizes_of(sizes, list, one);
        oct_write(&to, one->kind == KERNEL ? one->launch.kernel : names[one->kind]);
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
