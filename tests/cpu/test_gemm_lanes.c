/* test_gemm_lanes.c - the number of lanes and threads cannot be seen in a product. */
#include "cpu/isa.h"
#include "gemm_pairs.h"
#include "octet/run.h"
#include "test.h"

/* Runs the product in `lanes` lanes; equal says whether dst is what it was before. */
static bool same_again(product *p, const oct_gemm_kernels *kernels, int lanes) {
    void *first = malloc((size_t)p->dst_bytes + 1);
    memcpy(first, p->call.dst.parts[0], (size_t)p->dst_bytes);
    product_run(p, kernels, lanes);
    bool same = memcmp(first, p->call.dst.parts[0], (size_t)p->dst_bytes) == 0;
    free(first);
    return same;
}

static void check_lanes(const pair *pr, const int64_t shape[3]) {
    product_options o = {.dst = OCTET_F32, .bias = OCTET_F32, .accumulate = true, .seed = 9};
    product *p = product_make(pr, shape, &o);
    for (int isa = 0; isa <= oct_cpu_isa(); isa++) {
        oct_gemm_kernels kernels = oct_isa_table(isa).gemm;
        product_run(p, &kernels, 1);
        for (int lanes = 2; lanes < 9; lanes += 3) {
            test_report(same_again(p, &kernels, lanes), TEST_HERE("the same bytes"),
                        "%s %s, gemm %d, %d x %d, length %d, %s, %d lanes", pr->a, pr->b,
                        (int)pr->gemm, (int)shape[0], (int)shape[1], (int)shape[2],
                        oct_isa_name(isa), lanes);
        }
    }
    product_free(p);
}

TEST(gemm__lanes_give_equal_bytes) {
    for (size_t n = 0; n < PAIRS; n++) {
        check_lanes(&pairs[n], (int64_t[]){61, 210, 140});
        check_lanes(&pairs[n], (int64_t[]){3, 210, 140});
    }
}

TEST(gemm__lanes_give_equal_bytes_over_many_tiles_and_blocks) {
    for (size_t n = 1; n < PAIRS; n += 7) {
        check_lanes(&pairs[n], (int64_t[]){900, 300, 150});
        check_lanes(&pairs[n], (int64_t[]){100, 300, 2500});
        check_lanes(&pairs[n], (int64_t[]){9, 300, 9000});
    }
}

TEST(gemm__threads_give_equal_bytes) {
    octet_pool *pool = NULL;
    if (!CHECK(octet_pool_create(&pool, 3, NULL) == OCTET_OK)) {
        return;
    }
    const oct_gemm_kernels *kernels = &oct_cpu_table()->gemm;
    for (size_t n = 0; n < PAIRS; n += 3) {
        product_options o = {.dst = OCTET_BF16, .seed = n + 1};
        product *p = product_make(&pairs[n], (int64_t[]){130, 260, 70}, &o);
        product_run(p, kernels, 3);
        void *serial = p->call.dst.parts[0];
        p->call.dst.parts[0] = calloc(1, (size_t)p->dst_bytes);
        memcpy(p->call.dst.parts[0], p->old, (size_t)p->dst_bytes);
        p->call.scratch = aligned_alloc(64, (size_t)p->call.lanes * OCT_CPU_LANE_BYTES);
        oct_cpu_gemm(&p->call, &(oct_threads){octet_pool_parallel_for, pool, 3});
        CHECK(memcmp(serial, p->call.dst.parts[0], (size_t)p->dst_bytes) == 0);
        free(p->call.scratch);
        free(serial);
        product_free(p);
    }
    octet_pool_free(pool);
}

TEST_MAIN(gemm__lanes_give_equal_bytes, gemm__lanes_give_equal_bytes_over_many_tiles_and_blocks,
          gemm__threads_give_equal_bytes)
