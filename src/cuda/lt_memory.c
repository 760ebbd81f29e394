/* lt_memory.c - which rows a product does at a time, and where they and its scratch lie. */
#include "cuda/lt.h"

#define ALIGN 256 /* of what lies in scratch */
/* Products of 128-blocks that the library splits: on an H200 by 6% faster. */
#define SPLIT_TILES 128   /* of 128 x 128: fewer do not fill it */
#define SPLIT_LENGTH 8192 /* and so long at least */

/* What is left of the scratch; fewer bytes than none where there were too few. */
typedef struct room {
    char *at;
    int64_t bytes;
} room;

static void *take(room *r, int64_t bytes) {
    int64_t whole = oct_round_up(bytes, ALIGN);
    void *at = r->at;
    r->bytes -= whole;
    r->at += r->bytes < 0 ? 0 : whole;
    return at;
}

/* Along the product. */
static int64_t blocks_of(const oct_lt_matmul *p) {
    return oct_size_ceil_div(p->k, 128);
}

static bool has_vectors(const oct_lt_matmul *p) {
    return p->b_scale == OCT_LT_SCALE_VEC128_32F;
}

/* ---- rows ------------------------------------------------------------------------------ */

/* Rows of dst behind whole eights, which 128-blocks need. Where dst is not read, the library
 * may write a row twice. */
static void set_rows(oct_lt_product *out, const oct_cuda_gemm_call *call) {
    oct_lt_matmul *to = &out->matmul;
    bool blocks = has_vectors(to) || to->b_scale == OCT_LT_SCALE_BLK128_32F;
    int64_t left = blocks ? out->rows % OCT_LT_ROWS : 0;
    out->tail = left && has_vectors(to) && out->rows > left && !out->sums && !call->accumulate;
    out->rest = out->tail ? 0 : left;
    to->n = out->rows - left;
}

static void set_rest(oct_lt_product *out, room *r) {
    const oct_lt_matmul *p = &out->matmul;
    if (out->rest) {
        out->eight.rows = take(r, OCT_LT_ROWS * p->k);
        out->eight.scales = take(r, OCT_LT_ROWS * blocks_of(p) * 4);
        out->eight.sums = take(r, OCT_LT_ROWS * p->m * 4);
    }
}

/* `most` rows at a time. Scales of some of the rows have to be moved together: then no more
 * rows than have theirs in half of the room. */
static bool set_chunk(oct_lt_product *out, int64_t most, room *r) {
    const oct_lt_matmul *p = &out->matmul;
    out->chunk = p->n < most ? p->n : most;
    if (has_vectors(p) && out->chunk < out->rows) {
        int64_t row_bytes = blocks_of(p) * 4, fit = r->bytes / 2 / row_bytes;
        out->chunk = fit < out->chunk ? fit / 128 * 128 : out->chunk;
        out->scales = take(r, out->chunk * row_bytes);
    }
    return out->chunk > 0 || p->n == 0;
}

/* ---- the library's workspace ------------------------------------------------------------- */

/* What it is for, target.c says. */
static bool wants_workspace(const oct_lt_product *product) {
    const oct_lt_matmul *p = &product->matmul;
    int64_t tiles = oct_size_ceil_div(p->m, 128) * oct_size_ceil_div(p->n, 128);
    switch (p->a_scale) {
    case OCT_LT_SCALE_SCALAR_32F:
        return false;
    case OCT_LT_NONE:
        return product->workspace;
    case OCT_LT_SCALE_VEC128_32F:
    case OCT_LT_SCALE_BLK128_32F:
        return tiles < SPLIT_TILES && p->k >= SPLIT_LENGTH;
    default:
        return true;
    }
}

/* ---- dst and sums ---------------------------------------------------------------------- */

static void set_sums_type(oct_lt_product *out, void *sums, int64_t stride) {
    out->matmul.d_type = OCT_LT_R_32F;
    out->matmul.ldd = stride;
    out->matmul.accumulate = 0;
    out->memory.d = sums;
}

