/* thin_fp8.h - a warp's share of a thin product of E4M3 with scales of 128 or of 32 elements.
 */
#ifndef OCT_CUDA_KERNELS_THIN_FP8_H
#define OCT_CUDA_KERNELS_THIN_FP8_H

#include "cuda/kernels/thin_line.h"
#include "format/e8m0.h"

/* A batch of 256 elements has two words of scales: of blocks of 128 two floats. */
struct oct_thin_128 {
    static constexpr int steps = 8; /* products of 16 elements in a block */
    static constexpr int scale_bytes = 4;

    static __device__ uint32_t word_bytes(const oct_gemm_operand &o) {
        return static_cast<uint32_t>(o.scales.block_step) * 4;
    }

    /* A chunk's bytes of this lane; Once: b's. */
    template <bool Once>
    static __device__ __forceinline__ void load(uint32_t *words, const uint8_t *at, int left) {
        int skip = oct_thin_lane() * 16;
        uint4 all =
            Once ? oct_thin_b16(at + skip, skip < left) : oct_thin_a16(at + skip, skip < left);
        words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
    }

    static __device__ __forceinline__ void clip(uint32_t *, int) {
    }

    static __device__ __forceinline__ float value(const uint32_t *words, int block) {
        return oct_bits_f32(words[block]);
    }

    static __device__ __forceinline__ uint32_t nans(const uint32_t *) {
        return 0;
    }
};

/* Of blocks of 32 eight E8M0, four a word. A product of 16 elements is of one block, so a lane
 * has bytes of both blocks of a chunk. */
struct oct_thin_32 {
    static constexpr int steps = 2;
    static constexpr int scale_bytes = 1;

    static __device__ uint32_t word_bytes(const oct_gemm_operand &) {
        return 4;
    }

    template <bool Once>
    static __device__ __forceinline__ void load(uint32_t *words, const uint8_t *at, int left) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int skip = i * 32 + oct_thin_lane() * 8;
            uint2 half = Once ? oct_thin_b8(at + skip, skip < left)
                              : oct_thin_a8(at + skip, skip < left);
            words[2 * i] = half.x, words[2 * i + 1] = half.y;
        }
    }

    /* Behind the last block there is padding. */
    static __device__ __forceinline__ void clip(uint32_t *words, int left) {
        int past = left & 127;
        if (left < OCT_THIN_BATCH && past) {
            uint32_t mask = 0xffffffffu >> (32 - (past + 31) / 32 * 8);
            words[0] &= left < 128 ? mask : 0xffffffffu;
            words[1] &= mask;
        }
    }

    /* Code 0 is 2^-127; 255 is left to `nans`. */
    static __device__ __forceinline__ float value(const uint32_t *words, int block) {
        uint32_t word = words[block / 4];
        int byte = block % 4;
        word = (byte < 3 ? word << (23 - 8 * byte) : word >> 1) & 0x7f800000u;
        return oct_bits_f32(max(word, 0x00400000u));
    }

    /* Not 0 where a code is 255. */
    static __device__ __forceinline__ uint32_t nans(const uint32_t *words) {
        uint32_t low = ((words[0] & 0x7f7f7f7fu) + 0x01010101u) & words[0];
        uint32_t high = ((words[1] & 0x7f7f7f7fu) + 0x01010101u) & words[1];
        return (low | high) & 0x80808080u;
    }
};

/* For 8 Groups lines of a. */
template <class Blocks, int Groups> struct oct_thin_fp8 {
    static constexpr int rows = 8 * Groups;
    static constexpr float unit = 1.0f; /* what a sum lacks */

    float sum[Groups][4];
    oct_thin_line b[2], a[Groups], a_by[2 * Groups]; /* the last: of the sums' scales */
    uint32_t b_scale[2][2], a_scale[2 * Groups][2];
    uint32_t b_nans[2], a_nans[2 * Groups];

    __device__ __forceinline__ void begin(const oct_gemm_params &g, int64_t first) {
        int64_t lane = threadIdx.x % 32;
        uint32_t b_bytes = 2 * Blocks::word_bytes(g.b), a_bytes = 2 * Blocks::word_bytes(g.a);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int64_t line = first + lane / 4 + 8 * i;
            b[i] = oct_thin_line_of(g.b, line, Blocks::scale_bytes, b_bytes);
            b_nans[i] = 0;
        }
#pragma unroll
        for (int i = 0; i < 2 * Groups; i++) {
            int64_t line = i / 2 * 8 + lane % 4 * 2 + i % 2;
            a_by[i] = oct_thin_line_of(g.a, line, Blocks::scale_bytes, a_bytes);
            a_nans[i] = 0;
        }
#pragma unroll
        for (int i = 0; i < Groups; i++) {
            a[i] = oct_thin_line_of(g.a, lane / 4 + 8 * i, 0, 0);
            sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.0f;
        }
    }

    /* Goes on to the warp's next batch. */
    static __device__ __forceinline__ void load_scales(uint32_t *words, oct_thin_line &line,
                                                       const oct_gemm_operand &o, int left) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t at = line.scales + i * Blocks::word_bytes(o);
            words[i] = oct_thin_scales<uint32_t>(o, at, i * 128 < left);
        }
        Blocks::clip(words, left);
        line.scales += OCT_THIN_WARPS * 2 * Blocks::word_bytes(o);
    }

    __device__ __forceinline__ void load_scales(const oct_gemm_params &g, int left) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            load_scales(b_scale[i], b[i], g.b, left);
            b_nans[i] |= Blocks::nans(b_scale[i]);
        }
