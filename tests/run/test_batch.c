/* test_batch.c - a row of the output depends on its own input alone, and on the number of rows
 * only by the way that few rows are multiplied. */
#include "octet.h"
#include "simple.h"
#include "test.h"

#define K 160
#define N 48
#define FEW 16 /* rows up to which a product may read a quantized weight where it lies */
#define MANY 80

/* The same numbers in row r, however many rows there are. */
static float usual(const octet_port *port, int64_t i) {
    float value = (float)((i * 37 + i / K * 11) % 61 + 1) / 16;
    (void)port;
    return i % 3 ? -value : value;
}

static const char *const recipes[] = {"block", "mxfp8", "nvfp4", "mxfp4", "current", "none"};
#define RECIPES ((int)(sizeof recipes / sizeof recipes[0]))

static bool start(simple *s, const char *recipe, int rows) {
    char problem[128];
    octet_exec exec = OCTET_EXEC_INIT;
    (void)snprintf(problem, sizeof problem,
                   "linear m=%d k=%d n=%d in=bf16 out=f32 recipe=%s grad=none", rows, K, N,
                   recipe);
    return CHECK_EQ_INT(simple_start(s, problem, usual, NULL), OCTET_OK) &&
           CHECK_EQ_INT(octet_run(&s->plan, &s->memory, &exec, NULL), OCTET_OK);
}

/* How many of `rows` rows differ from the first rows of another run. */
static int different(const simple *s, const simple *whole, int rows) {
    int count = 0;
    for (int r = 0; r < rows; r++) {
        const char *x = (const char *)s->memory.outs[0] + (size_t)r * N * 4;
        const char *y = (const char *)whole->memory.outs[0] + (size_t)r * N * 4;
        count += memcmp(x, y, N * 4) != 0;
    }
    return count;
}

/* Recipes whose scales are those of a row's own blocks. */
static bool has_own_scales(const char *recipe) {
    return strcmp(recipe, "current") != 0 && strcmp(recipe, "nvfp4") != 0;
}

TEST(batch__more_rows_do_not_change_those_before_them) {
    for (int i = 0; i < RECIPES; i++) {
        simple whole;
        if (!has_own_scales(recipes[i]) || !start(&whole, recipes[i], MANY)) {
            continue;
        }
        for (int rows = FEW + 1; rows < MANY; rows++) {
            simple s;
            if (start(&s, recipes[i], rows)) {
                CHECK_OF(different(&s, &whole, rows) == 0, recipes[i]);
                simple_end(&s);
            }
        }
        simple_end(&whole);
    }
}

TEST_MAIN(batch__more_rows_do_not_change_those_before_them)
