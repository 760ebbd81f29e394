/* cuda.h - the CUDA device: operations on device memory, launched on a stream. Every operation
 * only launches: it waits for nothing, and can be captured in a CUDA graph. It allocates host
 * memory only at the first use of a kernel or product. Quantized bytes equal the CPU device's,
 * bit for bit. Arguments are valid, since the plan and octet_run have checked them; matrices
 * may have no rows or no columns. */
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
    bool entered; /* True between oct_cuda_enter and leave: operations need not enter themselves
                   */
    struct oct_cuda_list *list; /* if not NULL, launches go into this list instead: list.h */
} oct_cuda_on;

/* Makes the GPU's context the thread's current one, if it is not. Pass *pushed to
 * oct_cuda_leave, which restores the old context. */
octet_status oct_cuda_enter(const octet_cuda *cuda, bool *pushed, octet_error *err);
void oct_cuda_leave(const octet_cuda *cuda, bool pushed);

/* Live state of one quantize, in device memory; what the scheme does not use is NULL. */
typedef struct oct_cuda_live {
    const float *scale;  /* delayed: the stored scale */
    const float *amax;   /* current: the tensor's amax */
    float *new_amax;     /* delayed: raised to the tensor's amax, as octet_delayed_record does;
                          * may be NULL */
    const int64_t *seed; /* stochastic rounding: the seed */
    uint32_t stream;     /* stochastic rounding: octet_stream */
    float *sums;         /* also write oct_cuda_sum_columns's result here; NULL: no. Not for
                          * NVFP4 */
    int64_t amaxes;      /* number of floats at amax, 1 or OCT_AMAX_SHARES; 0 counts as 1 */
    /* NVFP4 without 4over6: factors of two products, computed here as well; NULL: none. Their
     * amaxes are known. */
    const oct_alpha *alphas;
    /* Copies for emulated or folded products: the result of oct_cuda_decode or, if the copy is
     * quantized, of oct_cuda_fold. The cast writes them, too, unless the product makes them
     * later. NULL, or a plain one with parts[0] NULL: no copy. */
    const oct_matrix *row_copy, *col_copy;
    /* Bytes that need not be written if the cast makes the copy without them. */
    bool row_passes, col_passes;
    bool measured; /* an earlier launch on this stream has read the tensor to find its amax */
    /* The prologue to compute while reading: source is f(x), whose memory is not read. NULL:
     * source is read. For FP8 in blocks or with one scale, and MXFP8. */
    const oct_prologue_call *apply;
} oct_cuda_live;

/* Its index and architecture, as plans name it. */
octet_device oct_cuda_device_of(const octet_cuda *cuda);
/* Whether the GPU runs plans for this device; it also runs plans for an older architecture.
 * cuda may be NULL, which runs none. */
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
/* The amax of a plain matrix: one float, raised from 0; or OCT_AMAX_SHARES maxima of its parts,
 * all of them written. */
typedef struct oct_cuda_amaxing {
    float *out;
    int64_t count; /* floats there: 1 or OCT_AMAX_SHARES */
    const oct_matrix *source;
    bool raises; /* out has a value already, which is raised as octet_delayed_record does */
} oct_cuda_amaxing;
octet_status oct_cuda_amax(const oct_cuda_on *on, const oct_cuda_amaxing *one,
                           octet_error *err);
/* Two of them, in one launch if possible; the first one first. */
octet_status oct_cuda_amax_two(const oct_cuda_on *on, const oct_cuda_amaxing two[2],
                               octet_error *err);
/* NVFP4: the amax parts that dst has, raised to source's: per tensor or per row and column,
 * columnwise after the Hadamard transform where there is one. sums: receives what
 * oct_cuda_sum_columns makes; NULL: not wanted. */
octet_status oct_cuda_amax_parts(const oct_cuda_on *on, const oct_matrix *dst,
                                 const oct_matrix *source, float *sums, octet_error *err);
/* A copy of a matrix with at most this many rows is made by the product that needs it, not by
 * the cast: most such products read the bytes instead. The cast then writes all bytes. */
#define OCT_CUDA_FEW_ROWS 16
static inline bool oct_cuda_copy_waits(const oct_matrix *m) {
    return m->rows <= OCT_CUDA_FEW_ROWS;
}
/* Every part of dst but the amaxes, padding zeroed. */
octet_status oct_cuda_quantize(const oct_cuda_on *on, const oct_matrix *dst,
                               const oct_matrix *source, const oct_cuda_live *live,
                               octet_error *err);
/* Two of them, in one launch if possible. The second one comes first: it was measured last, so
 * it is still in the cache. */
typedef struct oct_cuda_quantizing {
    const oct_matrix *dst, *source;
    oct_cuda_live live;
} oct_cuda_quantizing;
octet_status oct_cuda_quantize_two(const oct_cuda_on *on, const oct_cuda_quantizing two[2],
                                   octet_error *err);
/* dst (plain) from the bytes of one direction. */
octet_status oct_cuda_dequantize(const oct_cuda_on *on, const oct_matrix *dst,
                                 const oct_matrix *source, octet_use use, octet_error *err);
/* The operand of an emulated product: dst (plain) = codes times block scales. Left out is the
 * factor that a whole operand or line shares (per tensor: the scale; NVFP4: amax / (6 Emax)).
 * The Hadamard transform is not undone. Every value is exact in fp32, and in bf16 if block
 * scales are powers of two or E4M3 and values are not subnormal. If codes are transformed,
 * dst.rows may be source's rounded up to 16; columns beyond source's are not written. A plain
 * source is cast. */
octet_status oct_cuda_decode(const oct_cuda_on *on, const oct_matrix *dst,
                             const oct_matrix *source, octet_use use, octet_error *err);
/* The operand of a folded product: dst is FP8 in blocks of 128, one direction, with sizes
 * rounded up to a multiple of 16 along the product and of 8 across. It is made from source's
 * MXFP8 bytes of `use`; with square blocks these may be of the other direction.
 * kernels/folding.h defines the codes; the padding is 0. */
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
/* The same for a chunk of each shard's rows: rowwise scales and amaxes of rows. A chunk
 * consists of whole blocks of rows; of whole tiles of 128 rows if scales are in tensor-core
 * order. */
octet_status oct_cuda_take(const oct_cuda_on *on, const oct_matrix *dst,
                           const oct_matrix *source, const oct_chunk *chunk, octet_error *err);
/* A chunk of every rank's rows of dst = source, which has only these rows, rank after rank:
 * values of one dtype, or rowwise codes. Both are dense. */
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

/* A prologue. Results have the CPU's bits, except for a NaN in gamma's gradient. `amax` is
 * raised from 0. */
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
    /* Memory for copies of the operands: decoded (emulated product), folded, or padded (native
     * product): rows of U8 as cuBLASLt needs them. Without parts: no copy. */
    oct_matrix a_copy, b_copy;
    bool a_made, b_made; /* the copy is made already */
    oct_matrix dst_copy; /* native: fp32 sums for some rows of a dst that needs padding; or NULL
                          */
    oct_matrix b_scales; /* native: memory for the padded scales of b; or NULL */
    oct_vector bias;     /* at NULL: none; dst.cols long */
    const float *alpha;  /* an oct_alpha's `to`, written already; or NULL */
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
/* Which library multiplies: "cublaslt" (Octet's own kernels do what cuBLASLt cannot, or does
 * slowly), or "own" if there is no cuBLASLt or $OCTET_CUDA_GEMM=own. */
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
