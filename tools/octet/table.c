/* table.c - rows of cells printed in aligned columns. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

void oct_cli_cell(oct_cli_table *table, const char *format, ...) {
    size_t count = (size_t)table->count + 1;
    table->cells = oct_cli_memory(table->cells, count * sizeof(*table->cells));
    va_list list;
    va_start(list, format);
    table->cells[table->count++] = oct_cli_format_list(format, list);
    va_end(list);
}

static void measure(int widths[OCT_CLI_COLUMNS], const oct_cli_table *table) {
    for (int i = 0; i < table->count; i++) {
        int length = (int)strlen(table->cells[i]);
        int *width = &widths[i % table->columns];
        *width = length > *width ? length : *width;
    }
}

/* Whether every cell of the row from `cell` on is empty, so that no line ends in spaces. */
static bool is_rest_empty(const oct_cli_table *table, int cell) {
    for (int end = cell - cell % table->columns + table->columns; cell < end; cell++) {
        if (table->cells[cell][0] != '\0') {
            return false;
        }
    }
    return true;
}

static void print_row(const oct_cli_table *table, int first, const int *widths) {
    for (int i = first; i < first + table->columns && !is_rest_empty(table, i); i++) {
        int column = i - first;
        bool is_last = i + 1 == first + table->columns || is_rest_empty(table, i + 1);
        int left = is_last ? 0 : -widths[column];
        printf("  %*s", table->right[column] ? widths[column] : left, table->cells[i]);
    }
    putchar('\n');
}

void oct_cli_table_drop(oct_cli_table *table) {
    for (int i = 0; i < table->count; i++) {
        free(table->cells[i]);
    }
    free(table->cells);
    table->cells = NULL;
    table->count = 0;
}

void oct_cli_table_print(oct_cli_table *table) {
    int widths[OCT_CLI_COLUMNS] = {0};
    measure(widths, table);
    for (int row = 0; row + table->columns <= table->count; row += table->columns) {
        print_row(table, row, widths);
    }
    oct_cli_table_drop(table);
}
