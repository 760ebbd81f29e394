/* nvfp4.cu - blocks of 16 with one E4M3 scale under an fp32 amax.
 *
 * Codes and scales are those of src/cpu/nvfp4.c, bit for bit. The blocks of a patch's columns
 * are its own; those of its rows are shared with one or three lanes beside it. A block of zeros
 * has scale 0 and codes 0, and so has what lies outside the matrix: padding is made on the way.
 */
#include "cuda/kernels/decode.h"
#include "cuda/kernels/dynamic.h"
#include "cuda/kernels/patch.h"
#include "cuda/kernels/tile_scales.h"
#include "cuda/kernels/transform.h"

#include "cuda/kernels/nvfp4.h"
#include "format/philox.h"

#define BLOCK 16

/* Lanes that share the blocks of a row, and the rows whose scales each of them makes. */
template <class T> struct nv_row {
    static constexpr int lanes = BLOCK / oct_shape<T>::cols;
    static constexpr int each = OCT_PATCH_ROWS / lanes;
};

/* A block's shared memory. Loops over a patch are not unrolled, or they would not fit the
 * instruction cache; so patches lie here, in columns of words that are each thread's own. */
template <class T> struct nv_shared {
    uint32_t words[OCT_PATCH_ROWS * 4][oct_shape<T>::threads];
    float factors[nv_row<T>::each][oct_shape<T>::threads];  /* first the amaxes of rows */
    uint16_t worth[nv_row<T>::each][oct_shape<T>::threads]; /* their scales as bf16 */
    oct_tile_scales<2> scales[2];
};

/* What a thread works on. */
template <class T> struct nv_work {
    const oct_nvfp4_params &p;
    const oct_patch<T> &patch;
    nv_shared<T> &shared;
    oct_copies copies; /* none in a kernel that makes none, which the compiler then knows */
    uint64_t seed;
    bool square;
    uint32_t square_most;
    bool careful; /* there are NaNs in the warp's patches, or elements past all codes */
};

struct nv_scale {
    uint32_t code;
    float value, factor;
};

/* oct_nv_code and oct_nv_multiplier; the factor of a block that is not tame is to be made
 * again. */
static inline nv_scale scale_of(uint32_t most, const oct_nv_global &global) {
    nv_scale scale;
    scale.code = oct_encode_e4m3(oct_least(oct_bits_f32(most) * global.sixth, FLT_MAX));
    scale.value = oct_decode_e4m3(scale.code);
    scale.factor = oct_quick_inverse(scale.value * global.decode);
    return scale;
}

/* Whether a block of the amax `most`, or NaN, is like nearly all: no NaN is in it, its scale is
 * not 0, and no element is so far past it that its code would have to be clipped. */
static inline bool is_tame(uint32_t most, const nv_scale &scale) {
    return oct_bits_f32(most) * scale.factor < 7.0f;
}

/* The factor of any block; of one that is all zeros it does not matter. */
static inline float slow_factor(uint32_t most, const nv_scale &scale,
                                const oct_nv_global &global) {
    return most == 0 ? 1.0f : oct_least(1.0f / (scale.value * global.decode), FLT_MAX);
}

/* What the blocks of a line share; a line outside the matrix has an amax of 0. */
static inline oct_nv_global global_of(const oct_nvfp4_params &p, const float *amax,
                                      int64_t line, int64_t lines) {
    int64_t at = p.row_scaled ? line : 0;
    return oct_nv_global_of(at < lines ? amax[at] : 0.0f, p.aim);
}

/* ---- codes ----------------------------------------------------------------------------- */

/* Codes to nearest of bf16 are not clipped: elements of a block that is not tame are. */
template <class E, bool STOCHASTIC>
inline constexpr bool is_clipped = STOCHASTIC || !oct_is_bf16<E>;

/* The largest magnitude, as E stores it, that elements may keep. Clipped ones come to about 6,
 * which for a bf16 is somewhere between 5 and 7. */
