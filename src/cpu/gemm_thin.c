/* gemm_thin.c - a product with few rows: b is read once, row by row, and never packed.
 *
 * For plain operands, and for those that gemm_stream.c leaves over. */
#include <string.h>

#include "cpu/gemm.h"

#define LENGTH 2048        /* elements of b's rows decoded at a time; whole chunks */
#define PIECE 1024         /* of one row, before the next row's turn comes */
#define A_COUNT (64 << 10) /* elements of a decoded at a time */
#define COLS OCT_GEMM_THIN_COLS

/* A lane's memory. The rows of a, or a good length of them, stay decoded while those of b pass
 * by, a few at a time. */
typedef struct thin_room {
    float a_f32[A_COUNT];
    uint16_t a_bf16[A_COUNT];
    float b[OCT_GEMM_ROWS][LENGTH];
    float sums[OCT_GEMM_THIN][COLS];
    float bias[OCT_PACK_ROW];
    oct_pack_room pack;
} thin_room;

_Static_assert(sizeof(thin_room) <= OCT_CPU_LANE_BYTES, "a tile fits a lane's scratch");
_Static_assert(A_COUNT / OCT_GEMM_THIN % LENGTH == 0, "a length of a is whole ones of b");
_Static_assert(LENGTH >> 4 <= OCT_PACK_ROW, "the scales of a row fit their room");
_Static_assert(COLS <= OCT_PACK_OUTER, "the bias of a tile fits its room");

void oct_gemm_cut_thin(oct_gemm_job *job) {
    int64_t cols = job->b.outer, lanes = job->call->lanes;
    /* Each tile decodes a once more, so one lane takes them as wide as they may be. */
    int64_t each = oct_size_ceil_div(cols, lanes > 1 ? 4 * lanes : 1);
    job->grid = (oct_grid){.rows = job->a.outer,
                           .cols = cols,
                           .tile_rows = job->a.outer,
                           .tile_cols = oct_min(oct_round_up(each, OCT_GEMM_ROWS), COLS)};
}

/* One row's span, zero up to a multiple of 32 elements. */
static void read_row(const oct_reader *reader, const oct_span *span, void *out) {
    size_t bytes = reader->bf16 ? 2 : 4, count = (size_t)span->count;
    oct_pack_row(reader, span, out);
    memset((char *)out + count * bytes, 0, (size_t)(-span->count & 31) * bytes);
}

/* Elements of each row of a that are decoded at a time. */
static int64_t a_length(const oct_gemm_job *job) {
    return A_COUNT / job->a.outer / LENGTH * LENGTH;
}

static void read_a(const oct_gemm_job *job, thin_room *room, const oct_span *span, bool bf16) {
    oct_reader reader = {&job->kernels->packer, &job->a, &room->pack, bf16};
    for (int64_t row = 0; row < job->a.outer; row++) {
        for (int64_t p = 0; p < span->count; p += LENGTH) {
            int64_t at = row * a_length(job) + p;
            void *out = bf16 ? (void *)(room->a_bf16 + at) : (void *)(room->a_f32 + at);
            oct_span part = {row, span->from + p, oct_min(LENGTH, span->count - p)};
            read_row(&reader, &part, out);
        }
    }
}

/* Four rows of b, or as many as there are, in turns; what lies past them is never looked at. */
static void read_b(const oct_gemm_job *job, thin_room *room, const oct_span *span, bool bf16) {
    oct_reader reader = {&job->kernels->packer, &job->b, &room->pack, bf16};
    int64_t rows = oct_min(OCT_GEMM_ROWS, job->b.outer - span->row);
    for (int64_t p = 0; p < span->count; p += PIECE) {
        for (int64_t r = 0; r < rows; r++) {
            oct_span piece = {span->row + r, span->from + p, oct_min(PIECE, span->count - p)};
            oct_span later = {piece.row, piece.from + LENGTH, piece.count};
            bool ends = later.from + later.count > job->b.depth;
            oct_expect(&job->b, ends ? &piece : &later, ends ? OCT_GEMM_ROWS : 0);
            read_row(&reader, &piece, (char *)room->b[r] + p * (bf16 ? 2 : 4));
        }
    }
}

