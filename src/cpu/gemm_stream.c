/* gemm_stream.c - a product with few rows and a quantized b, whose codes are read in place. */
#include <string.h>

#include "cpu/gemm.h"

#define LENGTH 16384       /* elements of a row that are multiplied in one call, at most */
#define A_COUNT (64 << 10) /* elements of a decoded at a time */
#define SCALES (LENGTH / 16 + 2 * OCT_STREAM_SCALES)
#define COLS OCT_GEMM_THIN_COLS

/* A lane's memory. The rows of a, or a good length of them, stay decoded while those of b pass
 * by, four at a time. */
typedef struct stream_room {
    uint32_t a[A_COUNT]; /* floats, or bf16 in half of it */
    float scales[OCT_GEMM_ROWS][SCALES];
    float sums[OCT_GEMM_THIN][COLS];
    float bias[OCT_PACK_ROW];
    oct_pack_room pack;
} stream_room;

_Static_assert(sizeof(stream_room) <= OCT_CPU_LANE_BYTES, "a tile fits a lane's scratch");
_Static_assert(LENGTH >> 4 <= OCT_PACK_ROW, "the codes of a row's scales fit their room");
_Static_assert(COLS <= OCT_PACK_OUTER, "the bias of a tile fits its room");

/* Blocks along b's storage rows, as each format has them, or none. */
bool oct_gemm_b_streams(const oct_gemm_job *job) {
    const oct_view *b = &job->b;
    int shift = b->scale ? b->shift : 0;
    bool along = b->format == OCTET_E2M1 ? shift == 4 || shift == 5
                                         : !b->scale || shift == 5 || shift == 7;
    return along && !b->across && b->outer * b->depth >= job->kernels->stream_least &&
           job->kernels->stream_f32[b->format].dot;
}

bool oct_gemm_streams(const oct_gemm_job *job) {
    return oct_gemm_b_streams(job) && job->a.outer <= job->kernels->stream_rows &&
           oct_view_is_moderate(&job->a);
}

/* What one tile works with. */
typedef struct stream_work {
    const oct_gemm_job *job;
    const oct_streamer *with;
    stream_room *room;
    int64_t row, rows;         /* of a: the tile's */
    int64_t a_pitch, a_length; /* elements of a row of a: from one to the next, and at a time */
    int64_t from, count;       /* the part of the product */
} stream_work;

static int64_t a_bytes(const stream_work *w) {
    return w->job->bf16 ? 2 : 4;
}

/* The part of a's rows, zero up to a whole number of groups, as the kernel wants it. */
static void read_a(const stream_work *w) {
    oct_reader reader = {&w->job->kernels->packer, &w->job->a, &w->room->pack, w->job->bf16};
    int64_t whole = oct_round_up(w->count, OCT_STREAM_PAD);
    for (int64_t row = 0; row < w->rows; row++) {
        char *out = (char *)w->room->a + row * w->a_pitch * a_bytes(w);
        for (int64_t p = 0; p < w->count; p += OCT_PACK_OUTER) {
            oct_span span = {w->row + row, w->from + p, oct_min(OCT_PACK_OUTER, w->count - p)};
            oct_pack_row(&reader, &span, out + p * a_bytes(w));
        }
        memset(out + w->count * a_bytes(w), 0, (size_t)((whole - w->count) * a_bytes(w)));
        if (w->with->arrange) {
            w->with->arrange(out, whole);
        }
    }
}

static int64_t blocks_of(const stream_work *w) {
    return ((w->count - 1) >> w->job->b.shift) + 1;
}

/* Kernels know blocks of 16 E2M1 codes: the scale of 32 stands there twice. */
static bool doubles(const stream_work *w) {
    return w->job->b.format == OCTET_E2M1 && w->job->b.shift == 5;
}

static void double_scales(float *scales, int64_t count) {
    for (int64_t n = count - 1; n >= 0; n--) {
        scales[2 * n] = scales[2 * n + 1] = scales[n];
    }
}

/* Whether each row's scales follow those of the row before, all of them of this part, and a row
 * is whole groups: the kernel sees no scale of the next row then. */
static bool scales_follow(const stream_work *w) {
    const oct_view *b = &w->job->b;
    return b->row_shift == 0 && !b->scales.tiles && b->scales.block_step == 1 &&
           b->scale_format != OCTET_F32 && w->count == b->depth &&
           b->scales.line_step == blocks_of(w) && w->count % OCT_STREAM_PAD == 0;
}

/* The scales of a row of b: in place where they are floats side by side, else in the room with
 * zeros after them. */
static const float *read_scales(const stream_work *w, int64_t row, float *room) {
    const oct_view *b = &w->job->b;
    oct_reader reader = {&w->job->kernels->packer, b, &w->room->pack, false};
    if (b->scale_format == OCTET_F32 && !b->scales.tiles && b->scales.block_step == 1) {
        return (const float *)b->scale + oct_scale_index(b, row, w->from >> b->shift);
    }
    oct_pack_scales(&reader, &(oct_span){row, w->from, w->count}, room);
    int64_t count = blocks_of(w);
    if (doubles(w)) {
        double_scales(room, count);
        count *= 2;
    }
    memset(room + count, 0, OCT_STREAM_SCALES * sizeof *room);
    return room;
}

