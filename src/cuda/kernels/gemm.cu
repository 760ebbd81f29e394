/* gemm.cu - the product for whatever the GEMM library does not take: any operands, any shape.
 *
 * gemm_f16 decodes FP8 and FP4 codes (those of NVFP4 times their block's scale) into shared
 * memory, as f16, which holds them exactly, and multiplies on tensor cores, summing in fp32.
 * Floats and powers of two as scales do not always fit there: gemm_f16_scaled sums a block's
 * codes by themselves and adds that sum times both scales. gemm_bf16 is for plain bf16, alone
 * or beside codes without such scales; gemm_f32 multiplies floats: it takes everything.
 *
 * Terms are summed in a fixed order, so a product gives the same bytes each time; against the
 * exact value it keeps the bound that the CPU's product states, as far as the tensor cores' own
 * sums are those of fp32. */
#include "cuda/kernels/chain.h"
#include "cuda/kernels/codes.h"
#include "cuda/kernels/finish.h"
#include "cuda/kernels/fragments.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/e5m2.h"
#include "format/e8m0.h"
#include "format/f16.h"

#define TILE OCT_GEMM_TILE
#define STEP OCT_GEMM_STEP
/* Elements from one row of a tile in shared memory to the next: eight rows, 16 bytes of each,
 * lie in different banks. */
#define PITCH_ALONG (STEP + 8)
#define PITCH_ACROSS (TILE + 8)
#define TILE_ELEMENTS (TILE * PITCH_ALONG)

static_assert(STEP * PITCH_ACROSS <= TILE_ELEMENTS, "either layout of a tile fits");
static_assert(TILE * STEP == OCT_GEMM_THREADS * 16, "a thread decodes 16 elements of a tile");

/* ---- 16 codes as 16-bit elements ------------------------------------------------------- */

struct f16 {
    static constexpr bool is_bf16 = false;
    static constexpr int words = 4; /* of 16 codes, at most */

    static __device__ float value(uint32_t bits) {
        return oct_f16_decode(static_cast<uint16_t>(bits));
    }

    static __device__ __forceinline__ void decode(uint32_t *out, const uint32_t *raw,
                                                  uint32_t format, uint32_t scale) {
        if (format == OCTET_E4M3) {
            oct_f16_of_16_e4m3(out, raw);
        } else if (format == OCTET_E5M2) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                out[i] = __byte_perm(raw[i / 2], 0, i % 2 ? 0x3424 : 0x1404);
            }
        } else {
            uint32_t by = oct_f16_of_e4m3(scale | scale << 8);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                out[i] = oct_f16_times(oct_f16_of_e2m1(raw[i / 4] >> i % 4 * 8 & 0xffu), by);
            }
        }
    }
};

/* One code as a float; scale is an E4M3 code. */
static __device__ __forceinline__ float float_of(uint32_t code, uint32_t format,
                                                 uint32_t scale) {
    uint8_t byte = static_cast<uint8_t>(code);
    return format == OCTET_E4M3 ? oct_e4m3_decode(byte)
           : format == OCTET_E5M2
               ? oct_e5m2_decode(byte)
               : oct_e2m1_decode(byte) * oct_e4m3_decode(static_cast<uint8_t>(scale));
}

struct bf16 {
    static constexpr bool is_bf16 = true;
    static constexpr int words = 8;

    static __device__ float value(uint32_t bits) {
        return oct_bf16_decode(static_cast<uint16_t>(bits));
    }

    static __device__ __forceinline__ void decode(uint32_t *out, const uint32_t *raw,
                                                  uint32_t format, uint32_t scale) {
        int bits = format == OCTET_E2M1 ? 4 : 8;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (format == OCTET_BF16) {
                out[i] = raw[i];
                continue;
            }
            uint32_t pair = bits == 4 ? raw[i / 4] >> i % 4 * 8 : raw[i / 2] >> i % 2 * 16;
            float low = float_of(pair, format, scale);
            float high = float_of(pair >> bits, format, scale);
            out[i] = oct_f32_bits(low) >> 16 | (oct_f32_bits(high) & 0xffff0000u);
        }
    }
};

