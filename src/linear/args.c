/* args.c - what a Linear call is asked to do: fields, rules and equality. */
#include "linear/args.h"

#include <string.h>

#include "core/dtype.h"
#include "core/fail.h"
#include "core/size.h"
#include "format/prologue.h"
#include "plan/check.h"
#include "plan/names.h"
#include "quant/proto.h"
#include "quant/quantizer.h"
#include "quant/recipe.h"

static const char *const cache_words[] = {"none", "write", "read", NULL};
static const char *const main_grad_words[] = {"none", "add", "overwrite", NULL};
static const char *const parallel_words[] = {"none", "column", "row", NULL};
static const char *const gather_words[] = {"quantized", "high_precision", NULL};
static const char *const save_words[] = {"speed", "memory", NULL};

#define A octet_linear_args
#define FLAG(member, word, about) OCT_FLAG(A, member, word, OCT_ANY, about)
#define WORD(member, word, words, about) OCT_WORD(A, member, word, words, OCT_ANY, about)

const octet_field oct_linear_fields[] = {
    OCT_STRUCT(A, input, NULL, oct_argument_fields, "x, (..., K)"),
    OCT_STRUCT(A, weight, NULL, oct_argument_fields, "w, (N, K)"),
    OCT_STRUCT(A, bias, NULL, oct_argument_fields, "b, (N)"),
    OCT_STRUCT(A, gamma, NULL, oct_argument_fields, "the factor of a norm, (K)"),
    OCT_STRUCT(A, beta, NULL, oct_argument_fields, "what a LayerNorm adds, (K)"),
    WORD(output_dtype, "out", oct_dtype_words, "dtype of y; none: the input's"),
    OCT_STRUCT(A, recipe, NULL, oct_recipe_fields, "which quantizer each role gets"),
    FLAG(input_requires_grad, NULL, "x wants a gradient"),
    FLAG(weight_requires_grad, NULL, "w wants a gradient"),
    FLAG(bias_requires_grad, NULL, "b wants a gradient"),
    FLAG(gamma_requires_grad, NULL, "gamma wants a gradient"),
    FLAG(beta_requires_grad, NULL, "beta wants a gradient"),
    WORD(prologue, "prologue", oct_prologue_words, "a function of x before the product"),
    FLAG(zero_centered, "zero_centered", "a norm multiplies by 1 + gamma"),
    OCT_NUMBER(A, eps, "eps", OCTET_FIELD_F32, OCT_ANY, "of a norm, above 0"),
    FLAG(return_bias, "return_bias", "hand the bias back instead of adding it"),
    FLAG(quantize_output, "quantize_output", "y in the recipe's output quantizer"),
    FLAG(quantize_grad_input, "quantize_grad_input", "dx in its grad_input quantizer"),
    FLAG(save_original_input, "save_original_input", "save x itself for backward"),
    WORD(save, "save", save_words, "what is saved for backward: for speed or memory"),
    FLAG(temporary_weight, "temporary_weight", "the weight is made for the call alone"),
    WORD(weight_cache, "cache", cache_words, "the quantized weight between microbatches"),
    WORD(main_grad, "main_grad", main_grad_words, "wgrad goes to the caller's main_grad"),
    WORD(main_grad_dtype, "main_grad_dtype", oct_dtype_words, "its dtype; none: f32"),
    WORD(bias_main_grad, "bias_main_grad", main_grad_words, "likewise the bias's gradient"),
    WORD(bias_main_grad_dtype, "bias_main_grad_dtype", oct_dtype_words, "its dtype; none: f32"),
    FLAG(delay_wgrad, "delay_wgrad", "wgrad runs as a plan of its own"),
    FLAG(calibrate, "calibrate", "high precision, measuring delayed scaling's amaxes"),
    FLAG(raise_amax, "raise_amax", "amaxes are raised in the caller's, not returned"),
    FLAG(skip_amax, "skip_amax", "delayed scaling's amaxes are not measured"),
    WORD(parallel, "parallel", parallel_words, "which side of the weight is split"),
    FLAG(sequence_parallel, "sequence", "activations are split over the ranks too"),
    WORD(gather, "gather", gather_words, "what sequence parallel gathers"),
    FLAG(fsdp, "fsdp", "the weight is gathered for the call: save no copy"),
    OCT_NUMBER(A, tp_size, "tp", OCTET_FIELD_U32, OCT_ANY,
               "ranks of the tensor-parallel group"),
    OCT_NUMBER(A, chunks, "chunks", OCTET_FIELD_U32, OCT_ANY,
               "chunks of a product that is scattered over the ranks"),
    OCT_NUMBER(A, gather_chunks, "gather_chunks", OCTET_FIELD_U32, OCT_ANY,
               "chunks of a product whose operand ranks gather"),
    OCT_NUMBER(A, threads, "threads", OCTET_FIELD_U32, OCT_ANY, "CPU workers with workspace"),
    OCT_FIELDS_END,
};

