/* gemm_pairs.h - every kind of operand in every direction that a product reads it. */
#ifndef GEMM_PAIRS_H
#define GEMM_PAIRS_H

#include "gemm_check.h"

#define ROW OCTET_USE_ROW
#define COL OCTET_USE_COL
#define PLAIN OCTET_USE_VALUES

static const pair pairs[] = {
    {OCTET_FPROP, "f32", "f32", PLAIN, PLAIN},
    {OCTET_FPROP, "bf16", "bf16", PLAIN, PLAIN},
    {OCTET_FPROP, "f16", "bf16", PLAIN, PLAIN},
    {OCTET_DGRAD, "f32", "f16", PLAIN, PLAIN},
    {OCTET_DGRAD, "bf16", "bf16", PLAIN, PLAIN},
    {OCTET_WGRAD, "f32", "bf16", PLAIN, PLAIN},
    {OCTET_WGRAD, "bf16", "bf16", PLAIN, PLAIN},
    {OCTET_WGRAD, "f16", "f16", PLAIN, PLAIN},
    {OCTET_FPROP, "fp8-tensor:e4m3", "fp8-tensor:e4m3", ROW, ROW},
    {OCTET_FPROP, "fp8-delayed:e5m2", "fp8-tensor:e4m3", ROW, COL},
    {OCTET_DGRAD, "fp8-tensor:e5m2", "fp8-tensor:e4m3", ROW, ROW},
    {OCTET_DGRAD, "fp8-delayed:e5m2", "fp8-delayed:e4m3", ROW, COL},
    {OCTET_WGRAD, "fp8-tensor:e5m2", "fp8-tensor:e4m3", ROW, ROW},
    {OCTET_WGRAD, "fp8-tensor:e5m2", "fp8-tensor:e4m3", COL, COL},
    {OCTET_FPROP, "fp8-block:e4m3", "fp8-block:e4m3/128x128", ROW, ROW},
    {OCTET_FPROP, "fp8-block:e4m3+nopow2", "fp8-block:e5m2/128x128+nopow2", ROW, ROW},
    {OCTET_DGRAD, "fp8-block:e5m2", "fp8-block:e4m3/128x128", ROW, ROW},
    {OCTET_DGRAD, "fp8-block:e4m3", "fp8-block:e4m3/128x128", ROW, COL},
    {OCTET_WGRAD, "fp8-block:e4m3", "fp8-block:e4m3", COL, COL},
    {OCTET_WGRAD, "fp8-block:e5m2+nopow2", "fp8-block:e4m3+nopow2", COL, COL},
    {OCTET_FPROP, "mxfp8:e4m3", "mxfp8:e4m3", ROW, ROW},
    {OCTET_FPROP, "mxfp8:e4m3+swizzled", "mxfp8:e5m2/32x32+swizzled", ROW, ROW},
    {OCTET_DGRAD, "mxfp8:e5m2", "mxfp8:e4m3", ROW, COL},
    {OCTET_DGRAD, "mxfp8:e4m3", "mxfp8:e4m3/32x32", ROW, ROW},
    {OCTET_DGRAD, "mxfp8:e4m3", "mxfp8:e4m3/32x32+swizzled", ROW, ROW},
    {OCTET_FPROP, "mxfp8:e4m3", "mxfp8:e4m3/32x32", ROW, COL},
    {OCTET_WGRAD, "mxfp8:e4m3", "mxfp8:e4m3", COL, COL},
    {OCTET_WGRAD, "mxfp8:e5m2+swizzled", "mxfp8:e4m3+swizzled", COL, COL},
    {OCTET_FPROP, "nvfp4:e2m1", "nvfp4:e2m1/16x16", ROW, ROW},
    {OCTET_FPROP, "nvfp4:e2m1+rowscaled", "nvfp4:e2m1+swizzled", ROW, ROW},
    {OCTET_FPROP, "nvfp4:e2m1+rowscaled", "nvfp4:e2m1+rowscaled", ROW, ROW},
    {OCTET_FPROP, "nvfp4:e2m1+4over6+max256", "nvfp4:e2m1/16x16+4over6", ROW, ROW},
    {OCTET_DGRAD, "nvfp4:e2m1", "nvfp4:e2m1/16x16", ROW, ROW},
    {OCTET_DGRAD, "nvfp4:e2m1", "nvfp4:e2m1/16x16", ROW, COL},
    {OCTET_DGRAD, "nvfp4:e2m1", "nvfp4:e2m1/16x16+swizzled", ROW, ROW},
    {OCTET_WGRAD, "nvfp4:e2m1", "nvfp4:e2m1+rowscaled", COL, COL},
    {OCTET_WGRAD, "nvfp4:e2m1+rht", "nvfp4:e2m1+rht", COL, COL},
    {OCTET_WGRAD, "nvfp4:e2m1+rht+swizzled", "nvfp4:e2m1+rht", COL, COL},
    {OCTET_FPROP, "mxfp4:e2m1", "mxfp4:e2m1/32x32", ROW, ROW},
    {OCTET_FPROP, "mxfp4:e2m1+swizzled", "mxfp4:e2m1", ROW, ROW},
    {OCTET_DGRAD, "mxfp4:e2m1", "mxfp4:e2m1/32x32", ROW, ROW},
    {OCTET_DGRAD, "mxfp4:e2m1", "mxfp4:e2m1/32x32+swizzled", ROW, COL},
    {OCTET_WGRAD, "mxfp4:e2m1", "mxfp4:e2m1", COL, COL},
    {OCTET_WGRAD, "mxfp4:e2m1+rht", "mxfp4:e2m1+rht", COL, COL},
    {OCTET_FPROP, "f32", "mxfp4:e2m1", PLAIN, ROW},
    {OCTET_FPROP, "mxfp8:e4m3", "mxfp4:e2m1/32x32", ROW, ROW},
    {OCTET_DGRAD, "bf16", "mxfp4:e2m1/32x32", PLAIN, ROW},
    {OCTET_WGRAD, "nvfp4:e2m1", "mxfp4:e2m1", COL, COL},
    {OCTET_FPROP, "mxfp8:e4m3", "bf16", ROW, PLAIN},
    {OCTET_FPROP, "f32", "nvfp4:e2m1", PLAIN, ROW},
    {OCTET_FPROP, "bf16", "fp8-block:e4m3/128x128", PLAIN, ROW},
    {OCTET_DGRAD, "bf16", "mxfp8:e4m3", PLAIN, COL},
    {OCTET_DGRAD, "f16", "nvfp4:e2m1/16x16", PLAIN, ROW},
    {OCTET_WGRAD, "bf16", "fp8-tensor:e4m3", PLAIN, ROW},
    {OCTET_WGRAD, "mxfp8:e4m3", "fp8-block:e4m3", COL, COL},
    {OCTET_WGRAD, "fp8-tensor:e5m2", "nvfp4:e2m1", ROW, COL},
};

#define PAIRS (sizeof pairs / sizeof pairs[0])

#undef ROW
#undef COL
#undef PLAIN

#endif
