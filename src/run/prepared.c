/* prepared.c - a prepared phase run: its list on this run's memory. */
#include "run/prepared.h"

#include "core/fail.h"
#include "core/text.h"

/* Whether no region that is written overlaps another one, where they begin now. */
static bool is_apart(const oct_regions *used, const uint64_t *at) {
    bool apart = true;
    for (int i = 0; i < used->count && apart; i++) {
        const oct_region *a = &used->at[i];
        for (int j = 0; a->is_written && j < used->count && apart; j++) {
            const oct_region *b = &used->at[j];
            uint64_t x = at[a->index] + oct_low_of(a->at), y = at[b->index] + oct_low_of(b->at);
            apart = i == j || x >= y + (uint64_t)b->need || y >= x + (uint64_t)a->need;
        }
    }
    return apart;
}

/* Whether this run's memory is like the memory of octet_prepare: then *starts says where it is.
 * If not, octet_run_phase checks the memory and says what is wrong with it. */
static bool takes(oct_starts *starts, const octet_prepared *p, const octet_memory *memory) {
    for (int i = 0; i < p->used.count; i++) {
        const oct_region *was = &p->used.at[i];
        const void *at = oct_region_start(memory, was->index);
        if (!at || oct_low_of(at) != oct_low_of(was->at) ||
            oct_region_stride(memory, was->index) != was->stride ||
            (!was->port && oct_region_bytes(memory, was->index) < was->need)) {
            return false;
        }
        starts->at[was->index] = (uint64_t)(uintptr_t)at - oct_low_of(at);
    }
    return is_apart(&p->used, starts->at);
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
                       .index = prepared->phase,
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

size_t oct_prepared_print(char *text, size_t size, const octet_prepared *prepared) {
    if (!prepared->list) {
        return oct_writer_start(text, size).length;
    }
    return oct_runner_of(&prepared->plan->device)->list_print(text, size, prepared->list);
}
