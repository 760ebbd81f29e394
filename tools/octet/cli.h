/* cli.h - what the commands share: their table's row, arguments, errors, text, tables. */
#ifndef OCT_CLI_H
#define OCT_CLI_H

#include "octet.h"
#include <stdarg.h>
#include <stdio.h>

#if defined(__GNUC__)
#define OCT_CLI_FORMAT(text, first) __attribute__((format(printf, text, first)))
#else
#define OCT_CLI_FORMAT(text, first)
#endif

enum { OCT_CLI_OK = 0, OCT_CLI_ERROR = 1, OCT_CLI_USAGE = 2 };

/* A row of the command table. run gets what follows the command's name, may reorder it, and
 * returns the exit status. */
typedef struct oct_cli_command {
    const char *name;
    const char *usage;   /* the arguments, after "octet NAME " */
    const char *summary; /* one line in the list of commands */
    const char *about;   /* the paragraph of its --help */
    const char *example;
    int (*run)(const struct oct_cli_command *self, int count, char **words);
} oct_cli_command;

extern const oct_cli_command oct_cli_plan;
extern const oct_cli_command oct_cli_verify;
extern const oct_cli_command oct_cli_bench;
extern const oct_cli_command oct_cli_layout;
extern const oct_cli_command oct_cli_quantizer;
extern const oct_cli_command oct_cli_recipe;
extern const oct_cli_command oct_cli_doctor;

/* ---- arguments ------------------------------------------------------------------------- */

/* An option that takes a value; value keeps its default where the option is not given. */
typedef struct oct_cli_option {
    const char *name; /* "--file"; NULL ends the list */
    const char *value;
} oct_cli_option;

/* Takes the options out of words and leaves the rest at its front. Returns OCT_CLI_OK, or
 * OCT_CLI_USAGE after saying why. */
int oct_cli_arguments(const oct_cli_command *command, int *count, char **words,
                      oct_cli_option *options);

/* ---- errors, all on stderr ------------------------------------------------------------- */

/* Where a text came from. file is NULL for a text of the command line. */
typedef struct oct_cli_source {
    const char *command;
    const char *text;
    const char *file;
    long line;
} oct_cli_source;

/* "octet plan: <message>", "octet: <message>" without a command. Returns OCT_CLI_ERROR. */
int oct_cli_fail(const char *command, const char *format, ...) OCT_CLI_FORMAT(2, 3);
/* The library's error; where it has a column, the text and a caret below. Returns
 * OCT_CLI_ERROR. */
int oct_cli_reject(const oct_cli_source *source, const octet_error *err);
/* The message and the command's usage line. Returns OCT_CLI_USAGE. */
int oct_cli_misuse(const oct_cli_command *command, const char *format, ...)
    OCT_CLI_FORMAT(2, 3);

/* ---- text and lines -------------------------------------------------------------------- */

/* realloc that ends the program when there is no memory. */
void *oct_cli_memory(void *old, size_t size);
/* Owned by the caller. */
char *oct_cli_format(const char *format, ...) OCT_CLI_FORMAT(1, 2);
char *oct_cli_format_list(const char *format, va_list list) OCT_CLI_FORMAT(1, 0);
/* "37.8 KiB"; empty below 1 KiB, where the number itself says it. */
void oct_cli_unit(char text[16], int64_t bytes);

/* A line of any length, without its end; start from {0} and free text. */
typedef struct oct_cli_line {
    char *text;
    size_t room;
    long number;   /* 1-based */
    bool has_zero; /* it holds a zero byte, which no text may */
} oct_cli_line;

/* False at the end of the file or on a read error (see ferror). */
bool oct_cli_read_line(oct_cli_line *line, FILE *file);

/* ---- tables with aligned columns ------------------------------------------------------- */

#define OCT_CLI_COLUMNS 8

/* Cells are added row by row. Start from {.columns = n}; print or drop frees the cells. */
typedef struct oct_cli_table {
    int columns;
    bool right[OCT_CLI_COLUMNS]; /* aligned to the right */
    int count;
    char **cells;
} oct_cli_table;

void oct_cli_cell(oct_cli_table *table, const char *format, ...) OCT_CLI_FORMAT(2, 3);
void oct_cli_table_print(oct_cli_table *table);
void oct_cli_table_drop(oct_cli_table *table);

/* ---- the rest -------------------------------------------------------------------------- */

/* Name, value and meaning of each field that has a meaning for this scheme or recipe kind. */
void oct_cli_fields(octet_struct which, const void *value, int kind);

/* "300x129"; "scalar" has no axes. Returns the rank, or -1 and fills *err. */
int oct_cli_read_shape(int64_t shape[OCTET_MAX_RANK], const char *text, octet_error *err);

/* Known numbers and round trips, one line a law on stdout. Returns how many went wrong. */
int oct_cli_self_check(void);

#endif
