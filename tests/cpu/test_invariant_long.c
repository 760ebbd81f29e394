/* test_invariant_long.c - a row does not see its batch: every M up to 512, and some to 8192, of
 * weights that are read where they lie, in every recipe and instruction set. */
#include "every_isa.h"

#include "run/batch_rows.h"

#define MOST 8192 /* rows of a batch */

static const char *const recipes[] = {"mxfp8", "block", "block+nopow2", "mxfp4+nosr",
                                      "delayed"};
#define RECIPES (sizeof recipes / sizeof recipes[0])

TEST(invariant_long__rows_of_large_weights_do_not_see_their_batch_up_to_512) {
    for (size_t i = 0; i < RECIPES; i++) {
        batch_layer l;
        batch_problem problem = {.recipe = recipes[i], .most = 512, .k = 514, .n = 129};
        if (batch_start(&l, &problem) && batch_learn(&l, 400)) {
            for (int64_t rows = 1; rows <= 512; rows++) {
                batch_check_rows(&l, rows, rows);
            }
        }
        batch_end(&l);
    }
}

TEST(invariant_long__rows_of_large_weights_do_not_see_their_batch_up_to_8192) {
    for (size_t i = 0; i < RECIPES; i++) {
        batch_layer l;
        batch_problem problem = {.recipe = recipes[i], .most = MOST, .k = 258, .n = 257};
        if (batch_start(&l, &problem) && batch_learn(&l, 64)) {
            for (int64_t rows = 513; rows <= MOST; rows += rows / 3 + 7) {
                batch_check_rows(&l, rows, rows + 1);
            }
            batch_check_rows(&l, MOST, 1);
        }
        batch_end(&l);
    }
}

CPU_TEST_MAIN(invariant_long__rows_of_large_weights_do_not_see_their_batch_up_to_512,
              invariant_long__rows_of_large_weights_do_not_see_their_batch_up_to_8192)