template <class E, bool STOCHASTIC> static inline uint32_t limit_of(float factor) {
    if (!is_clipped<E, STOCHASTIC>) {
        uint32_t limit = oct_bf16_encode(6.0f / factor);
        return limit < 0x7f7fu ? limit : 0x7f7fu;
    }
    return sizeof(E) == 4 ? OCT_F32_INF : oct_is_bf16<E> ? 0x7f80u : 0x7c00u;
}

/* The element in the upper bits of `bits`: a NaN loses its sign, for its code has none. */
static inline uint32_t limited(uint32_t bits, uint32_t limit, uint32_t inf) {
    uint32_t magnitude = bits & OCT_F32_MAGNITUDE;
    uint32_t sign = magnitude > inf ? 0u : bits & ~OCT_F32_MAGNITUDE;
    return sign | (magnitude < limit ? magnitude : limit);
}

/* A word of E, each of whose elements is no larger than `limit` and no NaN. */
template <class E> static inline uint32_t tamed(uint32_t word, uint32_t limit) {
    if (sizeof(E) == 4) {
        return limited(word, limit, OCT_F32_INF);
    }
    uint32_t inf = oct_is_bf16<E> ? 0x7f800000u : 0x7c000000u;
    return limited(word & 0xffff0000u, limit << 16, inf) |
           limited(word << 16, limit << 16, inf) >> 16;
}

/* N codes without signs, 4 or 8, in quads; element i takes byte i of `random`. */
template <class E, int N, bool STOCHASTIC>
static inline void encode(uint32_t *quads, const uint32_t *words, float factor,
                          const uint32_t *random, uint32_t base) {
    uint32_t sums[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint4 word = {words[i * (int)sizeof(E) / 4], 0, 0, 0};
        float a = oct_patch_element<E>(word, sizeof(E) == 2 ? i % 2 : 0);
        a = oct_magnitude(a) * factor;
        if (STOCHASTIC) {
            a = oct_e2m1_raised(a, oct_byte_float(random[i / 4], i % 4, base));
        }
        sums[i] = oct_e2m1_sum<STOCHASTIC, is_clipped<E, STOCHASTIC>>(a);
    }
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        quads[i] = oct_e2m1_quad(sums + 4 * i);
    }
}

/* Codes with the signs of N stored elements. */
template <class E, int N>
static inline uint32_t codes_of(const uint32_t *quads, const uint32_t *words) {
    if constexpr (sizeof(E) == 2) {
        return oct_e2m1_signed(quads, words);
    }
    uint32_t codes = N == 8 ? oct_pick_bytes(quads[0], quads[N / 4 - 1], 0x5410) : quads[0];
#pragma unroll
    for (int i = 0; i < N; i++) {
        codes = (codes & ~(0x8u << 4 * i)) | (words[i] >> 28 & 0x8u) << 4 * i;
    }
    return codes;
}

/* The low `count` bytes of codes, as many as exist. */
static inline void store_codes(uint8_t *to, uint2 codes, int count) {
#pragma unroll 1
    for (int i = 0; i < count; i++) {
        to[i] = (uint8_t)(codes.x & 0xffu);
        codes.x = codes.x >> 8 | codes.y << 24;
        codes.y >>= 8;
    }
}

/* ---- rows ------------------------------------------------------------------------------ */

/* The codes of row r, which begin at `to`. */
template <class T>
static inline void store_row(const nv_work<T> &work, uint8_t *to, int r, uint32_t codes) {
    constexpr int bytes = oct_shape<T>::cols / 2;
    const oct_patch<T> &patch = work.patch;
    if (patch.full && work.p.q.wide_row) {
        if (bytes == 4) {
            *(uint32_t *)to = codes;
        } else {
            *(uint16_t *)to = (uint16_t)codes;
        }
    } else if (r < patch.rows_left) {
        int count = (patch.cols_left + 1) / 2;
        store_codes(to, {codes, 0}, count < bytes ? count : bytes);
    }
}

