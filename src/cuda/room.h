/* room.h - what a product has in its scratch: a pure function of the product at its sizes. */
#ifndef OCT_CUDA_ROOM_H
#define OCT_CUDA_ROOM_H

#include "core/target.h"

/* Sums of a ragged dst come first, then scales of ragged columns, then the rest, each on a
 * boundary. */
typedef struct oct_cuda_room {
    int64_t sum_rows, sum_cols;     /* fp32, so many rows of dst at a time; no rows: none */
    int64_t scale_rows, scale_cols; /* fp32, a row for each block along the product; likewise */
    int64_t scales_at, rest_at;     /* bytes from the start; the rest lt_memory.c lays out */
} oct_cuda_room;

/* False: more than 64 bits count. */
bool oct_cuda_room_of(oct_cuda_room *out, const oct_target_product *product);
/* Bytes of the rest. */
int64_t oct_cuda_rest_bytes(const octet_device *device, const oct_target_product *product);

#endif
