/* emulate.h - CUDA's language for kernels compiled as plain C++: a block's threads as fibers.
 *
 * A kernel file is compiled with this header before it and OCTET_EMULATED defined. Blocks run
 * one after the other, so a static variable is a block's shared memory. Threads of a block run
 * one at a time and change at barriers and warp operations, forward in even blocks and backward
 * in odd ones: what works only in one order fails. Warp operations take all lanes that have not
 * ended; masks are not looked at. Extern shared arrays go by OCT_DYNAMIC_SHARED. */
#ifndef OCTET_TEST_CUDA_EMULATE_H
#define OCTET_TEST_CUDA_EMULATE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define _Static_assert static_assert

#define __global__ __attribute__((used, visibility("default")))
#define __device__
#define __host__
#define __shared__ static
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __grid_constant__
#define OCT_DYNAMIC_SHARED(type, name)                                                         \
    type *const name = static_cast<type *>(emulated_dynamic_shared())

/* ---- vectors --------------------------------------------------------------------------- */

#define EMULATED_VECTOR_2(type, name)                                                          \
    struct alignas(2 * sizeof(type)) name {                                                    \
        type x, y;                                                                             \
    };                                                                                         \
    static inline name make_##name(type x, type y) {                                           \
        return {x, y};                                                                         \
    }
#define EMULATED_VECTOR_3(type, name)                                                          \
    struct name {                                                                              \
        type x, y, z;                                                                          \
    };                                                                                         \
    static inline name make_##name(type x, type y, type z) {                                   \
        return {x, y, z};                                                                      \
    }
#define EMULATED_VECTOR_4(type, name)                                                          \
    struct alignas(sizeof(type) < 4 ? 4 * sizeof(type) : 16) name {                            \
        type x, y, z, w;                                                                       \
    };                                                                                         \
    static inline name make_##name(type x, type y, type z, type w) {                           \
        return {x, y, z, w};                                                                   \
    }

EMULATED_VECTOR_2(unsigned char, uchar2)
EMULATED_VECTOR_4(unsigned char, uchar4)
EMULATED_VECTOR_2(unsigned short, ushort2)
EMULATED_VECTOR_4(unsigned short, ushort4)
EMULATED_VECTOR_2(int, int2)
EMULATED_VECTOR_4(int, int4)
EMULATED_VECTOR_2(unsigned, uint2)
EMULATED_VECTOR_3(unsigned, uint3)
EMULATED_VECTOR_4(unsigned, uint4)
EMULATED_VECTOR_2(float, float2)
EMULATED_VECTOR_3(float, float3)
EMULATED_VECTOR_4(float, float4)
EMULATED_VECTOR_2(unsigned long long, ulonglong2)
EMULATED_VECTOR_2(long long, longlong2)

typedef uint3 dim3;

/* ---- where a thread is, and how it meets the others ----------------------------------- */

extern "C" {
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

void *emulated_dynamic_shared(void);
void emulated_after(void);
void emulated_block_barrier(void);
/* The values that all lanes of the warp gave to their calls of the same operation, one per
 * lane; *lanes: a bit for each that did. Valid until the lane's next operation. */
const uint64_t *emulated_exchange(int operation, uint64_t value, uint32_t *lanes);
void emulated_fail(const char *what);
}

#define warpSize 32

static inline void __syncthreads() {
    emulated_block_barrier();
}

static inline void __threadfence() {
}
static inline void __threadfence_block() {
}

[[noreturn]] static inline void __trap() {
    emulated_fail("__trap");
    __builtin_unreachable();
}

enum emulated_operation {
    EMULATED_SYNC,
    EMULATED_SHUFFLE,
    EMULATED_VOTE,
    EMULATED_REDUCE,
    EMULATED_SYNC_VOTE
};

static inline void __syncwarp(unsigned = 0xffffffffu) {
    uint32_t lanes;
    emulated_exchange(EMULATED_SYNC, 0, &lanes);
}

template <class T> static inline uint64_t emulated_word(T value) {
    static_assert(sizeof(T) <= 8, "warp operations take at most 64 bits");
    uint64_t word = 0;
    memcpy(&word, &value, sizeof value);
    return word;
}

static inline int emulated_lane() {
    return static_cast<int>(threadIdx.x % 32);
}

