/* kernels_reference.c - the kernels in plain C: what every other one must equal. */
#include "cpu/activation_loop.h"
#include "cpu/isa.h"
#include "format/e2m1.h"
#include "format/e5m2.h"
#include "format/hadamard.h"
#include "format/philox.h"

static uint32_t magnitude(const void *row, int64_t index, octet_dtype dtype) {
    uint32_t bits = oct_f32_bits(oct_plain_load(row, index, dtype)) & OCT_F32_MAGNITUDE;
    return bits > OCT_F32_INF ? 0u : bits;
}

static uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

static uint32_t absmax_range(const oct_tile *x, int64_t row, int64_t begin, int64_t end) {
    const void *at = oct_tile_row(x, row);
    uint32_t most = 0;
    for (int64_t c = begin; c < end; c++) {
        most = larger(most, magnitude(at, c, x->dtype));
    }
    return most;
}

static uint32_t absmax(const oct_tile *x) {
    uint32_t most = 0;
    for (int64_t r = 0; r < x->rows; r++) {
        most = larger(most, absmax_range(x, r, 0, x->cols));
    }
    return most;
}

static void absmax_columns(uint32_t *out, const oct_tile *x) {
    memset(out, 0, (size_t)x->cols * sizeof *out);
    for (int64_t r = 0; r < x->rows; r++) {
        const void *row = oct_tile_row(x, r);
        for (int64_t c = 0; c < x->cols; c++) {
            out[c] = larger(out[c], magnitude(row, c, x->dtype));
        }
    }
}

static void absmax_blocks(uint32_t *out, const oct_tile *x, int64_t block) {
    for (int64_t r = 0; r < x->rows; r++) {
        for (int64_t c = 0; c < x->cols; c += block) {
            *out++ = absmax_range(x, r, c, oct_min(c + block, x->cols));
        }
    }
}

static float factor_at(const oct_factors *by, int64_t row, int64_t col) {
    return by->factors[row * by->row_step + col / by->block];
}

static uint8_t code_of(float value, octet_dtype format) {
    switch (format) {
    case OCTET_E4M3:
        return oct_e4m3_encode(value);
    case OCTET_E5M2:
        return oct_e5m2_encode(value);
    default:
        return oct_e2m1_encode(value);
    }
}

static float value_of(uint8_t code, octet_dtype format) {
    switch (format) {
    case OCTET_E4M3:
        return oct_e4m3_decode(code);
    case OCTET_E5M2:
        return oct_e5m2_decode(code);
    default:
        return oct_e2m1_decode(code);
    }
}

static void encode(const oct_bytes *out, const oct_tile *x, const oct_factors *by,
                   octet_dtype format) {
    for (int64_t r = 0; r < x->rows; r++) {
        const void *row = oct_tile_row(x, r);
        uint8_t *codes = out->at + r * out->stride;
        for (int64_t c = 0; c < x->cols; c++) {
            float value = oct_plain_load(row, c, x->dtype) * factor_at(by, r, c);
            codes[c] = code_of(value, format);
        }
    }
}

static void encode_stochastic(const oct_bytes *out, const oct_tile *x, const oct_factors *by,
                              const oct_bytes *random) {
    for (int64_t r = 0; r < x->rows; r++) {
        const void *row = oct_tile_row(x, r);
        const uint8_t *bytes = random->at + r * random->stride;
        uint8_t *codes = out->at + r * out->stride;
        for (int64_t c = 0; c < x->cols; c++) {
            float value = oct_plain_load(row, c, x->dtype) * factor_at(by, r, c);
            codes[c] = oct_e2m1_encode_stochastic(value, bytes[c]);
        }
    }
}

static void random_bytes(uint8_t *out, const oct_random *which, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t block = which->first + (uint64_t)i * which->step;
        oct_random_block(out + 16 * i, which->seed, block, which->direction, which->stream);
    }
}

static void decode(const oct_tile *out, const oct_bytes *codes, const oct_factors *by,
                   octet_dtype format) {
    for (int64_t r = 0; r < out->rows; r++) {
        void *row = oct_tile_row(out, r);
        const uint8_t *from = codes->at + r * codes->stride;
        for (int64_t c = 0; c < out->cols; c++) {
            float value = value_of(from[c], format) * factor_at(by, r, c);
            oct_plain_store(row, c, value, out->dtype);
        }
    }
}

