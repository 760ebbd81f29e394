/* request.h - an op's request: its text and sizes, and the plan made from them. */
#ifndef OCT_TORCH_REQUEST_H
#define OCT_TORCH_REQUEST_H

#include "octet.h"
#include "octet/run.h"

/* An op's request: its kind, its text (without sizes) and its sizes. Linear's sizes are the
 * input's axes, then N; those of a tensor are its axes. */
typedef struct oct_request {
    octet_plan_kind kind;
    const char *text;
    int64_t sizes[OCTET_MAX_RANK + 1];
    int rank;            /* number of sizes */
    uint32_t threads;    /* CPU workers to provide workspace for */
    octet_device device; /* used if a tensor's text names no device */
} oct_request;

/* The texts:
 *   LINEAR...              the words of a problem but for m, k and n: "in=bf16 recipe=mxfp8"
 *   QUANTIZE, DEQUANTIZE   dtype, quantizer and, where it is not the CPU, the device:
 *                          "bf16 mxfp8:e4m3", "bf16 mxfp8:e4m3 device=cuda:0/90"
 * *plan needs no initializer. */
octet_status oct_request_plan(octet_plan *plan, const oct_request *request, octet_error *err);

/* All plans of the request's text; a tensor's text has one. */
octet_status oct_request_chain(octet_chain *out, const oct_request *request, octet_error *err);
/* The index of the request's plan in the chain, and the error if the chain is too short. */
int oct_chain_at(octet_plan_kind kind);
octet_status oct_chain_lacks(const oct_request *request, octet_error *err);
/* The sizes of the axes, if the request's sizes are valid. */
octet_status oct_request_extents(octet_extents *out, const oct_request *request,
                                 octet_error *err);

/* A port's shape as the caller sees it: OCTET_AXIS_LEADING becomes the leading axes, the first
 * of them times or over the ranks that share it. */
typedef struct oct_shape {
    int64_t sizes[OCTET_MAX_RANK];
    int rank;
} oct_shape;

octet_status oct_port_shape(oct_shape *out, const octet_plan *plan, const octet_port *port,
                            const oct_request *request, octet_error *err);

/* The tensor that an argument or output is part of; -1 where there is none. */
int oct_port_tensor(const octet_plan *plan, octet_place place, int port);

#endif
