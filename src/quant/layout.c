/* layout.c - the named buffers of a quantizer, each dimension an expression over the axes. */
#include "quant/layout.h"

#include <string.h>

#include "core/fail.h"
#include "core/size.h"
#include "quant/quantizer.h"

_Static_assert(sizeof(octet_dim) == 8, "a dimension is 8 bytes");

#define M(div, align) {OCTET_AXIS_M, 0, 1, div, align}
#define K(div, align) {OCTET_AXIS_K, 0, 1, div, align}
#define LEADING {OCTET_AXIS_LEADING, 0, 1, 1, 1}
#define ONE {OCTET_AXIS_ONE, 0, 1, 1, 1}
#define BLOCK 0 /* in the place of div: a block's length, which the quantizer says */
#define NOTHING {0, 0, 0, 0, 0}

/* A row per buffer: the usages that bring it (a buffer of both usages comes with either), and
 * what it is. Tables stand in flatten order and end with a NULL name. */
enum { ROW = 1, COL = 2, EITHER = 3 };

typedef struct layout_row {
    octet_buffer buffer;
    int usage;
} layout_row;

#define U8(name, part, usage, d0, d1) {{name, part, OCTET_U8, 2, {0}, {d0, d1}}, usage}
#define F32(name, part, usage, d0, d1) {{name, part, OCTET_F32, 2, {0}, {d0, d1}}, usage}
#define VECTOR(name, part, usage, d0) {{name, part, OCTET_F32, 1, {0}, {d0, NOTHING}}, usage}
#define END {{NULL, 0, 0, 0, {0}, {NOTHING, NOTHING}}, 0}

static const layout_row per_tensor[] = {
    U8("_data", OCTET_PART_ROW_DATA, ROW, LEADING, K(1, 1)),
    U8("_transpose", OCTET_PART_COL_DATA, COL, K(1, 1), LEADING),
    VECTOR("_scale_inv", OCTET_PART_SCALE, EITHER, ONE),
    END,
};

static const layout_row float_rows[] = {
    U8("_rowwise_data", OCTET_PART_ROW_DATA, ROW, LEADING, K(1, 1)),
    F32("_rowwise_scale_inv", OCTET_PART_ROW_SCALE, ROW, K(BLOCK, 1), M(1, 4)),
    U8("_columnwise_data", OCTET_PART_COL_DATA, COL, K(1, 1), LEADING),
    F32("_columnwise_scale_inv", OCTET_PART_COL_SCALE, COL, M(BLOCK, 1), K(1, 4)),
    END,
};

static const layout_row float_squares[] = {
    U8("_rowwise_data", OCTET_PART_ROW_DATA, ROW, LEADING, K(1, 1)),
    F32("_rowwise_scale_inv", OCTET_PART_ROW_SCALE, ROW, M(BLOCK, 1), K(BLOCK, 4)),
    U8("_columnwise_data", OCTET_PART_COL_DATA, COL, K(1, 1), LEADING),
    F32("_columnwise_scale_inv", OCTET_PART_COL_SCALE, COL, K(BLOCK, 1), M(BLOCK, 4)),
    END,
};

static const layout_row as_rows[] = {
    U8("_rowwise_data", OCTET_PART_ROW_DATA, ROW, LEADING, K(1, 1)),
    U8("_rowwise_scale_inv", OCTET_PART_ROW_SCALE, ROW, M(1, OCT_SCALE_TILE), K(BLOCK, 4)),
    U8("_columnwise_data", OCTET_PART_COL_DATA, COL, LEADING, K(1, 1)),
    U8("_columnwise_scale_inv", OCTET_PART_COL_SCALE, COL, M(BLOCK, 4), K(1, OCT_SCALE_TILE)),
    END,
};

/* Columnwise codes are packed along the rows, so they are two-dimensional whatever the rank. */
static const layout_row packed[] = {
    U8("_rowwise_data", OCTET_PART_ROW_DATA, ROW, LEADING, K(2, 1)),
    U8("_rowwise_scale_inv", OCTET_PART_ROW_SCALE, ROW, M(1, OCT_SCALE_TILE), K(BLOCK, 4)),
    U8("_columnwise_data", OCTET_PART_COL_DATA, COL, K(1, 1), M(2, 1)),
    U8("_columnwise_scale_inv", OCTET_PART_COL_SCALE, COL, K(1, OCT_SCALE_TILE), M(BLOCK, 4)),
    VECTOR("_amax_rowwise", OCTET_PART_ROW_AMAX, ROW, ONE),
    VECTOR("_amax_columnwise", OCTET_PART_COL_AMAX, COL, ONE),
    END,
};

static const layout_row *rows_of(const octet_quantizer *q) {
    const oct_scheme *scheme = oct_scheme_of(q);
    if (oct_has_float_scales(q)) {
        return q->block_rows > 1 ? float_squares : float_rows;
    }
    return scheme->one_scale ? per_tensor : scheme->packed ? packed : as_rows;
}

