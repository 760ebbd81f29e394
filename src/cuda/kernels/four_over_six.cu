/* four_over_six.cu - NVFP4's choice per block: its amax becomes 6, or 4 where that errs less.
 *
 * Codes and scales are those of src/cpu/four_over_six.c, bit for bit. A thread has one block of
 * 16 elements of a line; 16 threads have a square. */
#include "cuda/kernels/chain.h"
#include "cuda/kernels/common.h"

#include "cuda/kernels/four_over_six.h"

#define SIDE 16

/* A block's scale and what its elements are multiplied by. */
struct block_scale {
    uint8_t code;
    float factor;
};

/* The two candidates. The amax is divided by six before it is scaled. */
static inline block_scale candidate(float amax, bool four, const oct_nv_global *global) {
    block_scale scale;
    float base = amax / 6.0f * global->encode;
    scale.code = oct_e4m3_encode(oct_least(four ? base * 1.5f : base, 448.0f));
    scale.factor = oct_nv_multiplier(scale.code, global);
    return scale;
}

/* The error of 16 elements in order, in fp32: the sum of |d| or of d d. */
static inline float error_of(const float x[SIDE], block_scale scale,
                             const oct_nv_global *global, const oct_four_over_six_params &p) {
    float error = 0.0f, step = oct_e4m3_decode(scale.code);
#pragma unroll 1
    for (int i = 0; i < SIDE; i++) {
        float value = oct_e2m1_decode((uint8_t)oct_encode_e2m1(x[i] * scale.factor));
        float d = value * step * global->amax / p.aim - x[i];
        error += p.squared ? d * d : (d < 0.0f ? -d : d);
    }
    return error;
}

/* Over the 16 threads of a square, as a tree: i with i + 8, then + 4, + 2, + 1. */
static inline float tree_sum(float error) {
    for (int step = SIDE / 2; step > 0; step /= 2) {
        error += __shfl_xor_sync(OCT_ALL_LANES, error, step);
    }
    return error;
}

static inline float square_max(float most) {
    for (int step = SIDE / 2; step > 0; step /= 2) {
        most = oct_larger(most, __shfl_xor_sync(OCT_ALL_LANES, most, step));
    }
    return most;
}

/* A tie, or an error that is NaN, is for six. */
static inline block_scale choose(const float x[SIDE], const oct_nv_global *global,
                                 const oct_four_over_six_params &p) {
    float most = 0.0f;
    for (int i = 0; i < SIDE; i++) {
        most = oct_larger(most, x[i]);
    }
    most = p.square ? square_max(most) : most;
    block_scale four = candidate(most, true, global), six = candidate(most, false, global);
    float by_four = error_of(x, four, global, p), by_six = error_of(x, six, global, p);
    if (p.square) {
        by_four = tree_sum(by_four);
        by_six = tree_sum(by_six);
    }
    return by_four < by_six ? four : six;
}

/* Two codes a byte; an odd last one alone. */
static inline void encode_block(uint8_t *to, const float x[SIDE], float factor, int count) {
    for (int i = 0; i < count; i += 2) {
        uint32_t high = i + 1 < count ? oct_encode_e2m1(x[i + 1] * factor) : 0u;
        to[i / 2] = (uint8_t)(oct_encode_e2m1(x[i] * factor) | high << 4);
    }
}

template <class T> static inline void quantize(const oct_four_over_six_params &p) {
    uint32_t square = blockIdx.x * (OCT_CHOICE_THREADS / SIDE) + threadIdx.x / SIDE;
    uint32_t beside = (uint32_t)(p.down ? oct_size_ceil_div(p.lines, SIDE) : p.at.blocks);
    uint32_t across = square % beside, below = square / beside;
    int64_t line = (int64_t)(p.down ? across : below) * SIDE + threadIdx.x % SIDE;
    int64_t block = p.down ? below : across;
    bool there = square < p.squares && line < p.lines;
    int64_t left = p.length - block * SIDE;
    int count = there ? (int)(left < SIDE ? left : SIDE) : 0;
    const T *from = (const T *)p.source + line * p.line_step + block * SIDE * p.element_step;
    float x[SIDE];
    for (int i = 0; i < SIDE; i++) {
        x[i] = i < count ? oct_to_float(from[i * p.element_step]) : 0.0f;
    }
    float most = there || !p.row_scaled ? p.amax[p.row_scaled ? line : 0] : 0.0f;
    oct_nv_global global = oct_nv_global_of(most, p.aim);
    block_scale scale = choose(x, &global, p);
    if (there) {
        p.scales[oct_scale_at(&p.at, line, block)] = scale.code;
        encode_block(p.codes + line * p.line_bytes + block * (SIDE / 2), x, scale.factor,
                     count);
    }
}

#define KERNEL(name, T)                                                                        \
    extern "C" __global__ void __launch_bounds__(OCT_CHOICE_THREADS)                           \
        four_over_six_##name(oct_four_over_six_params p) {                                     \
        oct_after();                                                                           \
        quantize<T>(p);                                                                        \
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
