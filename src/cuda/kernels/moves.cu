/* moves.cu - elements that only change place or dtype: cast, transpose, swizzle, assemble. */
#include "cuda/kernels/chain.h"
#include "cuda/kernels/moves.h"
#include "cuda/kernels/plain.h"

/* ---- cast ------------------------------------------------------------------------------ */

/* Between equal dtypes every bit is kept, NaN payloads included. */
extern "C" __global__ void __launch_bounds__(OCT_ROWS_THREADS) cast(const oct_cast_params p) {
    oct_after();
    oct_rows_at at = oct_rows_place(p.shape);
    int count = oct_columns_left(p.shape.cols, at.col);
    oct_eight raw[OCT_ROWS_DEEP];
    if (count == 0) {
        return;
    }
    oct_take_rows(raw, p.source, p.shape, at);
#pragma unroll
    for (int k = 0; k < OCT_ROWS_DEEP; k++) {
        int64_t row = at.row + k * at.step;
        if (row < p.shape.rows) {
            if (p.source.dtype != p.dst.dtype) {
                float x[8];
                oct_eight_floats(x, raw[k], p.source.dtype);
                raw[k] = oct_eight_of(x, p.dst.dtype);
            }
            oct_put(oct_plain_row_of(p.dst, row), at.col, raw[k], count);
        }
    }
}

/* ---- transpose of bytes and of nibbles ------------------------------------------------- */

static inline void move_float(const oct_float_move &move) {
    if (move.to) {
        *move.to = *move.from;
    }
}

static inline void move_floats(const oct_turn_params &p) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        move_float(p.floats[0]);
        move_float(p.floats[1]);
    }
}

/* 16 bytes of a line, from byte `at` on; those past its end are 0. */
static inline uint4 load_bytes(const uint8_t *line, int64_t at, int64_t bytes, bool wide) {
    if (wide) {
        return at < bytes ? oct_load16(line + at) : uint4{0, 0, 0, 0};
    }
    uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 16; i++) {
        if (at + i < bytes) {
            words[i / 4] |= (uint32_t)line[at + i] << (i % 4 * 8);
        }
    }
    return {words[0], words[1], words[2], words[3]};
}

static inline void store_bytes(uint8_t *line, int64_t at, int64_t bytes, const uint4 &x,
                               bool wide) {
    if (wide) {
        if (at < bytes) {
            oct_store16(line + at, x);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 16; i++) {
        if (at + i < bytes) {
            line[at + i] = (uint8_t)(oct_word(x, i / 4) >> (i % 4 * 8));
        }
    }
}

/* A tile of 128 x 128 bytes. A thread turns 4 lines of 16 bytes; word (element, line / 4) lies
 * at element * 32 + (line / 4 ^ 4 (element / 16)), so that neither the words of 8 threads
 * beside and 4 below each other nor 16 bytes of 8 threads share a bank. */
extern "C" __global__ void __launch_bounds__(OCT_TURN_THREADS)
    turn_bytes(const oct_turn_params p) {
    oct_after();
    __shared__ uint4 tile[OCT_TURN_SIDE * OCT_TURN_SIDE / 16];
    uint32_t *words = (uint32_t *)tile;
    uint32_t down = blockIdx.x / p.across, beside = blockIdx.x - down * p.across;
    int64_t line = (int64_t)down * OCT_TURN_SIDE, element = (int64_t)beside * OCT_TURN_SIDE;
    int piece = (int)threadIdx.x % 8, four = (int)threadIdx.x / 8;
    uint4 x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int64_t at = line + 4 * four + i;
        x[i] = at < p.lines ? load_bytes(p.from + at * p.from_bytes, element + 16 * piece,
                                         p.length, p.wide_from != 0)
                            : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int w = 0; w < 4; w++) {
        uint32_t turned[4], rows[4] = {oct_word(x[0], w), oct_word(x[1], w), oct_word(x[2], w),
                                       oct_word(x[3], w)};
        oct_turn4(turned, rows);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            words[(16 * piece + 4 * w + i) * 32 + (four ^ 4 * piece)] = turned[i];
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int e = i * 32 + four;
        if (element + e < p.length) {
            store_bytes(p.to + (element + e) * p.to_bytes, line + 16 * piece, p.lines,
                        tile[e * 8 + (piece ^ e / 16)], p.wide_to != 0);
        }
    }
    move_floats(p);
}

/* The same of nibbles, two a byte: a tile of 128 lines x 128 elements as it lies in memory,
 * then 8 lines' nibbles of one element at a time. */