/* The value of lane `from` where it lies in this lane's group and called, else this lane's. */
template <class T> static inline T emulated_from(T value, int from, int width) {
    uint32_t lanes;
    const uint64_t *words = emulated_exchange(EMULATED_SHUFFLE, emulated_word(value), &lanes);
    int group = emulated_lane() & ~(width - 1);
    if (from < group || from >= group + width) {
        return value;
    }
    if (!(lanes >> from & 1u)) {
        emulated_fail("a shuffle reads a lane that is not there");
    }
    T result;
    memcpy(&result, &words[from], sizeof result);
    return result;
}

template <class T> static inline T __shfl_sync(unsigned, T value, int from, int width = 32) {
    int group = emulated_lane() & ~(width - 1);
    return emulated_from(value, group + (from & (width - 1)), width);
}

template <class T>
static inline T __shfl_xor_sync(unsigned, T value, int mask, int width = 32) {
    return emulated_from(value, emulated_lane() ^ mask, width);
}

template <class T>
static inline T __shfl_down_sync(unsigned, T value, unsigned by, int width = 32) {
    return emulated_from(value, emulated_lane() + static_cast<int>(by), width);
}

template <class T>
static inline T __shfl_up_sync(unsigned, T value, unsigned by, int width = 32) {
    return emulated_from(value, emulated_lane() - static_cast<int>(by), width);
}

static inline unsigned __ballot_sync(unsigned, int held) {
    uint32_t lanes, votes = 0;
    const uint64_t *words = emulated_exchange(EMULATED_VOTE, held != 0, &lanes);
    for (int lane = 0; lane < 32; lane++) {
        votes |= (lanes >> lane & 1u) && words[lane] ? 1u << lane : 0u;
    }
    return votes;
}

static inline int __any_sync(unsigned, int held) {
    return __ballot_sync(0xffffffffu, held) != 0;
}

static inline int __all_sync(unsigned, int held) {
    return __ballot_sync(0xffffffffu, !held) == 0;
}

template <class T, class F> static inline T emulated_reduce(T value, F join) {
    uint32_t lanes;
    const uint64_t *words = emulated_exchange(EMULATED_REDUCE, emulated_word(value), &lanes);
    T result = value;
    for (int lane = 0; lane < 32; lane++) {
        if (lane != emulated_lane() && (lanes >> lane & 1u)) {
            T other;
            memcpy(&other, &words[lane], sizeof other);
            result = join(result, other);
        }
    }
    return result;
}

template <class T> static inline T __reduce_max_sync(unsigned, T value) {
    return emulated_reduce(value, [](T a, T b) { return a > b ? a : b; });
}

template <class T> static inline T __reduce_min_sync(unsigned, T value) {
    return emulated_reduce(value, [](T a, T b) { return a < b ? a : b; });
}

template <class T> static inline T __reduce_add_sync(unsigned, T value) {
    return emulated_reduce(value, [](T a, T b) { return static_cast<T>(a + b); });
}

static inline unsigned __reduce_or_sync(unsigned, unsigned value) {
    return emulated_reduce(value, [](unsigned a, unsigned b) { return a | b; });
}

static inline unsigned __reduce_and_sync(unsigned, unsigned value) {
    return emulated_reduce(value, [](unsigned a, unsigned b) { return a & b; });
}

extern "C" int emulated_barrier_count(int held);

static inline int __syncthreads_count(int held) {
    return emulated_barrier_count(held != 0);
}

static inline int __syncthreads_or(int held) {
    return emulated_barrier_count(held != 0) != 0;
}

static inline int __syncthreads_and(int held) {
    return emulated_barrier_count(held == 0) == 0;
}

/* ---- atomics: no other thread runs ---------------------------------------------------- */

extern "C" void emulated_atomic_at(const void *at, size_t bytes);

template <class T, class F>
__attribute__((no_sanitize("thread"))) static T emulated_atomic(T *at, F change) {
    emulated_atomic_at(at, sizeof *at);
    T old = *at;
    *at = change(old);
    return old;
}

template <class T> static inline T atomicAdd(T *at, T value) {
    return emulated_atomic(at, [=](T old) { return static_cast<T>(old + value); });
}

template <class T> static inline T atomicMax(T *at, T value) {
    return emulated_atomic(at, [=](T old) { return old > value ? old : value; });
}

