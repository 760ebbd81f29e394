/* lt_cache.c - algorithms by matmul, in sets of four; each slot carries a version. */
#include "cuda/lt_cache.h"

#include <string.h>

static uint32_t set_of(const uint64_t key[OCT_LT_KEY]) {
    uint64_t hash = 0;
    for (int i = 0; i < OCT_LT_KEY; i++) {
        hash = (hash ^ key[i]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return (uint32_t)(hash >> 32) % OCT_LT_SETS;
}

static bool holds(oct_lt_slot *slot, const uint64_t key[OCT_LT_KEY]) {
    for (int i = 0; i < OCT_LT_KEY; i++) {
        if (atomic_load_explicit(&slot->words[i], memory_order_acquire) != key[i]) {
            return false;
        }
    }
    return true;
}

/* Each word is acquired, so the second look at the version comes after them: whoever sees a
 * word of a later entry sees the version that its writer set before. */
static bool read_slot(oct_lt_algorithm *out, oct_lt_slot *slot,
                      const uint64_t key[OCT_LT_KEY]) {
    uint64_t value[OCT_LT_VALUE];
    unsigned version = atomic_load_explicit(&slot->version, memory_order_acquire);
    if (version == 0 || version % 2 || !holds(slot, key)) {
        return false;
    }
    for (size_t i = 0; i < OCT_LT_VALUE; i++) {
        value[i] = atomic_load_explicit(&slot->words[OCT_LT_KEY + i], memory_order_acquire);
    }
    if (atomic_load_explicit(&slot->version, memory_order_relaxed) != version) {
        return false;
    }
    memcpy(out, value, sizeof *out);
    return true;
}

bool oct_lt_cache_find(oct_lt_algorithm *out, oct_lt_cache *cache,
                       const uint64_t key[OCT_LT_KEY]) {
    oct_lt_slot *set = cache->slots[set_of(key)];
    for (int way = 0; way < OCT_LT_WAYS; way++) {
        if (read_slot(out, &set[way], key)) {
            return true;
        }
    }
    return false;
}

static oct_lt_slot *slot_for(oct_lt_cache *cache, const uint64_t key[OCT_LT_KEY]) {
    uint32_t at = set_of(key);
    oct_lt_slot *set = cache->slots[at], *empty = NULL;
    for (int way = 0; way < OCT_LT_WAYS; way++) {
        bool used = atomic_load_explicit(&set[way].version, memory_order_acquire) != 0;
        if (used && holds(&set[way], key)) {
            return &set[way];
        }
        empty = !used && !empty ? &set[way] : empty;
    }
    unsigned next =
        empty ? 0 : atomic_fetch_add_explicit(&cache->next[at], 1, memory_order_relaxed);
    return empty ? empty : &set[next % OCT_LT_WAYS];
}

void oct_lt_cache_put(oct_lt_cache *cache, const uint64_t key[OCT_LT_KEY],
                      const oct_lt_algorithm *value) {
    oct_lt_slot *slot = slot_for(cache, key);
    uint64_t words[OCT_LT_KEY + OCT_LT_VALUE];
    memcpy(words, key, sizeof(uint64_t) * OCT_LT_KEY);
    memcpy(words + OCT_LT_KEY, value, sizeof *value);
    unsigned version = atomic_load_explicit(&slot->version, memory_order_relaxed);
    if (version % 2 || !atomic_compare_exchange_strong(&slot->version, &version, version + 1)) {
        return;
    }
    for (size_t i = 0; i < OCT_LT_KEY + OCT_LT_VALUE; i++) {
        atomic_store_explicit(&slot->words[i], words[i], memory_order_release);
    }
    atomic_store_explicit(&slot->version, version + 2, memory_order_release);
}
