/* run.h - the plan on the caller's memory. */
#ifndef OCTET_RUN_H
#define OCTET_RUN_H

#include "octet/cuda.h"
#include "octet/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- run: the plan on the caller's memory ---------------------------------------------- */

/* Does the items [begin, end) of some work. */
typedef void (*octet_task)(void *arg, int64_t begin, int64_t end);

/* Where and on which threads a plan runs. parallel_for must call task over disjoint ranges that
 * cover [0, count), possibly at once, and return when all are done. NULL: serial. */
typedef struct octet_exec {
    uint32_t size;
    uint32_t threads; /* workers that parallel_for may use at once; 0 counts as 1 */
    void (*parallel_for)(void *pool, int64_t count, octet_task task, void *arg);
    void *pool;
    octet_cuda *cuda; /* plans for a GPU run on this one, */
    void *stream;     /* on this CUstream, in order; NULL is the default stream */
} octet_exec;

#define OCTET_EXEC_INIT OCTET_SIZED(octet_exec)

/* Of saved, restored and workspace, in bytes. The sizes that plans ask for are multiples of it.
 */
#define OCTET_BLOCK_ALIGN 64

/* The caller's memory for one run: by port, and the blocks. All of it stays the caller's. A
 * port that no step of the phase uses, or of 0 bytes, may be NULL. Pointers to F32 data are
 * 4-byte aligned, to 16-bit data 2, to I64 8. What is written overlaps nothing else. */
typedef struct octet_memory {
    uint32_t size;
    uint32_t reserved;
    const void *args[OCTET_PLAN_ARGS];    /* written only where the port is_mutable */
    int64_t arg_strides[OCTET_PLAN_ARGS]; /* of plain matrices, in elements; 0: dense */
    void *outs[OCTET_PLAN_OUTS];
    void *exchanges[OCTET_PLAN_EXCHANGES];
    void *saved;
    int64_t saved_bytes;
    const void *restored[2]; /* what forward (0) and backward (1) saved */
    int64_t restored_bytes[2];
    void *workspace;
    int64_t workspace_bytes;
} octet_memory;

#define OCTET_MEMORY_INIT OCTET_SIZED(octet_memory)

/* Bytes of stack that a run needs at most in an optimized build, as does each task that it
 * hands to parallel_for. On a GPU, what the driver, NVRTC and cuBLASLt take comes on top. */
#define OCTET_RUN_STACK (96 << 10)

/* Runs a plan without collectives, or one phase of any plan; the caller does the collectives of
 * phase p before it runs phase p + 1. Allocates nothing, locks nothing, keeps no state (a GPU's
 * first use of a kernel excepted); calls with disjoint written memory may run at once. All
 * checks come before the first write.
 *
 * What it trusts: the plan, which an octet_plan_ call made or octet_plan_check has passed; and
 * that a port's memory has the bytes that the plan says. What it checks: pointers that are
 * NULL, alignment, strides, the bytes of blocks, and overlap of what is written. */
OCTET_API OCTET_CHECKED octet_status octet_run(const octet_plan *plan,
                                               const octet_memory *memory,
                                               const octet_exec *exec, octet_error *err);
OCTET_API OCTET_CHECKED octet_status octet_run_phase(const octet_plan *plan, int phase,
                                                     const octet_memory *memory,
                                                     const octet_exec *exec, octet_error *err);

/* A phase of a plan at its sizes (0 where it has no collectives) and all that a device decides
 * of it: on a GPU which kernels with which extents, products cut into those that cuBLASLt
 * takes, copies, pairs. Decided once, for memory like `like`: with its strides, and addresses
 * that are the same modulo 256. A run of it resolves addresses and launches. Results are those
 * of octet_run_phase, bit for bit; memory of another kind, and another GPU, are run by that. On
 * a CPU, where a run has nothing to decide, every run is. The plan stays where it is and as it
 * is until it is freed, before the GPU is closed. Only octet_prepare allocates; several threads
 * may run one at once. */
typedef struct octet_prepared octet_prepared;
OCTET_API OCTET_CHECKED octet_status octet_prepare(octet_prepared **out, const octet_plan *plan,
                                                   int phase, const octet_memory *like,
                                                   const octet_exec *exec, octet_error *err);