/* Whether the quantizer has the buffer: its usage is on, and amaxes are the scheme's. */
static bool has(const octet_quantizer *q, const layout_row *row) {
    bool amax =
        row->buffer.part == OCTET_PART_ROW_AMAX || row->buffer.part == OCTET_PART_COL_AMAX;
    int wanted = (q->rowwise ? ROW : 0) | (q->columnwise ? COL : 0);
    return (row->usage & wanted) && (!amax || oct_scheme_of(q)->amax);
}

/* A block is as long as the quantizer says. The transform keeps all 16 outputs of the last
 * group of rows; amaxes are per row when the tensor is scaled by row, and columnwise per
 * column.
 */
static void adjust(octet_buffer *buffer, const octet_quantizer *q) {
    for (int i = 0; i < buffer->ndim; i++) {
        buffer->dims[i].div = buffer->dims[i].div ? buffer->dims[i].div : q->block_cols;
    }
    if (q->hadamard && buffer->part == OCTET_PART_COL_DATA) {
        buffer->dims[1] = oct_dim_of(OCTET_AXIS_M, 2, 8);
    } else if (q->row_scaled && buffer->part == OCTET_PART_ROW_AMAX) {
        buffer->dims[0] = oct_dim_of(OCTET_AXIS_M, 1, 1);
    } else if (q->row_scaled && buffer->part == OCTET_PART_COL_AMAX) {
        buffer->dims[0] = oct_dim_of(OCTET_AXIS_K, 1, 1);
    }
}

void oct_layout_fill(octet_layout *out, const octet_quantizer *quantizer) {
    memset(out, 0, sizeof *out);
    out->size = sizeof *out;
    for (const layout_row *row = rows_of(quantizer); row->buffer.name; row++) {
        if (has(quantizer, row)) {
            out->buffers[out->count] = row->buffer;
            adjust(&out->buffers[out->count++], quantizer);
        }
    }
}

octet_status octet_layout_make(octet_layout *out, const octet_quantizer *quantizer,
                               octet_error *err) {
    octet_status status = oct_need(out, "out", err);
    status = status ? status : octet_quantizer_check(quantizer, err);
    if (!status && !oct_quantizer_is(quantizer)) {
        status = oct_fail(err, OCTET_INVALID, "a tensor without a quantizer has no layout");
    }
    if (!status) {
        oct_layout_fill(out, quantizer);
    }
    return status;
}

bool oct_dim_number(int64_t *out, const octet_dim *dim, const octet_extents *extents) {
    const int64_t axes[] = {1, extents->m, extents->k, extents->n, extents->m};
    int64_t size;
    if (dim->mul == 1 && dim->div == 1 && dim->align == 1) {
        *out = axes[dim->axis];
        return true;
    }
    return oct_size_mul(&size, axes[dim->axis], dim->mul) &&
           oct_size_round_up(out, oct_size_ceil_div(size, dim->div), dim->align);
}

octet_status octet_dim_eval(int64_t *out, const octet_dim *dim, const octet_extents *extents,
                            octet_error *err) {
    octet_status status = oct_need(out, "out", err);
    status = status ? status : oct_need(dim, "dim", err);
    status = status ? status : oct_need(extents, "extents", err);
    if (status) {
        return status;
    }
    if (dim->axis > OCTET_AXIS_LEADING || !dim->mul || !dim->div || !dim->align ||
        dim->reserved) {
        return oct_fail(
            err, OCTET_INVALID,
            "a dimension has axis %u, reserved %u, mul %u, div %u, align %u; the axis must be "
            "an octet_axis, reserved 0 and the others at least 1",
            dim->axis, dim->reserved, dim->mul, dim->div, dim->align);
    }
    if (extents->m < 0 || extents->k < 0 || extents->n < 0) {
        return oct_fail(err, OCTET_INVALID,
                        "extents are (%lld, %lld, %lld); none may be negative",
                        (long long)extents->m, (long long)extents->k, (long long)extents->n);
    }
    int64_t value;
    if (!oct_dim_number(&value, dim, extents)) {
        return oct_fail(err, OCTET_INVALID, "a dimension of (%lld, %lld, %lld) exceeds 64 bits",
                        (long long)extents->m, (long long)extents->k, (long long)extents->n);
    }
    *out = value;
    return OCTET_OK;
}

const char *octet_part_name(octet_part part) {
    static const char *const names[OCTET_PARTS] = {
        "values",           "rowwise data", "rowwise scale", "columnwise data",
        "columnwise scale", "scale_inv",    "rowwise amax",  "columnwise amax",
    };
    size_t at = (size_t)part;
    return at < OCTET_PARTS ? names[at] : "?";
}
