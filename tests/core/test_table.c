/* test_table.c - a bounded table gives what was put, forgets the oldest, and frees once. */
#include "core/table.h"

#include <pthread.h>
#include <stdlib.h>

#include "test.h"

enum { SETS = 4, MOST = SETS * OCT_TABLE_WAYS };

typedef struct number {
    oct_entry entry;
    int value;
} number;

static atomic_int alive;

static bool same(const oct_entry *entry, const void *key) {
    return ((const number *)entry)->value == *(const int *)key;
}

static void free_number(oct_entry *entry) {
    atomic_fetch_sub(&alive, 1);
    free(entry);
}

static number *make(int value, uint64_t hash) {
    number *n = malloc(sizeof *n);
    n->value = value;
    oct_entry_start(&n->entry, hash);
    atomic_fetch_add(&alive, 1);
    return n;
}

static uint64_t hash_of(int value) {
    return oct_mix(0, (uint64_t)value);
}

/* The entry of a value, made where it is not there. */
static number *get(oct_table *table, int value) {
    number *found = (number *)oct_table_find(table, hash_of(value), &value);
    if (!found) {
        found = make(value, hash_of(value));
        oct_table_put(table, &found->entry);
    }
    return found;
}

TEST(table__gives_what_was_put) {
    oct_table_set sets[SETS] = {0};
    oct_table table = {sets, SETS, same, free_number, 0, 0};
    int seven = 7;
    CHECK(oct_table_find(&table, hash_of(7), &seven) == NULL);
    number *first = get(&table, 7), *again = get(&table, 7);
    CHECK(first == again);
    CHECK_EQ_INT(oct_table_count(&table), 1);
    CHECK_EQ_INT(oct_table_capacity(&table), MOST);
    oct_entry_leave(&table, &first->entry);
    oct_entry_leave(&table, &again->entry);
    oct_entry_leave(&table, NULL);
    CHECK_EQ_INT(atomic_load(&alive), 1);
    oct_entry_leave(&table, sets[hash_of(7) % SETS].ways[0]); /* the table's own */
    CHECK_EQ_INT(atomic_load(&alive), 0);
}

/* Of one hash, and so of one set: the key decides, and the one that was not used goes. */
TEST(table__the_least_recently_used_is_pushed_out) {
    oct_table_set sets[SETS] = {0};
    oct_table table = {sets, SETS, same, free_number, 0, 0};
    for (int i = 0; i < OCT_TABLE_WAYS; i++) {
        number *n = make(i, 5);
        oct_table_put(&table, &n->entry);
        oct_entry_leave(&table, &n->entry);
    }
    int zero = 0, one = 1;
    oct_entry *held = oct_table_find(&table, 5, &zero);
    CHECK(held != NULL);
    number *last = make(99, 5);
    oct_table_put(&table, &last->entry);
    oct_entry_leave(&table, &last->entry);
    CHECK(oct_table_find(&table, 5, &one) == NULL);
    CHECK_EQ_INT(atomic_load(&alive), OCT_TABLE_WAYS);
    oct_entry_leave(&table, held);
    for (int i = 0; i < OCT_TABLE_WAYS; i++) {
        oct_entry_leave(&table, sets[5 % SETS].ways[i]);
    }
    CHECK_EQ_INT(atomic_load(&alive), 0);
}

/* Whoever has an entry may read it, although others have pushed it out. */
TEST(table__an_entry_lives_as_long_as_it_is_used) {
    oct_table_set sets[SETS] = {0};
    oct_table table = {sets, SETS, same, free_number, 0, 0};
    number *held = get(&table, 1);
    for (int i = 2; i < 100 * MOST; i++) {
        number *n = get(&table, i);
        CHECK(n->value == i);
        oct_entry_leave(&table, &n->entry);
        CHECK(oct_table_count(&table) <= MOST);
    }
    CHECK_EQ_INT(held->value, 1);
    oct_entry_leave(&table, &held->entry);
    for (int i = 0; i < SETS; i++) {
        for (int way = 0; way < OCT_TABLE_WAYS; way++) {
            oct_entry_leave(&table, sets[i].ways[way]);
        }
    }
    CHECK_EQ_INT(atomic_load(&alive), 0);
}

/* What is known of a key changes: the old entry goes, and no other. */
TEST(table__an_entry_takes_the_place_of_its_keys) {
    oct_table_set sets[SETS] = {0};
    oct_table table = {sets, SETS, same, free_number, 0, 0};
    number *old[OCT_TABLE_WAYS];
    for (int i = 0; i < OCT_TABLE_WAYS; i++) {
        old[i] = make(i, 5);
        oct_table_replace(&table, &old[i]->entry, &i);
    }
    for (int i = 0; i < OCT_TABLE_WAYS; i++) {
        number *again = make(i, 5);
        oct_table_replace(&table, &again->entry, &i);
        CHECK(oct_table_find(&table, 5, &i) == &again->entry);
        CHECK_EQ_INT(oct_table_count(&table), OCT_TABLE_WAYS);
        oct_entry_leave(&table, &again->entry);
        oct_entry_leave(&table, &again->entry);
        oct_entry_leave(&table, &old[i]->entry);
        CHECK_EQ_INT(atomic_load(&alive), OCT_TABLE_WAYS);
    }
    oct_table_clear(&table);
    CHECK_EQ_INT(oct_table_count(&table), 0);
    CHECK_EQ_INT(atomic_load(&alive), 0);
}

/* Who looks again finds what is there once the set is free, and does not wait for ever. */
TEST(table__a_set_in_use_is_looked_at_again) {
    oct_table_set sets[SETS] = {0};
    oct_table table = {sets, SETS, same, free_number, 0, 100};
    number *n = get(&table, 7);
    int seven = 7;
    atomic_bool *in_use = &sets[hash_of(7) % SETS].in_use;
    CHECK(oct_enter_set(in_use));
    CHECK(oct_table_find(&table, hash_of(7), &seven) == NULL);
    oct_leave_set(in_use);
    CHECK(oct_table_find(&table, hash_of(7), &seven) == &n->entry);
    oct_entry_leave(&table, &n->entry);
    oct_entry_leave(&table, &n->entry);
    oct_table_clear(&table);
    CHECK_EQ_INT(atomic_load(&alive), 0);
}

static oct_table_set shared_sets[SETS];
static oct_table shared = {shared_sets, SETS, same, free_number, 0, 0};

static void *ask(void *arg) {
    int *wrong = arg;
    for (int i = 0; i < 20000; i++) {
        number *n = get(&shared, i * 7 % (3 * MOST));
        *wrong += n->value != i * 7 % (3 * MOST);
        oct_entry_leave(&shared, &n->entry);
    }
    return NULL;
}

TEST(table__threads_share_it) {
    pthread_t threads[4];
    int wrong[4] = {0};
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_create(&threads[i], NULL, ask, &wrong[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        CHECK_EQ_INT(wrong[i], 0);
    }
    CHECK_EQ_INT(atomic_load(&alive), oct_table_count(&shared));
}

TEST_MAIN(table__gives_what_was_put, table__the_least_recently_used_is_pushed_out,
          table__an_entry_lives_as_long_as_it_is_used,
          table__an_entry_takes_the_place_of_its_keys, table__a_set_in_use_is_looked_at_again,
          table__threads_share_it)
