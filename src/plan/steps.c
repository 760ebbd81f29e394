/* steps.c - the steps of a plan and the buffers each reads and writes. */
#include <string.h>

#include "plan/build.h"
#include "quant/layout.h"
#include "quant/quantizer.h"

octet_step *oct_step(oct_builder *b, octet_op op) {
    octet_plan *plan = b->plan;
    /* Too many: the plan fails when it is finished, and until then the last step is written
     * over. */
    if (plan->step_count == OCTET_PLAN_STEPS) {
        oct_build_fail(b, "the plan needs more steps than OCTET_PLAN_STEPS");
        plan->step_count--;
    }
    /* The caller runs collectives between phases. Several in a row end the same phase. */
    if (b->after_collective && op != OCTET_OP_COLLECTIVE) {
        b->phase++;
    }
    b->after_collective = op == OCTET_OP_COLLECTIVE;
    octet_step *step = &plan->steps[plan->step_count++];
    memset(step, 0, sizeof *step);
    step->op = (uint8_t)op;
    step->phase = b->phase;
    step->dst = step->a = step->b = step->a_copy = step->b_copy = OCTET_ABSENT;
    step->from = step->to = step->bias = OCTET_ABSENT;
    step->scale = step->amax = step->seed = step->scratch = step->sums = OCTET_ABSENT;
    step->chunk = step->gamma = step->stats = OCTET_ABSENT;
    return step;
}

void oct_next_phase(oct_builder *b) {
    b->after_collective = true;
}

static uint64_t bit(uint8_t buffer) {
    return buffer == OCTET_ABSENT ? 0 : (uint64_t)1 << buffer;
}

static uint64_t part_bits(const oct_builder *b, uint8_t tensor, uint32_t parts) {
    uint64_t bits = 0;
    if (tensor == OCTET_ABSENT) {
        return 0;
    }
    for (int part = 0; part < OCTET_PARTS; part++) {
        if (parts >> part & 1) {
            bits |= bit(b->plan->tensors[tensor].buffers[part]);
        }
    }
    return bits;
}

/* The parts of a tensor whose buffers belong to it. */
static uint64_t own_bits(const oct_builder *b, uint8_t tensor) {
    uint64_t bits = 0;
    for (int part = 0; part < OCTET_PARTS; part++) {
        uint8_t buffer = b->plan->tensors[tensor].buffers[part];
        if (buffer != OCTET_ABSENT && b->plan->buffers[buffer].tensor == tensor) {
            bits |= bit(buffer);
        }
    }
    return bits;
}

static uint32_t present_parts(const oct_builder *b, uint8_t tensor) {
    uint32_t parts = 0;
    for (int part = 0; part < OCTET_PARTS; part++) {
        parts |= oct_tensor_has(b, tensor, (octet_part)part) ? 1u << part : 0;
    }
    return parts;
}

static uint32_t use_parts(uint8_t use) {
    return use == OCTET_USE_ROW   ? OCT_ROW_PARTS
           : use == OCTET_USE_COL ? OCT_COL_PARTS
                                  : OCT_PART(VALUES);
}

/* What a prologue reads besides its input; nothing of steps that apply none. */
static uint64_t parameter_bits(const oct_builder *b, const octet_step *step) {
    return part_bits(b, step->stats, OCT_PART(VALUES)) | bit(step->gamma) | bit(step->bias);
}

/* A cast takes its scale from one of three: a given scale (delayed scaling), and then it writes
 * the amax that it saw; an amax that was measured before (one scale a tensor), which it reads;
 * or amaxes that are parts of dst (NVFP4), which it reads, too. */
static void quantize_masks(const oct_builder *b, octet_step *step) {
    uint64_t amaxes = part_bits(b, step->dst, OCT_AMAX_PARTS);
    step->reads =
        part_bits(b, step->a, OCT_PART(VALUES)) | bit(step->scale) | bit(step->seed) | amaxes;
    step->reads |= parameter_bits(b, step);
    step->reads |= step->accumulate || step->scale == OCTET_ABSENT ? bit(step->amax) : 0;
    step->writes = (part_bits(b, step->dst, OCT_ALL_PARTS) & ~amaxes) |
                   part_bits(b, step->a_copy, OCT_ALL_PARTS) |
                   part_bits(b, step->b_copy, OCT_ALL_PARTS) |
                   part_bits(b, step->sums, OCT_PART(VALUES));
    step->writes |= step->scale == OCTET_ABSENT ? 0 : bit(step->amax);
}

