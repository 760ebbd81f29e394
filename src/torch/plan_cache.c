/* plan_cache.c - a bounded table of plans by kind, text, sizes, threads and device.
 *
 * An op is called with the same few problems all the time, and to read a text and plan takes
 * longer than to find the plan. The table is process-wide, as the ops are; what it holds are
 * functions of their keys, so nothing that an op computes depends on it. A plan is allocated
 * when it is first asked for, and freed when it has been pushed out and the last call that runs
 * it is done.
 *
 * A problem belongs to one set, whose plans lie in the order of their last use; a new one
 * pushes out the last. Who finds a set in use by another thread plans for himself: a set is in
 * use for less time than waiting costs, and a process that is forked meanwhile loses that set
 * and nothing else. */
#include "torch/plan_cache.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "torch/api.h"
#include "torch/table.h"

typedef struct entry {
    atomic_int users; /* the table, and the calls that run the plan */
    int rank;
    octet_plan_kind kind;
    uint32_t threads;
    octet_device device;
    uint64_t hash;
    int64_t sizes[OCTET_MAX_RANK + 1];
    size_t length; /* of text */
    oct_plan_blocks blocks;
    octet_plan plan;
    char text[];
} entry;

enum { WAYS = 4, SETS = OCT_CACHED_PLANS / WAYS };

typedef struct set {
    atomic_bool in_use;
    entry *plans[WAYS];
} set;

/* OCT_CACHED_PLANS plans at most. */
static set sets[SETS];

/* ---- keys -------------------------------------------------------------------------------- */

/* Picks a set and tells most keys apart; `same` decides. */
static uint64_t hash_of(const oct_problem *p, size_t length) {
    const octet_device *d = &p->device;
    uint64_t hash = oct_mix((uint64_t)p->kind, p->threads);
    hash = oct_mix(hash, (uint64_t)d->kind << 24 | (uint64_t)d->index << 16 | d->arch);
    for (int i = 0; i < p->rank; i++) {
        hash = oct_mix(hash, (uint64_t)p->sizes[i]);
    }
    return oct_mix_bytes(hash, p->text, length);
}

static bool same(const entry *e, const oct_problem *p, uint64_t hash, size_t length) {
    return e->hash == hash && e->kind == p->kind && e->threads == p->threads &&
           !memcmp(&e->device, &p->device, sizeof e->device) && e->rank == p->rank &&
           e->length == length &&
           !memcmp(e->sizes, p->sizes, (size_t)p->rank * sizeof *p->sizes) &&
           !memcmp(e->text, p->text, length);
}

/* ---- entries ----------------------------------------------------------------------------- */

static void leave(entry *e) {
    if (e && atomic_fetch_sub_explicit(&e->users, 1, memory_order_acq_rel) == 1) {
        free(e);
    }
}

static oct_plan_blocks blocks_of(const octet_plan *plan) {
    oct_plan_blocks blocks = {.saves = false};
    for (int i = 0; i < plan->buffer_count; i++) {
        const octet_plan_buffer *b = &plan->buffers[i];
        if (b->place == OCTET_PLACE_KEPT) {
            blocks.keeps[b->port] = true;
        }
        blocks.saves = blocks.saves || b->place == OCTET_PLACE_SAVED;
    }
    return blocks;
}

static octet_status make(entry **out, const oct_problem *p, uint64_t hash, octet_error *err) {
    size_t length = strlen(p->text);
    entry *e = malloc(sizeof *e + length);
    if (!e) {
        return oct_torch_fail(err, OCTET_NO_MEMORY, "no memory for a plan");
    }
    octet_status status = oct_problem_plan(&e->plan, p, err);
    if (status) {
        free(e);
        return status;
    }
    atomic_init(&e->users, 1);
    e->blocks = blocks_of(&e->plan);
    e->kind = p->kind;
    e->rank = p->rank;
    e->threads = p->threads;
    e->device = p->device;
    e->hash = hash;
    e->length = length;
    memcpy(e->sizes, p->sizes, sizeof e->sizes);
    memcpy(e->text, p->text, length);
    *out = e;
    return OCTET_OK;
}

/* ---- sets -------------------------------------------------------------------------------- */

/* Puts an entry first; those before `at` move down by one. */
static void put_first(set *s, entry *e, int at) {
    memmove(s->plans + 1, s->plans, (size_t)at * sizeof *s->plans);
    s->plans[0] = e;
}

/* The entry of a problem, with its caller among the users; NULL where there is none. */
static entry *find(set *s, const oct_problem *p, uint64_t hash, size_t length) {
    entry *found = NULL;
    if (!oct_enter_set(&s->in_use)) {
        return NULL;
    }
    for (int i = 0; i < WAYS && s->plans[i] && !found; i++) {
        if (same(s->plans[i], p, hash, length)) {
            found = s->plans[i];
            put_first(s, found, i);
            atomic_fetch_add_explicit(&found->users, 1, memory_order_relaxed);
        }
    }
    oct_leave_set(&s->in_use);
    return found;
}

/* Two threads that miss at once remember a plan twice; the one used less is pushed out. */
static void remember(set *s, entry *e) {
    if (!oct_enter_set(&s->in_use)) {
        return;
    }
    entry *last = s->plans[WAYS - 1];
    atomic_fetch_add_explicit(&e->users, 1, memory_order_relaxed);
    put_first(s, e, WAYS - 1);
    oct_leave_set(&s->in_use);
    leave(last);
}

/* ---- what ops call ----------------------------------------------------------------------- */

octet_status oct_plan_get(const octet_plan **out, const oct_problem *problem,
                          octet_error *err) {
    size_t length = strlen(problem->text);
    uint64_t hash = hash_of(problem, length);
    set *s = &sets[hash % SETS];
    entry *e = find(s, problem, hash, length);
    if (!e) {
        octet_status status = make(&e, problem, hash, err);
        if (status) {
            return status;
        }
        remember(s, e);
    }
    *out = &e->plan;
    return OCTET_OK;
}

static entry *entry_of(const octet_plan *plan) {
    return (entry *)((char *)(uintptr_t)plan - offsetof(entry, plan));
}

void oct_plan_release(const octet_plan *plan) {
    if (plan) {
        leave(entry_of(plan));
    }
}

void oct_plan_keep(const octet_plan *plan) {
    atomic_fetch_add_explicit(&entry_of(plan)->users, 1, memory_order_relaxed);
}

const oct_plan_blocks *oct_plan_blocks_of(const octet_plan *plan) {
    return &entry_of(plan)->blocks;
}

int oct_plan_count(void) {
    int count = 0;
    for (int i = 0; i < SETS; i++) {
        if (oct_enter_set(&sets[i].in_use)) {
            for (int way = 0; way < WAYS; way++) {
                count += sets[i].plans[way] != NULL;
            }
            oct_leave_set(&sets[i].in_use);
        }
    }
    return count;
}