static void fp8_scales(float *inverses, float *factors, const uint32_t *amaxes, int64_t count,
                       const oct_scale_rule *rule) {
    for (int64_t i = 0; i < count; i++) {
        factors[i] = oct_scale_of(oct_bits_f32(amaxes[i]), rule);
        inverses[i] = 1.0f / factors[i];
    }
}

static void mx_scales(uint8_t *codes, float *factors, const uint32_t *amaxes, int64_t count,
                      octet_dtype format) {
    float unit = oct_mx_unit((uint8_t)format);
    for (int64_t i = 0; i < count; i++) {
        codes[i] = oct_mx_code(oct_bits_f32(amaxes[i]), unit);
        factors[i] = oct_e8m0_reciprocal(codes[i]);
    }
}

static void nv_scales(uint8_t *codes, float *factors, const uint32_t *amaxes, int64_t count,
                      const oct_nv_global *global) {
    for (int64_t i = 0; i < count; i++) {
        codes[i] = oct_nv_code(oct_bits_f32(amaxes[i]), global);
        factors[i] = oct_nv_multiplier(codes[i], global);
    }
}

static void transpose(const oct_bytes *out, const oct_bytes *x, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++) {
            out->at[c * out->stride + r] = x->at[r * x->stride + c];
        }
    }
}

static void pack(uint8_t *out, const uint8_t *x, int64_t count) {
    for (int64_t i = 0; i < count; i += 2) {
        out[i / 2] = (uint8_t)(x[i] | (i + 1 < count ? x[i + 1] << 4 : 0));
    }
}

static void pack_rows(uint8_t *out, const uint8_t *low, const uint8_t *high, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        out[i] = (uint8_t)(low[i] | high[i] << 4);
    }
}

static void unpack(uint8_t *out, const uint8_t *x, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        out[i] = (uint8_t)(x[i / 2] >> (i % 2 * 4) & 0xf);
    }
}

static void sum_columns(float *out, const oct_tile *x) {
    for (int64_t c = 0; c < x->cols; c++) {
        out[c] = 0.0f;
    }
    for (int64_t r = 0; r < x->rows; r++) {
        const void *row = oct_tile_row(x, r);
        for (int64_t c = 0; c < x->cols; c++) {
            out[c] += oct_plain_load(row, c, x->dtype);
        }
    }
}

static void hadamard(float *out, const oct_tile *x, uint32_t signs) {
    for (int64_t c = 0; c < x->cols; c++) {
        float group[OCT_HADAMARD_ROWS];
        for (int64_t r = 0; r < OCT_HADAMARD_ROWS; r++) {
            bool there = r < x->rows;
            group[r] = there ? oct_plain_load(oct_tile_row(x, r), c, x->dtype) : 0.0f;
        }
        oct_hadamard(group, signs);
        for (int64_t r = 0; r < OCT_HADAMARD_ROWS; r++) {
            out[r * x->cols + c] = oct_bf16_decode(oct_bf16_encode(group[r]));
        }
    }
}

static void widen(float *out, const void *x, int64_t count, octet_dtype dtype) {
    for (int64_t i = 0; i < count; i++) {
        out[i] = oct_plain_load(x, i, dtype);
    }
}

static void narrow(void *out, const float *x, int64_t count, octet_dtype dtype) {
    for (int64_t i = 0; i < count; i++) {
        oct_plain_store(out, i, x[i], dtype);
    }
}

static void activate(const oct_act_call *call) {
    oct_activate_loop(call);
}

static void activate_grad(const oct_act_call *call) {
    oct_activate_grad_loop(call);
}

const oct_kernels oct_kernels_reference = {
    .absmax = absmax,
    .absmax_columns = absmax_columns,
    .absmax_blocks = absmax_blocks,
    .encode = encode,
    .encode_stochastic = encode_stochastic,
    .random = random_bytes,
    .decode = decode,
    .fp8_scales = fp8_scales,
    .mx_scales = mx_scales,
    .nv_scales = nv_scales,
    .transpose = transpose,
    .transpose_away = transpose,
    .pack = pack,
    .pack_rows = pack_rows,
    .unpack = unpack,
    .sum_columns = sum_columns,
    .hadamard = hadamard,
    .activate = activate,
    .activate_grad = activate_grad,
    .widen = widen,
    .narrow = narrow,
};

void oct_kernels__reference(oct_table *table) {
    table->kernels = oct_kernels_reference;
}
