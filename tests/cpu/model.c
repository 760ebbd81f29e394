/* model.c - quantization by its definition. */
#include "model.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the transform --------------------------------------------------------------------- */

static const int minus[16] = {0, 0, 0, 1, 0, 1, 1, 1, 1, 1, 1, 0, 1, 0, 1, 1};

static void stage(float x[16], int distance) {
    float before[16];
    memcpy(before, x, sizeof before);
    for (int i = 0; i < 16; i++) {
        int partner = i ^ distance;
        x[i] = i < partner ? before[i] + before[partner] : before[partner] - before[i];
    }
}

static void stages(float x[16]) {
    stage(x, 1);
    stage(x, 2);
    stage(x, 4);
    stage(x, 8);
}

void model_hadamard(float out[16], const float x[16], bool is_signed) {
    for (int r = 0; r < 16; r++) {
        float quarter = x[r] * 0.25f;
        out[r] = is_signed && minus[r] ? -quarter : quarter;
    }
    stages(out);
}

void model_hadamard_inverse(float out[16], const float y[16], bool is_signed) {
    for (int c = 0; c < 16; c++) {
        out[c] = y[c] * 0.25f;
    }
    stages(out);
    for (int r = 0; r < 16; r++) {
        out[r] = is_signed && minus[r] ? -out[r] : out[r];
    }
}

/* Two codes a byte, columns turned. */
static bool is_fp4(const octet_quantizer *q) {
    return q->scheme == OCTET_NVFP4 || q->scheme == OCTET_MXFP4;
}

/* ---- where things lie ------------------------------------------------------------------ */

static int64_t up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

static int64_t parts_of(int64_t n, int64_t by) {
    return (n + by - 1) / by;
}

static size_t swizzled_index(int64_t i, int64_t j, int64_t tiles) {
    return (size_t)(((i / 128) * tiles + j / 4) * 512 + (i % 32) * 16 + ((i % 128) / 32) * 4 +
                    j % 4);
}

size_t model_scale_index(const oct_matrix *m, octet_use use, int64_t line, int64_t block) {
    const octet_quantizer *q = &m->quantizer;
    bool row = use == OCTET_USE_ROW;
    int64_t M = m->rows, K = m->cols, length = row ? K : M, lines = row ? M : K;
    if (q->scheme == OCTET_FP8_BLOCK && q->block_rows == 128) {
        return (size_t)(line / 128 * up(parts_of(length, 128), 4) + block);
    }
    if (q->scheme == OCTET_FP8_BLOCK) {
        return (size_t)(block * up(lines, 4) + line);
    }
    if (q->swizzled) {
        int64_t per_tile = q->scheme == OCTET_NVFP4 ? 64 : 128;
        return swizzled_index(line, block, parts_of(length, per_tile));
    }
    if (q->scheme == OCTET_MXFP8 && !row) {
        return (size_t)(block * up(K, 128) + line);
    }
    int64_t size = q->scheme == OCTET_NVFP4 ? 16 : 32;
    return (size_t)(line * up(parts_of(length, size), 4) + block);
}

size_t model_code_index(const oct_matrix *m, octet_use use, int64_t line, int64_t k) {
    const octet_quantizer *q = &m->quantizer;
    if (is_fp4(q)) {
        int64_t length = use == OCTET_USE_ROW ? m->cols : m->rows;
        bool padded = use == OCTET_USE_COL && q->hadamard;
        return (size_t)(line * (padded ? up(length, 16) / 2 : parts_of(length, 2)) + k / 2);
    }
    if (use == OCTET_USE_ROW) {
        return (size_t)(line * m->cols + k);
    }
    return (size_t)(q->scheme == OCTET_MXFP8 ? k * m->cols + line : line * m->rows + k);
}

static octet_part part_of(octet_use use, octet_part row_part, octet_part col_part) {
    return use == OCTET_USE_ROW ? row_part : col_part;
}

uint32_t model_code(const oct_matrix *m, octet_use use, int64_t line, int64_t k) {
    const uint8_t *data = m->parts[part_of(use, OCTET_PART_ROW_DATA, OCTET_PART_COL_DATA)];
    uint8_t byte = data[model_code_index(m, use, line, k)];
    return is_fp4(&m->quantizer) ? (k % 2 ? byte >> 4 : byte & 15) : byte;
}

