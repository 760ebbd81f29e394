/* check.c - a layer's backward by its text: run, and every law that holds for it. */
#include "check.h"

void run_check_layer(run_report *report, const char *text, const run_options *options) {
    octet_error err = {OCTET_OK, 0, ""};
    octet_linear_backward_args args;
    run_group group;
    report->problem = text;
    octet_status status = octet_linear_backward_parse(&args, text, &err);
    if (!run_expect(report, status == OCTET_OK, "%s", err.text)) {
        return;
    }
    status = run_group_make(&group, &args, options);
    status = status ? status : run_group_run(&group);
    if (run_expect(report, status == OCTET_OK, "%s", group.err.text)) {
        run_check_steps(report, &group);
        run_check_ends(report, &group);
    }
    run_group_free(&group);
}