/* Row r as it is encoded. */
template <class T, bool STOCHASTIC>
static inline void take_row(uint32_t words[4], const nv_work<T> &work, int r, float factor) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        words[i] = work.shared.words[4 * r + i][threadIdx.x];
    }
    if (work.careful) {
        uint32_t limit = limit_of<T, STOCHASTIC>(factor);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            words[i] = tamed<T>(words[i], limit);
        }
    }
}

/* The random words of this lane's part of one row after the other, of which each of the lanes
 * that share blocks has drawn those of one. */
template <class T>
static inline void exchange(uint32_t out[][2], const uint32_t words[4], int mine) {
#pragma unroll
    for (int j = 0; j < 2 && nv_row<T>::lanes == 2; j++) {
        uint32_t keep = words[mine ? 2 + j : j], give = words[mine ? j : 2 + j];
        uint32_t got = __shfl_xor_sync(OCT_ALL_LANES, give, 1);
        out[0][j] = mine ? got : keep;
        out[1][j] = mine ? keep : got;
    }
    int first = (int)threadIdx.x % OCT_WARP - mine;
#pragma unroll
    for (int k = 0; k < nv_row<T>::lanes && nv_row<T>::lanes == 4; k++) {
        uint32_t all[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            all[i] = __shfl_sync(OCT_ALL_LANES, words[i], first + k);
        }
        out[k][0] = mine & 2 ? (mine & 1 ? all[3] : all[2]) : (mine & 1 ? all[1] : all[0]);
        out[k][1] = 0;
    }
}

/* Of row r, without NaNs; from shared memory, so that registers need not hold the patch. */
template <class T> static inline uint32_t row_max(const nv_work<T> &work, int r) {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        most = oct_peak<T>(most, work.shared.words[4 * r + i][threadIdx.x]);
    }
    return oct_peak_bits<T>(most);
}

/* The amaxes of row blocks, each in the memory of the lane that makes its scale. Where a warp
 * finds a NaN it goes over its rows once more, without. */
template <class T> static inline void measure_rows(nv_work<T> &work) {
    typedef nv_row<T> row;
    int mine = work.patch.lane_across % row::lanes;
    uint32_t most[OCT_PATCH_ROWS], all = 0;
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        most[r] = oct_patch_row_max_or_nan(work.patch, r);
        all = oct_max_bits(all, most[r]);
    }
    work.careful = __ballot_sync(OCT_ALL_LANES, all > OCT_F32_INF) != 0;
    if (work.careful) {
#pragma unroll
        for (int r = 0; r < OCT_PATCH_ROWS; r++) {
            most[r] = row_max(work, r);
        }
    }
    oct_share_max<OCT_PATCH_ROWS, row::lanes>(most, mine, 1);
#pragma unroll
    for (int i = 0; i < row::each; i++) {
        uint32_t bits = work.square ? work.square_most : most[i];
        work.shared.factors[i][threadIdx.x] = oct_bits_f32(bits);
    }
}

/* The scale of this lane's row i; whether it was not tame. A square's is written to the rows
 * that exist; those of others are 0 by themselves. */
template <class T>
static inline bool scale_row(const nv_work<T> &work, int i, const oct_nv_global &global) {
    const oct_patch<T> &patch = work.patch;
    int r = patch.lane_across % nv_row<T>::lanes * nv_row<T>::each + i;
    float *place = &work.shared.factors[i][threadIdx.x];
    uint32_t most = oct_f32_bits(*place);
    nv_scale scale = scale_of(most, global);
    bool tame = is_tame(most, scale);
    if (!tame) {
        scale.factor = slow_factor(most, scale, global);
    }
    *place = scale.factor;
    work.shared.worth[i][threadIdx.x] = oct_high_u16(oct_f32_bits(scale.value));
    work.shared.scales[0].codes[oct_tile_scale_at<2>(patch.row + r, patch.col / BLOCK)] =
        (uint8_t)(r < patch.rows_left ? scale.code : 0u);
    return !tame && most != 0;
}

