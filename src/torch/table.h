/* table.h - what the bounded tables of the ops share: hashes, and sets that nobody waits for.
 */
#ifndef OCT_TORCH_TABLE_H
#define OCT_TORCH_TABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t oct_mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
}

/* Bytes eight at a time, the last ones with zeros behind them. */
static inline uint64_t oct_mix_bytes(uint64_t hash, const void *bytes, size_t length) {
    for (size_t at = 0; at < length; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        size_t left = length - at;
        memcpy(&word, (const char *)bytes + at, left < sizeof word ? left : sizeof word);
        hash = oct_mix(hash, word);
    }
    return hash;
}

/* False where another thread is in the set. */
static inline bool oct_enter_set(atomic_bool *in_use) {
    return !atomic_exchange_explicit(in_use, true, memory_order_acquire);
}

static inline void oct_leave_set(atomic_bool *in_use) {
    atomic_store_explicit(in_use, false, memory_order_release);
}

#endif