/* Those of four rows. In the place of rows past the end, and of those that share their scales
 * with the row before, stands that one. */
static void find_scales(const stream_work *w, int64_t row, oct_stream_call *call) {
    const oct_view *b = &w->job->b;
    bool whole = row + OCT_GEMM_ROWS <= b->outer;
    if (whole && scales_follow(w)) {
        const uint8_t *codes = (const uint8_t *)b->scale + oct_scale_index(b, row, 0);
        float *room = w->room->scales[0];
        oct_decode_call all = {
            .out = room, .codes = codes, .count = OCT_GEMM_ROWS * blocks_of(w)};
        w->job->kernels->packer.f32[b->scale_format](&all);
        if (doubles(w)) {
            double_scales(room, all.count);
        }
        for (int j = 0; j < OCT_GEMM_ROWS; j++) {
            call->scales[j] = room + j * blocks_of(w) * (doubles(w) ? 2 : 1);
        }
        return;
    }
    for (int j = 0; j < OCT_GEMM_ROWS; j++) {
        int64_t at = row + j;
        bool same = j && (at >= b->outer || at >> b->row_shift == (at - 1) >> b->row_shift);
        call->scales[j] = same ? call->scales[j - 1] : read_scales(w, at, w->room->scales[j]);
    }
}

/* Where four rows of b lie; in the place of those past its end the last one is read again. */
static void find_rows(const stream_work *w, int64_t row, oct_stream_call *call) {
    const oct_view *b = &w->job->b;
    bool ends = row + 2 * OCT_GEMM_ROWS > b->outer;
    call->ahead = ends ? 0 : OCT_GEMM_ROWS * b->pitch;
    for (int j = 0; j < OCT_GEMM_ROWS; j++) {
        int64_t at = oct_min(row + j, b->outer - 1);
        call->codes[j] = b->data + at * b->pitch + oct_code_bytes(b, w->from);
    }
    if (b->scale) {
        find_scales(w, row, call);
    }
}

/* Adds the part of the product to the sums of four columns of the tile, from `col` on. */
static void add_columns(const stream_work *w, const oct_rect *tile, int64_t col) {
    const oct_gemm_job *job = w->job;
    float dots[OCT_GEMM_ROWS * OCT_STREAM_ROWS];
    oct_stream_call call = {.out = dots,
                            .a_pitch = w->a_pitch * a_bytes(w),
                            .count = w->count,
                            .shift = !job->b.scale ? 0
                                     : doubles(w)  ? 4
                                                   : job->b.shift};
    find_rows(w, tile->col + col, &call);
    for (int64_t row = 0; row < tile->rows; row += OCT_STREAM_ROWS) {
        call.a = (const char *)w->room->a + row * call.a_pitch;
        call.rows = (int)oct_min(OCT_STREAM_ROWS, tile->rows - row);
        w->with->dot(&call);
        for (int i = 0; i < call.rows; i++) {
            float *sums = w->room->sums[row + i] + col;
            for (int j = 0; j < OCT_GEMM_ROWS; j++) {
                sums[j] += dots[j * call.rows + i];
            }
        }
    }
}

void oct_gemm_tile_stream(const oct_gemm_job *job, const oct_rect *tile, void *scratch) {
    stream_room *room = scratch;
    const oct_gemm_kernels *k = job->kernels;
    stream_work w = {.job = job,
                     .with = &(job->bf16 ? k->stream_bf16 : k->stream_f32)[job->b.format],
                     .room = room,
                     .row = tile->row,
                     .rows = tile->rows};
    /* Where sums end and are added up follows from this. */
    int64_t rows = job->call->invariant ? OCT_STREAM_ROWS : tile->rows;
    w.a_length = oct_min(LENGTH, A_COUNT / rows / 128 * 128);
    w.a_pitch = oct_min(w.a_length, oct_round_up(job->a.depth, OCT_STREAM_PAD));
    int64_t cols = oct_round_up(tile->cols, OCT_GEMM_ROWS);
    for (int64_t row = 0; row < tile->rows; row++) {
        memset(room->sums[row], 0, (size_t)cols * sizeof room->sums[row][0]);
    }
    for (w.from = 0; w.from < job->a.depth; w.from += w.a_length) {
        w.count = oct_min(w.a_length, job->a.depth - w.from);
        read_a(&w);
        for (int64_t col = 0; col < tile->cols; col += OCT_GEMM_ROWS) {
            add_columns(&w, tile, col);
        }
    }
    const float *bias = oct_gemm_bias(job, tile->col, tile->cols, room->bias);
    oct_sums sums = {room->sums[0], COLS, tile->row, tile->col, tile->rows, tile->cols, bias};
    oct_gemm_finish(job, &sums);
}