const octet_field oct_linear_backward_fields[] = {
    OCT_STRUCT(octet_linear_backward_args, forward, NULL, oct_linear_fields,
               "the forward call"),
    OCT_STRUCT(octet_linear_backward_args, grad_output, NULL, oct_argument_fields,
               "dy, (..., N)"),
    OCT_FIELDS_END,
};

oct_facts oct_linear_facts(const octet_linear_args *args) {
    oct_facts facts = {.tp = args->tp_size > 1 ? args->tp_size : 1};
    (void)oct_proto_extents(&facts.extents, &args->input);
    facts.extents.k = args->weight.shape[1];
    facts.extents.n = args->weight.shape[0];
    facts.parallel = facts.tp > 1 ? args->parallel : OCTET_PARALLEL_NONE;
    facts.sequence = facts.parallel && args->sequence_parallel;
    facts.chunks = facts.sequence && args->chunks > 1 ? args->chunks : 1;
    facts.gather_chunks = facts.sequence && args->gather_chunks > 1 ? args->gather_chunks : 1;
    facts.quantized = args->recipe.kind != OCTET_RECIPE_NONE && !args->calibrate;
    facts.quantized_back = facts.quantized && !args->recipe.override_;
    facts.xgrad = args->input_requires_grad;
    facts.gamma_grad = oct_has(&args->gamma) && args->gamma_requires_grad;
    facts.beta_grad = oct_has(&args->beta) && args->beta_requires_grad;
    facts.dgrad = facts.xgrad || facts.gamma_grad || facts.beta_grad;
    facts.wgrad = args->weight_requires_grad;
    facts.bgrad = oct_has(&args->bias) && args->bias_requires_grad && !args->return_bias;
    facts.adds_bias = oct_has(&args->bias) && !args->return_bias;
    facts.dtype = args->input.dtype;
    facts.output_dtype = args->output_dtype ? args->output_dtype : args->input.dtype;
    for (int role = 0; facts.quantized && role < OCTET_ROLES; role++) {
        facts.role[role] = oct_recipe_role(&args->recipe, (octet_role)role);
    }
    return facts;
}

/* One tensor argument on its own, with its name before what is wrong with it. */
static octet_status check_proto(const octet_proto *proto, const char *name, octet_error *err) {
    if (!oct_has(proto) && proto->size == 0) {
        return oct_fail(err, OCTET_INVALID, "%s is not set; octet_proto_make makes a proto",
                        name);
    }
    octet_error cause;
    octet_status status = octet_proto_check(proto, &cause);
    if (!status && !oct_dtype_is_high_precision(proto->dtype)) {
        return oct_fail(err, OCTET_INVALID, "%s has dtype %s; it must be f32, bf16 or f16",
                        name, octet_dtype_name(proto->dtype));
    }
    return status ? oct_fail(err, status, "%s: %.400s", name, cause.text) : OCTET_OK;
}

octet_status oct_absent_check(const octet_proto *proto, const char *name, octet_error *err) {
    octet_proto none = {.size = proto->size};
    bool sized = proto->size == 0 || proto->size == sizeof none;
    if (sized && memcmp(proto, &none, sizeof none) == 0) {
        return OCTET_OK;
    }
    return oct_fail(
        err, OCTET_INVALID,
        "%s has dtype none, so there is no %s, but other members of it are set: set "
        "its dtype, or leave it all 0",
        name, name);
}

static octet_status check_device(const octet_proto *input, const octet_proto *other,
                                 const char *name, octet_error *err) {
    if (oct_fields_equal(oct_device_fields, &input->device, &other->device)) {
        return OCTET_OK;
    }
    char here[32], there[32];
    oct_writer writer = oct_writer_start(here, sizeof here);
    oct_write_device(&writer, &input->device);
    writer = oct_writer_start(there, sizeof there);
    oct_write_device(&writer, &other->device);
    return oct_fail(err, OCTET_INVALID, "%s is on %s but input is on %s: move one of them",
                    name, there, here);
}

