/* check.h - laws of a run that hold for every plan; what they found, for the test to report. */
#ifndef OCTET_RUN_CHECK_H
#define OCTET_RUN_CHECK_H

#include <stdarg.h>
#include <stdio.h>

#include "group.h"

typedef struct run_report {
    const char *problem; /* printed above the first failure of each */
    int64_t checks, failures;
    double closest; /* the largest error over its bound */
} run_report;

/* Counts a check and prints the first few that failed. Gives whether it held. */
static inline bool run_expect(run_report *report, bool held, const char *format, ...) {
    report->checks++;
    if (held || ++report->failures > 20) {
        return held;
    }
    va_list values;
    va_start(values, format);
    printf("    %s\n        ", report->problem ? report->problem : "");
    vprintf(format, values);
    printf("\n");
    va_end(values);
    return held;
}

/* |got - want| <= bound, all finite. */
static inline bool run_close(run_report *report, double got, double want, double bound) {
    double error = fabs(got - want);
    if (bound > 0 && error / bound > report->closest) {
        report->closest = error / bound;
    }
    return error <= bound;
}

/* Every step did what it says, by the memory it left: quantized bytes are octet_plan_quantize's
 * of the same tensor, products are those of the operands' bytes up to fp32 rounding. */
void run_check_steps(run_report *report, run_group *group);

/* What the products multiplied is the layer's own tensors as near as the formats can hold them,
 * and results are the unsplit layer's in double precision within the bound that follows. */
void run_check_ends(run_report *report, run_group *group);

/* The layer of this text is run, forward and backward, and does what both say. */
void run_check_layer(run_report *report, const char *text, const run_options *options);

#endif
