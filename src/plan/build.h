/* build.h - what a planner puts a plan together from: tensors, buffers, steps. */
#ifndef OCT_PLAN_BUILD_H
#define OCT_PLAN_BUILD_H

#include "core/target.h"

/* A prologue whose result no step writes: casts compute it from x, which stands for it. */
typedef struct oct_applied {
    uint8_t x, stats;    /* tensors; x is OCTET_ABSENT where there is none */
    uint8_t gamma, beta; /* buffers */
    octet_dim cols;      /* of the result */
} oct_applied;

/* A plan under construction. The first mistake stays in status; later calls do no harm. */
typedef struct oct_builder {
    octet_plan *plan;
    octet_device device;
    const oct_target *target; /* the device's answers */
    uint8_t dtype;            /* of operands that a product takes as values */
    bool exact;               /* no product is folded */
    bool invariant;           /* rows of fprop and dgrad do not depend on other rows */
    octet_error *err;
    octet_status status;
    uint8_t phase;
    bool after_collective;
    uint8_t seed; /* made when first asked for, as are the buffers of the slots */
    uint8_t scale[OCTET_FORWARD_SLOTS], amax[OCTET_FORWARD_SLOTS]; /* delayed scaling's */
    int slots;        /* of these that the plan has */
    bool raises;      /* amaxes are an argument that steps raise */
    bool skips;       /* amaxes of delayed scaling are not measured */
    uint32_t threads; /* workers that need workspace; at least 1 */
    uint8_t scratch;  /* of GEMMs, made with the first that needs it */
    oct_applied applied;
} oct_builder;

/* What a plan is for, known before its first tensor. */
typedef struct oct_build_options {
    octet_plan_kind kind;
    octet_device device;
    octet_extents extents;
    octet_recipe_kind recipe;
    uint8_t dtype;    /* of operands that a product takes as values */
    uint32_t ranks;   /* at least 1 */
    uint32_t threads; /* 0 counts as 1 */
    int slots;        /* of delayed scaling */
    bool raises;      /* amaxes are an argument */
    bool skips;       /* or they are not measured */
    bool exact;       /* no product is folded */
    bool invariant;   /* rows of fprop and dgrad do not depend on other rows */
} oct_build_options;

/* A tensor and which of its bytes a step is to read. */
typedef struct oct_operand {
    uint8_t tensor;
    uint8_t use; /* octet_use */
} oct_operand;

/* Parts as bits. */
#define OCT_PART(part) (1u << OCTET_PART_##part)
#define OCT_ROW_PARTS                                                                          \
    (OCT_PART(ROW_DATA) | OCT_PART(ROW_SCALE) | OCT_PART(ROW_AMAX) | OCT_PART(SCALE))
#define OCT_COL_PARTS                                                                          \
    (OCT_PART(COL_DATA) | OCT_PART(COL_SCALE) | OCT_PART(COL_AMAX) | OCT_PART(SCALE))
#define OCT_AMAX_PARTS (OCT_PART(ROW_AMAX) | OCT_PART(COL_AMAX))
#define OCT_ALL_PARTS UINT32_MAX

oct_builder oct_build_start(octet_plan *plan, const oct_build_options *options,
                            octet_error *err);
/* The last passes over all steps, and then the numbers. */
octet_status oct_build_finish(oct_builder *b);
/* Numbers, offsets and totals of a plan's extents. */
octet_status oct_plan_number(octet_plan *plan, octet_error *err);
/* Gives these buffers their places in the workspace, behind what is there; false: a size does
 * not fit. */
bool oct_share_workspace(octet_plan *plan, uint64_t bits);
/* Whether what a plan cuts into chunks can be cut so. */
octet_status oct_plan_check_chunks(const octet_plan *plan, const octet_extents *sizes,
                                   octet_error *err);
void oct_build_fail(oct_builder *b, const char *why);

octet_dim oct_axis_times(octet_axis axis, uint32_t times);
octet_dim oct_axis_over(octet_axis axis, uint32_t over);

/* ---- tensors and where they live ---- */

/* A tensor without buffers. quantizer may be NULL: plain. */
uint8_t oct_tensor(oct_builder *b, octet_plan_name name, octet_plan_form form, uint8_t dtype,
                   const octet_quantizer *quantizer);
void oct_tensor_shape(oct_builder *b, uint8_t tensor, octet_dim rows, octet_dim cols);
octet_plan_tensor *oct_tensor_at(oct_builder *b, uint8_t tensor);
/* Gives the tensor the buffer of one entry of its layout. */
void oct_place_entry(oct_builder *b, uint8_t tensor, const octet_buffer *entry,
                     octet_place place);
/* Gives the tensor those of `parts` that its layout has and it has not; a plain one VALUES. */
void oct_place(oct_builder *b, uint8_t tensor, uint32_t parts, octet_place place);
/* The tensor reads another's buffers as its own. */
void oct_share(oct_builder *b, uint8_t tensor, uint8_t from, uint32_t parts);
bool oct_tensor_has(const oct_builder *b, uint8_t tensor, octet_part part);
bool oct_tensor_is_plain(const oct_builder *b, uint8_t tensor);
/* Saves these parts for the next plan. */
void oct_save(oct_builder *b, uint8_t tensor, uint32_t parts);
/* An output that is an argument. */
void oct_output_alias(oct_builder *b, uint8_t tensor);

/* ---- steps ---- */

octet_step *oct_step(oct_builder *b, octet_op op);
/* The next step begins a phase, which may wait for more collectives than the one before. */
void oct_next_phase(oct_builder *b);
/* Fills reads and writes from the operands; every step ends with this. */
void oct_step_done(oct_builder *b, octet_step *step);

/* Says of casts which of their bytes only products read that have what they decode to. */
void oct_drop_bytes(oct_builder *b);
/* Room for what casts leave for products, where the target has such notes. */
void oct_place_notes(oct_builder *b);
/* A product of a plan at its sizes, as targets are asked about it; false: a size does not fit.
 */
bool oct_product_at(oct_target_product *out, const octet_plan *plan, const octet_step *gemm);

/* Delayed scaling's slot buffers and the seed of stochastic rounding, made when first used. */
uint8_t oct_scale_slot(oct_builder *b, int slot);
uint8_t oct_amax_slot(oct_builder *b, int slot);
uint8_t oct_seed(oct_builder *b);

#endif
