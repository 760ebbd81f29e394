/* gemm.c - one product over any mix of plain and quantized operands.
 *
 * An element is worth what dequantizing it gives in exact arithmetic: code, times block scale,
 * times the factor of the operand (or of its row or column). Block scales are applied
 * while packing, factors to the sum. Packed are floats, or bf16 where the instruction set
 * multiplies them and every code times its block scale is exactly a normal bf16 (per-tensor FP8
 * and NVFP4 always; MXFP8, MXFP4 and FP8 blocks with powers of two unless a scale is near the
 * ends of fp32's range, which is looked at first; plain bf16 by definition).
 *
 * The bound. With u = 2^-24, n the length of the product, S = sum |a||b| + |bias| + |old dst|:
 *     |result in fp32 - exact| <= (n + 8) u / (1 - (n + 8) u) S + 2^-126 (n F + T) + 2^-148,
 * and dst is that result rounded to nearest even, once. The second term is there only where
 * bf16 is multiplied: such products take sums below 2^-126 for zero before the factors F are
 * applied, and the subnormal elements of a plain bf16 operand, whose partners' magnitudes add
 * up to T. NaN and Inf go through as in fp32; a factor that is not finite leaves no result
 * finite. The floating-point environment is the default one: with FTZ or DAZ set, subnormals
 * are zero.
 *
 * A product with few rows and a quantized b applies b's block scales to the sums of blocks
 * instead, which stream.h is about: within the same bound.
 *
 * A product is cut into tiles, each done by one lane from its first term to its last.
 *
 * How an invariant product is computed, gemm_invariant.c says. */
#include "cpu/gemm.h"

#include <string.h>

#include "cpu/isa.h"

static double power_of_two(int exponent) {
    uint64_t bits = (uint64_t)(1023 + exponent) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* factor as scale[0] * scale[1]: half of its exponent goes into a power of two, so that neither
 * leaves fp32's range before the result does. */
static void split_factor(float scale[2], double factor) {
    uint64_t bits;
    memcpy(&bits, &factor, sizeof bits);
    int field = (int)(bits >> 52 & 0x7ff);
    int half = field == 0 || field == 0x7ff ? 0 : (field - 1023) / 2;
    half = half < -126 ? -126 : half > 126 ? 126 : half;
    scale[0] = (float)(factor * power_of_two(-half));
    scale[1] = (float)power_of_two(half);
}

/* The transform keeps 16 outputs of every group of rows, so the product runs over them all. */
static void extend_transformed(oct_gemm_job *job) {
    const oct_cpu_gemm_call *call = job->call;
    bool both = call->a.quantizer.hadamard && call->a_use == OCTET_USE_COL &&
                call->b.quantizer.hadamard && call->b_use == OCTET_USE_COL;
    if (both && call->gemm == OCTET_WGRAD) {
        job->a.depth = job->b.depth = oct_round_up(job->a.depth, 16);
    }
}

static oct_finish finish_of(const oct_gemm_job *job) {
    const oct_matrix *dst = &job->call->dst;
    oct_finish finish = {
        .dst = dst->parts[OCTET_PART_VALUES],
        .stride = dst->stride,
        .dtype = (octet_dtype)dst->dtype,
        .accumulate = job->call->accumulate,
        .factor = job->a.factor * job->b.factor,
        .row_factors = job->a.factors,
        .col_factors = job->b.factors,
    };
    split_factor(finish.scale, finish.factor);
    return finish;
}

static bool is_thin(const oct_gemm_job *job) {
    return job->a.outer <= OCT_GEMM_THIN && !job->a.across && !job->b.across;
}

/* Each lane takes the next tile until there is none. */
static void run_lanes(void *arg, int64_t begin, int64_t end) {
    oct_gemm_job *job = arg;
    int64_t count = oct_grid_count(&job->grid);
    for (int64_t lane = begin; lane < end; lane++) {
        char *scratch = (char *)job->call->scratch + lane * OCT_CPU_LANE_BYTES;
        int64_t index;
        while ((index = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed)) <
               count) {
            oct_rect tile = oct_grid_at(&job->grid, index);
            job->way(job, &tile, scratch);
        }
    }
}

/* Panels; where dst has few rows, b as it lies or row by row. Streaming looks at no scale of b,
 * and the other thin way looks at them as it comes to them. */
static void choose_way(oct_gemm_job *job) {
    const oct_gemm_kernels *k = job->kernels;
    bool thin = is_thin(job), stream = thin && oct_gemm_streams(job);
    job->way = stream ? oct_gemm_tile_stream : thin ? oct_gemm_tile_thin : oct_gemm_tile;
    job->bf16 = k->tile_bf16 && oct_view_fits_bf16(&job->a) &&
                (stream || (thin && job->b.scale) || oct_view_fits_bf16(&job->b));
    (thin ? oct_gemm_cut_thin : oct_gemm_cut)(job);
}

void oct_gemm_run_tiles(oct_gemm_job *job, const oct_threads *threads) {
    atomic_store_explicit(&job->next, 0, memory_order_relaxed);
    oct_parallel(threads, oct_min(job->call->lanes, oct_grid_count(&job->grid)), run_lanes,
                 job);
}

void oct_gemm_run(const oct_gemm_kernels *with, const oct_cpu_gemm_call *call,
                  const oct_threads *threads) {
    oct_gemm_job job = {
        .kernels = with,
        .call = call,
        .a = oct_view_make(&call->a, call->a_use, call->gemm == OCTET_WGRAD),
        .b = oct_view_make(&call->b, call->b_use, call->gemm != OCTET_FPROP),
    };
    if (call->b_first || call->dst.cols < job.b.outer) {
        oct_view_cut(&job.b, call->b_first, call->dst.cols);
    }
    if (job.a.outer == 0 || job.b.outer == 0) {
        return;
    }
    extend_transformed(&job);
    job.finish = finish_of(&job);
    if (call->invariant) {
        oct_gemm_run_invariant(&job, threads);
    } else {
        choose_way(&job);
        oct_gemm_run_tiles(&job, threads);
    }
}

void oct_cpu_gemm(const oct_cpu_gemm_call *call, const oct_threads *threads) {
    oct_gemm_run(&oct_cpu_table()->gemm, call, threads);
}
