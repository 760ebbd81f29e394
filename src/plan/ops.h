/* ops.h - what planners do with tensors: quantize, transpose, gather, multiply. */
#ifndef OCT_PLAN_OPS_H
#define OCT_PLAN_OPS_H

#include "plan/build.h"

/* How to quantize: into which directions and places, with which live state. */
typedef struct oct_quantizing {
    octet_plan_form form;
    octet_quantizer quantizer; /* its usages say which directions are made */
    octet_place row_place, col_place;
    int slot; /* delayed scaling's slot; its scale is read and its amax measured */
    uint8_t restored_scale; /* a scale buffer to read instead of the slot's; then no amax is
                               measured */
    bool reduce;            /* amaxes are reduced over the ranks before they give a scale */
    bool saves_shared; /* what columnwise shards have in common goes into the saved arena */
    uint8_t sums;      /* a tensor for column sums; or OCTET_ABSENT */
} oct_quantizing;

/* Into the workspace, with a slot, unreduced. */
oct_quantizing oct_quantizing_of(octet_plan_form form, const octet_quantizer *quantizer,
                                 bool row, bool col);

/* The argument described by a proto, as a matrix of these rows and columns. */
uint8_t oct_argument(oct_builder *b, octet_plan_name name, const octet_proto *proto,
                     octet_dim rows, octet_dim cols);

uint8_t oct_quantize(oct_builder *b, uint8_t source, const oct_quantizing *how);
/* The tensor as plain values in a dtype, in `place` if it has to be made. */
uint8_t oct_values(oct_builder *b, uint8_t tensor, uint8_t dtype, octet_place place);
/* The other direction of bytes that are each other's transpose. */
uint8_t oct_transpose(oct_builder *b, uint8_t tensor, octet_use have);

/* Whether this device's GEMM reads rowwise bytes of q where columnwise ones are called for. */
bool oct_reads_across(const oct_builder *b, const octet_quantizer *q);
/* Block scales are best written in the order that the device's products read. */
octet_quantizer oct_for_gemm(const oct_builder *b, octet_quantizer q);

/* How a tensor serves one direction of a GEMM. */
typedef enum oct_way {
    OCT_WAY_READ,        /* it has the bytes */
    OCT_WAY_READ_ACROSS, /* it has their transpose, and the device reads that */
    OCT_WAY_TRANSPOSE,   /* it has their transpose */
    OCT_WAY_QUANTIZE     /* from its values */
} oct_way;
oct_way oct_way_to(const oct_builder *b, uint8_t tensor, octet_use want, uint8_t hadamard);

/* The bytes of a tensor for one direction of a GEMM, made from what there is. A plain tensor is
 * quantized by `how` if it has a quantizer; `hadamard` is the transform columnwise bytes must
 * carry. */
oct_operand oct_direction(oct_builder *b, uint8_t tensor, octet_use want,
                          const oct_quantizing *how, uint8_t hadamard);

void oct_collective(oct_builder *b, octet_collective kind, uint8_t from, uint8_t to);
/* Every rank's rows. The shards must be where a collective can read them. */
uint8_t oct_gather_values(oct_builder *b, uint8_t tensor, octet_place place);
uint8_t oct_gather_bytes(oct_builder *b, uint8_t tensor, octet_use use, octet_place place);
/* A gather that has begun, so that several can share a phase: first all collectives, then what
 * has to be rearranged. */
typedef struct oct_gathering {
    uint8_t whole;   /* every rank's rows; it is there when the gather is finished */
    uint8_t stacked; /* OCTET_ABSENT: nothing is left to rearrange */
} oct_gathering;
oct_gathering oct_gather_start(oct_builder *b, uint8_t tensor, octet_use use,
                               octet_place place);
uint8_t oct_gather_finish(oct_builder *b, oct_gathering gathering);
/* The rows of all ranks together, of one rank's. */
octet_dim oct_all_rows(const oct_builder *b, octet_dim rows);
/* How a part of the whole comes from the parts of the shards. */
typedef enum oct_part_gathering {
    OCT_PART_SAME,         /* all ranks have the same. Example: the one scale they agreed on */
    OCT_PART_CONCATENATED, /* rank after rank. Example: rowwise bytes, m rows each */
    OCT_PART_REARRANGED    /* Example: columnwise bytes, (k, m): ranks lie side by side */
} oct_part_gathering;
oct_part_gathering oct_part_gathering_of(const octet_buffer *entry);

/* A tensor that ranks gather in the plan's chunks: each is a tensor of its own, with a chunk of
 * every rank's rows, rank after rank. */
typedef struct oct_pieces {
    int count;       /* 0: nothing is gathered so */
    uint8_t local;   /* this rank's rows */
    uint8_t stacked; /* the scales of all rows, as ranks sent them; or OCTET_ABSENT */
    uint8_t use;     /* octet_use: ROW, or VALUES of a plain tensor */
    uint8_t at[OCTET_MOST_CHUNKS];
} oct_pieces;
/* Begins to gather all of them. The shard must be where a collective can read it. */
oct_pieces oct_gather_pieces(oct_builder *b, uint8_t tensor, octet_use use);
/* A piece that has arrived, as a product reads it. */
oct_operand oct_piece(oct_builder *b, const oct_pieces *pieces, int chunk);
/* All of them as one tensor, in `place`, with the ranks' rows one after the other. */
uint8_t oct_join_pieces(oct_builder *b, const oct_pieces *pieces, octet_place place);
/* Puts a piece where it belongs. */
void oct_join(oct_builder *b, uint8_t piece, uint8_t whole, int chunk);

/* Whether ranks must agree on a scale before their bytes can be joined. */
bool oct_shares_scale(const octet_quantizer *q);

/* dst = a b. bias is a buffer or OCTET_ABSENT. */
typedef struct oct_product {
    octet_gemm gemm;
    oct_operand a, b;
    uint8_t dst, bias;
    bool accumulate, split;
} oct_product;
void oct_gemm(oct_builder *b, const oct_product *product);
/* The first of a plan's chunks of a product; gives its step. And a later one: the same step on
 * other columns, into another dst. */
int oct_gemm_chunks(oct_builder *b, const oct_product *product);
void oct_gemm_next(oct_builder *b, int first, uint8_t dst, int chunk);
/* The same of pieces of a: the first, and a later one, with another a and dst. */
int oct_gemm_pieces(oct_builder *b, const oct_product *product);
void oct_gemm_next_piece(oct_builder *b, int first, oct_operand a, uint8_t dst, int chunk);

/* The buffer that holds a plain tensor. */
static inline uint8_t oct_buffer_of(oct_builder *b, uint8_t tensor) {
    return oct_tensor_at(b, tensor)->buffers[OCTET_PART_VALUES];
}

#endif
