/* gemm_operand.c - where the elements, scales and factors of an operand lie. */
#include "cuda/gemm.h"
#include "format/scheme.h"

static void plain(oct_gemm_operand *o, const oct_matrix *m) {
    o->data = m->parts[OCTET_PART_VALUES];
    o->format = m->dtype;
    o->pitch = m->stride * (m->dtype == OCTET_F32 ? 4 : 2);
}

static void blocks(oct_gemm_operand *o, const oct_matrix *m, octet_use use) {
    const octet_quantizer *q = &m->quantizer;
    o->scale = m->parts[oct_scale_part(use)];
    o->scales = oct_scales_of(m, use);
    o->scale_format = oct_scheme_of(q)->scale_format;
    o->lines_down = use == OCTET_USE_COL && oct_scheme_of(q)->as_rows;
    o->shift = oct_log2(q->block_cols);
}

/* What an amax is multiplied by, for a code that is multiplied by its block's scale. */
static double unit_of(const octet_quantizer *q) {
    return 1.0 / (6.0 * (q->max256 ? 256.0 : 448.0));
}

oct_gemm_alpha_params oct_gemm_alpha_of(const oct_alpha *alpha) {
    if (!alpha->to) {
        return (oct_gemm_alpha_params){.out = NULL};
    }
    return (oct_gemm_alpha_params){.a = alpha->amaxes[0],
                                   .b = alpha->amaxes[1],
                                   .unit = unit_of(alpha->quantizers[0]) *
                                           unit_of(alpha->quantizers[1]),
                                   .beta = alpha->accumulate ? 1.0f : 0.0f,
                                   .out = alpha->to};
}

/* An element is code times block scale times amax / (6 Emax); the last factor is left out. */
static void amax(oct_gemm_operand *o, const oct_matrix *m, octet_use use) {
    o->factor = m->parts[oct_amax_part(use)];
    o->factor_each = m->quantizer.row_scaled;
    o->unit = unit_of(&m->quantizer);
}

oct_gemm_operand oct_gemm_operand_of(const oct_matrix *m, octet_use use, bool by_rows) {
    const octet_quantizer *q = &m->quantizer;
    bool turned = oct_is_turned(q, use);
    oct_gemm_operand o = {.outer = by_rows ? m->cols : m->rows,
                          .depth = by_rows ? m->rows : m->cols,
                          .unit = 1.0,
                          .across = by_rows != turned};
    if (q->scheme == OCTET_SCHEME_NONE) {
        plain(&o, m);
        return o;
    }
    o.data = m->parts[oct_data_part(use)];
    o.format = q->format;
    o.pitch = oct_line_bytes(m, turned ? OCTET_USE_COL : OCTET_USE_ROW);
    if (oct_scheme_of(q)->one_scale) {
        o.factor = m->parts[OCTET_PART_SCALE];
        return o;
    }
    blocks(&o, m, use);
    if (oct_scheme_of(q)->amax) {
        amax(&o, m, use);
    }
    return o;
}

void oct_gemm_operand_cut(oct_gemm_operand *o, int64_t first, int64_t count) {
    static const uint8_t bits[OCTET_DTYPES] = {
        [OCTET_F32] = 32, [OCTET_BF16] = 16, [OCTET_F16] = 16,
        [OCTET_E4M3] = 8, [OCTET_E5M2] = 8,  [OCTET_E2M1] = 4,
    };
    /* Outer indices are lines of scales, but blocks of a line where it is read across. */
    bool blocks = o->across && !o->lines_down;
    int64_t each = o->scale_format == OCTET_F32 ? 4 : 1;
    if (o->scale) {
        int64_t at = blocks ? oct_scale_at(&o->scales, 0, first >> o->shift)
                            : oct_scale_at(&o->scales, first, 0);
        o->scale = (const char *)o->scale + at * each;
    }
    o->data += o->across ? first * bits[o->format] / 8 : first * o->pitch;
    o->factor = o->factor_each ? o->factor + first : o->factor;
    o->outer = count;
}

oct_gemm_operand oct_gemm_copy_of(const oct_matrix *copy, int64_t cols, bool by_rows) {
    oct_matrix values = *copy;
    values.cols = cols;
    return oct_gemm_operand_of(&values, OCTET_USE_VALUES, by_rows);
}

bool oct_gemm_is_folded(const oct_cuda_gemm_call *call) {
    return !call->native && call->a_copy.quantizer.scheme != OCTET_SCHEME_NONE;
}

/* A folded copy lies along the product; its sizes are the operand's, rounded up. */
static oct_gemm_operand folded_of(const oct_gemm_operand *o, const oct_matrix *copy,
                                  bool by_rows) {
    octet_use use = by_rows ? OCTET_USE_COL : OCTET_USE_ROW;
    oct_gemm_operand made = oct_gemm_operand_of(copy, use, by_rows);
    made.outer = o->outer;
    made.depth = o->depth;
    return made;
}

/* What its bytes decode to or are folded to, instead of an operand: they may not be there. */
static void take_copy(oct_gemm_operand *o, const oct_matrix *copy, int64_t cols, bool by_rows) {
    bool folded = copy->quantizer.scheme != OCTET_SCHEME_NONE;
    oct_gemm_operand made =
        folded ? folded_of(o, copy, by_rows) : oct_gemm_copy_of(copy, cols, by_rows);
    made.factor = o->factor;
    made.factor_each = o->factor_each;
    made.unit = o->unit;
    *o = made;
}

bool oct_gemm_transformed(const oct_cuda_gemm_call *call) {
    return call->gemm == OCTET_WGRAD && call->a.quantizer.hadamard &&
           call->a_use == OCTET_USE_COL && call->b.quantizer.hadamard &&
           call->b_use == OCTET_USE_COL;
}

oct_gemm_params oct_gemm_params_of(const oct_cuda_gemm_call *call) {
    oct_gemm_params p = {
        .a = oct_gemm_operand_of(&call->a, call->a_use, call->gemm == OCTET_WGRAD),
        .b = oct_gemm_operand_of(&call->b, call->b_use, call->gemm != OCTET_FPROP),
        .dst = call->dst.parts[OCTET_PART_VALUES],
        .stride = call->dst.stride,
        .bias = call->bias.at,
        .dtype = call->dst.dtype,
        .bias_dtype = call->bias.dtype,
        .accumulate = call->accumulate,
    };
    if (call->a_made) {
        take_copy(&p.a, &call->a_copy, call->a.cols, call->gemm == OCTET_WGRAD);
    }
    if (call->b_made) {
        take_copy(&p.b, &call->b_copy, call->b.cols, call->gemm != OCTET_FPROP);
    }
    oct_gemm_operand_cut(&p.b, call->b_first, call->dst.cols);
    if (oct_gemm_transformed(call)) {
        p.a.depth = p.b.depth = oct_round_up(p.a.depth, 16);
    }
    return p;
}
