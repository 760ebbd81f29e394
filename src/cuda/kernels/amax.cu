/* amax.cu - the largest magnitude: of a tensor, of its transformed columns, or of each line.
 *
 * A maximum does not depend on the order of its operands, so bits are those of src/cpu/amax.c.
 */
#include "cuda/kernels/chain.h"
#include "cuda/kernels/column_sums.h"
#include "cuda/kernels/patch.h"

#include "cuda/kernels/amax.h"
#include "cuda/kernels/transform.h"

/* ---- a dense tensor -------------------------------------------------------------------- */

/* Vectors of 16 bytes from `from` on: whole chunks of all loads, then what is left. */
template <class T>
static inline uint32_t vectors_max(const uint4 *from, int64_t count, uint32_t block,
                                   uint32_t blocks) {
    constexpr int64_t chunk = OCT_FLAT_THREADS * OCT_FLAT_LOADS;
    uint32_t most = 0;
    int64_t at = block * chunk + threadIdx.x, step = blocks * chunk;
    for (; at + (chunk - OCT_FLAT_THREADS) < count; at += step) {
        uint4 v[OCT_FLAT_LOADS];
#pragma unroll
        for (int i = 0; i < OCT_FLAT_LOADS; i++) {
            v[i] = oct_stream16(from + at + i * OCT_FLAT_THREADS);
        }
#pragma unroll
        for (int i = 0; i < OCT_FLAT_LOADS; i++) {
            most = oct_peak<T>(most, v[i].x);
            most = oct_peak<T>(most, v[i].y);
            most = oct_peak<T>(most, v[i].z);
            most = oct_peak<T>(most, v[i].w);
        }
    }
    for (; at < count; at += OCT_FLAT_THREADS) {
        uint4 v = oct_stream16(from + at);
        most = oct_peak<T>(oct_peak<T>(most, v.x), v.y);
        most = oct_peak<T>(oct_peak<T>(most, v.z), v.w);
    }
    return oct_peak_bits<T>(most);
}

template <class T> static inline uint32_t element_max(uint32_t most, T x) {
    return oct_f32_bits(oct_larger(oct_bits_f32(most), oct_to_float(x)));
}

/* This thread's share of what the block has of a tensor. */
template <class T> static inline uint32_t dense_max(const oct_amax_flat_params &p) {
    const T *from = (const T *)p.source;
    int64_t head = (int64_t)((0u - (uint32_t)(uintptr_t)from) % 16u / sizeof(T));
    head = head < p.count ? head : p.count;
    int64_t vectors = (p.count - head) / oct_vector_of<T>::count;
    int64_t tail = head + vectors * oct_vector_of<T>::count;
    uint32_t block = blockIdx.x - p.first + (blockIdx.x < p.first ? gridDim.x : 0u);
    uint32_t most = vectors_max<T>((const uint4 *)(from + head), vectors, block, gridDim.x);
    if (block == 0 && threadIdx.x < head) {
        most = element_max(most, from[threadIdx.x]);
    }
    if (block == 0 && tail + threadIdx.x < p.count) {
        most = element_max(most, from[tail + threadIdx.x]);
    }
    return most;
}

/* By a warp: the block's maximum among the shares, and zeros where no block has one; or
 * raised; or raised from 0 on, without waiting for what is there. */
static inline void put(const oct_amax_flat_params &p, uint32_t most) {
    uint32_t lane = threadIdx.x % OCT_WARP;
    if (p.shares) {
        for (uint32_t i = lane; blockIdx.x + i * gridDim.x < OCT_AMAX_SHARES; i += OCT_WARP) {
            p.shares[blockIdx.x + i * gridDim.x] = oct_bits_f32(i == 0 ? most : 0u);
        }
    }
    if (p.out && p.raises && lane == 0) {
        oct_record(p.out, most);
    } else if (p.out && lane == 0) {
        atomicMax((uint32_t *)p.out, most);
    }
    if (p.copy && lane == 0) {
        atomicMax((uint32_t *)p.copy, most);
    }
}

template <class T> static inline void flat(const oct_amax_flat_two &p) {
    constexpr uint32_t warps = OCT_FLAT_THREADS / OCT_WARP;
    __shared__ uint32_t maxima[2][warps];
    uint32_t warp = threadIdx.x / OCT_WARP;
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        uint32_t most = oct_warp_max(dense_max<T>(p.of[i]));
        if (threadIdx.x % OCT_WARP == 0) {
            maxima[i][warp] = most;
        }
    }
    __syncthreads();
    if (warp < 2) {
        put(p.of[warp], oct_warp_max(maxima[warp][threadIdx.x % warps]));
    }
}

