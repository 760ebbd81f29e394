/* plan.c - the time to plan one Linear and to read one text, per call. */
#include "octet.h"

#include <stdio.h>
#include <time.h>

enum { REPEATS = 9, CALLS = 20000 };

static double now_us(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* One thing to time; gives whether it went well. */
typedef struct subject {
    const char *name, *text;
    bool (*once)(const struct subject *);
} subject;

static octet_linear_args args;
static octet_linear_backward_args backward;
static octet_plan plan = {.size = sizeof(octet_plan)};

static bool plan_forward(const subject *s) {
    (void)s;
    return octet_plan_linear(&plan, &args, NULL) == OCTET_OK;
}

static bool plan_backward(const subject *s) {
    (void)s;
    return octet_plan_linear_backward(&plan, &backward, NULL) == OCTET_OK;
}

static bool parse_quantizer(const subject *s) {
    octet_quantizer q;
    return octet_quantizer_parse(&q, s->text, NULL) == OCTET_OK;
}

static bool parse_recipe(const subject *s) {
    octet_recipe recipe;
    return octet_recipe_parse(&recipe, s->text, NULL) == OCTET_OK;
}

static bool parse_problem(const subject *s) {
    return octet_linear_parse(&args, s->text, NULL) == OCTET_OK;
}

/* The median over repeats of the mean time of a call, in microseconds; negative on failure. */
static double measure(const subject *s) {
    double times[REPEATS];
    for (int r = 0; r < REPEATS; r++) {
        double start = now_us();
        for (int i = 0; i < CALLS; i++) {
            if (!s->once(s)) {
                return -1;
            }
        }
        times[r] = (now_us() - start) / (double)CALLS;
    }
    for (int i = 1; i < REPEATS; i++) {
        for (int j = i; j > 0 && times[j] < times[j - 1]; j--) {
            double swap = times[j];
            times[j] = times[j - 1];
            times[j - 1] = swap;
        }
    }
    return times[REPEATS / 2];
}

static int report(const subject *s) {
    double us = measure(s);
    printf("%-16s %-58s %8.3f\n", s->name, s->text, us);
    return us < 0;
}

int main(void) {
    static const char *const recipes[] = {"none",  "delayed", "current",
                                          "block", "mxfp8",   "nvfp4"};
    static const subject texts[] = {
        {"parse quantizer", "mxfp8:e4m3", parse_quantizer},
        {"parse quantizer", "nvfp4:e2m1/1x16+row+col+rht+sr", parse_quantizer},
        {"parse recipe", "nvfp4+norht:4over6=weights", parse_recipe},
        {"parse problem", "linear m=8192 k=4096 n=14336 in=bf16 recipe=mxfp8 bias",
         parse_problem},
    };
    int failed = 0;
    printf("%-16s %-58s %8s\n", "", "", "us/call");
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        failed |= report(&texts[i]);
    }
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++) {
        char text[128];
        (void)snprintf(text, sizeof text, "linear m=8192 k=4096 n=14336 in=bf16 bias recipe=%s",
                       recipes[i]);
        if (octet_linear_parse(&args, text, NULL) ||
            octet_linear_backward_make(&backward, &args, NULL)) {
            return 1;
        }
        failed |= report(&(subject){"plan forward", text, plan_forward});
        failed |= report(&(subject){"plan backward", text, plan_backward});
    }
    return failed;
}
