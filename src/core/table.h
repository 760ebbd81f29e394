/* table.h - a bounded table of counted entries, which every cache is made of.
 *
 * An entry belongs to one set by its hash. A set's entries lie in the order of their last use;
 * a new one pushes out the last. Nobody waits for another thread: who finds a set in use does
 * without it, and makes what he needs himself. A set is in use for less time than waiting
 * costs; a process that is forked meanwhile loses that set and nothing else. Where entries are
 * dear to make, a table has its users look a few more times first.
 *
 * What a table holds are functions of their keys, so nothing that is computed depends on it. */
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

/* The first member of whatever a table holds. */
typedef struct oct_entry {
    atomic_int users; /* the table, and those who have found it */
    uint64_t hash;
} oct_entry;

typedef struct oct_table_set {
    atomic_bool in_use;
    oct_entry *ways[OCT_TABLE_WAYS]; /* the last used first */
} oct_table_set;

/* The sets are the owner's, zeros to begin with. */
typedef struct oct_table {
    oct_table_set *sets;
    int most; /* sets */
    bool (*same)(const oct_entry *entry, const void *key);
    void (*free)(oct_entry *entry);
    atomic_int wanted; /* entries, one more than the environment says; 0: not asked yet */
    int looks;         /* more, at a set that is in use */
} oct_table;

/* An entry that nobody else has yet; its maker is its user. */
void oct_entry_start(oct_entry *entry, uint64_t hash);
void oct_entry_use(oct_entry *entry);
/* The last user frees it. NULL will do. */
void oct_entry_leave(oct_table *table, oct_entry *entry);

/* The entry of a key, with the caller among its users; NULL where there is none. */
oct_entry *oct_table_find(oct_table *table, uint64_t hash, const void *key);
/* The same for who copies it at once: a set with the entry in front, in use until the caller
 * leaves it by oct_leave_set; NULL likewise. */
oct_table_set *oct_table_enter(oct_table *table, uint64_t hash, const void *key);
/* Two threads that miss at once put an entry each; the one used less is pushed out. */
void oct_table_put(oct_table *table, oct_entry *entry);
/* The same, but an entry of this key makes room, if there is one. */
void oct_table_replace(oct_table *table, oct_entry *entry, const void *key);
/* Without entries again. No other thread uses the table. */
void oct_table_clear(oct_table *table);

/* What $OCTET_CACHE_ENTRIES bounds every cache to; a large number where it says nothing. */
int oct_table_limit(void);
/* Entries that are there, and that may be: $OCTET_CACHE_ENTRIES says fewer, at least one set.
 */
int oct_table_count(oct_table *table);
int oct_table_capacity(oct_table *table);

#endif
