/* lt_matmul.c - a call of the product as a matmul for cuBLASLt: types, layouts, scales. */
#include <string.h>

#include "cuda/lt.h"
#include "cuda/target.h"

static const uint8_t types[OCTET_DTYPES] = {
    [OCTET_NONE] = OCT_LT_NONE,      [OCTET_F32] = OCT_LT_R_32F,
    [OCTET_BF16] = OCT_LT_R_16BF,    [OCTET_F16] = OCT_LT_R_16F,
    [OCTET_U8] = OCT_LT_NONE,        [OCTET_I64] = OCT_LT_NONE,
    [OCTET_E4M3] = OCT_LT_R_8F_E4M3, [OCTET_E5M2] = OCT_LT_R_8F_E5M2,
    [OCTET_E2M1] = OCT_LT_R_4F_E2M1, [OCTET_E8M0] = OCT_LT_NONE,
};

static int64_t max_of(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static bool is_fp8(uint8_t format) {
    return format == OCTET_E4M3 || format == OCTET_E5M2;
}

static bool is_plain(const oct_gemm_operand *o) {
    return o->format == OCTET_F32 || o->format == OCTET_BF16 || o->format == OCTET_F16;
}

static int64_t bits_of(const oct_gemm_operand *o) {
    return o->format == OCTET_F32 ? 32 : is_plain(o) ? 16 : is_fp8(o->format) ? 8 : 4;
}

/* ---- operands -------------------------------------------------------------------------- */

/* The copy that an emulated product decodes the operand into, or its own values. */
static oct_gemm_operand decoded(const oct_matrix *m, const oct_matrix *copy, octet_use use,
                                bool by_rows) {
    bool copied = copy->parts[OCTET_PART_VALUES] != NULL;
    return copied ? oct_gemm_copy_of(copy, m->cols, by_rows)
                  : oct_gemm_operand_of(m, use, by_rows);
}

/* The copies that ragged bytes and their scales are padded into, or those themselves. */
static oct_gemm_operand padded(const oct_gemm_operand *o, const oct_matrix *copy,
                               const oct_matrix *scales) {
    oct_gemm_operand out = *o;
    if (scales->parts[OCTET_PART_VALUES]) {
        out.scale = scales->parts[OCTET_PART_VALUES];
        out.scales.block_step = scales->cols;
    }
    if (copy->parts[OCTET_PART_VALUES]) {
        out.data = copy->parts[OCTET_PART_VALUES];
        out.pitch = copy->cols;
        out.outer = o->across ? copy->cols : copy->rows;
        out.depth = o->across ? copy->rows : copy->cols;
    }
    return out;
}

/* A folded operand with what its sizes are rounded up by, which is 0: along the product, and of
 * b in dst's columns, too. */
static oct_gemm_operand rounded(const oct_gemm_operand *o, bool columns) {
    oct_gemm_operand out = *o;
    out.depth = o->pitch;
    out.outer = columns ? o->scales.block_step : o->outer;
    return out;
}

/* The scale mode of an operand's own bytes; NONE where the library has none. */
static uint8_t scale_mode(const oct_gemm_operand *o) {
    if (!o->scale) {
        return is_fp8(o->format) ? OCT_LT_SCALE_SCALAR_32F : OCT_LT_NONE;
    }
    switch (o->scale_format) {
    case OCTET_F32:
        return o->scales.share ? OCT_LT_SCALE_BLK128_32F : OCT_LT_SCALE_VEC128_32F;
    case OCTET_E8M0:
        return OCT_LT_SCALE_VEC32_UE8M0;
    default:
        return OCT_LT_SCALE_VEC16_UE4M3;
    }
}

static bool is_blocks(uint8_t mode) {
    return mode == OCT_LT_SCALE_VEC128_32F || mode == OCT_LT_SCALE_BLK128_32F;
}

/* What the library wants of quantized bytes: rows of whole 16 bytes, on a boundary of 16. */
static bool bytes_fit(const oct_gemm_operand *o) {
    bool scale = !o->scale || oct_lt_align(o->scale) >= 4;
    return o->pitch % OCT_LT_ROW_BYTES == 0 && oct_lt_align(o->data) >= 4 && scale;
}

/* Scales of 128-blocks: one row of fp32 for each block along the product with a place for each
 * outer index, or for squares one row for each 128 of them, four entries at a time. That is how
 * they are stored, as long as outer indices come in eights. Rows behind those are done apart.
 */
static bool blocks_fit(const oct_gemm_params *p, const oct_lt_target *target) {
    bool rows = p->b.scales.share || p->b.scales.block_step == p->b.outer;
    return oct_arch_multiplies(target->arch, OCTET_FP8_BLOCK) &&
           target->version >= OCT_LT_BLOCKS && p->b.outer % OCT_LT_ROWS == 0 && rows &&
           !(p->a.scales.share && p->b.scales.share);
}

/* Whether the library multiplies these bytes as they are. */
static bool native_fits(const oct_gemm_params *p, const oct_lt_target *target) {
    uint8_t a = scale_mode(&p->a), b = scale_mode(&p->b);
    bool along = !p->a.across && !p->b.across;
    bool swizzled = p->a.scales.tiles && p->b.scales.tiles;
    if (!bytes_fit(&p->a) || !bytes_fit(&p->b) || p->a.factor_each || p->b.factor_each) {
        return false;
    }
    if (is_blocks(a) && is_blocks(b)) {
        return along && blocks_fit(p, target);
    }
    if (a != b) {
        return false;
    }
    switch (a) {
    case OCT_LT_SCALE_SCALAR_32F:
        return along || oct_arch_reads_across(target->arch);
    case OCT_LT_SCALE_VEC32_UE8M0:
        return swizzled && oct_arch_multiplies(target->arch, OCTET_MXFP8);
    default:
        return swizzled && along && oct_arch_multiplies(target->arch, OCTET_NVFP4);
    }
}

static void set_operands(oct_lt_product *out, const oct_gemm_params *p) {
    const oct_gemm_operand *a = &p->b, *b = &p->a; /* the library's */
    oct_lt_matmul *to = &out->matmul;
    to->m = a->outer;
    to->k = a->depth;
    to->a_op = a->across ? OCT_LT_OP_N : OCT_LT_OP_T;
    to->b_op = b->across ? OCT_LT_OP_T : OCT_LT_OP_N;
    /* One row of a matrix may have any stride; the library asks for a row's length at least. */
    to->lda = max_of(a->pitch * 8 / bits_of(a), a->across ? to->m : to->k);
    to->ldb = max_of(b->pitch * 8 / bits_of(b), b->across ? b->outer : to->k);
    to->a_type = types[a->format];
    to->b_type = types[b->format];
    to->a_align = oct_lt_align(a->data);
    to->b_align = oct_lt_align(b->data);
    out->memory.a = a->data;
    out->memory.b = b->data;
    out->rows = b->outer;
    out->a_bytes = b->across ? bits_of(b) / 8 : b->pitch;
}

static void set_scales(oct_lt_product *out, const oct_gemm_params *p) {
    bool one = out->matmul.a_scale == OCT_LT_SCALE_SCALAR_32F;
    out->memory.a_scale = one ? (const void *)p->b.factor : p->b.scale;
    out->memory.b_scale = one ? (const void *)p->a.factor : p->a.scale;
}

/* ---- dst and bias ---------------------------------------------------------------------- */

/* Whether the library writes dst's type from operands of this one. */
static bool writes(uint8_t dtype, const oct_gemm_params *p) {
    bool quantized = !is_plain(&p->a);
    return quantized || dtype == OCTET_F32 || dtype == p->a.format;
}

/* The bias types that an epilogue adds: dst's, but for fp8 and fp4 bf16 where dst is f32. */
static bool bias_fits(const oct_cuda_gemm_call *call, bool quantized) {
    uint8_t wanted = quantized && call->dst.dtype == OCTET_F32 ? OCTET_BF16 : call->dst.dtype;
    return call->bias.dtype == wanted;
}

static void set_bias(oct_lt_product *out, const oct_cuda_gemm_call *call) {
    bool fused = call->bias.at && !out->sums && !out->bias_after;
    out->matmul.bias_type = fused ? types[call->bias.dtype] : OCT_LT_NONE;
    out->matmul.bias_align = fused ? oct_lt_align(call->bias.at) : 0;
    out->memory.bias = fused ? call->bias.at : NULL;
}

/* dst is rounded once: f32 may be added to, narrower results are made of sums. */
bool oct_lt_leave_bias(oct_lt_product *product, const oct_cuda_gemm_call *call) {
    product->bias_after = call->dst.dtype == OCTET_F32;
    product->sums = !product->bias_after;
    product->matmul.device_alpha = product->matmul.device_alpha && product->bias_after;
    set_bias(product, call);
    return oct_lt_set_memory(product, call);
}

bool oct_lt_describe(oct_lt_product *out, const oct_cuda_gemm_call *call,
                     const oct_lt_target *target) {
    oct_gemm_params own = oct_gemm_params_of(call), p = own;
    bool folded = oct_gemm_is_folded(call), bytes = call->native || folded;
    bool quantized = bytes && !(is_plain(&own.a) && is_plain(&own.b));
    if (folded) {
        p.a = rounded(&own.a, false);
        p.b = rounded(&own.b, true);
    } else if (!call->native) {
        p.a = decoded(&call->a, &call->a_copy, call->a_use, call->gemm == OCTET_WGRAD);
        p.b = decoded(&call->b, &call->b_copy, call->b_use, call->gemm != OCTET_FPROP);
        oct_gemm_operand_cut(&p.b, call->b_first, call->dst.cols);
    } else {
        p.a = padded(&own.a, &call->a_copy, &(oct_matrix){0});
        p.b = padded(&own.b, &call->b_copy, &call->b_scales);
    }
    bool same = p.a.format == p.b.format || (is_fp8(p.a.format) && is_fp8(p.b.format));
    bool fits = quantized ? native_fits(&p, target) : is_plain(&p.a) && is_plain(&p.b);
    if (p.a.depth != p.b.depth || (!bytes && p.a.depth != own.a.depth) || !same || !fits) {
        return false;
    }
    memset(out, 0, sizeof *out);
    out->workspace = oct_arch_wants_workspace(target->arch);
    out->matmul.a_scale = quantized ? scale_mode(&p.b) : OCT_LT_NONE;
    out->matmul.b_scale = quantized ? scale_mode(&p.a) : OCT_LT_NONE;
    bool one_scale = out->matmul.a_scale == OCT_LT_SCALE_SCALAR_32F;
    out->matmul.fast = one_scale && !call->split;
    out->sums = own.a.factor_each || own.b.factor_each || !writes(call->dst.dtype, &p) ||
                call->dst_copy.parts[OCTET_PART_VALUES] || (folded && p.b.outer != own.b.outer);
    out->matmul.device_alpha = !out->sums && !one_scale && (own.a.factor || own.b.factor);
    out->matmul.d_type = types[call->dst.dtype];
    out->matmul.accumulate = call->accumulate;
    set_operands(out, &p);
    set_scales(out, &p);
    if (call->bias.at && !out->sums && !bias_fits(call, quantized)) {
        return oct_lt_leave_bias(out, call);
    }
    set_bias(out, call);
    return oct_lt_set_memory(out, call);
}
