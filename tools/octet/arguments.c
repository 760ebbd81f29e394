/* arguments.c - options out of a command's words. */
#include "cli.h"

#include <string.h>

static oct_cli_option *find(oct_cli_option *options, const char *word, size_t length) {
    for (; options->name != NULL; options++) {
        if (strlen(options->name) == length && memcmp(options->name, word, length) == 0) {
            return options;
        }
    }
    return NULL;
}

/* "--name=value" or "--name value"; advances *at past what it used. */
static int take(const oct_cli_command *command, int *at, int count, char **words,
                oct_cli_option *options) {
    const char *word = words[*at];
    size_t length = strcspn(word, "=");
    oct_cli_option *option = find(options, word, length);
    if (option == NULL) {
        return oct_cli_misuse(command, "unknown option \"%s\"", word);
    }
    if (word[length] == '=') {
        option->value = word + length + 1;
        return OCT_CLI_OK;
    }
    if (*at + 1 == count) {
        return oct_cli_misuse(command, "option %s needs a value", option->name);
    }
    option->value = words[++*at];
    return OCT_CLI_OK;
}

int oct_cli_arguments(const oct_cli_command *command, int *count, char **words,
                      oct_cli_option *options) {
    int left = 0;
    bool may_be_option = true;
    for (int i = 0; i < *count; i++) {
        bool is_option = may_be_option && words[i][0] == '-' && words[i][1] != '\0';
        if (is_option && strcmp(words[i], "--") == 0) {
            may_be_option = false;
        } else if (!is_option) {
            words[left++] = words[i];
        } else if (take(command, &i, *count, words, options) != OCT_CLI_OK) {
            return OCT_CLI_USAGE;
        }
    }
    *count = left;
    return OCT_CLI_OK;
}