OCTET_API OCTET_CHECKED octet_status octet_run_prepared(octet_prepared *prepared,
                                                        const octet_memory *memory,
                                                        const octet_exec *exec,
                                                        octet_error *err);
/* NULL is allowed. */
OCTET_API void octet_prepared_free(octet_prepared *prepared);

/* One tensor by itself. Quantize: argument 0 is the tensor, outputs are its buffers in flatten
 * order (delayed scaling: argument scale, output amax; stochastic rounding: argument seed).
 * Dequantize: arguments are the buffers, output 0 the tensor in proto's dtype. */
OCTET_API OCTET_CHECKED octet_status octet_plan_quantize(octet_plan *out,
                                                         const octet_proto *source,
                                                         const octet_quantizer *quantizer,
                                                         octet_error *err);
OCTET_API OCTET_CHECKED octet_status octet_plan_dequantize(octet_plan *out,
                                                           const octet_proto *quantized,
                                                           octet_error *err);

/* Delayed scaling's state for `slots` tensors: scale[slots], history[length][slots]. A layer
 * has two: OCTET_FORWARD_SLOTS for forward and OCTET_BACKWARD_SLOTS for backward, each role
 * where octet_slot says. */
typedef struct octet_delayed {
    uint32_t size;
    uint8_t format; /* octet_dtype: E4M3 or E5M2, whose maximum scales aim at */
    uint8_t algo;   /* octet_amax_algo: MAX or MOST_RECENT */
    uint8_t reserved[2];
    int32_t margin;
    uint32_t length;
    int64_t slots;
    float *scale;
    float *history;
} octet_delayed;

#define OCTET_DELAYED_INIT OCTET_SIZED(octet_delayed)
#define OCTET_DELAYED_BATCH 240 /* states that are updated in one launch, at most */

/* history[0] = max(history[0], amax), slot by slot; NaN amaxes are ignored. All memory is the
 * GPU's where exec has one; exec NULL: the CPU's. */
OCTET_API OCTET_CHECKED octet_status octet_delayed_record(const octet_delayed *state,
                                                          const float *amax,
                                                          const octet_exec *exec,
                                                          octet_error *err);
/* Rolls the history and updates the scales. `reduced` replaces history[0] where it is not zero;
 * it may be NULL. A slot without a new amax stays as it is. */
OCTET_API OCTET_CHECKED octet_status octet_delayed_update(const octet_delayed *state,
                                                          const float *reduced,
                                                          const octet_exec *exec,
                                                          octet_error *err);
/* Updates `count` states, no two of the same memory, whose amaxes are recorded. On a GPU
 * neighbours of the same format, algorithm, margin, length and slots share a launch, up to
 * OCTET_DELAYED_BATCH of them. All states are checked before the first one is updated. */
OCTET_API OCTET_CHECKED octet_status octet_delayed_update_all(const octet_delayed *states,
                                                              int count, const octet_exec *exec,
                                                              octet_error *err);
/* Records amax, then updates; on a GPU in one launch. */
OCTET_API OCTET_CHECKED octet_status octet_delayed_step(const octet_delayed *state,
                                                        const float *amax,
                                                        const octet_exec *exec,
                                                        octet_error *err);

/* A small pool of threads for programs that have none; its parallel_for goes into octet_exec.
 * Made and freed by the caller; one parallel_for at a time, never from inside a task. Without a
 * pool, NULL, the caller does the work. octet_pool_create is the only call that allocates.
 * After fork the child has no threads of the pool: its calls do the work themselves, with the
 * same results, and it may free the pool and make another. */
typedef struct octet_pool octet_pool;
OCTET_API OCTET_CHECKED octet_status octet_pool_create(octet_pool **out, int threads,
                                                       octet_error *err);
OCTET_API void octet_pool_free(octet_pool *pool);
OCTET_API void octet_pool_parallel_for(void *pool, int64_t count, octet_task task, void *arg);

/* The instruction set whose kernels the CPU device runs: "avx512bf16", ..., "reference". */
OCTET_API const char *octet_cpu_name(void);

#ifdef __cplusplus
}
#endif

#endif
