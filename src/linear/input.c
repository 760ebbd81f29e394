/* input.c - x in forward: cast, gathered, and what of it is saved for wgrad. */
#include "linear/planner.h"
#include "quant/layout.h"
#include "quant/quantizer.h"

/* Whether wgrad cannot use a cast that forward makes, and finds the argument itself. */
static bool saves_argument(const oct_planner *p) {
    const octet_linear_args *args = p->args;
    const octet_quantizer *q = &p->facts.role[OCTET_INPUT];
    /* The caller's tensor is quantized already, and there is nothing better to save.
     * e.g. `recipe=mxfp8 qin=mxfp8:e4m3`: "input columnwise data u8 (256, 256) 64.0 KiB, is
     * argument 2" */
    if (oct_quantizer_is(&args->input.quantizer)) {
        return true;
    }
    /* Forward multiplies numbers: there is no recipe, it leaves the input alone, or the call
     * calibrates.
     * e.g. `recipe=custom:weight=mxfp8:e4m3`: "fprop output = input x", "is argument 0" */
    if (!oct_quantizer_is(q)) {
        return true;
    }
    /* Backward multiplies numbers, though forward does not, or the caller wants x itself saved.
     * e.g. `recipe=mxfp8:override=high_precision`: "wgrad grad_weight = grad_output x input",
     * "is argument 0" */
    if (args->recipe.override_ == OCTET_OVERRIDE_HIGH_PRECISION || args->save_original_input) {
        return true;
    }
    /* The caller wants memory, and backward has x of a prologue anyway: it casts f(x) again.
     * e.g. `recipe=mxfp8 prologue=rmsnorm eps=1e-05 save=memory`: "quantize rmsnorm(input) by
     * statistics, gamma -> input.quantized mxfp8:e4m3/1x32+col" */
    if (oct_saves_no_cast(p)) {
        return true;
    }
    /* The ranks' rows are joined before they are quantized. Wgrad would need the cast of all
     * rows; this rank's rows take less memory, and backward gathers them once more.
     * e.g. `m=40 recipe=mxfp8 parallel=column sequence tp=2 gather=high_precision`: "input bf16
     * (40, 256) 20.0 KiB, is argument 0", "quantize input.gathered" */
    return oct_gathers_input(p) && args->gather == OCTET_GATHER_HIGH_PRECISION;
}

/* Whether rowwise bytes serve wgrad, so that forward makes no others for it. */
static bool saves_rowwise(const oct_planner *p) {
    const octet_quantizer *q = &p->facts.role[OCTET_INPUT];
    /* Backward decodes what forward multiplied, and that was rowwise.
     * e.g. `recipe=mxfp8:override=dequantized`: "input.quantized rowwise data u8 (256,
     * 256) 64.0 KiB, stored" */
    if (p->args->recipe.override_ == OCTET_OVERRIDE_DEQUANTIZED) {
        return true;
    }
    /* The device's product reads rowwise bytes across, so no second cast is made.
     * e.g. `recipe=current`: "wgrad grad_weight = grad_output.quantized rowwise x
     * input.quantized rowwise" */
    if (oct_reads_across(p->b, q)) {
        return true;
    }
    /* Shards with one scale are gathered rowwise, because their rows then lie one after the
     * other, and transposed after that.
     * e.g. `recipe=current parallel=column sequence tp=2 device=cuda:0/90`: "transpose
     * input.gathered rowwise -> input.requantized" */
    return oct_gathers_input(p) && oct_quantizer_one_scale(q);
}

oct_saving oct_input_saving(const oct_planner *p) {
    /* Only wgrad reads the input, and the weight is frozen.
     * e.g. `recipe=mxfp8 grad=x`: "saved for the next plan 0 weight.quantized" */
    if (!p->facts.wgrad) {
        return OCT_SAVE_NOTHING;
    }
    /* e.g. `recipe=mxfp8 save_original_input`: "input bf16 (256, 256) 128.0 KiB, is argument 0"
     */
    if (saves_argument(p)) {
        return OCT_SAVE_ARGUMENT;
    }
    /* e.g. `recipe=current`: "input.quantized rowwise data u8 (256, 256) 64.0 KiB, stored" */
    if (saves_rowwise(p)) {
        return OCT_SAVE_ROW;
    }
    /* Wgrad sums over the rows, so it needs scales along them.
     * e.g. `recipe=mxfp8`: "quantize input -> input.quantized mxfp8:e4m3/1x32+row+col",
     * "input.quantized columnwise data u8 (256, 256) 64.0 KiB, stored" */
    return OCT_SAVE_COL;
}

