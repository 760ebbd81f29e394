/* report.c - errors on stderr, with the text and a caret under the place. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

#define WIDTH 88 /* of the text shown; the caret stands at most AHEAD in */
#define AHEAD 64

/* What was printed so far belongs above the error, also when both go to one terminal. */
static void begin(const char *command) {
    fflush(stdout);
    fputs("octet", stderr);
    if (command != NULL) {
        fprintf(stderr, " %s", command);
    }
    fputs(": ", stderr);
}

static bool continues_character(char c) {
    return ((unsigned char)c & 0xC0) == 0x80; /* UTF-8 */
}

/* Bytes of the printable character at text: 1 to 4, or 0 for a control character and for a
 * piece of one, as where a message was cut. */
static size_t character_bytes(const char *text, size_t length) {
    unsigned char lead = (unsigned char)text[0];
    size_t bytes = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (lead < ' ' || lead == 127 || lead > 0xF4 || bytes > length) {
        return 0;
    }
    for (size_t i = 1; i < bytes; i++) {
        if (!continues_character(text[i])) {
            return 0;
        }
    }
    return bytes;
}

/* Messages quote what they were given; a control character must not reach a terminal. */
static void put_plain(const char *text, size_t length) {
    for (size_t i = 0; i < length;) {
        size_t bytes = character_bytes(text + i, length - i);
        if (bytes > 0) {
            fwrite(text + i, 1, bytes, stderr);
        } else {
            fputc(text[i] == '\t' ? ' ' : '?', stderr);
        }
        i += bytes > 0 ? bytes : 1;
    }
}

/* A long text is shown from AHEAD before the place on. What stands before it was understood,
 * so it is plain ASCII and a byte is a column. */
static void show_caret(const char *text, size_t at) {
    size_t length = strlen(text);
    at = at < length ? at : length;
    size_t first = length > WIDTH && at > AHEAD ? at - AHEAD : 0;
    size_t last = length - first > WIDTH ? first + WIDTH : length;
    while (last < length && continues_character(text[last])) {
        last++;
    }
    const char *before = first > 0 ? "..." : "";
    fprintf(stderr, "  %s", before);
    put_plain(text + first, last - first);
    fprintf(stderr, "%s\n", last < length ? "..." : "");
    fprintf(stderr, "  %*s^\n", (int)(strlen(before) + at - first), "");
}

int oct_cli_fail(const char *command, const char *format, ...) {
    va_list list;
    va_start(list, format);
    char *message = oct_cli_format_list(format, list);
    va_end(list);
    begin(command);
    put_plain(message, strlen(message));
    fputc('\n', stderr);
    free(message);
    return OCT_CLI_ERROR;
}

int oct_cli_reject(const oct_cli_source *source, const octet_error *err) {
    if (source->file != NULL) {
        oct_cli_fail(source->command, "%s:%ld: %s", source->file, source->line, err->text);
    } else {
        oct_cli_fail(source->command, "%s", err->text);
    }
    if (err->column > 0) {
        show_caret(source->text, (size_t)err->column - 1);
    }
    return OCT_CLI_ERROR;
}

int oct_cli_misuse(const oct_cli_command *command, const char *format, ...) {
    va_list list;
    va_start(list, format);
    char *message = oct_cli_format_list(format, list);
    va_end(list);
    oct_cli_fail(command->name, "%s", message);
    const char *space = command->usage[0] != '\0' ? " " : "";
    fprintf(stderr, "usage: octet %s%s%s\n", command->name, space, command->usage);
    free(message);
    return OCT_CLI_USAGE;
}