/* ---- operands from memory -------------------------------------------------------------- */

static __device__ __forceinline__ int64_t scale_index(const oct_gemm_operand &o, int64_t outer,
                                                      int64_t p) {
    int64_t row = o.across ? p : outer, col = o.across ? outer : p;
    return o.lines_down ? oct_scale_at(&o.scales, col, row >> o.shift)
                        : oct_scale_at(&o.scales, row, col >> o.shift);
}

/* The scale that a block's sum is multiplied by; one of E4M3 is in its elements. */
static __device__ __forceinline__ float block_scale(const oct_gemm_operand &o, int64_t outer,
                                                    int64_t p) {
    if (!o.scale || o.scale_format == OCTET_E4M3 || outer >= o.outer) {
        return 1.0f;
    }
    int64_t at = scale_index(o, outer, p);
    return o.scale_format == OCTET_F32
               ? static_cast<const float *>(o.scale)[at]
               : oct_e8m0_decode(static_cast<const uint8_t *>(o.scale)[at]);
}

/* The E4M3 code that FP4 elements are multiplied by: their block's, or 1 where the block's sum
 * is multiplied instead. */
static __device__ __forceinline__ uint32_t element_scale(const oct_gemm_operand &o,
                                                         int64_t outer, int64_t p) {
    return o.scale_format == OCTET_E4M3
               ? static_cast<const uint8_t *>(o.scale)[scale_index(o, outer, p)]
               : 0x38u;
}

/* 4 Words bytes that lie anywhere; of those past `bytes` nothing is read and 0 returned. */
template <int Words>
static __device__ __forceinline__ void load_bytes(uint32_t *out, const uint8_t *at,
                                                  int64_t bytes) {
    uintptr_t address = reinterpret_cast<uintptr_t>(at);
    constexpr int wide = Words < 4 ? 8 : 16;
    if (bytes >= 4 * Words && address % wide == 0) {
#pragma unroll
        for (int i = 0; i < Words; i += wide / 4) {
            if constexpr (wide == 16) {
                uint4 four = *reinterpret_cast<const uint4 *>(at + 4 * i);
                out[i] = four.x, out[i + 1] = four.y;
                out[i + 2] = four.z, out[i + 3] = four.w;
            } else {
                uint2 two = *reinterpret_cast<const uint2 *>(at + 4 * i);
                out[i] = two.x, out[i + 1] = two.y;
            }
        }
        return;
    }
#ifndef OCTET_EMULATED
    if (bytes >= 4 * Words) {
        /* The words that hold these bytes: none without one of them, so none out of reach. */
        uint32_t skip = static_cast<uint32_t>(address) % 4;
        const uint32_t *word = reinterpret_cast<const uint32_t *>(at - skip);
        uint32_t held = word[0];
#pragma unroll
        for (int i = 0; i < Words; i++) {
            uint32_t next = i + 1 < Words || skip ? word[i + 1] : 0;
            out[i] = __funnelshift_r(held, next, skip * 8);
            held = next;
        }
        return;
    }
#endif
#pragma unroll
    for (int i = 0; i < Words; i++) {
        out[i] = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (4 * i + j < bytes) {
                out[i] |= static_cast<uint32_t>(at[4 * i + j]) << 8 * j;
            }
        }
    }
}

static __device__ __forceinline__ int bits_of(const oct_gemm_operand &o) {
    return o.format == OCTET_E2M1 ? 4 : o.format == OCTET_BF16 ? 16 : 8;
}

/* The 16 elements of a tile that a thread decodes: where they lie, and their place in the tile.
 * Along the product two threads share a row of 32; across it eight share a row of 128. */
template <class Element> struct chunk {
    const uint8_t *at;
    int64_t outer, p; /* of the first element */
    int64_t advance;  /* bytes from one step's elements to the next step's */
    int place;        /* elements from the start of the tile */
    uint32_t raw[Element::words];
    uint32_t scale; /* FP4: the code of their block's scale */
};

