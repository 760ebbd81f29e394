/* patch.h - a thread's share of a tile: 16 rows of 16 bytes, held in registers.
 *
 * A warp's lanes lie 8 beside each other, then 4 below. Eight lanes in a row load 128 bytes of
 * a row, one line of the level-1 cache: it takes 16 bytes of 8 lanes at a time, and as many
 * steps as these touch lines. A store of a turned patch writes whole sectors of columns, and
 * what blocks of 16 share lies in one thread or in neighbouring lanes. So both directions come
 * from one read. What lies outside the matrix is 0 and is not written. */
#ifndef OCT_CUDA_KERNELS_PATCH_H
#define OCT_CUDA_KERNELS_PATCH_H

#include "cuda/kernels/common.h"
#include "cuda/kernels/quantize.h"

#define OCT_PATCH_ROWS 16

template <class T> struct oct_shape {
    static constexpr int cols = oct_vector_of<T>::count;     /* of a patch: 8 or 4 */
    static constexpr int words = cols / 4;                   /* of the codes of one row */
    static constexpr int across = 8;                         /* lanes */
    static constexpr int down = OCT_WARP / across;           /* lanes */
    static constexpr int warps = OCT_TILE / (across * cols); /* beside each other: 2 or 4 */
    static constexpr int bands = OCT_TILE / (OCT_PATCH_ROWS * down); /* of them */
    static constexpr int threads = OCT_WARP * warps * bands;
    static constexpr int resident = warps > 2 ? 2 : 5; /* on a multiprocessor, at least */
};

template <class T> struct oct_patch {
    uint4 raw[OCT_PATCH_ROWS];
    int64_t tile_row, tile_col; /* of the tile's first element */
    int row, col;               /* of the patch in the tile */
    int rows_left, cols_left;   /* elements from there to the end of the matrix; may be < 0 */
    int lane_across, warp_across, band;
    bool full;
};

static inline int oct_limited(int64_t n) {
    return (int)(n < OCT_TILE ? n : OCT_TILE);
}

#define OCT_LINE 128 /* bytes that the level-2 cache fetches together */

/* By all threads of a block, after they have asked for their own: asks for another tile of 128
 * rows, so that it is on its way when its block begins. Few blocks fit on a multiprocessor at
 * once, and each waits for all of its tile. */
template <class T, int COLS>
static inline void oct_ask_for_tile(const oct_quantize_params &q, uint32_t tile) {
    constexpr int lines = COLS * (int)sizeof(T) / OCT_LINE, each = OCT_LINE / (int)sizeof(T);
    uint32_t down = tile / q.across;
    int64_t row = (int64_t)down * OCT_TILE, col = (int64_t)(tile - down * q.across) * COLS;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < OCT_TILE * lines; i += (int)blockDim.x) {
        int64_t r = row + i / lines, c = col + i % lines * each;
        if (r < q.rows && c < q.cols) {
            oct_ask_for((const T *)q.source + r * q.stride + c);
        }
    }
}

/* The patch at (row, col) of a tile. */
template <class T>
static inline oct_patch<T> oct_patch_in_tile(const oct_quantize_params &q, uint32_t tile,
                                             int row, int col) {
    oct_patch<T> p;
    p.tile_row = (int64_t)(tile / q.across) * OCT_TILE;
    p.tile_col = (int64_t)(tile % q.across) * OCT_TILE;
    p.row = row;
    p.col = col;
    p.rows_left = oct_limited(q.rows - p.tile_row) - p.row;
    p.cols_left = oct_limited(q.cols - p.tile_col) - p.col;
    p.full = p.rows_left >= OCT_PATCH_ROWS && p.cols_left >= oct_shape<T>::cols;
    return p;
}

