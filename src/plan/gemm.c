/* gemm.c - one product: whether the device takes the bytes as they are, and what it needs. */
#include "format/hadamard.h"
#include "plan/ops.h"
#include "quant/layout.h"
#include "quant/quantizer.h"
#include "quant/support.h"

/* Whether an operand decodes to bf16, which has 8 significant bits, without rounding. MXFP8 has
 * elements of 4 and scales of 1, NVFP4 elements of 2 and scales of 4: both fit. A scale or an
 * amax of the whole tensor multiplies the sums, and does not count. Only blocks with a float
 * for a scale need f32, unless it is a power of two.
 * e.g. `recipe=nvfp4 device=cuda:0/90`: "emulated exactly in bf16"
 * e.g. `recipe=block+nopow2 device=cuda:0/80`: "emulated exactly in f32"
 * e.g. `recipe=block device=cuda:0/80`: "emulated exactly in bf16" */
static bool exact_in_bf16(const octet_plan_tensor *t) {
    const octet_quantizer *q = &t->quantizer;
    /* A plain operand beside a quantized one: a recipe that quantizes only one of them.
     * e.g. `in=f32 recipe=custom:weight=mxfp8:e4m3 device=cuda:0/90`: "fprop output = input x
     * weight.quantized rowwise, fast accumulation, emulated exactly in f32" */
    if (!oct_quantizer_is(q)) {
        return t->dtype == OCTET_BF16;
    }
    return !oct_has_float_scales(q) || q->pow2;
}

/* Columns that make rows of whole `row_bytes`, which the device reads best: 16 bytes are 16
 * elements of FP8, or 8 of bf16. */
static octet_dim in_whole_rows(const oct_builder *b, octet_dim cols, uint8_t dtype) {
    int elements = b->target->row_bytes * 8 / octet_dtype_bits((octet_dtype)dtype);
    cols.align = (uint16_t)(elements > 1 ? elements : 1);
    return cols;
}

/* The cast of this phase that makes an operand's bytes and can write what a product reads
 * instead of them, too. NULL: none, so that the product makes it from the bytes.
 * e.g. `recipe=mxfp8 device=cuda:0/90`: "quantize weight -> weight.quantized
 * mxfp8:e4m3/1x32+row+col, rowwise folded" */
static octet_step *cast_of(const oct_builder *b, oct_operand operand) {
    const octet_quantizer *q = &b->plan->tensors[operand.tensor].quantizer;
    /* Beside pieces that are gathered, the weight is cast in a phase before the product's.
     * e.g. `m=512 recipe=mxfp8 parallel=column sequence tp=2 gather_chunks=2 device=cuda:0/90`:
     * "5 quantize weight -> weight.quantized mxfp8:e4m3/1x32+row+col, rowwise folded" */
    bool before = b->plan->by_rows;
    bool may = oct_has_byte_scales(q) && !q->four_over_six && (before || !b->after_collective);
    for (int i = 0; may && i < b->plan->step_count; i++) {
        octet_step *step = &b->plan->steps[i];
        if (step->op == OCTET_OP_QUANTIZE && step->dst == operand.tensor &&
            (before || step->phase == b->phase)) {
            return step;
        }
    }
    return NULL;
}

/* The copy that a cast writes beside the bytes of a direction; OCTET_ABSENT: none yet. */
static uint8_t *copy_of(octet_step *cast, uint8_t use) {
    return use == OCTET_USE_ROW ? &cast->a_copy : &cast->b_copy;
}

/* What an emulated GEMM multiplies instead of an operand; none for values that are right
 * already. A cast that makes the operand writes it beside the bytes: they need not be read
 * again. */
static uint8_t decoded(oct_builder *b, oct_operand operand, uint8_t dtype) {
    octet_plan_tensor from = *oct_tensor_at(b, operand.tensor);
    /* Plain and in the right dtype: multiplied as it is.
     * e.g. `recipe=custom:weight=mxfp8:e4m3 device=cuda:0/90`: "fprop output = input x" */
    if (oct_tensor_is_plain(b, operand.tensor) && from.dtype == dtype) {
        return OCTET_ABSENT;
    }
    octet_step *cast = dtype == OCTET_BF16 ? cast_of(b, operand) : NULL;
    /* Another product of the plan had it decoded by the same cast. */
    if (cast && *copy_of(cast, operand.use) != OCTET_ABSENT) {
        return *copy_of(cast, operand.use);
    }
    uint8_t copy = oct_tensor(b, (octet_plan_name)from.name, OCTET_FORM_EMULATED, dtype, NULL);
    octet_dim rows = from.rows;
    /* The transform mixes 16 rows, so the last group fills up: 20 rows become 32.
     * e.g. `m=20 recipe=nvfp4 device=cuda:0/90`: "input.quantized columnwise, split
     * accumulation, emulated exactly in bf16" */
    if (from.quantizer.hadamard && operand.use == OCTET_USE_COL) {
        rows.align = OCT_HADAMARD_ROWS;
    }
    oct_tensor_shape(b, copy, rows, in_whole_rows(b, from.cols, dtype));
    oct_place(b, copy, OCT_ALL_PARTS, OCTET_PLACE_WORK);
    /* The cast writes the copy as well; else the product decodes the bytes first.
     * e.g. `recipe=nvfp4 device=cuda:0/90`: "both decoded to bf16"
     * e.g. `recipe=nvfp4 qw=nvfp4:e2m1 grad=none device=cuda:0/90`: "x weight rowwise, split
     * accumulation, emulated exactly in bf16" */
    if (cast) {
        *copy_of(cast, operand.use) = copy;
        oct_step_done(b, cast);
    }
    return copy;
}

