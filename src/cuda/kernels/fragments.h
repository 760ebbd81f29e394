/* fragments.h - what tensor cores multiply: 16-bit elements spread over the lanes of a warp. */
#ifndef OCT_CUDA_KERNELS_FRAGMENTS_H
#define OCT_CUDA_KERNELS_FRAGMENTS_H

#include <stdint.h>

/* A warp's fragments: d += a b with a 16 x 16, b 16 x 8. Lane l holds of a the rows l / 4 and
 * l / 4 + 8, of b the column l / 4, of both the p 2 (l % 4), + 1, + 8, + 9; of d the rows of a
 * and the columns 2 (l % 4), + 1. */
#ifdef OCTET_EMULATED

struct oct_fragments {
    const uint32_t *a, *b;
};

/* The lanes read each other's registers: the second exchange ends that. */
template <class Element>
static inline void oct_multiply(float *d, const uint32_t *a, const uint32_t *b) {
    oct_fragments mine = {a, b};
    uint32_t lanes;
    const uint64_t *words =
        emulated_exchange(EMULATED_SHUFFLE, reinterpret_cast<uint64_t>(&mine), &lanes);
    uint64_t all[32];
    memcpy(all, words, sizeof all);
    int lane = emulated_lane();
    for (int i = 0; i < 4; i++) {
        int row = lane / 4, col = lane % 4 * 2 + i % 2;
        float sum = d[i];
        for (int p = 0; p < 16; p++) {
            auto *x = reinterpret_cast<oct_fragments *>(all[row * 4 + p % 8 / 2]);
            auto *y = reinterpret_cast<oct_fragments *>(all[col * 4 + p % 8 / 2]);
            uint32_t left = x->a[p / 8 * 2 + i / 2] >> p % 2 * 16;
            uint32_t right = y->b[p / 8] >> p % 2 * 16;
            sum += Element::value(left & 0xffffu) * Element::value(right & 0xffffu);
        }
        d[i] = sum;
    }
    __syncwarp();
}

/* Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8
 * and gets of each matrix the elements 2 (l % 4), + 1 of row l / 4, turned: of column l / 4. */
static inline void oct_load_matrices(uint32_t *out, const uint16_t *row, bool turned) {
    uint32_t lanes;
    const uint64_t *rows =
        emulated_exchange(EMULATED_SHUFFLE, reinterpret_cast<uint64_t>(row), &lanes);
    int high = emulated_lane() / 4, low = emulated_lane() % 4 * 2;
    for (int m = 0; m < 4; m++) {
        auto at = [&](int r, int c) -> uint32_t {
            return reinterpret_cast<const uint16_t *>(rows[m * 8 + r])[c];
        };
        out[m] = turned ? at(low, high) | at(low + 1, high) << 16
                        : at(high, low) | at(high, low + 1) << 16;
    }
}

#else

template <class Element>
static __device__ __forceinline__ void oct_multiply(float *d, const uint32_t *a,
                                                    const uint32_t *b) {
    if constexpr (Element::is_bf16) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
}

static __device__ __forceinline__ void oct_load_matrices(uint32_t *out, const uint16_t *row,
                                                         bool turned) {
    uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    if (turned) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                     : "r"(at)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                     : "r"(at)
                     : "memory");
    }
}

#endif

#endif
