/* plan.c - octet plan: what a Linear will do, from one-line problems. */
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What has been shown, and what is to stand above the next plan. */
typedef struct plan_page {
    int count;         /* plans so far */
    bool has_titles;   /* several problems: each is named above its plans */
    const char *title; /* of the problem at hand until it is shown */
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
    if (status == OCTET_OK && args->delay_wgrad) {
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

static bool starts_with(const char *text, const char *word) {
    return strncmp(text, word, strlen(word)) == 0;
}

static const char *skip_blanks(const char *text) {
    return text + strspn(text, " \t");
}

static int plan_problem(plan_page *page, oct_cli_source source) {
    octet_error err;
    source.text = skip_blanks(source.text);
    page->title = source.text;
    octet_status status = starts_with(source.text, "linear-backward")
                              ? plan_backward(page, source.text, &err)
                              : plan_forward(page, source.text, &err);
    return status == OCTET_OK ? OCT_CLI_OK : oct_cli_reject(&source, &err);
}

/* Joins words by spaces up to the next that starts a problem; *at moves there. */
static char *join_problem(int *at, int count, char **words) {
    char *text = oct_cli_format("%s", words[(*at)++]);
    while (*at < count && !starts_with(skip_blanks(words[*at]), "linear")) {
        char *longer = oct_cli_format("%s %s", text, words[(*at)++]);
        free(text);
        text = longer;
    }
    return text;
}

static int plan_words(const char *command, int count, char **words) {
    int result = OCT_CLI_OK;
    plan_page page = {0};
    for (int i = 0; i < count;) {
        char *text = join_problem(&i, count, words);
        oct_cli_source source = {.command = command, .text = text};
        page.has_titles = page.has_titles || i < count;
        int status = plan_problem(&page, source);
        result = status != OCT_CLI_OK ? status : result;
        free(text);
    }
    return result;
}

/* Makes tabs spaces, cuts a comment (from a # that begins a word) and the blanks before it.
 * Returns whether anything is left. */
static bool clean_line(char *text) {
    size_t end = 0;
    for (size_t i = 0; text[i] != '\0'; i++) {
        if (text[i] == '\t') {
            text[i] = ' ';
        }
        if (text[i] == '#' && (i == 0 || text[i - 1] == ' ')) {
            break;
        }
        end = text[i] != ' ' ? i + 1 : end;
    }
    text[end] = '\0';
    return end > 0;
}

static int plan_lines(oct_cli_source source, FILE *file) {
    int result = OCT_CLI_OK;
    plan_page page = {.has_titles = true};
    oct_cli_line line = {0};
    while (oct_cli_read_line(&line, file)) {
        int status = OCT_CLI_OK;
        source.text = line.text;
        source.line = line.number;
        if (line.has_zero) {
            octet_error err = {.status = OCTET_INVALID, .text = "the line holds a zero byte"};
            status = oct_cli_reject(&source, &err);
        } else if (clean_line(line.text)) {
            status = plan_problem(&page, source);
        }
        result = status != OCT_CLI_OK ? status : result;
    }
    free(line.text);
    return result;
}

static int plan_file(const char *command, const char *path) {
    bool is_stdin = strcmp(path, "-") == 0;
    oct_cli_source source = {.command = command, .file = is_stdin ? "stdin" : path};
    FILE *file = is_stdin ? stdin : fopen(path, "r");
    if (file == NULL) {
        return oct_cli_fail(command, "cannot open %s: %s", path, strerror(errno));
    }
    errno = 0;
    int status = plan_lines(source, file);
    if (ferror(file)) {
        status = oct_cli_fail(command, "cannot read %s: %s", source.file, strerror(errno));
    }
    if (!is_stdin) {
        (void)fclose(file);
    }
    return status;
}

static int run(const oct_cli_command *self, int count, char **words) {
    oct_cli_option options[] = {{"--file", NULL}, {NULL, NULL}};
    if (oct_cli_arguments(self, &count, words, options) != OCT_CLI_OK) {
        return OCT_CLI_USAGE;
    }
    const char *path = options[0].value;
    if (path != NULL && count > 0) {
        return oct_cli_misuse(self, "give PROBLEMs or --file, not both");
    }
    if (path == NULL && count == 0) {
        return oct_cli_misuse(self, "PROBLEM is missing");
    }
    return path != NULL ? plan_file(self->name, path) : plan_words(self->name, count, words);
}

const oct_cli_command oct_cli_plan = {
    .name = "plan",
    .usage = "PROBLEM... | --file PATH",
    .summary = "what a Linear reads, does, writes and keeps, and for how many bytes",
    .about =
        "Prints the plan of a Linear's forward pass and, where anything requires grad, of its\n"
        "backward pass (and of the wgrad that delay_wgrad leaves for later). A problem that\n"
        "begins with linear-backward prints its backward plan alone. A problem is one quoted\n"
        "argument or several words; each argument that begins with \"linear\" starts another.\n"
        "--file PATH reads one problem a line, - is standard input, # begins a comment. The "
        "last\n"
        "line of a plan gives exact bytes: stored for the next plan, aliased (the caller's, "
        "to\n"
        "be kept alive), and workspace.",
    .example = "octet plan linear m=8192 k=4096 n=14336 in=bf16 recipe=mxfp8 bias",
    .run = run,
};
