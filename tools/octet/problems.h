/* problems.h - one-line problems from the command line or a file, one after the other. */
#ifndef OCT_CLI_PROBLEMS_H
#define OCT_CLI_PROBLEMS_H

#include "cli.h"

/* What a command does with a problem. Returns the exit status; the worst is the command's. */
typedef struct oct_cli_visitor {
    int (*visit)(void *context, const oct_cli_source *source, bool is_one_of_many);
    void *context;
} oct_cli_visitor;

/* The problems of `words`, or of a file where path is not NULL ("-": standard input). */
int oct_cli_problems(const oct_cli_command *self, int count, char **words, const char *path,
                     oct_cli_visitor visitor);

/* Whether a problem's text is that of a backward call alone. */
bool oct_cli_is_backward(const char *text);

#endif
