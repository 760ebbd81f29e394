/* ops.c - one step and the tensors it makes: quantize, decode, transpose. */
#include "plan/ops.h"

#include "core/dtype.h"
#include "quant/layout.h"
#include "quant/quantizer.h"

oct_quantizing oct_quantizing_of(octet_plan_form form, const octet_quantizer *quantizer,
                                 bool row, bool col) {
    oct_quantizing how = {.form = form,
                          .quantizer = *quantizer,
                          .row_place = OCTET_PLACE_WORK,
                          .col_place = OCTET_PLACE_WORK,
                          .slot = -1,
                          .restored_scale = OCTET_ABSENT,
                          .sums = OCTET_ABSENT};
    how.quantizer.rowwise = row;
    how.quantizer.columnwise = col;
    return how;
}

uint8_t oct_argument(oct_builder *b, octet_plan_name name, const octet_proto *proto,
                     octet_dim rows, octet_dim cols) {
    uint8_t tensor = oct_tensor(b, name, OCTET_FORM_GIVEN, proto->dtype, &proto->quantizer);
    oct_tensor_shape(b, tensor, rows, cols);
    oct_place(b, tensor, OCT_ALL_PARTS, OCTET_PLACE_ARG);
    return tensor;
}

bool oct_shares_scale(const octet_quantizer *q) {
    return oct_quantizer_one_scale(q) || oct_scheme_of(q)->amax;
}

/* A collective must see what it reads or writes; the workspace is nobody else's. */
static octet_place visible(octet_place place) {
    return place == OCTET_PLACE_WORK ? OCTET_PLACE_EXCHANGE : place;
}

/* Where one part of a quantized tensor lies. */
static octet_place part_place(const oct_quantizing *how, uint8_t part) {
    const octet_quantizer *q = &how->quantizer;
    bool one_scale = part == OCTET_PART_SCALE;
    bool rowwise = one_scale ? q->rowwise : (OCT_ROW_PARTS >> part & 1) != 0;
    octet_place place = rowwise ? how->row_place : how->col_place;
    /* Shards that are gathered for a later wgrad: what all ranks have alike is not gathered, so
     * it is saved from here.
     * e.g. `recipe=current parallel=row sequence tp=2 delay_wgrad`: "grad_output.gathered
     * scale_inv f32 (1) 4 B, stored" */
    if (how->saves_shared && (one_scale || part == OCTET_PART_COL_AMAX)) {
        return OCTET_PLACE_SAVED;
    }
    /* The scale of both directions is saved if one of them is. Ranks agree on it before the
     * cast, so no collective reads it.
     * e.g. `recipe=current device=cuda:0/90`: "input.quantized scale_inv f32 (1) 4 B, stored"
     */
    if (one_scale) {
        bool saved = q->columnwise && how->col_place == OCTET_PLACE_SAVED;
        place = saved ? OCTET_PLACE_SAVED : place;
        return place == OCTET_PLACE_EXCHANGE ? OCTET_PLACE_WORK : place;
    }
    /* An amax that ranks reduce is where a collective sees it. Other parts go where their
     * direction goes.
     * e.g. `recipe=nvfp4 parallel=column sequence tp=2`: "all-reduce max input.amax rowwise
     * amax
     * -> input.quantized rowwise amax" */
    bool is_amax = (OCT_AMAX_PARTS >> part & 1) != 0;
    return is_amax && how->reduce ? visible(place) : place;
}

/* The prologue that makes a tensor in this phase: it can measure on the way. NULL: none, or it
 * measures already.
 * e.g. `recipe=current prologue=gelu`: "gelu of input -> input.prologue, amax to input.amax" */
static octet_step *prologue_of(oct_builder *b, uint8_t tensor) {
    for (int i = 0; i < b->plan->step_count && !b->after_collective; i++) {
        octet_step *step = &b->plan->steps[i];
        if (step->op == OCTET_OP_PROLOGUE && step->dst == tensor && step->phase == b->phase &&
            step->amax == OCTET_ABSENT) {
            return step;
        }
    }
    return NULL;
}