template <class Element>
static __device__ __forceinline__ chunk<Element> chunk_of(const oct_gemm_operand &o,
                                                          int64_t first) {
    int t = static_cast<int>(threadIdx.x), bits = bits_of(o);
    int outer = o.across ? t % 8 * 16 : t / 2, p = o.across ? t / 8 : t % 2 * 16;
    chunk<Element> c;
    c.outer = first + outer;
    c.p = p;
    c.place = o.across ? p * PITCH_ACROSS + outer : outer * PITCH_ALONG + p;
    c.advance = o.across ? STEP * o.pitch : STEP * bits / 8;
    c.at = o.data +
           (o.across ? c.p * o.pitch + c.outer * bits / 8 : c.outer * o.pitch + c.p * bits / 8);
    return c;
}

/* Loads a step's elements, zeros where there are none, and goes on to the next step's. */
template <class Element>
static __device__ __forceinline__ void fetch(chunk<Element> &c, const oct_gemm_operand &o) {
    int64_t along = o.across ? o.outer - c.outer : o.depth - c.p;
    bool inside = o.across ? c.p < o.depth : c.outer < o.outer;
    int64_t count = inside ? min(along, static_cast<int64_t>(16)) : 0;
    if (o.format == OCTET_E2M1) {
        load_bytes<2>(c.raw, c.at, (count + 1) / 2);
        c.scale = count > 0 ? element_scale(o, c.outer, c.p) : 0;
    } else if (!Element::is_bf16 || o.format != OCTET_BF16) {
        load_bytes<4>(c.raw, c.at, count);
    } else {
        load_bytes<Element::words>(c.raw, c.at, count * 2);
    }
    c.at += c.advance;
    c.p += STEP;
}

template <class Element>
static __device__ __forceinline__ void put(uint16_t *tile, const chunk<Element> &c,
                                           const oct_gemm_operand &o) {
    uint32_t out[8];
    Element::decode(out, c.raw, o.format, c.scale);
    uint4 *to = reinterpret_cast<uint4 *>(tile + c.place);
    to[0] = make_uint4(out[0], out[1], out[2], out[3]);
    to[1] = make_uint4(out[4], out[5], out[6], out[7]);
}

/* ---- a tile of dst --------------------------------------------------------------------- */

struct __align__(16) tiles {
    uint16_t a[TILE_ELEMENTS], b[TILE_ELEMENTS];
    float scale[2][TILE]; /* of a's and b's blocks of this step */
};

/* Where a thread's sums lie: a warp has 64 rows by 32 columns of the tile. */
struct seat {
    int row, col; /* of the warp */
    int lane;
};

static __device__ __forceinline__ seat seat_of_thread() {
    int warp = static_cast<int>(threadIdx.x) / 32;
    return {warp / 4 * 64, warp % 4 * 32, static_cast<int>(threadIdx.x) % 32};
}

typedef float sums[4][4][4]; /* by 16 rows, by 8 columns, by element of a fragment */

template <class Element>
static __device__ __forceinline__ void multiply_step(sums &sum, const tiles &t,
                                                     const oct_gemm_params &g, const seat &s) {
    int low = s.lane % 8, mid = s.lane / 8 % 2 * 8, high = s.lane / 16 * 8;
#pragma unroll
    for (int p = 0; p < STEP; p += 16) {
        uint32_t a[4][4], b[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = s.row + i * 16;
            oct_load_matrices(a[i],
                              t.a + (g.a.across ? (p + high + low) * PITCH_ACROSS + row + mid
                                                : (row + mid + low) * PITCH_ALONG + p + high),
                              g.a.across);
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int col = s.col + j * 16;
            oct_load_matrices(b[j],
                              t.b + (g.b.across ? (p + mid + low) * PITCH_ACROSS + col + high
                                                : (col + high + low) * PITCH_ALONG + p + mid),
                              g.b.across);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                oct_multiply<Element>(sum[i][j], a[i], b[j / 2] + j % 2 * 2);
            }
        }
    }
}

/* sum += part * the scales of its rows and columns; part = 0. */
static __device__ __forceinline__ void add_scaled(sums &sum, sums &part, const tiles &t,
                                                  const seat &s) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float row = t.scale[0][s.row + i * 16 + s.lane / 4 + e / 2 * 8];
                float col = t.scale[1][s.col + j * 8 + s.lane % 4 * 2 + e % 2];
                sum[i][j][e] = __fmaf_rn(part[i][j][e] * row, col, sum[i][j][e]);
                part[i][j][e] = 0.0f;
            }
        }
    }
}

