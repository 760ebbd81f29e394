/* common.h - what kernels share: elements in and out, codes, maxima over a warp.
 *
 * Compiled by NVRTC, and as plain C++ under OCTET_EMULATED. Instructions that are written by
 * hand stand here alone, each beside the C that it equals bit for bit. */
#ifndef OCT_CUDA_KERNELS_COMMON_H
#define OCT_CUDA_KERNELS_COMMON_H

#include "format/bf16.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/e5m2.h"
#include "format/f16.h"
#include "octet.h"

/* A module may be compiled for one type of input; where none is named, it is for each. */
#if !defined OCT_TAKES_F32 && !defined OCT_TAKES_BF16 && !defined OCT_TAKES_F16
#define OCT_TAKES_F32
#define OCT_TAKES_BF16
#define OCT_TAKES_F16
#endif

#define OCT_WARP 32
#define OCT_ALL_LANES 0xffffffffu

#if defined(__CUDA_ARCH__) && !defined(OCTET_EMULATED)
#define OCT_PTX 1
#else
#define OCT_PTX 0
#endif

/* ---- elements -------------------------------------------------------------------------- */

/* Stored elements, told apart by type: float, and these. */
struct oct_bf16 {
    uint16_t code;
};

struct oct_f16 {
    uint16_t code;
};

template <class T> inline constexpr bool oct_is_bf16 = false;
template <> inline constexpr bool oct_is_bf16<oct_bf16> = true;

template <class T> struct oct_vector_of {
    static constexpr int count = 16 / (int)sizeof(T); /* elements of 16 bytes: 4 or 8 */
};

static inline float oct_f16_widen(uint16_t code) {
#if OCT_PTX
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(code));
    return (code & 0x7fffu) > 0x7c00u ? oct_f16_decode(code) : value;
#else
    return oct_f16_decode(code);
#endif
}

static inline uint16_t oct_f16_narrow(float value) {
#if OCT_PTX
    uint16_t code;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(value));
    return value != value ? oct_f16_encode(value) : code;
#else
    return oct_f16_encode(value);
#endif
}

/* Exact, as format/bf16.h and format/f16.h say. */
static inline float oct_to_float(float x) {
    return x;
}

static inline float oct_to_float(oct_bf16 x) {
    return oct_bf16_decode(x.code);
}

static inline float oct_to_float(oct_f16 x) {
    return oct_f16_widen(x.code);
}

/* Nearest, ties to even, Inf past the largest value. */
static inline void oct_from_float(float *out, float value) {
    *out = value;
}

static inline void oct_from_float(oct_bf16 *out, float value) {
    out->code = oct_bf16_encode(value);
}

static inline void oct_from_float(oct_f16 *out, float value) {
    out->code = oct_f16_narrow(value);
}

/* ---- 16 bytes at a time ---------------------------------------------------------------- */

static inline bool oct_is_aligned(const void *at, uint32_t bytes) {
    return ((uintptr_t)at & (bytes - 1u)) == 0;
}

static inline uint4 oct_load16(const void *at) {
    return *(const uint4 *)at;
}

static inline void oct_store16(void *at, uint4 words) {
    *(uint4 *)at = words;
}

/* The same for memory that no one writes during the launch, and that is read once. Volatile, so
 * that it stays behind oct_after (chain.h). */
static inline uint4 oct_stream16(const void *at) {
#if OCT_PTX
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at));
    return v;
#else
    return oct_load16(at);
#endif
}

/* 16 bytes on their way into shared memory, and all of this thread's arrived. */
static inline void oct_fetch16(void *to, const void *from) {
#if OCT_PTX
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
#else
    oct_store16(to, oct_load16(from));
#endif
}

static inline void oct_fetched(void) {
#if OCT_PTX
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/* 8 and 4 bytes likewise. */
static inline uint2 oct_stream8(const void *at) {
#if OCT_PTX
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(at));
    return v;
#else
    return *(const uint2 *)at;
#endif
}

static inline uint32_t oct_stream4(const void *at) {
#if OCT_PTX
    uint32_t v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(at));
    return v;
#else
    return *(const uint32_t *)at;
#endif
}

/* Asks for the line of 128 bytes that holds this byte; it will be in the level-2 cache. */
static inline void oct_ask_for(const void *at) {
#if OCT_PTX
    asm volatile("prefetch.global.L2 [%0];" : : "l"(at));
#else
    (void)at;
#endif
}

/* One store to memory of the device; the compiler may part that of a struct into words. */
static inline void oct_write16(void *at, uint4 v) {
#if OCT_PTX
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
#else
    oct_store16(at, v);
#endif
}

