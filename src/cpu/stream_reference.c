/* stream_reference.c - the streamed dot product in plain C: what the others are compared with.
 */
#include "cpu/isa.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/e5m2.h"

static float value_at(const uint8_t *codes, int64_t p, octet_dtype format) {
    switch (format) {
    case OCTET_E4M3:
        return oct_e4m3_decode(codes[p]);
    case OCTET_E5M2:
        return oct_e5m2_decode(codes[p]);
    default:
        return oct_e2m1_decode((uint8_t)(codes[p / 2] >> (p % 2 * 4)));
    }
}

/* Multiply and add in fp32, each rounded, step by step; a block's sum times its scale then. */
static float dot_row(const oct_stream_call *call, const float *a, int j, octet_dtype format) {
    int64_t block = call->shift ? (int64_t)1 << call->shift : call->count;
    float sum = 0.0f;
    for (int64_t first = 0; first < call->count; first += block) {
        int64_t end = oct_min(first + block, call->count);
        float part = 0.0f;
        for (int64_t p = first; p < end; p++) {
            part += a[p] * value_at(call->codes[j], p, format);
        }
        sum += call->shift ? part * call->scales[j][first >> call->shift] : part;
    }
    return sum;
}

static void dot(const oct_stream_call *call, octet_dtype format) {
    for (int j = 0; j < OCT_GEMM_ROWS; j++) {
        for (int i = 0; i < call->rows; i++) {
            const char *a = (const char *)call->a + i * call->a_pitch;
            call->out[j * call->rows + i] = dot_row(call, (const float *)a, j, format);
        }
    }
}

static void dot_e4m3(const oct_stream_call *call) {
    dot(call, OCTET_E4M3);
}

static void dot_e5m2(const oct_stream_call *call) {
    dot(call, OCTET_E5M2);
}

static void dot_e2m1(const oct_stream_call *call) {
    dot(call, OCTET_E2M1);
}

void oct_stream__reference(oct_table *table) {
    oct_gemm_kernels *k = &table->gemm;
    k->stream_f32[OCTET_E4M3] = (oct_streamer){dot_e4m3, NULL};
    k->stream_f32[OCTET_E5M2] = (oct_streamer){dot_e5m2, NULL};
    k->stream_f32[OCTET_E2M1] = (oct_streamer){dot_e2m1, NULL};
    k->stream_rows = OCT_GEMM_THIN;
    k->stream_least = OCT_STREAM_LEAST;
}
