/* replay.c - a bounded table of CUDA graphs, by plan and addresses. A run belongs to one set,
 * selected by the hash of everything it depends on: its plan, every address and stride, the
 * state it updates. A set counts its most recent runs. A run that came four times is captured
 * and gets a place. It keeps the place until it was not used for long. So a step with more runs
 * than places replays as many as fit, and runs do not drop each other. That is why this is not
 * a table of core/table.h, where each new entry drops an old one: making a graph costs more
 * than one replay saves. The limit is the same. A thread that finds a set in use launches its
 * kernels itself. */
#include "torch/replay.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/environment.h"
#include "core/table.h"
#include "octet/graph.h"
#include "torch/plan_cache.h"

enum { WAYS = 8, SETS = OCT_GRAPHS / WAYS, COUNTED = 32, CAPTURE_AT = 4 };
enum {
    STALE = 32 * WAYS
}; /* a place becomes free after this many uses of its set without it
    */

/* Everything that launches depend on. The struct has no padding. */
typedef struct key {
    const octet_plan *plan;
    octet_memory memory;
    octet_delayed updates; /* zeros: none */
} key;

_Static_assert(sizeof(key) == sizeof(void *) + sizeof(octet_memory) + sizeof(octet_delayed) &&
                   sizeof(key) % sizeof(uint64_t) == 0,
               "keys are compared as bytes and hashed as words");

typedef struct place {
    uint64_t hash;
    uint64_t used;      /* the set's clock at its last use */
    octet_graph *graph; /* NULL: the run cannot be captured */
    key key;            /* a graph holds its plan: oct_plan_pin */
} place;

/* A run that has no place yet. Two runs with the same hash count as one. That does no harm: a
 * place is found by its key. */
typedef struct count {
    uint64_t hash;
    int64_t times;
} count;

typedef struct set {
    atomic_bool in_use;
    uint64_t clock;        /* how often the set was used */
    count counts[COUNTED]; /* most recent first; 0 times: unused */
    place *places[WAYS];   /* NULL: never taken */
} set;

/* Process-wide, as the ops are. */
static set sets[SETS];
static atomic_int graphs;
static atomic_int most; /* number of sets; 0: the environment was not read yet */
static atomic_llong replays;
enum { UNKNOWN, NO, YES };
static atomic_int allowed;

/* ---- keys -------------------------------------------------------------------------------- */

static void set_key(key *out, const oct_run *run) {
    memset(out, 0, sizeof *out);
    out->plan = run->plan;
    out->memory = *run->memory;
    if (run->updates) {
        out->updates = *run->updates;
    }
}

static uint64_t hash_of(const key *k) {
    return oct_mix_bytes(0, k, sizeof *k);
}

/* ---- places ------------------------------------------------------------------------------ */

static place *find(const set *s, const key *k, uint64_t hash) {
    for (int i = 0; i < WAYS; i++) {
        place *p = s->places[i];
        if (p && p->hash == hash && !memcmp(&p->key, k, sizeof *k)) {
            return p;
        }
    }
    return NULL;
}

static void empty(place *p) {
    if (p->graph) {
        octet_graph_free(p->graph);
        oct_plan_release(p->key.plan);
        atomic_fetch_sub_explicit(&graphs, 1, memory_order_relaxed);
    }
    p->graph = NULL;
}

/* A free place; NULL if all are in use. */
static place *free_place(set *s) {
    place *oldest = NULL;
    for (int i = 0; i < WAYS; i++) {
        place *p = s->places[i];
        if (!p) {
            s->places[i] = calloc(1, sizeof *s->places[i]);
            return s->places[i];
        }
        if (s->clock - p->used >= STALE && (!oldest || p->used < oldest->used)) {
            oldest = p;
        }
    }
    if (oldest) {
        empty(oldest);
    }
    return oldest;
}

/* Counts a run; returns how often it came. */
static int64_t count_run(set *s, uint64_t hash) {
    int at = 0;
    while (at < COUNTED - 1 && s->counts[at].times && s->counts[at].hash != hash) {
        at++;
    }
    count found = s->counts[at];
    int64_t times = found.hash == hash ? found.times + 1 : 1;
    memmove(s->counts + 1, s->counts, (size_t)at * sizeof *s->counts);
    s->counts[0] = (count){hash, times};
    return times;
}