/* Whether backward will quantize an input that was saved as the argument that it is. */
static bool quantizes_input_again(const oct_planner *p, uint8_t x) {
    /* A plain tensor, whatever backward does: by the recipe, or to decode it again.
     * e.g. `recipe=mxfp8 save_original_input`: "quantize input -> input.quantized
     * mxfp8:e4m3/1x32+col" */
    if (oct_tensor_is_plain(p->b, x)) {
        return true;
    }
    /* Bytes that backward only decodes.
     * e.g. `recipe=delayed qin=fp8-tensor:e4m3 calibrate`: "dequantize input rowwise", no
     * "input_scale" */
    if (!p->facts.quantized_back) {
        return false;
    }
    oct_way way = oct_way_to(p->b, x, OCTET_USE_COL, oct_wgrad_hadamard(p));
    /* Bytes from which the columnwise ones cannot be had.
     * e.g. `recipe=delayed qin=mxfp8:e4m3+row`: "cast scale -> input_scale.cast f32", "quantize
     * input.dequantized -> input.requantized fp8-delayed:e4m3+row by input_scale.cast" */
    if (way == OCT_WAY_QUANTIZE) {
        return true;
    }
    /* Shards whose bytes cannot be joined as they are: the direction is missing, values are
     * gathered, or each rank has a scale of its own.
     * e.g. `recipe=delayed qin=fp8-tensor:e4m3 parallel=column sequence tp=2`: "cast scale ->
     * input_scale.cast f32" */
    return oct_gathers_input(p) && (way != OCT_WAY_READ || p->args->gather ||
                                    oct_shares_scale(&p->args->input.quantizer));
}

static void save_input(oct_planner *p, uint8_t x, uint8_t quantized) {
    octet_use want = p->facts.quantized_back ? OCTET_USE_COL : OCTET_USE_VALUES;
    switch (oct_input_saving(p)) {
    case OCT_SAVE_ARGUMENT:
        /* With a prologue, oct_forward_prologue saves x itself, and backward computes f(x)
         * again. */
        if (!p->args->prologue) {
            oct_save(p->b, x, oct_wanted_parts(p->b, x, want, oct_wgrad_hadamard(p)));
        }
        /* Under delayed scaling by the scale of now.
         * e.g. `recipe=delayed qin=mxfp8:e4m3+row`: "input_scale.cast f32 (1) 4 B, stored" */
        if (quantizes_input_again(p, x)) {
            oct_save_scale(p, OCTET_INPUT);
        }
        break;
    case OCT_SAVE_ROW:
        oct_save(p->b, quantized, OCT_ROW_PARTS);
        break;
    case OCT_SAVE_COL:
        oct_save(p->b, quantized, OCT_COL_PARTS);
        break;
    case OCT_SAVE_NOTHING:
        break;
    }
}

oct_quantizing oct_input_cast(const oct_planner *p) {
    oct_saving save = oct_input_saving(p);
    oct_quantizing how = oct_quantizing_of(OCTET_FORM_QUANTIZED, &p->facts.role[OCTET_INPUT],
                                           true, save == OCT_SAVE_COL);
    how.slot = OCTET_SLOT_INPUT;
    how.row_place = save == OCT_SAVE_ROW ? OCTET_PLACE_SAVED : OCTET_PLACE_WORK;
    how.col_place = OCTET_PLACE_SAVED;
    return how;
}

/* Bytes travel: 8 or 4 bits an element, where bf16 would be 16. */
static oct_operand gathered_bytes(oct_planner *p, uint8_t x, uint8_t quantized) {
    save_input(p, x, quantized);
    return oct_gathered(p, quantized, OCTET_USE_ROW, OCTET_PLACE_WORK);
}

