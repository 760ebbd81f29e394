/* prepare.c - a phase of a plan decided for one device and one kind of memory: a run of it
 * resolves addresses and launches. */
#include <stdatomic.h>
#include <stdlib.h>

#include "core/fail.h"
#include "core/text.h"
#include "run/run.h"

#define FARTHEST ((int64_t)1 << 38) /* bytes of a region that is referred to */

struct octet_prepared {
    const octet_plan *plan;
    int phase;
    octet_cuda *cuda;
    void *list;        /* NULL: runs decide */
    atomic_bool stale; /* likewise, from now on */
    oct_regions used;  /* as they were in the memory that it was prepared for */
};

static uint8_t low_of(const void *at) {
    return (uint8_t)((uintptr_t)at % OCT_START_ALIGN);
}

/* ---- making ------------------------------------------------------------------------------ */

static bool is_near(const oct_regions *used) {
    bool near = true;
    for (int i = 0; i < used->count; i++) {
        near = near && used->at[i].need < FARTHEST;
    }
    return near;
}

static uint64_t regions_of(const oct_regions *used) {
    uint64_t regions = 0;
    for (int i = 0; i < used->count; i++) {
        regions |= (uint64_t)1 << used->at[i].index;
    }
    return regions;
}

/* What the steps launch on memory that begins on the same boundaries as this. */
static octet_status fill(octet_prepared *p, const octet_memory *like, const octet_exec *exec,
                         octet_error *err) {
    const oct_runner *runner = oct_runner_of(&p->plan->device);
    octet_memory memory = *like;
    oct_phase phase = {.plan = p->plan, .number = p->phase, .memory = &memory, .exec = exec};
    for (int i = 0; i < OCT_REGIONS; i++) {
        oct_region_put(&memory, i, runner->stand_in(i, low_of(oct_region_start(like, i))));
    }
    octet_status status = runner->list_make(&phase.list, exec, err);
    p->list = phase.list;
    status = status ? status : oct_run_steps(&phase, err);
    bool others = !status && runner->list_regions(p->list) & ~regions_of(&p->used);
    return others ? oct_fail(err, OCTET_INVALID,
                             "phase %d of the plan uses memory that none of its steps names",
                             p->phase)
                  : status;
}

octet_status octet_prepare(octet_prepared **out, const octet_plan *plan, int phase,
                           const octet_memory *like, const octet_exec *exec, octet_error *err) {
    octet_status status = oct_need(out, "out", err);
    status = status ? status : oct_run_check(plan, phase, like, exec, err);
    if (status) {
        return status;
    }
    octet_prepared *p = calloc(1, sizeof *p);
    if (!p) {
        return oct_fail(err, OCTET_NO_MEMORY, "no memory for a prepared plan");
    }
    p->plan = plan;
    p->phase = phase;
    p->cuda = exec->cuda;
    status = oct_memory_check(&p->used, plan, phase, like, err);
    if (!status && oct_runner_of(&plan->device)->list_make && is_near(&p->used)) {
        status = fill(p, like, exec, err);
    }
    if (status) {
        octet_prepared_free(p);
        return status;
    }
    *out = p;
    return OCTET_OK;
}

void octet_prepared_free(octet_prepared *prepared) {
    if (prepared) {
        if (prepared->list) {
            oct_runner_of(&prepared->plan->device)->list_free(prepared->list);
        }
        free(prepared);
    }
}

size_t oct_prepared_print(char *text, size_t size, const octet_prepared *prepared) {
    if (!prepared->list) {
        return oct_writer_start(text, size).length;
    }
    return oct_runner_of(&prepared->plan->device)->list_print(text, size, prepared->list);
}

/* ---- running ----------------------------------------------------------------------------- */

/* Whether the memory is of the kind that was prepared for, and sound: then where it is. What is
 * not is checked, and told of, by octet_run_phase. */
static bool takes(oct_starts *starts, const octet_prepared *p, const octet_memory *memory) {
    oct_regions now;
    now.count = p->used.count;
    for (int i = 0; i < now.count; i++) {
        const oct_region *was = &p->used.at[i];
        oct_region *is = &now.at[i];
        is->at = oct_region_start(memory, was->index);
        is->need = was->need;
        is->is_written = was->is_written;
        if (!is->at || low_of(is->at) != low_of(was->at) ||
            oct_region_stride(memory, was->index) != was->stride ||
            (!was->port && oct_region_given(memory, was->index) < was->need)) {
            return false;
        }
        starts->at[was->index] = (uint64_t)(uintptr_t)is->at - low_of(is->at);
    }
    return oct_regions_apart(&now);
}

octet_status octet_run_prepared(octet_prepared *prepared, const octet_memory *memory,
                                const octet_exec *exec, octet_error *err) {
    octet_status status = oct_need(prepared, "prepared", err);
    status = status ? status : oct_need(memory, "memory", err);
    status = status ? status : oct_need(exec, "exec", err);
    if (status) {
        return status;
    }
    const octet_plan *plan = prepared->plan;
    oct_starts starts;
    bool known = prepared->list && exec->cuda == prepared->cuda && exec->size == sizeof *exec &&
                 memory->size == sizeof *memory &&
                 !atomic_load_explicit(&prepared->stale, memory_order_relaxed);
    if (!known || !takes(&starts, prepared, memory)) {
        return octet_run_phase(plan, prepared->phase, memory, exec, err);
    }
    oct_phase phase = {.plan = plan,
                       .number = prepared->phase,
                       .memory = memory,
                       .exec = exec,
                       .list = prepared->list};
    bool stale = false;
    status = oct_runner_of(&plan->device)->walk(&stale, &phase, &starts, err);
    if (stale) {
        atomic_store_explicit(&prepared->stale, true, memory_order_relaxed);
    }
    return status;
}
