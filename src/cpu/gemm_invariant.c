/* gemm_invariant.c - products whose rows depend neither on each other nor on their number.
 *
 * A product is pinned: which kernels, and in which order a sum takes its terms, follows from
 * the operands' formats, from b and from the length of the sums. Where b can be read as it lies
 * it is, for any number of rows, OCT_STREAM_ROWS at a time: what is best for few rows is not
 * much worse for many. Else both operands are packed into panels, for one row as for thousands.
 *
 * Other products look at all of a before they take bf16 or stream: one unusual row has all rows
 * multiplied otherwise. Here each row is looked at by itself, and rows of different kinds are
 * multiplied in passes of their own, each of which finishes its rows only. */
#include "cpu/gemm.h"

#define STRIP_BYTES (512 << 10) /* of b that stay in a cache while the rows of a pass by */
#define STRIP_ROWS 256          /* of a tile, at most */

/* Whether scales that rows share would have to be looked at. */
static bool shares_scales(const oct_view *a) {
    return a->scale && a->scale_format != OCTET_E4M3 && (a->across || a->row_run > 1);
}

static oct_pinned pin(const oct_gemm_job *job) {
    bool apart = !shares_scales(&job->a);
    oct_pinned p = {.streams = apart && !job->a.across && oct_gemm_b_streams(job)};
    /* A stream applies scales of b to sums: its codes alone always fit. */
    p.bf16 = apart && job->kernels->tile_bf16 && (p.streams || oct_view_fits_bf16(&job->b));
    return p;
}

static oct_row_kind kind_of(const oct_gemm_job *job, int64_t row) {
    const oct_pinned *p = &job->pinned;
    if (p->streams && !oct_row_is_moderate(&job->a, row)) {
        return OCT_ROW_WIDE;
    }
    return p->bf16 && oct_row_fits_bf16(&job->a, row) ? OCT_ROW_BF16
           : p->streams                               ? OCT_ROW_F32
                                                      : OCT_ROW_WIDE;
}

/* A tile of any number of rows. */
static void stream_tile(const oct_gemm_job *job, const oct_rect *tile, void *scratch) {
    for (int64_t row = 0; row < tile->rows; row += OCT_STREAM_ROWS) {
        oct_rect few = {tile->row + row, tile->col, oct_min(OCT_STREAM_ROWS, tile->rows - row),
                        tile->cols};
        oct_gemm_tile_stream(job, &few, scratch);
    }
}

/* Each tile decodes its rows of a again, and reads its strip of b once for every few of them.
 */
static void cut_strips(oct_gemm_job *job) {
    oct_gemm_cut_thin(job);
    if (job->a.outer > OCT_STREAM_ROWS) {
        int64_t line = oct_code_bytes(&job->b, job->b.depth) + 1;
        int64_t cols = STRIP_BYTES / line / OCT_GEMM_ROWS * OCT_GEMM_ROWS;
        job->grid.tile_cols = oct_min(job->grid.tile_cols, cols < 32 ? 32 : cols);
        job->grid.tile_rows = oct_min(job->a.outer, STRIP_ROWS);
    }
}

/* The rows of one kind. */
static void run_kind(oct_gemm_job *job, oct_row_kind kind, const oct_threads *threads) {
    bool streams = job->pinned.streams && kind != OCT_ROW_WIDE;
    job->bf16 = kind == OCT_ROW_BF16;
    job->way = streams ? stream_tile : oct_gemm_tile;
    (streams ? cut_strips : oct_gemm_cut)(job);
    oct_gemm_run_tiles(job, threads);
}

void oct_gemm_run_invariant(oct_gemm_job *job, const oct_threads *threads) {
    int64_t counts[OCT_ROW_WIDE + 1] = {0};
    job->pinned = pin(job);
    for (int64_t row = 0; row < job->a.outer; row++) {
        counts[kind_of(job, row)]++;
    }
    for (int kind = OCT_ROW_BF16; kind <= OCT_ROW_WIDE; kind++) {
        if (counts[kind]) {
            job->rows = counts[kind] == job->a.outer ? OCT_ROW_ANY : (oct_row_kind)kind;
            run_kind(job, (oct_row_kind)kind, threads);
        }
    }
}

void oct_gemm_finish(const oct_gemm_job *job, const oct_sums *sums) {
    if (job->rows == OCT_ROW_ANY) {
        job->kernels->finish(&job->finish, sums);
        return;
    }
    for (int64_t r = 0; r < sums->rows; r++) {
        if (kind_of(job, sums->row + r) == job->rows) {
            oct_sums one = *sums;
            one.at += r * sums->pitch;
            one.row += r;
            one.rows = 1;
            job->kernels->finish(&job->finish, &one);
        }
    }
}
