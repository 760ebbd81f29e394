/* check_gemms.h - operands of the three products: whose, how large, in which direction. */
#ifndef OCTET_CHECK_GEMMS_H
#define OCTET_CHECK_GEMMS_H

#include "check_padding.h"
#include "cpu/cpu.h"

typedef struct check_operand {
    uint8_t name;       /* octet_plan_name */
    uint8_t rows, cols; /* octet_axis */
    uint8_t use;        /* octet_use of its bytes: blocks lie along the sum */
} check_operand;

typedef struct check_product {
    const char *name;
    check_operand a, b, dst;
} check_product;

static const check_product check_products[OCTET_GEMMS] = {
    [OCTET_FPROP] = {"fprop",
                     {OCTET_NAME_INPUT, OCTET_AXIS_M, OCTET_AXIS_K, OCTET_USE_ROW},
                     {OCTET_NAME_WEIGHT, OCTET_AXIS_N, OCTET_AXIS_K, OCTET_USE_ROW},
                     {OCTET_NAME_OUTPUT, OCTET_AXIS_M, OCTET_AXIS_N, OCTET_USE_VALUES}},
    [OCTET_DGRAD] = {"dgrad",
                     {OCTET_NAME_GRAD_OUTPUT, OCTET_AXIS_M, OCTET_AXIS_N, OCTET_USE_ROW},
                     {OCTET_NAME_WEIGHT, OCTET_AXIS_N, OCTET_AXIS_K, OCTET_USE_COL},
                     {OCTET_NAME_GRAD_INPUT, OCTET_AXIS_M, OCTET_AXIS_K, OCTET_USE_VALUES}},
    [OCTET_WGRAD] = {"wgrad",
                     {OCTET_NAME_GRAD_OUTPUT, OCTET_AXIS_M, OCTET_AXIS_N, OCTET_USE_COL},
                     {OCTET_NAME_INPUT, OCTET_AXIS_M, OCTET_AXIS_K, OCTET_USE_COL},
                     {OCTET_NAME_GRAD_WEIGHT, OCTET_AXIS_N, OCTET_AXIS_K, OCTET_USE_VALUES}},
};

/* One GEMM under test. */
typedef struct check_gemm {
    check_report *report;
    const octet_plan *plan;
    const octet_linear_args *args;
    const octet_step *step;
    const check_product *product;
} check_gemm;

/* Rows that a GEMM sees for each row of this rank's input. */
static inline int check_gathered(const octet_linear_args *args) {
    bool gathers = args->parallel == OCTET_PARALLEL_COLUMN && args->sequence_parallel;
    return gathers && args->tp_size > 1 ? (int)args->tp_size : 1;
}

static inline bool check_measures(const octet_dim *dim, int axis, int rows_per_m) {
    int mul = axis == OCTET_AXIS_M ? rows_per_m : 1;
    return dim->axis == axis && dim->align == 1 && dim->mul == mul * dim->div;
}

static inline void check_sides(const check_gemm *gemm, int tensor, const check_operand *want,
                               const char *letter) {
    const octet_plan_tensor *t = &gemm->plan->tensors[tensor];
    int rows_per_m = check_gathered(gemm->args);
    octet_dim cols = t->cols, rows = t->rows;
    bool cut = gemm->step->chunk != OCTET_ABSENT, by_rows = gemm->plan->by_rows != 0;
    bool chunk = cut && !by_rows && want == &gemm->product->dst;
    bool piece = cut && by_rows && want != &gemm->product->b;
    CHECK_LAW(gemm->report, LAW_GEMMS, !chunk || cols.div == gemm->plan->chunks,
              "%s's chunk has %lld columns", gemm->product->name,
              (long long)check_dim(gemm->plan, &cols));
    CHECK_LAW(gemm->report, LAW_GEMMS, !piece || rows.div == gemm->plan->chunks,
              "%s's piece has %lld rows", gemm->product->name,
              (long long)check_dim(gemm->plan, &rows));
    cols.div = chunk ? 1 : cols.div;
    rows.div = piece ? 1 : rows.div;
    CHECK_LAW(gemm->report, LAW_GEMMS,
              check_measures(&rows, want->rows, rows_per_m) &&
                  check_measures(&cols, want->cols, rows_per_m),
              "%s's %s is %lld x %lld, on the wrong axes", gemm->product->name, letter,
              (long long)check_dim(gemm->plan, &t->rows),
              (long long)check_dim(gemm->plan, &t->cols));
    bool main_grad = want->name == OCTET_NAME_GRAD_WEIGHT && t->name == OCTET_NAME_MAIN_GRAD;
    CHECK_LAW(gemm->report, LAW_GEMMS, t->name == want->name || main_grad,
              "%s's %s is tensor %d, of another name", gemm->product->name, letter, tensor);
}

/* Whether the device reads one set of bytes in both directions. */
static inline bool check_reads_across(const octet_device *device, const octet_quantizer *q) {
    bool tensor_cores = (device->arch >= 100 && device->arch < 120) || device->arch >= 130;
    return device->kind == OCTET_CPU || (check_is_per_tensor(q) && tensor_cores);
}

