/* dequantize.cu - a plain tensor from the bytes of one direction.
 *
 * A value is fl32(value of the code x factor), rounded once to the tensor's dtype. The factor
 * is the stored scale; NVFP4's is fl32(fl32(scale x amax) x fl32(1 / 2688)). Columnwise codes
 * that carry a Hadamard transform are transformed back in fp32 before they are rounded. Which
 * NaN comes out is the machine's choice. */
#include "cuda/kernels/chain.h"
#include "cuda/kernels/decode.h"
#include "cuda/kernels/dequantize.h"
#include "cuda/kernels/plain.h"
#include "format/e8m0.h"
#include "format/hadamard.h"

/* ---- values of codes ------------------------------------------------------------------- */

/* A nibble: its exponent and mantissa bits where a float has them, which is 2^126 too small. */
static inline float decode_nibble(uint32_t nibble) {
    return oct_bits_f32((nibble & 0x7u) << 22 | (nibble & 0x8u) << 28) * 0x1p126f;
}

/* 8 codes of a byte each. */
static inline void decode_bytes(float *out, const uint2 &codes, uint8_t format) {
    if (format == OCTET_E2M1) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            out[i] = decode_nibble((i < 4 ? codes.x : codes.y) >> (i % 4 * 8));
        }
        return;
    }
    oct_decode_eight(out, codes, format);
}

/* 8 codes of a nibble each. */
static inline void decode_nibbles(float *out, uint32_t codes) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        out[i] = decode_nibble(codes >> (4 * i));
    }
}

/* ---- factors --------------------------------------------------------------------------- */

static inline float nv_factor(const oct_decode_params &p, uint8_t code, int64_t line) {
    float scale = oct_e4m3_decode(code);
    return p.amax ? scale * p.amax[p.row_scaled ? line : 0] * p.unit : scale;
}

static inline float factor_at(const oct_decode_params &p, int64_t line, int64_t block) {
    if (p.scale_format == OCTET_NONE) {
        return p.scale ? *(const float *)p.scale : 1.0f;
    }
    int64_t at = oct_scale_at(&p.scales, line, block);
    if (p.scale_format == OCTET_F32) {
        return ((const float *)p.scale)[at];
    }
    uint8_t code = ((const uint8_t *)p.scale)[at];
    return p.scale_format == OCTET_E8M0 ? oct_e8m0_decode(code) : nv_factor(p, code, line);
}

/* ---- stores ---------------------------------------------------------------------------- */

static inline oct_eight eight_of(const float *x, uint8_t dtype) {
    if (dtype == OCTET_BF16) {
        return {{oct_bf16_pair(x[0], x[1]), oct_bf16_pair(x[2], x[3]),
                 oct_bf16_pair(x[4], x[5]), oct_bf16_pair(x[6], x[7])},
                {0, 0, 0, 0}};
    }
    return oct_eight_of(x, dtype);
}

/* ---- codes that lie as the rows do ----------------------------------------------------- */

/* 8 codes of a row: a byte each in x and y, or a nibble each in x. */
static inline uint2 load_codes(const oct_decode_params &p, int64_t row, int64_t col,
                               int count) {
    bool nibbles = p.format == OCTET_E2M1;
    const uint8_t *at = p.codes + row * p.line_bytes + (nibbles ? col / 2 : col);
    int bytes = nibbles ? (count + 1) / 2 : count;
    if (count == 8 && p.wide) {
        return nibbles ? uint2{*(const uint32_t *)at, 0} : *(const uint2 *)at;
    }
    uint2 codes = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (i < bytes) {
            *(i < 4 ? &codes.x : &codes.y) |= (uint32_t)at[i] << (i % 4 * 8);
        }
    }
    return codes;
}