extern "C" __global__ void __launch_bounds__(OCT_TURN_THREADS)
    turn_nibbles(const oct_turn_params p) {
    oct_after();
    __shared__ uint8_t tile[OCT_TURN_SIDE][OCT_TURN_SIDE / 2 + 4];
    uint32_t down = blockIdx.x / p.across, beside = blockIdx.x - down * p.across;
    int64_t line = (int64_t)down * OCT_TURN_SIDE, element = (int64_t)beside * OCT_TURN_SIDE;
    for (int i = (int)threadIdx.x; i < OCT_TURN_SIDE * 16; i += OCT_TURN_THREADS) {
        int row = i / 16, at = i % 16 * 4;
        const uint8_t *from = p.from + (line + row) * p.from_bytes + element / 2;
        for (int b = 0; b < 4; b++) {
            bool there = line + row < p.lines && element / 2 + at + b < p.from_bytes;
            tile[row][at + b] = there ? from[at + b] : 0;
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < OCT_TURN_SIDE * 16; i += OCT_TURN_THREADS) {
        int e = i / 16, at = i % 16 * 4;
        uint8_t *to = p.to + (element + e) * p.to_bytes + line / 2;
        for (int b = 0; b < 4 && element + e < p.length; b++) {
            uint32_t low = (uint32_t)tile[2 * (at + b)][e / 2] >> (e % 2 * 4) & 0xfu;
            uint32_t high = (uint32_t)tile[2 * (at + b) + 1][e / 2] >> (e % 2 * 4) & 0xfu;
            if (line / 2 + at + b < p.to_bytes) {
                to[at + b] = (uint8_t)(low | high << 4);
            }
        }
    }
    move_floats(p);
}

/* ---- scales in another place ----------------------------------------------------------- */

/* A line and a block. */
struct place {
    int64_t line, block;
};

/* The inverse of oct_scale_at, for padding as well. */
static inline place place_of(const oct_scales &s, int64_t at) {
    if (s.tiles) {
        int64_t tile = at / 512, down = tile / s.tiles;
        int in = (int)(at % 512);
        return {down * 128 + in % 16 / 4 * 32 + in / 16, (tile - down * s.tiles) * 4 + in % 4};
    }
    if (s.line_step == 1 && s.block_step != 1) {
        int64_t block = at / s.block_step;
        return {at - block * s.block_step, block};
    }
    int64_t line = at / s.line_step;
    return {line << s.share, at - line * s.line_step};
}

/* Where the scale of a place comes from; negative: it is padding. */
static inline int64_t source_of(const oct_scales_params &p, const place &to) {
    const oct_scales *from = &p.from_at;
    if (to.line >= p.to_at.lines || to.block >= p.to_at.blocks) {
        return -1;
    }
    if (p.way == OCT_SCALE_TURNED) {
        return oct_scale_at(from, to.block * p.side, to.line / p.side);
    }
    if (p.way == OCT_SCALE_JOIN_LINES) {
        int64_t rank = to.line / from->lines;
        return rank * from->count + oct_scale_at(from, to.line - rank * from->lines, to.block);
    }
    if (p.way == OCT_SCALE_JOIN_BLOCKS) {
        int64_t rank = to.block / from->blocks;
        return rank < p.ranks ? rank * from->count +
                                    oct_scale_at(from, to.line, to.block - rank * from->blocks)
                              : -1;
    }
    return oct_scale_at(from, to.line, to.block);
}

/* Four scales of a thread, which lie beside each other in `to`: of one line or of one block. */
template <class T> static inline void move_four(const oct_scales_params &p) {
    int64_t at = ((int64_t)blockIdx.x * OCT_SCALES_THREADS + threadIdx.x) * 4;
    if (at >= p.to_at.count) {
        return;
    }
    place first = place_of(p.to_at, at);
    bool down = !p.to_at.tiles && p.to_at.line_step == 1 && p.to_at.block_step != 1;
    alignas(16) T out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        place to = {first.line + (down ? i : 0), first.block + (down ? 0 : i)};
        int64_t from = source_of(p, to);
        out[i] = from < 0 ? (T)0 : ((const T *)p.from)[from];
    }
    T *to = (T *)p.to + at;
    if (p.wide && sizeof(T) == 1) {
        uint32_t word;
        memcpy(&word, out, sizeof word);
        *(uint32_t *)to = word;
    } else if (p.wide) {
        *(uint4 *)to = *(const uint4 *)out;
    } else {
        for (int i = 0; i < 4 && at + i < p.to_at.count; i++) {
            to[i] = out[i];
        }
    }
}