/* ---- tiles ----------------------------------------------------------------------------- */

/* Of the transformed columns of a patch, rounded to bf16: rounding keeps the order, so the
 * largest is rounded alone. */
template <class T>
static inline uint32_t transformed_max(const oct_patch<T> &patch, const float *weights) {
    float most = 0.0f;
#pragma unroll
    for (int c = 0; c < oct_shape<T>::cols; c++) {
        most = oct_patch_transformed_max(most, patch, c, weights);
    }
    return (uint32_t)oct_bf16_encode(most) << 16;
}

/* What the amaxes of a tensor were before its elements are here: they only rise, so one that is
 * not above needs no second look. */
struct amax_seen {
    uint32_t row, col;
};

static inline amax_seen seen_of(const oct_amax_tiles_params &p) {
    amax_seen seen = {0, 0};
    if (!p.by_line && p.row) {
        seen.row = *(volatile const uint32_t *)p.row;
    }
    if (!p.by_line && p.col) {
        seen.col = *(volatile const uint32_t *)p.col;
    }
    return seen;
}

template <class T>
static inline void tensor_max(const oct_patch<T> &patch, const oct_amax_tiles_params &p,
                              const amax_seen &seen) {
    bool first = threadIdx.x % OCT_WARP == 0;
    if (p.row || !p.hadamard) {
        uint32_t most = oct_warp_max(oct_patch_max(patch));
        if (first && p.row && (most > seen.row || seen.row > OCT_F32_INF)) {
            oct_record(p.row, most);
        }
        if (first && p.col && !p.hadamard && most > seen.col) {
            oct_raise(p.col, most);
        }
    }
    if (p.col && p.hadamard) {
        uint32_t most = oct_warp_max(transformed_max(patch, p.weights));
        if (first && most > seen.col) {
            oct_raise(p.col, most);
        }
    }
}

template <class T>
static inline void lines_max(const oct_patch<T> &patch, const oct_amax_tiles_params &p) {
    typedef oct_shape<T> shape;
    constexpr int rows = OCT_PATCH_ROWS / shape::across, cols = shape::cols / shape::down;
    uint32_t most[OCT_PATCH_ROWS];
    int lane_down = (int)threadIdx.x % OCT_WARP / shape::across;
    oct_patch_col_max(most, patch);
    oct_share_max<shape::cols, shape::down>(most, lane_down, shape::across);
#pragma unroll
    for (int i = 0; i < cols; i++) {
        int c = lane_down * cols + i;
        if (p.col && c < patch.cols_left) {
            oct_raise(p.col + patch.tile_col + patch.col + c, most[i]);
        }
    }
#pragma unroll
    for (int r = 0; r < OCT_PATCH_ROWS; r++) {
        most[r] = oct_patch_row_max(patch, r);
    }
    oct_share_max<OCT_PATCH_ROWS, shape::across>(most, patch.lane_across, 1);
#pragma unroll
    for (int i = 0; i < rows; i++) {
        int r = patch.lane_across * rows + i;
        if (p.row && r < patch.rows_left) {
            oct_raise(p.row + patch.tile_row + patch.row + r, most[i]);
        }
    }
}

template <class T> static inline void tiles(const oct_amax_tiles_params &p) {
    __shared__ oct_tile_leaves<OCT_TILE> leaves;
    oct_patch<T> patch = oct_patch_of<T>(p.q);
    amax_seen seen = seen_of(p);
    oct_patch_load(patch, p.q);
    if (p.q.sums) {
        oct_leaves_put(leaves, patch);
        __syncthreads();
        oct_leaves_store(leaves, patch, p.q);
    }
    if (p.by_line) {
        lines_max(patch, p);
    } else {
        tensor_max(patch, p, seen);
    }
}

#define KERNEL(name, T)                                                                        \
    extern "C" __global__ void __launch_bounds__(OCT_FLAT_THREADS, OCT_FLAT_RESIDENT)          \
        amax_flat_##name(const __grid_constant__ oct_amax_flat_two p) {                        \
        oct_after();                                                                           \
        flat<T>(p);                                                                            \
    }                                                                                          \
    extern "C" __global__ void __launch_bounds__(oct_shape<T>::threads,                        \
                                                 oct_shape<T>::resident)                       \
        amax_tiles_##name(oct_amax_tiles_params p) {                                           \
        oct_after();                                                                           \
        tiles<T>(p);                                                                           \
    }

#ifdef OCT_TAKES_F32
KERNEL(f32, float)
#endif
#ifdef OCT_TAKES_BF16
KERNEL(bf16, oct_bf16)
#endif
#ifdef OCT_TAKES_F16
KERNEL(f16, oct_f16)
#endif