/* ---- from sums to dst ------------------------------------------------------------------ */

/* Two columns side by side, by one store where they lie well. */
static __device__ __forceinline__ void store_pair(const oct_gemm_params &g, const oct_finish &f,
                                                  const float *pair, int64_t row, int64_t col) {
    int64_t at = row * g.stride + col;
    if (row >= g.a.outer || col >= g.b.outer) {
        return;
    }
    float low = oct_finished(g, f, pair[0], row, col);
    if (col + 1 == g.b.outer) {
        oct_store_plain(g.dst, at, g.dtype, low);
        return;
    }
    float high = oct_finished(g, f, pair[1], row, col + 1);
    uint16_t *to = static_cast<uint16_t *>(g.dst) + at;
    if (g.dtype == OCTET_F32 || reinterpret_cast<uintptr_t>(to) % 4 != 0) {
        oct_store_plain(g.dst, at, g.dtype, low);
        oct_store_plain(g.dst, at + 1, g.dtype, high);
        return;
    }
    uint32_t first = g.dtype == OCTET_BF16 ? oct_bf16_encode(low) : oct_f16_encode(low);
    uint32_t second = g.dtype == OCTET_BF16 ? oct_bf16_encode(high) : oct_f16_encode(high);
    *reinterpret_cast<uint32_t *>(to) = first | second << 16;
}

/* ---- the kernels ----------------------------------------------------------------------- */

/* The tile of this block: GROUP tiles down, then the next column of tiles. */
struct corner {
    int64_t row, col;
};

static __device__ __forceinline__ corner corner_of_block(const oct_gemm_params &g, int tile) {
    uint32_t in_group = OCT_GEMM_GROUP * g.cols, group = blockIdx.x / in_group;
    uint32_t at = blockIdx.x % in_group, first = group * OCT_GEMM_GROUP;
    uint32_t down = min(g.rows - first, static_cast<uint32_t>(OCT_GEMM_GROUP));
    return {static_cast<int64_t>(first + at % down) * tile,
            static_cast<int64_t>(at / down) * tile};
}

/* This thread's scale of a step: a row's or a column's. */
static __device__ __forceinline__ float fetch_scale(const oct_gemm_params &g,
                                                    const corner &tile, int64_t p) {
    int64_t at = threadIdx.x % TILE;
    return threadIdx.x < TILE ? block_scale(g.a, tile.row + at, p)
                              : block_scale(g.b, tile.col + at, p);
}

template <class Element, bool Scaled>
static __device__ __forceinline__ void product(const oct_gemm_params &g) {
    __shared__ tiles memory[2];
    corner tile = corner_of_block(g, TILE);
    seat s = seat_of_thread();
    sums sum = {}, part = {};
    chunk<Element> a = chunk_of<Element>(g.a, tile.row), b = chunk_of<Element>(g.b, tile.col);
    float scale = 1.0f;
    int steps = static_cast<int>((g.a.depth + STEP - 1) / STEP);
    /* While step n is multiplied, the elements of step n + 1 are on their way. */
    for (int step = -1; step < steps; step++) {
        bool more = step + 1 < steps;
        if (more) {
            fetch(a, g.a);
            fetch(b, g.b);
            if constexpr (Scaled) {
                scale = fetch_scale(g, tile, static_cast<int64_t>(step + 1) * STEP);
            }
        }
        if (step >= 0) {
            const tiles &now = memory[step % 2];
            if constexpr (Scaled) {
                multiply_step<Element>(part, now, g, s);
                if (!more || (step + 1) % g.flush == 0) {
                    add_scaled(sum, part, now, s);
                }
            } else {
                multiply_step<Element>(sum, now, g, s);
            }
        }
        if (more) {
            tiles &next = memory[(step + 1) % 2];
            put<Element>(next.a, a, g.a);
            put<Element>(next.b, b, g.b);
            if constexpr (Scaled) {
                next.scale[threadIdx.x / TILE][threadIdx.x % TILE] = scale;
            }
        }
        __syncthreads();
    }
    oct_finish f = oct_finish_of(g);
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int64_t row = tile.row + s.row + i * 16 + s.lane / 4;
            int64_t col = tile.col + s.col + j * 8 + s.lane % 4 * 2;
            store_pair(g, f, sum[i][j], row, col);
            store_pair(g, f, sum[i][j] + 2, row + 8, col);
        }
    }
}

