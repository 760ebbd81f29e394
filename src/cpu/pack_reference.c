/* pack_reference.c - decoding and laying out panels in plain C. */
#include <string.h>

#include "cpu/isa.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/e5m2.h"
#include "format/e8m0.h"

static float scaled(const oct_decode_call *call, int64_t c, float value) {
    const float *scales = call->scales;
    return scales ? value * scales[c >> call->shift] : value;
}

static void decode_f32(const oct_decode_call *call) {
    memcpy(call->out, call->codes, (size_t)call->count * sizeof(float));
}

static void decode_bf16(const oct_decode_call *call) {
    for (int64_t c = 0; c < call->count; c++) {
        ((float *)call->out)[c] = oct_plain_load(call->codes, c, OCTET_BF16);
    }
}

static void decode_f16(const oct_decode_call *call) {
    for (int64_t c = 0; c < call->count; c++) {
        ((float *)call->out)[c] = oct_plain_load(call->codes, c, OCTET_F16);
    }
}

static void decode_e4m3(const oct_decode_call *call) {
    for (int64_t c = 0; c < call->count; c++) {
        ((float *)call->out)[c] = scaled(call, c, oct_e4m3_decode(call->codes[c]));
    }
}

static void decode_e5m2(const oct_decode_call *call) {
    for (int64_t c = 0; c < call->count; c++) {
        ((float *)call->out)[c] = scaled(call, c, oct_e5m2_decode(call->codes[c]));
    }
}

static void decode_e8m0(const oct_decode_call *call) {
    for (int64_t c = 0; c < call->count; c++) {
        ((float *)call->out)[c] = oct_e8m0_decode(call->codes[c]);
    }
}

static void decode_e2m1(const oct_decode_call *call) {
    for (int64_t c = 0; c < call->count; c++) {
        uint8_t code = (uint8_t)(call->codes[c / 2] >> (c % 2 * 4));
        ((float *)call->out)[c] = scaled(call, c, oct_e2m1_decode(code));
    }
}

static void turn(uint32_t *panel, int stride, const uint32_t *rows, int64_t pitch,
                 int64_t steps) {
    int64_t whole = oct_round_up(steps, 16);
    for (int64_t step = 0; step < whole; step++) {
        for (int r = 0; r < stride; r++) {
            panel[step * stride + r] = rows[r * pitch + step];
        }
    }
}

static void spread(const oct_panels *panels, int64_t count, const float *row) {
    for (int64_t n = 0; n < count; n++) {
        memcpy(panels->out + n * panels->pitch, row + n * panels->used,
               (size_t)panels->stride * sizeof(float));
    }
}

void oct_pack__reference(oct_table *table) {
    table->gemm.packer = (oct_packer){
        .f32 = {[OCTET_F32] = decode_f32,
                [OCTET_BF16] = decode_bf16,
                [OCTET_F16] = decode_f16,
                [OCTET_E4M3] = decode_e4m3,
                [OCTET_E5M2] = decode_e5m2,
                [OCTET_E2M1] = decode_e2m1,
                [OCTET_E8M0] = decode_e8m0},
        .turn = turn,
        .spread = spread,
    };
}
