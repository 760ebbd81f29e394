/* print.c - a plan for people: what it reads, does, writes and saves. */
#include "plan/names.h"
#include "plan/ops.h"
#include "plan/product.h"
#include "quant/proto.h"
#include "quant/quantizer.h"
#include "quant/recipe.h"

enum { NAME_COLUMN = 4, DTYPE_COLUMN = 46, SHAPE_COLUMN = 52, BYTES_COLUMN = 70 };

/* 1536 B, 64.0 KiB, 3.5 MiB. */
static void write_bytes(oct_writer *w, int64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    int unit = 0;
    int64_t tenths = bytes;
    if (bytes < 10240) {
        oct_write_i64(w, bytes);
        oct_write(w, " B");
        return;
    }
    while (tenths >= 1024 * 10 && unit < 6) {
        tenths = unit == 0 ? bytes / 1024 * 10 + bytes % 1024 * 10 / 1024 : tenths / 1024;
        unit++;
    }
    oct_write_i64(w, tenths / 10);
    oct_write(w, ".");
    oct_write_i64(w, tenths % 10);
    oct_write(w, " ");
    oct_write(w, units[unit]);
}

/* "  name   dtype  (shape)   bytes" */
static void write_row(oct_writer *w, size_t start, uint8_t dtype, int ndim,
                      const int64_t *shape) {
    oct_write_pad(w, start, DTYPE_COLUMN);
    oct_write(w, octet_dtype_name(dtype));
    oct_write_pad(w, start, SHAPE_COLUMN);
    oct_write_shape(w, ndim, shape);
    oct_write_pad(w, start, BYTES_COLUMN);
}

static void write_port(oct_writer *w, int index, const octet_port *port) {
    size_t start = w->length;
    oct_write_pad(w, start, 2);
    oct_write_i64(w, index);
    oct_write_pad(w, start, NAME_COLUMN);
    oct_write_part_name(w, port->name, port->form, port->part);
    write_row(w, start, port->dtype, port->ndim, port->shape);
    write_bytes(w, port->bytes);
    if (port->alias != OCTET_ABSENT) {
        oct_write(w, ", argument ");
        oct_write_i64(w, port->alias);
    }
    oct_write(w, port->is_mutable ? ", written\n" : "\n");
}

static void write_ports(oct_writer *w, const char *title, const octet_port *ports, int count) {
    if (count) {
        oct_write(w, title);
        oct_write(w, "\n");
    }
    for (int i = 0; i < count; i++) {
        write_port(w, i, &ports[i]);
    }
}

static void write_use(oct_writer *w, const octet_plan *plan, uint8_t tensor, uint8_t use) {
    oct_write_tensor_name(w, plan, tensor);
    oct_write(w, use == OCTET_USE_ROW ? " rowwise" : use == OCTET_USE_COL ? " columnwise" : "");
}

static bool is_folded(const octet_plan *plan, uint8_t copy) {
    return copy != OCTET_ABSENT && plan->tensors[copy].form == OCTET_FORM_FOLDED;
}

/* Of a native product, what is copied into rows of whole 16 bytes. */
static void write_padding(oct_writer *w, const octet_plan *plan, const octet_step *s) {
    bool operands = oct_step_pads_operands(plan, s);
    bool sums = oct_step_pads_sums(plan, s);
    if (operands || sums) {
        oct_write(w, operands && sums ? ", operands and sums padded"
                     : operands       ? ", operands padded"
                                      : ", sums padded");
    }
}

/* Of a product whose rows come in eights, those that are multiplied apart from the others. */
static void write_rows_behind(oct_writer *w, const octet_plan *plan, const octet_step *s) {
    octet_scheme scheme = (octet_scheme)plan->tensors[s->a].quantizer.scheme;
    int64_t rows = 0, multiple = oct_target_of(&plan->device)->outer_multiple(scheme);
    if (multiple && s->a_copy != OCTET_ABSENT &&
        !octet_dim_eval(&rows, &plan->tensors[s->dst].rows, &plan->extents, NULL) &&
        rows % multiple) {
        oct_write(w, ", rows behind whole eights: ");
        oct_write_i64(w, rows % multiple);
    }
}

