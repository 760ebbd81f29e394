/* cuda.h - the CUDA device: operations over device memory, launched on a stream.
 *
 * Every operation only launches: it waits for nothing, and may be captured in a graph. It
 * allocates nothing but what a kernel or a product needs at its first use, on the host.
 * Quantized bytes are those of the CPU device, bit for bit. Arguments are valid: the plan and
 * octet_run have checked them; matrices may have no rows or no columns. */
#ifndef OCT_CUDA_CUDA_H
#define OCT_CUDA_CUDA_H

#include "core/matrix.h"
#include "cuda/kernels/quantize.h"
#include "cuda/kernels/zero.h"
#include "octet.h"

/* Where a step is launched. */
typedef struct oct_cuda_on {
    octet_cuda *cuda;
    void *stream; /* CUstream */
    bool entered; /* between oct_cuda_enter and leave: an operation need not look itself */
    struct oct_cuda_list *list; /* what is launched goes there instead: list.h; NULL: it is not
                                 * asked for */
} oct_cuda_on;

/* Makes the GPU's context the thread's current one where it is not; *pushed goes to the leaving
 * call, which brings back what was current. */
octet_status oct_cuda_enter(const octet_cuda *cuda, bool *pushed, octet_error *err);
void oct_cuda_leave(const octet_cuda *cuda, bool pushed);

/* Live state of one quantize, in device memory; what the scheme does not use is NULL. */
typedef struct oct_cuda_live {
    const float *scale;  /* delayed: the stored scale */
    const float *amax;   /* current: the tensor's amax */
    float *new_amax;     /* delayed: raised as octet_delayed_record does; may be NULL */
    const int64_t *seed; /* stochastic rounding, by */
    uint32_t stream;     /* this stream of its random bits */
    float *sums;         /* receives what oct_cuda_sum_columns makes; NULL: not wanted. Not
                          * NVFP4's */
    int64_t amaxes;      /* floats at amax, 1 or OCT_AMAX_SHARES; 0 is 1 */
    /* NVFP4, but not where blocks may map to 4: two products' factors, made on the way; NULL:
     * none. Their amaxes are known. */
    const oct_alpha *alphas;
    /* What oct_cuda_decode, or of a quantized copy oct_cuda_fold, makes of the bytes of a
     * direction, wanted as well unless it waits for the product; NULL or a plain one with
     * parts[0] NULL: not wanted. */
    const oct_matrix *row_copy, *col_copy;
    /* Bytes that may be left out where a copy is made without them. */
    bool row_passes, col_passes;
    bool measured; /* an earlier launch on this stream has read the tensor, for its amax */
    /* source is its f(x), which is computed; its memory is not read. NULL: it is read. FP8 in
     * blocks or with one scale, and MXFP8. */
    const oct_prologue_call *apply;
} oct_cuda_live;

/* Its index and architecture, as plans name it. */
octet_device oct_cuda_device_of(const octet_cuda *cuda);
/* Whether it runs plans for this device: an older architecture's, too. cuda may be NULL, which
 * runs none. */
octet_status oct_cuda_serves(const octet_cuda *cuda, const octet_device *planned,
                             octet_error *err);

/* `bytes` zeros. */
octet_status oct_cuda_zero(const oct_cuda_on *on, void *to, int64_t bytes, octet_error *err);
/* Whole words, on a boundary of words. */
typedef struct oct_cuda_span {
    void *to;
    int64_t bytes;
} oct_cuda_span;
/* Zeros in 1 to OCT_ZERO_SPANS of them, none empty, in one launch. */
octet_status oct_cuda_zero_spans(const oct_cuda_on *on, const oct_cuda_span *spans, int count,
                                 octet_error *err);
/* The amax of a plain matrix: one float, raised from 0; or maxima of its parts, all written.
 */
typedef struct oct_cuda_amaxing {
    float *out;
    int64_t count; /* floats there: 1 or OCT_AMAX_SHARES */
    const oct_matrix *source;
    bool records; /* out holds something already, raised as octet_delayed_record does */
} oct_cuda_amaxing;
octet_status oct_cuda_amax(const oct_cuda_on *on, const oct_cuda_amaxing *one,
                           octet_error *err);
/* Two of them, in one launch where they can, the first one first. */
octet_status oct_cuda_amax_two(const oct_cuda_on *on, const oct_cuda_amaxing two[2],
                               octet_error *err);
/* NVFP4: the amax parts that dst has, raised to source's: per tensor or per row and column,
 * columnwise after the Hadamard transform where there is one. sums: receives what
 * oct_cuda_sum_columns makes; NULL: not wanted. */