/* This thread's patch of its block's tile. */
template <class T> static inline oct_patch<T> oct_patch_of(const oct_quantize_params &q) {
    typedef oct_shape<T> shape;
    int lane = (int)threadIdx.x % OCT_WARP, warp = (int)threadIdx.x / OCT_WARP;
    int lane_across = lane % shape::across, warp_across = warp % shape::warps;
    int band = warp / shape::warps;
    uint32_t tile = q.backward ? gridDim.x - 1u - blockIdx.x : blockIdx.x;
    oct_patch<T> p = oct_patch_in_tile<T>(
        q, tile, (band * shape::down + lane / shape::across) * OCT_PATCH_ROWS,
        (warp_across * shape::across + lane_across) * shape::cols);
    p.lane_across = lane_across;
    p.warp_across = warp_across;
    p.band = band;
    return p;
}

/* ---- elements -------------------------------------------------------------------------- */

/* 16 bytes of a row, in the largest units that it is aligned to; elements from `count` on are
 * 0. */
template <class T> static inline uint4 oct_load_some(const T *from, int count) {
    constexpr int cols = oct_shape<T>::cols;
    if (count >= cols && (uintptr_t)from % 8 == 0) {
        uint2 low = *(const uint2 *)from, high = *(const uint2 *)(from + cols / 2);
        return {low.x, low.y, high.x, high.y};
    }
    if (count >= cols && (uintptr_t)from % 4 == 0) {
        const uint32_t *words = (const uint32_t *)from;
        return {words[0], words[1], words[2], words[3]};
    }
    alignas(16) T some[cols];
#pragma unroll
    for (int c = 0; c < cols; c++) {
        some[c] = c < count ? from[c] : T{};
    }
    return oct_load16(some);
}

template <class T>
static inline void oct_patch_load_part(oct_patch<T> &p, const T *from, int64_t stride) {
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        p.raw[r] = oct_load_some(from + r * stride, r < p.rows_left ? p.cols_left : 0);
    }
}

template <class T>
static inline const T *oct_patch_from(const oct_patch<T> &p, const oct_quantize_params &q) {
    return (const T *)q.source + (p.tile_row + p.row) * q.stride + p.tile_col + p.col;
}

template <class T>
static inline void oct_patch_load(oct_patch<T> &p, const oct_quantize_params &q) {
    const T *from = oct_patch_from(p, q);
    if (!p.full || !q.wide_source) {
        oct_patch_load_part(p, from, q.stride);
        return;
    }
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        p.raw[r] = oct_stream16(from + r * q.stride);
    }
}

/* Where casts take patches from: the source, as it lies. kernels/apply.h has the other way. */
struct oct_lying {
    template <class T>
    inline void operator()(oct_patch<T> &p, const oct_quantize_params &q) const {
        oct_patch_load(p, q);
    }
};

/* Element i of 16 bytes. Which NaN it is does not matter to a code, so halves go without the
 * care that oct_f16_widen takes. */
template <class T> static inline float oct_patch_element(const uint4 &v, int i) {
    return oct_element<T>(v, i);
}

#if OCT_PTX
template <> inline float oct_patch_element<oct_f16>(const uint4 &v, int i) {
    uint32_t word = oct_word(v, i / 2);
    uint16_t code = i % 2 ? oct_high_u16(word) : oct_low_u16(word);
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(code));
    return value;
}
#endif

/* Element (r, c); both constants once loops are unrolled. */
template <class T> static inline float oct_patch_at(const oct_patch<T> &p, int r, int c) {
    return oct_patch_element<T>(p.raw[r], c);
}

/* ---- codes of one byte ----------------------------------------------------------------- */

/* Where a patch's codes go: that of (r, c) lies r row_step + c bytes behind the first. */
struct oct_codes_place {
    uint8_t *to;
    int64_t row_step;
    bool wide; /* the patch lies whole in the matrix, and lines are aligned */
};

/* Bytes as the rows lie. */
template <class T>
static inline oct_codes_place oct_patch_rows_of(const oct_patch<T> &p,
                                                const oct_quantize_params &q, uint8_t *data,
                                                bool wide) {
    int64_t at = (p.tile_row + p.row) * q.cols + p.tile_col + p.col;
    return {data + at, q.cols, wide && p.full};
}