/* Rows with one amax are scaled some at a time, for a scale is a long chain of steps. */
template <class T> static inline void scale_rows(nv_work<T> &work) {
    const oct_patch<T> &patch = work.patch;
    const oct_nvfp4_params &p = work.p;
    int64_t first =
        patch.tile_row + patch.row + patch.lane_across % nv_row<T>::lanes * nv_row<T>::each;
    oct_nv_global global = global_of(p, p.row_amax, p.row_scaled ? first : 0, p.q.rows);
    bool wild = false;
    if (!p.row_scaled) {
#pragma unroll
        for (int i = 0; i < nv_row<T>::each; i++) {
            wild |= scale_row(work, i, global);
        }
    } else {
#pragma unroll 1
        for (int i = 0; i < nv_row<T>::each; i++) {
            global = global_of(p, p.row_amax, first + i, p.q.rows);
            wild |= scale_row(work, i, global);
        }
    }
    work.careful |= __ballot_sync(OCT_ALL_LANES, wild) != 0;
    __syncwarp();
}

/* Where row r of a patch goes in a copy; NULL where there is none. */
template <class T>
static inline uint16_t *copy_at(const nv_work<T> &work, uint16_t *copy, int r) {
    const oct_patch<T> &patch = work.patch;
    int64_t at = (patch.tile_row + patch.row + r) * work.p.q.cols + patch.tile_col + patch.col;
    return oct_shape<T>::cols == 8 && copy && patch.full ? copy + at : nullptr;
}

/* What 8 codes with the signs of `words` are worth, times the scale in the low half of
 * `worth`. */
static inline uint4 copy_of(const uint32_t quads[2], const uint32_t *words, uint32_t worth) {
    uint32_t both = oct_pick_bytes(worth, worth, 0x1010), out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint2 values = oct_e2m1_values(quads[i / 2]);
        out[i] = (i % 2 ? values.y : values.x) | (words[i] & 0x80008000u);
    }
    return {oct_times2(out[0], both), oct_times2(out[1], both), oct_times2(out[2], both),
            oct_times2(out[3], both)};
}

/* The sharing lanes draw and scale for each other. */
template <class T, bool STOCHASTIC> static inline void encode_rows(const nv_work<T> &work) {
    typedef nv_row<T> row;
    const oct_patch<T> &patch = work.patch;
    const oct_nvfp4_params &p = work.p;
    int mine = patch.lane_across % row::lanes, first = (int)threadIdx.x - mine;
    int64_t block = (patch.tile_row + patch.row + mine * row::each) * p.q.row_at.blocks +
                    (patch.tile_col + patch.col) / BLOCK;
    int64_t bytes = p.row_bytes, at = 0;
    uint8_t *to =
        p.q.row + (patch.tile_row + patch.row) * bytes + (patch.tile_col + patch.col) / 2;
    uint16_t *copy = copy_at(work, work.copies.row, 0);
#pragma unroll 1
    for (int i = 0; i < row::each; i++) {
        uint32_t drawn[4], random[row::lanes][2];
        if (STOCHASTIC) {
            oct_random_words(drawn, work.seed, (uint64_t)block, 0);
            exchange<T>(random, drawn, mine);
            block += p.q.row_at.blocks;
        }
#pragma unroll
        for (int k = 0; k < row::lanes; k++) {
            uint32_t words[4], quads[2];
            int r = k * row::each + i;
            float factor = work.shared.factors[i][first + k];
            take_row<T, STOCHASTIC>(words, work, r, factor);
            encode<T, oct_shape<T>::cols, STOCHASTIC>(quads, words, factor, random[k],
                                                      p.byte_base);
            if (p.q.row) {
                store_row(work, to + k * row::each * bytes, r,
                          codes_of<T, oct_shape<T>::cols>(quads, words));
            }
            if (copy) {
                oct_write16(copy + at + k * row::each * p.q.cols,
                            copy_of(quads, words, work.shared.worth[i][first + k]));
            }
        }
        to += bytes;
        at += p.q.cols;
    }
}

/* ---- columns --------------------------------------------------------------------------- */