octet_status oct_cuda_amax_parts(const oct_cuda_on *on, const oct_matrix *dst,
                                 const oct_matrix *source, float *sums, octet_error *err);
/* Whether what a matrix of so few rows decodes to is made by a product that wants it, not by
 * its cast: most multiply the bytes instead. A cast then leaves no bytes out. */
#define OCT_CUDA_FEW_ROWS 16
static inline bool oct_cuda_copy_waits(const oct_matrix *m) {
    return m->rows <= OCT_CUDA_FEW_ROWS;
}
/* Every part of dst but the amaxes, padding zeroed. */
octet_status oct_cuda_quantize(const oct_cuda_on *on, const oct_matrix *dst,
                               const oct_matrix *source, const oct_cuda_live *live,
                               octet_error *err);
/* Two of them, in one launch where they can, the second one first: what was measured last is
 * still in the cache. */
typedef struct oct_cuda_quantizing {
    const oct_matrix *dst, *source;
    oct_cuda_live live;
} oct_cuda_quantizing;
octet_status oct_cuda_quantize_two(const oct_cuda_on *on, const oct_cuda_quantizing two[2],
                                   octet_error *err);
/* dst (plain) from the bytes of one direction. */
octet_status oct_cuda_dequantize(const oct_cuda_on *on, const oct_matrix *dst,
                                 const oct_matrix *source, octet_use use, octet_error *err);
/* What an emulated product reads: dst (plain) = codes times block scales, without the
 * factor that all of an operand or of a line share (per tensor: the scale; NVFP4: amax / (6
 * Emax)), and with the Hadamard transform left in. Every value is exact in fp32, and in bf16 if
 * block scales are powers of two or E4M3 and values are not subnormal. dst.rows may be source's
 * rounded up to 16 where the codes are transformed; columns beyond source's are left alone. A
 * plain source is cast. */
octet_status oct_cuda_decode(const oct_cuda_on *on, const oct_matrix *dst,
                             const oct_matrix *source, octet_use use, octet_error *err);
/* What a folded product reads: dst, FP8 in blocks of 128 of one direction with sizes rounded up
 * to whole 16 along the product and 8 across, = source's MXFP8 bytes of `use`, which may be of
 * the other direction where blocks are squares. kernels/folding.h says what its codes are; what
 * is added to the sizes is 0. */
octet_status oct_cuda_fold(const oct_cuda_on *on, const oct_matrix *dst,
                           const oct_matrix *source, octet_use use, octet_error *err);
/* dst (plain) = source (plain) in dst's dtype. */
octet_status oct_cuda_cast(const oct_cuda_on *on, const oct_matrix *dst,
                           const oct_matrix *source, octet_error *err);
/* The other direction of a transposable quantizer's bytes, scales and amax. */
octet_status oct_cuda_transpose(const oct_cuda_on *on, const oct_matrix *dst,
                                const oct_matrix *source, octet_use have, octet_error *err);
/* dst's scale of that direction = source's, in tensor-core order. */
octet_status oct_cuda_swizzle(const oct_cuda_on *on, const oct_matrix *dst,
                              const oct_matrix *source, octet_use use, octet_error *err);
/* dst, a matrix of U8, = lines of bytes with zeros behind each line and below the last. dst's
 * columns are whole 16, and its memory lies on such a boundary. */
typedef struct oct_cuda_padding {
    const oct_matrix *dst;
    const uint8_t *from;
    int64_t lines, length;
    int64_t pitch; /* bytes from one line to the next; 0: they are dense */
} oct_cuda_padding;
/* OCT_CUDA_PADDINGS of them at most, in one launch. */
octet_status oct_cuda_pad(const oct_cuda_on *on, const oct_cuda_padding *paddings, int count,
                          octet_error *err);
/* dst's parts = `ranks` shards of source's layout, stacked in source's parts; parts that source
 * lacks are left alone. source.rows is one shard's. */
octet_status oct_cuda_assemble(const oct_cuda_on *on, const oct_matrix *dst,
                               const oct_matrix *source, int64_t ranks, octet_error *err);
/* The same of a chunk of each shard's rows, for rowwise scales and amaxes of rows. A chunk is
 * whole blocks of rows; where scales are in tensor-core order, whole tiles of 128. */
octet_status oct_cuda_take(const oct_cuda_on *on, const oct_matrix *dst,
                           const oct_matrix *source, const oct_chunk *chunk, octet_error *err);