static void write_gemm(oct_writer *w, const octet_plan *plan, const octet_step *s) {
    static const char *const gemms[OCTET_GEMMS] = {"fprop ", "dgrad ", "wgrad "};
    const octet_quantizer *a = &plan->tensors[s->a].quantizer;
    const octet_quantizer *b = &plan->tensors[s->b].quantizer;
    bool quantized = oct_quantizer_is(a) || oct_quantizer_is(b);
    oct_write(w, s->gemm < OCTET_GEMMS ? gemms[s->gemm] : "?");
    oct_write_tensor_name(w, plan, s->dst);
    oct_write(w, s->accumulate ? " += " : " = ");
    write_use(w, plan, s->a, s->a_use);
    oct_write(w, " x ");
    write_use(w, plan, s->b, s->b_use);
    if (s->bias != OCTET_ABSENT) {
        oct_write(w, " + ");
        oct_write_buffer_name(w, plan, s->bias);
    }
    if (quantized) {
        oct_write(w, s->split ? ", split accumulation" : ", fast accumulation");
    }
    oct_write(w, s->invariant ? ", invariant in m" : "");
    uint8_t copy = s->a_copy != OCTET_ABSENT ? s->a_copy : s->b_copy;
    if (!s->native && is_folded(plan, copy)) {
        oct_write(w, ", folded into blocks of 128");
    } else if (!s->native) {
        oct_write(w, ", emulated exactly in ");
        oct_write(w, octet_dtype_name(plan->tensors[copy].dtype));
    } else {
        write_rows_behind(w, plan, s);
        write_padding(w, plan, s);
    }
}

static void write_collective(oct_writer *w, const octet_plan *plan, const octet_step *s) {
    static const char *const kinds[] = {"?", "all-gather ", "reduce-scatter ",
                                        "all-reduce sum ", "all-reduce max "};
    oct_write(w, s->collective < 5 ? kinds[s->collective] : "?");
    oct_write_buffer_name(w, plan, s->from);
    oct_write(w, " -> ");
    oct_write_buffer_name(w, plan, s->to);
}

static const char *prologue_word(const octet_plan *plan) {
    return plan->prologue < OCTET_PROLOGUES ? oct_prologue_words[plan->prologue] : "?";
}

/* What a cast or a measuring step reads: "input rowwise", "rmsnorm(input)". */
static void write_source(oct_writer *w, const octet_plan *plan, const octet_step *s) {
    oct_write(w, s->apply ? prologue_word(plan) : "");
    oct_write(w, s->apply ? "(" : "");
    write_use(w, plan, s->a, s->a_use);
    oct_write(w, s->apply ? ")" : "");
}

/* What a prologue reads besides its input: " by statistics, 1 + gamma, beta". */
static void write_parameters(oct_writer *w, const octet_plan *plan, const octet_step *s) {
    const uint8_t by[] = {s->gamma, s->bias};
    if (s->stats != OCTET_ABSENT) {
        oct_write(w, " by ");
        oct_write_tensor_name(w, plan, s->stats);
    }
    for (int i = 0; i < 2; i++) {
        if (by[i] != OCTET_ABSENT) {
            oct_write(w, i == 0 && plan->zero_centered ? ", 1 + " : ", ");
            oct_write_buffer_name(w, plan, by[i]);
        }
    }
}

