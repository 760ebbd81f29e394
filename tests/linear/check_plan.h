/* check_plan.h - every law over every plan; nothing here knows how plans are made. */
#ifndef OCTET_CHECK_PLAN_H
#define OCTET_CHECK_PLAN_H

#include "check_flow.h"
#include "check_form.h"
#include "check_gemms.h"
#include "check_group.h"
#include "check_masks.h"
#include "check_quantize.h"
#include "check_steps.h"

/* Laws of one plan by itself. */
static inline void check_plan(const check_case *at) {
    check_reads(at->report, at->plan);
    check_writes(at->report, at->plan);
    check_outputs(at->report, at->plan);
    check_masks(at->report, at->plan);
    check_saved(at->report, at->plan);
    check_shapes(at->report, at->plan);
    check_gemms(at->report, at->plan, at->args);
    check_meaning(at);
    check_quantizing(at);
    check_steps(at);
}

/* True when no law is broken that was not broken before. */
static inline bool check_chain_laws(check_report *report, const check_chain *chain) {
    const octet_linear_args *args = &chain->args.forward;
    int64_t before = check_total(report);
    check_wants wants = check_wants_of(args);
    check_case cases[CHECK_STAGES];
    bool formed = true;
    for (int i = 0; i < chain->count; i++) {
        report->stage = check_stages[i];
        formed &= check_form(report, &chain->plans[i]);
        formed &= CHECK_LAW(report, LAW_FORM, chain->plans[i].kind == i, "it is plan kind %d",
                            chain->plans[i].kind);
        check_case one = {report, chain, &chain->plans[i], args, wants};
        cases[i] = one;
    }
    for (int i = 0; formed && i < chain->count; i++) {
        report->stage = check_stages[i];
        check_plan(&cases[i]);
        if (i > 0) {
            check_slots(report, cases[i - 1].plan, cases[i].plan);
        }
    }
    if (formed) {
        check_group(cases, chain->count);
    }
    return check_total(report) == before;
}

/* The same layer at another size has the same structure. */
static inline void check_chain_structure(check_report *report, const check_chain *a,
                                         const check_chain *b) {
    CHECK_LAW(report, LAW_SIZES, a->count == b->count, "%d plans and %d", a->count, b->count);
    for (int i = 0; i < a->count && i < b->count; i++) {
        report->stage = check_stages[i];
        check_structure(report, &a->plans[i], &b->plans[i]);
    }
}

#endif