/* What a folded GEMM multiplies instead of an operand: FP8 in blocks of 128 along the product,
 * which the device multiplies. Sizes are rounded up to what its library takes, so that nothing
 * is padded later. along_rows: the product runs along the operand's rows. */
static uint8_t folded(oct_builder *b, oct_operand operand, bool along_rows) {
    octet_plan_tensor from = *oct_tensor_at(b, operand.tensor);
    /* Square blocks may lie across the product: then the product folds them itself.
     * e.g. `recipe=mxfp8+2d device=cuda:0/90`: "dgrad grad_input = grad_output.quantized
     * rowwise x weight.quantized rowwise, split accumulation, folded into blocks of 128" */
    bool along = along_rows == (operand.use == OCTET_USE_COL);
    octet_step *cast = along ? cast_of(b, operand) : NULL;
    /* Another product of the plan had it folded by the same cast. */
    if (cast && *copy_of(cast, operand.use) != OCTET_ABSENT) {
        return *copy_of(cast, operand.use);
    }
    octet_quantizer q = oct_quantizer_default(OCTET_FP8_BLOCK);
    q.format = from.quantizer.format;
    q.rowwise = !along_rows;
    q.columnwise = along_rows;
    uint8_t copy = oct_tensor(b, (octet_plan_name)from.name, OCTET_FORM_FOLDED, from.dtype, &q);
    octet_dim *outer = along_rows ? &from.cols : &from.rows;
    octet_dim *depth = along_rows ? &from.rows : &from.cols;
    outer->align = b->target->outer_multiple(OCTET_FP8_BLOCK);
    *depth = in_whole_rows(b, *depth, OCTET_U8);
    oct_tensor_shape(b, copy, from.rows, from.cols);
    oct_place(b, copy, OCT_ALL_PARTS, OCTET_PLACE_WORK);
    /* The cast writes it as well; else the product folds the bytes first.
     * e.g. `recipe=mxfp8 device=cuda:0/90`: "both folded" */
    if (cast) {
        *copy_of(cast, operand.use) = copy;
        oct_step_done(b, cast);
    }
    return copy;
}

/* How the device multiplies two operands; folding is left out where exact products are asked
 * for, by the recipe or by the environment.
 * e.g. `recipe=mxfp8:product=exact device=cuda:0/90`: "emulated exactly in bf16"
 * e.g. `recipe=mxfp8 device=cuda:0/90`: "folded into blocks of 128" */
