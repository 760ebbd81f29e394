/* test_delayed.c - delayed scaling's state on the GPU is updated as on the CPU. */
#include "../cpu/inputs.h"
#include "cuda/kernels/delayed.h"
#include "device.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>

#define MOST 17000

typedef struct state {
    float scale[MOST], history[MOST];
} state;

static float an_amax(uint64_t *random) {
    static const float values[] = {0.0f, NAN, INFINITY, 0x1p-149f, 3.4028235e38f, 0.0f, 1e-42f};
    uint64_t at = cpu_random(random);
    return at % 16 < 7 ? values[at % 16] : ldexpf((float)(at >> 40), (int)(at >> 8 & 31) - 40);
}

static bool same(const float *a, const float *b, int64_t count) {
    return memcmp(a, b, (size_t)count * sizeof *a) == 0;
}

static octet_delayed over(state *s, uint32_t length, int64_t slots) {
    octet_delayed d = OCTET_DELAYED_INIT;
    d.format = length % 2 ? OCTET_E4M3 : OCTET_E5M2;
    d.length = length;
    d.slots = slots;
    d.scale = s->scale;
    d.history = s->history;
    return d;
}

/* Some steps of both, compared after each. */
static void check_steps(uint32_t length, int64_t slots, octet_amax_algo algo, int32_t margin) {
    static state cpu, cuda;
    uint64_t random = length * 1000u + (uint64_t)slots;
    for (int64_t i = 0; i < MOST; i++) {
        cpu.scale[i] = an_amax(&random);
        cpu.history[i] = an_amax(&random);
    }
    cuda = cpu;
    octet_delayed a = over(&cpu, length, slots), b = over(&cuda, length, slots);
    a.algo = b.algo = (uint8_t)algo;
    a.margin = b.margin = margin;
    for (int step = 0; step < 5; step++) {
        static float amax[MOST], reduced[MOST];
        for (int64_t i = 0; i < slots; i++) {
            amax[i] = an_amax(&random);
            reduced[i] = an_amax(&random);
        }
        bool joined = step / 2 % 2 == 0; /* both in one launch */
        oct_cpu_delayed_record(&a, amax);
        if (!joined) {
            CHECK_EQ_INT(oct_cuda_delayed_record(cuda_on(), &b, amax, NULL), OCTET_OK);
            CHECK(same(cpu.history, cuda.history, MOST));
        }
        oct_cpu_delayed_update(&a, step % 2 ? reduced : NULL);
        CHECK_EQ_INT(oct_cuda_delayed_update(cuda_on(), &b, joined ? amax : NULL,
                                             step % 2 ? reduced : NULL, NULL),
                     OCTET_OK);
        CHECK(same(cpu.history, cuda.history, MOST));
        CHECK(same(cpu.scale, cuda.scale, MOST));
    }
}

TEST(delayed__equals_the_cpu) {
    static const uint32_t lengths[] = {1, 2, 3, 16, 31, 513, 1024, 1025, 2100};
    static const int64_t slots[] = {0, 1, 2, 3, 7, 8, 300};
    for (int i = 0; i < 9 * 7 * 2; i++) {
        uint32_t length = lengths[i % 9];
        int64_t count = slots[i / 9 % 7];
        if (count * length <= MOST) {
            check_steps(length, count, i < 63 ? OCTET_AMAX_MAX : OCTET_AMAX_MOST_RECENT,
                        i % 5 - 2);
        }
    }
}

/* More states than a launch takes, of several rules, some of them alone. */
TEST(delayed__many_states_equal_the_cpu) {
    enum { STATES = OCT_DELAYED_MANY + 30, SLOTS = 3, ROWS = 5 };
    static float scales[2][STATES][SLOTS], histories[2][STATES][ROWS * SLOTS];
    octet_delayed views[2][STATES];
    uint64_t random = 9;
    for (int i = 0; i < STATES; i++) {
        for (int k = 0; k < ROWS * SLOTS; k++) {
            histories[0][i][k] = histories[1][i][k] = an_amax(&random);
            scales[0][i][k % SLOTS] = scales[1][i][k % SLOTS] = (float)(1 + k);
        }
        for (int side = 0; side < 2; side++) {
            octet_delayed d = OCTET_DELAYED_INIT;
            d.format = OCTET_E4M3;
            d.length = i < 9 && i % 3 ? ROWS - 1 : ROWS;
            d.slots = i == 4 ? 0 : SLOTS;
            d.algo = i > 20 ? OCTET_AMAX_MOST_RECENT : OCTET_AMAX_MAX;
            d.scale = scales[side][i];
            d.history = histories[side][i];
            views[side][i] = d;
        }
    }
    for (int i = 0; i < STATES; i++) {
        oct_cpu_delayed_update(&views[0][i], NULL);
    }
    CHECK_EQ_INT(oct_cuda_delayed_update_all(cuda_on(), views[1], STATES, NULL), OCTET_OK);
    CHECK(same(scales[0][0], scales[1][0], STATES * SLOTS));
    CHECK(same(histories[0][0], histories[1][0], STATES * ROWS * SLOTS));
}

TEST_MAIN(delayed__equals_the_cpu, delayed__many_states_equal_the_cpu)