extern "C" __global__ void __launch_bounds__(OCT_SCALES_THREADS)
    move_scales(const oct_scales_params p) {
    oct_after();
    if (p.bytes == 4) {
        move_four<uint32_t>(p);
    } else {
        move_four<uint8_t>(p);
    }
}

/* ---- lines of whole 16 bytes ----------------------------------------------------------- */

/* 16 bytes from anywhere: of two pieces on a boundary, whose words move down by words and then
 * by bytes. */
static inline uint4 load_across(const uint8_t *from, int64_t at) {
    uint4 low = oct_load16(from + (at & ~(int64_t)15));
    uint4 high = oct_load16(from + (at & ~(int64_t)15) + 16);
    uint32_t w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    bool two = (at & 8) != 0, one = (at & 4) != 0;
#pragma unroll
    for (int i = 0; i < 6; i++) {
        w[i] = two ? w[i + 2] : w[i];
    }
#pragma unroll
    for (int i = 0; i < 5; i++) {
        w[i] = one ? w[i + 1] : w[i];
    }
    uint32_t bits = (uint32_t)(at & 3) * 8;
    return {__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
            __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits)};
}

/* Nothing is read beyond the last line. */
static inline uint4 padded_bytes(const oct_pad_params &p, int64_t line, int64_t at) {
    int64_t first = line * p.from_pitch + at;
    int64_t total = (p.lines - 1) * p.from_pitch + p.length;
    if (line >= p.lines) {
        return {0, 0, 0, 0};
    }
    if (p.wide && at + 16 <= p.length && (first & ~(int64_t)15) + 32 <= total) {
        return load_across(p.from, first);
    }
    return load_bytes(p.from + line * p.from_pitch, at, p.length, false);
}

extern "C" __global__ void __launch_bounds__(OCT_ROWS_THREADS)
    pad_lines(const __grid_constant__ oct_pad_all all) {
    oct_after();
    int which = 0;
    while (which + 1 < OCT_CUDA_PADDINGS && blockIdx.x >= all.of[which + 1].block) {
        which++;
    }
    const oct_pad_params &p = all.of[which];
    oct_rows_at at = oct_rows_place_of(p.shape, blockIdx.x - p.block);
    uint4 x[OCT_ROWS_DEEP];
    if (at.col >= p.shape.cols) {
        return;
    }
#pragma unroll
    for (int k = 0; k < OCT_ROWS_DEEP; k++) {
        x[k] = padded_bytes(p, at.row + k * at.step, 2 * at.col);
    }
#pragma unroll
    for (int k = 0; k < OCT_ROWS_DEEP; k++) {
        int64_t row = at.row + k * at.step;
        if (row < p.shape.rows) {
            oct_store16(p.to + row * p.pitch + 2 * at.col, x[k]);
        }
    }
}

/* ---- shards one after the other -------------------------------------------------------- */

/* Line i of the whole is line i of every rank. A block has a piece of one line of one rank. */
extern "C" __global__ void __launch_bounds__(OCT_JOIN_THREADS)
    join_lines(const oct_join_params p) {
    oct_after();
    int64_t line = blockIdx.x, rank = blockIdx.y;
    const uint8_t *from = p.from + (rank * p.lines + line) * p.bytes;
    uint8_t *to = p.to + (line * p.ranks + rank) * p.bytes;
    if (p.wide) {
        for (int64_t at = (int64_t)threadIdx.x * 16; at < p.bytes;
             at += OCT_JOIN_THREADS * 16) {
            oct_store16(to + at, oct_load16(from + at));
        }
    } else {
        for (int64_t at = threadIdx.x; at < p.bytes; at += OCT_JOIN_THREADS) {
            to[at] = from[at];
        }
    }
}

/* Shards with an odd number of rows end their lines in half a byte. */
extern "C" __global__ void __launch_bounds__(OCT_JOIN_THREADS)
    join_nibbles(const oct_join_params p) {
    oct_after();
    int64_t line = blockIdx.x;
    for (int64_t at = threadIdx.x; at < p.to_bytes; at += OCT_JOIN_THREADS) {
        uint32_t byte = 0;
        for (int half = 0; half < 2; half++) {
            int64_t r = 2 * at + half, rank = r / p.rows, row = r - rank * p.rows;
            if (rank < p.ranks) {
                uint32_t pair = p.from[(rank * p.lines + line) * p.bytes + row / 2];
                byte |= (pair >> (row % 2 * 4) & 0xfu) << (half * 4);
            }
        }
        p.to[line * p.to_bytes + at] = (uint8_t)byte;
    }
}
