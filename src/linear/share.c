/* share.c - casts that several calls may share.
 *
 * Calls that read one tensor (q, k and v; gate and up) quantize it alike. Who knows that it is
 * one tensor casts it once, and hands each call the bytes: the call's results are the same. */
#include "core/fail.h"
#include "linear/planner.h"
#include "quant/layout.h"
#include "quant/quantizer.h"

/* As much of a planner as questions need. */
static oct_planner asking(oct_builder *b, const octet_linear_args *args) {
    *b = (oct_builder){.device = args->input.device,
                       .target = oct_target_of(&args->input.device)};
    return (oct_planner){.b = b, .args = args, .facts = oct_linear_facts(args)};
}

/* Whether the bytes depend on the values alone. Delayed scaling has a scale for each layer, and
 * stochastic rounding a seed. */
static bool casts_alike(const octet_quantizer *q) {
    return oct_quantizer_is(q) && !oct_scheme_of(q)->given_scale && !q->stochastic;
}

static octet_quantizer with_directions(const oct_planner *p, octet_role role, bool row,
                                       bool col) {
    octet_quantizer q = oct_for_gemm(p->b, p->facts.role[role]);
    q.rowwise = row;
    q.columnwise = col;
    return q;
}

octet_status octet_linear_shared_input(octet_quantizer *out, const octet_linear_args *args,
                                       octet_error *err) {
    octet_status status = oct_need(out, "out", err);
    status = status ? status : octet_linear_check(args, err);
    if (status) {
        return status;
    }
    oct_builder b;
    oct_planner p = asking(&b, args);
    oct_saving saving = oct_input_saving(&p);
    /* Not where the call gets bytes already, saves x itself, quantizes what ranks gather, or a
     * function of x. Three calls of this kind (q, k and v) share one cast:
     * e.g. `recipe=mxfp8 qin=mxfp8:e4m3`: "x input columnwise", no "quantize input" */
    bool casts = p.facts.quantized && !args->prologue &&
                 !oct_quantizer_is(&args->input.quantizer) &&
                 casts_alike(&p.facts.role[OCTET_INPUT]) && !oct_gathers_input(&p) &&
                 saving != OCT_SAVE_ARGUMENT;
    *out = casts ? with_directions(&p, OCTET_INPUT, true, saving == OCT_SAVE_COL)
                 : oct_quantizer_default(OCTET_SCHEME_NONE);
    return OCTET_OK;
}

octet_status octet_linear_shared_grad(octet_quantizer *out,
                                      const octet_linear_backward_args *args,
                                      octet_error *err) {
    oct_facts facts;
    octet_status status = oct_need(out, "out", err);
    status = status ? status : oct_linear_backward_check(args, &facts, err);
    if (status) {
        return status;
    }
    oct_builder b;
    oct_planner p = asking(&b, &args->forward);
    const octet_quantizer *q = &facts.role[OCTET_GRAD_OUTPUT];
    bool across = facts.wgrad && oct_reads_across(&b, q);
    /* Not where dy arrives quantized, is gathered or saved for a later wgrad, or where the
     * gradient of a bias sums its values.
     * e.g. `recipe=mxfp8 qdy=mxfp8:e4m3`: no "quantize grad_output" */
    bool casts = facts.quantized_back && !oct_quantizer_is(&args->grad_output.quantizer) &&
                 casts_alike(q) && !oct_gathers_grad(&p) && !facts.bgrad &&
                 !args->forward.delay_wgrad && (facts.dgrad || facts.wgrad);
    *out = casts ? with_directions(&p, OCTET_GRAD_OUTPUT, facts.dgrad || across,
                                   facts.wgrad && !across)
                 : oct_quantizer_default(OCTET_SCHEME_NONE);
    return OCTET_OK;
}
