/* thin_mx.h - a warp's share of a product of one to four rows of E4M3 with scales of 32
 * elements.
 *
 * A fragment of tensor cores has eight columns, and a batch of 256 elements eight blocks. So
 * each row of a gets a fragment of its own, and column n of it holds block n alone, zeros
 * elsewhere: the sums of all blocks lie side by side, and are multiplied by their scales once
 * for a batch instead of once for a block. */
#ifndef OCT_CUDA_KERNELS_THIN_MX_H
#define OCT_CUDA_KERNELS_THIN_MX_H

#include "cuda/kernels/thin_line.h"
#include "format/e8m0.h"

/* The scales of two blocks, 2 (lane % 4) and the next, of one line. */
struct oct_thin_pair {
    uint32_t codes;

    /* Code 0 is 2^-127; 255 is left to `nans`. */
    __device__ __forceinline__ float value(int block) const {
        uint32_t bits = block ? (codes & 0xff00u) << 15 : (codes & 0xffu) << 23;
        return oct_bits_f32(max(bits, 0x00400000u));
    }

    /* Not 0 where a code is 255. */
    __device__ __forceinline__ uint32_t nans(void) const {
        return ((codes & 0x7f7fu) + 0x0101u) & codes & 0x8080u;
    }
};

template <int Rows> struct oct_thin_mx {
    static constexpr int rows = Rows;
    static constexpr float unit = 1.0f; /* what a sum lacks */

    float sum[Rows][4]; /* lines i / 2 of b, blocks i % 2 of this lane */
    oct_thin_line b[2], a[Rows];
    uint32_t b_nans[2], a_nans[Rows];

    __device__ __forceinline__ void begin(const oct_gemm_params &g, int64_t first) {
        int64_t line = threadIdx.x % 32 / 4;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            b[i] = oct_thin_line_of(g.b, first + line + 8 * i, 1, OCT_THIN_BATCH / 32);
            b_nans[i] = 0;
        }
#pragma unroll
        for (int i = 0; i < Rows; i++) {
            a[i] = oct_thin_line_of(g.a, i, 1, OCT_THIN_BATCH / 32);
            a_nans[i] = 0;
            sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.0f;
        }
    }

    /* Behind the last block there is padding. */
    static __device__ __forceinline__ oct_thin_pair load_scales(const oct_thin_line &line,
                                                                const oct_gemm_operand &o,
                                                                int left) {
        int block = 2 * oct_thin_lane();
        uint32_t at = line.scales + static_cast<uint32_t>(block);
        uint32_t codes = oct_thin_scales<uint16_t>(o, at, block * 32 < left);
        return {block * 32 + 32 < left ? codes : codes & 0xffu};
    }

    /* The 16 codes that this lane's column of a row's fragments has in this batch. Column n has
     * block n: half of chunk n / 2, so of two lanes. The other two have zeros. */
    static __device__ __forceinline__ void load_column(uint32_t *out, const oct_thin_line &line,
                                                       int left) {
        int column = static_cast<int>(threadIdx.x) % 32 / 4, lane = oct_thin_lane();
        int at = column / 2 * OCT_THIN_CHUNK + lane * 16;
        uint4 all = oct_thin_a16(line.codes + at, lane / 2 == column % 2 && at < left);
        uint32_t raw[4] = {all.x, all.y, all.z, all.w};
        oct_f16_of_16_e4m3(out, raw);
    }

    /* The products of chunk c, of 64 elements. */
    static __device__ __forceinline__ void add_chunk(float (*part)[4], int c,
                                                     const uint4 *b_raw,
                                                     const uint32_t (*columns)[8]) {
        uint32_t x[2][8];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t raw[4] = {b_raw[i].x, b_raw[i].y, b_raw[i].z, b_raw[i].w};
            oct_f16_of_16_e4m3(x[i], raw);
        }
        bool is = static_cast<int>(threadIdx.x) % 32 / 8 == c;
#pragma unroll
        for (int s = 0; s < 8; s += 2) {
            uint32_t lines[4] = {x[0][s], x[1][s], x[0][s + 1], x[1][s + 1]};
#pragma unroll
            for (int i = 0; i < Rows; i++) {
                uint32_t y[2] = {is ? columns[i][s] : 0u, is ? columns[i][s + 1] : 0u};
                oct_multiply<oct_thin_element>(part[i], lines, y);
            }
        }
    }

    /* sum += part times both scales. */
    __device__ __forceinline__ void flush(const float (*part)[4], const oct_thin_pair *col,
                                          const oct_thin_pair *row) {
        float by[4] = {col[0].value(0), col[0].value(1), col[1].value(0), col[1].value(1)};
        b_nans[0] |= col[0].nans();
        b_nans[1] |= col[1].nans();
#pragma unroll
        for (int i = 0; i < Rows; i++) {
            float first = row[i].value(0), second = row[i].value(1);
            a_nans[i] |= row[i].nans();
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float part_row = part[i][e] * (e % 2 ? second : first);
                sum[i][e] = __fmaf_rn(part_row, by[e], sum[i][e]);
            }
        }
    }

    static __device__ __forceinline__ void next(oct_thin_line &line) {
        line.codes += OCT_THIN_WARPS * OCT_THIN_BATCH;
        line.scales += OCT_THIN_WARPS * OCT_THIN_BATCH / 32;
    }

    /* `left` bytes of a line from this batch on. */
    __device__ __forceinline__ void add_batch(const oct_gemm_params &g, int left) {
        uint4 raw[OCT_THIN_CHUNKS][2];
        uint32_t columns[Rows][8];
        oct_thin_pair col[2], row[Rows];
        float part[Rows][4] = {};
#pragma unroll
        for (int c = 0; c < OCT_THIN_CHUNKS; c++) {
            int at = c * OCT_THIN_CHUNK + oct_thin_lane() * 16;
            raw[c][0] = oct_thin_b16(b[0].codes + at, at < left);
            raw[c][1] = oct_thin_b16(b[1].codes + at, at < left);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            col[i] = load_scales(b[i], g.b, left);
            next(b[i]);
        }
#pragma unroll
        for (int i = 0; i < Rows; i++) {
            load_column(columns[i], a[i], left);
            row[i] = load_scales(a[i], g.a, left);
            next(a[i]);
        }
        __syncwarp();
#pragma unroll
        for (int c = 0; c < OCT_THIN_CHUNKS; c++) {
            add_chunk(part, c, raw[c], columns);
        }
        flush(part, col, row);
    }

    /* The four lanes of a line add up what they have; each has the whole then. */
    __device__ __forceinline__ void end(void) {
#pragma unroll
        for (int i = 0; i < Rows; i++) {
#pragma unroll
            for (int line = 0; line < 2; line++) {
                float all = sum[i][2 * line] + sum[i][2 * line + 1];
                uint32_t nans = a_nans[i] | b_nans[line];
#pragma unroll
                for (int step = 1; step < 4; step *= 2) {
                    all += __shfl_xor_sync(~0u, all, step);
                    nans |= __shfl_xor_sync(~0u, nans, step);
                }
                sum[i][line] = nans ? oct_bits_f32(OCT_E8M0_NAN) : all;
            }
        }
    }

    __device__ __forceinline__ void put(float *sums, int pitch) const {
        int line = static_cast<int>(threadIdx.x) % 32 / 4;
        if (oct_thin_lane() == 0) {
#pragma unroll
            for (int i = 0; i < Rows * 2; i++) {
                sums[i / 2 * pitch + line + i % 2 * 8] = sum[i / 2][i % 2];
            }
        }
    }
};

#endif
