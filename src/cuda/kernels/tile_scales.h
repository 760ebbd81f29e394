/* tile_scales.h - a tile's one-byte scales, collected in shared memory and written in words.
 *
 * A tile has 128 lines in either direction with W words of four scales each; padding is among
 * them and is 0. */
#ifndef OCT_CUDA_KERNELS_TILE_SCALES_H
#define OCT_CUDA_KERNELS_TILE_SCALES_H

#include "cuda/kernels/common.h"
#include "cuda/kernels/quantize.h"

/* A gap of a word follows every 8 lines: lines 8 k are then in banks of their own. */
template <int W> struct oct_tile_scales {
    alignas(16) uint8_t codes[OCT_TILE * W * 4 + OCT_TILE / 8 * 4];
};

/* Where the scale of a block is in it; those of line + i are as far from it as of i from 0,
 * where line is a multiple of 8. */
template <int W> static inline int oct_tile_scale_at(int line, int block) {
    return line * W * 4 + (line >> 3) * 4 + block;
}

/* Where a buffer's scales lie, and the first line and block of the tile. */
struct oct_scales_place {
    uint8_t *to;
    const oct_scales *at;
    int64_t line, block;
};

static inline void oct_put_word(uint8_t *to, const uint8_t *from) {
    if (oct_is_aligned(to, 4)) {
        *(uint32_t *)to = *(const uint32_t *)from;
        return;
    }
    for (int i = 0; i < 4; i++) {
        to[i] = from[i];
    }
}

/* By all threads of the block; a line's blocks lie beside each other. Those beyond the buffer's
 * are left out; lines never are, for both it and the tiles are padded to 128. In tensor-core
 * order a word's neighbours are those 32 lines away, and the next four blocks 512 bytes on. */
template <int W>
static inline void oct_tile_scales_store(const oct_tile_scales<W> &scales,
                                         const oct_scales_place &place) {
    bool tiles = place.at->tiles != 0;
    int64_t left = place.at->blocks - place.block, line_step = place.at->line_step;
    uint8_t *to = place.to + oct_scale_at(place.at, place.line, place.block);
#pragma unroll 2
    for (uint32_t i = threadIdx.x; i < OCT_TILE * W; i += blockDim.x) {
        uint32_t word = tiles ? i / OCT_TILE : i % W, n = i % OCT_TILE;
        uint32_t line = tiles ? n % 4 * 32 + n / 4 : i / W;
        int64_t at = tiles ? word * 512 + n * 4 : line * line_step + word * 4;
        if (4 * word < left) {
            oct_put_word(to + at,
                         scales.codes + oct_tile_scale_at<W>((int)line, (int)(4 * word)));
        }
    }
}

/* The same where lines lie beside each other and blocks below: four lines a word. */
static inline void oct_tile_scales_store_down(const oct_tile_scales<1> &scales,
                                              const oct_scales_place &place) {
    for (int i = (int)threadIdx.x; i < OCT_TILE; i += (int)blockDim.x) {
        int line = i % 32 * 4, block = i / 32;
        const uint8_t *from = scales.codes + oct_tile_scale_at<1>(line, block);
        alignas(4) uint8_t word[4] = {from[0], from[4], from[8], from[12]};
        oct_put_word(place.to + oct_scale_at(place.at, place.line + line, place.block + block),
                     word);
    }
}

#endif
