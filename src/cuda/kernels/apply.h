/* apply.h - a patch of what a prologue makes of x, rounded to x's dtype: prologue.cu's bits.
 *
 * A norm of a patch that is whole stays in registers. Everything else goes through the thread's
 * own memory, a few rows at a time: code for all 16 rows of every function would take long to
 * compile. What lies outside the matrix is 0. */
#ifndef OCT_CUDA_KERNELS_APPLY_H
#define OCT_CUDA_KERNELS_APPLY_H

#include "cuda/kernels/applied.h"
#include "cuda/kernels/patch.h"
#include "format/norm.h"
#include "format/prologue.h"

#define OCT_APPLY_DEEP 4 /* rows whose loads are in flight together */

static_assert(OCT_PATCH_ROWS % OCT_APPLY_DEEP == 0, "a patch is whole groups of rows");

/* An element of gamma or beta. */
static inline float oct_plain_element(const oct_plain &v, int64_t col) {
    return v.dtype == OCTET_F32    ? ((const float *)v.at)[col]
           : v.dtype == OCTET_BF16 ? oct_to_float(((const oct_bf16 *)v.at)[col])
                                   : oct_to_float(((const oct_f16 *)v.at)[col]);
}

/* What a thread's columns have in common. */
template <class T> struct oct_apply_columns {
    float factor[oct_shape<T>::cols], beta[oct_shape<T>::cols];
};

template <class T>
static inline void oct_apply_parameters(oct_apply_columns<T> &out, const oct_applied_params &f,
                                        int64_t col, int count) {
#pragma unroll
    for (int c = 0; c < oct_shape<T>::cols; c++) {
        float gamma = c < count ? oct_plain_element(f.gamma, col + c) : 0.0f;
        out.factor[c] = oct_norm_factor(gamma, f.zero_centered != 0);
        out.beta[c] = f.beta.at && c < count ? oct_plain_element(f.beta, col + c) : 0.0f;
    }
}

static inline oct_norm_row oct_apply_norm_of(const oct_applied_params &f, int64_t row) {
    oct_norm_row norm = {0.0f, 0.0f};
    if (f.prologue == OCTET_LAYERNORM) {
        norm.mean = f.stats[2 * row];
        norm.rstd = f.stats[2 * row + 1];
    } else {
        norm.rstd = f.stats[row];
    }
    return norm;
}

template <oct_activation ACT, int N> static inline void oct_apply_act(float *x) {
#pragma unroll
    for (int c = 0; c < N; c++) {
        x[c] = oct_act(ACT, x[c]);
    }
}

template <int N> static inline void oct_apply_activation(float *x, oct_activation act) {
    switch (act) {
    case OCT_ACT_GELU:
        oct_apply_act<OCT_ACT_GELU, N>(x);
        break;
    case OCT_ACT_QGELU:
        oct_apply_act<OCT_ACT_QGELU, N>(x);
        break;
    case OCT_ACT_RELU:
        oct_apply_act<OCT_ACT_RELU, N>(x);
        break;
    case OCT_ACT_SRELU:
        oct_apply_act<OCT_ACT_SRELU, N>(x);
        break;
    case OCT_ACT_SILU:
        oct_apply_act<OCT_ACT_SILU, N>(x);
        break;
    default:
        oct_apply_act<OCT_ACT_SIGMOID, N>(x);
    }
}

/* A row of a patch: the elements that exist. */
template <class T>
static inline uint4 oct_apply_load(const oct_plain &m, int64_t row, int64_t col, int count) {
    const T *from = (const T *)m.at + row * m.stride + col;
    return count == oct_shape<T>::cols && m.wide ? oct_stream16(from)
                                                 : oct_load_some(from, count);
}

/* A row of a patch, normed. */
template <class T>
static inline void oct_apply_norm(float *x, const oct_applied_params &f,
                                  const oct_apply_columns<T> &columns, int64_t row) {
    oct_norm_row norm = oct_apply_norm_of(f, row);
#pragma unroll
    for (int c = 0; c < oct_shape<T>::cols; c++) {
        x[c] = oct_normed(&norm, x[c]) * columns.factor[c];
        x[c] = f.beta.at ? x[c] + columns.beta[c] : x[c];
    }
}