/* Whether a cast has written what it decodes to, or a step before the sums of its columns. */
static bool is_made(const oct_builder *b, uint8_t copy) {
    for (int i = 0; copy != OCTET_ABSENT && i < b->plan->step_count; i++) {
        const octet_step *step = &b->plan->steps[i];
        bool casts = step->op == OCTET_OP_QUANTIZE;
        if ((casts && (step->a_copy == copy || step->b_copy == copy)) ||
            ((casts || step->op == OCTET_OP_AMAX) && step->sums == copy)) {
            return true;
        }
    }
    return false;
}

/* A copy that an earlier step made is read; else this step writes it first, for itself. */
static void made_masks(const oct_builder *b, octet_step *step, uint8_t copy) {
    if (copy != OCTET_ABSENT) {
        *(is_made(b, copy) ? &step->reads : &step->writes) |= part_bits(b, copy, OCT_ALL_PARTS);
    }
}

static void gemm_masks(const oct_builder *b, octet_step *step) {
    step->writes = part_bits(b, step->dst, OCT_PART(VALUES));
    step->reads = part_bits(b, step->a, use_parts(step->a_use)) |
                  part_bits(b, step->b, use_parts(step->b_use)) | bit(step->bias) |
                  (step->accumulate ? step->writes : 0);
    made_masks(b, step, step->a_copy);
    made_masks(b, step, step->b_copy);
}

/* TRANSPOSE reads the bytes and amax of one direction: both share the tensor's one scale.
 * SWIZZLE reads the block scales alone. */
static uint64_t reordered_bits(const oct_builder *b, const octet_step *step) {
    uint32_t scales = OCT_PART(ROW_SCALE) | OCT_PART(COL_SCALE);
    uint32_t parts = use_parts(step->a_use) & ~OCT_PART(SCALE);
    return part_bits(b, step->a, step->op == OCTET_OP_SWIZZLE ? parts & scales : parts);
}

/* The prologue, its gradient and gamma's: values of a and b, by statistics and parameters. */
static void prologue_masks(const oct_builder *b, octet_step *step) {
    uint32_t values = OCT_PART(VALUES);
    step->reads =
        part_bits(b, step->a, values) | part_bits(b, step->b, values) | parameter_bits(b, step);
    step->writes = part_bits(b, step->dst, values) | bit(step->amax);
}

/* Where no step writes a prologue's result, x stands for it, and only casts know how to read it
 * so. Nobody else is to take x for it. */
static void check_applied(oct_builder *b, const octet_step *step) {
    bool reads = step->a != OCTET_ABSENT && step->a == b->applied.x;
    if (reads && !step->apply && step->op != OCTET_OP_STATISTICS) {
        oct_build_fail(b, "a step reads a prologue's result that no step writes");
    }
}

void oct_step_done(oct_builder *b, octet_step *step) {
    uint32_t values = OCT_PART(VALUES);
    check_applied(b, step);
    switch ((octet_op)step->op) {
    case OCTET_OP_QUANTIZE:
        quantize_masks(b, step);
        break;
    case OCTET_OP_GEMM:
        gemm_masks(b, step);
        break;
    case OCTET_OP_AMAX:
        step->reads = part_bits(b, step->a, values) | parameter_bits(b, step) |
                      (step->accumulate ? bit(step->amax) : 0);
        step->writes = part_bits(b, step->dst, OCT_AMAX_PARTS) | bit(step->amax) |
                       part_bits(b, step->sums, values);
        break;
    case OCTET_OP_DEQUANTIZE:
        step->reads = part_bits(b, step->a, use_parts(step->a_use));
        step->writes = part_bits(b, step->dst, values);
        break;
    case OCTET_OP_TRANSPOSE:
    case OCTET_OP_SWIZZLE:
        step->reads = reordered_bits(b, step);
        step->writes = own_bits(b, step->dst);
        break;
    case OCTET_OP_ASSEMBLE: /* only what was stacked; the rest was concatenated */
        step->reads = own_bits(b, step->a);
        step->writes = part_bits(b, step->dst, present_parts(b, step->a));
        break;
    case OCTET_OP_JOIN:
        step->reads = part_bits(b, step->a, values | OCT_PART(ROW_DATA));
        step->writes = part_bits(b, step->dst, values | OCT_PART(ROW_DATA));
        break;
    case OCTET_OP_ZERO:
    case OCTET_OP_COLLECTIVE:
        step->reads = bit(step->from);
        step->writes = bit(step->to);
        break;
    case OCTET_OP_PROLOGUE:
    case OCTET_OP_PROLOGUE_GRAD:
        prologue_masks(b, step);
        break;
    case OCTET_OP_GAMMA_GRAD:
        prologue_masks(b, step);
        made_masks(b, step, step->sums);
        break;
    case OCTET_OP_BIAS_GRAD: /* where an earlier step summed dy, it adds those sums up */
        step->reads = is_made(b, step->sums) ? 0 : part_bits(b, step->a, values);
        step->writes = part_bits(b, step->dst, values);
        step->reads |= step->accumulate ? step->writes : 0;
        made_masks(b, step, step->sums);
        break;
    default: /* CAST, ADD_BIAS, STATISTICS */
        step->reads = part_bits(b, step->a, values) | bit(step->bias);
        step->writes = part_bits(b, step->dst, values);
    }
}