/* A factor for each of 8 columns. */
static inline void row_factors(float *out, const oct_decode_params &p, int64_t row, int64_t col,
                               int count) {
    if (!p.by_column) {
        float factor = factor_at(p, row, col >> p.block_shift);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            out[i] = factor;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        out[i] = i < count ? factor_at(p, col + i, row >> p.block_shift) : 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(OCT_ROWS_THREADS)
    decode_rows(const oct_decode_params p) {
    oct_after();
    oct_rows_at at = oct_rows_place(p.shape);
    int count = oct_columns_left(p.shape.cols, at.col);
    uint2 codes[OCT_ROWS_DEEP];
    float factors[8], x[8];
    int64_t block = -1; /* whose factors are at hand, where each column has its own */
    if (count == 0) {
        return;
    }
#pragma unroll
    for (int k = 0; k < OCT_ROWS_DEEP; k++) {
        int64_t row = at.row + k * at.step;
        codes[k] = row < p.shape.rows ? load_codes(p, row, at.col, count) : uint2{0, 0};
    }
#pragma unroll
    for (int k = 0; k < OCT_ROWS_DEEP; k++) {
        int64_t row = at.row + k * at.step;
        if (row < p.shape.rows) {
            if (!p.by_column || row >> p.block_shift != block) {
                row_factors(factors, p, row, at.col, count);
                block = row >> p.block_shift;
            }
            if (p.format == OCTET_E2M1) {
                decode_nibbles(x, codes[k].x);
            } else {
                decode_bytes(x, codes[k], p.format);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                x[i] *= factors[i];
            }
            oct_put(oct_plain_row_of(p.dst, row), at.col, eight_of(x, p.dst.dtype), count);
        }
    }
}

/* ---- the same for bf16, whole vectors, and factors that need no amax ------------------- */

#define DEEP OCT_STREAM_DEEP

/* Rows of 8 columns. */
struct stream_place {
    int64_t row, col;
};

/* N of the scales of 8 lines that lie together. */
template <int N>
static inline void load_scales(uint8_t out[N], const oct_decode_params &p, int64_t line,
                               int64_t block) {
    const uint8_t *from = (const uint8_t *)p.scale + oct_scale_at(&p.scales, line, block);
    int64_t step = p.scales.tiles ? 16 : p.scales.line_step;
#pragma unroll
    for (int k = 0; k < N; k++) {
        out[k] = from[k * step];
    }
}

/* 8 codes of a byte each, element i times factors[i]. */
static inline uint4 eight_bytes(const uint2 &codes, uint8_t format, const float *factors) {
    float x[8];
    oct_decode_eight(x, codes, format);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        x[i] *= factors[i];
    }
    return eight_of(x, OCTET_BF16).a;
}

/* FACTORS: one for the tensor (0), one for a row of a block (1), one for a column of it (2). */
template <int FORMAT, int FACTORS> struct stream_bytes {
    template <int N> static inline void rows(const oct_decode_params &p, stream_place at) {
        const uint8_t *from = p.codes + at.row * p.line_bytes + at.col;
        uint16_t *to = (uint16_t *)p.dst.at + at.row * p.dst.stride + at.col;
        uint2 codes[N];
        uint8_t scales[FACTORS == 1 ? N : 8] = {0};
        float factors[FACTORS == 1 ? N : 8];
#pragma unroll
        for (int k = 0; k < N; k++) {
            codes[k] = oct_stream8(from + k * p.line_bytes);
        }
        if constexpr (FACTORS == 1) {
            load_scales<N>(scales, p, at.row, at.col / 32);
        } else if constexpr (FACTORS == 2) {
            load_scales<8>(scales, p, at.col, at.row / 32);
        }
        float one = FACTORS == 0 && p.scale ? *(const float *)p.scale : 1.0f;
#pragma unroll
        for (int i = 0; i < (FACTORS == 1 ? N : 8); i++) {
            factors[i] = FACTORS == 0 ? one : oct_e8m0_decode(scales[i]);
        }
#pragma unroll
        for (int k = 0; k < N; k++) {
            float each[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                each[i] = factors[FACTORS == 1 ? k : i];
            }
            oct_write16(to + k * p.dst.stride, eight_bytes(codes[k], FORMAT, each));
        }
    }
};

/* The scale of a row of a block in both halves of a word, as bf16. */
static inline uint32_t nibble_scale(uint8_t code, int format) {
    if (format == OCTET_E4M3) {
        return oct_scale_pair(code);
    }
    uint32_t bits = oct_f32_bits(oct_e8m0_decode(code));
    return oct_pick_bytes(bits, bits, 0x3232);
}

/* Blocks of 16 have scales of E4M3, those of 32 of E8M0. */
template <int SCALE> struct stream_nibbles {
    template <int N> static inline void rows(const oct_decode_params &p, stream_place at) {
        const uint8_t *from = p.codes + at.row * p.line_bytes + at.col / 2;
        uint16_t *to = (uint16_t *)p.dst.at + at.row * p.dst.stride + at.col;
        uint32_t codes[N];
        uint8_t scales[N];
#pragma unroll
        for (int k = 0; k < N; k++) {
            codes[k] = oct_stream4(from + k * p.line_bytes);
        }
        load_scales<N>(scales, p, at.row, at.col / (SCALE == OCTET_E4M3 ? 16 : 32));
#pragma unroll
        for (int k = 0; k < N; k++) {
            oct_write16(to + k * p.dst.stride,
                        oct_eight_nibbles(codes[k], nibble_scale(scales[k], SCALE)));
        }
    }
};

/* 8 rows at once; where there are fewer, one by one. */
template <class S> static inline void stream(const oct_decode_params &p) {
    stream_place at;
    at.col = ((int64_t)blockIdx.x * OCT_WARP + threadIdx.x % OCT_WARP) * 8;
    at.row = (int64_t)blockIdx.y * OCT_STREAM_ROWS + threadIdx.x / OCT_WARP * DEEP;
    if (at.col >= p.shape.cols) {
        return;
    }
    if (at.row + DEEP <= p.shape.rows) {
        S::template rows<DEEP>(p, at);
        return;
    }
#pragma unroll 1
    for (; at.row < p.shape.rows; at.row++) {
        S::template rows<1>(p, at);
    }
}

#define STREAM(name, ...)                                                                      \
    extern "C" __global__ void __launch_bounds__(OCT_STREAM_THREADS)                           \
        decode_##name(const oct_decode_params p) {                                             \
        oct_after();                                                                           \
        stream<__VA_ARGS__>(p);                                                                \
    }