static inline void check_direction(const check_gemm *gemm, int tensor, int use,
                                   const check_operand *want) {
    const octet_plan_tensor *t = &gemm->plan->tensors[tensor];
    const char *name = gemm->product->name;
    if (!check_is_quantized(t)) {
        CHECK_LAW(gemm->report, LAW_GEMMS, use == OCTET_USE_VALUES,
                  "%s reads a direction of tensor %d, which is plain", name, tensor);
        return;
    }
    int data = use == OCTET_USE_ROW ? OCTET_PART_ROW_DATA : OCTET_PART_COL_DATA;
    CHECK_LAW(gemm->report, LAW_GEMMS,
              use != OCTET_USE_VALUES && t->buffers[data] != OCTET_ABSENT,
              "%s reads bytes that tensor %d has not", name, tensor);
    bool across = octet_quantizer_transposable(&t->quantizer) &&
                  (!gemm->step->native || gemm->step->invariant ||
                   check_reads_across(&gemm->plan->device, &t->quantizer));
    CHECK_LAW(gemm->report, LAW_GEMMS, use == want->use || across,
              "%s reads tensor %d in the wrong direction", name, tensor);
    CHECK_LAW(gemm->report, LAW_GEMMS,
              !gemm->step->native || gemm->step->invariant ||
                  octet_scheme_native((octet_scheme)t->quantizer.scheme, &gemm->plan->device),
              "%s is native, but tensor %d's scheme is not on this device", name, tensor);
}

/* Tensor cores read the scales of small blocks in an order of their own. */
static inline void check_scale_order(const check_gemm *gemm, int tensor) {
    const octet_quantizer *q = &gemm->plan->tensors[tensor].quantizer;
    bool cores =
        gemm->plan->device.kind == OCTET_CUDA && gemm->step->native && !gemm->step->invariant;
    bool small = q->scheme >= OCTET_MXFP8;
    CHECK_LAW(gemm->report, LAW_GEMMS, !(cores && small) || q->swizzled,
              "%s reads scales of tensor %d that are not swizzled", gemm->product->name,
              tensor);
}

/* Transformed columns cancel only against columns transformed alike. */
static inline void check_transform(const check_gemm *gemm) {
    const octet_step *step = gemm->step;
    const octet_quantizer *a = &gemm->plan->tensors[step->a].quantizer;
    const octet_quantizer *b = &gemm->plan->tensors[step->b].quantizer;
    int a_transform = step->a_use == OCTET_USE_COL ? a->hadamard : OCTET_HADAMARD_NONE;
    int b_transform = step->b_use == OCTET_USE_COL ? b->hadamard : OCTET_HADAMARD_NONE;
    CHECK_LAW(gemm->report, LAW_GEMMS, a_transform == b_transform,
              "%s multiplies a transformed operand with one that is not", gemm->product->name);
}

/* Schemes whose scales are applied between partial sums. */
static inline bool check_always_split(const octet_quantizer *quantizer) {
    return quantizer->scheme == OCTET_FP8_BLOCK || quantizer->format == OCTET_E2M1;
}

static inline void check_accumulation(const check_gemm *gemm) {
    const octet_step *step = gemm->step;
    const octet_recipe *recipe = &gemm->args->recipe;
    uint8_t split[OCTET_GEMMS] = {recipe->split_fprop, recipe->split_dgrad,
                                  recipe->split_wgrad};
    const octet_quantizer *a = &gemm->plan->tensors[step->a].quantizer;
    const octet_quantizer *b = &gemm->plan->tensors[step->b].quantizer;
    bool always =
        check_always_split(a) || check_always_split(b) || check_is_folded(gemm->plan, step);
    bool adds = step->gemm == OCTET_WGRAD && gemm->args->main_grad == OCTET_MAIN_GRAD_ADD;
    CHECK_LAW(gemm->report, LAW_GEMMS,
              !(a->scheme && b->scheme) || step->split == (always || split[step->gemm]),
              "%s does not accumulate as the recipe says", gemm->product->name);
    CHECK_LAW(gemm->report, LAW_GEMMS, !step->accumulate || adds,
              "%s adds to its result, which nobody asked for", gemm->product->name);
}

static inline bool check_per_tensor(const octet_quantizer *quantizer) {
    return quantizer->scheme == OCTET_FP8_TENSOR || quantizer->scheme == OCTET_FP8_DELAYED;
}

/* Native FP8 on a GPU, but for MXFP8, has rows that the library takes; no other. */
static inline bool check_pads(const octet_plan *plan, const octet_step *step) {
    const octet_quantizer *q = &plan->tensors[step->a].quantizer;
    return plan->device.kind == OCTET_CUDA && step->native && !step->invariant &&
           (check_per_tensor(q) || q->scheme == OCTET_FP8_BLOCK);
}