static octet_support support_of(oct_builder *b, const octet_quantizer *x,
                                const octet_quantizer *y) {
    octet_support support = b->target->multiplies(&b->device, x, y);
    if (support != OCTET_SUPPORT_FOLDED) {
        return support;
    }
    bool exact = false;
    octet_status status = oct_exact_asked(&exact, b->status ? NULL : b->err);
    b->status = b->status ? b->status : status;
    return exact || b->exact ? OCTET_SUPPORT_EMULATED : OCTET_SUPPORT_FOLDED;
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

/* Padded copies of the operands of a native product. A GPU's library takes rows of whole 16
 * bytes, of both operands and of dst, and outer indices of 128-blocks in eights (`multiple`). A
 * tensor's own layout is public and stays as it is: the product multiplies a copy with longer
 * rows. FP8 with k=100 is copied into rows of 112 bytes. At sizes that need no padding the
 * copies have no bytes: bind.c.
 * e.g. `k=100 recipe=current device=cuda:0/90`: "fast accumulation, operands padded"
 * e.g. `recipe=current device=cuda:0/90`: no "padded"
 *
 * An operand lies across if its stored rows run along dst, and not along the sum: wgrad that
 * reads rowwise bytes of dy. Then rows of whole 16 bytes mean rounding up dst's columns for b,
 * and its rows for a. Rows of 128-blocks are not rounded up: the few behind whole eights are
 * multiplied apart. dst and scales are padded by the device, in its scratch.
 * e.g. `recipe=current device=cuda:0/100`: "wgrad grad_weight = grad_output.quantized rowwise"
 * e.g. `m=20 recipe=block device=cuda:0/90`: "rows behind whole eights: 4" */
static void pad(oct_builder *b, octet_step *step, uint16_t multiple) {
    const octet_plan_tensor *x = oct_tensor_at(b, step->a), *dst = oct_tensor_at(b, step->dst);
    bool a_across = (step->gemm == OCTET_WGRAD) != (step->a_use == OCTET_USE_COL);
    bool b_across = (step->gemm != OCTET_FPROP) != (step->b_use == OCTET_USE_COL);
    octet_dim rows = dst->rows, cols = dst->cols;
    octet_dim depth = step->gemm == OCTET_WGRAD ? x->rows : x->cols;
    if (oct_quantizer_one_scale(&x->quantizer)) {
        /* One scale: whole rows of b, where it lies across, or of dst; and of a likewise.
         * e.g. `n=100 recipe=current device=cuda:0/90`: "fast accumulation, operands and sums
         * padded" */
        cols = in_whole_rows(b, cols, b_across ? (uint8_t)OCTET_U8 : dst->dtype);
        rows = a_across ? in_whole_rows(b, rows, OCTET_U8) : rows;
    } else {
        /* 128-blocks: dst's columns in eights.
         * e.g. `n=100 recipe=block device=cuda:0/90`: "operands and sums padded" */
        cols.align = multiple;
    }
    /* If both lie across, no row runs along the sum, and it need not be rounded up. */
    depth = a_across && b_across ? depth : in_whole_rows(b, depth, OCTET_U8);
    step->a_copy =
        padded(b, step->a, OCTET_U8, a_across ? depth : rows, a_across ? rows : depth);
    step->b_copy =
        padded(b, step->b, OCTET_U8, b_across ? depth : cols, b_across ? cols : depth);
}

/* ---- operands -------------------------------------------------------------------------- */

/* Block scales in the order that the product reads. */
static oct_operand swizzled(oct_builder *b, oct_operand operand) {
    octet_plan_tensor from = *oct_tensor_at(b, operand.tensor);
    octet_quantizer q = oct_for_gemm(b, from.quantizer);
    /* The product reads scales in plain order, or they are in its order already: our own casts
     * write them so (oct_for_gemm). Left are the caller's tensors, and gathered ones.
     * e.g. `recipe=mxfp8 device=cuda:0/100`: "mxfp8:e4m3/1x32+row+col+swizzled"
     * e.g. `recipe=mxfp8 qw=mxfp8:e4m3 device=cuda:0/100`: "swizzle scales of weight rowwise ->
     * weight.swizzled" */
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

/* The memory that products work in, as large as the one that wants most: all of a plan use the
 * same, one after the other. How large that is, the device says at the sizes that are bound. */
static uint8_t provide_scratch(oct_builder *b) {
    if (b->scratch == OCTET_ABSENT) {
        uint32_t most = b->target->workers, workers = b->threads < most ? b->threads : most;
        uint8_t tensor = oct_tensor(b, OCTET_NAME_SCRATCH, OCTET_FORM_GIVEN, OCTET_U8, NULL);
        oct_tensor_shape(b, tensor, oct_dim_of(OCTET_AXIS_ONE, 1, 1),
                         oct_axis_times(OCTET_AXIS_ONE, workers));
        oct_place(b, tensor, OCT_ALL_PARTS, OCTET_PLACE_WORK);
        b->scratch = oct_buffer_of(b, tensor);
        if (!b->status) {
            b->plan->buffers[b->scratch].sized = 1;
        }
    }
    return b->scratch;
}

bool oct_product_at(oct_target_product *out, const octet_plan *plan, const octet_step *gemm) {
    const octet_plan_tensor *a = &plan->tensors[gemm->a], *dst = &plan->tensors[gemm->dst];
    bool biased = gemm->bias != OCTET_ABSENT;
    *out = (oct_target_product){.a = &a->quantizer,
                                .b = &plan->tensors[gemm->b].quantizer,
                                .gemm = gemm->gemm,
                                .a_use = gemm->a_use,
                                .b_use = gemm->b_use,
                                .support = octet_step_support(plan, (int)(gemm - plan->steps)),
                                .invariant = gemm->invariant,
                                .dst = dst->dtype,
                                .bias = biased ? plan->buffers[gemm->bias].dtype
                                               : (uint8_t)OCTET_NONE};
    return oct_dim_number(&out->rows, &dst->rows, &plan->extents) &&
           oct_dim_number(&out->cols, &dst->cols, &plan->extents) &&
           oct_dim_number(&out->depth, gemm->gemm == OCTET_WGRAD ? &a->rows : &a->cols,
                          &plan->extents);
}

static bool needs_split(const octet_quantizer *q) {
    return oct_scheme_of(q)->split;
}

void oct_gemm(oct_builder *b, const oct_product *product) {
    oct_operand x = product->a, y = product->b;
    octet_quantizer qx = oct_tensor_at(b, x.tensor)->quantizer;
    octet_quantizer qy = oct_tensor_at(b, y.tensor)->quantizer;
    /* wgrad sums over the rows: it cannot leave out the others.
     * e.g. `recipe=mxfp8+batch_invariant device=cuda:0/90`: "input.quantized columnwise, split
     * accumulation, folded into blocks of 128" */
    bool invariant = b->invariant && product->gemm != OCTET_WGRAD;
    octet_support support = invariant ? OCTET_SUPPORT_NATIVE : support_of(b, &qx, &qy);
    bool native = support == OCTET_SUPPORT_NATIVE, folds = support == OCTET_SUPPORT_FOLDED;
    uint8_t x_copy = OCTET_ABSENT, y_copy = OCTET_ABSENT;
    if (invariant) {
        /* The device multiplies the bytes, with scales in any order.
         * e.g. `recipe=mxfp8+batch_invariant device=cuda:0/90`: "fast accumulation, invariant
         * in m" */
    } else if (native) {
        /* The device multiplies the bytes: FP8 with one scale on an H200.
         * e.g. `recipe=current device=cuda:0/90`: no "emulated", no "folded" */
        x = swizzled(b, x);
        y = swizzled(b, y);
    } else if (folds) {
        /* MXFP8 on an H200: it multiplies FP8 in blocks of 128, not of 32.
         * e.g. `recipe=mxfp8 device=cuda:0/90`: "folded into blocks of 128" */
        x_copy = folded(b, x, product->gemm == OCTET_WGRAD);
        y_copy = folded(b, y, product->gemm != OCTET_FPROP);
    } else {
        /* The operands are decoded, and multiplied as bf16 if both are exact in it: that is
         * faster than f32, and the products are the same. NVFP4 on an H200.
         * e.g. `recipe=nvfp4 device=cuda:0/90`: "emulated exactly in bf16" */
        bool exact = exact_in_bf16(oct_tensor_at(b, x.tensor)) &&
                     exact_in_bf16(oct_tensor_at(b, y.tensor));
        x_copy = decoded(b, x, exact ? OCTET_BF16 : OCTET_F32);
        y_copy = decoded(b, y, exact ? OCTET_BF16 : OCTET_F32);
    }
    uint8_t scratch = provide_scratch(b);
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
    step->invariant = invariant;
    step->split = product->split || needs_split(&qx) || needs_split(&qy) || folds;
    step->a_copy = x_copy;
    step->b_copy = y_copy;
    step->scratch = scratch;
    uint16_t multiple = b->target->outer_multiple((octet_scheme)qx.scheme);
    /* The library takes whole rows only; whether any is ragged, binding to sizes says. */
    if (native && multiple && !invariant) {
        pad(b, step, multiple);
    }
    oct_step_done(b, step);
}

/* Chunks of columns are not folded: scales of 1 x 128 blocks lie in rows with a place for each
 * column of the whole product, and a GPU's library takes all of a row.
 * e.g. `recipe=mxfp8 parallel=row sequence tp=2 chunks=2 device=cuda:0/90`: "fprop
 * output.partial = input.quantized rowwise x weight.quantized rowwise, fast accumulation,
 * emulated exactly in bf16, chunk 1 of 2" */
int oct_gemm_chunks(oct_builder *b, const oct_product *product) {
    bool exact = b->exact;
    b->exact = true;
    oct_gemm(b, product);
    b->exact = exact;
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

int oct_gemm_pieces(oct_builder *b, const oct_product *product) {
    oct_gemm(b, product);
    int step = b->plan->step_count - 1;
    b->plan->steps[step].chunk = 0;
    return step;
}

/* b, its copy, the scratch and the room for a copy of a are those of the first. */
void oct_gemm_next_piece(oct_builder *b, int first, oct_operand a, uint8_t dst, int chunk) {
    oct_operand x = b->plan->steps[first].native ? swizzled(b, a) : a;
    octet_step *step = oct_step(b, OCTET_OP_GEMM);
    uint8_t phase = step->phase;
    *step = b->plan->steps[first];
    step->phase = phase;
    step->a = x.tensor;
    step->dst = dst;
    step->chunk = (uint8_t)chunk;
    oct_step_done(b, step);
}