static octet_status check_shapes(const octet_linear_args *args, octet_error *err) {
    const octet_proto *x = &args->input, *w = &args->weight, *b = &args->bias;
    if (x->rank < 1) {
        return oct_fail(err, OCTET_INVALID, "input has no axes; its last axis is in_features");
    }
    if (w->rank != 2) {
        return oct_fail(err, OCTET_INVALID,
                        "weight has %u axes; it is (out_features, "
                        "in_features)",
                        w->rank);
    }
    bool gated = oct_prologue_is_gated(args->prologue);
    int64_t columns = x->shape[x->rank - 1];
    if (gated && (columns % 2 || w->shape[1] != columns / 2)) {
        return oct_fail(err, OCTET_INVALID,
                        "weight is (%lld, %lld) but input has %lld columns; %s takes twice the "
                        "weight's",
                        (long long)w->shape[0], (long long)w->shape[1], (long long)columns,
                        oct_prologue_words[args->prologue]);
    }
    if (!gated && w->shape[1] != columns) {
        return oct_fail(err, OCTET_INVALID, "weight is (%lld, %lld) but input has %lld columns",
                        (long long)w->shape[0], (long long)w->shape[1], (long long)columns);
    }
    if (oct_has(b) && (b->rank != 1 || b->shape[0] != w->shape[0])) {
        char text[128];
        oct_writer writer = oct_writer_start(text, sizeof text);
        oct_write_shape(&writer, b->rank, b->shape);
        return oct_fail(err, OCTET_INVALID, "bias is %s but weight has %lld rows", text,
                        (long long)w->shape[0]);
    }
    if (oct_has(b) && oct_quantizer_is(&b->quantizer)) {
        return oct_fail(err, OCTET_INVALID, "bias is quantized; it is a plain tensor");
    }
    return OCTET_OK;
}

octet_status oct_argument_check(const octet_linear_args *args, const octet_proto *proto,
                                const char *name, octet_error *err) {
    octet_status status = check_proto(proto, name, err);
    return status ? status : check_device(&args->input, proto, name, err);
}

static octet_status check_protos(const octet_linear_args *args, octet_error *err) {
    octet_status status = check_proto(&args->input, "input", err);
    status = status ? status : oct_argument_check(args, &args->weight, "weight", err);
    if (!status) {
        status = oct_has(&args->bias) ? oct_argument_check(args, &args->bias, "bias", err)
                                      : oct_absent_check(&args->bias, "bias", err);
    }
    status = status ? status : check_shapes(args, err);
    return status ? status : oct_prologue_check(args, err);
}

static octet_status check_parallel(const octet_linear_args *args, const oct_facts *f,
                                   octet_error *err) {
    if (args->tp_size > OCT_MOST_RANKS) {
        return oct_fail(err, OCTET_INVALID, "tp_size is %lu; at most %d ranks",
                        (unsigned long)args->tp_size, OCT_MOST_RANKS);
    }
    if (args->sequence_parallel && !args->parallel) {
        return oct_fail(err, OCTET_INVALID,
                        "sequence_parallel without a parallel mode: choose "
                        "column or row");
    }
    int64_t product;
    if (!oct_size_mul(&product, f->extents.m, f->tp)) {
        return oct_fail(err, OCTET_INVALID, "%lld rows times %lu ranks exceed 64 bits",
                        (long long)f->extents.m, (unsigned long)f->tp);
    }
    if (f->sequence && args->input.rank < 2) {
        return oct_fail(err, OCTET_INVALID,
                        "sequence_parallel splits input's first axis, but "
                        "it has only its columns");
    }
    /* An axis of 0 beside it makes the rows 0, and hides how long the first one becomes. */
    if (f->sequence && !oct_size_mul(&product, args->input.shape[0], f->tp)) {
        return oct_fail(err, OCTET_INVALID,
                        "input's first axis is %lld, which times %lu ranks exceeds 64 bits",
                        (long long)args->input.shape[0], (unsigned long)f->tp);
    }
    bool scatters = f->sequence && f->parallel == OCTET_PARALLEL_ROW;
    if (scatters && args->input.shape[0] % f->tp != 0) {
        return oct_fail(err, OCTET_INVALID,
                        "input's first axis is %lld, which %lu ranks cannot "
                        "share equally: pad it to a multiple",
                        (long long)args->input.shape[0], (unsigned long)f->tp);
    }
    if (f->sequence && oct_linear_gather(args, f) != OCTET_GATHER_QUANTIZED && !args->gather) {
        int64_t rows = f->extents.m / (scatters ? f->tp : 1);
        return oct_fail(err, OCTET_INVALID,
                        "each rank holds %lld rows, which are not whole "
                        "blocks, so quantized shards cannot be joined: set gather to "
                        "high_precision or pad the tokens",
                        (long long)rows);
    }
    return OCTET_OK;
}

