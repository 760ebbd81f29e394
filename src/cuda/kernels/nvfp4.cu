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
    bool careful; /* there are NaNs in the warp's patches */
};

struct nv_scale {
    uint32_t code;
    float value, factor;
};

/* oct_nv_code and oct_nv_multiplier. */
static inline nv_scale scale_of(uint32_t most, const oct_nv_global &global) {
    nv_scale scale;
    scale.code = oct_encode_e4m3(oct_least(oct_bits_f32(most) * global.sixth, FLT_MAX));
    scale.value = oct_decode_e4m3(scale.code);
    scale.factor = oct_least(1.0f / (scale.value * global.decode), FLT_MAX);
    return scale;
}

/* What the blocks of a line share; a line outside the matrix has an amax of 0. */
static inline oct_nv_global global_of(const oct_nvfp4_params &p, const float *amax,
                                      int64_t line, int64_t lines) {
    int64_t at = p.row_scaled ? line : 0;
    return oct_nv_global_of(at < lines ? amax[at] : 0.0f, p.aim);
}

/* ---- codes ----------------------------------------------------------------------------- */

/* Sign bits where N codes have them, from stored elements; other bits are left open. */
template <class E, int N> static inline uint32_t signs_of(const uint32_t *words) {
    if (sizeof(E) == 2) {
        return oct_e2m1_signs(words);
    }
    uint32_t signs = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        signs |= (words[i] >> 28 & 0x8u) << 4 * i;
    }
    return signs;
}

/* A word of E without NaNs: +Inf instead, which has the code of a NaN. */
template <class E> static inline uint32_t without_nans(uint32_t word) {
    if (sizeof(E) == 4) {
        return (word & OCT_F32_MAGNITUDE) > OCT_F32_INF ? OCT_F32_INF : word;
    }
    uint32_t inf = oct_is_bf16<E> ? 0x7f80u : 0x7c00u;
    uint32_t low = (word & 0x7fffu) > inf ? inf : word & 0xffffu;
    uint32_t high = (word >> 16 & 0x7fffu) > inf ? inf : word >> 16;
    return low | high << 16;
}

/* N codes, 4 or 8, in a word; element i takes byte i of `random`. None is NaN. */
template <class E, int N, bool STOCHASTIC>
static inline uint32_t encode(const uint32_t *words, float factor, const uint32_t *random,
                              uint32_t base) {
    uint32_t sums[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint4 word = {words[i * (int)sizeof(E) / 4], 0, 0, 0};
        float a = oct_patch_element<E>(word, sizeof(E) == 2 ? i % 2 : 0);
        a = oct_magnitude(a) * factor;
        if (STOCHASTIC) {
            a = oct_e2m1_raised(a, oct_byte_float(random[i / 4], i % 4, base));
        }
        sums[i] = oct_e2m1_sum<STOCHASTIC>(a);
    }
    return oct_e2m1_codes<N>(sums) | (signs_of<E, N>(words) & (N == 8 ? 0x88888888u : 0x8888u));
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
    if (!work.p.q.row) {
        return;
    }
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

template <class T, bool STOCHASTIC>
static inline uint32_t encode_row(const nv_work<T> &work, int r, float factor,
                                  const uint32_t *random) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        words[i] = work.shared.words[4 * r + i][threadIdx.x];
    }
    if (work.careful) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            words[i] = without_nans<T>(words[i]);
        }
    }
    return encode<T, oct_shape<T>::cols, STOCHASTIC>(words, factor, random, work.p.byte_base);
}

