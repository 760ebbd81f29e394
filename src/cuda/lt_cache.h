/* lt_cache.h - algorithms by matmul: bounded, read without a lock. */
#ifndef OCT_CUDA_LT_CACHE_H
#define OCT_CUDA_LT_CACHE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define OCT_LT_KEY 9 /* words of a matmul */

/* Whether a matmul has an algorithm. FRESH: it has one that was never launched. */
enum { OCT_LT_REFUSED = 0, OCT_LT_FOUND, OCT_LT_FRESH };

/* How a matmul is solved: the library's choice, and its descriptors of the matmul, opaque, of
 * the sizes that it publishes. They hold no pointer into themselves, so a copy is as good; the
 * pointers that an operation holds are those of one run, and are set again for the next. */
typedef struct oct_lt_algorithm {
    uint64_t found;
    uint64_t algo[8]; /* cublasLtMatmulAlgo_t */
    uint64_t operation[32];
    uint64_t a[8], b[8], d[8]; /* layouts */
} oct_lt_algorithm;

#define OCT_LT_VALUE (sizeof(oct_lt_algorithm) / sizeof(uint64_t))
#define OCT_LT_SETS 1024
#define OCT_LT_WAYS 4

/* version: 0 empty, odd while it is written. A reader that sees the same even version before
 * and after has read one entry whole. */
typedef struct oct_lt_slot {
    atomic_uint version;
    _Atomic uint64_t words[OCT_LT_KEY + OCT_LT_VALUE];
} oct_lt_slot;

/* Zeroed is empty. */
typedef struct oct_lt_cache {
    oct_lt_slot slots[OCT_LT_SETS][OCT_LT_WAYS];
    atomic_uint next[OCT_LT_SETS]; /* the way that gives up its entry */
} oct_lt_cache;

bool oct_lt_cache_find(oct_lt_algorithm *out, oct_lt_cache *cache,
                       const uint64_t key[OCT_LT_KEY]);
/* Takes the place of the key's entry, of an empty slot, or of another matmul's entry; does
 * nothing where another thread is writing that slot. */
void oct_lt_cache_put(oct_lt_cache *cache, const uint64_t key[OCT_LT_KEY],
                      const oct_lt_algorithm *value);

#endif