/* Options that contradict one another. */
static octet_status check_options(const octet_linear_args *args, const oct_facts *f,
                                  octet_error *err) {
    bool delayed_input = oct_scheme_of(&f->role[OCTET_INPUT])->given_scale;
    const char *why = NULL;
    if (args->quantize_output && !oct_quantizer_is(&f->role[OCTET_OUTPUT])) {
        why = "quantize_output needs a recipe with an output quantizer";
    } else if (args->quantize_grad_input && !oct_quantizer_is(&f->role[OCTET_GRAD_INPUT])) {
        why = "quantize_grad_input needs a recipe with a grad_input quantizer";
    } else if (args->save_original_input && delayed_input) {
        why = "save_original_input quantizes the input twice, but delayed scaling's "
              "scales are updated in between: use another recipe or drop the option";
    } else if (args->main_grad && oct_quantizer_is(&f->role[OCTET_GRAD_WEIGHT])) {
        why = "main_grad takes wgrad in high precision, but the recipe quantizes grad_weight";
    } else if (args->return_bias && !oct_has(&args->bias)) {
        why = "return_bias without a bias";
    } else if (args->bias_requires_grad && !oct_has(&args->bias)) {
        why = "bias_requires_grad without a bias";
    } else if (args->gamma_requires_grad && !oct_has(&args->gamma)) {
        why = "gamma_requires_grad without a gamma";
    } else if (args->beta_requires_grad && !oct_has(&args->beta)) {
        why = "beta_requires_grad without a beta";
    } else if (args->bias_main_grad && !oct_has(&args->bias)) {
        why = "bias_main_grad without a bias";
    } else if (args->bias_main_grad && args->return_bias) {
        why =
            "bias_main_grad with return_bias: the caller adds the bias, so its gradient is the "
            "caller's, too";
    } else if (args->main_grad_dtype && !oct_dtype_is_high_precision(args->main_grad_dtype)) {
        why = "main_grad_dtype must be f32, bf16 or f16";
    } else if (args->bias_main_grad_dtype &&
               !oct_dtype_is_high_precision(args->bias_main_grad_dtype)) {
        why = "bias_main_grad_dtype must be f32, bf16 or f16";
    } else if (args->output_dtype && !oct_dtype_is_high_precision(args->output_dtype)) {
        why = "output_dtype must be f32, bf16 or f16";
    } else if (args->calibrate && args->recipe.kind == OCTET_RECIPE_NONE) {
        why = "calibrate measures amaxes for a recipe, and there is none";
    } else if (args->skip_amax && (args->raise_amax || args->calibrate)) {
        why = "skip_amax measures no amax, but raise_amax and calibrate measure them: drop one";
    }
    return why ? oct_fail(err, OCTET_INVALID, "%s", why) : OCTET_OK;
}

/* The transform cancels in wgrad only when both operands carry it, and in dgrad never. */
static octet_status check_transforms(const oct_facts *f, octet_error *err) {
    const octet_quantizer *x = &f->role[OCTET_INPUT], *w = &f->role[OCTET_WEIGHT];
    const octet_quantizer *dy = &f->role[OCTET_GRAD_OUTPUT];
    bool input_mismatch = oct_quantizer_is(x) ? x->hadamard != dy->hadamard : dy->hadamard;
    if (f->quantized_back && f->wgrad && input_mismatch) {
        return oct_fail(err, OCTET_INVALID,
                        "the Hadamard transforms of input (%s) and "
                        "grad_output (%s) differ; in wgrad they cancel only if they agree",
                        oct_hadamard_words[x->hadamard], oct_hadamard_words[dy->hadamard]);
    }
    if (f->quantized_back && f->dgrad && w->hadamard) {
        return oct_fail(err, OCTET_INVALID,
                        "the weight's quantizer has a Hadamard transform, "
                        "which nothing in dgrad undoes: drop rht for the weight");
    }
    return OCTET_OK;
}