/* A cast, or a measuring step, reads a tensor, or computes the prologue's result that no step
 * has written. */
static void set_source(const oct_builder *b, octet_step *step, uint8_t source) {
    const oct_applied *f = &b->applied;
    step->a = source;
    if (source == f->x) {
        step->apply = 1;
        step->stats = f->stats;
        step->gamma = f->gamma;
        step->bias = f->beta;
    }
}

/* The amax of a tensor with one scale: a scalar, agreed on by the ranks if need be. Unless
 * ranks are to see it, it may be the maxima of shares: a GPU need not zero these to begin with.
 * e.g. `recipe=current`: "amax of input -> input.amax"
 * e.g. `recipe=current parallel=column sequence tp=2`: "all-reduce max input.amax ->
 * input.reduced" */
static uint8_t measure_tensor(oct_builder *b, uint8_t source, bool reduce) {
    octet_plan_name name = (octet_plan_name)oct_tensor_at(b, source)->name;
    uint8_t measured = oct_tensor(b, name, OCTET_FORM_MEASURED, OCTET_F32, NULL);
    if (!reduce) {
        oct_tensor_at(b, measured)->cols = oct_axis_times(OCTET_AXIS_ONE, b->target->amaxes);
    }
    oct_place(b, measured, OCT_ALL_PARTS, reduce ? OCTET_PLACE_EXCHANGE : OCTET_PLACE_WORK);
    octet_step *step = prologue_of(b, source);
    if (!step) {
        step = oct_step(b, OCTET_OP_AMAX);
        set_source(b, step, source);
    }
    step->amax = oct_buffer_of(b, measured);
    oct_step_done(b, step);
    if (!reduce) {
        return step->amax;
    }
    uint8_t reduced = oct_tensor(b, name, OCTET_FORM_REDUCED, OCTET_F32, NULL);
    oct_place(b, reduced, OCT_ALL_PARTS, OCTET_PLACE_EXCHANGE);
    oct_collective(b, OCTET_ALL_REDUCE_MAX, oct_buffer_of(b, measured),
                   oct_buffer_of(b, reduced));
    return oct_buffer_of(b, reduced);
}

/* The amaxes of NVFP4 are parts of the quantized tensor, so they are measured into it. If ranks
 * reduce them, they are measured into a tensor of their own, and the collective brings the
 * largest. An amax for each row is never reduced: no other rank has that row.
 * e.g. `recipe=nvfp4`: "amax of input -> input.quantized"
 * e.g. `recipe=nvfp4+norht+rowscaled parallel=column sequence tp=2 grad=x`: no "all-reduce max
 * input" */
static void measure_parts(oct_builder *b, uint8_t source, uint8_t dst,
                          const oct_quantizing *how) {
    bool reduce = how->reduce;
    const octet_plan_tensor *made = oct_tensor_at(b, dst);
    uint32_t local = made->quantizer.row_scaled ? OCT_PART(ROW_AMAX) : 0;
    uint8_t measured = dst;
    if (reduce) {
        measured = oct_tensor(b, (octet_plan_name)made->name, OCTET_FORM_MEASURED, made->dtype,
                              &made->quantizer);
        oct_tensor_shape(b, measured, made->rows, made->cols);
        oct_share(b, measured, dst, local);
        oct_place(b, measured, OCT_AMAX_PARTS & ~local, OCTET_PLACE_EXCHANGE);
    }
    octet_step *step = oct_step(b, OCTET_OP_AMAX);
    step->a = source;
    step->dst = measured;
    step->sums = how->sums;
    oct_step_done(b, step);
    for (int part = OCTET_PART_ROW_AMAX; reduce && part <= OCTET_PART_COL_AMAX; part++) {
        if (!(local >> part & 1) && oct_tensor_has(b, dst, (octet_part)part)) {
            oct_collective(b, OCTET_ALL_REDUCE_MAX, oct_tensor_at(b, measured)->buffers[part],
                           oct_tensor_at(b, dst)->buffers[part]);
        }
    }
}