/* The 16 codes of a column. The transform keeps all outputs of the last group of rows. */
template <class T> static inline void store_col(const nv_work<T> &work, int c, uint2 codes) {
    const oct_patch<T> &patch = work.patch;
    const oct_nvfp4_params &p = work.p;
    uint8_t *to = p.q.col + (patch.tile_col + patch.col + c) * p.col_bytes +
                  (patch.tile_row + patch.row) / 2;
    int count = patch.rows_left < BLOCK ? (patch.rows_left + 1) / 2 : BLOCK / 2;
    count = p.hadamard && patch.rows_left > 0 ? BLOCK / 2 : count;
    if (!p.q.col) {
        return;
    }
    if (c < patch.cols_left && count == BLOCK / 2 && p.q.wide_col) {
        *(uint2 *)to = codes;
    } else if (c < patch.cols_left) {
        store_codes(to, codes, count);
    }
}

/* Keeps a column's codes and scale for its copy, where patches have lain: its elements are in
 * registers by now. */
template <class T>
static inline void keep_col(const nv_work<T> &work, int c, uint2 codes, float scale) {
    if (oct_shape<T>::cols == 8 && work.copies.col) {
        int w = c / 2, k = c % 2;
        work.shared.words[8 * k + w][threadIdx.x] = codes.x;
        work.shared.words[8 * k + 4 + w][threadIdx.x] = codes.y;
        ((uint16_t *)&work.shared.words[16 + w][threadIdx.x])[k] =
            oct_high_u16(oct_f32_bits(scale));
    }
}

/* What the codes of columns decode to, where it is wanted: 8 rows at a time. */
template <class T> static inline void copy_cols(const nv_work<T> &work) {
    uint16_t *to = copy_at(work, work.copies.col, 0);
    uint32_t f[4];
    if (!to) {
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        f[i] = work.shared.words[16 + i][threadIdx.x];
    }
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        uint32_t x[8];
#pragma unroll
        for (int i = 0; i < 8; i++) { /* columns 2 i and 2 i + 1 become nibbles i and i + 4 */
            x[i] = work.shared.words[8 * (i / 4) + 4 * half + i % 4][threadIdx.x];
        }
        oct_turn_nibbles(x);
#pragma unroll
        for (int r = 0; r < 8; r++) {
            oct_write16(to,
                        uint4{oct_nibble_pair(x[r], 0, f[0]), oct_nibble_pair(x[r], 1, f[1]),
                              oct_nibble_pair(x[r], 2, f[2]), oct_nibble_pair(x[r], 3, f[3])});
            to += work.p.q.cols;
        }
    }
}

/* Random words of column c's block; 0 where none are needed. */
template <class T, bool STOCHASTIC>
static inline void draw_col(uint32_t random[4], const nv_work<T> &work, int c) {
    const oct_patch<T> &patch = work.patch;
    random[0] = random[1] = random[2] = random[3] = 0;
    if (STOCHASTIC) {
        int64_t line = patch.tile_col + patch.col + c;
        int64_t block = line * work.p.q.col_at.blocks + (patch.tile_row + patch.row) / BLOCK;
        oct_random_words(random, work.seed, (uint64_t)block, 1);
    }
}

/* The amax of 16 stored elements; one that is NaN is kept or ignored. */
template <class E, bool KEEP> static inline uint32_t max_of(const uint32_t *words) {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < BLOCK * (int)sizeof(E) / 4; i++) {
        most = KEEP ? oct_peak_or_nan<E>(most, words[i]) : oct_peak<E>(most, words[i]);
    }
    return oct_peak_bits<E>(most);
}

/* A column as it is quantized: 16 elements of E, which is T, or bf16 where they have been
 * transformed. */
template <class E> struct nv_col {
    uint32_t words[BLOCK * (int)sizeof(E) / 4];
    nv_scale scale;
};

