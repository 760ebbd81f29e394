/* lt_cache.c - algorithms by matmul, as entries of a table. */
#include "cuda/lt_cache.h"

#include <stdlib.h>
#include <string.h>

/* The library takes many times as long to choose as a set is in use: so a thread that meets
 * another one in a set looks again, for less time than asking the library would take. */
#define LOOKS 1000

/* An entry does not change; what becomes known of its matmul is another one. */
typedef struct solved {
    oct_entry entry;
    uint64_t key[OCT_LT_KEY];
    oct_lt_algorithm value;
} solved;

static bool same_matmul(const oct_entry *entry, const void *key) {
    const solved *s = (const solved *)entry;
    return !memcmp(s->key, key, sizeof s->key);
}

static void free_solved(oct_entry *entry) {
    free(entry);
}

static uint64_t hash_of(const uint64_t key[OCT_LT_KEY]) {
    return oct_mix_bytes(0, key, OCT_LT_KEY * sizeof *key);
}

void oct_lt_cache_start(oct_lt_cache *cache) {
    memset(cache->sets, 0, sizeof cache->sets);
    cache->table = (oct_table){.sets = cache->sets,
                               .most = OCT_LT_SETS,
                               .same = same_matmul,
                               .free = free_solved,
                               .looks = LOOKS};
}

void oct_lt_cache_end(oct_lt_cache *cache) {
    oct_table_clear(&cache->table);
}

bool oct_lt_cache_find(oct_lt_algorithm *out, oct_lt_cache *cache,
                       const uint64_t key[OCT_LT_KEY]) {
    oct_table_set *set = oct_table_enter(&cache->table, hash_of(key), key);
    if (!set) {
        return false;
    }
    *out = ((const solved *)set->ways[0])->value;
    oct_leave_set(&set->in_use);
    return true;
}

void oct_lt_cache_put(oct_lt_cache *cache, const uint64_t key[OCT_LT_KEY],
                      const oct_lt_algorithm *value) {
    solved *made = malloc(sizeof *made);
    if (!made) {
        return;
    }
    oct_entry_start(&made->entry, hash_of(key));
    memcpy(made->key, key, sizeof made->key);
    made->value = *value;
    oct_table_replace(&cache->table, &made->entry, key);
    oct_entry_leave(&cache->table, &made->entry);
}
