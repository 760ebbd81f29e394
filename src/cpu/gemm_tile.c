/* gemm_tile.c - one tile of a product: blocks packed for the caches, panels multiplied.
 *
 * Sums are held in fp32, in registers along one block and in memory between two, and every sum
 * takes its terms in their order. So neither the tiles nor the blocks can be seen in a result,
 * and both are cut as it suits the shape, the caches and the number of lanes. */
#include "cpu/gemm.h"

/* A lane's memory. A group of b's panels stays in the second-level cache. The panels of a wait
 * in the outer caches, where each is used once for every group; behind them lie the sums that
 * wait for the next block. */
#define B_WORDS (65 << 10)
#define WORDS (480 << 10)

typedef struct tile_room {
    float one[1024]; /* the sums of a register tile that is finished at once */
    oct_pack_room pack;
    float bias[OCT_PACK_ROW];
    uint32_t b[B_WORDS];
    uint32_t words[WORDS];
} tile_room;

_Static_assert(sizeof(tile_room) <= OCT_CPU_LANE_BYTES, "a tile fits a lane's scratch");

/* Words from one panel to the next: a cache line more than it holds, for the panels' lines of
 * one step would else compete for the same places of a cache. */
static int64_t panel_pitch(const oct_gemm_job *job, int stride) {
    return job->steps * stride + 16;
}

/* Elements of the product that one block holds. */
static int64_t block_depth(const oct_gemm_job *job) {
    return job->steps * (job->bf16 ? 2 : 1);
}

/* Columns of tiles with this many rows that fit the lane's memory; 0: not even one panel. */
static int64_t most_cols(const oct_gemm_job *job, int64_t tile_rows) {
    const oct_gemm_kernels *k = job->kernels;
    int64_t left = WORDS - tile_rows / k->mr * panel_pitch(job, k->mr_stride);
    if (left < 0 || tile_rows > OCT_PACK_OUTER) {
        return 0;
    }
    bool sums_wait = job->a.depth > block_depth(job);
    return sums_wait ? left / tile_rows / k->nr * k->nr : oct_round_up(job->b.outer, k->nr);
}

/* What the slowest lane does for tiles of this size, in multiplications per element of depth.
 * Packing an element costs as much as some 20 of them, and so does passing a sum on from one
 * block to the next. */
static int64_t tile_cost(const oct_gemm_job *job, const oct_grid *grid) {
    int64_t rounds = oct_size_ceil_div(oct_grid_count(grid), job->call->lanes);
    int64_t rows = grid->tile_rows, cols = grid->tile_cols;
    int64_t passing = job->a.depth > block_depth(job) ? 20 * rows * cols / block_depth(job) : 0;
    return rounds * (rows * cols + passing + 20 * (rows + cols));
}

/* A way to cut a product, and what it costs. */
typedef struct cut {
    oct_grid grid;
    int64_t cost;
    int steps;
} cut;

/* Looks at the grids with `down` rows of tiles and takes the cheapest. */
static void try_grids(const oct_gemm_job *job, int64_t down, cut *best) {
    const oct_gemm_kernels *k = job->kernels;
    int64_t rows = job->a.outer, cols = job->b.outer;
    int64_t tile_rows = oct_round_up(oct_size_ceil_div(rows, down), k->mr);
    int64_t most = most_cols(job, tile_rows);
    int64_t tile_cols = INT64_MAX;
    for (int64_t n = 0; most && n < job->call->lanes + 8 && tile_cols > k->nr; n++) {
        int64_t across = oct_size_ceil_div(cols, most) + n;
        tile_cols = oct_round_up(oct_size_ceil_div(cols, across), k->nr);
        oct_grid grid = {
            .rows = rows, .cols = cols, .tile_rows = tile_rows, .tile_cols = tile_cols};
        int64_t cost = tile_cost(job, &grid);
        if (cost < best->cost) {
            *best = (cut){grid, cost, job->steps};
        }
    }
}

/* One lane cannot do better than one tile, if that fits: every other cut packs more. */
static bool cut_whole(oct_gemm_job *job) {
    const oct_gemm_kernels *k = job->kernels;
    int64_t rows = oct_round_up(job->a.outer, k->mr), cols = oct_round_up(job->b.outer, k->nr);
    job->steps = k->steps;
    job->grid = (oct_grid){
        .rows = job->a.outer, .cols = job->b.outer, .tile_rows = rows, .tile_cols = cols};
    return job->call->lanes == 1 && job->a.depth <= block_depth(job) &&
           most_cols(job, rows) >= cols;
}