octet_status oct_linear_check(const octet_linear_args *args, oct_facts *facts,
                              octet_error *err) {
    octet_status status = oct_need(args, "args", err);
    status =
        status ? status : oct_need_size(args->size, sizeof *args, "octet_linear_args", err);
    status = status ? status
                    : oct_fields_check(oct_linear_fields, args, 0, "octet_linear_args", err);
    status = status ? status
                    : oct_need_zero(args->reserved, sizeof args->reserved,
                                    "octet_linear_args.reserved", err);
    status = status ? status : octet_recipe_check(&args->recipe, err);
    status = status ? status : check_protos(args, err);
    if (status) {
        return status;
    }
    *facts = oct_linear_facts(args);
    status = check_options(args, facts, err);
    status = status ? status : check_transforms(facts, err);
    status = status ? status : oct_linear_check_chunks(args, err);
    return status ? status : check_parallel(args, facts, err);
}

octet_status octet_linear_check(const octet_linear_args *args, octet_error *err) {
    oct_facts facts;
    return oct_linear_check(args, &facts, err);
}

bool octet_linear_equal(const octet_linear_args *a, const octet_linear_args *b) {
    return oct_fields_equal(oct_linear_fields, a, b);
}

uint64_t octet_linear_hash(const octet_linear_args *args) {
    return oct_fields_hash(oct_linear_fields, args);
}

bool octet_linear_backward_equal(const octet_linear_backward_args *a,
                                 const octet_linear_backward_args *b) {
    return oct_fields_equal(oct_linear_backward_fields, a, b);
}

uint64_t octet_linear_backward_hash(const octet_linear_backward_args *args) {
    return oct_fields_hash(oct_linear_backward_fields, args);
}

/* y's leading axes are x's; sequence parallel multiplies or divides the first of them. */
static octet_proto output_proto(const octet_linear_args *args, const oct_facts *facts) {
    octet_proto y = args->input;
    memset(&y.quantizer, 0, sizeof y.quantizer);
    y.requires_grad = 0;
    y.dtype = facts->output_dtype;
    y.shape[y.rank - 1] = facts->extents.n;
    if (facts->sequence) {
        bool column = facts->parallel == OCTET_PARALLEL_COLUMN;
        y.shape[0] = column ? y.shape[0] * facts->tp : y.shape[0] / facts->tp;
    }
    return y;
}

octet_status octet_linear_backward_make(octet_linear_backward_args *out,
                                        const octet_linear_args *args, octet_error *err) {
    oct_facts facts;
    octet_status status = oct_need(out, "out", err);
    status = status ? status : oct_linear_check(args, &facts, err);
    if (!status) {
        octet_linear_backward_args made = {.size = sizeof made, .forward = *args};
        made.grad_output = output_proto(args, &facts);
        *out = made;
    }
    return status;
}

octet_status oct_linear_backward_check(const octet_linear_backward_args *args, oct_facts *facts,
                                       octet_error *err) {
    octet_status status = oct_need(args, "args", err);
    status = status
                 ? status
                 : oct_need_size(args->size, sizeof *args, "octet_linear_backward_args", err);
    status = status ? status
                    : oct_need_zero(&args->reserved, sizeof args->reserved,
                                    "octet_linear_backward_args.reserved", err);
    status = status ? status : oct_linear_check(&args->forward, facts, err);
    status = status ? status : check_proto(&args->grad_output, "grad_output", err);
    status = status
                 ? status
                 : check_device(&args->forward.input, &args->grad_output, "grad_output", err);
    if (status) {
        return status;
    }
    octet_proto y = output_proto(&args->forward, facts);
    octet_extents got = {0, 0, 0}, want = {0, 0, 0};
    if (!oct_proto_extents(&want, &y) || !oct_proto_extents(&got, &args->grad_output) ||
        got.m != want.m || got.k != want.k) {
        return oct_fail(err, OCTET_INVALID,
                        "grad_output is (%lld, %lld) but output is (%lld, "
                        "%lld)",
                        (long long)got.m, (long long)got.k, (long long)want.m,
                        (long long)want.k);
    }
    return OCTET_OK;
}