/* What a product works in. A CPU has a lane for each worker. A GPU has sums, a workspace for
 * its library, and what is padded; only what it multiplies and finishes without memory of its
 * own goes without. */
static inline int64_t check_scratch_bytes(const octet_plan *plan, const octet_step *step) {
    uint8_t dtype = plan->tensors[step->dst].dtype, arch = (uint8_t)plan->device.arch;
    bool bytes = check_per_tensor(&plan->tensors[step->a].quantizer) &&
                 check_per_tensor(&plan->tensors[step->b].quantizer) && step->native;
    bool folded =
        step->a_copy != OCTET_ABSENT && plan->tensors[step->a_copy].form == OCTET_FORM_FOLDED;
    bool blocks =
        folded || (step->native && plan->tensors[step->a].quantizer.scheme == OCTET_FP8_BLOCK);
    bool finished = step->bias == OCTET_ABSENT || dtype == OCTET_F32 ||
                    plan->buffers[step->bias].dtype == dtype;
    if (plan->device.kind != OCTET_CUDA) {
        uint64_t lanes = (uint64_t)plan->buffers[step->scratch].shape[0];
        return (int64_t)(lanes * OCT_CPU_LANE_BYTES); /* a faulty plan may have any number */
    }
    if (step->invariant) {
        return 0; /* a kernel that finishes dst itself */
    }
    bool copies = step->a_copy != OCTET_ABSENT && step->b_copy != OCTET_ABSENT;
    int64_t padded = check_pads(plan, step) && copies ? check_padded_bytes(plan, step) : 0;
    int64_t own =
        bytes && finished ? 0 : (24 << 20) + (!bytes && (arch != 90 || blocks) ? 8 << 20 : 0);
    return padded + own;
}

/* All products of a plan have one scratch, as large as the largest that one of them wants. */
static inline void check_own_memory(const check_gemm *gemm) {
    const octet_plan *plan = gemm->plan;
    uint8_t scratch = gemm->step->scratch;
    bool is_one = scratch != OCTET_ABSENT && check_name_of(plan, scratch) == OCTET_NAME_SCRATCH;
    CHECK_LAW(gemm->report, LAW_GEMMS, is_one, "%s works in what is no scratch",
              gemm->product->name);
    int64_t most = 0;
    for (int i = 0; is_one && i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        bool here = step->op == OCTET_OP_GEMM && step->scratch == scratch;
        int64_t bytes = here ? check_scratch_bytes(plan, step) : 0;
        most = bytes > most ? bytes : most;
    }
    CHECK_LAW(gemm->report, LAW_GEMMS, !is_one || plan->buffers[scratch].bytes == most,
              "%s has %lld bytes of scratch, not %lld", gemm->product->name,
              (long long)(is_one ? plan->buffers[scratch].bytes : 0), (long long)most);
}

/* Products whose rows are rows of the batch are invariant where the recipe asks for it, and
 * multiply the bytes as they are. */
static inline void check_invariance(const check_gemm *gemm) {
    const octet_step *step = gemm->step;
    bool asked = gemm->args->recipe.batch_invariant && step->gemm != OCTET_WGRAD;
    CHECK_LAW(gemm->report, LAW_GEMMS, step->invariant == asked,
              "%s is %sinvariant, which the recipe does not say", gemm->product->name,
              step->invariant ? "" : "not ");
    CHECK_LAW(gemm->report, LAW_GEMMS,
              !step->invariant || (step->native && step->a_copy == OCTET_ABSENT &&
                                   step->b_copy == OCTET_ABSENT),
              "%s is invariant, but multiplies copies", gemm->product->name);
}

static inline void check_padding(const check_gemm *gemm) {
    const octet_plan *plan = gemm->plan;
    const octet_step *step = gemm->step;
    bool one_scale = check_per_tensor(&plan->tensors[step->a].quantizer);
    CHECK_LAW(gemm->report, LAW_GEMMS,
              !check_pads(plan, step) || check_is_padded(plan, step, one_scale),
              "%s multiplies rows that are no whole 16 bytes", gemm->product->name);
}

static inline void check_gemms(check_report *report, const octet_plan *plan,
                               const octet_linear_args *args) {
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        if (step->op != OCTET_OP_GEMM) {
            continue;
        }
        const check_product *product = &check_products[step->gemm];
        check_gemm gemm = {report, plan, args, step, product};
        check_sides(&gemm, step->a, &product->a, "a");
        check_sides(&gemm, step->b, &product->b, "b");
        check_sides(&gemm, step->dst, &product->dst, "result");
        check_direction(&gemm, step->a, step->a_use, &product->a);
        check_direction(&gemm, step->b, step->b_use, &product->b);
        check_scale_order(&gemm, step->a);
        check_scale_order(&gemm, step->b);
        check_transform(&gemm);
        check_accumulation(&gemm);
        check_own_memory(&gemm);
        check_invariance(&gemm);
        check_padding(&gemm);
    }
}

#endif