/* ---- runs -------------------------------------------------------------------------------- */

static octet_status launch(const void *arg, const octet_exec *exec, octet_error *err) {
    const oct_run *run = arg;
    octet_status status = oct_plan_run(run->plan, run->memory, exec, err);
    return status || !run->updates ? status
                                   : octet_delayed_update(run->updates, NULL, exec, err);
}

/* Captures a run that has come often enough, if there is a place for it. */
static place *capture(set *s, const key *k, const oct_run *run, const octet_exec *exec) {
    place *p = free_place(s);
    if (!p) {
        return NULL;
    }
    p->key = *k;
    if (!octet_capture(&p->graph, launch, run, exec, NULL)) {
        oct_plan_pin(k->plan);
        atomic_fetch_add_explicit(&graphs, 1, memory_order_relaxed);
    }
    return p;
}

/* The graph of a run, if it is captured by now. */
static const octet_graph *graph_of(set *s, uint64_t hash, const key *k, const oct_run *run,
                                   const octet_exec *exec) {
    place *p = find(s, k, hash);
    s->clock++;
    if (!p && count_run(s, hash) >= CAPTURE_AT) {
        p = capture(s, k, run, exec);
    }
    if (!p) {
        return NULL;
    }
    p->hash = hash;
    p->used = s->clock;
    return p->graph;
}

/* The environment is read once. */
static int most_sets(void) {
    int known = atomic_load_explicit(&most, memory_order_relaxed);
    if (!known) {
        int wanted = oct_table_limit() / WAYS;
        known = wanted < 1 ? 1 : wanted < SETS ? wanted : SETS;
        atomic_store_explicit(&most, known, memory_order_relaxed);
    }
    return known;
}

/* A GPU with more memory uses more sets. */
static set *set_of(uint64_t hash, const octet_exec *exec) {
    int64_t count = octet_cuda_graphs(exec->cuda) / WAYS, bound = most_sets();
    return &sets[hash % (uint64_t)(count < 1 ? 1 : count < bound ? count : bound)];
}

/* Replays a run; returns whether there was a graph. The set is held until the graph is
 * launched, so that no other thread frees or launches it. */
static bool replay(octet_status *status, const oct_run *run, const octet_exec *exec,
                   octet_error *err) {
    key k;
    set_key(&k, run);
    uint64_t hash = hash_of(&k);
    set *s = set_of(hash, exec);
    if (!oct_enter_set(&s->in_use)) {
        return false;
    }
    const octet_graph *found = graph_of(s, hash, &k, run, exec);
    if (found) {
        *status = octet_replay(found, exec, err);
        atomic_fetch_add_explicit(&replays, 1, memory_order_relaxed);
    }
    oct_leave_set(&s->in_use);
    return found != NULL;
}

static bool is_asked_for(void) {
    const char *wanted = oct_environment("OCTET_CUDA_REPLAY"),
               *slow = oct_environment("CUDA_LAUNCH_BLOCKING");
    return !(wanted && !strcmp(wanted, "0")) && !(slow && strcmp(slow, "0"));
}

/* The environment is read once, unless oct_replay_allow was called before. */
static bool is_allowed(void) {
    int known = atomic_load_explicit(&allowed, memory_order_relaxed);
    if (known == UNKNOWN) {
        int found = is_asked_for() ? YES : NO;
        (void)atomic_compare_exchange_strong(&allowed, &known, found);
        known = known == UNKNOWN ? found : known;
    }
    return known == YES;
}

bool oct_replay_allow(bool allow) {
    bool before = is_allowed();
    atomic_store_explicit(&allowed, allow ? YES : NO, memory_order_relaxed);
    return before;
}

octet_status oct_replay_run(const oct_run *run, const octet_exec *exec, octet_error *err) {
    octet_status status = OCTET_OK;
    bool replays_here = exec->cuda && is_allowed() && !octet_is_captured(exec);
    return replays_here && replay(&status, run, exec, err) ? status : launch(run, exec, err);
}

oct_replay_counts oct_replay_count(void) {
    return (oct_replay_counts){atomic_load_explicit(&graphs, memory_order_relaxed),
                               most_sets() * WAYS,
                               atomic_load_explicit(&replays, memory_order_relaxed)};
}