/* One by one, those that exist. factor(r, c) is what an element is multiplied by. */
template <class T, int FORMAT, class F>
static inline void oct_patch_encode_each(const oct_patch<T> &p, const oct_codes_place &place,
                                         const F &factor) {
    typedef oct_shape<T> shape;
    alignas(16) T part[OCT_PATCH_ROWS * shape::cols];
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        oct_store16(part + r * shape::cols, p.raw[r]);
    }
#pragma unroll 1
    for (int i = 0; i < OCT_PATCH_ROWS * shape::cols; i++) {
        int r = i / shape::cols, c = i % shape::cols;
        if (r < p.rows_left && c < p.cols_left) {
            float value = oct_to_float(part[i]) * factor(r, c);
            uint32_t code = oct_encode4<FORMAT>(value, 0.0f, 0.0f, 0.0f);
            place.to[r * place.row_step + c] = (uint8_t)(code & 0xffu);
        }
    }
}

template <class T> static inline void oct_store_row(uint8_t *to, const uint32_t *codes) {
    if (oct_shape<T>::words == 2) {
        *(uint2 *)to = uint2{codes[0], codes[1]};
    } else {
        *(uint32_t *)to = codes[0];
    }
}

/* Bytes of a word, the first of which is byte `first` of a line, as far as they are in it. */
static inline void oct_put_bytes(uint8_t *line, int first, uint32_t word, int count) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (first + i >= 0 && first + i < count) {
            line[first + i] = (uint8_t)(word >> 8 * i);
        }
    }
}

/* Codes of a row that are not stored at once: it is not aligned, or ends among them. */
template <class T>
static inline void oct_store_some(uint8_t *to, const uint32_t *codes, int count) {
    constexpr int words = oct_shape<T>::words;
#pragma unroll
    for (int w = 0; w < words; w++) {
        if (count >= 4 * words && (uintptr_t)to % 4 == 0) {
            ((uint32_t *)to)[w] = codes[w];
        } else {
            oct_put_bytes(to, 4 * w, codes[w], count);
        }
    }
}

/* 16 rows of a column, by `unit` bytes: 16, 8 or 4. */
static inline void oct_store_col(uint8_t *to, uint4 codes, int unit) {
    if (unit == 16) {
        oct_store16(to, codes);
    } else if (unit == 8) {
        *(uint2 *)to = uint2{codes.x, codes.y};
        *(uint2 *)(to + 8) = uint2{codes.z, codes.w};
    } else {
        *(uint32_t *)to = codes.x;
        *(uint32_t *)(to + 4) = codes.y;
        *(uint32_t *)(to + 8) = codes.z;
        *(uint32_t *)(to + 12) = codes.w;
    }
}

/* As the rows lie; WIDE: as the place says. */
template <class T, int FORMAT, bool WIDE, class F>
static inline void oct_patch_encode_rows_as(const oct_patch<T> &p, const oct_codes_place &place,
                                            const F &factor) {
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        uint32_t codes[2];
#pragma unroll
        for (int w = 0; w < oct_shape<T>::words; w++) {
            codes[w] =
                oct_encode4<FORMAT>(oct_patch_at(p, r, 4 * w) * factor(r, 4 * w),
                                    oct_patch_at(p, r, 4 * w + 1) * factor(r, 4 * w + 1),
                                    oct_patch_at(p, r, 4 * w + 2) * factor(r, 4 * w + 2),
                                    oct_patch_at(p, r, 4 * w + 3) * factor(r, 4 * w + 3));
        }
        if (WIDE) {
            oct_store_row<T>(place.to + r * place.row_step, codes);
        } else if (r < p.rows_left) {
            oct_store_some<T>(place.to + r * place.row_step, codes, p.cols_left);
        }
    }
}

template <class T, int FORMAT, class F>
static inline void oct_patch_encode_rows(const oct_patch<T> &p, const oct_codes_place &place,
                                         const F &factor) {
    if (place.wide) {
        oct_patch_encode_rows_as<T, FORMAT, true>(p, place, factor);
    } else {
        oct_patch_encode_rows_as<T, FORMAT, false>(p, place, factor);
    }
}

