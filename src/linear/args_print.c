/* args_print.c - a Linear call as text, which args_parse.c reads back. */
#include "core/dtype.h"
#include "core/fail.h"
#include "linear/args.h"
#include "quant/proto.h"
#include "quant/quantizer.h"
#include "quant/recipe.h"

static void write_pair(oct_writer *writer, const char *word, const char *value) {
    oct_write(writer, " ");
    oct_write(writer, word);
    oct_write(writer, "=");
    oct_write(writer, value);
}

static void write_quantizer(oct_writer *writer, const char *word, const octet_quantizer *q) {
    if (oct_quantizer_is(q)) {
        write_pair(writer, word, "");
        oct_quantizer_write(writer, q);
    }
}

static void write_sizes(oct_writer *writer, const octet_linear_args *args) {
    const octet_proto *x = &args->input, *w = &args->weight;
    int rank = x->rank > OCTET_MAX_RANK ? OCTET_MAX_RANK : x->rank;
    write_pair(writer, "m", rank > 1 ? "" : "none");
    for (int i = 0; i + 1 < rank; i++) {
        oct_write(writer, i ? "x" : "");
        oct_write_i64(writer, x->shape[i]);
    }
    write_pair(writer, "k", "");
    oct_write_i64(writer, w->shape[1]);
    write_pair(writer, "n", "");
    oct_write_i64(writer, w->shape[0]);
}

static void write_tensors(oct_writer *writer, const octet_linear_args *args) {
    const octet_proto *x = &args->input, *w = &args->weight, *b = &args->bias;
    oct_write(writer, writer->length ? " in=" : "in=");
    oct_write(writer, octet_dtype_name(x->dtype));
    if (w->dtype != x->dtype) {
        write_pair(writer, "w", octet_dtype_name(w->dtype));
    }
    write_quantizer(writer, "qin", &x->quantizer);
    write_quantizer(writer, "qw", &w->quantizer);
    if (oct_has(b)) {
        oct_write(writer, b->dtype == w->dtype ? " bias" : " bias=");
        oct_write(writer, b->dtype == w->dtype ? "" : octet_dtype_name(b->dtype));
    }
    if (oct_has(&args->gamma) && args->gamma.dtype != w->dtype) {
        write_pair(writer, "gamma", octet_dtype_name(args->gamma.dtype));
    }
    if (oct_has(&args->beta)) {
        bool usual = args->beta.dtype == w->dtype;
        oct_write(writer, usual ? " beta" : " beta=");
        oct_write(writer, usual ? "" : octet_dtype_name(args->beta.dtype));
    }
}

static void write_grad(oct_writer *writer, const octet_linear_args *args) {
    bool x = args->input_requires_grad, w = args->weight_requires_grad;
    bool b = args->bias_requires_grad;
    bool g = args->gamma_requires_grad, e = args->beta_requires_grad;
    if (x && w && b == oct_has(&args->bias) && g == oct_has(&args->gamma) &&
        e == oct_has(&args->beta)) {
        return;
    }
    write_pair(writer, "grad", x ? "x" : "");
    oct_write(writer, w ? "w" : "");
    oct_write(writer, b ? "b" : "");
    oct_write(writer, g ? "g" : "");
    oct_write(writer, e ? "e" : "");
    oct_write(writer, x || w || b || g || e ? "" : "none");
}

static void write_args(oct_writer *writer, const octet_linear_args *args) {
    write_tensors(writer, args);
    if (args->recipe.kind != OCTET_RECIPE_NONE) {
        write_pair(writer, "recipe", "");
        oct_recipe_write(writer, &args->recipe);
    }
    write_grad(writer, args);
    for (const octet_field *field = oct_linear_fields; field->name; field++) {
        if (!field->word || !oct_field_get(field, args)) {
            continue;
        }
        oct_write(writer, " ");
        oct_write(writer, field->word);
        if (field->type != OCTET_FIELD_FLAG) {
            oct_write(writer, "=");
            oct_field_write(field, args, writer);
        }
    }
    if (!oct_device_is_default(&args->input.device)) {
        write_pair(writer, "device", "");
        oct_write_device(writer, &args->input.device);
    }
}

size_t octet_linear_print(char *text, size_t size, const octet_linear_args *args) {
    oct_writer writer = oct_writer_start(text, size);
    if (!args) {
        return 0;
    }
    oct_write(&writer, "linear");
    write_sizes(&writer, args);
    write_args(&writer, args);
    return writer.length;
}

static void write_backward(oct_writer *writer, const octet_linear_backward_args *args) {
    const octet_linear_args *forward = &args->forward;
    uint8_t usual = forward->output_dtype ? forward->output_dtype : forward->input.dtype;
    write_args(writer, forward);
    if (args->grad_output.dtype != usual) {
        write_pair(writer, "dy", octet_dtype_name(args->grad_output.dtype));
    }
    write_quantizer(writer, "qdy", &args->grad_output.quantizer);
}

size_t octet_linear_backward_print(char *text, size_t size,
                                   const octet_linear_backward_args *args) {
    oct_writer writer = oct_writer_start(text, size);
    if (!args) {
        return 0;
    }
    oct_write(&writer, "linear-backward");
    write_sizes(&writer, &args->forward);
    write_backward(&writer, args);
    return writer.length;
}

size_t octet_linear_print_words(char *text, size_t size, const octet_linear_args *args) {
    oct_writer writer = oct_writer_start(text, size);
    if (!args) {
        return 0;
    }
    write_args(&writer, args);
    return writer.length;
}

size_t octet_linear_backward_print_words(char *text, size_t size,
                                         const octet_linear_backward_args *args) {
    oct_writer writer = oct_writer_start(text, size);
    if (!args) {
        return 0;
    }
    write_backward(&writer, args);
    return writer.length;
}