STREAM(nibbles_bf16, stream_nibbles<OCTET_E4M3>)
STREAM(nibbles32_bf16, stream_nibbles<OCTET_E8M0>)
STREAM(e4m3_bf16, stream_bytes<OCTET_E4M3, 0>)
STREAM(e5m2_bf16, stream_bytes<OCTET_E5M2, 0>)
STREAM(e4m3_rows_bf16, stream_bytes<OCTET_E4M3, 1>)
STREAM(e5m2_rows_bf16, stream_bytes<OCTET_E5M2, 1>)
STREAM(e4m3_cols_bf16, stream_bytes<OCTET_E4M3, 2>)
STREAM(e5m2_cols_bf16, stream_bytes<OCTET_E5M2, 2>)

/* ---- codes that lie transposed --------------------------------------------------------- */

#define SIDE OCT_DECODE_SIDE
#define BLOCKS 8           /* of 16 rows, in a tile */
#define FACTORS (SIDE + 4) /* floats from one block's factors to the next */

/* 128 x 128 codes, a byte each, as the rows of dst lie; and the factor of each column. */
struct decode_tile {
    uint4 codes[SIDE * SIDE / 16];
    float factors[BLOCKS][FACTORS];
};

/* Nibbles of a word to bytes: those of its low and of its high half. */
static inline uint32_t spread(uint32_t x) {
    x = (x & 0xffu) | (x & 0xff00u) << 8;
    return (x & 0x000f000fu) | (x & 0x00f000f0u) << 4;
}

static inline uint4 spread8(uint32_t low, uint32_t high) {
    return {spread(low & 0xffffu), spread(low >> 16), spread(high & 0xffffu),
            spread(high >> 16)};
}

/* 16 codes of a line from `row` on, a byte each; those past its end are 0. */
static inline uint4 load_line(const oct_decode_params &p, int64_t line, int64_t row) {
    bool nibbles = p.format == OCTET_E2M1;
    int64_t left = p.length - row;
    const uint8_t *at = p.codes + line * p.line_bytes + (nibbles ? row / 2 : row);
    if (left >= 16 && p.wide && !nibbles) {
        return oct_load16(at);
    }
    uint32_t words[4] = {0, 0, 0, 0};
    if (left >= 16 && p.wide) {
        uint2 pairs = *(const uint2 *)at;
        return spread8(pairs.x, pairs.y);
    }
    int64_t bytes = nibbles ? (left + 1) / 2 : left;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        if (i < bytes && (i < 8 || !nibbles)) {
            words[i / 4] |= (uint32_t)at[i] << (i % 4 * 8);
        }
    }
    return nibbles ? spread8(words[0], words[1])
                   : uint4{words[0], words[1], words[2], words[3]};
}