/* The scale of column c. */
template <class T, class E, bool STOCHASTIC>
static inline void scale_col(nv_col<E> &col, const nv_work<T> &work, int c,
                             const oct_nv_global &global) {
    const oct_patch<T> &patch = work.patch;
    uint32_t most = max_of<E, true>(col.words);
    col.scale = scale_of(work.square ? work.square_most : most, global);
    if (!is_tame(most, col.scale)) {
        most = max_of<E, false>(col.words);
        most = work.square ? work.square_most : most;
        col.scale = scale_of(most, global);
        col.scale.factor = slow_factor(most, col.scale, global);
        uint32_t limit = limit_of<E, STOCHASTIC>(col.scale.factor);
#pragma unroll
        for (int i = 0; i < BLOCK * (int)sizeof(E) / 4; i++) {
            col.words[i] = tamed<E>(col.words[i], limit);
        }
    }
    work.shared.scales[1].codes[oct_tile_scale_at<2>(patch.col + c, patch.row / BLOCK)] =
        (uint8_t)(c < patch.cols_left ? col.scale.code : 0u);
}

template <class T, class E, bool STOCHASTIC>
static inline void encode_col(const nv_col<E> &col, const nv_work<T> &work, int c) {
    constexpr int half = 8 * (int)sizeof(E) / 4;
    uint32_t random[4], quads[4], base = work.p.byte_base;
    draw_col<T, STOCHASTIC>(random, work, c);
    encode<E, 8, STOCHASTIC>(quads, col.words, col.scale.factor, random, base);
    encode<E, 8, STOCHASTIC>(quads + 2, col.words + half, col.scale.factor, random + 2, base);
    uint2 codes = {codes_of<E, 8>(quads, col.words),
                   codes_of<E, 8>(quads + 2, col.words + half)};
    store_col(work, c, codes);
    keep_col(work, c, codes, col.scale.value);
}

/* Column k of those that 16 words hold side by side, transformed and rounded to bf16. */
template <class T>
static inline void transform(uint32_t out[BLOCK / 2], const uint32_t *words, int k,
                             const oct_nvfp4_params &p) {
    float x[BLOCK];
#pragma unroll
    for (int r = 0; r < BLOCK; r++) {
        x[r] = oct_patch_element<T>(uint4{words[r], 0, 0, 0}, k);
    }
    oct_transform<T>(x, p.weights);
#pragma unroll
    for (int i = 0; i < BLOCK / 2; i++) {
        out[i] = oct_bf16_pair(x[2 * i], x[2 * i + 1]);
    }
}

/* Column k of those that 16 words hold side by side. */
template <class T> static inline void pick_col(uint32_t *out, const uint32_t *words, int k) {
    constexpr int each = oct_shape<T>::cols / 4;
#pragma unroll
    for (int i = 0; i < BLOCK / each; i++) {
        out[i] = each == 1 ? words[i]
                           : oct_pick_bytes(words[each * i], words[each * i + each - 1],
                                            k ? 0x7632 : 0x5410);
    }
}

/* A word holds one or two columns, which are quantized at the same time. */
template <class T, class E, bool STOCHASTIC, bool HADAMARD>
static inline void quantize_cols(const nv_work<T> &work) {
    constexpr int each = oct_shape<T>::cols / 4;
    const oct_nvfp4_params &p = work.p;
    oct_nv_global global = global_of(p, p.col_amax, 0, p.q.cols);
#pragma unroll 1
    for (int w = 0; w < 4; w++) {
        uint32_t words[BLOCK];
        nv_col<E> cols[each];
#pragma unroll
        for (int r = 0; r < BLOCK; r++) {
            words[r] = work.shared.words[4 * r + w][threadIdx.x];
        }
#pragma unroll
        for (int k = 0; k < each; k++) {
            if constexpr (HADAMARD) {
                transform<T>(cols[k].words, words, k, p);
            } else {
                pick_col<T>(cols[k].words, words, k);
            }
        }
#pragma unroll
        for (int k = 0; k < each; k++) {
            if (!HADAMARD && !STOCHASTIC && p.row_scaled) {
                int64_t line = work.patch.tile_col + work.patch.col + each * w + k;
                global = global_of(p, p.col_amax, line, p.q.cols);
            }
            scale_col<T, E, STOCHASTIC>(cols[k], work, each * w + k, global);
        }
#pragma unroll
        for (int k = 0; k < each; k++) {
            encode_col<T, E, STOCHASTIC>(cols[k], work, each * w + k);
        }
    }
}