#pragma unroll
        for (int i = 0; i < 2 * Groups; i++) {
            load_scales(a_scale[i], a_by[i], g.a, left);
            a_nans[i] |= Blocks::nans(a_scale[i]);
        }
    }

    /* sum += part * both scales; part = 0. */
    __device__ __forceinline__ void flush(float (*part)[4], int block) {
#pragma unroll
        for (int i = 0; i < Groups; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float row = Blocks::value(a_scale[2 * i + e % 2], block);
                float col = Blocks::value(b_scale[e / 2], block);
                sum[i][e] = __fmaf_rn(part[i][e] * row, col, sum[i][e]);
                part[i][e] = 0.0f;
            }
        }
    }

    /* The products of chunk c, of 64 elements. */
    __device__ __forceinline__ void add_chunk(float (*part)[4], int c,
                                              const uint32_t (*b_raw)[4], int left) {
        uint32_t x[2][8], y[Groups][8];
        oct_f16_of_16_e4m3(x[0], b_raw[0]);
        oct_f16_of_16_e4m3(x[1], b_raw[1]);
#pragma unroll
        for (int i = 0; i < Groups; i++) {
            uint32_t raw[4];
            int skip = c * OCT_THIN_CHUNK;
            Blocks::template load<false>(raw, a[i].codes + skip, left - skip);
            oct_f16_of_16_e4m3(y[i], raw);
        }
#pragma unroll
        for (int s = 0; s < 4; s++) {
            uint32_t rows[4] = {x[0][2 * s], x[1][2 * s], x[0][2 * s + 1], x[1][2 * s + 1]};
#pragma unroll
            for (int i = 0; i < Groups; i++) {
                oct_multiply<oct_thin_element>(part[i], rows, y[i] + 2 * s);
            }
            if ((c * 4 + s + 1) % Blocks::steps == 0) {
                flush(part, (c * 4 + s) / Blocks::steps);
            }
        }
    }

    /* `left` bytes of a line from this batch on. */
    __device__ __forceinline__ void add_batch(const oct_gemm_params &g, int left) {
        uint32_t raw[OCT_THIN_CHUNKS][2][4];
        float part[Groups][4] = {};
#pragma unroll
        for (int c = 0; c < OCT_THIN_CHUNKS; c++) {
            int skip = c * OCT_THIN_CHUNK;
            Blocks::template load<true>(raw[c][0], b[0].codes + skip, left - skip);
            Blocks::template load<true>(raw[c][1], b[1].codes + skip, left - skip);
        }
        load_scales(g, left);
        __syncwarp();
#pragma unroll
        for (int c = 0; c < OCT_THIN_CHUNKS; c++) {
            add_chunk(part, c, raw[c], left);
        }
        b[0].codes += OCT_THIN_WARPS * OCT_THIN_BATCH;
        b[1].codes += OCT_THIN_WARPS * OCT_THIN_BATCH;
#pragma unroll
        for (int i = 0; i < Groups; i++) {
            a[i].codes += OCT_THIN_WARPS * OCT_THIN_BATCH;
        }
    }

    __device__ __forceinline__ void end(void) {
#pragma unroll
        for (int i = 0; i < Groups * 4; i++) {
            bool nan = (a_nans[i / 4 * 2 + i % 2] | b_nans[i % 4 / 2]) != 0;
            sum[i / 4][i % 4] = nan ? oct_bits_f32(OCT_E8M0_NAN) : sum[i / 4][i % 4];
        }
    }

    __device__ __forceinline__ void put(float *sums, int pitch) const {
        oct_thin_put<Groups>(sums, pitch, sum);
    }
};

#endif
