/* plan_cache.c - two bounded tables: plans by text, and bound plans by sizes. Ops are called
 * with the same few texts again and again, and parsing and planning take longer than a lookup.
 * A plan's structure does not depend on sizes, so a text is planned once, and other sizes only
 * need binding. The tables are process-wide, as the ops are. */
#include "torch/plan_cache.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/table.h"
#include "torch/api.h"

/* What a text describes: a Linear (forward and backward share it), or the cast of a tensor. */
typedef enum family { LINEAR, QUANTIZE, DEQUANTIZE } family;

static family family_of(octet_plan_kind kind) {
    return kind == OCTET_PLAN_QUANTIZE     ? QUANTIZE
           : kind == OCTET_PLAN_DEQUANTIZE ? DEQUANTIZE
                                           : LINEAR;
}

/* A text that was planned. */
typedef struct structure {
    oct_entry entry;
    family family;
    uint32_t threads;
    octet_device device;
    size_t length; /* of text */
    oct_plan_arenas arenas[OCTET_CHAIN_PLANS];
    octet_chain chain;
    char text[];
} structure;

/* One of its plans, bound to sizes. */
typedef struct bound {
    oct_entry entry;
    structure *of; /* counts as one of its users */
    int at;        /* index in the chain */
    atomic_bool ran;
    _Atomic(octet_prepared *) prepared; /* NULL: it is not prepared yet */
    octet_plan plan;
} bound;

static atomic_llong plannings;
static atomic_int prepared_plans;

/* ---- texts ------------------------------------------------------------------------------- */

static bool same_text(const oct_entry *entry, const void *key) {
    const structure *s = (const structure *)entry;
    const oct_request *p = key;
    return s->family == family_of(p->kind) && s->threads == p->threads &&
           !memcmp(&s->device, &p->device, sizeof s->device) &&
           !strncmp(s->text, p->text, s->length) && !p->text[s->length];
}

static void free_structure(oct_entry *entry) {
    free(entry);
}

static oct_table_set text_sets[OCT_CACHED_STRUCTURES / OCT_TABLE_WAYS];
static oct_table texts = {
    text_sets, OCT_CACHED_STRUCTURES / OCT_TABLE_WAYS, same_text, free_structure, 0, 0};

static uint64_t hash_of(const oct_request *p, size_t length) {
    const octet_device *d = &p->device;
    uint64_t hash = oct_mix((uint64_t)family_of(p->kind), p->threads);
    hash = oct_mix(hash, (uint64_t)d->kind << 24 | (uint64_t)d->index << 16 | d->arch);
    return oct_mix_bytes(hash, p->text, length);
}

static oct_plan_arenas arenas_of(const octet_plan *plan) {
    oct_plan_arenas arenas = {.saves = false};
    for (int i = 0; i < plan->buffer_count; i++) {
        const octet_plan_buffer *b = &plan->buffers[i];
        if (b->place == OCTET_PLACE_RESTORED) {
            arenas.restores[b->port] = true;
        }
        arenas.saves = arenas.saves || b->place == OCTET_PLACE_SAVED;
    }
    return arenas;
}

static octet_status make_structure(structure **out, const oct_request *p, uint64_t hash,
                                   octet_error *err) {
    size_t length = strlen(p->text);
    structure *s = malloc(sizeof *s + length + 1);
    if (!s) {
        return oct_torch_fail(err, OCTET_NO_MEMORY, "no memory for a plan");
    }
    octet_status status = oct_request_chain(&s->chain, p, err);
    if (status) {
        free(s);
        return status;
    }
    atomic_fetch_add_explicit(&plannings, 1, memory_order_relaxed);
    oct_entry_start(&s->entry, hash);
    for (int i = 0; i < s->chain.count; i++) {
        s->arenas[i] = arenas_of(&s->chain.plans[i]);
    }
    s->family = family_of(p->kind);
    s->threads = p->threads;
    s->device = p->device;
    s->length = length;
    memcpy(s->text, p->text, length + 1);
    *out = s;
    return OCTET_OK;
}

static octet_status find_structure(structure **out, const oct_request *p, octet_error *err) {
    uint64_t hash = hash_of(p, strlen(p->text));
    *out = (structure *)oct_table_find(&texts, hash, p);
    if (*out) {
        return OCTET_OK;
    }
    octet_status status = make_structure(out, p, hash, err);
    if (!status) {
        oct_table_put(&texts, &(*out)->entry);
    }
    return status;
}

/* ---- sizes ------------------------------------------------------------------------------- */

typedef struct wanted {
    const structure *of;
    int at;
    octet_extents extents;
} wanted;

static bool same_sizes(const oct_entry *entry, const void *key) {
    const bound *b = (const bound *)entry;
    const wanted *w = key;
    return b->of == w->of && b->at == w->at &&
           !memcmp(&b->plan.extents, &w->extents, sizeof w->extents);
}

static void free_bound(oct_entry *entry) {
    bound *b = (bound *)entry;
    octet_prepared *prepared = atomic_load_explicit(&b->prepared, memory_order_acquire);
    atomic_fetch_sub_explicit(&prepared_plans, prepared != NULL, memory_order_relaxed);
    octet_prepared_free(prepared);
    oct_entry_leave(&texts, &b->of->entry);
    free(b);
}

static oct_table_set size_sets[OCT_CACHED_PLANS / OCT_TABLE_WAYS];
static oct_table sizes = {
    size_sets, OCT_CACHED_PLANS / OCT_TABLE_WAYS, same_sizes, free_bound, 0, 0};

