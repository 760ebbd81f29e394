/* test.h - the C test harness: laws as functions, checks that report and go on, one main.
 *
 *     TEST(format__every_code_round_trips) { CHECK_EQ_INT(a, b); }
 *     TEST_MAIN(format__every_code_round_trips, format__another_law)
 *
 * A check evaluates its arguments once and is true when it held. A test without a check fails;
 * one that TEST_MAIN does not list is an unused variable, which the compiler reports.
 * The program's first argument keeps only the tests whose name contains it. */
#ifndef OCTET_TEST_H
#define OCTET_TEST_H

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define TEST_REPORTS 20 /* failed checks that a test prints: an exhaustive loop has many */

typedef struct test_case {
    const char *name;
    void (*run)(void);
} test_case;

typedef struct test_place {
    const char *file, *text;
    int line;
} test_place;

/* Of the test that is running. A shared helper file must return what it found, not check it:
 * it would count in a copy of its own. */
static int64_t test_checks, test_failures;

/* The array of one decays to a pointer, so a list of names is a list of cases. */
#define TEST(name)                                                                             \
    static void test_##name(void);                                                             \
    static const test_case name[1] = {{#name, test_##name}};                                   \
    static void test_##name(void)

#define TEST_MAIN(...)                                                                         \
    int main(int argc, char **argv) {                                                          \
        static const test_case *const cases[] = {__VA_ARGS__};                                 \
        return test_main(cases, sizeof cases / sizeof cases[0], argc > 1 ? argv[1] : "");      \
    }

#define TEST_HERE(text) ((test_place){__FILE__, text, __LINE__})
#define CHECK(cond) test_report((cond), TEST_HERE(#cond), "does not hold")
/* With a line about the case that failed. */
#define CHECK_OF(cond, what)                                                                   \
    test_report((cond), TEST_HERE(#cond), "does not hold of '%s'", what)
#define CHECK_EQ_INT(a, b) test_eq_int((int64_t)(a), (int64_t)(b), TEST_HERE(#a " == " #b))
#define CHECK_EQ_STR(a, b) test_eq_str((a), (b), TEST_HERE(#a " == " #b))
/* Integers as they are, float and double by their encoding: NaN equals the same NaN. */
#define CHECK_EQ_BITS(a, b) test_eq_bits(TEST_BITS(a), TEST_BITS(b), TEST_HERE(#a " == " #b))
#define TEST_BITS(x)                                                                           \
    _Generic((x),                                                                              \
        float: test_bits_f32((float)(x)),                                                      \
        double: test_bits_f64((double)(x)),                                                    \
        default: (uint64_t)(x))

static inline uint64_t test_bits_f32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline uint64_t test_bits_f64(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Counts a check and prints it where it failed. Gives whether it held. */
static inline bool test_report(bool held, test_place at, const char *format, ...) {
    test_checks++;
    if (held || ++test_failures > TEST_REPORTS) {
        return held;
    }
    va_list values;
    va_start(values, format);
    printf("%s:%d: %s: ", at.file, at.line, at.text);
    vprintf(format, values);
    printf("\n");
    va_end(values);
    return held;
}

static inline bool test_eq_int(int64_t a, int64_t b, test_place at) {
    return test_report(a == b, at, "%" PRId64 " != %" PRId64, a, b);
}

static inline bool test_eq_bits(uint64_t a, uint64_t b, test_place at) {
    return test_report(a == b, at, "0x%" PRIx64 " != 0x%" PRIx64, a, b);
}

static inline bool test_eq_str(const char *a, const char *b, test_place at) {
    bool same = a && b ? strcmp(a, b) == 0 : a == b;
    return test_report(same, at, "\n    %s\n    %s", a ? a : "(null)", b ? b : "(null)");
}

static inline int test_main(const test_case *const *cases, size_t count, const char *filter) {
    int passed = 0, failed = 0;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* what was printed survives a crash */
    for (size_t i = 0; i < count; i++) {
        if (!strstr(cases[i]->name, filter)) {
            continue;
        }
        test_checks = test_failures = 0;
        cases[i]->run();
        bool good = test_checks > 0 && test_failures == 0;
        *(good ? &passed : &failed) += 1;
        if (!good) {
            printf("FAILED test_%s: %" PRId64 " of %" PRId64 " checks\n", cases[i]->name,
                   test_failures, test_checks);
        }
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0 || passed == 0;
}

#endif