/* ---- tiles ----------------------------------------------------------------------------- */

/* The larger of what the lanes of a square have. */
template <class T> static inline uint32_t square_share(uint32_t most) {
#pragma unroll
    for (int k = 1; k < nv_row<T>::lanes; k *= 2) {
        most = oct_max_bits(most, __shfl_xor_sync(OCT_ALL_LANES, most, k));
    }
    return most;
}

template <class T> static inline uint32_t square_max(const oct_patch<T> &patch) {
    return square_share<T>(oct_patch_max(patch));
}

/* The square's scale, in the lines of both directions that exist. */
template <class T>
static inline void scale_square(const nv_work<T> &work, const nv_scale &scale) {
    const oct_patch<T> &patch = work.patch;
    int mine = patch.lane_across % nv_row<T>::lanes * nv_row<T>::each;
#pragma unroll
    for (int r = mine; r < mine + nv_row<T>::each; r++) {
        work.shared.scales[0].codes[oct_tile_scale_at<2>(patch.row + r, patch.col / BLOCK)] =
            (uint8_t)(r < patch.rows_left ? scale.code : 0u);
    }
#pragma unroll
    for (int c = 0; c < oct_shape<T>::cols; c++) {
        work.shared.scales[1].codes[oct_tile_scale_at<2>(patch.col + c, patch.row / BLOCK)] =
            (uint8_t)(c < patch.cols_left ? scale.code : 0u);
    }
}

/* Rows, whose codes are kept where their elements have lain. Both copies are the same. */
template <class T>
static inline void encode_square(const nv_work<T> &work, const nv_scale &scale) {
    const oct_patch<T> &patch = work.patch;
    const oct_nvfp4_params &p = work.p;
    uint32_t worth = oct_f32_bits(scale.value) >> 16;
    uint8_t *to =
        p.q.row + (patch.tile_row + patch.row) * p.row_bytes + (patch.tile_col + patch.col) / 2;
    uint16_t *row_copy = copy_at(work, work.copies.row, 0);
    uint16_t *col_copy = copy_at(work, work.copies.col, 0);
    int64_t at = 0;
#pragma unroll 2
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        uint32_t words[4], quads[2];
        take_row<T, false>(words, work, r, scale.factor);
        encode<T, oct_shape<T>::cols, false>(quads, words, scale.factor, nullptr, 0);
        uint32_t codes = codes_of<T, oct_shape<T>::cols>(quads, words);
        work.shared.words[4 * r][threadIdx.x] = codes;
        if (p.q.row) {
            store_row(work, to, r, codes);
        }
        if (row_copy) {
            oct_write16(row_copy + at, copy_of(quads, words, worth));
        }
        if (col_copy) {
            oct_write16(col_copy + at, copy_of(quads, words, worth));
        }
        to += p.row_bytes;
        at += p.q.cols;
    }
}

/* Columns, from the codes of rows. */
template <class T> static inline void turn_square(const nv_work<T> &work) {
    uint32_t x[2][8];
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            x[half][i] = work.shared.words[4 * (8 * half + i)][threadIdx.x];
        }
        oct_turn_nibbles(x[half]);
    }
#pragma unroll
    for (int c = 0; c < oct_shape<T>::cols; c++) {
        store_col(work, c, {x[0][c], x[1][c]});
    }
}

/* Squares to nearest: one scale for a patch, and columns with the codes of rows. */
template <class T> static inline void quantize_square(nv_work<T> &work) {
    const oct_nvfp4_params &p = work.p;
    uint32_t most = 0;
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        most = oct_max_bits(most, oct_patch_row_max_or_nan(work.patch, r));
    }
    most = square_share<T>(most);
    if (__ballot_sync(OCT_ALL_LANES, most > OCT_F32_INF) != 0) {
        work.careful = true;
        most = square_max(work.patch);
    }
    oct_nv_global global = global_of(p, p.row_amax ? p.row_amax : p.col_amax, 0, p.q.rows);
    nv_scale scale = scale_of(most, global);
    bool tame = is_tame(most, scale);
    if (!tame) {
        scale.factor = slow_factor(most, scale, global);
    }
    work.careful |= __ballot_sync(OCT_ALL_LANES, !tame && most != 0) != 0;
    scale_square(work, scale);
    encode_square(work, scale);
    if (p.q.col) {
        turn_square(work);
    }
}