/* Column parallel with sequence: each rank has its rows of x, and multiplies all of them. */
static oct_operand gathered_input(oct_planner *p, uint8_t x) {
    oct_quantizing how = oct_input_cast(p);
    const octet_quantizer *q = &p->args->input.quantizer;
    bool high_precision = p->args->gather == OCTET_GATHER_HIGH_PRECISION;
    /* The argument's rowwise bytes are joined as they are: it is quantized, and no scale covers
     * rows of two ranks. FP8 with one scale a tensor is not, because each rank chose its own.
     * e.g. `recipe=mxfp8 qin=mxfp8:e4m3 parallel=column sequence tp=2`: "all-gather input
     * rowwise data -> input.gathered rowwise data" */
    bool ready = oct_quantizer_is(q) && q->rowwise && !oct_shares_scale(q);
    if (ready && !high_precision) {
        return gathered_bytes(p, x, x);
    }
    /* Values are gathered, and quantized after that: because the caller asks for it, or because
     * the recipe has no quantizer for the input of its own. The caller asks where rows are not
     * whole blocks: casts of the shards would not be the cast of the joined tensor.
     * e.g. `m=40 recipe=mxfp8 parallel=column sequence tp=2 gather=high_precision`: "all-gather
     * input -> input.gathered 2 quantize input.gathered -> input.quantized" */
    if (high_precision || !oct_quantizer_is(&how.quantizer)) {
        uint8_t values = oct_values(p->b, x, p->facts.dtype, OCTET_PLACE_EXCHANGE);
        oct_operand all = oct_gathered(p, values, OCTET_USE_VALUES, OCTET_PLACE_WORK);
        save_input(p, x, x);
        how.quantizer = oct_for_gemm(p->b, how.quantizer);
        return oct_direction(p->b, all.tensor, OCTET_USE_ROW, &how, OCTET_HADAMARD_NONE);
    }
    /* Each rank quantizes its rows, by an amax that the ranks agree on, and bytes are gathered.
     * A collective reads them, so they are an exchange, unless they are saved.
     * e.g. `recipe=current parallel=column sequence tp=2`: "all-reduce max input.amax ->
     * input.reduced", "all-gather input.quantized rowwise data -> input.gathered rowwise data"
     */
    uint8_t values = oct_values(p->b, x, p->args->input.dtype, OCTET_PLACE_WORK);
    how.row_place = how.row_place == OCTET_PLACE_WORK ? OCTET_PLACE_EXCHANGE : how.row_place;
    how.reduce = true;
    return gathered_bytes(p, x, oct_quantize(p->b, values, &how));
}

/* Numbers in high precision; a quantized argument is decoded. */
static oct_operand plain_input(oct_planner *p, uint8_t x) {
    bool gathers = oct_gathers_input(p);
    octet_place place = gathers ? OCTET_PLACE_EXCHANGE : OCTET_PLACE_WORK;
    uint8_t values = oct_values(p->b, x, p->facts.dtype, place);
    save_input(p, x, x);
    return gathers ? oct_gathered(p, values, OCTET_USE_VALUES, OCTET_PLACE_WORK)
                   : (oct_operand){values, OCTET_USE_VALUES};
}

oct_operand oct_forward_input(oct_planner *p, uint8_t x) {
    bool given_bytes = oct_quantizer_is(&p->args->input.quantizer);
    oct_quantizing how = oct_input_cast(p);
    /* No recipe, calibration, or a recipe that leaves the input alone.
     * e.g. `recipe=delayed calibrate`: "fprop output = input x weight" */
    if (!p->facts.quantized || (!given_bytes && !oct_quantizer_is(&how.quantizer))) {
        return plain_input(p, x);
    }
    /* Other ranks have the other rows.
     * e.g. `recipe=mxfp8 parallel=column sequence tp=2`: "all-gather input.quantized" */
    if (oct_gathers_input(p)) {
        return gathered_input(p, x);
    }
    how.quantizer = oct_for_gemm(p->b, how.quantizer);
    /* The caller quantized x: its rowwise bytes, or if it has none, what they are made from.
     * e.g. `recipe=mxfp8 qin=mxfp8:e4m3+col`: "quantize input.dequantized ->
     * input.requantized mxfp8:e4m3/1x32+row" */
    if (given_bytes) {
        save_input(p, x, x);
        return oct_direction(p->b, x, OCTET_USE_ROW, &how, OCTET_HADAMARD_NONE);
    }
    /* The usual case: x is bf16, and one cast makes what fprop reads and what wgrad will.
     * e.g. `recipe=mxfp8`: "quantize input -> input.quantized mxfp8:e4m3/1x32+row+col" */
    uint8_t quantized = oct_quantize(p->b, x, &how);
    save_input(p, x, quantized);
    return (oct_operand){quantized, OCTET_USE_ROW};
}
