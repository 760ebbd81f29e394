/* run.h - a plan in the caller's memory: its buffers, its steps, and who does them. */
#ifndef OCT_RUN_RUN_H
#define OCT_RUN_RUN_H

#include "core/matrix.h"
#include "octet.h"
#include "octet/run.h"

/* ---- memory ---- */

/* Memory that the caller hands over whole: a port's, or an arena. */
typedef struct oct_region {
    const octet_port *port; /* NULL: an arena */
    const void *at;
    int64_t stride; /* elements from row to row of an argument; 0: dense */
    int64_t bytes;  /* that an arena has, as the caller says */
    int64_t need;   /* bytes that the plan uses */
    int align;
    int index;       /* its place in the order of regions */
    bool is_written; /* by a step of the phase */
} oct_region;

/* Ports one after the other, then the arenas. */
enum {
    OCT_REGION_OUTS = OCTET_PLAN_ARGS,
    OCT_REGION_EXCHANGES = OCT_REGION_OUTS + OCTET_PLAN_OUTS,
    OCT_REGION_SAVED = OCT_REGION_EXCHANGES + OCTET_PLAN_EXCHANGES,
    OCT_REGION_RESTORED, /* two arenas: forward's, and behind it backward's */
    OCT_REGION_WORK = OCT_REGION_RESTORED + 2,
    OCT_REGIONS
};

/* Those that a phase uses, once each. */
typedef struct oct_regions {
    int count;
    oct_region at[OCT_REGIONS];
} oct_regions;

/* Whether the memory serves every step of the phase. Writes nothing to it. */
octet_status oct_memory_check(const octet_plan *plan, int phase, const octet_memory *memory,
                              octet_error *err);
/* The same, and what the phase uses of it. */
octet_status oct_memory_regions(oct_regions *used, const octet_plan *plan, int phase,
                                const octet_memory *memory, octet_error *err);
/* Where a region begins, and how far apart the rows of an argument are; and the bytes that the
 * caller says an arena has. 0 for others. */
const void *oct_region_start(const octet_memory *memory, int index);
int64_t oct_region_stride(const octet_memory *memory, int index);
int64_t oct_region_bytes(const octet_memory *memory, int index);
/* Makes it begin there. */
void oct_region_put(octet_memory *memory, int index, void *at);

/* Where a buffer lies; NULL for OCTET_ABSENT. Of a buffer that is only read, not to be written.
 */
void *oct_memory_at(const octet_plan *plan, const octet_memory *memory, uint8_t buffer);

/* ---- steps ---- */

/* Matrices have only those parts that the step lists, so that a kernel sees no other memory.
 * What the step does not have is zero. */
typedef struct oct_work {
    const octet_step *step;
    oct_matrix dst, a, b, a_copy, b_copy, sums;
    bool a_made, b_made, sums_made; /* an earlier step has written them */
    bool a_measured;                /* an earlier step of this phase has taken its amax */
    oct_vector bias;
    oct_vector gamma;   /* a norm's */
    const float *stats; /* and its row statistics */
    void *to;           /* OCTET_OP_ZERO */
    int64_t to_bytes;
    const float *scale; /* delayed scaling's */
    float *amax;
    int64_t amaxes;      /* floats there */
    const int64_t *seed; /* stochastic rounding's */
    const float *alpha;  /* a GEMM's, where a cast has left it */
    oct_alpha alphas[2]; /* those that a cast leaves */
    void *scratch;       /* a GEMM's */
    int64_t scratch_bytes;
    oct_chunk chunk; /* of ranks' rows; the ranks alone where a step is of no chunk */
    int64_t b_first; /* a GEMM's: the outer index of b that dst's first column is made of */
} oct_work;

/* The prologue's step, or a cast that applies it: what it computes, of the plan that it belongs
 * to. */
oct_prologue_call oct_prologue_of(const oct_work *work, const octet_plan *plan);
/* What a cast reads, where it applies the prologue: f(x), which lies nowhere. */
oct_matrix oct_applied_of(const oct_prologue_call *call);

void oct_work_of(oct_work *out, const octet_plan *plan, const octet_memory *memory,
                 const octet_step *step);

