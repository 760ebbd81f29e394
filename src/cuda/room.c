/* room.c - how much scratch a product needs, and what lies where in it. */
#include "cuda/room.h"

#include "core/size.h"
#include "cuda/lt.h"
#include "cuda/target.h"
#include "format/scheme.h"

/* With a few thousand columns so many rows of sums fill a GPU, and its cache holds them until
 * they are rounded. */
#define SUM_ROWS 1024

static bool is_one_scale(const octet_quantizer *q) {
    return oct_scheme_of(q)->one_scale;
}

/* Rows of whole 16 bytes of this dtype. */
static int64_t whole_row(uint8_t dtype) {
    return OCT_LT_ROW_BYTES * 8 / octet_dtype_bits((octet_dtype)dtype);
}

/* The library multiplies per-tensor bytes by kernels that want no memory, and finishes dst, but
 * for a bias that it does not add to a narrow result: that takes sums. All other products have
 * room for sums, and for a workspace of the library's where it has one. */
int64_t oct_cuda_rest_bytes(const octet_device *device, const oct_target_product *p) {
    bool native = p->support == OCTET_SUPPORT_NATIVE;
    bool one_scale = native && is_one_scale(p->a) && is_one_scale(p->b);
    bool blocks =
        p->support == OCTET_SUPPORT_FOLDED || (native && p->a->scheme == OCTET_FP8_BLOCK);
    bool finishes = p->bias == OCTET_NONE || p->dst == OCTET_F32 || p->bias == p->dst;
    bool workspace = !one_scale && (oct_arch_wants_workspace(device->arch) || blocks);
    return one_scale && finishes
               ? 0
               : OCT_CUDA_SUMS_BYTES + (workspace ? OCT_CUDA_WORKSPACE_BYTES : 0);
}

/* What the outer indices that are multiplied, dst's rows and columns, are multiples of: whole
 * rows of an operand or of dst; 128-blocks have columns in eights. Powers of two. */
static void multiples_of(int64_t out[2], const oct_target_product *p, int64_t multiple) {
    bool a_across = (p->gemm == OCTET_WGRAD) != (p->a_use == OCTET_USE_COL);
    bool b_across = (p->gemm != OCTET_FPROP) != (p->b_use == OCTET_USE_COL);
    out[0] = 1;
    out[1] = multiple;
    if (is_one_scale(p->a)) {
        out[0] = a_across ? whole_row(OCTET_U8) : 1;
        out[1] = whole_row(b_across ? (uint8_t)OCTET_U8 : p->dst);
    }
}

/* Adds a matrix of fp32 behind what is there. */
static bool add(int64_t *end, int64_t rows, int64_t cols) {
    int64_t bytes;
    return oct_size_mul(&bytes, rows, cols) && oct_size_mul(&bytes, bytes, 4) &&
           oct_size_round_up(&bytes, bytes, OCTET_ALIGN) && oct_size_add(end, *end, bytes);
}

bool oct_cuda_room_of(oct_cuda_room *out, const oct_target_product *p) {
    int64_t multiple = oct_cuda_target.outer_multiple((octet_scheme)p->a->scheme), of[2],
            outer[2];
    *out = (oct_cuda_room){0};
    if (p->support != OCTET_SUPPORT_NATIVE || !multiple) {
        return true;
    }
    multiples_of(of, p, multiple);
    if (!(p->rows & (of[0] - 1)) && !(p->cols & (of[1] - 1))) {
        return true;
    }
    if (!oct_size_round_up(&outer[0], p->rows, of[0]) ||
        !oct_size_round_up(&outer[1], p->cols, of[1])) {
        return false;
    }
    out->sum_rows = outer[0] < SUM_ROWS ? outer[0] : SUM_ROWS;
    out->sum_cols = outer[1];
    /* Scales of 1 x 128 blocks have a place for each column. One of a 128 x 128 block serves
     * 128 columns: there is nothing to pad. */
    if (outer[1] != p->cols && !is_one_scale(p->a) && p->b->block_rows == 1) {
        out->scale_rows = oct_size_ceil_div(p->depth, p->b->block_cols);
        out->scale_cols = outer[1];
    }
    bool fits = add(&out->scales_at, out->sum_rows, out->sum_cols);
    out->rest_at = out->scales_at;
    return fits && add(&out->rest_at, out->scale_rows, out->scale_cols);
}
