/* lt_cache.h - algorithms by matmul: a bounded table of a GPU's. */
#ifndef OCT_CUDA_LT_CACHE_H
#define OCT_CUDA_LT_CACHE_H

#include "core/table.h"

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

#define OCT_LT_MATMULS 4096 /* that a GPU remembers, at most */
#define OCT_LT_SETS (OCT_LT_MATMULS / OCT_TABLE_WAYS)

typedef struct oct_lt_cache {
    oct_table table;
    oct_table_set sets[OCT_LT_SETS];
} oct_lt_cache;

/* An empty one, which stays where it is. */
void oct_lt_cache_start(oct_lt_cache *cache);
/* Nobody uses it any more. */
void oct_lt_cache_end(oct_lt_cache *cache);

/* A copy of what was put last. Any number of threads may call, here and below. */
bool oct_lt_cache_find(oct_lt_algorithm *out, oct_lt_cache *cache,
                       const uint64_t key[OCT_LT_KEY]);
/* Takes the place of the key's entry, or else of the one in its set that was not used for
 * longest. Without memory it is not remembered. */
void oct_lt_cache_put(oct_lt_cache *cache, const uint64_t key[OCT_LT_KEY],
                      const oct_lt_algorithm *value);

#endif
