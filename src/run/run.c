/* run.c - a plan or one of its phases: checked, then step by step on its device. */
#include "run/run.h"

#include "core/fail.h"

static octet_status check_structs(const octet_plan *plan, const octet_memory *memory,
                                  const octet_exec *exec, octet_error *err) {
    octet_status status = oct_need(plan, "plan", err);
    status = status ? status : oct_need(memory, "memory", err);
    status = status ? status : oct_need(exec, "exec", err);
    status = status ? status : oct_need_size(plan->size, sizeof *plan, "octet_plan", err);
    status = status ? status : oct_need_size(memory->size, sizeof *memory, "octet_memory", err);
    status = status ? status : oct_need_size(exec->size, sizeof *exec, "octet_exec", err);
    if (!status && plan->phases == 0) {
        status = oct_fail(err, OCTET_INVALID, "plan is empty: make it by an octet_plan_ call");
    }
    return status ? status : oct_runner_of(&plan->device)->check(plan, exec, err);
}

_Static_assert(OCTET_PLAN_STEPS <= 32, "steps that are done are bits of a word");

/* Does a step, and the one that the plan does with it; bits of `done` are steps. */
static octet_status run_step(const oct_runner *runner, const oct_phase *phase, int index,
                             uint32_t *done, octet_error *err) {
    const octet_plan *plan = phase->plan;
    uint8_t with = plan->steps[index].with;
    oct_work work, other;
    *done |= (uint32_t)1 << index;
    oct_work_of(&work, plan, phase->memory, &plan->steps[index]);
    if (with == OCTET_ABSENT) {
        return runner->work(&work, phase->exec, err);
    }
    *done |= (uint32_t)1 << with;
    oct_work_of(&other, plan, phase->memory, &plan->steps[with]);
    return runner->work_two(&work, &other, phase->exec, err);
}

static octet_status run_steps(const oct_runner *runner, const oct_phase *phase,
                              octet_error *err) {
    const octet_plan *plan = phase->plan;
    octet_status status = OCTET_OK;
    uint32_t done = 0;
    for (int i = 0; !status && i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        bool here = step->phase == phase->number && step->op != OCTET_OP_COLLECTIVE;
        if (here && !(done >> i & 1)) {
            status = run_step(runner, phase, i, &done, err);
        }
    }
    return status;
}

static octet_status run_checked(const octet_plan *plan, int number, const octet_memory *memory,
                                const octet_exec *exec, octet_error *err) {
    const oct_runner *runner = oct_runner_of(&plan->device);
    oct_phase phase = {plan, number, memory, exec, false};
    octet_status status = oct_memory_check(plan, number, memory, err);
    status = status ? status : runner->begin(&phase, err);
    if (!status) {
        status = run_steps(runner, &phase, err);
        runner->end(&phase);
    }
    return status;
}

octet_status octet_run_phase(const octet_plan *plan, int phase, const octet_memory *memory,
                             const octet_exec *exec, octet_error *err) {
    octet_status status = check_structs(plan, memory, exec, err);
    if (!status && (phase < 0 || phase >= plan->phases)) {
        status = oct_fail(err, OCTET_INVALID, "phase is %d; the plan has phases 0 to %d", phase,
                          plan->phases - 1);
    }
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