/* The random words of this lane's part of a block, which lane `from` has drawn. */
template <class T>
static inline void receive(uint32_t out[2], const uint32_t words[4], int from, int mine) {
    uint32_t all[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        all[i] = __shfl_sync(OCT_ALL_LANES, words[i], from);
    }
    if (nv_row<T>::lanes == 2) {
        out[0] = mine ? all[2] : all[0];
        out[1] = mine ? all[3] : all[1];
    } else {
        out[0] = mine & 2 ? (mine & 1 ? all[3] : all[2]) : (mine & 1 ? all[1] : all[0]);
        out[1] = 0;
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

/* The scale of this lane's row i. A square's is written to the rows that exist; those of others
 * are 0 by themselves. */
template <class T>
static inline void scale_row(const nv_work<T> &work, int i, const oct_nv_global &global) {
    const oct_patch<T> &patch = work.patch;
    int r = patch.lane_across % nv_row<T>::lanes * nv_row<T>::each + i;
    float *place = &work.shared.factors[i][threadIdx.x];
    nv_scale scale = scale_of(oct_f32_bits(*place), global);
    *place = scale.factor;
    work.shared.worth[i][threadIdx.x] = oct_high_u16(oct_f32_bits(scale.value));
    work.shared.scales[0].codes[(patch.row + r) * 8 + patch.col / BLOCK] =
        (uint8_t)(r < patch.rows_left ? scale.code : 0u);
}

/* Rows with one amax are scaled some at a time, for a scale is a long chain of steps. */
template <class T> static inline void scale_rows(const nv_work<T> &work) {
    const oct_patch<T> &patch = work.patch;
    const oct_nvfp4_params &p = work.p;
    int64_t first =
        patch.tile_row + patch.row + patch.lane_across % nv_row<T>::lanes * nv_row<T>::each;
    oct_nv_global global = global_of(p, p.row_amax, p.row_scaled ? first : 0, p.q.rows);
    if (!p.row_scaled) {
#pragma unroll
        for (int i = 0; i < nv_row<T>::each; i++) {
            scale_row(work, i, global);
        }
    } else {
#pragma unroll 1
        for (int i = 0; i < nv_row<T>::each; i++) {
            global = global_of(p, p.row_amax, first + i, p.q.rows);
            scale_row(work, i, global);
        }
    }
    __syncwarp();
}

/* Where row r of a patch goes in a copy; NULL where there is none. */
template <class T>
static inline uint16_t *copy_at(const nv_work<T> &work, uint16_t *copy, int r) {
    const oct_patch<T> &patch = work.patch;
    int64_t at = (patch.tile_row + patch.row + r) * work.p.q.cols + patch.tile_col + patch.col;
    return oct_shape<T>::cols == 8 && copy && patch.full ? copy + at : nullptr;
}

/* 8 codes times the scale in the low half of `worth`, where `to` is somewhere. */
static inline void store_copy(uint16_t *to, uint32_t codes, uint32_t worth) {
    if (to) {
        oct_write16(to, oct_eight_nibbles(codes, oct_pick_bytes(worth, worth, 0x1010)));
    }
}

/* The sharing lanes draw and scale for each other. */
template <class T, bool STOCHASTIC> static inline void encode_rows(const nv_work<T> &work) {
    typedef nv_row<T> row;
    const oct_patch<T> &patch = work.patch;
    int mine = patch.lane_across % row::lanes;
    int first = (int)threadIdx.x - mine;
    int64_t block = (patch.tile_row + patch.row + mine * row::each) * work.p.q.row_at.blocks +
                    (patch.tile_col + patch.col) / BLOCK;
    int64_t bytes = work.p.row_bytes;
    uint8_t *to =
        work.p.q.row + (patch.tile_row + patch.row) * bytes + (patch.tile_col + patch.col) / 2;
#pragma unroll 1
    for (int i = 0; i < row::each; i++) {
        uint32_t words[4], random[2] = {0, 0};
        if (STOCHASTIC) {
            oct_random_words(words, work.seed, (uint64_t)block, 0);
            block += work.p.q.row_at.blocks;
        }
#pragma unroll
        for (int k = 0; k < row::lanes; k++) {
            int from = first + k;
            if (STOCHASTIC) {
                receive<T>(random, words, from % OCT_WARP, mine);
            }
            int r = k * row::each + i;
            uint32_t codes =
                encode_row<T, STOCHASTIC>(work, r, work.shared.factors[i][from], random);
            store_row(work, to + k * row::each * bytes, r, codes);
            store_copy(copy_at(work, work.copies.row, r), codes, work.shared.worth[i][from]);
        }
        to += bytes;
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

/* Column c, as it is quantized: 16 elements of E, which is T, or bf16 where they have been
 * transformed. */
template <class T, class E, bool STOCHASTIC>
static inline void quantize_col(const nv_work<T> &work, int c, uint32_t *words,
                                oct_nv_global global) {
    constexpr int half = 8 * (int)sizeof(E) / 4;
    const oct_patch<T> &patch = work.patch;
    const oct_nvfp4_params &p = work.p;
    uint32_t random[4], most = max_of<E, true>(words);
    if (most > OCT_F32_INF) {
        most = max_of<E, false>(words);
#pragma unroll
        for (int i = 0; i < 2 * half; i++) {
            words[i] = without_nans<E>(words[i]);
        }
    }
    if (p.row_scaled) {
        global = global_of(p, p.col_amax, patch.tile_col + patch.col + c, p.q.cols);
    }
    nv_scale scale = scale_of(work.square ? work.square_most : most, global);
    work.shared.scales[1].codes[(patch.col + c) * 8 + patch.row / BLOCK] =
        (uint8_t)(c < patch.cols_left ? scale.code : 0u);
    draw_col<T, STOCHASTIC>(random, work, c);
    uint32_t base = p.byte_base;
    uint2 codes = {encode<E, 8, STOCHASTIC>(words, scale.factor, random, base),
                   encode<E, 8, STOCHASTIC>(words + half, scale.factor, random + 2, base)};
    store_col(work, c, codes);
    keep_col(work, c, codes, scale.value);
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

/* A word holds one or two columns. */
template <class T, bool STOCHASTIC> static inline void quantize_cols(const nv_work<T> &work) {
    constexpr int each = oct_shape<T>::cols / 4;
    oct_nv_global global = global_of(work.p, work.p.col_amax, 0, work.p.q.cols);
#pragma unroll 1
    for (int w = 0; w < 4; w++) {
        uint32_t words[BLOCK], column[BLOCK];
#pragma unroll
        for (int r = 0; r < BLOCK; r++) {
            words[r] = work.shared.words[4 * r + w][threadIdx.x];
        }
#pragma unroll
        for (int k = 0; k < each; k++) {
            if (work.p.hadamard) {
                transform<T>(column, words, k, work.p);
                quantize_col<T, oct_bf16, STOCHASTIC>(work, each * w + k, column, global);
                continue;
            }
#pragma unroll
            for (int i = 0; i < BLOCK / each; i++) {
                column[i] = each == 1 ? words[i]
                                      : oct_pick_bytes(words[2 * i], words[2 * i + 1],
                                                       k ? 0x7632 : 0x5410);
            }
            quantize_col<T, T, STOCHASTIC>(work, each * w + k, column, global);
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
        work.shared.scales[0].codes[(patch.row + r) * 8 + patch.col / BLOCK] =
            (uint8_t)(r < patch.rows_left ? scale.code : 0u);
    }
#pragma unroll
    for (int c = 0; c < oct_shape<T>::cols; c++) {
        work.shared.scales[1].codes[(patch.col + c) * 8 + patch.row / BLOCK] =
            (uint8_t)(c < patch.cols_left ? scale.code : 0u);
    }
}

/* Rows, whose codes are kept where their elements have lain. Both copies are the same. */
template <class T>
static inline void encode_square(const nv_work<T> &work, const nv_scale &scale) {
    const oct_patch<T> &patch = work.patch;
    uint32_t none[2] = {0, 0}, worth = oct_f32_bits(scale.value) >> 16;
    int64_t bytes = work.p.row_bytes;
    uint8_t *to =
        work.p.q.row + (patch.tile_row + patch.row) * bytes + (patch.tile_col + patch.col) / 2;
#pragma unroll 2
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        uint32_t codes = encode_row<T, false>(work, r, scale.factor, none);
        work.shared.words[4 * r][threadIdx.x] = codes;
        store_row(work, to + r * bytes, r, codes);
        store_copy(copy_at(work, work.copies.row, r), codes, worth);
        store_copy(copy_at(work, work.copies.col, r), codes, worth);
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
    work.careful = __ballot_sync(OCT_ALL_LANES, most > OCT_F32_INF) != 0;
    if (work.careful) {
        most = square_max(work.patch);
    }
    nv_scale scale =
        scale_of(most, global_of(p, p.row_amax ? p.row_amax : p.col_amax, 0, p.q.rows));
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
            quantize_cols<T, stochastic>(work);
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
