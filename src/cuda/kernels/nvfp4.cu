/* nvfp4.cu - blocks of 16 with one E4M3 scale under an fp32 amax.
 *
 * Codes and scales are those of src/cpu/nvfp4.c, bit for bit. The blocks of a patch's columns
 * are its own; those of its rows are shared with one or three lanes beside it. A block of zeros
 * has scale 0 and codes 0, and so has what lies outside the matrix: padding is made on the way.
 */
#include "cuda/kernels/decode.h"
#include "cuda/kernels/dynamic.h"
#include "cuda/kernels/nvfp4_block.h"
#include "cuda/kernels/patch.h"
#include "cuda/kernels/tile_scales.h"
#include "cuda/kernels/transform.h"

#include "cuda/kernels/nvfp4.h"
#include "format/philox.h"

#define BLOCK OCT_NV_BLOCK

/* How a kernel differs from others: what it does not do costs it no registers. */
enum { NEAREST = 0, STOCHASTIC = 1, COPIED = 2, WHOLE = 4 };

/* Lanes that share the blocks of a row, and the rows whose scales each of them makes. */
template <class T> struct nv_row {
    static constexpr int lanes = BLOCK / oct_shape<T>::cols;
    static constexpr int each = OCT_PATCH_ROWS / lanes;
};

/* A block's shared memory. Loops over a patch are not unrolled, or they would not fit the
 * instruction cache; so patches lie here, two words of a row beside each other, in columns that
 * are each thread's own. */
template <class T> struct nv_shared {
    alignas(8) uint32_t words[OCT_PATCH_ROWS * 2][oct_shape<T>::threads][2];
    uint2 marks[nv_row<T>::each][oct_shape<T>::threads]; /* of rows */
    oct_tile_scales<2> scales[2];
};

/* A mark of a row's block: first its amax, then the factor of its elements, and its scale as
 * bf16 in both halves of a word. */
struct nv_mark {
    float factor;
    uint32_t worth;
};

template <class T>
static inline nv_mark mark_of(const nv_shared<T> &shared, int i, int thread) {
    uint2 mark = shared.marks[i][thread];
    return {oct_bits_f32(mark.x), mark.y};
}

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
    uint32_t row_codes, row_values; /* whether they are made */
};

/* What the blocks of a line share; a line outside the matrix has an amax of 0. */
static inline oct_nv_global global_of(const oct_nvfp4_params &p, const float *amax,
                                      int64_t line, int64_t lines) {
    int64_t at = p.row_scaled ? line : 0;
    return oct_nv_global_of(at < lines ? amax[at] : 0.0f, p.aim);
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

/* Row r as it lies in shared memory. */
template <class T>
static inline void load_row(uint32_t words[4], const nv_work<T> &work, int r) {
    uint2 low = *(const uint2 *)work.shared.words[2 * r][threadIdx.x];
    uint2 high = *(const uint2 *)work.shared.words[2 * r + 1][threadIdx.x];
    words[0] = low.x;
    words[1] = low.y;
    words[2] = high.x;
    words[3] = high.y;
}

/* And word w of it. */
template <class T> static inline uint32_t &word_of(const nv_work<T> &work, int r, int w) {
    return work.shared.words[2 * r + w / 2][threadIdx.x][w % 2];
}

/* Row r as it is encoded. */
template <class T, bool RANDOM>
static inline void take_row(uint32_t words[4], const nv_work<T> &work, int r, float factor) {
    load_row(words, work, r);
    if (work.careful) {
        uint32_t limit = oct_nv_limit<T, RANDOM>(factor);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            words[i] = oct_nv_tamed<T>(words[i], limit);
        }
    }
}

/* The random words of this lane's part of one row after the other, of which each of the lanes
 * that share blocks has drawn those of one. */
