/* plan.c - octet plan: what a Linear will do, from one-line problems. */
#include "overlap.h"
#include "problems.h"

#include <inttypes.h>
#include <stdlib.h>

/* What has been shown, and what is to stand above the next plan. */
typedef struct plan_page {
    int count;           /* plans so far */
    bool has_titles;     /* several problems: each is named above its plans */
    const char *title;   /* of the problem at hand until it is shown */
    oct_cli_rates rates; /* of the machine that collectives are modelled on */
} plan_page;

/* Prints a plan, whatever its length, and its blocks in bytes, which its text rounds. */
static void print_plan(plan_page *page, const octet_plan *plan) {
    size_t length = octet_plan_print(NULL, 0, plan);
    char *text = oct_cli_memory(NULL, length + 1);
    (void)octet_plan_print(text, length + 1, plan);
    fputs(page->count++ > 0 ? "\n" : "", stdout);
    if (page->has_titles && page->title != NULL) {
        printf("# %s\n", page->title);
        page->title = NULL;
    }
    fputs(text, stdout);
    printf("in bytes: stored %" PRId64 ", aliased %" PRId64 ", workspace %" PRId64 "\n",
           plan->saved_bytes, plan->aliased_bytes, plan->workspace_bytes);
    oct_cli_overlap(plan, &page->rates);
    free(text);
}

typedef octet_status (*backward_planner)(octet_plan *, const octet_linear_backward_args *,
                                         octet_error *);

static octet_status print_backward(plan_page *page, backward_planner planner,
                                   const octet_linear_backward_args *args, octet_error *err) {
    octet_plan plan = OCTET_PLAN_INIT;
    octet_status status = planner(&plan, args, err);
    if (status == OCTET_OK) {
        print_plan(page, &plan);
    }
    return status;
}

/* Backward, and what delay_wgrad leaves for later. */
static octet_status print_gradients(plan_page *page, const octet_linear_args *args,
                                    octet_error *err) {
    octet_linear_backward_args backward;
    octet_status status = octet_linear_backward_make(&backward, args, err);
    if (status == OCTET_OK) {
        status = print_backward(page, octet_plan_linear_backward, &backward, err);
    }
    if (status == OCTET_OK && args->delay_wgrad && args->weight_requires_grad) {
        status = print_backward(page, octet_plan_linear_wgrad, &backward, err);
    }
    return status;
}

static octet_status plan_forward(plan_page *page, const char *text, octet_error *err) {
    octet_linear_args args;
    octet_plan plan = OCTET_PLAN_INIT;
    octet_status status = octet_linear_parse(&args, text, err);
    if (status == OCTET_OK) {
        status = octet_plan_linear(&plan, &args, err);
    }
    if (status != OCTET_OK) {
        return status;
    }
    print_plan(page, &plan);
    bool has_backward = args.input_requires_grad || args.weight_requires_grad ||
                        (args.bias.dtype != OCTET_NONE && args.bias_requires_grad);
    return has_backward ? print_gradients(page, &args, err) : OCTET_OK;
}

static octet_status plan_backward(plan_page *page, const char *text, octet_error *err) {
    octet_linear_backward_args args;
    octet_status status = octet_linear_backward_parse(&args, text, err);
    if (status == OCTET_OK) {
        status = print_backward(page, octet_plan_linear_backward, &args, err);
    }
    return status;
}

static int plan_problem(void *context, const oct_cli_source *source, bool is_one_of_many) {
    plan_page *page = context;
    octet_error err;
    page->has_titles = is_one_of_many;
    page->title = source->text;
    octet_status status = oct_cli_is_backward(source->text)
                              ? plan_backward(page, source->text, &err)
                              : plan_forward(page, source->text, &err);
    return status == OCTET_OK ? OCT_CLI_OK : oct_cli_reject(source, &err);
}

static int run(const oct_cli_command *self, int count, char **words) {
    oct_cli_option options[] = {{"--link", OCT_CLI_LINK},
                                {"--speed", OCT_CLI_SPEED},
                                {"--latency", OCT_CLI_LATENCY},
                                {"--file", NULL},
                                {NULL, NULL}};
    plan_page page = {0};
    if (oct_cli_arguments(self, &count, words, options) != OCT_CLI_OK ||
        oct_cli_read_rates(&page.rates, self, options) != OCT_CLI_OK) {
        return OCT_CLI_USAGE;
    }
    oct_cli_visitor visitor = {plan_problem, &page};
    return oct_cli_problems(self, count, words, options[3].value, visitor);
}

const oct_cli_command oct_cli_plan = {
    .name = "plan",
    .usage = "[--link GB/s] [--speed TFLOP/s] [--latency us] PROBLEM... | --file PATH",
    .summary = "what a Linear reads, does, writes and saves, and for how many bytes",
    .about =
        "Prints the plan of a Linear's forward pass and, where anything requires grad, of its\n"
        "backward pass (and of the wgrad that delay_wgrad leaves for later). A problem that\n"
        "begins with linear-backward prints its backward plan alone. A problem is one quoted\n"
        "argument or several words; each argument that begins with \"linear\" starts another.\n"
        "--file PATH reads one problem a line, - is standard input, # begins a comment. The "
        "last\n"
        "line of a plan gives exact bytes: stored for the next plan, aliased (the caller's, "
        "to\n"
        "stay alive), and workspace. Below a plan that has collectives stands a model of what\n"
        "they cost one after the other with the products and beside them: bytes over --link\n"
        "(" OCT_CLI_LINK " GB/s, one way of an H200's NVLink) and --latency (" OCT_CLI_LATENCY
        " us) for each, operations over --speed\n"
        "(" OCT_CLI_SPEED " TFLOP/s). Casts and copies are left out.",
    .example = "octet plan linear m=8192 k=4096 n=14336 in=bf16 recipe=mxfp8 bias",
    .run = run,
};
