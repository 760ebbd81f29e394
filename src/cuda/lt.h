/* lt.h - a product as cuBLASLt sees it: the description, the algorithm for it, the run.
 *
 * cuBLASLt's matrices are column-major, so dst(i, j) is its D(j, i): its A is the product's b,
 * its B is the product's a, m is dst's columns and n its rows. */
#ifndef OCT_CUDA_LT_H
#define OCT_CUDA_LT_H

#include "cuda/gemm.h"
#include "cuda/lt_cache.h"

/* cudaDataType, cublasComputeType_t, cublasOperation_t, cublasStatus_t. */
enum { OCT_LT_R_32F = 0, OCT_LT_R_16F = 2, OCT_LT_R_16BF = 14 };
enum { OCT_LT_R_8F_E4M3 = 28, OCT_LT_R_8F_E5M2 = 29, OCT_LT_R_4F_E2M1 = 33 };
enum { OCT_LT_COMPUTE_32F = 68 };
enum { OCT_LT_OP_N = 0, OCT_LT_OP_T = 1 };
enum { OCT_LT_INVALID_VALUE = 7, OCT_LT_ARCH_MISMATCH = 8, OCT_LT_NOT_SUPPORTED = 15 };
enum { OCT_LT_ALLOC_FAILED = 3, OCT_LT_EXECUTION_FAILED = 13, OCT_LT_INTERNAL_ERROR = 14 };

/* cublasLtMatmulMatrixScale_t. */
enum {
    OCT_LT_SCALE_SCALAR_32F = 0,
    OCT_LT_SCALE_VEC16_UE4M3 = 1,
    OCT_LT_SCALE_VEC32_UE8M0 = 2,
    OCT_LT_SCALE_VEC128_32F = 4,
    OCT_LT_SCALE_BLK128_32F = 5
};

#define OCT_LT_NONE 255      /* no bias, no scale */
#define OCT_LT_BLOCKS 120900 /* the version from which 128-blocks have scale modes */

/* What the library is and where it runs. */
typedef struct oct_lt_target {
    int arch;
    int64_t version; /* 10000 * major + 100 * minor + patch */
} oct_lt_target;

/* All that an algorithm depends on, without padding: it is the key that algorithms are cached
 * by. Alignments are log2 of bytes, 8 at most. */
typedef struct oct_lt_matmul {
    int64_t m, n, k;
    int64_t lda, ldb, ldd; /* elements */
    int64_t workspace_bytes;
    uint8_t a_type, b_type, d_type;
    uint8_t bias_type; /* added in the epilogue; or NONE */
    uint8_t a_op, b_op;
    uint8_t a_scale, b_scale; /* scale modes, or NONE */
    uint8_t fast;             /* fp8: sums are not promoted to fp32 on the way */
    uint8_t device_alpha;     /* alpha and beta lie in device memory */
    uint8_t accumulate;
    uint8_t a_align, b_align, d_align, bias_align;
    uint8_t reserved;
} oct_lt_matmul;

_Static_assert(sizeof(oct_lt_matmul) == 8 * OCT_LT_KEY, "the matmul is a key of words");

/* What a run reads and writes; all but host alphas is device memory. */
typedef struct oct_lt_memory {
    const void *a, *b;
    void *d;
    const void *a_scale, *b_scale;
    const void *bias;
    void *workspace;
    const float *alpha; /* device_alpha: alpha, then beta */
} oct_lt_memory;

/* What the library needs of quantized operands: rows of a multiple of this many bytes, and for
 * 128-blocks outer sizes in multiples of the next number, since it reads scales four at a time.
 */
#define OCT_LT_ROW_BYTES 16
#define OCT_LT_ROWS 8

/* Rows of the product's a with zeros below the last, their scales, and what comes of them. */
typedef struct oct_lt_eight {
    uint8_t *rows;
    float *scales, *sums;
} oct_lt_eight;

