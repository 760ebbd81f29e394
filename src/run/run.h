/* run.h - a plan in the caller's memory: its buffers, and a step as every device takes it. */
#ifndef OCT_RUN_RUN_H
#define OCT_RUN_RUN_H

#include "core/matrix.h"
#include "octet.h"

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

/* Does a step that is no collective. On a GPU the context is entered, here and below. */
octet_status oct_work_cpu(const oct_work *work, const octet_exec *exec, octet_error *err);
octet_status oct_work_cuda(const oct_work *work, const octet_exec *exec, octet_error *err);
/* A step and the one that its plan does with it. */
octet_status oct_work_cuda_two(const oct_work *a, const oct_work *b, const octet_exec *exec,
                               octet_error *err);
/* What a GPU does before the first step of a phase: kernels raise amaxes from 0. */
octet_status oct_begin_cuda(const octet_plan *plan, int phase, const octet_memory *memory,
                            const octet_exec *exec, octet_error *err);

#endif
