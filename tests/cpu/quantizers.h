/* quantizers.h - every quantizer value of a scheme, and shapes at the edges of its blocks. */
#ifndef OCTET_TEST_CPU_QUANTIZERS_H
#define OCTET_TEST_CPU_QUANTIZERS_H

#include "octet.h"

/* The quantizer number `index` of a scheme among all combinations of fields; false when that
 * combination is not a valid one. */
static inline bool cpu_quantizer(octet_quantizer *out, octet_scheme scheme, int index) {
    bool fp4 = scheme == OCTET_NVFP4 || scheme == OCTET_MXFP4;
    bool blocks = scheme >= OCTET_FP8_BLOCK;
    int side = scheme == OCTET_FP8_BLOCK ? 128 : scheme == OCTET_NVFP4 ? 16 : 32;
    int usage = index % 3, square = index / 3 % 2, format = index / 6 % 2;
    int a = index / 12 % 2, b = index / 24 % 3, c = index / 72 % 2, d = index / 144 % 2;
    int e = index / 288 % 3, f = index / 864 % 2;
    *out = (octet_quantizer){.size = sizeof *out, .scheme = (uint8_t)scheme};
    out->format = (uint8_t)(fp4 ? OCTET_E2M1 : format ? OCTET_E5M2 : OCTET_E4M3);
    out->rowwise = usage != 1;
    out->columnwise = usage != 0;
    out->block_rows = (uint16_t)(blocks ? (square ? side : 1) : 0);
    out->block_cols = (uint16_t)(blocks ? side : 0);
    if (scheme == OCTET_FP8_TENSOR || scheme == OCTET_FP8_BLOCK) {
        out->pow2 = (uint8_t)a;
        out->epsilon = b == 1 ? 0x1p-10f : b == 2 ? 1e-30f : 0.0f;
        return index < 72 && (blocks || !square) && !octet_quantizer_check(out, NULL);
    }
    out->swizzled = (uint8_t)a;
    out->hadamard = (uint8_t)b;
    out->stochastic = (uint8_t)c;
    out->row_scaled = (uint8_t)d;
    out->four_over_six = (uint8_t)e;
    out->max256 = (uint8_t)f;
    return (!fp4 || !format) && (blocks || !square) && !octet_quantizer_check(out, NULL);
}

#define CPU_QUANTIZERS 1728

static const int64_t cpu_shapes[][2] = {
    {0, 0},    {0, 7},     {7, 0},     {1, 1},    {1, 2},    {2, 1},    {1, 15},   {16, 1},
    {15, 16},  {17, 16},   {16, 17},   {31, 32},  {33, 31},  {32, 33},  {64, 65},  {13, 127},
    {127, 13}, {128, 128}, {129, 127}, {64, 257}, {1, 300},  {300, 1},  {67, 521}, {2, 4099},
    {5, 2051}, {261, 3},   {135, 260}, {4, 1025}, {63, 255}, {48, 129},
};

#define CPU_SHAPES ((int)(sizeof cpu_shapes / sizeof cpu_shapes[0]))

#endif
