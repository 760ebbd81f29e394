/* args.h - a Linear call's argument structs and what follows from them at once. */
#ifndef OCT_LINEAR_ARGS_H
#define OCT_LINEAR_ARGS_H

#include "core/fields.h"

extern const octet_field oct_linear_fields[];
extern const octet_field oct_linear_backward_fields[];

/* Questions that every planner asks, answered once. args has passed octet_linear_check. */
typedef struct oct_facts {
    octet_extents extents;
    uint32_t tp;            /* at least 1 */
    uint8_t parallel;       /* octet_parallel; NONE when tp is 1 */
    bool sequence;          /* sequence parallel, likewise */
    uint32_t chunks;        /* of a product that is scattered; at least 1 */
    uint32_t gather_chunks; /* of one whose operand is gathered, likewise */
    bool quantized;         /* forward follows the recipe: there is one, and no calibration */
    bool quantized_back;    /* backward follows it too: the recipe has no backward override */
    bool dgrad;             /* dx = dy w is computed, for dx or for gamma and beta */
    bool wgrad, bgrad;
    bool xgrad, gamma_grad, beta_grad; /* what the prologue's backward makes, or dgrad itself */
    bool adds_bias;
    uint8_t dtype; /* of activations and high-precision GEMM operands */
    uint8_t output_dtype;
    octet_quantizer role[OCTET_ROLES]; /* scheme NONE where the role is not quantized */
} oct_facts;

oct_facts oct_linear_facts(const octet_linear_args *args);

static inline bool oct_has(const octet_proto *proto) {
    return proto->dtype != OCTET_NONE;
}

/* The checks of a call, and on success its facts. */
octet_status oct_linear_check(const octet_linear_args *args, oct_facts *facts,
                              octet_error *err);
octet_status oct_linear_backward_check(const octet_linear_backward_args *args, oct_facts *facts,
                                       octet_error *err);
/* The prologue's part of it: its options, its tensors, and none where it is none. */
octet_status oct_prologue_check(const octet_linear_args *args, octet_error *err);
/* One tensor argument on its own, and on the device of the input. */
octet_status oct_argument_check(const octet_linear_args *args, const octet_proto *proto,
                                const char *name, octet_error *err);
/* A tensor that there is not: nothing of it is set. */
octet_status oct_absent_check(const octet_proto *proto, const char *name, octet_error *err);
/* octet_linear_choose_gather for args whose facts are known. */
octet_gather oct_linear_gather(const octet_linear_args *args, const oct_facts *facts);
/* What the rows of a call must be a multiple of, for ranks to share them. */
uint32_t oct_linear_row_multiple(const octet_linear_args *args, const oct_facts *facts);
/* What the columns of a product in chunks must be a multiple of, and m where rows are gathered
 * in chunks. */
uint32_t oct_linear_col_multiple(const octet_linear_args *args, const oct_facts *facts);
uint32_t oct_linear_piece_multiple(const octet_linear_args *args, const oct_facts *facts);
/* The quantizer of the shards that ranks join; NULL where they join none, or plain ones. */
const octet_quantizer *oct_gathered_quantizer(const octet_linear_args *args,
                                              const oct_facts *facts);
octet_status oct_linear_check_chunks(const octet_linear_args *args, octet_error *err);

#endif
