/* test_pool.c - the thread pool covers every item once, whatever the counts. */
#define _XOPEN_SOURCE 700
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "octet.h"
#include "test.h"

#define ITEMS 1000

typedef struct tally {
    int hits[ITEMS];
    atomic_int ranges;
    int64_t longest;
    int64_t sum[64]; /* of what each range wrote, read after the round */
} tally;

static void count_items(void *arg, int64_t begin, int64_t end) {
    tally *t = arg;
    (void)atomic_fetch_add(&t->ranges, 1);
    for (int64_t i = begin; i < end; i++) {
        t->hits[i]++; /* not atomic: another thread at the same item is a race */
    }
}

TEST(pool__every_item_once_in_contiguous_ranges) {
    static const int threads[] = {1, 2, 3, 5, 8};
    static const int64_t counts[] = {0, 1, 2, 3, 7, 64, 999, 1000};
    for (int i = 0; i < 5; i++) {
        octet_pool *pool = NULL;
        CHECK_EQ_INT(octet_pool_create(&pool, threads[i], NULL), OCTET_OK);
        for (int j = 0; j < 8; j++) {
            tally t = {0};
            octet_pool_parallel_for(pool, counts[j], count_items, &t);
            for (int64_t k = 0; k < ITEMS; k++) {
                CHECK_EQ_INT(t.hits[k], k < counts[j]);
            }
            int64_t most = counts[j] < threads[i] ? counts[j] : threads[i];
            CHECK(atomic_load(&t.ranges) <= most);
        }
        octet_pool_free(pool);
    }
}

/* Rounds that follow at once, and what one wrote the next can read. */
TEST(pool__rounds_follow_each_other) {
    octet_pool *pool = NULL;
    static tally t;
    CHECK_EQ_INT(octet_pool_create(&pool, 4, NULL), OCTET_OK);
    for (int round = 0; round < 3000; round++) {
        octet_pool_parallel_for(pool, 2 + round % 11, count_items, &t);
    }
    int64_t total = 0, want = 0;
    for (int i = 0; i < ITEMS; i++) {
        total += t.hits[i];
    }
    for (int round = 0; round < 3000; round++) {
        want += 2 + round % 11;
    }
    CHECK_EQ_INT(total, want);
    octet_pool_free(pool);
}

TEST(pool__made_and_freed_often) {
    for (int i = 0; i < 200; i++) {
        octet_pool *pool = NULL;
        tally t = {0};
        CHECK_EQ_INT(octet_pool_create(&pool, 1 + i % 6, NULL), OCTET_OK);
        if (i % 2) {
            octet_pool_parallel_for(pool, 10, count_items, &t);
            CHECK_EQ_INT(t.hits[9], 1);
        }
        octet_pool_free(pool);
    }
    octet_pool_free(NULL);
}

TEST(pool__without_a_pool_the_caller_works) {
    tally t = {0};
    octet_pool_parallel_for(NULL, 10, count_items, &t);
    CHECK_EQ_INT(t.hits[0] + t.hits[9], 2);
    CHECK_EQ_INT(atomic_load(&t.ranges), 1);
}

TEST(pool__bad_sizes_are_refused) {
    octet_pool *pool = NULL;
    octet_error err = {OCTET_OK, 0, ""};
    CHECK_EQ_INT(octet_pool_create(&pool, 0, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "threads is 0") != NULL);
    CHECK_EQ_INT(octet_pool_create(&pool, -3, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_pool_create(&pool, 1 << 20, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_pool_create(NULL, 2, &err), OCTET_INVALID);
    CHECK(pool == NULL);
}

/* What the child of a fork does with its parent's pool: 0 when all went well. A pool that
 * waited for threads that are not there would never end: the alarm does. */
static int use_in_child(octet_pool *pool) {
    static tally t;
    octet_pool *own = NULL;
    (void)alarm(20);
    octet_pool_parallel_for(pool, ITEMS, count_items, &t);
    octet_pool_free(pool);
    if (octet_pool_create(&own, 3, NULL) != OCTET_OK) {
        return 2;
    }
    octet_pool_parallel_for(own, ITEMS, count_items, &t);
    octet_pool_free(own);
    for (int i = 0; i < ITEMS; i++) {
        if (t.hits[i] != 2) {
            return 3;
        }
    }
    return 0;
}

TEST(pool__a_forked_child_works_without_the_threads) {
    octet_pool *pool = NULL;
    tally t = {0};
    CHECK_EQ_INT(octet_pool_create(&pool, 4, NULL), OCTET_OK);
    octet_pool_parallel_for(pool, ITEMS, count_items, &t);
    for (int i = 0; i < 4; i++) {
        int status = -1;
        (void)fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            _exit(use_in_child(pool));
        }
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    octet_pool_parallel_for(pool, ITEMS, count_items, &t);
    CHECK_EQ_INT(t.hits[ITEMS - 1], 2);
    octet_pool_free(pool);
}

TEST_MAIN(pool__a_forked_child_works_without_the_threads,
          pool__every_item_once_in_contiguous_ranges, pool__rounds_follow_each_other,
          pool__made_and_freed_often, pool__without_a_pool_the_caller_works,
          pool__bad_sizes_are_refused)