/* Of the seed's random bits. The tensors of a layer share a seed, so each has its own. */
static uint8_t stream_of(const oct_builder *b, uint8_t name) {
    static const uint8_t streams[OCTET_NAMES] = {
        [OCTET_NAME_GRAD_OUTPUT] = OCTET_STREAM_GRAD_OUTPUT,
        [OCTET_NAME_INPUT] = OCTET_STREAM_INPUT,
        [OCTET_NAME_WEIGHT] = OCTET_STREAM_WEIGHT,
        [OCTET_NAME_OUTPUT] = OCTET_STREAM_OUTPUT,
        [OCTET_NAME_GRAD_INPUT] = OCTET_STREAM_GRAD_INPUT,
        [OCTET_NAME_GRAD_WEIGHT] = OCTET_STREAM_GRAD_WEIGHT,
    };
    return b->plan->kind == OCTET_PLAN_QUANTIZE ? OCTET_STREAM_ALONE : streams[name];
}

uint8_t oct_quantize(oct_builder *b, uint8_t source, const oct_quantizing *how) {
    octet_plan_tensor from = *oct_tensor_at(b, source);
    const octet_quantizer *q = &how->quantizer;
    from.cols = source == b->applied.x ? b->applied.cols : from.cols;
    uint8_t dst = oct_tensor(b, (octet_plan_name)from.name, how->form, from.dtype, q);
    oct_tensor_shape(b, dst, from.rows, from.cols);
    octet_layout layout;
    oct_layout_fill(&layout, q);
    for (int i = 0; i < layout.count; i++) {
        oct_place_entry(b, dst, &layout.buffers[i], part_place(how, layout.buffers[i].part));
    }
    uint8_t scale = OCTET_ABSENT, amax = OCTET_ABSENT;
    if (oct_scheme_of(q)->given_scale) {
        /* Delayed scaling: by the layer's scale, and the amax is measured on the way, unless
         * the call skips it. A tensor that is quantized again takes the scale that forward
         * saved; its amax is measured already.
         * e.g. `recipe=delayed`: "by scale[0], amax to amax[0]"
         * e.g. `recipe=delayed skip_amax`: "by scale[0]", no "amax"
         * e.g. `recipe=delayed fsdp`: "fp8-delayed:e4m3+row by weight_scale.cast" */
        bool restored = how->restored_scale != OCTET_ABSENT;
        scale = restored ? how->restored_scale : oct_scale_slot(b, how->slot);
        amax = restored || b->skips ? OCTET_ABSENT : oct_amax_slot(b, how->slot);
    } else if (oct_quantizer_one_scale(q)) {
        /* Current scaling: the amax is measured first, over the whole tensor.
         * e.g. `recipe=current`: "amax of weight -> weight.amax 4 quantize weight" */
        amax = measure_tensor(b, source, how->reduce);
    } else if (oct_scheme_of(q)->amax) {
        /* NVFP4: likewise, for the factor above its block scales. Other block scales (MXFP8,
         * 128-blocks) are found block by block in the cast itself.
         * e.g. `recipe=nvfp4`: "amax of weight -> weight.quantized 4 quantize weight"
         * e.g. `recipe=mxfp8`: no "amax" */
        measure_parts(b, source, dst, how);
    }
    octet_step *step = oct_step(b, OCTET_OP_QUANTIZE);
    set_source(b, step, source);
    step->dst = dst;
    step->scale = scale;
    step->amax = amax;
    step->accumulate = b->raises && scale != OCTET_ABSENT && amax != OCTET_ABSENT;
    /* Rounded at random, by bits of the caller's seed.
     * e.g. `recipe=nvfp4`: "nvfp4:e2m1/1x16+row+col+rht+sr by seed stream 0" */
    if (q->stochastic) {
        step->seed = oct_seed(b);
        step->stream = stream_of(b, from.name);
    }
    /* Column sums for the bias's gradient come from the first step that reads the tensor: the
     * amax of NVFP4, else the cast. */
    step->sums = oct_scheme_of(q)->amax ? OCTET_ABSENT : how->sums;
    oct_step_done(b, step);
    return dst;
}