template <class T> static inline T atomicMin(T *at, T value) {
    return emulated_atomic(at, [=](T old) { return old < value ? old : value; });
}

template <class T> static inline T atomicOr(T *at, T value) {
    return emulated_atomic(at, [=](T old) { return old | value; });
}

template <class T> static inline T atomicAnd(T *at, T value) {
    return emulated_atomic(at, [=](T old) { return old & value; });
}

template <class T> static inline T atomicExch(T *at, T value) {
    return emulated_atomic(at, [=](T) { return value; });
}

template <class T> static inline T atomicCAS(T *at, T expected, T value) {
    return emulated_atomic(at, [=](T old) { return old == expected ? value : old; });
}

static inline unsigned atomicInc(unsigned *at, unsigned limit) {
    return emulated_atomic(at, [=](unsigned old) { return old >= limit ? 0u : old + 1u; });
}

/* ---- memory, bits and numbers --------------------------------------------------------- */

#define EMULATED_LOAD(name)                                                                    \
    template <class T> static inline T name(const T *at) {                                     \
        return *at;                                                                            \
    }
#define EMULATED_STORE(name)                                                                   \
    template <class T> static inline void name(T *at, T value) {                               \
        *at = value;                                                                           \
    }

EMULATED_LOAD(__ldg)
EMULATED_LOAD(__ldcs)
EMULATED_LOAD(__ldca)
EMULATED_LOAD(__ldcg)
EMULATED_LOAD(__ldlu)
EMULATED_STORE(__stcs)
EMULATED_STORE(__stcg)
EMULATED_STORE(__stwb)
EMULATED_STORE(__stwt)

template <class To, class From> static inline To emulated_same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

static inline unsigned __float_as_uint(float x) {
    return emulated_same_bits<unsigned>(x);
}

static inline int __float_as_int(float x) {
    return emulated_same_bits<int>(x);
}

static inline float __uint_as_float(unsigned x) {
    return emulated_same_bits<float>(x);
}

static inline float __int_as_float(int x) {
    return emulated_same_bits<float>(x);
}

static inline float __fadd_rn(float a, float b) {
    return a + b;
}

static inline float __fsub_rn(float a, float b) {
    return a - b;
}

static inline float __fmul_rn(float a, float b) {
    return a * b;
}

static inline float __fdiv_rn(float a, float b) {
    return a / b;
}

static inline float __frcp_rn(float a) {
    return 1.0f / a;
}

static inline float __fmaf_rn(float a, float b, float c) {
    return fmaf(a, b, c);
}

static inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}

static inline int __clz(int x) {
    return x ? __builtin_clz(static_cast<unsigned>(x)) : 32;
}

static inline int __ffs(int x) {
    return __builtin_ffs(x);
}

static inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}

static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned select) {
    uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
    unsigned result = 0;
    for (unsigned i = 0; i < 4; i++) {
        unsigned which = select >> 4 * i & 0xfu;
        unsigned byte = static_cast<unsigned>(bytes >> 8 * (which & 7u)) & 0xffu;
        byte = which & 8u ? (byte & 0x80u ? 0xffu : 0u) : byte;
        result |= byte << 8 * i;
    }
    return result;
}

static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    uint64_t both = static_cast<uint64_t>(high) << 32 | low;
    return static_cast<unsigned>(both >> (by & 31u));
}

static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    uint64_t both = static_cast<uint64_t>(high) << 32 | low;
    return static_cast<unsigned>(both << (by & 31u) >> 32);
}

#define EMULATED_MIN_MAX(type)                                                                 \
    static inline type min(type a, type b) {                                                   \
        return a < b ? a : b;                                                                  \
    }                                                                                          \
    static inline type max(type a, type b) {                                                   \
        return a > b ? a : b;                                                                  \
    }

EMULATED_MIN_MAX(int)
EMULATED_MIN_MAX(unsigned)
EMULATED_MIN_MAX(long)
EMULATED_MIN_MAX(unsigned long)
EMULATED_MIN_MAX(long long)
EMULATED_MIN_MAX(unsigned long long)

/* A NaN is no number: the other one is returned. */
static inline float min(float a, float b) {
    return fminf(a, b);
}

static inline float max(float a, float b) {
    return fmaxf(a, b);
}

#endif
