/* text.c - text and lines of any length, and byte counts for people. */
#include "cli.h"

#include <stdlib.h>

void *oct_cli_memory(void *old, size_t size) {
    void *memory = realloc(old, size > 0 ? size : 1);
    if (memory == NULL) {
        fprintf(stderr, "octet: no memory for %zu bytes\n", size);
        exit(OCT_CLI_ERROR);
    }
    return memory;
}

char *oct_cli_format_list(const char *format, va_list list) {
    va_list again;
    va_copy(again, list);
    int length = vsnprintf(NULL, 0, format, list);
    size_t size = length < 0 ? 1 : (size_t)length + 1;
    char *text = oct_cli_memory(NULL, size);
    text[0] = '\0';
    if (length >= 0) {
        (void)vsnprintf(text, size, format, again);
    }
    va_end(again);
    return text;
}

char *oct_cli_format(const char *format, ...) {
    va_list list;
    va_start(list, format);
    char *text = oct_cli_format_list(format, list);
    va_end(list);
    return text;
}

void oct_cli_unit(char text[16], int64_t bytes) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    text[0] = '\0';
    if (bytes < 1024) {
        return;
    }
    double amount = (double)bytes / 1024.0;
    size_t unit = 0;
    /* 1023.95 would print as 1024.0 of the smaller unit. */
    while (amount >= 1023.95) {
        amount /= 1024.0;
        unit++;
    }
    (void)snprintf(text, 16, "%.1f %s", amount, units[unit]);
}

static void append(oct_cli_line *line, size_t length, char c) {
    if (length >= line->room) {
        line->room = line->room < 128 ? 256 : 2 * line->room;
        line->text = oct_cli_memory(line->text, line->room);
    }
    line->text[length] = c;
}

bool oct_cli_read_line(oct_cli_line *line, FILE *file) {
    size_t length = 0;
    int c = getc(file);
    if (c == EOF) {
        return false;
    }
    line->has_zero = false;
    for (; c != EOF && c != '\n'; c = getc(file)) {
        line->has_zero = line->has_zero || c == 0;
        append(line, length++, (char)c);
    }
    if (length > 0 && line->text[length - 1] == '\r') {
        length--;
    }
    append(line, length, '\0');
    line->number++;
    return true;
}
