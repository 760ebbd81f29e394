/* run.c - a plan or one of its phases: checked, then step by step on its device. */
#include "run/run.h"

#include <string.h>

#include "core/fail.h"

static octet_status check_structs(const octet_plan *plan, const octet_memory *memory,
                                  const octet_exec *exec, octet_error *err) {
    octet_status status = oct_need(plan, "plan", err);
    status = status ? status : oct_need(memory, "memory", err);
    status = status ? status : oct_need(exec, "exec", err);
    status = status ? status : oct_need_size(plan->size, sizeof *plan, "octet_plan", err);
    status = status ? status : oct_need_size(memory->size, sizeof *memory, "octet_memory", err);
    status = status ? status : oct_need_size(exec->size, sizeof *exec, "octet_exec", err);
    status = status ? status
                    : oct_need_zero(&memory->reserved, sizeof memory->reserved,
                                    "octet_memory.reserved", err);
    if (!status && plan->phases == 0) {
        status = oct_fail(err, OCTET_INVALID, "plan is empty: make it by an octet_plan_ call");
    }
    return status ? status : oct_runner_of(&plan->device)->check(plan, exec, err);
}

_Static_assert(OCTET_PLAN_STEPS <= 64, "steps that are done are bits of a uint64_t");

void oct_phase_decide(oct_phase *phase) {
    if (oct_runner_of(&phase->plan->device)->work_two) {
        oct_pairs_of(phase->partner, phase->plan, phase->index);
    } else {
        memset(phase->partner, OCTET_ABSENT, sizeof phase->partner);
    }
}

octet_status oct_run_step(const oct_phase *phase, int index, uint64_t *done, octet_error *err) {
    const octet_plan *plan = phase->plan;
    const oct_runner *runner = oct_runner_of(&plan->device);
    uint8_t partner = phase->partner[index];
    oct_work work, other;
    *done |= (uint64_t)1 << index;
    oct_work_of(&work, plan, phase->memory, &plan->steps[index]);
    if (partner == OCTET_ABSENT) {
        return runner->work(&work, phase, err);
    }
    *done |= (uint64_t)1 << partner;
    oct_work_of(&other, plan, phase->memory, &plan->steps[partner]);
    return runner->work_two(&work, &other, phase, err);
}

octet_status oct_run_steps(oct_phase *phase, octet_error *err) {
    const octet_plan *plan = phase->plan;
    const oct_runner *runner = oct_runner_of(&plan->device);
    octet_status status = runner->begin(phase, err);
    uint64_t done = 0;
    if (status) {
        return status;
    }
    oct_phase_decide(phase);
    for (int i = 0; !status && i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        bool here = step->phase == phase->index && step->op != OCTET_OP_COLLECTIVE;
        if (here && !(done >> i & 1)) {
            status = oct_run_step(phase, i, &done, err);
        }
    }
    runner->end(phase);
    return status;
}

static octet_status run_checked(const octet_plan *plan, int index, const octet_memory *memory,
                                const octet_exec *exec, octet_error *err) {
    oct_phase phase = {.plan = plan, .index = index, .memory = memory, .exec = exec};
    octet_status status = oct_memory_check(plan, index, memory, err);
    return status ? status : oct_run_steps(&phase, err);
}

octet_status oct_run_check(const octet_plan *plan, int phase, const octet_memory *memory,
                           const octet_exec *exec, octet_error *err) {
    octet_status status = check_structs(plan, memory, exec, err);
    if (!status && (phase < 0 || phase >= plan->phases)) {
        status = oct_fail(err, OCTET_INVALID, "phase is %d; the plan has phases 0 to %d", phase,
                          plan->phases - 1);
    }
    return status;
}

octet_status octet_run_phase(const octet_plan *plan, int phase, const octet_memory *memory,
                             const octet_exec *exec, octet_error *err) {
    octet_status status = oct_run_check(plan, phase, memory, exec, err);
    return status ? status : run_checked(plan, phase, memory, exec, err);
}

octet_status octet_run(const octet_plan *plan, const octet_memory *memory,
                       const octet_exec *exec, octet_error *err) {
    octet_status status = check_structs(plan, memory, exec, err);
    for (int i = 0; !status && i < plan->step_count; i++) {
        if (plan->steps[i].op == OCTET_OP_COLLECTIVE) {
            status = oct_fail(err, OCTET_INVALID,
                              "step %d of the plan is a collective, which is the caller's: run "
                              "its phases one by one with octet_run_phase",
                              i + 1);
        }
    }
    return status ? status : run_checked(plan, 0, memory, exec, err);
}
