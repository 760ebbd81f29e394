/* names.c - what tensors and buffers of a plan are called. */
#include "plan/names.h"

static const char *const name_words[OCTET_NAMES] = {
    "input",       "weight",     "bias",      "output",         "grad_output", "grad_input",
    "grad_weight", "grad_bias",  "main_grad", "bias_main_grad", "input_scale", "weight_scale",
    "scale",       "amax",       "seed",      "scratch",        "notes",       "gamma",
    "beta",        "grad_gamma", "grad_beta", "statistics",
};

static const char *const form_words[OCTET_FORMS] = {
    "",          ".quantized", ".requantized", ".cached",  ".cast",           ".dequantized",
    ".stacked",  ".gathered",  ".partial",     ".reduced", ".high_precision", ".amax",
    ".swizzled", ".emulated",  ".padded",      ".folded",  ".prologue",       ".piece",
    ".packed",
};

const char *const oct_prologue_words[OCTET_PROLOGUES + 1] = {
    "none", "rmsnorm", "layernorm", "gelu",  "qgelu",  "relu",   "srelu", "silu",
    "glu",  "geglu",   "qgeglu",    "reglu", "sreglu", "swiglu", NULL};

static const char *word_of(const char *const *words, int count, int at) {
    return at >= 0 && at < count ? words[at] : "?";
}

void oct_write_name(oct_writer *writer, int name, int form) {
    oct_write(writer, word_of(name_words, OCTET_NAMES, name));
    oct_write(writer, word_of(form_words, OCTET_FORMS, form));
}

void oct_write_part_name(oct_writer *writer, int name, int form, int part) {
    oct_write_name(writer, name, form);
    if (part != OCTET_PART_VALUES) {
        oct_write(writer, " ");
        oct_write(writer, octet_part_name((octet_part)part));
    }
}

void oct_write_tensor_name(oct_writer *writer, const octet_plan *plan, int tensor) {
    if (tensor < 0 || tensor >= plan->tensor_count) {
        oct_write(writer, "?");
        return;
    }
    oct_write_name(writer, plan->tensors[tensor].name, plan->tensors[tensor].form);
}

/* The slots of scale and amax share a name; their place in the vector tells them apart. */
void oct_write_buffer_name(oct_writer *writer, const octet_plan *plan, int buffer) {
    if (buffer < 0 || buffer >= plan->buffer_count) {
        oct_write(writer, "?");
        return;
    }
    const octet_plan_buffer *b = &plan->buffers[buffer];
    const octet_plan_tensor *t = &plan->tensors[b->tensor];
    oct_write_part_name(writer, t->name, t->form, b->part);
    if (t->name == OCTET_NAME_SCALE || t->name == OCTET_NAME_AMAX) {
        oct_write(writer, "[");
        oct_write_i64(writer, b->offset / (int64_t)sizeof(float));
        oct_write(writer, "]");
    }
}

size_t octet_plan_tensor_print(char *text, size_t size, const octet_plan *plan, int tensor) {
    oct_writer writer = oct_writer_start(text, size);
    if (!plan) {
        return 0;
    }
    oct_write_tensor_name(&writer, plan, tensor);
    return writer.length;
}

size_t octet_plan_buffer_print(char *text, size_t size, const octet_plan *plan, int buffer) {
    oct_writer writer = oct_writer_start(text, size);
    if (!plan) {
        return 0;
    }
    oct_write_buffer_name(&writer, plan, buffer);
    return writer.length;
}