template <class T>
static inline void exchange(uint32_t out[][2], const uint32_t words[4], int mine) {
#pragma unroll
    for (int j = 0; j < 2 && nv_row<T>::lanes == 2; j++) {
        uint32_t keep = mine ? words[2 + j] : words[j], give = mine ? words[j] : words[2 + j];
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

/* Of row r, as it is stored, without NaNs; from shared memory, so that registers need not hold
 * the patch. */
template <class T> static inline uint32_t row_peak(const nv_work<T> &work, int r) {
    uint32_t words[4];
    load_row(words, work, r);
    return oct_peak<T>(oct_peak<T>(oct_peak<T>(oct_peak<T>(0u, words[0]), words[1]), words[2]),
                       words[3]);
}

/* The same of a row in registers, and a NaN is kept. */
template <class T> static inline uint32_t row_peak_or_nan(const uint4 &v) {
    uint32_t most = oct_peak_or_nan<T>(oct_nv_first<T>(v.x), v.y);
    return oct_peak_or_nan<T>(oct_peak_or_nan<T>(most, v.z), v.w);
}

/* The amaxes of row blocks, each in the memory of the lane that makes its scale; 0 where there
 * are no rows. Where a warp finds a NaN it goes over its rows once more, without. */
template <class T> static inline void measure_rows(nv_work<T> &work) {
    typedef nv_row<T> row;
    int mine = work.patch.lane_across % row::lanes;
    uint32_t most[OCT_PATCH_ROWS];
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        most[r] = row_peak_or_nan<T>(work.patch.raw[r]);
    }
    oct_share<OCT_PATCH_ROWS, row::lanes>(
        most, mine, 1, [](uint32_t a, uint32_t b) { return oct_peak_or_nan<T>(a, b); });
    uint32_t all = most[0];
#pragma unroll
    for (int i = 1; i < row::each; i++) {
        all = oct_peak_or_nan<T>(all, most[i]);
    }
    work.careful = __ballot_sync(OCT_ALL_LANES, oct_peak_bits<T>(all) > OCT_F32_INF) != 0;
    if (work.careful) {
#pragma unroll
        for (int r = 0; r < OCT_PATCH_ROWS; r++) {
            most[r] = row_peak(work, r);
        }
        oct_share<OCT_PATCH_ROWS, row::lanes>(
            most, mine, 1, [](uint32_t a, uint32_t b) { return oct_peak<T>(a, b); });
    }
#pragma unroll
    for (int i = 0; i < row::each; i++) {
        work.shared.marks[i][threadIdx.x].x = oct_peak_bits<T>(most[i]);
    }
#pragma unroll 1
    for (int i = 0; i < row::each && work.square; i++) {
        work.shared.marks[i][threadIdx.x].x =
            mine * row::each + i < work.patch.rows_left ? work.square_most : 0u;
    }
}

/* Scales of N of this lane's rows from row i on, side by side, for a scale is a long chain of
 * steps; whether one was not tame. Padding has an amax of 0, and so a scale of 0. */
template <class T, int N>
static inline bool scale_some(const nv_work<T> &work, int i, const oct_nv_global &global) {
    const oct_patch<T> &patch = work.patch;
    int first = patch.row + patch.lane_across % nv_row<T>::lanes * nv_row<T>::each;
    uint8_t *codes =
        work.shared.scales[0].codes + oct_tile_scale_at<2>(first, patch.col / BLOCK);
    uint32_t most[N];
    oct_nv_scale scale[N];
    bool tame = true, wild = false;
#pragma unroll
    for (int k = 0; k < N; k++) {
        most[k] = work.shared.marks[i + k][threadIdx.x].x;
        scale[k] = oct_nv_scale_of(most[k], global);
        tame &= oct_nv_is_tame(most[k], scale[k]);
    }
    if (!tame) {
#pragma unroll
        for (int k = 0; k < N; k++) {
            wild |= !oct_nv_is_tame(most[k], scale[k]) && most[k] != 0;
            scale[k].factor = oct_nv_slow_factor(most[k], scale[k], global);
        }
    }
#pragma unroll
    for (int k = 0; k < N; k++) {
        uint32_t value = oct_f32_bits(scale[k].value);
        work.shared.marks[i + k][threadIdx.x] =
            uint2{oct_f32_bits(scale[k].factor), oct_pick_bytes(value, value, 0x3232)};
        codes[8 * (i + k)] = (uint8_t)scale[k].code; /* of 8 lines no two have a gap between */
    }
    return wild;
}

template <class T> static inline void scale_rows(nv_work<T> &work) {
    constexpr int each = nv_row<T>::each;
    const oct_patch<T> &patch = work.patch;
    const oct_nvfp4_params &p = work.p;
    bool wild = false;
    if (!p.row_scaled) {
        wild = scale_some<T, each>(work, 0, global_of(p, p.row_amax, 0, p.q.rows));
    }
#pragma unroll 1
    for (int i = 0; i < each && p.row_scaled; i++) {
        int64_t line = patch.tile_row + patch.row;
        line += patch.lane_across % nv_row<T>::lanes * each + i;
        wild |= scale_some<T, 1>(work, i, global_of(p, p.row_amax, line, p.q.rows));
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

/* Where the codes of a patch's rows and what they are worth go. */
template <class T> struct nv_places {
    uint8_t *to;
    uint16_t *copy;
    int64_t bytes, cols; /* from one row to the next */
};

template <class T> static inline nv_places<T> places_of(const nv_work<T> &work) {
    const oct_patch<T> &patch = work.patch;
    const oct_nvfp4_params &p = work.p;
    int64_t at = (patch.tile_row + patch.row) * p.row_bytes;
    return {p.q.row + at + (patch.tile_col + patch.col) / 2, copy_at(work, work.copies.row, 0),
            p.row_bytes, p.q.cols};
}

/* Rows i of the sharing lanes, which draw and scale for each other. A kernel without copies
 * makes codes. */
template <class T, int WAY>
static inline void encode_shared(const nv_work<T> &work, const nv_places<T> &places, int i,
                                 const uint32_t (*random)[2]) {
    typedef nv_row<T> row;
    constexpr int cols = oct_shape<T>::cols;
    constexpr bool random_bits = (WAY & STOCHASTIC) != 0, copied = (WAY & COPIED) != 0;
    int first = (int)threadIdx.x - work.patch.lane_across % row::lanes;
    uint32_t words[row::lanes][4], quads[row::lanes][2], worth[row::lanes];
#pragma unroll
    for (int k = 0; k < row::lanes; k++) {
        nv_mark mark = mark_of(work.shared, i, first + k);
        worth[k] = mark.worth;
        take_row<T, random_bits>(words[k], work, k * row::each + i, mark.factor);
        oct_nv_encode<T, cols, random_bits>(quads[k], words[k], mark.factor, random[k]);
    }
    if (!copied || work.row_codes) {
#pragma unroll
        for (int k = 0; k < row::lanes; k++) {
            store_row(work, places.to + k * row::each * places.bytes, k * row::each + i,
                      oct_nv_codes<T, cols>(quads[k], words[k]));
        }
    }
    if (copied && work.row_values) {
#pragma unroll
        for (int k = 0; k < row::lanes; k++) {
            oct_write16(places.copy + k * row::each * places.cols,
                        oct_nv_copy(quads[k], words[k], worth[k]));
        }
    }
}

template <class T, int WAY> static inline void encode_rows(nv_work<T> &work) {
    typedef nv_row<T> row;
    const oct_patch<T> &patch = work.patch;
    const oct_nvfp4_params &p = work.p;
    int mine = patch.lane_across % row::lanes;
    int64_t block = (patch.tile_row + patch.row + mine * row::each) * p.q.row_at.blocks +
                    (patch.tile_col + patch.col) / BLOCK;
    nv_places<T> places = places_of(work);
    work.row_codes = oct_kept(p.q.row ? 1u : 0u);
    work.row_values = oct_kept(places.copy ? 1u : 0u);
#pragma unroll 1
    for (int i = 0; i < row::each; i++) {
        uint32_t drawn[4], random[row::lanes][2];
        if (WAY & STOCHASTIC) {
            oct_random_words(drawn, work.seed, (uint64_t)block, 0);
            exchange<T>(random, drawn, mine);
            block += p.q.row_at.blocks;
        }
        encode_shared<T, WAY>(work, places, i, random);
        places.to += places.bytes;
        places.copy += WAY & COPIED ? places.cols : 0;
    }
}

/* ---- columns --------------------------------------------------------------------------- */

/* Where the codes of a patch's columns go, 16 each. */
struct nv_lines {
    uint8_t *to;
    int count;              /* bytes of a column that exist */
    bool wide;              /* all of them, in all columns, and aligned */
    uint32_t codes, values; /* whether they and what they are worth are made */
};

/* The transform keeps all outputs of the last group of rows. */
template <class T> static inline nv_lines lines_of(const nv_work<T> &work) {
    const oct_patch<T> &patch = work.patch;
    const oct_nvfp4_params &p = work.p;
    int count = patch.rows_left < BLOCK ? (patch.rows_left + 1) / 2 : BLOCK / 2;
    count = p.hadamard && patch.rows_left > 0 ? BLOCK / 2 : count;
    nv_lines lines;
    lines.to =
        p.q.col + (patch.tile_col + patch.col) * p.col_bytes + (patch.tile_row + patch.row) / 2;
    lines.count = count;
    lines.wide = count == BLOCK / 2 && patch.cols_left >= oct_shape<T>::cols && p.q.wide_col;
    lines.codes = oct_kept(p.q.col ? 1u : 0u);
    lines.values = oct_kept(work.copies.col ? 1u : 0u);
    return lines;
}

/* The codes of column c; `to` is its place. */
template <class T>
static inline void store_col(const nv_work<T> &work, const nv_lines &lines, uint8_t *to, int c,
                             uint2 codes) {
    if (lines.wide) {
        *(uint2 *)to = codes;
    } else if (c < work.patch.cols_left && lines.count == BLOCK / 2 && work.p.q.wide_col) {
        *(uint2 *)to = codes;
    } else if (c < work.patch.cols_left) {
        store_codes(to, codes, lines.count);
    }
}

/* What the codes of columns are worth, where it is wanted; by now it lies in place of the
 * patch. */
template <class T> static inline void copy_cols(const nv_work<T> &work) {
    uint16_t *to = copy_at(work, work.copies.col, 0);
    if (!to) {
        return;
    }
#pragma unroll 4
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        uint32_t words[4];
        load_row(words, work, r);
        oct_write16(to, uint4{words[0], words[1], words[2], words[3]});
        to += work.p.q.cols;
    }
}

/* Random words of column c's block; 0 where none are needed. */
template <class T, bool RANDOM>
static inline void draw_col(uint32_t random[4], const nv_work<T> &work, int c) {
    const oct_patch<T> &patch = work.patch;
    random[0] = random[1] = random[2] = random[3] = 0;
    if (RANDOM) {
        int64_t line = patch.tile_col + patch.col + c;
        int64_t block = line * work.p.q.col_at.blocks + (patch.tile_row + patch.row) / BLOCK;
        oct_random_words(random, work.seed, (uint64_t)block, 1);
    }
}

/* A column as it is quantized: 16 elements of E, which is T, or bf16 where they have been
 * transformed. */
template <class E> struct nv_col {
    uint32_t words[BLOCK * (int)sizeof(E) / 4];
    oct_nv_scale scale;
};

/* The scale of a column; whether it is tame. */
template <class T, class E>
static inline bool scale_col(nv_col<E> &col, const nv_work<T> &work,
                             const oct_nv_global &global) {
    uint32_t most = oct_nv_max<E, true>(col.words);
    col.scale = oct_nv_scale_of(work.square ? work.square_most : most, global);
    return oct_nv_is_tame(most, col.scale);
}

/* The same of any column, and its elements as they are encoded. */
template <class T, class E, bool RANDOM>
static inline void tame_col(nv_col<E> &col, const nv_work<T> &work,
                            const oct_nv_global &global) {
    uint32_t most = work.square ? work.square_most : oct_nv_max<E, false>(col.words);
    col.scale = oct_nv_scale_of(most, global);
    col.scale.factor = oct_nv_slow_factor(most, col.scale, global);
    uint32_t limit = oct_nv_limit<E, RANDOM>(col.scale.factor);
#pragma unroll
    for (int i = 0; i < BLOCK * (int)sizeof(E) / 4; i++) {
        col.words[i] = oct_nv_tamed<E>(col.words[i], limit);
    }
}

/* Column c: quads of its codes, which are stored at `to` where they are wanted. */
template <class T, class E, int WAY>
static inline void encode_col(uint32_t quads[4], const nv_col<E> &col, const nv_work<T> &work,
                              const nv_lines &lines, uint8_t *to, int c) {
    constexpr int half = 8 * (int)sizeof(E) / 4;
    constexpr bool random_bits = (WAY & STOCHASTIC) != 0;
    const oct_patch<T> &patch = work.patch;
    uint32_t random[4];
    work.shared.scales[1].codes[oct_tile_scale_at<2>(patch.col + c, patch.row / BLOCK)] =
        (uint8_t)(c < patch.cols_left ? col.scale.code : 0u);
    draw_col<T, random_bits>(random, work, c);
    oct_nv_encode<E, 8, random_bits>(quads, col.words, col.scale.factor, random);
    oct_nv_encode<E, 8, random_bits>(quads + 2, col.words + half, col.scale.factor, random + 2);
    if (!(WAY & COPIED) || lines.codes) {
        store_col(work, lines, to, c,
                  {oct_nv_codes<E, 8>(quads, col.words),
                   oct_nv_codes<E, 8>(quads + 2, col.words + half)});
    }
}

/* What two columns are worth, in place of the patch's words w: their elements are in registers
 * by now. */
template <class T, class E>
static inline void keep_pair(const nv_work<T> &work, const nv_col<E> *cols,
                             const uint32_t quads[][4], int w) {
    uint32_t values[2][BLOCK / 2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        uint32_t scale = oct_f32_bits(cols[k].scale.value);
        oct_nv_values<BLOCK>(values[k], quads[k], cols[k].words,
                             oct_pick_bytes(scale, scale, 0x3232));
    }
#pragma unroll
    for (int r = 0; r < BLOCK; r++) {
        word_of(work, r, w) =
            oct_pick_bytes(values[0][r / 2], values[1][r / 2], r % 2 ? 0x7632 : 0x5410);
    }
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

/* The columns of word w of each row, one or two, side by side: a scale is a long chain of
 * steps. */
template <class T, class E, int WAY, bool HADAMARD>
static inline void quantize_pair(const nv_work<T> &work, const nv_lines &lines, int w,
                                 const oct_nv_global &whole) {
    constexpr int each = oct_shape<T>::cols / 4;
    constexpr bool random_bits = (WAY & STOCHASTIC) != 0;
    const oct_nvfp4_params &p = work.p;
    uint32_t words[BLOCK], quads[each][4];
    nv_col<E> cols[each];
    oct_nv_global global[each];
    bool tame = true;
#pragma unroll
    for (int r = 0; r < BLOCK; r++) {
        words[r] = word_of(work, r, w);
    }
#pragma unroll
    for (int k = 0; k < each; k++) {
        int64_t line = work.patch.tile_col + work.patch.col + each * w + k;
        bool own = !HADAMARD && !random_bits && p.row_scaled;
        global[k] = own ? global_of(p, p.col_amax, line, p.q.cols) : whole;
        if constexpr (HADAMARD) {
            transform<T>(cols[k].words, words, k, p);
        } else {
            pick_col<T>(cols[k].words, words, k);
        }
        tame &= scale_col<T, E>(cols[k], work, global[k]);
    }
#pragma unroll
    for (int k = 0; k < each && !tame; k++) {
        tame_col<T, E, random_bits>(cols[k], work, global[k]);
    }
#pragma unroll
    for (int k = 0; k < each; k++) {
        encode_col<T, E, WAY>(quads[k], cols[k], work, lines, lines.to + k * p.col_bytes,
                              each * w + k);
    }
    if constexpr ((WAY & COPIED) != 0) {
        if (lines.values) {
            keep_pair<T, E>(work, cols, quads, w);
        }
    }
}

template <class T, class E, int WAY, bool HADAMARD>
static inline void quantize_cols(const nv_work<T> &work) {
    constexpr int each = oct_shape<T>::cols / 4;
    const oct_nvfp4_params &p = work.p;
    oct_nv_global whole = global_of(p, p.col_amax, 0, p.q.cols);
    nv_lines lines = lines_of(work);
#pragma unroll 1
    for (int w = 0; w < 4; w++) {
        quantize_pair<T, E, WAY, HADAMARD>(work, lines, w, whole);
        lines.to += each * p.col_bytes;
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
static inline void scale_square(const nv_work<T> &work, const oct_nv_scale &scale) {
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
static inline void encode_square(const nv_work<T> &work, const oct_nv_scale &scale) {
    const oct_patch<T> &patch = work.patch;
    const oct_nvfp4_params &p = work.p;
    uint32_t worth = oct_f32_bits(scale.value);
    uint8_t *to =
        p.q.row + (patch.tile_row + patch.row) * p.row_bytes + (patch.tile_col + patch.col) / 2;
    uint16_t *row_copy = copy_at(work, work.copies.row, 0);
    uint16_t *col_copy = copy_at(work, work.copies.col, 0);
    int64_t at = 0;
#pragma unroll 2
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        uint32_t words[4], quads[2];
        take_row<T, false>(words, work, r, scale.factor);
        oct_nv_encode<T, oct_shape<T>::cols, false>(quads, words, scale.factor, nullptr);
        uint32_t codes = oct_nv_codes<T, oct_shape<T>::cols>(quads, words);
        word_of(work, r, 0) = codes;
        if (p.q.row) {
            store_row(work, to, r, codes);
        }
        if (row_copy || col_copy) {
            uint4 values = oct_nv_copy(quads, words, oct_pick_bytes(worth, worth, 0x3232));
            if (row_copy) {
                oct_write16(row_copy + at, values);
            }
            if (col_copy) {
                oct_write16(col_copy + at, values);
            }
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
            x[half][i] = word_of(work, 8 * half + i, 0);
        }
        oct_turn_nibbles(x[half]);
    }
    nv_lines lines = lines_of(work);
#pragma unroll
    for (int c = 0; c < oct_shape<T>::cols; c++) {
        store_col(work, lines, lines.to, c, {x[0][c], x[1][c]});
        lines.to += work.p.col_bytes;
    }
}

/* Squares to nearest: one scale for a patch, and columns with the codes of rows. */
template <class T> static inline void quantize_square(nv_work<T> &work) {
    const oct_nvfp4_params &p = work.p;
    uint32_t most = 0;
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        most = oct_peak_or_nan<T>(most, oct_patch_row_peak_or_nan(work.patch, r));
    }
    most = square_share<T>(oct_peak_bits<T>(most));
    if (__ballot_sync(OCT_ALL_LANES, most > OCT_F32_INF) != 0) {
        work.careful = true;
        most = square_max(work.patch);
    }
    oct_nv_global global = global_of(p, p.row_amax ? p.row_amax : p.col_amax, 0, p.q.rows);
    oct_nv_scale scale = oct_nv_scale_of(most, global);
    bool tame = oct_nv_is_tame(most, scale);
    if (!tame) {
        scale.factor = oct_nv_slow_factor(most, scale, global);
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
        p,     patch, *shared, copies, seed, square, square ? square_max(patch) : 0u,
        false, 0u,    0u};
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        *(uint2 *)shared->words[2 * r][threadIdx.x] = uint2{patch.raw[r].x, patch.raw[r].y};
        *(uint2 *)shared->words[2 * r + 1][threadIdx.x] = uint2{patch.raw[r].z, patch.raw[r].w};
    }
    if constexpr (WAY & WHOLE) {
        quantize_square(work);
    } else {
        if (p.q.row || copies.row) {
            measure_rows(work);
            scale_rows(work);
            encode_rows<T, WAY>(work);
        }
        if (p.q.col || copies.col) {
            if (p.hadamard) {
                quantize_cols<T, oct_bf16, WAY, true>(work);
            } else {
                quantize_cols<T, T, WAY, false>(work);
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

#ifdef OCT_TAKES_F32
KERNEL(f32, float, NEAREST)
KERNEL(sr_f32, float, STOCHASTIC)
KERNEL(squares_f32, float, WHOLE)
#endif
#ifdef OCT_TAKES_BF16
KERNEL(bf16, oct_bf16, NEAREST)
KERNEL(sr_bf16, oct_bf16, STOCHASTIC)
KERNEL(copied_bf16, oct_bf16, NEAREST | COPIED)
KERNEL(copied_sr_bf16, oct_bf16, STOCHASTIC | COPIED)
KERNEL(squares_bf16, oct_bf16, WHOLE | COPIED)
#endif
#ifdef OCT_TAKES_F16
KERNEL(f16, oct_f16, NEAREST)
KERNEL(sr_f16, oct_f16, STOCHASTIC)
KERNEL(copied_f16, oct_f16, NEAREST | COPIED)
KERNEL(copied_sr_f16, oct_f16, STOCHASTIC | COPIED)
KERNEL(squares_f16, oct_f16, WHOLE | COPIED)
#endif