/* Rows of dst whose sums, and scales where they have to be moved, fit into so many bytes. Whole
 * tiles, so that each part begins on a boundary, of data and of scales. */
static int64_t rows_in(const oct_lt_matmul *p, int64_t bytes) {
    bool tiles = p->b_scale != OCT_LT_NONE && p->b_scale != OCT_LT_SCALE_SCALAR_32F;
    int64_t rows = bytes / 4 / (p->m + (has_vectors(p) ? blocks_of(p) : 0));
    int64_t whole = rows >= 128 || tiles ? 128 : 16;
    return rows >= p->n ? p->n : rows / whole * whole;
}

/* A plan has room for no workspace where the library has none. */
static bool set_sums(oct_lt_product *out, room *r) {
    const oct_lt_matmul *p = &out->matmul;
    int64_t between = has_vectors(p) ? ALIGN : 0; /* sums and scales both take whole ALIGN */
    int64_t workspace = wants_workspace(out) ? OCT_CUDA_WORKSPACE_BYTES - 2 * ALIGN : 0;
    int64_t bytes = r->bytes - workspace - between;
    char *end = r->at + r->bytes;
    out->chunk = bytes < 0 ? -1 : rows_in(p, bytes);
    if (out->chunk < (p->n > 0)) {
        return false;
    }
    set_sums_type(out, take(r, out->chunk * p->m * 4), p->m);
    out->scales = take(r, has_vectors(p) ? out->chunk * blocks_of(p) * 4 : 0);
    *r = (room){end - workspace, workspace};
    return true;
}

/* The same in the room that there is for a ragged dst. */
static bool set_padded_sums(oct_lt_product *out, const oct_matrix *copy, room *r) {
    set_sums_type(out, copy->parts[OCTET_PART_VALUES], copy->stride);
    return set_chunk(out, copy->rows, r);
}

static bool set_direct(oct_lt_product *out, const oct_matrix *dst, room *r) {
    oct_lt_matmul *to = &out->matmul;
    to->ldd = dst->stride > to->m ? dst->stride : to->m;
    out->memory.d = dst->parts[OCTET_PART_VALUES];
    return set_chunk(out, to->n, r);
}

/* ---- scratch --------------------------------------------------------------------------- */

/* Per-tensor bytes whose sums have a place have none. */
static bool has_scratch(const oct_lt_product *product, const oct_cuda_gemm_call *call) {
    bool padded = call->dst_copy.parts[OCTET_PART_VALUES] != NULL;
    return (product->sums && !padded) || product->matmul.a_scale != OCT_LT_SCALE_SCALAR_32F;
}

/* Scratch from its first boundary on: alpha and beta, unless the caller has them; the rest's
 * rows, scales and sums; sums or scales of the others; then the library's. */
bool oct_lt_set_memory(oct_lt_product *out, const oct_cuda_gemm_call *call) {
    room r = {NULL, 0};
    set_rows(out, call);
    if (has_scratch(out, call)) {
        r.bytes = call->scratch_bytes / ALIGN * ALIGN - 2 * ALIGN;
        if (!call->scratch || r.bytes < 0) {
            return false;
        }
        uintptr_t skip = (ALIGN - (uintptr_t)call->scratch % ALIGN) % ALIGN;
        r.at = (char *)call->scratch + skip + ALIGN;
        out->memory.alpha = (const float *)(void *)(r.at - ALIGN);
        set_rest(out, &r);
    }
    out->alpha_made = call->alpha != NULL;
    out->memory.alpha = call->alpha ? call->alpha : out->memory.alpha;
    bool padded = call->dst_copy.parts[OCTET_PART_VALUES] != NULL;
    bool fits = r.bytes >= 0 && (!out->sums ? set_direct(out, &call->dst, &r)
                                 : padded   ? set_padded_sums(out, &call->dst_copy, &r)
                                            : set_sums(out, &r));
    if (wants_workspace(out)) {
        out->memory.workspace = r.at;
        out->matmul.workspace_bytes = r.bytes;
    }
    out->matmul.d_align = oct_lt_align(out->memory.d);
    return fits && r.bytes >= 0;
}
