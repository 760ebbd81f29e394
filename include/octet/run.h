/* run.h - running a plan on the caller's memory. */
#ifndef OCTET_RUN_H
#define OCTET_RUN_H

#include "octet/cuda.h"
#include "octet/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- run: a plan on the caller's memory ------------------------------------------------- */

/* Does the items [begin, end) of some work. */
typedef void (*octet_task)(void *arg, int64_t begin, int64_t end);

/* Where and on which threads a plan runs. parallel_for must call task over disjoint ranges that
 * cover [0, count), possibly at the same time, and return when all are done. NULL: serial. */
typedef struct octet_exec {
    uint32_t size;
    uint32_t threads; /* workers that parallel_for may use at once; 0 counts as 1 */
    void (*parallel_for)(void *pool, int64_t count, octet_task task, void *arg);
    void *pool;
    octet_cuda *cuda; /* the GPU for plans that run on one */
    void *stream;     /* the CUstream; NULL is the default stream */
} octet_exec;

#define OCTET_EXEC_INIT OCTET_SIZED(octet_exec)

/* Alignment of saved, restored and workspace, in bytes. Sizes in plans are multiples of it. */
#define OCTET_ARENA_ALIGN 64

/* The caller's memory for one run: one pointer for each port, and the arenas. The caller keeps
 * owning all of it. A pointer may be NULL if no step of the phase uses the port, or if it has 0
 * bytes. Alignment: 4 bytes for F32, 2 for 16-bit types, 8 for I64. Memory that is written must
 * not overlap any other. */
typedef struct octet_memory {
    uint32_t size;
    uint32_t reserved;
    const void *args[OCTET_PLAN_ARGS];    /* written only where the port is_mutable */
    int64_t arg_strides[OCTET_PLAN_ARGS]; /* row strides of plain matrices, in elements; 0:
                                           * dense */
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

/* The most bytes of stack that a run needs in an optimized build; each task given to
 * parallel_for needs as much. On a GPU, the driver, NVRTC and cuBLASLt need more on top. */
#define OCTET_RUN_STACK (96 << 10)

/* Runs a plan without collectives, or one phase of any plan. The caller runs the collectives of
 * phase p before phase p + 1. It allocates nothing, locks nothing and has no state, except at a
 * GPU's first use of a kernel. Calls that write disjoint memory may run at the same time. All
 * checks come before the first write. It trusts the plan (made by an octet_plan_ function, or
 * accepted by octet_plan_check), and that each port's memory is as large as the plan says. It
 * checks NULL pointers, alignment, strides, the sizes of arenas, and that written memory does
 * not overlap. */
OCTET_API OCTET_CHECKED octet_status octet_run(const octet_plan *plan,
                                               const octet_memory *memory,
                                               const octet_exec *exec, octet_error *err);
OCTET_API OCTET_CHECKED octet_status octet_run_phase(const octet_plan *plan, int phase,
                                                     const octet_memory *memory,
                                                     const octet_exec *exec, octet_error *err);

/* One phase of a plan (0 if it has no collectives) with all decisions of the device made: on a
 * GPU which kernels with which extents, how products are split for cuBLASLt, copies, pairs. It
 * is made for memory like `like`: the same strides, and addresses equal modulo 256. A run then
 * only fills in addresses and launches. Results equal those of octet_run_phase, bit for bit.
 * Other memory or another GPU runs through octet_run_phase, and so does every run on a CPU,
 * which has nothing to decide. The plan must stay in place, unchanged, until this is freed.
 * Free it before the GPU is closed. Only octet_prepare allocates; several threads may run one
 * object at the same time. */
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
 * has two states, with OCTET_FORWARD_SLOTS for forward and OCTET_BACKWARD_SLOTS for backward.
 * octet_slot gives the slot of each role. */
typedef struct octet_delayed {
    uint32_t size;
    uint8_t format; /* octet_dtype: E4M3 or E5M2; scales map the amax to its maximum */
    uint8_t algo;   /* octet_amax_algo: MAX or MOST_RECENT */
    uint8_t reserved[2];
    int32_t margin;
    uint32_t length;
    int64_t slots;
    float *scale;
    float *history;
} octet_delayed;

#define OCTET_DELAYED_INIT OCTET_SIZED(octet_delayed)
#define OCTET_DELAYED_BATCH 240 /* the most states that one launch updates */

/* history[0] = max(history[0], amax), slot by slot; NaN amaxes are ignored. If exec has a GPU,
 * all memory is on it; exec NULL means the CPU. */
OCTET_API OCTET_CHECKED octet_status octet_delayed_record(const octet_delayed *state,
                                                          const float *amax,
                                                          const octet_exec *exec,
                                                          octet_error *err);
/* Rolls the history and updates the scales. Where `reduced` is not zero, it replaces
 * history[0]; it may be NULL. A slot without a new amax does not change. */
OCTET_API OCTET_CHECKED octet_status octet_delayed_update(const octet_delayed *state,
                                                          const float *reduced,
                                                          const octet_exec *exec,
                                                          octet_error *err);
/* Updates `count` states whose amaxes are recorded; no two may share memory. On a GPU,
 * neighbouring states with the same format, algorithm, margin, length and slots share a launch,
 * up to OCTET_DELAYED_BATCH of them. All states are checked before the first is updated. */
OCTET_API OCTET_CHECKED octet_status octet_delayed_update_all(const octet_delayed *states,
                                                              int count, const octet_exec *exec,
                                                              octet_error *err);
/* Records amax, then updates; on a GPU in one launch. */
OCTET_API OCTET_CHECKED octet_status octet_delayed_step(const octet_delayed *state,
                                                        const float *amax,
                                                        const octet_exec *exec,
                                                        octet_error *err);

/* A small thread pool for programs that have none; its parallel_for goes into octet_exec. The
 * caller makes and frees it. Only one parallel_for may run at a time, never from inside a task.
 * With NULL as the pool, the calling thread does the work. Only octet_pool_create allocates.
 * After fork the child has no threads of the pool: its calls do the work themselves, with the
 * same results. It may free the pool and make another. */
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
