/* prologue_check.c - the rules of a prologue: which options and tensors it has. */
#include "core/fail.h"
#include "format/bits.h"
#include "format/prologue.h"
#include "linear/args.h"
#include "plan/names.h"
#include "quant/proto.h"
#include "quant/quantizer.h"

bool octet_prologue_is_gated(octet_prologue prologue) {
    return oct_prologue_is_gated((int)prologue);
}

bool octet_prologue_is_norm(octet_prologue prologue) {
    return oct_prologue_is_norm((int)prologue);
}

/* gamma and beta: a plain vector, as long as the rows that the product reads. */
static octet_status check_parameter(const octet_linear_args *args, const octet_proto *proto,
                                    const char *name, octet_error *err) {
    octet_status status = oct_argument_check(args, proto, name, err);
    int64_t columns = args->weight.shape[1];
    if (!status && oct_quantizer_is(&proto->quantizer)) {
        status = oct_fail(err, OCTET_INVALID, "%s is quantized; it is a plain tensor", name);
    }
    if (!status && (proto->rank != 1 || proto->shape[0] != columns)) {
        char text[128];
        oct_writer writer = oct_writer_start(text, sizeof text);
        oct_write_shape(&writer, proto->rank, proto->shape);
        status = oct_fail(err, OCTET_INVALID, "%s is %s but weight has %lld columns", name,
                          text, (long long)columns);
    }
    return status;
}

/* What only norms have. */
static octet_status check_no_norm(const octet_linear_args *args, octet_error *err) {
    const char *what = oct_has(&args->gamma)  ? "gamma"
                       : oct_has(&args->beta) ? "beta"
                       : args->eps != 0       ? "eps"
                       : args->zero_centered  ? "zero_centered"
                                              : NULL;
    return what ? oct_fail(err, OCTET_INVALID,
                           "%s without a norm: prologue is %s, and rmsnorm and layernorm have "
                           "it",
                           what, oct_prologue_words[args->prologue])
                : OCTET_OK;
}

static octet_status check_norm(const octet_linear_args *args, octet_error *err) {
    const char *word = oct_prologue_words[args->prologue];
    if (!oct_has(&args->gamma)) {
        return oct_fail(err, OCTET_INVALID, "%s without a gamma, its factor of each column",
                        word);
    }
    /* Infinite ones are refused with the other fields. */
    /* By its encoding: a thread may take the smallest numbers for 0. */
    uint32_t eps = oct_f32_bits(args->eps);
    if (eps == 0 || eps > OCT_F32_MAGNITUDE) {
        return oct_fail(err, OCTET_INVALID, "eps is %g; %s takes one above 0, such as 1e-05",
                        (double)args->eps, word);
    }
    /* Row parallel splits the columns of x. */
    if (args->parallel == OCTET_PARALLEL_ROW && args->tp_size > 1) {
        return oct_fail(
            err, OCTET_INVALID,
            "%s with parallel=row: each of %lu ranks has some columns of a row, and "
            "a norm needs them all: norm x before it is split",
            word, (unsigned long)args->tp_size);
    }
    octet_status status = check_parameter(args, &args->gamma, "gamma", err);
    if (status || !oct_has(&args->beta)) {
        return status;
    }
    if (args->prologue != OCTET_LAYERNORM) {
        return oct_fail(err, OCTET_INVALID, "%s with a beta; only layernorm adds one", word);
    }
    return check_parameter(args, &args->beta, "beta", err);
}

octet_status oct_prologue_check(const octet_linear_args *args, octet_error *err) {
    if (args->prologue && oct_quantizer_is(&args->input.quantizer)) {
        return oct_fail(err, OCTET_INVALID,
                        "input is quantized, but %s is computed from its values: pass the "
                        "input as it was before the cast",
                        oct_prologue_words[args->prologue]);
    }
    octet_status status =
        oct_has(&args->gamma) ? OCTET_OK : oct_absent_check(&args->gamma, "gamma", err);
    if (!status && !oct_has(&args->beta)) {
        status = oct_absent_check(&args->beta, "beta", err);
    }
    if (status) {
        return status;
    }
    return oct_prologue_is_norm(args->prologue) ? check_norm(args, err)
                                                : check_no_norm(args, err);
}
