/* weight.c - w in forward: cast, cached or as it came, and what of it is saved for dgrad. */
#include "core/fail.h"
#include "linear/planner.h"
#include "quant/layout.h"
#include "quant/quantizer.h"

/* Whether a cache holds the cast. A weight that arrives quantized needs none, and one that the
 * recipe leaves alone has nothing to cache.
 * e.g. `recipe=mxfp8 cache=write`: "quantize weight -> weight.cached" */
static bool uses_cache(const oct_planner *p) {
    return p->args->weight_cache != OCTET_CACHE_NONE &&
           !oct_quantizer_is(&p->args->weight.quantizer) &&
           oct_quantizer_is(&p->facts.role[OCTET_WEIGHT]);
}

/* Whether backward casts the weight again, and forward saves no cast of it. */
static bool quantizes_weight_again(const oct_planner *p) {
    /* A cached weight is there anyway.
     * e.g. `recipe=mxfp8 fsdp cache=read`: "x weight.cached columnwise" */
    if (uses_cache(p)) {
        return false;
    }
    /* FSDP gathers the weight for each call and frees it again. A cast that is saved would undo
     * that; backward, for which FSDP gathers the weight once more, casts it again.
     * e.g. `recipe=mxfp8 fsdp`: "weight bf16 (256, 256) 128.0 KiB, is argument 1", "quantize
     * weight -> weight.quantized mxfp8:e4m3/1x32+col" */
    if (p->args->fsdp) {
        return true;
    }
    /* save=memory: the parameter lives anyway, and the cast would come on top. Not one that was
     * made for the call, nor where backward runs in high precision or rounds at random.
     * e.g. `recipe=mxfp8 save=memory`: "weight bf16 (256, 256) 128.0 KiB, is argument 1" */
    return p->args->save == OCTET_SAVE_MEMORY && !p->args->temporary_weight &&
           p->args->recipe.override_ != OCTET_OVERRIDE_HIGH_PRECISION &&
           !p->facts.role[OCTET_WEIGHT].stochastic;
}

/* The quantizer of a weight that forward casts. */
static octet_quantizer weight_quantizer(const oct_planner *p) {
    octet_quantizer q = oct_for_gemm(p->b, p->facts.role[OCTET_WEIGHT]);
    q.rowwise = oct_quantizer_is(&q);
    /* Dgrad sums over the rows of the weight, so it reads columnwise bytes. They are made here
     * unless backward has no dgrad, does not follow the recipe, casts again, or its product
     * reads the rowwise bytes across.
     * e.g. `recipe=mxfp8`: "weight.quantized mxfp8:e4m3/1x32+row+col"
     * e.g. `recipe=mxfp8 grad=w`: "weight.quantized mxfp8:e4m3/1x32+row 3 fprop"
     * e.g. `recipe=current`: "weight.quantized fp8-tensor:e4m3+row by" */
    q.columnwise = oct_quantizer_is(&q) && p->facts.dgrad && p->facts.quantized_back &&
                   !quantizes_weight_again(p) && !oct_reads_across(p->b, &q);
    return q;
}

/* The caller's cached weight, as an argument. */
static uint8_t cached_weight(oct_planner *p, const octet_quantizer *q) {
    uint8_t cached =
        oct_tensor(p->b, OCTET_NAME_WEIGHT, OCTET_FORM_CACHED, p->args->weight.dtype, q);
    oct_tensor_shape(p->b, cached, oct_dim_of(OCTET_AXIS_N, 1, 1),
                     oct_dim_of(OCTET_AXIS_K, 1, 1));
    oct_place(p->b, cached, OCT_ALL_PARTS, OCTET_PLACE_ARG);
    return cached;
}

/* The cast of the weight. A cached one is an output: the caller holds it for later calls. Else
 * the direction that is saved goes into the saved arena.
 * e.g. `recipe=mxfp8 cache=write`: "weight.cached columnwise data u8 (256, 256) 64.0 KiB, is
 * output 2" */
static uint8_t cast_weight(oct_planner *p, uint8_t w, const octet_quantizer *q, bool saves) {
    bool cached = uses_cache(p);
    oct_quantizing how = oct_quantizing_of(cached ? OCTET_FORM_CACHED : OCTET_FORM_QUANTIZED, q,
                                           q->rowwise, q->columnwise);
    how.slot = OCTET_SLOT_WEIGHT;
    how.col_place = cached ? OCTET_PLACE_OUT : OCTET_PLACE_SAVED;
    how.row_place = cached                    ? OCTET_PLACE_OUT
                    : saves && !q->columnwise ? OCTET_PLACE_SAVED
                                              : OCTET_PLACE_WORK;
    return oct_quantize(p->b, w, &how);
}