static void put_code(const oct_matrix *m, octet_use use, int64_t at[2], uint32_t code) {
    uint8_t *data = m->parts[part_of(use, OCTET_PART_ROW_DATA, OCTET_PART_COL_DATA)];
    uint8_t *byte = &data[model_code_index(m, use, at[0], at[1])];
    bool high = is_fp4(&m->quantizer) && at[1] % 2;
    *byte = (uint8_t)(high ? *byte | code << 4 : code);
}

/* ---- a direction: lines of elements, blocks along them ---------------------------------- */

typedef struct direction {
    const oct_matrix *m;
    octet_use use;
    octet_dtype dtype;     /* of the source */
    int64_t lines, length; /* length: all 16 of the last group where there is a transform */
    int64_t block, blocks; /* elements of a block; blocks of a line */
    float *x;              /* lines x length */
    const model_live *live;
} direction;

static void transform(direction *d) {
    bool is_signed = d->m->quantizer.hadamard == OCTET_HADAMARD_SIGNED;
    for (int64_t at = 0; at < d->lines * d->length; at += 16) {
        float y[16];
        model_hadamard(y, d->x + at, is_signed);
        for (int i = 0; i < 16; i++) {
            d->x[at + i] = octet_decode(OCTET_BF16, octet_encode(OCTET_BF16, y[i]));
        }
    }
}

static direction direction_of(const oct_matrix *m, octet_use use, const cpu_tensor *x,
                              const model_live *live) {
    bool row = use == OCTET_USE_ROW, transforms = !row && m->quantizer.hadamard;
    int64_t length = row ? m->cols : m->rows;
    direction d = {.m = m, .use = use, .dtype = (octet_dtype)x->m.dtype, .live = live};
    d.lines = row ? m->rows : m->cols;
    d.length = transforms ? up(length, 16) : length;
    d.block = m->quantizer.block_cols ? m->quantizer.block_cols : d.length + 1;
    d.blocks = parts_of(d.length, d.block);
    d.x = calloc((size_t)(d.lines * d.length) + 1, sizeof *d.x);
    for (int64_t i = 0; i < d.lines; i++) {
        for (int64_t k = 0; k < length; k++) {
            d.x[i * d.length + k] = row ? cpu_tensor_get(x, i, k) : cpu_tensor_get(x, k, i);
        }
    }
    if (transforms) {
        transform(&d);
    }
    return d;
}

static float larger(float most, float x) {
    float size = fabsf(x);
    return size > most ? size : most; /* false for NaN */
}

static float amax_of_line(const direction *d, int64_t line, int64_t begin, int64_t end) {
    float most = 0;
    for (int64_t k = begin; k < end && k < d->length; k++) {
        most = larger(most, d->x[line * d->length + k]);
    }
    return most;
}

/* Of the block that (line, block) lies in: part of a line, or of as many lines as it is long.
 */
static float block_amax(const direction *d, int64_t line, int64_t block) {
    float most = 0;
    int64_t begin = block * d->block;
    if (d->m->quantizer.block_rows <= 1) {
        return amax_of_line(d, line, begin, begin + d->block);
    }
    int64_t first = line / d->block * d->block;
    for (int64_t i = first; i < first + d->block && i < d->lines; i++) {
        most = larger(most, amax_of_line(d, i, begin, begin + d->block));
    }
    return most;
}

/* ---- scales ---------------------------------------------------------------------------- */

static float bits(uint32_t encoding) {
    float value;
    memcpy(&value, &encoding, sizeof value);
    return value;
}

static float fp8_scale(float amax, const octet_quantizer *q, float vinf) {
    float maxq = q->format == OCTET_E4M3 ? 448.0f : 57344.0f;
    if (amax < q->epsilon) {
        amax = q->epsilon;
    }
    if (amax == 0 || isinf(amax)) {
        return 1;
    }
    float s = maxq / amax;
    if (isinf(s)) {
        s = vinf;
    }
    if (q->pow2) {
        int exponent;
        (void)frexpf(s, &exponent);
        s = ldexpf(1, exponent - 1);
    }
    return s;
}

static float largest_finite(octet_dtype dtype) {
    return dtype == OCTET_F16 ? 65504.0f : dtype == OCTET_BF16 ? 0x1.fep127f : FLT_MAX;
}

/* What a direction's scale is as stored, and what its elements are multiplied by. */
typedef struct model_scale {
    float stored; /* fp8-block: scale_inv; the others: the code */
    float factor;
} model_scale;

static model_scale mx_scale(float amax, uint8_t format) {
    float scaled = amax * (1.0f / (format == OCTET_E4M3 ? 448.0f : 57344.0f));
    uint32_t code = octet_encode(OCTET_E8M0, scaled);
    return (model_scale){(float)code, ldexpf(1, 127 - (int)code)};
}

