/* gemm.c - one product: whether the device takes the bytes as they are, and what it needs. */
#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "plan/ops.h"
#include "quant/layout.h"
#include "quant/quantizer.h"

/* Per-tensor bytes multiply each other whoever chose their scales. */
static bool same_family(const octet_quantizer *x, const octet_quantizer *y) {
    return x->scheme == y->scheme || (oct_quantizer_one_scale(x) && oct_quantizer_one_scale(y));
}

static bool native_pair(const oct_builder *b, const octet_quantizer *x,
                        const octet_quantizer *y) {
    if (b->device.kind == OCTET_CPU || (!oct_quantizer_is(x) && !oct_quantizer_is(y))) {
        return true;
    }
    bool both_squares = oct_has_float_scales(x) && x->block_rows > 1 && y->block_rows > 1;
    bool both_e5m2 = x->format == OCTET_E5M2 && y->format == OCTET_E5M2;
    return same_family(x, y) && octet_scheme_native(x->scheme, &b->device) && !both_squares &&
           !both_e5m2 && !x->row_scaled && !y->row_scaled;
}

/* Elements and block scales of these fit bf16 exactly; the rest of the scale is a factor. */
static bool exact_in_bf16(const octet_plan_tensor *t) {
    const octet_quantizer *q = &t->quantizer;
    if (!oct_quantizer_is(q)) {
        return t->dtype == OCTET_BF16;
    }
    return !oct_has_float_scales(q) || q->pow2;
}

/* Rows of whole 16 bytes are what tensor cores read best, and all that they read of FP8. */
enum { WHOLE_BYTES = 16 };
enum { BLOCK = 128 };

static octet_dim whole(octet_dim cols, uint8_t dtype) {
    cols.align = (uint16_t)(WHOLE_BYTES * 8 / octet_dtype_bits((octet_dtype)dtype));
    return cols;
}

/* The cast of this phase that makes an operand's bytes and has them at hand as bf16, too. */
static octet_step *maker_of(const oct_builder *b, oct_operand operand, uint8_t dtype) {
    const octet_quantizer *q = &b->plan->tensors[operand.tensor].quantizer;
    bool blocks = oct_has_byte_scales(q) && !q->four_over_six;
    bool may = blocks && dtype == OCTET_BF16 && !b->after_collective;
    for (int i = 0; may && i < b->plan->step_count; i++) {
        octet_step *step = &b->plan->steps[i];
        if (step->op == OCTET_OP_QUANTIZE && step->dst == operand.tensor &&
            step->phase == b->phase) {
            return step;
        }
    }
    return NULL;
}

/* What an emulated GEMM multiplies instead of an operand; none for values that are right
 * already. The transform keeps all 16 rows of its last group. A cast that makes the operand
 * writes it beside the bytes: they need not be read again. */
static uint8_t decoded(oct_builder *b, oct_operand operand, uint8_t dtype) {
    octet_plan_tensor from = *oct_tensor_at(b, operand.tensor);
    if (oct_tensor_is_plain(b, operand.tensor) && from.dtype == dtype) {
        return OCTET_ABSENT;
    }
    octet_step *maker = maker_of(b, operand, dtype);
    bool row = operand.use == OCTET_USE_ROW;
    uint8_t made = !maker ? OCTET_ABSENT : row ? maker->a_copy : maker->b_copy;
    if (made != OCTET_ABSENT) {
        return made;
    }
    uint8_t copy = oct_tensor(b, (octet_plan_name)from.name, OCTET_FORM_EMULATED, dtype, NULL);
    octet_dim rows = from.rows;
    if (from.quantizer.hadamard && operand.use == OCTET_USE_COL) {
        rows.align = 16;
    }
    oct_tensor_shape(b, copy, rows, whole(from.cols, dtype));
    oct_place(b, copy, OCT_ALL_PARTS, OCTET_PLACE_WORK);
    if (maker) {
        *(row ? &maker->a_copy : &maker->b_copy) = copy;
        oct_step_done(b, maker);
    }
    return copy;
}

/* ---- ragged bytes ---------------------------------------------------------------------- */

/* Sums of a ragged dst: at most 2^SUM_ROWS rows at a time. With a few thousand columns they
 * fill a GPU, and its cache holds them until they are rounded. */
enum { SUM_ROWS = 10 };

static uint8_t padded(oct_builder *b, uint8_t of, uint8_t dtype, octet_dim rows,
                      octet_dim cols) {
    octet_plan_name name = (octet_plan_name)oct_tensor_at(b, of)->name;
    uint8_t copy = oct_tensor(b, name, OCTET_FORM_PADDED, dtype, NULL);
    oct_tensor_shape(b, copy, rows, cols);
    oct_place(b, copy, OCT_ALL_PARTS, OCTET_PLACE_WORK);
    if (!b->status) {
        b->plan->buffers[oct_buffer_of(b, copy)].ragged = 1;
    }
    return copy;
}