/* ---- maxima ---------------------------------------------------------------------------- */

static inline uint32_t oct_max_bits(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* Magnitudes as they are stored, one or two a word: the larger of `most` and |x|, each on its
 * own; a NaN is ignored. The sign is left open. */
template <class T> static inline uint32_t oct_peak(uint32_t most, uint32_t x);

template <> inline uint32_t oct_peak<float>(uint32_t most, uint32_t x) {
    return oct_f32_bits(oct_larger(oct_bits_f32(most), oct_bits_f32(x)));
}

/* Of 16-bit floats in halves, whose infinity is `inf`. */
static inline uint32_t oct_peak_halves(uint32_t most, uint32_t x, uint32_t inf) {
    uint32_t low = x & 0x7fffu, high = x >> 16 & 0x7fffu;
    low = low > inf || low < (most & 0x7fffu) ? most & 0x7fffu : low;
    high = high > inf || high < (most >> 16 & 0x7fffu) ? most >> 16 & 0x7fffu : high;
    return (low | high << 16) ^ ((most ^ x) & 0x80008000u);
}

/* From sm_86 on an instruction takes magnitudes itself, and makes some sign. */
template <> inline uint32_t oct_peak<oct_bf16>(uint32_t most, uint32_t x) {
#if OCT_PTX && __CUDA_ARCH__ >= 860
    asm("max.xorsign.abs.bf16x2 %0, %0, %1;" : "+r"(most) : "r"(x));
    return most;
#elif OCT_PTX
    asm("max.bf16x2 %0, %0, %1;" : "+r"(most) : "r"(x & 0x7fff7fffu));
    return most;
#else
    return oct_peak_halves(most, x, 0x7f80u);
#endif
}

template <> inline uint32_t oct_peak<oct_f16>(uint32_t most, uint32_t x) {
#if OCT_PTX && __CUDA_ARCH__ >= 860
    asm("max.xorsign.abs.f16x2 %0, %0, %1;" : "+r"(most) : "r"(x));
    return most;
#elif OCT_PTX
    asm("max.f16x2 %0, %0, %1;" : "+r"(most) : "r"(x & 0x7fff7fffu));
    return most;
#else
    return oct_peak_halves(most, x, 0x7c00u);
#endif
}

/* The same, but a NaN is kept: it becomes one, and is larger than all else. */
template <class T> static inline uint32_t oct_peak_or_nan(uint32_t most, uint32_t x);

template <> inline uint32_t oct_peak_or_nan<float>(uint32_t most, uint32_t x) {
    return oct_max_bits(most, x & OCT_F32_MAGNITUDE);
}

static inline uint32_t oct_peak_halves_or_nan(uint32_t most, uint32_t x) {
    uint32_t low = oct_max_bits(most & 0x7fffu, x & 0x7fffu);
    return low | oct_max_bits(most >> 16 & 0x7fffu, x >> 16 & 0x7fffu) << 16;
}

template <> inline uint32_t oct_peak_or_nan<oct_bf16>(uint32_t most, uint32_t x) {
#if OCT_PTX && __CUDA_ARCH__ >= 860
    asm("max.NaN.xorsign.abs.bf16x2 %0, %0, %1;" : "+r"(most) : "r"(x));
    return most;
#elif OCT_PTX
    asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(most) : "r"(x & 0x7fff7fffu));
    return most;
#else
    return oct_peak_halves_or_nan(most, x);
#endif
}

template <> inline uint32_t oct_peak_or_nan<oct_f16>(uint32_t most, uint32_t x) {
#if OCT_PTX && __CUDA_ARCH__ >= 860
    asm("max.NaN.xorsign.abs.f16x2 %0, %0, %1;" : "+r"(most) : "r"(x));
    return most;
#elif OCT_PTX
    asm("max.NaN.f16x2 %0, %0, %1;" : "+r"(most) : "r"(x & 0x7fff7fffu));
    return most;
#else
    return oct_peak_halves_or_nan(most, x);
#endif
}