/* Word i; i is a constant once the loop around it is unrolled. */
static inline uint32_t oct_word(const uint4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Element i of 16 bytes; i likewise. */
template <class T> static inline float oct_element(const uint4 &v, int i);

template <> inline float oct_element<float>(const uint4 &v, int i) {
    return oct_bits_f32(oct_word(v, i));
}

template <> inline float oct_element<oct_bf16>(const uint4 &v, int i) {
    uint32_t word = oct_word(v, i / 2);
    return oct_bits_f32(i % 2 ? word & 0xffff0000u : word << 16);
}

template <> inline float oct_element<oct_f16>(const uint4 &v, int i) {
    uint32_t word = oct_word(v, i / 2);
    return oct_f16_widen(i % 2 ? oct_high_u16(word) : oct_low_u16(word));
}

/* 16 bytes of elements as floats, and back. */
template <class T> static inline void oct_unpack(float *out, const uint4 &v) {
#pragma unroll
    for (int i = 0; i < oct_vector_of<T>::count; i++) {
        out[i] = oct_element<T>(v, i);
    }
}

template <class T> static inline uint4 oct_pack(const float *x);

template <> inline uint4 oct_pack<float>(const float *x) {
    return uint4{oct_f32_bits(x[0]), oct_f32_bits(x[1]), oct_f32_bits(x[2]),
                 oct_f32_bits(x[3])};
}

static inline uint32_t oct_halves(uint16_t low, uint16_t high) {
    return low | (uint32_t)high << 16;
}

template <> inline uint4 oct_pack<oct_bf16>(const float *x) {
    return uint4{oct_halves(oct_bf16_encode(x[0]), oct_bf16_encode(x[1])),
                 oct_halves(oct_bf16_encode(x[2]), oct_bf16_encode(x[3])),
                 oct_halves(oct_bf16_encode(x[4]), oct_bf16_encode(x[5])),
                 oct_halves(oct_bf16_encode(x[6]), oct_bf16_encode(x[7]))};
}

template <> inline uint4 oct_pack<oct_f16>(const float *x) {
    return uint4{oct_halves(oct_f16_narrow(x[0]), oct_f16_narrow(x[1])),
                 oct_halves(oct_f16_narrow(x[2]), oct_f16_narrow(x[3])),
                 oct_halves(oct_f16_narrow(x[4]), oct_f16_narrow(x[5])),
                 oct_halves(oct_f16_narrow(x[6]), oct_f16_narrow(x[7]))};
}

/* ---- codes ----------------------------------------------------------------------------- */

/* Four codes of E4M3 or E5M2 in a word, the first in the low byte; by the format's header. */
template <int FORMAT> static inline uint32_t oct_encode4(float a, float b, float c, float d) {
#if OCT_PTX && __CUDA_ARCH__ >= 890
    uint16_t low, high;
    if (FORMAT == OCTET_E4M3) {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
    } else {
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
    }
    return oct_halves(low, high);
#else
    if (FORMAT == OCTET_E4M3) {
        return (uint32_t)oct_e4m3_encode(a) | (uint32_t)oct_e4m3_encode(b) << 8 |
               (uint32_t)oct_e4m3_encode(c) << 16 | (uint32_t)oct_e4m3_encode(d) << 24;
    }
    return (uint32_t)oct_e5m2_encode(a) | (uint32_t)oct_e5m2_encode(b) << 8 |
           (uint32_t)oct_e5m2_encode(c) << 16 | (uint32_t)oct_e5m2_encode(d) << 24;
#endif
}

/* One code of E4M3, and its value. */
static inline uint32_t oct_encode_e4m3(float value) {
    return oct_encode4<OCTET_E4M3>(value, 0.0f, 0.0f, 0.0f) & 0xffu;
}

static inline float oct_decode_e4m3(uint32_t code) {
#if OCT_PTX && __CUDA_ARCH__ >= 890
    float value;
    asm("{ .reg .b32 both; .reg .b16 low, high; cvt.rn.f16x2.e4m3x2 both, %1;"
        "  mov.b32 {low, high}, both; cvt.f32.f16 %0, low; }"
        : "=f"(value)
        : "h"((uint16_t)code));
    return value;
#else
    return oct_e4m3_decode((uint8_t)code);
#endif
}

/* oct_e2m1_encode in fewer steps: from 1 on, half a code is added and the rest of the mantissa
 * cut off; below 1, a float whose last bit is worth 0.5 is added. */
static inline uint32_t oct_encode_e2m1(float value) {
    uint32_t bits = oct_f32_bits(value);
    uint32_t magnitude = bits & OCT_F32_MAGNITUDE;
    uint32_t sign = magnitude > OCT_F32_INF ? 0u : bits >> 28 & 0x8u;
    magnitude = magnitude < 0x40c00000u ? magnitude : 0x40c00000u;
    uint32_t normal = (magnitude + 0x1fffffu + (magnitude >> 22 & 1u)) >> 22;
    uint32_t small = oct_f32_bits(oct_bits_f32(magnitude) + 0x1p22f);
    return (magnitude < 0x3f800000u ? small - 0x4a800000u : normal - 252u) | sign;
}

/* Two bf16 in a word; of a NaN, some NaN without a sign where the machine has a say. */
static inline uint32_t oct_bf16_pair(float low, float high) {
#if OCT_PTX
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
#else
    return oct_halves(oct_bf16_encode(low), oct_bf16_encode(high));
#endif
}

/* ---- bytes ----------------------------------------------------------------------------- */

/* Bytes chosen from those of a (0 to 3) and b (4 to 7), a nibble of the low half of `pick`
 * each, whose uppermost bit is 0. */
static inline uint32_t oct_pick_bytes(uint32_t a, uint32_t b, uint32_t pick) {
#if OCT_PTX
    uint32_t out;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(pick));
    return out;
#else
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) {
        out |= (uint32_t)(both >> (pick >> (4 * i) & 7u) * 8 & 0xffu) << (8 * i);
    }
    return out;