extern "C" __global__ void __launch_bounds__(OCT_GEMM_THREADS, 2) gemm_f16(oct_gemm_params g) {
    oct_after();
    product<f16, false>(g);
}

extern "C" __global__ void __launch_bounds__(OCT_GEMM_THREADS, 1)
    gemm_f16_scaled(oct_gemm_params g) {
    oct_after();
    product<f16, true>(g);
}

extern "C" __global__ void __launch_bounds__(OCT_GEMM_THREADS, 2) gemm_bf16(oct_gemm_params g) {
    oct_after();
    product<bf16, false>(g);
}

/* Any element times its block's scale, as a float; 0 where there is none. */
static __device__ __forceinline__ float element(const oct_gemm_operand &o, int64_t outer,
                                                int64_t p) {
    if (outer >= o.outer || p >= o.depth) {
        return 0.0f;
    }
    int64_t row = o.across ? p : outer, col = o.across ? outer : p;
    const uint8_t *line = o.data + row * o.pitch;
    if (o.format == OCTET_F32 || o.format == OCTET_BF16 || o.format == OCTET_F16) {
        return oct_load_plain(line, col, o.format);
    }
    if (o.format == OCTET_E2M1) {
        float value =
            float_of(line[col / 2] >> col % 2 * 4, o.format, element_scale(o, outer, p));
        return value * block_scale(o, outer, p);
    }
    return float_of(line[col], o.format, 0) * block_scale(o, outer, p);
}

#define TILE_F OCT_GEMM_TILE_F32
#define STEP_F OCT_GEMM_STEP_F32

/* A tile of floats as [p][outer]; neighbouring threads read neighbouring elements. */
static __device__ __forceinline__ void put_floats(float (*tile)[TILE_F + 4],
                                                  const oct_gemm_operand &o, int64_t first,
                                                  int64_t from) {
    for (int i = static_cast<int>(threadIdx.x); i < TILE_F * STEP_F; i += OCT_GEMM_THREADS) {
        int outer = o.across ? i % TILE_F : i / STEP_F;
        int p = o.across ? i / TILE_F : i % STEP_F;
        tile[p][outer] = element(o, first + outer, from + p);
    }
}

extern "C" __global__ void __launch_bounds__(OCT_GEMM_THREADS) gemm_f32(oct_gemm_params g) {
    oct_after();
    __shared__ float a[STEP_F][TILE_F + 4], b[STEP_F][TILE_F + 4];
    corner tile = corner_of_block(g, TILE_F);
    int down = static_cast<int>(threadIdx.x) / 16 * 4,
        right = static_cast<int>(threadIdx.x) % 16;
    float sum[4][4] = {};
    for (int64_t p = 0; p < g.a.depth; p += STEP_F) {
        put_floats(a, g.a, tile.row, p);
        put_floats(b, g.b, tile.col, p);
        __syncthreads();
        for (int n = 0; n < STEP_F; n++) {
#pragma unroll
            for (int e = 0; e < 16; e++) {
                sum[e / 4][e % 4] =
                    __fmaf_rn(a[n][down + e / 4], b[n][right + e % 4 * 16], sum[e / 4][e % 4]);
            }
        }
        __syncthreads();
    }
    oct_finish f = oct_finish_of(g);
#pragma unroll
    for (int e = 0; e < 16; e++) {
        int64_t row = tile.row + down + e / 4, col = tile.col + right + e % 4 * 16;
        if (row < g.a.outer && col < g.b.outer) {
            oct_store_plain(g.dst, row * g.stride + col, g.dtype,
                            oct_finished(g, f, sum[e / 4][e % 4], row, col));
        }
    }
}
