/* check_report.h - the laws of a plan, and a report of those that a plan breaks. */
#ifndef OCTET_CHECK_RECORD_H
#define OCTET_CHECK_RECORD_H

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "octet.h"

typedef enum check_law {
    LAW_FORM = 0, /* counts, indices and enums are in range */
    LAW_READS,    /* what is read was given, restored or written before */
    LAW_WRITES,   /* nothing is written twice, overlaps or leaves its memory */
    LAW_OUTPUTS,  /* what is promised is written, what is written is used */
    LAW_SLOTS,    /* the next plan finds each saved slot, and reads it */
    LAW_SAVED,    /* a slot is stored or a marked alias, and counted as such */
    LAW_SIZES,    /* structure does not depend on a size */
    LAW_SHAPES,   /* dims, numbers, bytes and layouts agree */
    LAW_GEMMS,    /* operands have the sizes and directions of their product */
    LAW_MEANING,  /* what the arguments ask for happens */
    LAW_GROUP,    /* collectives are those of the parallel mode */
    LAW_MASKS,    /* a step's masks follow from its operands */
    LAWS
} check_law;

static const char *const check_law_names[LAWS] = {
    "form",  "reads",  "writes", "outputs", "slots", "saved",
    "sizes", "shapes", "gemms",  "meaning", "group", "masks",
};

/* Broken laws printed of each kind: thousands of plans may break one. */
#ifndef CHECK_REPORTS
#define CHECK_REPORTS 6
#endif

typedef struct check_report {
    const char *problem; /* one line: what was planned */
    const char *stage;   /* "forward", "backward" or "wgrad" */
    bool quiet;
    int64_t broken[LAWS];
    char last[160]; /* what the latest report said */
} check_report;

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static inline void
check_broken(check_report *report, check_law law, const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(report->last, sizeof report->last, format, values);
    va_end(values);
    report->broken[law]++;
    if (!report->quiet && report->broken[law] <= CHECK_REPORTS) {
        printf("law %s: %s: %s\n    %s\n", check_law_names[law], report->stage, report->last,
               report->problem);
    }
}

/* True when it held. */
#define CHECK_LAW(report, law, held, ...)                                                      \
    ((held) ? true : (check_broken((report), (law), __VA_ARGS__), false))

static inline int64_t check_total(const check_report *report) {
    int64_t total = 0;
    for (int law = 0; law < LAWS; law++) {
        total += report->broken[law];
    }
    return total;
}

#endif