void oct_gemm_cut(oct_gemm_job *job) {
    const oct_gemm_kernels *k = job->kernels;
    cut best = {.cost = INT64_MAX};
    if (cut_whole(job)) {
        return;
    }
    /* Shorter panels leave room for more rows or more sums. */
    for (job->steps = k->steps; job->steps > 0; job->steps -= k->steps / 2) {
        int64_t panels = WORDS / panel_pitch(job, k->mr_stride);
        int64_t down = oct_size_ceil_div(job->a.outer, oct_min(panels * k->mr, OCT_PACK_OUTER));
        for (int64_t more = 0; more < 6; more++) {
            try_grids(job, down + more, &best);
        }
    }
    job->grid = best.grid;
    job->steps = best.steps;
}

const float *oct_gemm_bias(const oct_gemm_job *job, int64_t col, int64_t count, float *room) {
    octet_dtype dtype = job->call->bias_dtype;
    if (!job->call->bias) {
        return NULL;
    }
    const uint8_t *bias = job->call->bias;
    oct_decode_call call = {
        .out = room, .codes = bias + col * (dtype == OCTET_F32 ? 4 : 2), .count = count};
    job->kernels->packer.f32[dtype](&call);
    return room;
}

/* A tile on its way. */
typedef struct tile_work {
    const oct_gemm_job *job;
    const oct_rect *tile;
    tile_room *room;
    float *sums;
    int64_t downs;       /* register tiles from top to bottom */
    int64_t from, depth; /* the block: a part of the product */
} tile_work;

/* The sums of one register tile into dst. */
static void finish(const tile_work *w, const oct_rect *at, const float *sums,
                   const float *bias) {
    oct_sums part = {.at = sums,
                     .pitch = w->job->kernels->nr,
                     .row = w->tile->row + at->row,
                     .col = w->tile->col + at->col,
                     .rows = oct_min(at->rows, w->tile->rows - at->row),
                     .cols = oct_min(at->cols, w->tile->cols - at->col),
                     .bias = bias};
    oct_gemm_finish(w->job, &part);
}

/* One panel of a, of the tile's rows from i * mr on, by the group of b's panels in the room. */
static void multiply(const tile_work *w, int64_t i, int64_t first, int64_t count) {
    const oct_gemm_kernels *k = w->job->kernels;
    bool fresh = w->from == 0, last = w->from + w->depth == w->job->a.depth;
    oct_tile_call call = {.a = w->room->words + i * panel_pitch(w->job, k->mr_stride),
                          .b = w->room->b,
                          .steps = w->job->bf16 ? (w->depth + 1) / 2 : w->depth,
                          .fresh = fresh};
    for (int64_t col = 0; col < count; col += k->nr) {
        oct_rect at = {i * k->mr, first + col, k->mr, k->nr};
        float *held = w->sums + (at.col * w->downs + i * k->nr) * k->mr;
        call.sums = fresh && last ? w->room->one : held;
        (w->job->bf16 ? k->tile_bf16 : k->tile_f32)(&call);
        if (last) {
            finish(w, &at, call.sums, w->job->call->bias ? w->room->bias + col : NULL);
        }
        call.b += panel_pitch(w->job, k->nr);
    }
}

/* One block: a's panels, then group by group b's, each used by every panel of a. */
static void do_block(const tile_work *w) {
    const oct_gemm_job *job = w->job;
    const oct_gemm_kernels *k = job->kernels;
    const oct_rect *tile = w->tile;
    oct_reader a = {&k->packer, &job->a, &w->room->pack, job->bf16};
    oct_reader b = {&k->packer, &job->b, &w->room->pack, job->bf16};
    oct_panels a_panels = {w->room->words, panel_pitch(job, k->mr_stride), k->mr, k->mr_stride};
    oct_panels b_panels = {w->room->b, panel_pitch(job, k->nr), k->nr, k->nr};
    int64_t group = B_WORDS / panel_pitch(job, k->nr) * k->nr;
    oct_pack(&a, &(oct_block){tile->row, tile->rows, w->from, w->depth}, &a_panels);
    for (int64_t col = 0; col < tile->cols; col += group) {
        int64_t count = oct_min(group, tile->cols - col);
        oct_pack(&b, &(oct_block){tile->col + col, count, w->from, w->depth}, &b_panels);
        oct_gemm_bias(job, tile->col + col, count, w->room->bias);
        /* A panel of a stays in the first-level cache while the group passes by. */
        for (int64_t i = 0; i < w->downs; i++) {
            multiply(w, i, col, count);
        }
    }
}

void oct_gemm_tile(const oct_gemm_job *job, const oct_rect *tile, void *scratch) {
    const oct_gemm_kernels *k = job->kernels;
    tile_work w = {.job = job,
                   .tile = tile,
                   .room = scratch,
                   .downs = oct_size_ceil_div(tile->rows, k->mr)};
    w.sums = (float *)w.room->words + w.downs * panel_pitch(job, k->mr_stride);
    /* Along the product, once even if it is empty. */
    do {
        w.depth = oct_min(block_depth(job), job->a.depth - w.from);
        do_block(&w);
        w.from += w.depth;
    } while (w.from < job->a.depth);
}
