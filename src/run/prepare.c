/* prepare.c - a phase of a plan decided for one device and one kind of memory. */
#include <stdlib.h>

#include "core/fail.h"
#include "run/prepared.h"

#define FARTHEST ((int64_t)1 << 38) /* bytes of a region that is referred to */

/* Whether every offset fits into a stand-in; if not, each run decides for itself. */
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

/* Runs the steps into a list instead of on the GPU. They see stand-ins for the memory:
 * addresses that name a region and an offset in it, on the boundaries that `like` begins on.
 * Later runs put their own addresses in the place of the stand-ins. */
static octet_status fill(octet_prepared *p, const octet_memory *like, const octet_exec *exec,
                         octet_error *err) {
    const oct_runner *runner = oct_runner_of(&p->plan->device);
    octet_memory memory = *like;
    oct_phase phase = {.plan = p->plan, .index = p->phase, .memory = &memory, .exec = exec};
    for (int i = 0; i < OCT_REGIONS; i++) {
        oct_region_put(&memory, i, runner->stand_in(i, oct_low_of(oct_region_start(like, i))));
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
    status = oct_memory_regions(&p->used, plan, phase, like, err);
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