/* Word (row, column / 4) lies at row * 32 + (column / 4 ^ 4 (row / 16)): without conflicts
 * both for the words of 8 threads along and 4 across the lines, and for rows. */
static inline void fill_codes(decode_tile &tile, const oct_decode_params &p, int64_t row,
                              int64_t col) {
    uint32_t *words = (uint32_t *)tile.codes;
    int piece = (int)threadIdx.x % 8, four = (int)threadIdx.x / 8;
    uint4 x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int64_t line = col + 4 * four + i;
        bool there = line < p.shape.cols && row + 16 * piece < p.length;
        x[i] = there ? load_line(p, line, row + 16 * piece) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int w = 0; w < 4; w++) {
        uint32_t turned[4], lines[4] = {oct_word(x[0], w), oct_word(x[1], w), oct_word(x[2], w),
                                        oct_word(x[3], w)};
        oct_turn4(turned, lines);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            words[(16 * piece + 4 * w + i) * 32 + (four ^ 4 * piece)] = turned[i];
        }
    }
}

/* By 16 rows each, whatever the blocks are. */
static inline void fill_factors(decode_tile &tile, const oct_decode_params &p, int64_t row,
                                int64_t col) {
    int each = p.block_shift < 7 ? BLOCKS : 1;
    for (int i = (int)threadIdx.x; i < each * SIDE; i += OCT_DECODE_THREADS) {
        int block = i % each, c = i / each;
        bool there = col + c < p.shape.cols && row + 16 * block < p.length;
        tile.factors[block][c] =
            there ? factor_at(p, col + c, (row + 16 * block) >> p.block_shift) : 0.0f;
    }
}

static inline void start_tile(decode_tile &tile, const oct_decode_params &p, int64_t at[2]) {
    uint32_t across = (uint32_t)oct_size_ceil_div(p.shape.cols, SIDE);
    uint32_t down = blockIdx.x / across, beside = blockIdx.x - down * across;
    at[0] = (int64_t)down * SIDE;
    at[1] = (int64_t)beside * SIDE;
    fill_codes(tile, p, at[0], at[1]);
    fill_factors(tile, p, at[0], at[1]);
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(OCT_DECODE_THREADS)
    decode_turned(const oct_decode_params p) {
    oct_after();
    __shared__ decode_tile tile;
    int64_t first[2];
    start_tile(tile, p, first);
    const uint2 *pairs = (const uint2 *)tile.codes;
    int piece = (int)threadIdx.x % 16, down = (int)threadIdx.x / 16;
    int64_t col = first[1] + 8 * piece;
    int count = oct_columns_left(p.shape.cols, col);
#pragma unroll 4
    for (int i = 0; i < SIDE / 16; i++) {
        int row = 16 * i + down;
        if (count == 0 || first[0] + row >= p.shape.rows) {
            break;
        }
        float x[8];
        const float *factors = tile.factors[p.block_shift < 7 ? i : 0] + 8 * piece;
        decode_bytes(x, pairs[row * 16 + (piece ^ 2 * i)], p.format);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            x[k] *= factors[k];
        }
        oct_put(oct_plain_row_of(p.dst, first[0] + row), col, eight_of(x, p.dst.dtype), count);
    }
}

/* ---- the same of nibbles for bf16, whole pieces, and factors that need no amax --------- */

/* The factors of 8 lines in two blocks of 16 that follow each other: those of lines 2 i and
 * 2 i + 1 in block b are out[b][i]. */
static inline void line_factors(uint32_t out[2][4], const oct_decode_params &p, int64_t line,
                                int64_t block) {
    const uint8_t *from = (const uint8_t *)p.scale + oct_scale_at(&p.scales, line, block);
    int64_t step = p.scales.tiles ? 16 : p.scales.line_step;
    uint32_t codes[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        codes[i] = *(const uint16_t *)(from + i * step);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float even[2], odd[2];
        oct_decode_two(even, codes[2 * i], OCTET_E4M3);
        oct_decode_two(odd, codes[2 * i + 1], OCTET_E4M3);
        for (int b = 0; b < 2; b++) {
            out[b][i] = oct_pick_bytes(oct_f32_bits(even[b]), oct_f32_bits(odd[b]), 0x7632);
        }
    }
}

