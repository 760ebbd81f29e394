/* gemm.h - what an instruction set brings to the product, and how its driver calls it. */
#ifndef OCT_CPU_GEMM_H
#define OCT_CPU_GEMM_H

#include "cpu/pack.h"
#include "cpu/stream.h"

/* Before a loop of constant length whose variables must stay in registers. */
#if defined(__clang__)
#define OCT_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define OCT_UNROLL _Pragma("GCC unroll 32")
#else
#define OCT_UNROLL
#endif

/* Everything between a sum and dst, one per product: dst = round(sum * factor + bias + dst). A
 * factor is scale[0] * scale[1], two floats whose product may leave fp32's range; where an
 * operand has a factor of its own per outer index, it is computed in double instead. */
typedef struct oct_finish {
    void *dst;
    int64_t stride;
    octet_dtype dtype;
    bool accumulate;
    float scale[2];
    double factor;
    const float *row_factors, *col_factors; /* by row and by column of dst, or NULL */
} oct_finish;

/* A rectangle of sums and its place in dst. */
typedef struct oct_sums {
    const float *at;
    int64_t pitch;
    int64_t row, col, rows, cols;
    const float *bias; /* of these columns, as floats, or NULL */
} oct_sums;

/* sums[mr][nr] (+)= a panel times b panel over `steps` words; `fresh` starts from zero. */
typedef struct oct_tile_call {
    float *sums;
    const uint32_t *a, *b;
    int64_t steps;
    bool fresh;
} oct_tile_call;

/* out[4 b rows][rows] = dot products of `rows` (1 to 4) rows of a with 4 rows of b. */
typedef struct oct_dot_call {
    float *out;
    const void *a, *b;
    int64_t a_pitch, b_pitch; /* bytes */
    int64_t count;            /* elements, a multiple of 32 */
    int rows;
} oct_dot_call;

/* Elements of b below which packing them costs less than streaming. */
#define OCT_STREAM_LEAST (64 << 10)

/* What is tied together is brought together: the register tile and the tile kernels; and
 * everything of bf16, which is there as a whole or not at all. */
typedef struct oct_gemm_kernels {
    oct_packer packer;
    int mr, mr_stride, nr; /* register tile; mr_stride: words of one step of an a panel */
    int steps;             /* words of a panel along the product, at most; a multiple of 256 */
    void (*tile_f32)(const oct_tile_call *call);
    void (*tile_bf16)(const oct_tile_call *call); /* or NULL */
    void (*dot_f32)(const oct_dot_call *call);
    void (*dot_bf16)(const oct_dot_call *call);
    /* As dot_f32 and dot_bf16, by octet_dtype; formats without a dot are not streamed. */
    oct_streamer stream_f32[OCTET_DTYPES], stream_bf16[OCTET_DTYPES];
    int stream_rows; /* rows of a up to which that is faster than to decode b once for all */
    int64_t stream_least; /* elements of b below which it is slower all the same */
    void (*finish)(const oct_finish *finish, const oct_sums *sums);
} oct_gemm_kernels;

struct oct_gemm_job;

/* How tiles are computed: one tile by one lane, in the memory of that lane. */
typedef void (*oct_gemm_way)(const struct oct_gemm_job *job, const oct_rect *tile,
                             void *scratch);

/* How a row of an invariant product is multiplied: by its own values. */
typedef enum oct_row_kind {
    OCT_ROW_ANY,
    OCT_ROW_BF16, /* it fits bf16 */
    OCT_ROW_F32,  /* by floats, as the others are but for that */
    OCT_ROW_WIDE  /* by panels of floats, which take any values */
} oct_row_kind;

/* What of an invariant product does not depend on a row of a. */
typedef struct oct_pinned {
    bool streams; /* b is read where it lies */
    bool bf16;    /* rows that fit are multiplied as bf16 */
} oct_pinned;

/* A product whose operands have been looked at, the same for every lane. */
typedef struct oct_gemm_job {
    const oct_gemm_kernels *kernels;
    const oct_cpu_gemm_call *call;
    oct_view a, b;
    bool bf16;
    oct_pinned pinned;
    oct_row_kind rows; /* only those rows of dst are finished, where the product is invariant */
    oct_finish finish;
    oct_gemm_way way;
    oct_grid grid; /* the tiles that lanes take */
    int steps;     /* words of their panels along the product */
    _Atomic int64_t next;
} oct_gemm_job;

/* oct_cpu_gemm with given kernels. */
void oct_gemm_run(const oct_gemm_kernels *with, const oct_cpu_gemm_call *call,
                  const oct_threads *threads);

/* The plain loops, which other instruction sets use for what they leave over. */
void oct_finish_reference(const oct_finish *finish, const oct_sums *sums);

/* The bias of columns [col, col + count) as floats into room; NULL without a bias. */
const float *oct_gemm_bias(const oct_gemm_job *job, int64_t col, int64_t count, float *room);

/* All tiles, by the lanes. */
void oct_gemm_run_tiles(oct_gemm_job *job, const oct_threads *threads);
/* The whole of an invariant product: gemm_invariant.c. */
void oct_gemm_run_invariant(oct_gemm_job *job, const oct_threads *threads);
/* Sums into dst: of those rows that the job is for. */
void oct_gemm_finish(const oct_gemm_job *job, const oct_sums *sums);

/* Panels of both operands. */
void oct_gemm_tile(const oct_gemm_job *job, const oct_rect *tile, void *scratch);

#define OCT_GEMM_THIN 16        /* rows of dst up to which a product is thin */
#define OCT_GEMM_THIN_COLS 1024 /* columns of its tiles, at most */
/* A thin product: b is decoded row by row and not packed. */
void oct_gemm_tile_thin(const oct_gemm_job *job, const oct_rect *tile, void *scratch);
/* The same with a quantized b, which is not decoded into memory, either. */
void oct_gemm_tile_stream(const oct_gemm_job *job, const oct_rect *tile, void *scratch);
/* Whether a thin product may be computed that way. */
bool oct_gemm_streams(const oct_gemm_job *job);
/* As far as b decides it. */
bool oct_gemm_b_streams(const oct_gemm_job *job);

/* How a product is cut: sets grid and, where there are panels, steps. */
void oct_gemm_cut(oct_gemm_job *job);
void oct_gemm_cut_thin(oct_gemm_job *job);

#endif
