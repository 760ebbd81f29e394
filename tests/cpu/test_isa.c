/* test_isa.c - the tables of kernels start from the reference and override upward. */
#include "cpu/isa.h"
#include "octet/run.h"
#include "test.h"

typedef void (*function)(void);

/* By bytes up to the numbers at the end, which have padding between them. */
static bool tables_equal(const oct_table *a, const oct_table *b) {
    const oct_gemm_kernels *x = &a->gemm, *y = &b->gemm;
    return memcmp(&a->kernels, &b->kernels, sizeof a->kernels) == 0 &&
           memcmp(x, y, offsetof(oct_gemm_kernels, stream_rows)) == 0 &&
           x->stream_rows == y->stream_rows && x->stream_least == y->stream_least &&
           x->finish == y->finish;
}

/* No kernel is missing; those of bf16 are there together or not at all. */
static void check_whole(const oct_table *table, const char *name) {
    const char *first = (const char *)&table->kernels;
    for (size_t at = 0; at < sizeof table->kernels; at += sizeof(function)) {
        static const function none = NULL;
        test_report(memcmp(first + at, &none, sizeof none) != 0, TEST_HERE("a kernel"),
                    "%s: the one at byte %zu", name, at);
    }
    const oct_gemm_kernels *k = &table->gemm;
    CHECK(k->tile_f32 && k->dot_f32 && k->finish && k->packer.turn && k->packer.spread);
    CHECK(k->mr > 0 && k->mr <= k->mr_stride && k->nr > 0 && k->steps > 0);
    CHECK(k->stream_rows > 0 && k->stream_least > 0);
    static const octet_dtype formats[] = {OCTET_E4M3, OCTET_E5M2, OCTET_E2M1};
    for (size_t n = 0; n < sizeof formats / sizeof formats[0]; n++) {
        bool bf16 = k->tile_bf16 != NULL;
        CHECK(k->packer.f32[formats[n]] && k->stream_f32[formats[n]].dot);
        CHECK((k->packer.bf16[formats[n]] != NULL) == bf16);
        CHECK((k->stream_bf16[formats[n]].dot != NULL) == bf16);
        CHECK((k->dot_bf16 != NULL) == bf16 && (k->packer.zip != NULL) == bf16);
    }
}

TEST(isa__every_table_is_whole) {
    for (int isa = 0; isa <= oct_cpu_isa(); isa++) {
        oct_table table = oct_isa_table(isa);
        check_whole(&table, oct_isa_name(isa));
    }
}

TEST(isa__the_lowest_is_the_reference) {
    oct_table table = oct_isa_table(0);
    CHECK(strcmp(oct_isa_name(0), "reference") == 0);
    CHECK(memcmp(&table.kernels, &oct_kernels_reference, sizeof table.kernels) == 0);
}

TEST(isa__each_brings_something) {
    CHECK(oct_cpu_isa() >= 0);
    for (int isa = 1; isa <= oct_cpu_isa(); isa++) {
        oct_table below = oct_isa_table(isa - 1), table = oct_isa_table(isa);
        CHECK(!tables_equal(&below, &table));
    }
}

TEST(isa__the_one_that_runs_is_the_table_of_its_number) {
    oct_table table = oct_isa_table(oct_cpu_isa());
    CHECK(tables_equal(&table, oct_cpu_table()));
    CHECK(oct_cpu_kernels() == &oct_cpu_table()->kernels);
    CHECK(strcmp(oct_cpu_name(), oct_isa_name(oct_cpu_isa())) == 0);
}

TEST(isa__names_end_with_the_list) {
    int count = 0;
    while (oct_isa_name(count)) {
        count++;
    }
    CHECK(count > oct_cpu_isa());
    CHECK(oct_isa_name(-1) == NULL && oct_isa_name(count + 1) == NULL);
}

/* What a file of a new instruction set with one kernel would be. */
static void pack_rows__new(uint8_t *out, const uint8_t *low, const uint8_t *high,
                           int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        out[i] = (uint8_t)((high[i] << 4) + low[i]);
    }
}

static void bring_one(oct_table *table) {
    table->kernels.pack_rows = pack_rows__new;
}

TEST(isa__a_new_one_may_bring_one_kernel) {
    oct_bring *bring = bring_one;
    oct_table before = oct_isa_table(oct_cpu_isa()), after = before;
    bring(&after);
    CHECK(after.kernels.pack_rows == pack_rows__new);
    check_whole(&after, "new");
    after.kernels.pack_rows = before.kernels.pack_rows;
    CHECK(tables_equal(&before, &after));
}

/* Threads that meet in the first call all see the whole table. */
static void look(void *arg, int64_t begin, int64_t end) {
    const oct_table **seen = arg;
    for (int64_t n = begin; n < end; n++) {
        seen[n] = oct_cpu_table()->gemm.finish ? oct_cpu_table() : NULL;
    }
}

TEST(isa__threads_that_come_first_agree) {
    enum { THREADS = 4 };
    const oct_table *seen[THREADS] = {NULL};
    octet_pool *pool = NULL;
    if (!CHECK(octet_pool_create(&pool, THREADS, NULL) == OCTET_OK)) {
        return;
    }
    octet_pool_parallel_for(pool, THREADS, look, seen);
    for (int n = 0; n < THREADS; n++) {
        CHECK(seen[n] != NULL && seen[n] == oct_cpu_table());
    }
    octet_pool_free(pool);
}

TEST_MAIN(isa__threads_that_come_first_agree, isa__every_table_is_whole,
          isa__the_lowest_is_the_reference, isa__each_brings_something,
          isa__the_one_that_runs_is_the_table_of_its_number, isa__names_end_with_the_list,
          isa__a_new_one_may_bring_one_kernel)
