/* table.h - what the bounded tables of the ops share: hashes, and sets that nobody waits for.
 */
#ifndef OCT_TORCH_TABLE_H
#define OCT_TORCH_TABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

static inline uint64_t oct_mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
}

/* False where another thread is in the set. */
static inline bool oct_enter_set(atomic_bool *in_use) {
    return !atomic_exchange_explicit(in_use, true, memory_order_acquire);
}

static inline void oct_leave_set(atomic_bool *in_use) {
    atomic_store_explicit(in_use, false, memory_order_release);
}

#endif