/* Scales of 1 x 128 blocks lie in rows of one for each outer index: each block has a row. */
static uint8_t padded_scales(oct_builder *b, uint8_t of, octet_dim depth, octet_dim lines) {
    if (oct_tensor_at(b, of)->quantizer.block_rows > 1) {
        return OCTET_ABSENT;
    }
    depth.div = (uint16_t)(depth.div * BLOCK);
    depth.align = 1;
    return padded(b, of, OCTET_F32, depth, lines);
}

/* cuBLASLt takes rows of whole 16 bytes, of both operands and of dst, and 128-blocks in eights.
 * What has others is copied where it is multiplied, so that tensors keep their layout, which
 * everyone sees. Outer indices that are rounded up are dst's columns, and its rows where a lies
 * across the product. Rows of 128-blocks are not: those behind whole eights are few, and the
 * product has room for them in its scratch. */
static void pad(oct_builder *b, octet_step *step) {
    const octet_plan_tensor *x = oct_tensor_at(b, step->a), *dst = oct_tensor_at(b, step->dst);
    bool a_across = (step->gemm == OCTET_WGRAD) != (step->a_use == OCTET_USE_COL);
    bool b_across = (step->gemm != OCTET_FPROP) != (step->b_use == OCTET_USE_COL);
    octet_dim rows = dst->rows, cols = dst->cols;
    octet_dim depth = step->gemm == OCTET_WGRAD ? x->rows : x->cols;
    bool one_scale = oct_quantizer_one_scale(&x->quantizer);
    if (one_scale) {
        cols = whole(cols, b_across ? (uint8_t)OCTET_U8 : dst->dtype);
        rows = a_across ? whole(rows, OCTET_U8) : rows;
    } else {
        cols.align = OCT_WHOLE_LINES;
        step->b_scales = padded_scales(b, step->b, depth, cols);
    }
    depth = a_across && b_across ? depth : whole(depth, OCTET_U8);
    step->a_copy =
        padded(b, step->a, OCTET_U8, a_across ? depth : rows, a_across ? rows : depth);
    step->b_copy =
        padded(b, step->b, OCTET_U8, b_across ? depth : cols, b_across ? cols : depth);
    rows.most = SUM_ROWS;
    step->dst_copy = padded(b, step->dst, OCTET_F32, rows, cols);
}

/* Whether a native product is of FP8 whose blocks, if any, longer rows leave as they are. */
static bool may_pad(const oct_builder *b, const octet_quantizer *q) {
    return b->device.kind == OCTET_CUDA &&
           (oct_quantizer_one_scale(q) || oct_has_float_scales(q));
}

/* ---- operands -------------------------------------------------------------------------- */

/* Tensor cores read block scales in their own order. */
static oct_operand swizzled(oct_builder *b, oct_operand operand) {
    octet_plan_tensor from = *oct_tensor_at(b, operand.tensor);
    octet_quantizer q = oct_for_gemm(b, from.quantizer);
    if (b->device.kind == OCTET_CPU || !oct_has_byte_scales(&q) || from.quantizer.swizzled) {
        return operand;
    }
    bool row = operand.use == OCTET_USE_ROW;
    q.swizzled = 1;
    q.rowwise = row;
    q.columnwise = !row;
    uint8_t made =
        oct_tensor(b, (octet_plan_name)from.name, OCTET_FORM_SWIZZLED, from.dtype, &q);
    oct_tensor_shape(b, made, from.rows, from.cols);
    oct_share(b, made, operand.tensor,
              (row ? OCT_ROW_PARTS : OCT_COL_PARTS) &
                  ~(OCT_PART(ROW_SCALE) | OCT_PART(COL_SCALE)));
    oct_place(b, made, OCT_ALL_PARTS, OCTET_PLACE_WORK);
    octet_step *step = oct_step(b, OCTET_OP_SWIZZLE);
    step->a = operand.tensor;
    step->a_use = operand.use;
    step->dst = made;
    oct_step_done(b, step);
    return (oct_operand){made, operand.use};
}

/* On a GPU the library multiplies per-tensor bytes by kernels that want no memory, and finishes
 * dst, but for a bias that it does not add to a narrow result. */