#endif
}

/* The same, but each byte is 0xff or 0, as the uppermost bit of the one chosen is. */
static inline uint32_t oct_pick_signs(uint32_t a, uint32_t b, uint32_t pick) {
#if OCT_PTX
    return oct_pick_bytes(a, b, pick | 0x8888u);
#else
    return (oct_pick_bytes(a, b, pick) >> 7 & 0x01010101u) * 0xffu;
#endif
}

/* x in a register, by all lanes: what follows from parameters the compiler would make again
 * and again in a loop. */
static inline uint32_t oct_in_register(uint32_t x) {
#if OCT_PTX
    return __shfl_xor_sync(OCT_ALL_LANES, x, 0);
#else
    return x;
#endif
}

/* a | (b & mask), in one step. */
static inline uint32_t oct_or_some(uint32_t a, uint32_t b, uint32_t mask) {
#if OCT_PTX
    uint32_t out;
    asm("lop3.b32 %0, %1, %2, %3, 0xf8;" : "=r"(out) : "r"(a), "r"(b), "r"(mask));
    return out;
#else
    return a | (b & mask);
#endif
}

/* The bits of a where `mask` has them set, the others of b; in one step. */
static inline uint32_t oct_choose_bits(uint32_t a, uint32_t b, uint32_t mask) {
#if OCT_PTX
    uint32_t out;
    asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(out) : "r"(a), "r"(b), "r"(mask));
    return out;
#else
    return (a & mask) | (b & ~mask);
#endif
}

/* The smaller of two words' halves, each on its own. */
static inline uint32_t oct_least_halves(uint32_t a, uint32_t b) {
#if OCT_PTX && __CUDA_ARCH__ >= 900
    uint32_t out;
    asm("min.u16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
#else
    uint32_t low = (a & 0xffffu) < (b & 0xffffu) ? a & 0xffffu : b & 0xffffu;
    uint32_t high = a >> 16 < b >> 16 ? a >> 16 : b >> 16;
    return low | high << 16;
#endif
}

/* 4 x 4 bytes: out[c] holds byte c of each of x[0] to x[3]. */
static inline void oct_turn4(uint32_t out[4], const uint32_t x[4]) {
    uint32_t even01 = oct_pick_bytes(x[0], x[1], 0x5140),
             odd01 = oct_pick_bytes(x[0], x[1], 0x7362);
    uint32_t even23 = oct_pick_bytes(x[2], x[3], 0x5140),
             odd23 = oct_pick_bytes(x[2], x[3], 0x7362);
    out[0] = oct_pick_bytes(even01, even23, 0x5410);
    out[1] = oct_pick_bytes(even01, even23, 0x7632);
    out[2] = oct_pick_bytes(odd01, odd23, 0x5410);
    out[3] = oct_pick_bytes(odd01, odd23, 0x7632);
}

/* ---- numbers --------------------------------------------------------------------------- */

/* 1 / x where x and it are normal floats; NaN where x is less, 0 where it is more. */
static inline float oct_quick_inverse(float x) {
#if OCT_PTX
    float guess;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(guess) : "f"(x));
    return __fmaf_rn(guess, -__fmaf_rn(x, guess, -1.0f), guess);
#else
    return 1.0f / x;
#endif
}

/* ---- maxima ---------------------------------------------------------------------------- */

/* The larger of a magnitude, not NaN, and |x|; a NaN is ignored, Inf is not. */
static inline float oct_larger(float most, float x) {
#if OCT_PTX
    return fmaxf(most, fabsf(x));
#else
    x = oct_bits_f32(oct_f32_bits(x) & OCT_F32_MAGNITUDE);
    return x > most ? x : most;
#endif
}

/* Over the warp, of magnitudes by their encodings, which are in the same order. */
static inline uint32_t oct_warp_max(uint32_t bits) {
    return __reduce_max_sync(OCT_ALL_LANES, bits);
}

/* *at = max(*at, bits). Most calls find a larger one there already and only read. */
static inline void oct_raise(float *at, uint32_t bits) {
    if (bits > *(volatile const uint32_t *)at) {
        atomicMax((uint32_t *)at, bits);
    }
}

/* The same where anything may be: *at = oct_delayed_larger(*at, amax). What is no magnitude is
 * replaced by whoever comes first; from then on encodings are in the order of their numbers. */
static inline void oct_record(float *at, uint32_t amax) {
    uint32_t there = *(volatile const uint32_t *)at;
    if (there > OCT_F32_INF) {
        float old = oct_bits_f32(there), found = oct_bits_f32(amax);
        uint32_t larger = old != old || found > old ? amax : there;
        if (atomicCAS((uint32_t *)at, there, larger) == there) {
            return;
        }
    }
    oct_raise(at, amax);
}

#endif