/* What an earlier step decoded from the same tensor, if it lies where it is wanted. */
static uint8_t find_values(const oct_builder *b, uint8_t tensor, uint8_t dtype,
                           octet_place place) {
    for (int i = 0; i < b->plan->step_count; i++) {
        const octet_step *step = &b->plan->steps[i];
        if ((step->op != OCTET_OP_DEQUANTIZE && step->op != OCTET_OP_CAST) ||
            step->a != tensor) {
            continue;
        }
        const octet_plan_tensor *made = &b->plan->tensors[step->dst];
        uint8_t lies = b->plan->buffers[made->buffers[OCTET_PART_VALUES]].place;
        if (made->dtype == dtype && (place == OCTET_PLACE_WORK || lies == place)) {
            return step->dst;
        }
    }
    return OCTET_ABSENT;
}

uint8_t oct_values(oct_builder *b, uint8_t tensor, uint8_t dtype, octet_place place) {
    octet_plan_tensor from = *oct_tensor_at(b, tensor);
    bool plain = oct_tensor_is_plain(b, tensor);
    uint8_t found =
        plain && from.dtype == dtype ? tensor : find_values(b, tensor, dtype, place);
    /* It is what is wanted, or an earlier step made that: dgrad and wgrad both decode a
     * quantized dy.
     * e.g. `qdy=mxfp8:e4m3`: "1 dequantize grad_output rowwise -> grad_output.dequantized 2
     * dgrad", no "3 dequantize" */
    if (found != OCTET_ABSENT) {
        return found;
    }
    uint8_t made = oct_tensor(b, (octet_plan_name)from.name,
                              plain ? OCTET_FORM_CAST : OCTET_FORM_DEQUANTIZED, dtype, NULL);
    oct_tensor_shape(b, made, from.rows, from.cols);
    oct_place(b, made, OCT_ALL_PARTS, place);
    octet_step *step = oct_step(b, plain ? OCTET_OP_CAST : OCTET_OP_DEQUANTIZE);
    step->a = tensor;
    step->dst = made;
    step->a_use = (uint8_t)(plain                                            ? OCTET_USE_VALUES
                            : oct_tensor_has(b, tensor, OCTET_PART_ROW_DATA) ? OCTET_USE_ROW
                                                                             : OCTET_USE_COL);
    oct_step_done(b, step);
    return made;
}

uint8_t oct_transpose(oct_builder *b, uint8_t tensor, octet_use have) {
    octet_plan_tensor from = *oct_tensor_at(b, tensor);
    octet_quantizer q = from.quantizer;
    q.rowwise = have == OCTET_USE_COL;
    q.columnwise = have == OCTET_USE_ROW;
    uint8_t made =
        oct_tensor(b, (octet_plan_name)from.name, OCTET_FORM_REQUANTIZED, from.dtype, &q);
    oct_tensor_shape(b, made, from.rows, from.cols);
    oct_share(b, made, tensor, OCT_PART(SCALE));
    oct_place(b, made, OCT_ALL_PARTS, OCTET_PLACE_WORK);
    octet_step *step = oct_step(b, OCTET_OP_TRANSPOSE);
    step->a = tensor;
    step->a_use = (uint8_t)have;
    step->dst = made;
    oct_step_done(b, step);
    return made;
}

bool oct_reads_across(const oct_builder *b, const octet_quantizer *q) {
    return octet_quantizer_transposable(q) &&
           b->target->reads_across(&b->device, (octet_scheme)q->scheme);
}

octet_quantizer oct_for_gemm(const oct_builder *b, octet_quantizer q) {
    /* Tensor cores of compute capability 10.0 have their own order.
     * e.g. `recipe=mxfp8 device=cuda:0/100`: "+swizzled" */
    if (b->target->reads_swizzled(&b->device, (octet_scheme)q.scheme)) {
        q.swizzled = 1;
    }
    return q;
}

