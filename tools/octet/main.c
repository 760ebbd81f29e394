/* main.c - octet: the table of commands and what is common to all of them. */
#include "cli.h"

#include <errno.h>
#include <string.h>

static const oct_cli_command *const commands[] = {
    &oct_cli_plan,      &oct_cli_verify, &oct_cli_bench,  &oct_cli_layout,
    &oct_cli_quantizer, &oct_cli_recipe, &oct_cli_doctor, NULL,
};

static int help(void) {
    puts("usage: octet COMMAND ARGUMENT...\n"
         "\n"
         "Octet describes what FP8 and FP4 linear layers will do before they do it.\n");
    oct_cli_table table = {.columns = 2};
    for (int i = 0; commands[i] != NULL; i++) {
        oct_cli_cell(&table, "%s", commands[i]->name);
        oct_cli_cell(&table, "%s", commands[i]->summary);
    }
    oct_cli_table_print(&table);
    puts("\n"
         "octet COMMAND --help explains one command; octet --version prints the version.\n"
         "Exit status: 0, 1 when a text or a problem is wrong, 2 when the usage is.");
    return OCT_CLI_OK;
}

static int help_command(const oct_cli_command *command) {
    const char *space = command->usage[0] != '\0' ? " " : "";
    printf("usage: octet %s%s%s\n\n", command->name, space, command->usage);
    printf("%s\n\nexample:\n  %s\n", command->about, command->example);
    return OCT_CLI_OK;
}

static bool asks_help(int count, char **words) {
    for (int i = 0; i < count && strcmp(words[i], "--") != 0; i++) {
        if (strcmp(words[i], "--help") == 0 || strcmp(words[i], "-h") == 0) {
            return true;
        }
    }
    return false;
}

static const oct_cli_command *find(const char *name) {
    for (int i = 0; commands[i] != NULL; i++) {
        if (strcmp(commands[i]->name, name) == 0) {
            return commands[i];
        }
    }
    return NULL;
}

static int misuse(const char *word) {
    if (word == NULL) {
        oct_cli_fail(NULL, "which command?");
    } else {
        oct_cli_fail(NULL, "unknown %s \"%s\"", word[0] == '-' ? "option" : "command", word);
    }
    fputs("usage: octet COMMAND ARGUMENT...   (octet --help lists the commands)\n", stderr);
    return OCT_CLI_USAGE;
}

static int dispatch(int count, char **words) {
    if (count == 0) {
        return misuse(NULL);
    }
    if (asks_help(1, words)) {
        return help();
    }
    if (strcmp(words[0], "--version") == 0) {
        printf("octet %s\n", octet_version());
        return OCT_CLI_OK;
    }
    const oct_cli_command *command = find(words[0]);
    if (command == NULL) {
        return misuse(words[0]);
    }
    if (asks_help(count - 1, words + 1)) {
        return help_command(command);
    }
    return command->run(command, count - 1, words + 1);
}

int main(int argc, char **argv) {
    int status = argc > 0 ? dispatch(argc - 1, argv + 1) : misuse(NULL);
    errno = 0;
    bool is_lost = ferror(stdout) != 0;
    if (fflush(stdout) != 0 || is_lost) {
        fprintf(stderr, "octet: cannot write the output: %s\n",
                errno != 0 ? strerror(errno) : "write error");
        return OCT_CLI_ERROR;
    }
    return status;
}
