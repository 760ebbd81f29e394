/* run.c - a plan or one of its phases: checked, then step by step on its device. */
#include "run/run.h"

#include "core/fail.h"
#include "cpu/cpu.h"
#include "cuda/cuda.h"

static octet_status (*const devices[])(const oct_work *, const octet_exec *, octet_error *) = {
    [OCTET_CPU] = oct_work_cpu,
    [OCTET_CUDA] = oct_work_cuda,
};

static octet_status check_device(const octet_plan *plan, const octet_exec *exec,
                                 octet_error *err) {
    if (plan->device.kind == OCTET_CPU) {
        return OCTET_OK;
    }
    if (!exec->cuda) {
        return oct_fail(err, OCTET_INVALID,
                        "the plan is for cuda:%u, and exec has no GPU: give it one from "
                        "octet_cuda_open",
                        plan->device.index);
    }
    octet_device device = oct_cuda_device_of(exec->cuda);
    if (device.index != plan->device.index || device.arch < plan->device.arch) {
        return oct_fail(err, OCTET_INVALID,
                        "the plan is for cuda:%u/%u; exec's GPU is cuda:%u/%u",
                        plan->device.index, plan->device.arch, device.index, device.arch);
    }
    return OCTET_OK;
}

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
    return status ? status : check_device(plan, exec, err);
}

_Static_assert(OCTET_PLAN_STEPS <= 32, "steps that are done are bits of a word");

/* Where a run stands. */
typedef struct running {
    const octet_plan *plan;
    const octet_memory *memory;
    const octet_exec *exec;
    uint32_t done; /* bit i: step i */
} running;

static octet_status run_step(running *r, int index, octet_error *err) {
    const octet_plan *plan = r->plan;
    uint8_t with = plan->steps[index].with;
    oct_work work, other;
    r->done |= (uint32_t)1 << index;
    oct_work_of(&work, plan, r->memory, &plan->steps[index]);
    if (with == OCTET_ABSENT) {
        return devices[plan->device.kind](&work, r->exec, err);
    }
    r->done |= (uint32_t)1 << with;
    oct_work_of(&other, plan, r->memory, &plan->steps[with]);
    return oct_work_cuda_two(&work, &other, r->exec, err);
}

static octet_status run_steps(const octet_plan *plan, int phase, const octet_memory *memory,
                              const octet_exec *exec, octet_error *err) {
    running r = {plan, memory, exec, 0};
    octet_status status = OCTET_OK;
    if (plan->device.kind == OCTET_CUDA) {
        status = oct_begin_cuda(plan, phase, memory, exec, err);
    }
    for (int i = 0; !status && i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        if (step->phase == phase && step->op != OCTET_OP_COLLECTIVE && !(r.done >> i & 1)) {
            status = run_step(&r, i, err);
        }
    }
    return status;
}

/* A GPU's context is entered once for all steps. */
static octet_status run_checked(const octet_plan *plan, int phase, const octet_memory *memory,
                                const octet_exec *exec, octet_error *err) {
    octet_status status = oct_memory_check(plan, phase, memory, err);
    if (status || plan->device.kind != OCTET_CUDA) {
        return status ? status : run_steps(plan, phase, memory, exec, err);
    }
    bool pushed;
    status = oct_cuda_enter(exec->cuda, &pushed, err);
    if (!status) {
        status = run_steps(plan, phase, memory, exec, err);
        oct_cuda_leave(exec->cuda, pushed);
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

const char *octet_cpu_name(void) {
    return oct_cpu_name();
}