template <class T> static inline void store_scales(const nv_work<T> &work) {
    const oct_quantize_params &q = work.p.q;
    if (q.row) {
        oct_scales_place row = {(uint8_t *)q.row_scale, &q.row_at, work.patch.tile_row,
                                work.patch.tile_col / BLOCK};
        oct_tile_scales_store(work.shared.scales[0], row);
    }
    if (q.col) {
        oct_scales_place col = {(uint8_t *)q.col_scale, &q.col_at, work.patch.tile_col,
                                work.patch.tile_row / BLOCK};
        oct_tile_scales_store(work.shared.scales[1], col);
    }
}

/* How a kernel differs from others: what it does not do costs it no registers. */
enum { NEAREST = 0, STOCHASTIC = 1, COPIED = 2, WHOLE = 4 };

template <class T, int WAY> static inline void quantize(const oct_nvfp4_params &p) {
    OCT_DYNAMIC_SHARED(nv_shared<T>, shared);
    static_assert(sizeof(nv_shared<T>) == OCT_NV_SHARED_BYTES(oct_shape<T>::threads),
                  "what the host asks for");
    constexpr bool stochastic = (WAY & STOCHASTIC) != 0;
    oct_patch<T> patch = oct_patch_of<T>(p.q);
    oct_patch_load(patch, p.q);
    uint64_t seed = stochastic ? (uint64_t)p.random[0] + (uint64_t)p.random[1] : 0;
    bool square = p.square && !(WAY & WHOLE);
    oct_copies copies = WAY & COPIED ? p.copies : oct_copies{nullptr, nullptr};
    nv_work<T> work = {
        p, patch, *shared, copies, seed, square, square ? square_max(patch) : 0u, false};
#pragma unroll
    for (int i = 0; i < OCT_PATCH_ROWS * 4; i++) {
        shared->words[i][threadIdx.x] = oct_word(patch.raw[i / 4], i % 4);
    }
    if constexpr (WAY & WHOLE) {
        quantize_square(work);
    } else {
        if (p.q.row || copies.row) {
            measure_rows(work);
            scale_rows(work);
            encode_rows<T, stochastic>(work);
        }
        if (p.q.col || copies.col) {
            if (p.hadamard) {
                quantize_cols<T, oct_bf16, stochastic, true>(work);
            } else {
                quantize_cols<T, T, stochastic, false>(work);
            }
            copy_cols(work);
        }
    }
    __syncthreads();
    store_scales(work);
}

#define KERNEL(name, T, way)                                                                   \
    extern "C" __global__ void __launch_bounds__(                                              \
        oct_shape<T>::threads, oct_shape<T>::resident) nvfp4_##name(oct_nvfp4_params p) {      \
        quantize<T, way>(p);                                                                   \
    }

KERNEL(f32, float, NEAREST)
KERNEL(bf16, oct_bf16, NEAREST)
KERNEL(f16, oct_f16, NEAREST)
KERNEL(sr_f32, float, STOCHASTIC)
KERNEL(sr_bf16, oct_bf16, STOCHASTIC)
KERNEL(sr_f16, oct_f16, STOCHASTIC)
KERNEL(copied_bf16, oct_bf16, NEAREST | COPIED)
KERNEL(copied_f16, oct_f16, NEAREST | COPIED)
KERNEL(copied_sr_bf16, oct_bf16, STOCHASTIC | COPIED)
KERNEL(copied_sr_f16, oct_f16, STOCHASTIC | COPIED)
KERNEL(squares_f32, float, WHOLE)
KERNEL(squares_bf16, oct_bf16, WHOLE | COPIED)
KERNEL(squares_f16, oct_f16, WHOLE | COPIED)
