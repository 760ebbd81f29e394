/* quantize_plan.c - one tensor to bytes, or back: plans of their own. */
#include "core/dtype.h"
#include "core/fail.h"
#include "octet.h"
#include "plan/ops.h"
#include "quant/layout.h"
#include "quant/proto.h"
#include "quant/quantizer.h"

/* A builder for one tensor; delayed scaling has one slot. */
static oct_builder start(octet_plan *plan, octet_plan_kind kind, const octet_proto *tensor,
                         octet_error *err) {
    oct_build_options options = {
        .kind = kind, .device = tensor->device, .dtype = tensor->dtype, .ranks = 1, .slots = 1};
    (void)oct_proto_extents(&options.extents, tensor);
    return oct_build_start(plan, &options, err);
}

/* Its rows are M, its columns K. */
static uint8_t argument(oct_builder *b, const octet_proto *tensor) {
    return oct_argument(b, OCTET_NAME_INPUT, tensor, oct_dim_of(OCTET_AXIS_M, 1, 1),
                        oct_dim_of(OCTET_AXIS_K, 1, 1));
}

static octet_status check_tensor(const octet_plan *out, const octet_proto *tensor,
                                 const char *name, octet_error *err) {
    octet_status status = oct_need(out, "out", err);
    status = status ? status : oct_need(tensor, name, err);
    status = status ? status : oct_need_size(out->size, sizeof *out, "octet_plan", err);
    status = status ? status : octet_proto_check(tensor, err);
    if (!status && !oct_dtype_is_high_precision(tensor->dtype)) {
        status = oct_fail(err, OCTET_INVALID, "%s has dtype %s; it must be f32, bf16 or f16",
                          name, octet_dtype_name((octet_dtype)tensor->dtype));
    }
    return status;
}

octet_status octet_plan_quantize(octet_plan *out, const octet_proto *source,
                                 const octet_quantizer *quantizer, octet_error *err) {
    octet_status status = check_tensor(out, source, "source", err);
    status = status ? status : octet_quantizer_check(quantizer, err);
    if (!status && oct_quantizer_is(&source->quantizer)) {
        status =
            oct_fail(err, OCTET_INVALID, "source is quantized already: dequantize it first");
    }
    if (!status && !oct_quantizer_is(quantizer)) {
        status = oct_fail(err, OCTET_INVALID, "quantizer has no scheme");
    }
    if (status) {
        return status;
    }
    octet_plan plan;
    oct_builder b = start(&plan, OCTET_PLAN_QUANTIZE, source, err);
    uint8_t x = argument(&b, source);
    oct_quantizing how = oct_quantizing_of(OCTET_FORM_QUANTIZED, quantizer, quantizer->rowwise,
                                           quantizer->columnwise);
    how.row_place = how.col_place = OCTET_PLACE_OUT;
    how.slot = 0;
    (void)oct_quantize(&b, x, &how);
    status = oct_build_finish(&b);
    if (!status) {
        *out = plan;
    }
    return status;
}

octet_status octet_plan_dequantize(octet_plan *out, const octet_proto *quantized,
                                   octet_error *err) {
    octet_status status = check_tensor(out, quantized, "quantized", err);
    if (!status && !oct_quantizer_is(&quantized->quantizer)) {
        status =
            oct_fail(err, OCTET_INVALID, "quantized has no quantizer: it is plain already");
    }
    if (status) {
        return status;
    }
    octet_plan plan;
    oct_builder b = start(&plan, OCTET_PLAN_DEQUANTIZE, quantized, err);
    uint8_t x = argument(&b, quantized);
    (void)oct_values(&b, x, quantized->dtype, OCTET_PLACE_OUT);
    status = oct_build_finish(&b);
    if (!status) {
        *out = plan;
    }
    return status;
}