/* f of a row of a patch; zeros behind the last column. */
template <class T>
static inline uint4 oct_apply_row(const uint4 &raw, const uint4 &gate,
                                  const oct_applied_params &f,
                                  const oct_apply_columns<T> &columns, int64_t row, int count) {
    constexpr int cols = oct_shape<T>::cols;
    oct_activation act = oct_prologue_activation(f.prologue);
    float x[cols];
#pragma unroll
    for (int c = 0; c < cols; c++) {
        x[c] = oct_element<T>(raw, c);
    }
    if (act == OCT_ACT_NONE) {
        oct_apply_norm<T>(x, f, columns, row);
    } else {
        oct_apply_activation<cols>(x, act);
    }
#pragma unroll
    for (int c = 0; c < cols; c++) {
        float value = f.gate.at ? x[c] * oct_element<T>(gate, c) : x[c];
        x[c] = c < count ? oct_one_nan(value) : 0.0f;
    }
    return oct_pack<T>(x);
}

/* A patch all of whose elements exist, normed: all loads before the first use. */
template <class T>
static inline void oct_patch_norm(oct_patch<T> &p, const oct_applied_params &f) {
    constexpr int cols = oct_shape<T>::cols;
    int64_t first = p.tile_row + p.row, col = p.tile_col + p.col;
    oct_apply_columns<T> columns;
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        p.raw[r] = oct_stream16((const T *)f.x.at + (first + r) * f.x.stride + col);
    }
    oct_apply_parameters(columns, f, col, cols);
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        float x[cols];
#pragma unroll
        for (int c = 0; c < cols; c++) {
            x[c] = oct_element<T>(p.raw[r], c);
        }
        oct_apply_norm<T>(x, f, columns, first + r);
#pragma unroll
        for (int c = 0; c < cols; c++) {
            x[c] = oct_one_nan(x[c]);
        }
        p.raw[r] = oct_pack<T>(x);
    }
}

template <class T>
static inline void oct_patch_apply(oct_patch<T> &p, const oct_applied_params &f) {
    if (f.gamma.at && p.full && f.x.wide) {
        oct_patch_norm(p, f);
        return;
    }
    int64_t first = p.tile_row + p.row, col = p.tile_col + p.col;
    int count = p.cols_left < 0                    ? 0
                : p.cols_left < oct_shape<T>::cols ? p.cols_left
                                                   : oct_shape<T>::cols;
    uint4 rows[OCT_PATCH_ROWS], gates[OCT_APPLY_DEEP];
    oct_apply_columns<T> columns;
    if (f.gamma.at) {
        oct_apply_parameters(columns, f, col, count);
    }
#pragma unroll 1
    for (int r = 0; r < OCT_PATCH_ROWS; r += OCT_APPLY_DEEP) {
#pragma unroll
        for (int k = 0; k < OCT_APPLY_DEEP; k++) {
            bool exists = count > 0 && r + k < p.rows_left;
            rows[r + k] = gates[k] = uint4{0, 0, 0, 0};
            if (exists) {
                rows[r + k] = oct_apply_load<T>(f.x, first + r + k, col, count);
            }
            if (exists && f.gate.at) {
                gates[k] = oct_apply_load<T>(f.gate, first + r + k, col, count);
            }
        }
#pragma unroll 1
        for (int k = 0; k < OCT_APPLY_DEEP; k++) {
            if (count > 0 && r + k < p.rows_left) {
                rows[r + k] =
                    oct_apply_row<T>(rows[r + k], gates[k], f, columns, first + r + k, count);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        p.raw[r] = rows[r];
    }
}

/* Where casts take patches from that are computed. */
struct oct_applying {
    const oct_applied_params &f;
    template <class T>
    inline void operator()(oct_patch<T> &p, const oct_quantize_params &q) const {
        (void)q;
        oct_patch_apply(p, f);
    }
};

#endif
