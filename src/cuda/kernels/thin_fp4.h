/* thin_fp4.h - a warp's share of a thin product of E2M1 with E4M3 scales of 16 elements. */
#ifndef OCT_CUDA_KERNELS_THIN_FP4_H
#define OCT_CUDA_KERNELS_THIN_FP4_H

#include "cuda/kernels/thin_line.h"

/* A line's 32 codes of this lane, and their scales: each in both halves of a word, as f16. */
struct oct_thin_codes {
    uint4 raw;
    uint32_t scale[2];
};

/* Nibbles i and i + 4 of each 8 codes are a word, of a as of b. */
template <int Groups> struct oct_thin_fp4 {
    static constexpr int rows = 8 * Groups;
    static constexpr float unit = 0x1p28f; /* what a sum lacks: 2^14 of each operand */

    float sum[Groups][4];
    oct_thin_line b[2], a[Groups];

    __device__ __forceinline__ void begin(const oct_gemm_params &g, int64_t first) {
        int64_t line = threadIdx.x % 32 / 4;
        constexpr int scales = OCT_THIN_BATCH / 8; /* a byte for 8 bytes of codes */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            b[i] = oct_thin_line_of(g.b, first + line + 8 * i, 1, scales);
        }
#pragma unroll
        for (int i = 0; i < Groups; i++) {
            a[i] = oct_thin_line_of(g.a, line + 8 * i, 1, scales);
            sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.0f;
        }
    }

    /* Scales of chunk c; 0 behind the last, whose codes are 0. */
    static __device__ __forceinline__ void load_scale(oct_thin_codes &out,
                                                      const oct_thin_line &line,
                                                      const oct_gemm_operand &o, int c,
                                                      bool is) {
        int skip = c * (OCT_THIN_CHUNK / 8) + oct_thin_lane() * 2;
        uint32_t both = oct_thin_scales<uint16_t>(o, line.scales + skip, is);
        uint32_t pair = oct_f16_of_e4m3(both);
        out.scale[0] = __byte_perm(pair, 0, 0x1010);
        out.scale[1] = __byte_perm(pair, 0, 0x3232);
    }

    /* Word w, 8 codes, times its scale. */
    static __device__ __forceinline__ void decode(uint32_t *out, const oct_thin_codes &codes,
                                                  int w) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t pair = oct_f16_nibbles(oct_word(codes.raw, w), i);
            out[i] = oct_f16_times(pair, codes.scale[w / 2]);
        }
    }

    __device__ __forceinline__ void add_chunk(const oct_thin_codes *x,
                                              const oct_thin_codes *y) {
#pragma unroll
        for (int w = 0; w < 4; w++) {
            uint32_t low[4], high[4], cols[4];
            decode(low, x[0], w);
            decode(high, x[1], w);
#pragma unroll
            for (int i = 0; i < Groups; i++) {
                decode(cols, y[i], w);
#pragma unroll
                for (int s = 0; s < 4; s += 2) {
                    uint32_t rows[4] = {low[s], high[s], low[s + 1], high[s + 1]};
                    oct_multiply<oct_thin_element>(sum[i], rows, cols + s);
                }
            }
        }
    }

    /* `left` bytes of a line from this batch on. */
    __device__ __forceinline__ void add_batch(const oct_gemm_params &g, int left) {
        oct_thin_codes x[OCT_THIN_CHUNKS][2], y[Groups];
        int skip = oct_thin_lane() * 16;
#pragma unroll
        for (int c = 0; c < OCT_THIN_CHUNKS; c++) {
            int at = c * OCT_THIN_CHUNK + skip;
            x[c][0].raw = oct_thin_b16(b[0].codes + at, at < left);
            x[c][1].raw = oct_thin_b16(b[1].codes + at, at < left);
        }
        __syncwarp();
#pragma unroll
        for (int c = 0; c < OCT_THIN_CHUNKS; c++) {
            int at = c * OCT_THIN_CHUNK + skip;
            load_scale(x[c][0], b[0], g.b, c, at < left);
            load_scale(x[c][1], b[1], g.b, c, at < left);
#pragma unroll
            for (int i = 0; i < Groups; i++) {
                y[i].raw = oct_thin_a16(a[i].codes + at, at < left);
                load_scale(y[i], a[i], g.a, c, at < left);
            }
            add_chunk(x[c], y);
        }
        next(b[0]);
        next(b[1]);
#pragma unroll
        for (int i = 0; i < Groups; i++) {
            next(a[i]);
        }
    }

    static __device__ __forceinline__ void next(oct_thin_line &line) {
        line.codes += OCT_THIN_WARPS * OCT_THIN_BATCH;
        line.scales += OCT_THIN_WARPS * OCT_THIN_BATCH / 8;
    }

    __device__ __forceinline__ void end(void) {
    }

    __device__ __forceinline__ void put(float *sums, int pitch) const {
        oct_thin_put<Groups>(sums, pitch, sum);
    }
};

#endif