/* How a call is done by the library. */
typedef struct oct_lt_product {
    oct_lt_matmul matmul;
    oct_lt_memory memory;
    /* The library cannot write dst. It writes fp32 sums of a block of rows to scratch, at
     * memory.d, and gemm_finish rounds them. */
    bool sums;
    /* 128-blocks need dst's rows in multiples of 8: matmul.n covers these. The rest is either a
     * tail, where the library computes the last eight rows again, */
    bool tail;
    int64_t rest;       /* or this many rows, computed with a copy of eight rows and through
                         * sums */
    oct_lt_eight eight; /* room for that */
    int64_t rows;       /* all of dst's, as they are multiplied */
    int64_t chunk;      /* rows at a time */
    int64_t a_bytes;    /* from one row of the product's a to the next */
    float *scales;      /* room for the scales of a chunk's rows, where they are moved */
    bool bias_after;    /* bias is added to the f32 result by a step of its own */
    bool alpha_made;    /* memory.alpha is the caller's, who has written it */
    bool workspace;     /* products without scales want one here */
} oct_lt_product;

/* log2 of the bytes that it lies on a boundary of. */
static inline uint8_t oct_lt_align(const void *at) {
    uintptr_t address = (uintptr_t)at;
    uint8_t shift = 0;
    while (shift < 8 && (address >> shift & 1) == 0) {
        shift++;
    }
    return shift;
}

/* The call as a matmul, a pure function of its arguments. False: not one for the library. */
bool oct_lt_describe(oct_lt_product *out, const oct_cuda_gemm_call *call,
                     const oct_lt_target *target);
/* The same without the library's epilogue for the bias; false: not so either. */
bool oct_lt_leave_bias(oct_lt_product *product, const oct_cuda_gemm_call *call);

/* The part of describing that says how many rows are done at a time, and where everything
 * lies; false: scratch is too small. */
bool oct_lt_set_memory(oct_lt_product *product, const oct_cuda_gemm_call *call);

/* Of a product in parts, `rows` of dst from `first` on, a chunk of them at most; `a` is the
 * call's first operand. */
oct_lt_product oct_lt_part(const oct_lt_product *whole, const oct_gemm_operand *a,
                           int64_t first, int64_t rows);
/* The rest as a part, and what has to be copied for it: up to two, into matrices of `room`. */
oct_lt_product oct_lt_rest(const oct_lt_product *whole, const oct_gemm_operand *a);
int oct_lt_rest_copies(oct_cuda_padding out[2], oct_matrix room[2], const oct_lt_product *whole,
                       const oct_gemm_operand *a);
/* What has to be moved before it is run. */
octet_status oct_lt_part_move(const oct_cuda_on *on, const oct_lt_product *part,
                              const oct_gemm_operand *a, int64_t first, octet_error *err);
/* Makes dst of its sums; `own` is the call as a kernel's parameters. */
octet_status oct_lt_part_finish(const oct_cuda_on *on, const oct_lt_product *part,
                                const oct_gemm_params *own, int64_t first, octet_error *err);

/* What is held on a GPU between products. */
typedef struct oct_lt {
    octet_cuda *cuda;
    const oct_cublaslt *api; /* NULL: the own kernels are asked for */
    void *handle;
    oct_lt_target target;
    bool library; /* products of few rows are the library's, too: it is asked for */
    int pick; /* which of the library's candidates: $OCTET_CUDA_ALGO, usually 0, the first */
    oct_lt_cache algorithms;
} oct_lt;

/* A message for a failed call of the library, which has one word for its own failed launch and
 * for a kernel that failed earlier. */
octet_status oct_lt_failed(octet_error *err, const oct_cublaslt *api, const char *call,
                           int result);

/* Of a part that the library does not run, where the parts before it are added to dst. */
octet_status oct_lt_part_refused(octet_error *err, int64_t number, int64_t rows);

/* Made on first use. $OCTET_CUDA_GEMM=own leaves the library out, =cublaslt the own kernels for
 * what the library takes. */
octet_status oct_lt_get(oct_lt **out, octet_cuda *cuda, octet_error *err);

/* The algorithm for a matmul, cached from the first time on; *found false: there is none. The
 * GPU's context is current, here and in oct_lt_run. */
octet_status oct_lt_find(oct_lt_algorithm *out, bool *found, oct_lt *lt,
                         const oct_lt_product *product, octet_error *err);
/* Launches it; the algorithm gets this run's pointers. *refused true: the library does not run
 * what it proposed; this is cached. */
octet_status oct_lt_run(bool *refused, oct_lt *lt, const oct_lt_product *product,
                        oct_lt_algorithm *algorithm, void *stream, octet_error *err);

#endif
