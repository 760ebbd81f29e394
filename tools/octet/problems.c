/* problems.c - one-line problems from the command line or a file, one after the other. */
#include "problems.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool starts_with(const char *text, const char *word) {
    return strncmp(text, word, strlen(word)) == 0;
}

static const char *skip_blanks(const char *text) {
    return text + strspn(text, " \t");
}

bool oct_cli_is_backward(const char *text) {
    return starts_with(text, "linear-backward");
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

static int visit_words(const char *command, int count, char **words, oct_cli_visitor visitor) {
    int result = OCT_CLI_OK;
    bool many = false;
    for (int i = 0; i < count;) {
        char *text = join_problem(&i, count, words);
        oct_cli_source source = {.command = command, .text = skip_blanks(text)};
        many = many || i < count;
        int status = visitor.visit(visitor.context, &source, many);
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

static int visit_lines(oct_cli_source source, FILE *file, oct_cli_visitor visitor) {
    int result = OCT_CLI_OK;
    oct_cli_line line = {0};
    while (oct_cli_read_line(&line, file)) {
        int status = OCT_CLI_OK;
        source.text = line.text;
        source.line = line.number;
        if (line.has_zero) {
            octet_error err = {.status = OCTET_INVALID, .text = "the line holds a zero byte"};
            status = oct_cli_reject(&source, &err);
        } else if (clean_line(line.text)) {
            source.text = skip_blanks(line.text);
            status = visitor.visit(visitor.context, &source, true);
        }
        result = status != OCT_CLI_OK ? status : result;
    }
    free(line.text);
    return result;
}

static int visit_file(const char *command, const char *path, oct_cli_visitor visitor) {
    bool is_stdin = strcmp(path, "-") == 0;
    oct_cli_source source = {.command = command, .file = is_stdin ? "stdin" : path};
    FILE *file = is_stdin ? stdin : fopen(path, "r");
    if (file == NULL) {
        return oct_cli_fail(command, "cannot open %s: %s", path, strerror(errno));
    }
    errno = 0;
    int status = visit_lines(source, file, visitor);
    if (ferror(file)) {
        status = oct_cli_fail(command, "cannot read %s: %s", source.file, strerror(errno));
    }
    if (!is_stdin) {
        (void)fclose(file);
    }
    return status;
}

int oct_cli_problems(const oct_cli_command *self, int count, char **words, const char *path,
                     oct_cli_visitor visitor) {
    if (path != NULL && count > 0) {
        return oct_cli_misuse(self, "give PROBLEMs or --file, not both");
    }
    if (path == NULL && count == 0) {
        return oct_cli_misuse(self, "PROBLEM is missing");
    }
    return path != NULL ? visit_file(self->name, path, visitor)
                        : visit_words(self->name, count, words, visitor);
}