/* The plans before it are bound first, for the places of what they saved. A chain is bound at
 * the sizes that it was made at, too: binding refuses those that cut a chunk, a chain does not.
 */
static octet_status bind(octet_plan *out, const wanted *w, octet_error *err) {
    octet_plan before;
    octet_status status = OCTET_OK;
    for (int i = 0; i <= w->at && !status; i++) {
        *out = w->of->chain.plans[i];
        status = octet_plan_bind(out, i ? &before : NULL, &w->extents, err);
        if (i < w->at) {
            before = *out;
        }
    }
    return status;
}

/* Takes over the caller's reference to w->of. */
static octet_status make_bound(bound **out, structure *of, const wanted *w, uint64_t hash,
                               octet_error *err) {
    bound *b = malloc(sizeof *b);
    octet_status status = b ? bind(&b->plan, w, err)
                            : oct_torch_fail(err, OCTET_NO_MEMORY, "no memory for a plan");
    if (status) {
        free(b);
        oct_entry_leave(&texts, &of->entry);
        return status;
    }
    oct_entry_start(&b->entry, hash);
    atomic_init(&b->ran, false);
    atomic_init(&b->prepared, NULL);
    b->of = of;
    b->at = w->at;
    *out = b;
    return OCTET_OK;
}

static octet_status find_bound(bound **out, structure *of, int at, const octet_extents *extents,
                               octet_error *err) {
    wanted w = {of, at, *extents};
    uint64_t hash = oct_mix_bytes(of->entry.hash + (uint64_t)at, extents, sizeof *extents);
    *out = (bound *)oct_table_find(&sizes, hash, &w);
    if (*out) {
        oct_entry_leave(&texts, &of->entry);
        return OCTET_OK;
    }
    octet_status status = make_bound(out, of, &w, hash, err);
    if (!status) {
        oct_table_put(&sizes, &(*out)->entry);
    }
    return status;
}

/* ---- what ops call ----------------------------------------------------------------------- */

octet_status oct_plan_get(const octet_plan **out, const oct_request *request,
                          octet_error *err) {
    octet_extents extents;
    structure *of = NULL;
    bound *b = NULL;
    octet_status status = oct_request_extents(&extents, request, err);
    status = status ? status : find_structure(&of, request, err);
    int at = oct_chain_at(request->kind);
    if (!status && at >= of->chain.count) {
        oct_entry_leave(&texts, &of->entry);
        status = oct_chain_lacks(request, err);
    }
    status = status ? status : find_bound(&b, of, at, &extents, err);
    if (!status) {
        *out = &b->plan;
    }
    return status;
}

static bound *bound_of(const octet_plan *plan) {
    return (bound *)((char *)(uintptr_t)plan - offsetof(bound, plan));
}

/* ---- runs -------------------------------------------------------------------------------- */

/* Two threads that prepare at once: one of theirs stays. */
static octet_prepared *prepare(bound *b, const octet_memory *memory, const octet_exec *exec) {
    octet_prepared *made = NULL, *none = NULL;
    if (octet_prepare(&made, &b->plan, 0, memory, exec, NULL)) {
        return NULL;
    }
    if (!atomic_compare_exchange_strong(&b->prepared, &none, made)) {
        octet_prepared_free(made);
        return none;
    }
    atomic_fetch_add_explicit(&prepared_plans, 1, memory_order_relaxed);
    return made;
}

octet_status oct_plan_run(const octet_plan *plan, const octet_memory *memory,
                          const octet_exec *exec, octet_error *err) {
    bound *b = bound_of(plan);
    octet_prepared *prepared = NULL;
    if (exec->cuda && atomic_load_explicit(&b->ran, memory_order_relaxed)) {
        prepared = atomic_load_explicit(&b->prepared, memory_order_acquire);
        prepared = prepared ? prepared : prepare(b, memory, exec);
    }
    if (prepared) {
        return octet_run_prepared(prepared, memory, exec, err);
    }
    octet_status status = octet_run(plan, memory, exec, err);
    if (!status) {
        atomic_store_explicit(&b->ran, true, memory_order_relaxed);
    }
    return status;
}

void oct_plan_release(const octet_plan *plan) {
    if (plan) {
        oct_entry_leave(&sizes, &bound_of(plan)->entry);
    }
}

void oct_plan_pin(const octet_plan *plan) {
    oct_entry_use(&bound_of(plan)->entry);
}

const oct_plan_arenas *oct_plan_arenas_of(const octet_plan *plan) {
    return &bound_of(plan)->of->arenas[bound_of(plan)->at];
}

octet_status oct_chain_get(const octet_chain **out, const oct_request *request,
                           octet_error *err) {
    structure *of = NULL;
    octet_status status = find_structure(&of, request, err);
    if (!status) {
        *out = &of->chain;
    }
    return status;
}

void oct_chain_release(const octet_chain *chain) {
    if (chain) {
        structure *of = (structure *)((char *)(uintptr_t)chain - offsetof(structure, chain));
        oct_entry_leave(&texts, &of->entry);
    }
}

oct_plan_counts oct_plan_count(void) {
    return (oct_plan_counts){oct_table_count(&texts),
                             oct_table_capacity(&texts),
                             oct_table_count(&sizes),
                             oct_table_capacity(&sizes),
                             atomic_load_explicit(&prepared_plans, memory_order_relaxed),
                             atomic_load_explicit(&plannings, memory_order_relaxed)};
}
