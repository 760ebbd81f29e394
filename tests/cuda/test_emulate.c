/* test_emulate.c - the emulation keeps CUDA's rules for barriers, warps and atomics. */
#include "emulate_launch.h"
#include "selftest.h"
#include "test.h"

#define BLOCKS 5
#define THREADS 256

static void launch(const char *name, unsigned blocks, unsigned shared,
                   const selftest_params *params) {
    emulated_launch call = {emulated_kernel("selftest", name),
                            {blocks, 1, 1},
                            THREADS,
                            shared,
                            params,
                            sizeof *params,
                            0};
    if (CHECK(call.kernel != NULL)) {
        emulated_run(&call);
    }
}

TEST(emulate__blocks_sum_in_shared_memory) {
    unsigned numbers[BLOCKS * THREADS], sums[2 * BLOCKS], total = 0, largest = 0;
    unsigned want = 0, most = 0;
    for (unsigned i = 0; i < BLOCKS * THREADS; i++) {
        numbers[i] = i * 2654435761u >> 8;
    }
    launch("selftest_sums", BLOCKS, THREADS * sizeof(unsigned),
           &(selftest_params){numbers, sums, &total, &largest});
    for (unsigned b = 0; b < BLOCKS; b++) {
        unsigned sum = 0;
        for (unsigned i = 0; i < THREADS; i++) {
            sum += numbers[b * THREADS + i];
        }
        CHECK_EQ_INT(sums[2 * b], sum);
        CHECK_EQ_INT(sums[2 * b + 1], sum);
        want += sum;
        most = sum > most ? sum : most;
    }
    CHECK_EQ_INT(total, want);
    CHECK_EQ_INT(largest, most);
}

static unsigned ballot(const unsigned *lanes) {
    unsigned votes = 0;
    for (unsigned i = 0; i < 32; i++) {
        votes |= (lanes[i] & 1u) << i;
    }
    return votes;
}

TEST(emulate__warps_exchange) {
    unsigned numbers[THREADS], out[8 * THREADS], twos = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        numbers[i] = i * 2654435761u;
        twos += numbers[i] >> 1 & 1u;
    }
    launch("selftest_warp", 1, 0, &(selftest_params){numbers, out, NULL, NULL});
    for (unsigned i = 0; i < THREADS; i++) {
        const unsigned *warp = numbers + i / 32 * 32, *got = out + 8 * i;
        unsigned lane = i % 32, most = 0;
        for (unsigned j = 0; j < 32; j++) {
            most = warp[j] > most ? warp[j] : most;
        }
        CHECK_EQ_INT(got[0], warp[(lane + 1) % 32]);
        CHECK_EQ_INT(got[1], lane < 3 ? warp[lane] : warp[lane - 3]);
        CHECK_EQ_INT(got[2], lane % 8 < 3 ? warp[lane + 5] : warp[lane]);
        CHECK_EQ_INT(got[3], ballot(warp));
        CHECK_EQ_INT(got[4], most);
        CHECK_EQ_INT(got[5], i < 32);
        CHECK_EQ_INT(got[6], twos);
        CHECK_EQ_INT(got[7], 0x80000050u | (numbers[i] & 0xffffu) << 8);
    }
}

TEST_MAIN(emulate__blocks_sum_in_shared_memory, emulate__warps_exchange)