/* One buffer per slot of a vector that the caller sees as a single port. */
static void make_slots(oct_builder *b, uint8_t *buffers, octet_plan_name name,
                       octet_place place) {
    uint8_t port = OCTET_ABSENT;
    for (int i = 0; i < b->slots; i++) {
        uint8_t tensor = oct_tensor(b, name, OCTET_FORM_GIVEN, OCTET_F32, NULL);
        uint8_t *ports = place == OCTET_PLACE_ARG ? &b->plan->arg_count : &b->plan->out_count;
        uint8_t before = *ports;
        oct_place(b, tensor, OCT_ALL_PARTS, place);
        buffers[i] = oct_tensor_at(b, tensor)->buffers[OCTET_PART_VALUES];
        octet_plan_buffer *buffer = &b->plan->buffers[buffers[i]];
        if (i == 0) {
            /* The first slot's port becomes the vector's. */
            port = buffer->port;
            octet_port *whole =
                place == OCTET_PLACE_ARG ? &b->plan->args[port] : &b->plan->outs[port];
            whole->dims[0].mul = (uint16_t)b->slots;
        } else {
            /* Later slots lie in it: the port that was made for one is taken back. */
            octet_port *extra =
                place == OCTET_PLACE_ARG ? &b->plan->args[before] : &b->plan->outs[before];
            memset(extra, 0, sizeof *extra);
            *ports = before;
            buffer->port = port;
            buffer->offset = (int64_t)sizeof(float) * i;
        }
    }
}

/* A slot that the planner forgot would be read out of bounds. */
static int known_slot(oct_builder *b, int slot) {
    if (slot < 0 || slot >= b->slots) {
        oct_build_fail(b, "the plan quantizes by delayed scaling without a slot for it");
        return 0;
    }
    return slot;
}

uint8_t oct_scale_slot(oct_builder *b, int slot) {
    if (b->scale[0] == OCTET_ABSENT) {
        make_slots(b, b->scale, OCTET_NAME_SCALE, OCTET_PLACE_ARG);
    }
    return b->scale[known_slot(b, slot)];
}

uint8_t oct_amax_slot(oct_builder *b, int slot) {
    if (b->amax[0] == OCTET_ABSENT) {
        make_slots(b, b->amax, OCTET_NAME_AMAX, b->raises ? OCTET_PLACE_ARG : OCTET_PLACE_OUT);
        /* The caller's vector is raised: an argument that is written. */
        if (b->raises) {
            b->plan->args[b->plan->buffers[b->amax[0]].port].is_mutable = 1;
        }
    }
    return b->amax[known_slot(b, slot)];
}

uint8_t oct_seed(oct_builder *b) {
    if (b->seed == OCTET_ABSENT) {
        uint8_t tensor = oct_tensor(b, OCTET_NAME_SEED, OCTET_FORM_GIVEN, OCTET_I64, NULL);
        oct_place(b, tensor, OCT_ALL_PARTS, OCTET_PLACE_ARG);
        b->seed = oct_tensor_at(b, tensor)->buffers[OCTET_PART_VALUES];
    }
    return b->seed;
}