/* Rounded up as above, but a division: the largest code is 6. */
static model_scale mx4_scale(float amax) {
    uint32_t code = octet_encode(OCTET_E8M0, amax / 6.0f);
    return (model_scale){(float)code, ldexpf(1, 127 - (int)code)};
}

static float six_emax(const octet_quantizer *q) {
    return q->four_over_six && q->max256 ? 1536.0f : 2688.0f;
}

static float global_encode(float G, const octet_quantizer *q) {
    float s = six_emax(q) / G;
    s = isinf(s) ? FLT_MAX : s;
    return G == 0 || s == 0 ? 1 : s;
}

static model_scale nv_scale_of(uint32_t code, float encode) {
    float product = octet_decode(OCTET_E4M3, code) * (1.0f / encode);
    float e = 1.0f / product;
    return (model_scale){(float)code, isinf(e) ? FLT_MAX : e};
}

static model_scale nv_scale(float amax, float encode) {
    float mult = encode * bits(0x3e2aaaab);
    float value = amax * mult;
    return nv_scale_of(octet_encode(OCTET_E4M3, isinf(value) ? FLT_MAX : value), encode);
}

static float line_error(const direction *d, const float x[16], model_scale s, float G) {
    float sum = 0;
    float b = octet_decode(OCTET_E4M3, (uint32_t)s.stored);
    for (int i = 0; i < 16; i++) {
        float c = octet_decode(OCTET_E2M1, octet_encode(OCTET_E2M1, x[i] * s.factor));
        float cb = c * b, cbg = cb * G, v = cbg / six_emax(&d->m->quantizer);
        float e = v - x[i];
        sum = sum + (d->m->quantizer.four_over_six == OCTET_4OVER6_MSE ? e * e : fabsf(e));
    }
    return sum;
}

static float candidate_error(const direction *d, int64_t line, int64_t block, model_scale s,
                             float G) {
    bool square = d->m->quantizer.block_rows > 1;
    float e[16] = {0};
    for (int64_t i = 0; i < (square ? 16 : 1); i++) {
        float x[16] = {0};
        int64_t at = (square ? line / 16 * 16 : line) + i;
        for (int64_t k = 0; k < 16 && at < d->lines && block * 16 + k < d->length; k++) {
            x[k] = d->x[at * d->length + block * 16 + k];
        }
        e[i] = line_error(d, x, s, G);
    }
    return ((((e[0] + e[8]) + (e[4] + e[12])) + ((e[2] + e[10]) + (e[6] + e[14]))) +
            (((e[1] + e[9]) + (e[5] + e[13])) + ((e[3] + e[11]) + (e[7] + e[15]))));
}

static model_scale four_over_six_scale(const direction *d, int64_t line, int64_t block,
                                       float G) {
    float encode = global_encode(G, &d->m->quantizer);
    float sixth = block_amax(d, line, block) / 6.0f;
    float base = sixth * encode, more = base * 1.5f;
    model_scale six = nv_scale_of(octet_encode(OCTET_E4M3, base > 448 ? 448 : base), encode);
    model_scale four = nv_scale_of(octet_encode(OCTET_E4M3, more > 448 ? 448 : more), encode);
    float error_four = candidate_error(d, line, block, four, G);
    float error_six = candidate_error(d, line, block, six, G);
    return error_four < error_six ? four : six;
}

static float global_amax(const oct_matrix *m, octet_use use, int64_t line) {
    const float *amax = m->parts[part_of(use, OCTET_PART_ROW_AMAX, OCTET_PART_COL_AMAX)];
    return amax[m->quantizer.row_scaled ? line : 0];
}

static model_scale scale_at(const direction *d, int64_t line, int64_t block) {
    const octet_quantizer *q = &d->m->quantizer;
    float s = 0;
    switch (q->scheme) {
    case OCTET_FP8_TENSOR:
        s = fp8_scale(d->live->amax, q, FLT_MAX);
        return (model_scale){1.0f / s, s};
    case OCTET_FP8_DELAYED:
        return (model_scale){1.0f / d->live->scale, d->live->scale};
    case OCTET_FP8_BLOCK:
        s = fp8_scale(block_amax(d, line, block), q, largest_finite(d->dtype));
        return (model_scale){1.0f / s, s};
    case OCTET_MXFP8:
        return mx_scale(block_amax(d, line, block), q->format);
    case OCTET_MXFP4:
        return mx4_scale(block_amax(d, line, block));
    default:
        break;
    }
    float G = global_amax(d->m, d->use, line);
    return q->four_over_six ? four_over_six_scale(d, line, block, G)
                            : nv_scale(block_amax(d, line, block), global_encode(G, q));
}