/* ---- devices ---- */

/* A phase of a plan that is being run. */
typedef struct oct_phase {
    const octet_plan *plan;
    int index;
    const octet_memory *memory;
    const octet_exec *exec;
    void *list;   /* what is launched goes there instead; NULL: it is not asked for */
    bool entered; /* what the runner's `begin` leaves for its `end` */
    /* What its device decides before the first step, by the plan alone: oct_phase_decide. */
    uint8_t partner[OCTET_PLAN_STEPS]; /* a later step that is done together with this one */
} oct_phase;

/* Which steps of a phase can be done two at a time: a pure function of the plan. */
void oct_pairs_of(uint8_t partner[OCTET_PLAN_STEPS], const octet_plan *plan, int phase);

/* Where the regions of a run begin, rounded down to OCT_START_ALIGN: all that a list of
 * launches needs to know of the memory. */
#define OCT_START_ALIGN 256
typedef struct oct_starts {
    uint64_t at[OCT_REGIONS];
} oct_starts;

/* How a device does what plans and delayed scaling ask for. All arguments are checked. */
typedef struct oct_runner {
    /* Whether exec has the device that the plan is for. */
    octet_status (*check)(const octet_plan *plan, const octet_exec *exec, octet_error *err);
    /* Before the first step of a phase and, where that was done, after the last one. */
    octet_status (*begin)(oct_phase *phase, octet_error *err);
    void (*end)(const oct_phase *phase);
    /* A step that is no collective. */
    octet_status (*work)(const oct_work *work, const oct_phase *phase, octet_error *err);
    /* Two steps as one; NULL: of a device that does none so. */
    octet_status (*work_two)(const oct_work *a, const oct_work *b, const oct_phase *phase,
                             octet_error *err);
    /* Of a device that has lists of launches; else NULL. One to fill: begin and work put into
     * the phase's what they launch. Their memory is what `stand_in` gives for a region that
     * begins so many bytes behind a boundary. `walk` launches what is there, on memory; *stale:
     * something in it is not launched as it is any more, and was decided anew. */
    octet_status (*list_make)(void **out, const octet_exec *exec, octet_error *err);
    void *(*stand_in)(int region, uint8_t low);
    octet_status (*walk)(bool *stale, const oct_phase *phase, const oct_starts *starts,
                         octet_error *err);
    void (*list_free)(void *list);
    uint64_t (*list_regions)(const void *list); /* bits: those that it refers to */
    size_t (*list_print)(char *text, size_t size, const void *list);
    /* Delayed scaling; exec may be NULL where there is no GPU. */
    octet_status (*record)(const octet_delayed *state, const float *amax,
                           const octet_exec *exec, octet_error *err);
    /* Records amax first, where it is not NULL; reduced may be NULL. */
    octet_status (*update)(const octet_delayed *state, const float *amax, const float *reduced,
                           const octet_exec *exec, octet_error *err);
    octet_status (*update_all)(const octet_delayed *states, int count, const octet_exec *exec,
                               octet_error *err);
} oct_runner;

/* All that is decided before the first step. */
void oct_phase_decide(oct_phase *phase);
/* A step of a phase that is decided, and the one that is done with it. Bits of `done` are
 * steps. */
octet_status oct_run_step(const oct_phase *phase, int index, uint64_t *done, octet_error *err);
/* All steps, between the runner's begin and end. */
octet_status oct_run_steps(oct_phase *phase, octet_error *err);
/* What it launches, a line each; as by snprintf. "" where runs decide. */
size_t oct_prepared_print(char *text, size_t size, const octet_prepared *prepared);
/* What octet_run_phase checks before it looks at the memory. */
octet_status oct_run_check(const octet_plan *plan, int phase, const octet_memory *memory,
                           const octet_exec *exec, octet_error *err);

extern const oct_runner oct_cpu_runner, oct_cuda_runner;

/* Who runs plans for a device; a kind that is none is the CPU. */
const oct_runner *oct_runner_of(const octet_device *device);
/* Who serves memory that comes without a plan: exec's GPU, or the CPU where it has none. exec
 * may be NULL. */
const oct_runner *oct_runner_beside(const octet_exec *exec);

#endif
