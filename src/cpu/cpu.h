/* cpu.h - the CPU device: operations over plain memory.
 *
 * Every operation takes tensors as memory (nothing is allocated), divides its work through the
 * caller's parallel_for, and gives the same bytes for every number of threads; for every
 * instruction set, too, but for products, which differ within their bound. Arguments are valid:
 * the plan and octet_run have checked them. */
#ifndef OCT_CPU_CPU_H
#define OCT_CPU_CPU_H

#include "core/matrix.h"
#include "octet.h"
#include "octet/run.h"

/* The caller's threads. parallel_for NULL: serial. */
typedef struct oct_threads {
    void (*parallel_for)(void *pool, int64_t count, octet_task task, void *arg);
    void *pool;
    int count; /* at least 1 */
} oct_threads;

/* Live state of one quantize: pointers that the quantizer's scheme does not use are NULL. */
typedef struct oct_live {
    const float *scale;             /* delayed: the stored scale */
    const float *amax;              /* current: the tensor's amax */
    float *new_amax;                /* delayed: receives the amax; may be NULL */
    uint64_t seed;                  /* stochastic rounding, by */
    uint32_t stream;                /* this stream of its random bits */
    const oct_prologue_call *apply; /* source is its f(x), which is computed; its memory is not
                                     * read. NULL: it is read */
} oct_live;

/* amax of a plain matrix into *out. */
void oct_cpu_amax(float *out, const oct_matrix *source, const oct_threads *threads);
/* NVFP4: the amax parts that dst has, from source: per tensor or per row and column, columnwise
 * after the Hadamard transform where there is one. */
void oct_cpu_amax_parts(const oct_matrix *dst, const oct_matrix *source,
                        const oct_threads *threads);
/* Every part of dst but the amaxes, padding zeroed. */
void oct_cpu_quantize(const oct_matrix *dst, const oct_matrix *source, const oct_live *live,
                      const oct_threads *threads);
/* dst (plain) from the bytes of one direction. */
void oct_cpu_dequantize(const oct_matrix *dst, const oct_matrix *source, octet_use use,
                        const oct_threads *threads);
/* dst (plain) = source (plain) in dst's dtype. */
void oct_cpu_cast(const oct_matrix *dst, const oct_matrix *source, const oct_threads *threads);
/* The other direction of a transposable quantizer's bytes, scales and amax. */
void oct_cpu_transpose(const oct_matrix *dst, const oct_matrix *source, octet_use have,
                       const oct_threads *threads);
/* dst's scale of that direction = source's, in tensor-core order; `back` undoes it. */
void oct_cpu_swizzle(const oct_matrix *dst, const oct_matrix *source, octet_use use, bool back);
/* dst's parts = `ranks` shards of source's layout, stacked in source's parts; parts that source
 * lacks are left alone. source.rows is one shard's. */
void oct_cpu_assemble(const oct_matrix *dst, const oct_matrix *source, int64_t ranks);
/* The same of a chunk of each shard's rows, for rowwise scales and amaxes of rows. A chunk is
 * whole blocks of rows; where scales are in tensor-core order, whole tiles of 128. */
void oct_cpu_take(const oct_matrix *dst, const oct_matrix *source, const oct_chunk *chunk);
/* A chunk of every rank's rows of dst = source, which has these alone, rank after rank: values
 * of one dtype, or rowwise codes. Both lie without gaps. */
void oct_cpu_join(const oct_matrix *dst, const oct_matrix *source, const oct_chunk *chunk,
                  const oct_threads *threads);
/* dst = source + bias by column, rounded once. bias is F32, BF16 or F16. */
void oct_cpu_add_bias(const oct_matrix *dst, const oct_matrix *source, const void *bias,
                      octet_dtype bias_dtype, const oct_threads *threads);
/* dst (1 x cols) = column sums of source in fp32 (+ dst), rounded once. */
void oct_cpu_bias_grad(const oct_matrix *dst, const oct_matrix *source, bool accumulate,
                       const oct_threads *threads);

/* A prologue: format/norm.h and format/activation.h have its elements and the order of its
 * sums. Results are rounded once; of statistics and gamma's gradient, f32 sums are. */
void oct_cpu_statistics(const oct_prologue_call *call, const oct_threads *threads);
void oct_cpu_prologue(const oct_prologue_call *call, const oct_threads *threads);
/* The amax of f(x), which is not written. */
void oct_cpu_prologue_amax(float *out, const oct_prologue_call *call,
                           const oct_threads *threads);
void oct_cpu_prologue_grad(const oct_prologue_call *call, const oct_threads *threads);
void oct_cpu_gamma_grad(const oct_prologue_call *call, const oct_threads *threads);

/* dst = a b (+ bias) (+ dst): fprop a(M,K) b(N,K); dgrad a(M,N) b(N,K); wgrad a(M,N) b(M,K).
 * Sums are fp32, dst is rounded once. The same bytes for every number of lanes and threads;
 * instruction sets may differ from each other within the bound that gemm.c states. */
typedef struct oct_cpu_gemm_call {
    octet_gemm gemm;
    oct_matrix dst, a, b;   /* dst is plain */
    octet_use a_use, b_use; /* bytes that lie across the product are read across: those of a
                             * transposable quantizer, MXFP8's columns, and plain values */
    int64_t b_first;        /* dst's columns are b's outer indices from here on */
    const void *bias;       /* or NULL; (dst.cols) */
    octet_dtype bias_dtype; /* F32, BF16 or F16 */
    bool accumulate;
    bool invariant; /* a row of dst depends on its own row of a and on b alone, and not on how
                     * many rows there are */
    void *scratch;  /* OCT_CPU_LANE_BYTES for each of `lanes`, 64-byte aligned */
    int lanes;      /* at least 1: parts of the work that may run at once */
} oct_cpu_gemm_call;

/* A group of panels of b, those of a, and sums; small products touch only part of it. */
#define OCT_CPU_LANE_BYTES (9 << 18)

void oct_cpu_gemm(const oct_cpu_gemm_call *call, const oct_threads *threads);

/* Delayed scaling's state, checked; see octet/run.h. `reduced` may be NULL. */
void oct_cpu_delayed_record(const octet_delayed *state, const float *amax);
void oct_cpu_delayed_update(const octet_delayed *state, const float *reduced);

/* Which instruction set's kernels run: "avx512bf16", "avx512", "avx2", "reference". Chosen
 * once; OCTET_CPU names a lower one for tests. */
const char *oct_cpu_name(void);

#endif
