/* table.h - a bounded table of reference-counted entries; every cache uses it. The hash of an
 * entry selects its set. Entries of a set are in the order of their last use; a new entry drops
 * the last one. No thread waits for another: a thread that finds a set in use skips the cache
 * and computes what it needs. A set is in use only for a very short time. If the process forks
 * at that moment, the child loses this set and nothing else. For entries that are expensive to
 * make, a table can be told to look a few more times first. Entries are pure functions of their
 * keys, so results never depend on the cache. */
#ifndef OCT_CORE_TABLE_H
#define OCT_CORE_TABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define OCT_TABLE_WAYS 4 /* entries of a set */

static inline uint64_t oct_mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
}

/* Mixes the bytes into the hash, eight at a time, the last ones padded with zeros. */
static inline uint64_t oct_mix_bytes(uint64_t hash, const void *bytes, size_t length) {
    for (size_t at = 0; at < length; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        size_t left = length - at;
        memcpy(&word, (const char *)bytes + at, left < sizeof word ? left : sizeof word);
        hash = oct_mix(hash, word);
    }
    return hash;
}

/* False if another thread uses the set. */
static inline bool oct_enter_set(atomic_bool *in_use) {
    return !atomic_exchange_explicit(in_use, true, memory_order_acquire);
}

static inline void oct_leave_set(atomic_bool *in_use) {
    atomic_store_explicit(in_use, false, memory_order_release);
}

/* The first member of every struct that a table holds. */
typedef struct oct_entry {
    atomic_int users; /* references: the table's, and those of callers */
    uint64_t hash;
} oct_entry;

typedef struct oct_table_set {
    atomic_bool in_use;
    oct_entry *ways[OCT_TABLE_WAYS]; /* most recently used first */
} oct_table_set;

/* The owner provides the sets, filled with zeros. */
typedef struct oct_table {
    oct_table_set *sets;
    int most; /* sets */
    bool (*same)(const oct_entry *entry, const void *key);
    void (*free)(oct_entry *entry);
    atomic_int wanted; /* capacity from the environment, plus one; 0: not read yet */
    int looks;         /* how many more times to look at a set in use */
} oct_table;

/* Starts a new entry with one reference, the caller's. */
void oct_entry_start(oct_entry *entry, uint64_t hash);
void oct_entry_use(oct_entry *entry);
/* Drops a reference; the last one frees the entry. NULL is allowed. */
void oct_entry_leave(oct_table *table, oct_entry *entry);

/* The entry of a key, with a new reference for the caller; NULL if there is none. */
oct_entry *oct_table_find(oct_table *table, uint64_t hash, const void *key);
/* The same without a reference, for a caller that copies the entry at once: returns the set,
 * with the entry in front, in use until oct_leave_set. NULL if there is none. */
oct_table_set *oct_table_enter(oct_table *table, uint64_t hash, const void *key);
/* If two threads miss at the same time, each adds an entry; the one used less is dropped later.
 */
void oct_table_put(oct_table *table, oct_entry *entry);
/* The same, but it replaces an existing entry of this key. */
void oct_table_replace(oct_table *table, oct_entry *entry, const void *key);
/* Removes all entries. No other thread may use the table. */
void oct_table_clear(oct_table *table);

/* The limit for every cache from $OCTET_CACHE_ENTRIES; a large number if it is not set. */
int oct_table_limit(void);
/* How many entries there are, and how many there may be: $OCTET_CACHE_ENTRIES can lower it, to
 * one set at least. */
int oct_table_count(oct_table *table);
int oct_table_capacity(oct_table *table);

#endif