static void write_quantize(oct_writer *w, const octet_plan *plan, const octet_step *s) {
    oct_write(w, "quantize ");
    write_source(w, plan, s);
    if (s->apply) {
        write_parameters(w, plan, s);
    }
    oct_write(w, " -> ");
    oct_write_tensor_name(w, plan, s->dst);
    oct_write(w, " ");
    oct_quantizer_write(w, &plan->tensors[s->dst].quantizer);
    if (s->scale != OCTET_ABSENT) {
        oct_write(w, " by ");
        oct_write_buffer_name(w, plan, s->scale);
    }
    if (s->amax != OCTET_ABSENT) {
        oct_write(w, s->scale == OCTET_ABSENT ? " by "
                     : s->accumulate          ? ", amax raises "
                                              : ", amax to ");
        oct_write_buffer_name(w, plan, s->amax);
    }
    if (s->seed != OCTET_ABSENT) {
        oct_write(w, " by ");
        oct_write_buffer_name(w, plan, s->seed);
        oct_write(w, " stream ");
        oct_write_i64(w, s->stream);
    }
    if (s->a_copy != OCTET_ABSENT || s->b_copy != OCTET_ABSENT) {
        bool both = s->a_copy != OCTET_ABSENT && s->b_copy != OCTET_ABSENT;
        uint8_t copy = s->a_copy != OCTET_ABSENT ? s->a_copy : s->b_copy;
        oct_write(w, both                        ? ", both "
                     : s->a_copy != OCTET_ABSENT ? ", rowwise "
                                                 : ", columnwise ");
        oct_write(w, is_folded(plan, copy) ? "folded" : "decoded to ");
        oct_write(w, is_folded(plan, copy) ? "" : octet_dtype_name(plan->tensors[copy].dtype));
    }
    if (s->scratch != OCTET_ABSENT) {
        oct_write(w, ", notes for products");
    }
}

/* Where a cast leaves the column sums of what it reads, and a bias gradient finds them. */
static void write_sums(oct_writer *w, const octet_plan *plan, const octet_step *s) {
    if (s->sums != OCTET_ABSENT) {
        bool joins = s->op == OCTET_OP_BIAS_GRAD || s->op == OCTET_OP_GAMMA_GRAD;
        oct_write(w, joins ? ", by way of " : ", column sums to ");
        oct_write_tensor_name(w, plan, s->sums);
    }
}

static void write_simple(oct_writer *w, const octet_plan *plan, const octet_step *s) {
    static const char *const verbs[OCTET_OPS] = {
        [OCTET_OP_ZERO] = "zero ",
        [OCTET_OP_CAST] = "cast ",
        [OCTET_OP_AMAX] = "amax of ",
        [OCTET_OP_DEQUANTIZE] = "dequantize ",
        [OCTET_OP_TRANSPOSE] = "transpose ",
        [OCTET_OP_SWIZZLE] = "swizzle scales of ",
        [OCTET_OP_ASSEMBLE] = "assemble ",
        [OCTET_OP_JOIN] = "join ",
        [OCTET_OP_ADD_BIAS] = "add bias to ",
        [OCTET_OP_BIAS_GRAD] = "column sums of ",
        [OCTET_OP_STATISTICS] = "row statistics of ",
    };
    oct_write(w, s->op < OCTET_OPS && verbs[s->op] ? verbs[s->op] : "? ");
    if (s->a != OCTET_ABSENT) {
        write_source(w, plan, s);
        if (s->apply) {
            write_parameters(w, plan, s);
        }
        bool adds = s->accumulate && s->op == OCTET_OP_BIAS_GRAD;
        oct_write(w, adds ? " added to " : s->accumulate ? " raises " : " -> ");
    }
    if (s->dst != OCTET_ABSENT) {
        oct_write_tensor_name(w, plan, s->dst);
    } else {
        oct_write_buffer_name(w, plan, s->to != OCTET_ABSENT ? s->to : s->amax);
    }
    if (s->op == OCTET_OP_CAST && s->dst != OCTET_ABSENT) {
        oct_write(w, " ");
        oct_write(w, octet_dtype_name(plan->tensors[s->dst].dtype));
    }
}