/* ---- storing --------------------------------------------------------------------------- */

static void store_scale(const direction *d, int64_t line, int64_t block, float stored) {
    const oct_matrix *m = d->m;
    void *scales = m->parts[part_of(d->use, OCTET_PART_ROW_SCALE, OCTET_PART_COL_SCALE)];
    if (!scales) {
        return;
    }
    size_t at = model_scale_index(m, d->use, line, block);
    if (m->quantizer.scheme == OCTET_FP8_BLOCK) {
        ((float *)scales)[at] = stored;
    } else {
        ((uint8_t *)scales)[at] = (uint8_t)stored;
    }
}

static uint32_t rounded(const direction *d, int64_t line, int64_t k, float value) {
    if (!d->m->quantizer.stochastic) {
        return octet_encode((octet_dtype)d->m->quantizer.format, value);
    }
    uint8_t random[16];
    uint64_t block = (uint64_t)(line * parts_of(d->length, 16) + k / 16);
    octet_random_block(random, d->live->seed, block, d->use == OCTET_USE_COL, d->live->stream);
    return octet_encode_stochastic(value, random[k % 16]);
}

static void quantize_line(const direction *d, int64_t line, const model_scale *scales) {
    for (int64_t k = 0; k < d->length; k++) {
        model_scale s = scales[k / d->block];
        float value = d->x[line * d->length + k] * s.factor;
        put_code(d->m, d->use, (int64_t[]){line, k}, rounded(d, line, k, value));
    }
    for (int64_t b = 0; b < d->blocks; b++) {
        store_scale(d, line, b, scales[b].stored);
    }
}

static void quantize_direction(const direction *d) {
    bool square = d->m->quantizer.block_rows > 1;
    model_scale *scales = calloc((size_t)d->blocks + 1, sizeof *scales);
    for (int64_t i = 0; i < d->lines; i++) {
        for (int64_t b = 0; b < d->blocks && (!square || i % d->block == 0); b++) {
            scales[b] = scale_at(d, i, b);
        }
        quantize_line(d, i, scales);
    }
    free(scales);
}

static bool is_amax(int part) {
    return part == OCTET_PART_ROW_AMAX || part == OCTET_PART_COL_AMAX;
}

void model_quantize(cpu_tensor *out, const cpu_tensor *x, const model_live *live) {
    for (int part = 0; part < OCTET_PARTS; part++) {
        if (out->m.parts[part] && !is_amax(part)) {
            memset(out->m.parts[part], 0, out->bytes[part]);
        }
    }
    for (int use = OCTET_USE_ROW; use <= OCTET_USE_COL; use++) {
        octet_part data = part_of((octet_use)use, OCTET_PART_ROW_DATA, OCTET_PART_COL_DATA);
        if (out->m.parts[data]) {
            direction d = direction_of(&out->m, (octet_use)use, x, live);
            quantize_direction(&d);
            free(d.x);
        }
    }
    if (out->m.parts[OCTET_PART_SCALE]) {
        direction d = {.m = &out->m, .live = live};
        *(float *)out->m.parts[OCTET_PART_SCALE] = scale_at(&d, 0, 0).stored;
    }
}

float model_amax(const cpu_tensor *x) {
    float most = 0;
    for (int64_t r = 0; r < x->m.rows; r++) {
        for (int64_t c = 0; c < x->m.cols; c++) {
            most = larger(most, cpu_tensor_get(x, r, c));
        }
    }
    return most;
}

void model_amax_parts(cpu_tensor *out, const cpu_tensor *x) {
    for (int use = OCTET_USE_ROW; use <= OCTET_USE_COL; use++) {
        float *to =
            out->m.parts[part_of((octet_use)use, OCTET_PART_ROW_AMAX, OCTET_PART_COL_AMAX)];
        if (!to) {
            continue;
        }
        direction d = direction_of(&out->m, (octet_use)use, x, NULL);
        float most = 0;
        for (int64_t i = 0; i < d.lines; i++) {
            float line = amax_of_line(&d, i, 0, d.length);
            most = larger(most, line);
            if (out->m.quantizer.row_scaled) {
                to[i] = line;
            }
        }
        if (!out->m.quantizer.row_scaled) {
            *to = most;
        }
        free(d.x);
    }
}
