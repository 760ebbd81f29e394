/* thin_line.h - a line of an operand of a thin product, as a lane of a warp reads it. */
#ifndef OCT_CUDA_KERNELS_THIN_LINE_H
#define OCT_CUDA_KERNELS_THIN_LINE_H

#include "cuda/kernels/codes.h"
#include "cuda/kernels/common.h"
#include "cuda/kernels/fragments.h"
#include "cuda/kernels/thin.h"

#define OCT_THIN_CHUNKS 4 /* of a batch, which a warp loads before it multiplies */
#define OCT_THIN_CHUNK 64 /* bytes of a line in a chunk, 16 of each of four lanes */
#define OCT_THIN_BATCH (OCT_THIN_CHUNKS * OCT_THIN_CHUNK)

/* What tensor cores multiply. */
struct oct_thin_element {
    static constexpr bool is_bf16 = false;

    static __device__ float value(uint32_t bits) {
        return oct_f16_decode(static_cast<uint16_t>(bits));
    }
};

/* Codes, and scales of their blocks; both go on with the batches. */
struct oct_thin_line {
    const uint8_t *codes;
    uint32_t scales; /* bytes from the operand's first: less than 2^32, says the host */
};

/* A line's bytes: less than 2^31, says the host. */
static __device__ __forceinline__ int oct_thin_bytes(const oct_gemm_operand &o) {
    int depth = static_cast<int>(o.depth);
    return o.format == OCTET_E2M1 ? (depth + 1) / 2 : depth;
}

static __device__ __forceinline__ int oct_thin_lane(void) {
    return static_cast<int>(threadIdx.x) % 4;
}

/* From the warp's first batch on; scale_bytes are those of a scale, batch_bytes of a batch's.
 * In place of a line that does not exist the last one is read, for sums that nobody reads. */
static __device__ __forceinline__ oct_thin_line oct_thin_line_of(const oct_gemm_operand &o,
                                                                 int64_t outer,
                                                                 uint32_t scale_bytes,
                                                                 uint32_t batch_bytes) {
    uint32_t warp = threadIdx.x / 32;
    int64_t at = min(outer, o.outer - 1), scale = oct_scale_at(&o.scales, at, 0);
    return {o.data + at * o.pitch + warp * OCT_THIN_BATCH,
            static_cast<uint32_t>(scale) * scale_bytes + warp * batch_bytes};
}

/* A word, or half of one, of scales. */
template <class Word>
static __device__ __forceinline__ uint32_t oct_thin_scales(const oct_gemm_operand &o,
                                                           uint32_t at, bool is) {
    const char *base = static_cast<const char *>(o.scale);
    return is ? *reinterpret_cast<const Word *>(base + at) : 0u;
}

/* 16 or 8 bytes of a, which all blocks of the grid read, where they are; else zeros, which add
 * nothing. */
static __device__ __forceinline__ uint4 oct_thin_a16(const void *at, bool is) {
    return is ? oct_load16(at) : uint4{0, 0, 0, 0};
}

static __device__ __forceinline__ uint2 oct_thin_a8(const void *at, bool is) {
    return is ? *static_cast<const uint2 *>(at) : uint2{0, 0};
}

/* The same of b, which is read once. All of a batch are on their way before the first is used:
 * the compiler moves no such load behind the __syncwarp that follows them, as it would those
 * of oct_stream16. */
static __device__ __forceinline__ uint4 oct_thin_b16(const void *at, bool is) {
    uint4 v = {0, 0, 0, 0};
    if (is) {
#if OCT_PTX
        asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(at)
                     : "memory");
#else
        v = oct_load16(at);
#endif
    }
    return v;
}

static __device__ __forceinline__ uint2 oct_thin_b8(const void *at, bool is) {
    uint2 v = {0, 0};
    if (is) {
#if OCT_PTX
        asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                     : "=r"(v.x), "=r"(v.y)
                     : "l"(at)
                     : "memory");
#else
        v = *static_cast<const uint2 *>(at);
#endif
    }
    return v;
}

/* A lane's sums of Groups fragments, into rows of shared memory: lines i / 4 and i / 4 + 8 of
 * b, 2 (i % 4) and the next of each eight of a. */
template <int Groups>
static __device__ __forceinline__ void oct_thin_put(float *sums, int pitch,
                                                    const float (*sum)[4]) {
    int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < Groups * 4; i++) {
        int row = i / 4 * 8 + lane % 4 * 2 + i % 2, col = lane / 4 + i % 4 / 2 * 8;
        sums[row * pitch + col] = sum[i / 4][i % 4];
    }
}

#endif