/* A float's encoding from the magnitudes of a word. */
template <class T> static inline uint32_t oct_peak_bits(uint32_t most) {
    return most;
}

template <> inline uint32_t oct_peak_bits<oct_bf16>(uint32_t most) {
    return oct_max_bits(most & 0x7fff0000u, most << 16 & 0x7fff0000u);
}

template <> inline uint32_t oct_peak_bits<oct_f16>(uint32_t most) {
    uint32_t larger = oct_max_bits(most >> 16 & 0x7fffu, most & 0x7fffu);
    return oct_f32_bits(oct_f16_widen((uint16_t)larger));
}

/* Of row r. */
template <class T> static inline uint32_t oct_patch_row_max(const oct_patch<T> &p, int r) {
    const uint4 &v = p.raw[r];
    return oct_peak_bits<T>(
        oct_peak<T>(oct_peak<T>(oct_peak<T>(oct_peak<T>(0u, v.x), v.y), v.z), v.w));
}

/* The same as it is stored, and a NaN is kept. */
template <class T>
static inline uint32_t oct_patch_row_peak_or_nan(const oct_patch<T> &p, int r) {
    const uint4 &v = p.raw[r];
    uint32_t most = oct_peak_or_nan<T>(oct_peak_or_nan<T>(0u, v.x), v.y);
    return oct_peak_or_nan<T>(oct_peak_or_nan<T>(most, v.z), v.w);
}

/* Of the columns, as they are stored. */
template <class T> static inline uint4 oct_patch_peaks(const oct_patch<T> &p) {
    uint4 most = {0, 0, 0, 0};
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        most.x = oct_peak<T>(most.x, p.raw[r].x);
        most.y = oct_peak<T>(most.y, p.raw[r].y);
        most.z = oct_peak<T>(most.z, p.raw[r].z);
        most.w = oct_peak<T>(most.w, p.raw[r].w);
    }
    uint32_t magnitudes = sizeof(T) == 2 ? 0x7fff7fffu : OCT_F32_MAGNITUDE;
    return {most.x & magnitudes, most.y & magnitudes, most.z & magnitudes, most.w & magnitudes};
}

template <class T> static inline void oct_patch_col_max(uint32_t *out, const oct_patch<T> &p) {
    uint4 most = oct_patch_peaks(p);
#pragma unroll
    for (int c = 0; c < oct_shape<T>::cols; c++) {
        out[c] = oct_f32_bits(oct_patch_element<T>(most, c));
    }
}

/* Of all. */
template <class T> static inline uint32_t oct_patch_max(const oct_patch<T> &p) {
    uint4 most = oct_patch_peaks(p);
    return oct_max_bits(oct_max_bits(oct_peak_bits<T>(most.x), oct_peak_bits<T>(most.y)),
                        oct_max_bits(oct_peak_bits<T>(most.z), oct_peak_bits<T>(most.w)));
}

/* Maxima of N things over LANES lanes, `step` apart, by halves: each lane ends with N / LANES
 * of them in v[0], ..., and those of lane i begin at i N / LANES. larger(a, b) is one of two.
 */
template <int N, int LANES, class F>
static inline void oct_share(uint32_t *v, int mine, int step, const F &larger) {
    if constexpr (LANES > 1) {
        bool upper = (mine & (LANES / 2)) != 0;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            uint32_t keep = upper ? v[i + N / 2] : v[i], give = upper ? v[i] : v[i + N / 2];
            uint32_t got = __shfl_xor_sync(OCT_ALL_LANES, give, LANES / 2 * step);
            v[i] = larger(keep, got);
        }
        oct_share<N / 2, LANES / 2>(v, mine, step, larger);
    }
}

template <int N, int LANES> static inline void oct_share_max(uint32_t *v, int mine, int step) {
    oct_share<N, LANES>(v, mine, step,
                        [](uint32_t a, uint32_t b) { return oct_max_bits(a, b); });
}

#endif
