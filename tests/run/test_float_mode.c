/* test_float_mode.c - results do not depend on the floating-point mode of any thread. */
#include <fenv.h>

#include "octet.h"
#include "simple.h"
#include "test.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#define FLUSH 0x8040u /* results (FTZ) and operands (DAZ) */

static unsigned mode(void) {
    return _mm_getcsr() & ~0x3Fu;
}

static void flush(bool on) {
    _mm_setcsr(on ? _mm_getcsr() | FLUSH : _mm_getcsr() & ~FLUSH);
}
#else
static unsigned mode(void) {
    return (unsigned)fegetround();
}

static void flush(bool on) {
    (void)on;
}
#endif

static const char *const problems[] = {
    "linear m=40 k=128 n=48 in=f32 bias recipe=mxfp8 threads=2",
    "linear m=40 k=128 n=48 in=f32 recipe=block threads=2",
    "linear m=40 k=128 n=48 in=f32 recipe=nvfp4+nosr threads=2",
    "linear m=40 k=128 n=48 in=f32 recipe=current threads=2",
    "linear m=40 k=128 n=48 in=f32 recipe=delayed threads=2",
    "linear m=40 k=128 n=48 in=f32 recipe=mxfp4 threads=2",
    "linear m=40 k=128 n=48 in=f32 threads=2",
    "linear m=40 k=128 n=48 in=bf16 prologue=rmsnorm gamma=f32 eps=1e-5 recipe=mxfp8 threads=2",
    "linear m=3 k=128 n=48 in=bf16 recipe=mxfp8 threads=2",
};
#define PROBLEMS ((int)(sizeof problems / sizeof problems[0]))

/* Blocks of subnormal numbers, of numbers whose products are subnormal, and of others. */
static float tiny(const octet_port *port, int64_t i) {
    static const float sizes[] = {0x1p-138f, 0x1p-70f, 0x1p-120f, 1};
    float value = (float)(i * 37 % 61 + 1) / 64;
    (void)port;
    return (i % 2 ? -value : value) * sizes[i / 128 % 4];
}

static octet_status run_with(simple *s, octet_pool *pool) {
    octet_exec exec = OCTET_EXEC_INIT;
    exec.threads = pool ? 2 : 1;
    exec.parallel_for = pool ? octet_pool_parallel_for : NULL;
    exec.pool = pool;
    return octet_run(&s->plan, &s->memory, &exec, NULL);
}

/* The pool's threads inherit the mode of who makes them. */
static void check_mode(const char *problem, void (*enter)(void), void (*leave)(void)) {
    octet_error err = {OCTET_OK, 0, ""};
    octet_pool *pool = NULL;
    simple plain, other;
    bool made = !simple_start(&plain, problem, tiny, &err) &&
                !simple_start(&other, problem, tiny, &err);
    if (!CHECK_OF(made, err.text)) {
        return;
    }
    CHECK_EQ_INT(run_with(&plain, NULL), OCTET_OK);
    for (int threads = 0; threads < 2; threads++) {
        enter();
        unsigned before = mode();
        octet_status status = threads ? octet_pool_create(&pool, 2, NULL) : OCTET_OK;
        status = status ? status : run_with(&other, pool);
        unsigned after = mode();
        leave();
        CHECK(status == OCTET_OK && before == after);
        CHECK_OF(simple_same(&plain, &other), problem);
        octet_pool_free(pool);
        pool = NULL;
    }
    simple_end(&plain);
    simple_end(&other);
}

static void enter_flush(void) {
    flush(true);
}

static void leave_flush(void) {
    flush(false);
}

static void enter_upward(void) {
    (void)fesetround(FE_UPWARD);
}

static void leave_upward(void) {
    (void)fesetround(FE_TONEAREST);
}

TEST(float_mode__flushing_subnormals_changes_no_result) {
    for (int i = 0; i < PROBLEMS; i++) {
        check_mode(problems[i], enter_flush, leave_flush);
    }
}

TEST(float_mode__another_rounding_changes_no_result) {
    for (int i = 0; i < PROBLEMS; i++) {
        check_mode(problems[i], enter_upward, leave_upward);
    }
}

TEST(float_mode__delayed_scaling_is_the_same) {
    float amax[2] = {0x1p-130f, 3}, scale[2][2] = {{1, 1}, {1, 1}}, history[2][4] = {{0}, {0}};
    for (int flushed = 0; flushed < 2; flushed++) {
        octet_delayed state = OCTET_DELAYED_INIT;
        state.format = OCTET_E4M3;
        state.length = 2;
        state.slots = 2;
        state.scale = scale[flushed];
        state.history = history[flushed];
        flush(flushed);
        octet_status status = octet_delayed_step(&state, amax, NULL, NULL);
        flush(false);
        CHECK_EQ_INT(status, OCTET_OK);
    }
    CHECK(memcmp(scale[0], scale[1], sizeof scale[0]) == 0);
    CHECK(memcmp(history[0], history[1], sizeof history[0]) == 0);
}

/* A text's smallest number is not 0 because its reader flushes. */
TEST(float_mode__texts_are_the_same) {
    octet_linear_args args;
    char text[OCTET_LINEAR_TEXT];
    const char *problem = "linear m=1 k=64 n=1 in=bf16 prologue=rmsnorm gamma=f32 eps=1e-40";
    flush(true);
    octet_status status = octet_linear_parse(&args, problem, NULL);
    (void)octet_linear_print(text, sizeof text, &args);
    flush(false);
    CHECK_EQ_INT(status, OCTET_OK);
    CHECK_OF(strstr(text, "eps=1e-40") != NULL, text);
}

TEST_MAIN(float_mode__flushing_subnormals_changes_no_result,
          float_mode__another_rounding_changes_no_result,
          float_mode__delayed_scaling_is_the_same, float_mode__texts_are_the_same)
