/* test_invariant.c - with batch_invariant a row of y and of dx depends on its own row alone:
 * not on how many rows there are, where it lies, or what the others hold. */
#include "every_isa.h"

#include "run/batch_rows.h"

#define MOST 8192 /* rows of a batch */

static const char *const recipes[] = {"mxfp8", "block", "block+nopow2", "mxfp4+nosr",
                                      "delayed"};
#define RECIPES (sizeof recipes / sizeof recipes[0])

TEST(invariant__rows_do_not_see_their_batch_up_to_512) {
    for (size_t i = 0; i < RECIPES; i++) {
        batch_layer l;
        batch_problem problem = {.recipe = recipes[i], .most = 512, .k = 70, .n = 24};
        if (batch_start(&l, &problem) && batch_learn(&l, 400)) {
            for (int64_t rows = 1; rows <= 512; rows++) {
                batch_check_rows(&l, rows, rows);
            }
        }
        batch_end(&l);
    }
}

/* Weights large enough to be read where they lie. The reference is
 * slow, and has some sizes only. */
TEST(invariant__rows_of_large_weights_do_not_see_their_batch_up_to_512) {
    for (size_t i = 0; i < 2; i++) {
        int64_t step = !oct_cpu_isa() ? 127 : i ? 5 : 1;
        batch_layer l;
        batch_problem problem = {.recipe = recipes[i], .most = 512, .k = 514, .n = 129};
        if (batch_start(&l, &problem) && batch_learn(&l, 400)) {
            for (int64_t rows = 1; rows <= 512; rows += step) {
                batch_check_rows(&l, rows, rows);
            }
        }
        batch_end(&l);
    }
}

TEST(invariant__rows_do_not_see_their_batch_up_to_8192) {
    static const int64_t some[] = {1, 16, 17, 513, 1023, 2049, 4096, 8191, MOST};
    for (size_t i = 0; i < 2; i++) {
        batch_layer l;
        batch_problem problem = {.recipe = recipes[i], .most = MOST, .k = 33, .n = 17};
        if (batch_start(&l, &problem) && batch_learn(&l, 64)) {
            for (size_t n = 0; n < sizeof some / sizeof some[0]; n++) {
                batch_check_rows(&l, some[n], some[n]);
            }
        }
        batch_end(&l);
    }
}

/* Sums that go over several blocks of panels, which are cut by the number of rows, or over
 * several lengths of a row that is streamed. */
TEST(invariant__long_sums_do_not_see_their_batch) {
    static const int64_t some[] = {1, 2, 15, 16, 17, 40, 130};
    static const int64_t shapes[][2] = {{4999, 12}, {9001, 9}, {515, 141}};
    for (size_t i = 0; i < RECIPES * 3; i++) {
        batch_layer l;
        const int64_t *s = shapes[i % 3];
        batch_problem problem = {.recipe = recipes[i / 3], .most = 130, .k = s[0], .n = s[1]};
        if (batch_start(&l, &problem) && batch_learn(&l, 70)) {
            for (size_t n = 0; n < sizeof some / sizeof some[0]; n++) {
                batch_check_rows(&l, some[n], some[n] + 2);
            }
        }
        batch_end(&l);
    }
}

CPU_TEST_MAIN(invariant__rows_do_not_see_their_batch_up_to_512,
              invariant__rows_of_large_weights_do_not_see_their_batch_up_to_512,
              invariant__rows_do_not_see_their_batch_up_to_8192,
              invariant__long_sums_do_not_see_their_batch)
