/* finish.h - from a product's sum to an element of dst: factors, bias, what is there, rounding.
 */
#ifndef OCT_CUDA_KERNELS_FINISH_H
#define OCT_CUDA_KERNELS_FINISH_H

#include "cuda/kernels/gemm.h"
#include "format/bf16.h"
#include "format/f16.h"

static __device__ __forceinline__ float oct_load_plain(const void *base, int64_t at,
                                                       uint32_t dtype) {
    if (dtype == OCTET_F32) {
        return static_cast<const float *>(base)[at];
    }
    uint16_t code = static_cast<const uint16_t *>(base)[at];
    return dtype == OCTET_BF16 ? oct_bf16_decode(code) : oct_f16_decode(code);
}

static __device__ __forceinline__ void oct_store_plain(void *base, int64_t at, uint32_t dtype,
                                                       float value) {
    if (dtype == OCTET_F32) {
        static_cast<float *>(base)[at] = value;
    } else {
        static_cast<uint16_t *>(base)[at] =
            dtype == OCTET_BF16 ? oct_bf16_encode(value) : oct_f16_encode(value);
    }
}

/* The factors that elements lack: scale[0] * scale[1], whose product may leave fp32's range;
 * where outer indices have factors of their own, it is computed in double instead. */
struct oct_finish {
    float scale[2];
    double factor;
    const float *rows, *cols;
};

static __device__ __forceinline__ double oct_power_of_two(int exponent) {
    uint64_t bits = static_cast<uint64_t>(1023 + exponent) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static __device__ __forceinline__ double oct_factor_of(const oct_gemm_operand &o) {
    return o.unit * (o.factor && !o.factor_each ? static_cast<double>(*o.factor) : 1.0);
}

static __device__ __forceinline__ oct_finish oct_finish_of(const oct_gemm_params &g) {
    oct_finish f;
    f.factor = oct_factor_of(g.a) * oct_factor_of(g.b);
    f.rows = g.a.factor_each ? g.a.factor : nullptr;
    f.cols = g.b.factor_each ? g.b.factor : nullptr;
    uint64_t bits;
    memcpy(&bits, &f.factor, sizeof bits);
    int field = static_cast<int>(bits >> 52 & 0x7ff);
    int half = field == 0 || field == 0x7ff ? 0 : (field - 1023) / 2;
    half = half < -126 ? -126 : half > 126 ? 126 : half;
    f.scale[0] = static_cast<float>(f.factor * oct_power_of_two(-half));
    f.scale[1] = static_cast<float>(oct_power_of_two(half));
    return f;
}

static __device__ __forceinline__ float oct_finished(const oct_gemm_params &g,
                                                     const oct_finish &f, float sum,
                                                     int64_t row, int64_t col) {
    float value = sum * f.scale[0] * f.scale[1];
    if (f.rows || f.cols) {
        double by_row = f.rows ? static_cast<double>(f.rows[row]) : 1.0;
        double by_col = f.cols ? static_cast<double>(f.cols[col]) : 1.0;
        value = static_cast<float>(static_cast<double>(sum) * (f.factor * by_row) * by_col);
    }
    if (g.bias) {
        value += oct_load_plain(g.bias, col, g.bias_dtype);
    }
    if (g.accumulate) {
        value += oct_load_plain(g.dst, row * g.stride + col, g.dtype);
    }
    return value;
}

#endif