/* The same of one block of 32. */
static inline void long_factors(uint32_t out[2][4], const oct_decode_params &p, int64_t line,
                                int64_t block) {
    uint8_t codes[8];
    load_scales<8>(codes, p, line, block);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[0][i] = out[1][i] =
            oct_bf16_pair(oct_e8m0_decode(codes[2 * i]), oct_e8m0_decode(codes[2 * i + 1]));
    }
}

/* A thread turns 32 rows of 8 lines in registers: 16 bytes of each, and as many stores of 8
 * columns. A warp has 128 lines and 64 rows. */
extern "C" __global__ void __launch_bounds__(OCT_TURN_THREADS)
    decode_turned_bf16(const oct_decode_params p) {
    oct_after();
    int64_t line = ((int64_t)blockIdx.x * 16 + threadIdx.x / 2 % 16) * 8;
    int64_t row = (int64_t)blockIdx.y * OCT_TURN_ROWS + threadIdx.x / 32 * 64;
    row += threadIdx.x % 2 * 32;
    if (line >= p.shape.cols || row >= p.shape.rows) {
        return;
    }
    const uint8_t *from = p.codes + line * p.line_bytes + row / 2;
    uint16_t *to = (uint16_t *)p.dst.at + row * p.dst.stride + line;
    uint4 codes[8];
    uint32_t factors[2][4];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        codes[i] = oct_stream16(from + i * p.line_bytes);
    }
    if (p.block_shift == 4) {
        line_factors(factors, p, line, row / 16);
    } else {
        long_factors(factors, p, line, row / 32);
    }
#pragma unroll
    for (int w = 0; w < 4; w++) {
        uint32_t x[8];
#pragma unroll
        for (int i = 0; i < 8; i++) { /* lines 2 i and 2 i + 1 become nibbles i and i + 4 */
            x[i] = oct_word(codes[i < 4 ? 2 * i : 2 * i - 7], w);
        }
        oct_turn_nibbles(x);
#pragma unroll
        for (int r = 0; r < 8; r++) {
            const uint32_t *f = factors[w / 2];
            oct_write16(to,
                        uint4{oct_nibble_pair(x[r], 0, f[0]), oct_nibble_pair(x[r], 1, f[1]),
                              oct_nibble_pair(x[r], 2, f[2]), oct_nibble_pair(x[r], 3, f[3])});
            to += p.dst.stride;
        }
    }
}

/* ---- the transform undone -------------------------------------------------------------- */

/* A thread has 16 rows of one column. All 16 are decoded, those that exist are written. */
extern "C" __global__ void __launch_bounds__(OCT_DECODE_THREADS)
    decode_transformed(const oct_decode_params p) {
    oct_after();
    __shared__ decode_tile tile;
    int64_t first[2];
    start_tile(tile, p, first);
    const uint8_t *bytes = (const uint8_t *)tile.codes;
    int c = (int)threadIdx.x % SIDE;
    for (int group = (int)threadIdx.x / SIDE; group < BLOCKS; group += 2) {
        int64_t row = first[0] + 16 * group;
        float x[OCT_HADAMARD_ROWS];
        if (first[1] + c >= p.shape.cols || row >= p.shape.rows) {
            break;
        }
#pragma unroll
        for (int r = 0; r < OCT_HADAMARD_ROWS; r++) {
            int word = c / 4 ^ 4 * group;
            x[r] = decode_nibble(bytes[((16 * group + r) * 32 + word) * 4 + c % 4]) *
                   tile.factors[group][c];
        }
        oct_hadamard_undo(x, p.signs);
#pragma unroll
        for (int r = 0; r < OCT_HADAMARD_ROWS; r++) {
            float value[8] = {x[r]};
            if (row + r < p.shape.rows) {
                oct_store_some(oct_plain_row_of(p.dst, row + r), first[1] + c,
                               oct_eight_of(value, p.dst.dtype), 1);
            }
        }
    }
}