/* A chunk of every rank's rows of dst = source, which has these alone, rank after rank: values
 * of one dtype, or rowwise codes. Both lie without gaps. */
octet_status oct_cuda_join(const oct_cuda_on *on, const oct_matrix *dst,
                           const oct_matrix *source, const oct_chunk *chunk, octet_error *err);
/* dst = source + bias by column, rounded once; dst may be source. */
octet_status oct_cuda_add_bias(const oct_cuda_on *on, const oct_matrix *dst,
                               const oct_matrix *source, const oct_vector *bias,
                               octet_error *err);
/* The sums of each column over each 128 rows of source: ceil(rows / 128) x cols, dense. */
octet_status oct_cuda_sum_columns(const oct_cuda_on *on, float *sums, const oct_matrix *source,
                                  octet_error *err);
/* dst (1 x cols) = these sums of `rows` rows joined (+ dst), rounded once; the CPU's, bit for
 * bit. */
typedef struct oct_cuda_joining {
    const oct_matrix *dst;
    const float *sums;
    int64_t rows;
    bool accumulate;
} oct_cuda_joining;
octet_status oct_cuda_bias_grad(const oct_cuda_on *on, const oct_cuda_joining *joining,
                                octet_error *err);

/* A prologue: the CPU's bits, but for a NaN in gamma's gradient. `amax` is raised from 0. */
octet_status oct_cuda_statistics(const oct_cuda_on *on, const oct_prologue_call *call,
                                 octet_error *err);
octet_status oct_cuda_prologue(const oct_cuda_on *on, const oct_prologue_call *call,
                               octet_error *err);
octet_status oct_cuda_prologue_grad(const oct_cuda_on *on, const oct_prologue_call *call,
                                    octet_error *err);
octet_status oct_cuda_gamma_grad(const oct_cuda_on *on, const oct_prologue_call *call,
                                 octet_error *err);

/* dst = a b (+ bias) (+ dst): fprop a(M,K) b(N,K); dgrad a(M,N) b(N,K); wgrad a(M,N) b(M,K). */
typedef struct oct_cuda_gemm_call {
    octet_gemm gemm;
    oct_matrix dst, a, b; /* dst is plain */
    octet_use a_use, b_use;
    int64_t b_first; /* dst's columns are b's outer indices from here on */
    /* Where an emulated product decodes, a folded one folds, and where a native one copies
     * ragged bytes: storage rows of U8 as cuBLASLt takes them. Without parts: nowhere. */
    oct_matrix a_copy, b_copy;
    bool a_made, b_made; /* that is done already, unless the copy waits */
    oct_matrix dst_copy; /* native: fp32 sums of so many rows of a ragged dst; or NULL */
    oct_matrix
        b_scales;    /* native: where scales of b that has ragged lines are copied; or NULL */
    oct_vector bias; /* at NULL: none; dst.cols long */
    const float *alpha; /* an oct_alpha's `to`, written already; or NULL */
    bool accumulate, split, native;
    bool invariant; /* a row of dst does not depend on the other rows; there are no copies */
    void *scratch;
    int64_t scratch_bytes;
} oct_cuda_gemm_call;

/* A product's scratch: fp32 sums of some of its rows, and cuBLASLt's workspace where it has
 * one. Which products have what, target.c says. */
#define OCT_CUDA_SUMS_BYTES (24 << 20)
#define OCT_CUDA_WORKSPACE_BYTES (8 << 20)

octet_status oct_cuda_gemm(const oct_cuda_on *on, const oct_cuda_gemm_call *call,
                           octet_error *err);
/* Who multiplies: "cublaslt" (and "own" what it does not take, or takes slowly), or "own",
 * always where there is no cuBLASLt or $OCTET_CUDA_GEMM says so. */
const char *oct_cuda_gemm_name(octet_cuda *cuda);

/* Delayed scaling's state in device memory, by the CPU's rule; see octet/run.h. */
octet_status oct_cuda_delayed_record(const oct_cuda_on *on, const octet_delayed *state,
                                     const float *amax, octet_error *err);
/* Records amax first, where it is not NULL, in the same launch; reduced may be NULL. */
octet_status oct_cuda_delayed_update(const oct_cuda_on *on, const octet_delayed *state,
                                     const float *amax, const float *reduced, octet_error *err);
/* Many states; neighbours of one rule and one shape in one launch. */
octet_status oct_cuda_delayed_update_all(const oct_cuda_on *on, const octet_delayed *states,
                                         int count, octet_error *err);

#endif