/* The products of a's rows, from at->from on in their decoded length, with the rows of b in the
 * room, added to the sums of column at->row of the tile. */
static void add_dots(const oct_gemm_job *job, thin_room *room, const oct_span *at, bool bf16) {
    const oct_gemm_kernels *k = job->kernels;
    for (int64_t row = 0; row < job->a.outer; row += OCT_GEMM_ROWS) {
        float dots[OCT_GEMM_ROWS * OCT_GEMM_ROWS];
        int rows = (int)oct_min(OCT_GEMM_ROWS, job->a.outer - row);
        int64_t first = row * a_length(job) + at->from;
        oct_dot_call call = {
            .out = dots,
            .a = bf16 ? (const void *)(room->a_bf16 + first)
                      : (const void *)(room->a_f32 + first),
            .b = room->b,
            .a_pitch = a_length(job) * (bf16 ? 2 : 4),
            .b_pitch = LENGTH * 4,
            .count = oct_round_up(at->count, 32),
            .rows = rows,
        };
        (bf16 ? k->dot_bf16 : k->dot_f32)(&call);
        for (int r = 0; r < rows; r++) {
            float *sums = room->sums[row + r] + at->row;
            for (int col = 0; col < OCT_GEMM_ROWS; col++) {
                sums[col] += dots[col * rows + r];
            }
        }
    }
}

/* Whether the next rows of b may be bf16: decided for each few rows by their own scales. */
static bool rows_fit(const oct_gemm_job *job, const oct_span *span) {
    const oct_view *b = &job->b;
    int64_t rows = oct_min(OCT_GEMM_ROWS, b->outer - span->row);
    bool fits = job->bf16;
    for (int64_t r = 0; fits && b->scale && b->scale_format != OCTET_E4M3 && r < rows; r++) {
        fits = oct_span_fits_bf16(b, &(oct_span){span->row + r, span->from, span->count});
    }
    return fits;
}

/* A part of the product, as much as is decoded of a, for every column of the tile. */
static void add_part(const oct_gemm_job *job, const oct_rect *tile, const oct_span *part,
                     thin_room *room) {
    bool have_f32 = false;
    if (job->bf16) {
        read_a(job, room, part, true);
    }
    for (int64_t col = 0; col < tile->cols; col += OCT_GEMM_ROWS) {
        for (int64_t p = 0; p < part->count; p += LENGTH) {
            oct_span span = {tile->col + col, part->from + p, oct_min(LENGTH, part->count - p)};
            bool bf16 = rows_fit(job, &span);
            if (!bf16 && !have_f32) {
                read_a(job, room, part, false);
                have_f32 = true;
            }
            read_b(job, room, &span, bf16);
            add_dots(job, room, &(oct_span){col, p, span.count}, bf16);
        }
    }
}

/* Zeros the sums, and the rows of b that a tile has too few of: dots read four. */
static void clear(const oct_gemm_job *job, const oct_rect *tile, thin_room *room) {
    int64_t cols = oct_round_up(tile->cols, OCT_GEMM_ROWS);
    int64_t length = oct_min(LENGTH, oct_round_up(job->b.depth, 32));
    for (int64_t row = 0; row < tile->rows; row++) {
        memset(room->sums[row], 0, (size_t)cols * sizeof room->sums[row][0]);
    }
    for (int64_t r = tile->cols % OCT_GEMM_ROWS; r && r < OCT_GEMM_ROWS; r++) {
        memset(room->b[r], 0, (size_t)length * sizeof room->b[r][0]);
    }
}

void oct_gemm_tile_thin(const oct_gemm_job *job, const oct_rect *tile, void *scratch) {
    thin_room *room = scratch;
    int64_t length = a_length(job);
    clear(job, tile, room);
    for (int64_t p = 0; p < job->a.depth; p += length) {
        add_part(job, tile, &(oct_span){0, p, oct_min(length, job->a.depth - p)}, room);
    }
    const float *bias = oct_gemm_bias(job, tile->col, tile->cols, room->bias);
    oct_sums sums = {room->sums[0], COLS, 0, tile->col, tile->rows, tile->cols, bias};
    job->kernels->finish(&job->finish, &sums);
}