/* "rmsnorm of input -> input.prologue by statistics, gamma", and the same backward. */
static void write_prologue(oct_writer *w, const octet_plan *plan, const octet_step *s) {
    oct_write(w, s->op == OCTET_OP_GAMMA_GRAD      ? "gradient of gamma from "
                 : s->op == OCTET_OP_PROLOGUE_GRAD ? "backward of "
                                                   : "");
    oct_write(w, s->op == OCTET_OP_GAMMA_GRAD ? "" : prologue_word(plan));
    oct_write(w, s->op == OCTET_OP_PROLOGUE        ? " of "
                 : s->op == OCTET_OP_PROLOGUE_GRAD ? ": "
                                                   : "");
    oct_write_tensor_name(w, plan, s->a);
    if (s->b != OCTET_ABSENT) {
        oct_write(w, ", ");
        oct_write_tensor_name(w, plan, s->b);
    }
    oct_write(w, " -> ");
    oct_write_tensor_name(w, plan, s->dst);
    write_parameters(w, plan, s);
    if (s->amax != OCTET_ABSENT) {
        oct_write(w, ", amax to ");
        oct_write_buffer_name(w, plan, s->amax);
    }
}

static void write_step(oct_writer *w, const octet_plan *plan, int index) {
    const octet_step *step = &plan->steps[index];
    size_t start = w->length;
    oct_write_pad(w, start, 2);
    oct_write_i64(w, index + 1);
    oct_write_pad(w, start, 5);
    switch (step->op) {
    case OCTET_OP_GEMM:
        write_gemm(w, plan, step);
        break;
    case OCTET_OP_QUANTIZE:
        write_quantize(w, plan, step);
        break;
    case OCTET_OP_COLLECTIVE:
        write_collective(w, plan, step);
        break;
    case OCTET_OP_PROLOGUE:
    case OCTET_OP_PROLOGUE_GRAD:
    case OCTET_OP_GAMMA_GRAD:
        write_prologue(w, plan, step);
        break;
    default:
        write_simple(w, plan, step);
    }
    write_sums(w, plan, step);
    if (step->chunk != OCTET_ABSENT) {
        oct_write(w, ", chunk ");
        oct_write_i64(w, step->chunk + 1);
        oct_write(w, " of ");
        oct_write_i64(w, plan->chunks);
    }
    oct_write(w, "\n");
}

static void write_saved_buffer(oct_writer *w, const octet_plan *plan, int index, uint8_t at) {
    static const char *const places[OCTET_PLACES] = {
        [OCTET_PLACE_ARG] = ", is argument ",
        [OCTET_PLACE_OUT] = ", is output ",
        [OCTET_PLACE_SAVED] = ", stored",
        [OCTET_PLACE_RESTORED] = ", stored by forward",
    };
    const octet_plan_buffer *buffer = &plan->buffers[at];
    size_t start = w->length;
    oct_write_pad(w, start, 2);
    oct_write_i64(w, index);
    oct_write_pad(w, start, NAME_COLUMN);
    oct_write_buffer_name(w, plan, at);
    write_row(w, start, buffer->dtype, buffer->ndim, buffer->shape);
    write_bytes(w, buffer->bytes);
    bool by_backward = buffer->place == OCTET_PLACE_RESTORED && buffer->port == 1;
    oct_write(w, by_backward ? ", stored by backward"
                 : buffer->place < OCTET_PLACES && places[buffer->place] ? places[buffer->place]
                                                                         : "?");
    if (buffer->place == OCTET_PLACE_ARG || buffer->place == OCTET_PLACE_OUT) {
        oct_write_i64(w, buffer->port);
    }
    oct_write(w, "\n");
}

static void write_saved(oct_writer *w, const octet_plan *plan, const char *title,
                        const uint8_t *saved, int count) {
    oct_write(w, title);
    oct_write(w, count ? "\n" : ": nothing\n");
    for (int i = 0; i < count; i++) {
        write_saved_buffer(w, plan, i, saved[i]);
    }
}

