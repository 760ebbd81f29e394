/* gemm.c - one product: whether the device takes the bytes as they are, and what it needs. */
#include "plan/ops.h"
#include "quant/layout.h"
#include "quant/quantizer.h"

/* Whether an operand decodes to bf16, which has 8 significant bits, without rounding. Example:
 * MXFP8 has elements of 4 and scales of 1, NVFP4 elements of 2 and scales of 4: both fit. A
 * scale or an amax of the whole tensor multiplies the sums, and does not count. Only blocks
 * with a float for a scale need f32, unless it is a power of two. */
static bool exact_in_bf16(const octet_plan_tensor *t) {
    const octet_quantizer *q = &t->quantizer;
    /* A plain operand beside a quantized one: a recipe that quantizes only one of them. */
    if (!oct_quantizer_is(q)) {
        return t->dtype == OCTET_BF16;
    }
    return !oct_has_float_scales(q) || q->pow2;
}

/* Rows of as many bytes as the device reads best. */
static octet_dim whole(const oct_builder *b, octet_dim cols, uint8_t dtype) {
    int elements = b->target->row_bytes * 8 / octet_dtype_bits((octet_dtype)dtype);
    cols.align = (uint16_t)(elements > 1 ? elements : 1);
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
 * already. A cast that makes the operand writes it beside the bytes: they need not be read
 * again. */
static uint8_t decoded(oct_builder *b, oct_operand operand, uint8_t dtype) {
    octet_plan_tensor from = *oct_tensor_at(b, operand.tensor);
    /* Plain and in the right dtype: multiplied as it is. */
    if (oct_tensor_is_plain(b, operand.tensor) && from.dtype == dtype) {
        return OCTET_ABSENT;
    }
    octet_step *maker = maker_of(b, operand, dtype);
    bool row = operand.use == OCTET_USE_ROW;
    uint8_t made = !maker ? OCTET_ABSENT : row ? maker->a_copy : maker->b_copy;
    /* Another product had it decoded by the same cast. */
    if (made != OCTET_ABSENT) {
        return made;
    }
    uint8_t copy = oct_tensor(b, (octet_plan_name)from.name, OCTET_FORM_EMULATED, dtype, NULL);
    octet_dim rows = from.rows;
    /* The transform mixes 16 rows, so the last group fills up. Example: 20 rows become 32. */
    if (from.quantizer.hadamard && operand.use == OCTET_USE_COL) {
        rows.align = 16;
    }
    oct_tensor_shape(b, copy, rows, whole(b, from.cols, dtype));
    oct_place(b, copy, OCT_ALL_PARTS, OCTET_PLACE_WORK);
    /* The cast writes the copy as well; else the product decodes the bytes first. */
    if (maker) {
        *(row ? &maker->a_copy : &maker->b_copy) = copy;
        oct_step_done(b, maker);
    }
    return copy;
}

/* ---- ragged bytes ---------------------------------------------------------------------- */

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
    octet_quantizer q = oct_tensor_at(b, of)->quantizer;
    /* A scale of a 128 x 128 block serves 128 outer indices: there is nothing to pad. */
    if (q.block_rows > 1) {
        return OCTET_ABSENT;
    }
    depth.div = (uint16_t)(depth.div * q.block_cols);
    depth.align = 1;
    return padded(b, of, OCTET_F32, depth, lines);
}

/* A GPU's library takes rows of whole 16 bytes, of both operands and of dst, and 128-blocks in
 * eights: `lines`. What has others is copied where it is multiplied, so that tensors keep their
 * layout, which everyone sees. Outer indices that are rounded up are dst's columns, and its
 * rows where a lies across the product. Rows of 128-blocks are not: those behind whole eights
 * are few, and the product has room for them in its scratch. */
static void pad(oct_builder *b, octet_step *step, uint16_t lines) {
    const octet_plan_tensor *x = oct_tensor_at(b, step->a), *dst = oct_tensor_at(b, step->dst);
    bool a_across = (step->gemm == OCTET_WGRAD) != (step->a_use == OCTET_USE_COL);
    bool b_across = (step->gemm != OCTET_FPROP) != (step->b_use == OCTET_USE_COL);
    octet_dim rows = dst->rows, cols = dst->cols;
    octet_dim depth = step->gemm == OCTET_WGRAD ? x->rows : x->cols;
    if (oct_quantizer_one_scale(&x->quantizer)) {
        /* One scale: whole rows of b, where it lies across, or of dst; and of a likewise. */
        cols = whole(b, cols, b_across ? (uint8_t)OCTET_U8 : dst->dtype);
        rows = a_across ? whole(b, rows, OCTET_U8) : rows;
    } else {
        /* 128-blocks: dst's columns in eights, and scales for the columns that are added. */
        cols.align = lines;
        step->b_scales = padded_scales(b, step->b, depth, cols);
    }
    depth = a_across && b_across ? depth : whole(b, depth, OCTET_U8);
    step->a_copy =
        padded(b, step->a, OCTET_U8, a_across ? depth : rows, a_across ? rows : depth);
    step->b_copy =
        padded(b, step->b, OCTET_U8, b_across ? depth : cols, b_across ? cols : depth);
    rows.most = b->target->sum_rows_log2;
    step->dst_copy = padded(b, step->dst, OCTET_F32, rows, cols);
}