static bool needs_scratch(oct_builder *b, const oct_product *product, bool native) {
    octet_quantizer x = oct_tensor_at(b, product->a.tensor)->quantizer;
    octet_quantizer y = oct_tensor_at(b, product->b.tensor)->quantizer;
    uint8_t dst = oct_tensor_at(b, product->dst)->dtype;
    bool bias = product->bias == OCTET_ABSENT || dst == OCTET_F32 ||
                b->plan->buffers[product->bias].dtype == dst;
    return b->device.kind == OCTET_CPU || !native || !oct_quantizer_one_scale(&x) ||
           !oct_quantizer_one_scale(&y) || !bias;
}

/* For one lane. On a GPU there is room for a workspace of the library's where it has one: not
 * with per-tensor bytes, and on compute capability 9.0 for long products of 128-blocks alone.
 */
static uint32_t scratch_bytes(oct_builder *b, const oct_product *product, bool native) {
    const octet_quantizer *x = &oct_tensor_at(b, product->a.tensor)->quantizer;
    bool blocks = native && oct_has_float_scales(x);
    bool one_scale = native && oct_quantizer_one_scale(x);
    if (b->device.kind == OCTET_CPU) {
        return OCT_CPU_LANE_BYTES;
    }
    bool workspace = !one_scale && (b->device.arch != 90 || blocks);
    return OCT_CUDA_SUMS_BYTES + (workspace ? OCT_CUDA_WORKSPACE_BYTES : 0);
}

/* Lanes of workspace: one for each worker on the CPU, as far as a dimension counts, one on a
 * GPU; all GEMMs of a plan use the same, one after the other, as large as the one that wants
 * most. */
static uint8_t provide_scratch(oct_builder *b, uint32_t bytes) {
    enum { COLS = 1 << 15 };
    uint32_t rows = bytes / COLS, most = UINT16_MAX / rows;
    uint32_t lanes = b->device.kind == OCTET_CPU ? b->threads : 1;
    lanes = lanes > most ? most : lanes;
    octet_dim dim = oct_axis_times(OCTET_AXIS_ONE, (uint16_t)(rows * lanes));
    if (b->scratch == OCTET_ABSENT) {
        uint8_t tensor = oct_tensor(b, OCTET_NAME_SCRATCH, OCTET_FORM_GIVEN, OCTET_U8, NULL);
        oct_tensor_shape(b, tensor, dim, oct_axis_times(OCTET_AXIS_ONE, COLS));
        oct_place(b, tensor, OCT_ALL_PARTS, OCTET_PLACE_WORK);
        b->scratch = oct_buffer_of(b, tensor);
    } else if (b->plan->buffers[b->scratch].dims[0].mul < dim.mul) {
        octet_plan_buffer *buffer = &b->plan->buffers[b->scratch];
        buffer->dims[0] = oct_tensor_at(b, buffer->tensor)->rows = dim;
    }
    return b->scratch;
}

static bool needs_split(const octet_quantizer *q) {
    return oct_scheme_of(q)->split;
}

void oct_gemm(oct_builder *b, const oct_product *product) {
    oct_operand x = product->a, y = product->b;
    octet_quantizer qx = oct_tensor_at(b, x.tensor)->quantizer;
    octet_quantizer qy = oct_tensor_at(b, y.tensor)->quantizer;
    bool native = native_pair(b, &qx, &qy);
    uint8_t x_copy = OCTET_ABSENT, y_copy = OCTET_ABSENT;
    if (native) {
        x = swizzled(b, x);
        y = swizzled(b, y);
    } else {
        bool exact = exact_in_bf16(oct_tensor_at(b, x.tensor)) &&
                     exact_in_bf16(oct_tensor_at(b, y.tensor));
        x_copy = decoded(b, x, exact ? OCTET_BF16 : OCTET_F32);
        y_copy = decoded(b, y, exact ? OCTET_BF16 : OCTET_F32);
    }
    bool needs = needs_scratch(b, product, native);
    uint8_t scratch =
        needs ? provide_scratch(b, scratch_bytes(b, product, native)) : OCTET_ABSENT;
    octet_step *step = oct_step(b, OCTET_OP_GEMM);
    step->gemm = (uint8_t)product->gemm;
    step->a = x.tensor;
    step->a_use = x.use;
    step->b = y.tensor;
    step->b_use = y.use;
    step->dst = product->dst;
    step->bias = product->bias;
    step->accumulate = product->accumulate;
    step->native = native;
    step->split = product->split || needs_split(&qx) || needs_split(&qy);
    step->a_copy = x_copy;
    step->b_copy = y_copy;
    step->scratch = scratch;
    if (native && may_pad(b, &qx)) {
        pad(b, step);
    }
    oct_step_done(b, step);
}