static void write_head(oct_writer *w, const octet_plan *plan) {
    static const char *const kinds[OCTET_PLAN_KINDS] = {
        "linear forward", "linear backward", "linear wgrad", "quantize", "dequantize",
    };
    bool is_linear = plan->kind <= OCTET_PLAN_LINEAR_WGRAD;
    oct_write(w, plan->kind < OCTET_PLAN_KINDS ? kinds[plan->kind] : "?");
    oct_write(w, ": m=");
    oct_write_i64(w, plan->extents.m);
    oct_write(w, " k=");
    oct_write_i64(w, plan->extents.k);
    if (is_linear) {
        oct_write(w, " n=");
        oct_write_i64(w, plan->extents.n);
        oct_write(w, ", recipe ");
        oct_write(w, plan->recipe < OCTET_RECIPES ? oct_recipe_words[plan->recipe] : "?");
    }
    oct_write(w, ", on ");
    oct_write_device(w, &plan->device);
    if (plan->tp_size > 1) {
        oct_write(w, ", ");
        oct_write_i64(w, plan->tp_size);
        oct_write(w, " ranks");
    }
    oct_write(w, "\n");
}

/* That gradients are not those of the input itself: it was saved in 8 bits. */
static void write_packed(oct_writer *w, const octet_plan *plan) {
    bool packed = false;
    for (int i = 0; i < plan->tensor_count; i++) {
        packed = packed || plan->tensors[i].form == OCTET_FORM_PACKED;
    }
    if (packed) {
        oct_write(w,
                  "gradients are those at input.packed: each element within 2^-4 of input's, "
                  "or within 2^-17 of the largest of its 32\n");
    }
}

static void write_workspace(oct_writer *w, const octet_plan *plan) {
    oct_write(w, "; workspace ");
    write_bytes(w, plan->workspace_bytes);
    for (int i = 0; i < plan->buffer_count; i++) {
        const octet_plan_buffer *buffer = &plan->buffers[i];
        if (plan->tensors[buffer->tensor].name == OCTET_NAME_SCRATCH && buffer->bytes) {
            oct_write(w, ", of it ");
            write_bytes(w, buffer->bytes);
            oct_write(w, " for the products' own use");
        }
    }
    oct_write(w, "\n");
}

size_t octet_plan_print(char *text, size_t size, const octet_plan *plan) {
    oct_writer writer = oct_writer_start(text, size);
    if (!plan) {
        return 0;
    }
    oct_writer *w = &writer;
    write_head(w, plan);
    write_ports(w, "arguments", plan->args, plan->arg_count);
    if (plan->kind == OCTET_PLAN_LINEAR_BACKWARD || plan->kind == OCTET_PLAN_LINEAR_WGRAD) {
        write_saved(w, plan, "restored from the plan before", plan->restored,
                    plan->restored_count);
    }
    oct_write(w, "steps\n");
    for (int i = 0; i < plan->step_count; i++) {
        write_step(w, plan, i);
    }
    write_ports(w, "between phases: exchanged with other ranks, or carried over",
                plan->exchanges, plan->exchange_count);
    write_ports(w, "outputs", plan->outs, plan->out_count);
    if (plan->kind <= OCTET_PLAN_LINEAR_WGRAD) {
        write_saved(w, plan, "saved for the next plan", plan->saved, plan->saved_count);
    }
    oct_write(w, "saves ");
    write_bytes(w, plan->saved_bytes);
    oct_write(w, " stored");
    if (plan->aliased_bytes) {
        oct_write(w, " and ");
        write_bytes(w, plan->aliased_bytes);
        oct_write(w, " of the caller's alive");
    }
    write_workspace(w, plan);
    write_packed(w, plan);
    return writer.length;
}