/* ---- operands -------------------------------------------------------------------------- */

/* Block scales in the order that the product reads. */
static oct_operand swizzled(oct_builder *b, oct_operand operand) {
    octet_plan_tensor from = *oct_tensor_at(b, operand.tensor);
    octet_quantizer q = oct_for_gemm(b, from.quantizer);
    /* The product reads scales in plain order, or they are in its order already: our own casts
     * write them so (oct_for_gemm). Left are the caller's tensors, and gathered ones. */
    if (!q.swizzled || from.quantizer.swizzled) {
        return operand;
    }
    bool row = operand.use == OCTET_USE_ROW;
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

/* The memory that a product works in, as the device says. */
static oct_scratch scratch_of(oct_builder *b, const oct_product *product, bool native) {
    bool biased = product->bias != OCTET_ABSENT;
    oct_target_product what = {.a = &oct_tensor_at(b, product->a.tensor)->quantizer,
                               .b = &oct_tensor_at(b, product->b.tensor)->quantizer,
                               .native = native,
                               .dst = oct_tensor_at(b, product->dst)->dtype,
                               .bias = biased ? b->plan->buffers[product->bias].dtype
                                              : (uint8_t)OCTET_NONE};
    return b->target->scratch(&b->device, &what, b->threads);
}

/* Lanes of workspace, as far as a dimension counts. All GEMMs of a plan use the same, one after
 * the other, as large as the one that wants most. */
static uint8_t provide_scratch(oct_builder *b, oct_scratch wanted) {
    enum { COLS = 1 << 15 };
    uint32_t rows = wanted.lane_bytes / COLS, most = UINT16_MAX / rows;
    uint32_t lanes = wanted.lanes > most ? most : wanted.lanes;
    octet_dim dim = oct_axis_times(OCTET_AXIS_ONE, (uint16_t)(rows * lanes));
    if (b->scratch == OCTET_ABSENT) {
        /* The first product that needs any. */
        uint8_t tensor = oct_tensor(b, OCTET_NAME_SCRATCH, OCTET_FORM_GIVEN, OCTET_U8, NULL);
        oct_tensor_shape(b, tensor, dim, oct_axis_times(OCTET_AXIS_ONE, COLS));
        oct_place(b, tensor, OCT_ALL_PARTS, OCTET_PLACE_WORK);
        b->scratch = oct_buffer_of(b, tensor);
    } else if (b->plan->buffers[b->scratch].dims[0].mul < dim.mul) {
        /* This one needs more than those before it. */
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
    bool native = b->target->multiplies(&b->device, &qx, &qy);
    uint8_t x_copy = OCTET_ABSENT, y_copy = OCTET_ABSENT;
    if (native) {
        /* The device multiplies the bytes. Example: FP8 with one scale on an H200. */
        x = swizzled(b, x);
        y = swizzled(b, y);
    } else {
        /* The operands are decoded, and multiplied as bf16 if both are exact in it: that is
         * faster than f32, and the products are the same. Example: MXFP8 on an H200. */
        bool exact = exact_in_bf16(oct_tensor_at(b, x.tensor)) &&
                     exact_in_bf16(oct_tensor_at(b, y.tensor));
        x_copy = decoded(b, x, exact ? OCTET_BF16 : OCTET_F32);
        y_copy = decoded(b, y, exact ? OCTET_BF16 : OCTET_F32);
    }
    oct_scratch wanted = scratch_of(b, product, native);
    uint8_t scratch = wanted.lanes ? provide_scratch(b, wanted) : OCTET_ABSENT;
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
    uint16_t lines = b->target->lines((octet_scheme)qx.scheme);
    /* The library takes whole rows only; whether any is ragged, binding to sizes says. */
    if (native && lines) {
        pad(b, step, lines);
    }
    oct_step_done(b, step);
}

int oct_gemm_chunks(oct_builder *b, const oct_product *product) {
    oct_gemm(b, product);
    int step = b->plan->step_count - 1;
    b->plan->steps[step].chunk = 0;
    return step;
}

/* Operands, their copies and the scratch are those of the first. */
void oct_gemm_next(oct_builder *b, int first, uint8_t dst, int chunk) {
    octet_step *step = oct_step(b, OCTET_OP_GEMM);
    uint8_t phase = step->phase;
    *step = b->plan->steps[first];
    step->phase = phase;
    step->dst = dst;
    step->chunk = (uint8_t)chunk;
    oct_step_done(b, step);
}
