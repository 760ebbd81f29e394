/* table.c - a bounded table of counted entries. */
#include "core/table.h"

#include <stdlib.h>

#include "core/environment.h"

/* ---- entries ----------------------------------------------------------------------------- */

void oct_entry_start(oct_entry *entry, uint64_t hash) {
    atomic_init(&entry->users, 1);
    entry->hash = hash;
}

void oct_entry_use(oct_entry *entry) {
    atomic_fetch_add_explicit(&entry->users, 1, memory_order_relaxed);
}

void oct_entry_leave(oct_table *table, oct_entry *entry) {
    if (entry && atomic_fetch_sub_explicit(&entry->users, 1, memory_order_acq_rel) == 1) {
        table->free(entry);
    }
}

/* ---- sets -------------------------------------------------------------------------------- */

int oct_table_limit(void) {
    const char *text = oct_environment("OCTET_CACHE_ENTRIES");
    long number = text ? strtol(text, NULL, 10) : 0;
    return number > 0 && number < INT32_MAX ? (int)number : INT32_MAX - 1;
}

/* The environment is read once for a table. */
static int wanted_entries(oct_table *table) {
    int found = atomic_load_explicit(&table->wanted, memory_order_relaxed);
    if (!found) {
        found = oct_table_limit() + 1;
        atomic_store_explicit(&table->wanted, found, memory_order_relaxed);
    }
    return found - 1;
}

static int sets_of(oct_table *table) {
    int wanted = wanted_entries(table) / OCT_TABLE_WAYS;
    return wanted < 1 ? 1 : wanted < table->most ? wanted : table->most;
}

static oct_table_set *set_of(oct_table *table, uint64_t hash) {
    return &table->sets[hash % (uint64_t)sets_of(table)];
}

/* Puts an entry first; those before `at` move down by one. */
static void put_first(oct_table_set *set, oct_entry *entry, int at) {
    for (; at > 0; at--) {
        set->ways[at] = set->ways[at - 1];
    }
    set->ways[0] = entry;
}

/* Looking at a set that another thread uses is cheap: nothing is written. */
static bool enter(const oct_table *table, oct_table_set *set) {
    for (int look = 0; !oct_enter_set(&set->in_use); look++) {
        while (look < table->looks &&
               atomic_load_explicit(&set->in_use, memory_order_relaxed)) {
            look++;
        }
        if (look >= table->looks) {
            return false;
        }
    }
    return true;
}

/* The index of a key's entry; -1 if there is none. */
static int way_of(const oct_table *table, const oct_table_set *set, uint64_t hash,
                  const void *key) {
    for (int i = 0; i < OCT_TABLE_WAYS && set->ways[i]; i++) {
        if (set->ways[i]->hash == hash && table->same(set->ways[i], key)) {
            return i;
        }
    }
    return -1;
}

oct_table_set *oct_table_enter(oct_table *table, uint64_t hash, const void *key) {
    oct_table_set *set = set_of(table, hash);
    if (!enter(table, set)) {
        return NULL;
    }
    int way = way_of(table, set, hash, key);
    if (way < 0) {
        oct_leave_set(&set->in_use);
        return NULL;
    }
    put_first(set, set->ways[way], way);
    return set;
}

oct_entry *oct_table_find(oct_table *table, uint64_t hash, const void *key) {
    oct_table_set *set = oct_table_enter(table, hash, key);
    if (!set) {
        return NULL;
    }
    oct_entry *found = set->ways[0];
    oct_entry_use(found);
    oct_leave_set(&set->in_use);
    return found;
}

/* Puts the entry in place of the key's old entry, or of the last one. key may be NULL. */
static void put(oct_table *table, oct_entry *entry, const void *key) {
    oct_table_set *set = set_of(table, entry->hash);
    if (!enter(table, set)) {
        return;
    }
    int way = key ? way_of(table, set, entry->hash, key) : -1;
    way = way < 0 ? OCT_TABLE_WAYS - 1 : way;
    oct_entry *gone = set->ways[way];
    oct_entry_use(entry);
    put_first(set, entry, way);
    oct_leave_set(&set->in_use);
    oct_entry_leave(table, gone);
}

void oct_table_put(oct_table *table, oct_entry *entry) {
    put(table, entry, NULL);
}

void oct_table_replace(oct_table *table, oct_entry *entry, const void *key) {
    put(table, entry, key);
}

void oct_table_clear(oct_table *table) {
    for (int i = 0; i < table->most; i++) {
        for (int way = 0; way < OCT_TABLE_WAYS; way++) {
            oct_entry_leave(table, table->sets[i].ways[way]);
            table->sets[i].ways[way] = NULL;
        }
    }
}

int oct_table_count(oct_table *table) {
    int count = 0;
    for (int i = 0; i < table->most; i++) {
        if (oct_enter_set(&table->sets[i].in_use)) {
            for (int way = 0; way < OCT_TABLE_WAYS; way++) {
                count += table->sets[i].ways[way] != NULL;
            }
            oct_leave_set(&table->sets[i].in_use);
        }
    }
    return count;
}

int oct_table_capacity(oct_table *table) {
    return sets_of(table) * OCT_TABLE_WAYS;
}
