/* run.h - a plan in the caller's memory: its buffers, its steps, and who does them. */
#ifndef OCT_RUN_RUN_H
#define OCT_RUN_RUN_H

#include "core/matrix.h"
#include "octet.h"
#include "octet/run.h"

/* ---- buffers ---- */

/* Whether the memory serves every step of the phase. Writes nothing to it. */
octet_status oct_memory_check(const octet_plan *plan, int phase, const octet_memory *memory,
                              octet_error *err);

/* Where a buffer lies; NULL for OCTET_ABSENT. Of a buffer that is only read, not to be written.
 */
void *oct_memory_at(const octet_plan *plan, const octet_memory *memory, uint8_t buffer);

/* ---- steps ---- */

/* Matrices have only those parts that the step lists, so that a kernel sees no other memory.
 * What the step does not have is zero. */
typedef struct oct_work {
    const octet_step *step;
    oct_matrix dst, a, b, a_copy, b_copy, dst_copy, b_scales, sums;
    bool a_made, b_made, sums_made; /* an earlier step has written them */
    bool a_measured;                /* an earlier step of this phase has taken its amax */
    oct_vector bias;
    void *to; /* OCTET_OP_ZERO */
    int64_t to_bytes;
    const float *scale; /* delayed scaling's */
    float *amax;
    int64_t amaxes;      /* floats there */
    const int64_t *seed; /* stochastic rounding's */
    const float *alpha;  /* a GEMM's, where a cast has made it */
    oct_alpha alphas[2]; /* those that a cast makes */
    void *scratch;       /* a GEMM's */
    int64_t scratch_bytes;
    int64_t ranks;
} oct_work;

void oct_work_of(oct_work *out, const octet_plan *plan, const octet_memory *memory,
                 const octet_step *step);

/* ---- devices ---- */

/* A phase of a plan that is being run. */
typedef struct oct_phase {
    const octet_plan *plan;
    int number;
    const octet_memory *memory;
    const octet_exec *exec;
    bool entered; /* what the runner's `begin` leaves for its `end` */
} oct_phase;

/* How a device does what plans and delayed scaling ask for. All arguments are checked. */
typedef struct oct_runner {
    /* Whether exec has the device that the plan is for. */
    octet_status (*check)(const octet_plan *plan, const octet_exec *exec, octet_error *err);
    /* Before the first step of a phase and, where that was done, after the last one. */
    octet_status (*begin)(oct_phase *phase, octet_error *err);
    void (*end)(const oct_phase *phase);
    /* A step that is no collective. */
    octet_status (*work)(const oct_work *work, const octet_exec *exec, octet_error *err);
    /* Two steps that the plan does as one: of a target that has such pairs. */
    octet_status (*work_two)(const oct_work *a, const oct_work *b, const octet_exec *exec,
                             octet_error *err);
    /* Delayed scaling; exec may be NULL where there is no GPU. */
    octet_status (*record)(const octet_delayed *state, const float *amax,
                           const octet_exec *exec, octet_error *err);
    /* Records amax first, where it is not NULL; reduced may be NULL. */
    octet_status (*update)(const octet_delayed *state, const float *amax, const float *reduced,
                           const octet_exec *exec, octet_error *err);
    octet_status (*update_all)(const octet_delayed *states, int count, const octet_exec *exec,
                               octet_error *err);
} oct_runner;

extern const oct_runner oct_cpu_runner, oct_cuda_runner;

/* Who runs plans for a device; a kind that is none is the CPU. */
const oct_runner *oct_runner_of(const octet_device *device);
/* Who serves memory that comes without a plan: exec's GPU, or the CPU where it has none. exec
 * may be NULL. */
const oct_runner *oct_runner_beside(const octet_exec *exec);

#endif