oct_way oct_way_to(const oct_builder *b, uint8_t tensor, octet_use want, uint8_t hadamard) {
    const octet_quantizer *q = &b->plan->tensors[tensor].quantizer;
    bool row = want == OCTET_USE_ROW;
    octet_part data = row ? OCTET_PART_ROW_DATA : OCTET_PART_COL_DATA;
    octet_part other = row ? OCTET_PART_COL_DATA : OCTET_PART_ROW_DATA;
    /* Numbers: there are no bytes yet.
     * e.g. `recipe=mxfp8 fsdp`: "quantize weight -> weight.quantized mxfp8:e4m3/1x32+col" */
    if (oct_tensor_is_plain(b, tensor)) {
        return OCT_WAY_QUANTIZE;
    }
    /* The direction is there. Columnwise bytes must carry the transform that the other operand
     * of wgrad carries, or it would not cancel.
     * e.g. `recipe=nvfp4 qin=nvfp4:e2m1+rht`: "x input columnwise"
     * e.g. `recipe=nvfp4 qin=nvfp4:e2m1`: "x input.requantized columnwise" */
    if (oct_tensor_has(b, tensor, data) && (row || q->hadamard == hadamard)) {
        return OCT_WAY_READ;
    }
    /* The other direction is there, and the bytes of one are the transpose of the other's: one
     * scale, or square blocks. Then they are read across or transposed. Else (MXFP8: blocks
     * along one direction only) the tensor is decoded and quantized again.
     * e.g. `recipe=current qw=fp8-tensor:e4m3+row`: "x weight rowwise, split accumulation"
     * e.g. `recipe=current qw=fp8-tensor:e4m3+row device=cuda:0/90`: "transpose weight rowwise"
     * e.g. `recipe=mxfp8 qw=mxfp8:e4m3+row`: "quantize weight.dequantized ->
     * weight.requantized" */
    bool is_transpose = oct_tensor_has(b, tensor, other) && octet_quantizer_transposable(q) &&
                        (row || hadamard == OCTET_HADAMARD_NONE);
    return !is_transpose            ? OCT_WAY_QUANTIZE
           : oct_reads_across(b, q) ? OCT_WAY_READ_ACROSS
                                    : OCT_WAY_TRANSPOSE;
}

oct_operand oct_direction(oct_builder *b, uint8_t tensor, octet_use want,
                          const oct_quantizing *how, uint8_t hadamard) {
    bool row = want == OCTET_USE_ROW;
    octet_use other = row ? OCTET_USE_COL : OCTET_USE_ROW;
    switch (oct_way_to(b, tensor, want, hadamard)) {
    case OCT_WAY_READ:
        return (oct_operand){tensor, (uint8_t)want};
    case OCT_WAY_READ_ACROSS:
        return (oct_operand){tensor, (uint8_t)other};
    case OCT_WAY_TRANSPOSE:
        return (oct_operand){oct_transpose(b, tensor, other), (uint8_t)want};
    case OCT_WAY_QUANTIZE:
        break;
    }
    uint8_t values = oct_values(b, tensor, oct_tensor_at(b, tensor)->dtype, OCTET_PLACE_WORK);
    /* A quantized argument in a role that the recipe leaves alone: the product takes values.
     * e.g. `recipe=custom:input=mxfp8:e4m3 qw=mxfp8:e4m3+row`: "grad_output x
     * weight.dequantized" */
    if (!oct_quantizer_is(&how->quantizer)) {
        values = oct_values(b, values, b->dtype, OCTET_PLACE_WORK);
        return (oct_operand){values, OCTET_USE_VALUES};
    }
    /* Columnwise bytes are wanted, and the device reads rowwise ones across: those are made.
     * e.g. `recipe=current fsdp`: "quantize weight -> weight.quantized fp8-tensor:e4m3+row by"
     */
    oct_quantizing made = *how;
    bool across = !row && oct_reads_across(b, &made.quantizer);
    made.quantizer.rowwise = row || across;
    made.quantizer.columnwise = !made.quantizer.rowwise;
    made.form = values == tensor ? how->form : OCTET_FORM_REQUANTIZED;
    uint8_t quantized = oct_quantize(b, values, &made);
    return (oct_operand){quantized, (uint8_t)(across ? OCTET_USE_ROW : want)};
}