/* A weight that arrives plain and is quantized here, or was by an earlier microbatch. */
static oct_operand quantized_weight(oct_planner *p, uint8_t w) {
    bool high = p->args->recipe.override_ == OCTET_OVERRIDE_HIGH_PRECISION;
    bool again = quantizes_weight_again(p);
    bool saves = p->facts.dgrad && !high && !again;
    bool reads = uses_cache(p) && p->args->weight_cache == OCTET_CACHE_READ;
    octet_quantizer q = weight_quantizer(p);
    uint8_t made = reads ? cached_weight(p, &q) : cast_weight(p, w, &q, saves);
    if (saves) {
        /* Dgrad reads this cast: columnwise bytes if there are any, else rowwise ones, across
         * or decoded.
         * e.g. `recipe=current`: "weight.quantized rowwise data u8 (256, 256) 64.0 KiB, stored"
         */
        oct_save(p->b, made, q.columnwise ? OCT_COL_PARTS : OCT_ROW_PARTS);
    } else if (p->facts.dgrad) {
        /* Dgrad reads the weight itself, in high precision, or to quantize it again.
         * e.g. `recipe=mxfp8:override=high_precision`: "dgrad grad_input = grad_output x
         * weight"
         * e.g. `recipe=delayed fsdp`: "quantize weight -> weight.quantized fp8-delayed:e4m3+row
         * by weight_scale.cast" */
        oct_save(p->b, w, OCT_ALL_PARTS);
        if (again) {
            oct_save_scale(p, OCTET_WEIGHT);
        }
    }
    return (oct_operand){made, OCTET_USE_ROW};
}

oct_operand oct_forward_weight(oct_planner *p, uint8_t w) {
    bool given_bytes = oct_quantizer_is(&p->args->weight.quantizer);
    bool has_role = oct_quantizer_is(&p->facts.role[OCTET_WEIGHT]);
    octet_use want = p->facts.quantized_back ? OCTET_USE_COL : OCTET_USE_VALUES;
    /* The usual case: a bf16 parameter and a recipe that quantizes it.
     * e.g. `recipe=mxfp8`: "quantize weight -> weight.quantized" */
    if (!given_bytes && has_role) {
        return quantized_weight(p, w);
    }
    /* Else dgrad reads the argument, of a quantized one the direction that serves it best.
     * e.g. `recipe=mxfp8 qw=mxfp8:e4m3`: "weight columnwise data u8 (256, 256) 64.0 KiB, is
     * argument 3" */
    if (p->facts.dgrad) {
        oct_save(p->b, w, oct_wanted_parts(p->b, w, want, OCTET_HADAMARD_NONE));
    }
    /* No direction serves: dgrad decodes the argument and quantizes it again, under delayed
     * scaling by the scale of now.
     * e.g. `recipe=delayed qw=mxfp8:e4m3+row`: "cast scale -> weight_scale.cast f32" */
    if (p->facts.dgrad && p->facts.quantized_back &&
        oct_way_to(p->b, w, OCTET_USE_COL, OCTET_HADAMARD_NONE) == OCT_WAY_QUANTIZE) {
        oct_save_scale(p, OCTET_WEIGHT);
    }
    /* A quantized parameter: its rowwise bytes, or if it has none, what they are made from.
     * e.g. `recipe=mxfp8 qw=mxfp8:e4m3`: "x weight rowwise" */
    if (given_bytes && p->facts.quantized) {
        octet_quantizer q = oct_for_gemm(p->b, p->facts.role[OCTET_WEIGHT]);
        oct_quantizing how = oct_quantizing_of(OCTET_FORM_QUANTIZED, &q, true, false);
        how.slot = OCTET_SLOT_WEIGHT;
        return oct_direction(p->b, w, OCTET_USE_ROW, &how, OCTET_HADAMARD_NONE);
    }
    /* High precision: the weight in the input's dtype.
     * e.g. `w=f32`: "cast weight -> weight.cast bf16" */
    return (oct_operand){oct_values(p->b, w, p->facts.dtype, OCTET_PLACE_WORK),
                         OCTET_USE_VALUES};
}

octet_status octet_linear_cache_quantizer(octet_quantizer *out, const octet_linear_args *args,
                                          octet_error *err) {
    octet_status status = oct_need(out, "out", err);
    status = status ? status : octet_linear_check(args, err);
    if (status) {
        return status;
    }
    octet_linear_args cached = *args;
    cached.weight_cache = OCTET_CACHE_WRITE;
    oct_builder b = {.device = args->input.device,
                     .target = oct_target_of(&args->input.device)};
    oct_planner p = {.b = &b, .args = &cached, .facts = oct_linear_facts(&cached)};
    *out = uses_cache(&p) ? weight_quantizer(&p) : oct_quantizer_default(OCTET_SCHEME_NONE);
    return OCTET_OK;
}

octet_status octet_linear_parameter_quantizer(octet_quantizer *out,
                                              const octet_linear_args *args, octet_error *err) {
    octet_status status = octet_linear_cache_quantizer(out, args, err);
    if (!status) {
        out->swizzled = 0;
    }
    return status;
}
