/* fields.c - a struct shown by its field table: name, value, word, meaning. */
#include "cli.h"

#include <inttypes.h>
#include <stdlib.h>

/* The value of one scalar type as text, which the caller owns. */
typedef char *(*show_function)(const octet_field *row, const void *at);

static char *show_flag(const octet_field *row, const void *at) {
    (void)row;
    return oct_cli_format("%s", *(const uint8_t *)at ? "yes" : "no");
}

static char *show_word(const octet_field *row, const void *at) {
    return oct_cli_format("%s", row->words[*(const uint8_t *)at]);
}

static char *show_u8(const octet_field *row, const void *at) {
    (void)row;
    return oct_cli_format("%u", (unsigned)*(const uint8_t *)at);
}

static char *show_u16(const octet_field *row, const void *at) {
    (void)row;
    return oct_cli_format("%u", (unsigned)*(const uint16_t *)at);
}

static char *show_u32(const octet_field *row, const void *at) {
    (void)row;
    return oct_cli_format("%" PRIu32, *(const uint32_t *)at);
}

static char *show_i32(const octet_field *row, const void *at) {
    (void)row;
    return oct_cli_format("%" PRId32, *(const int32_t *)at);
}

static char *show_i64(const octet_field *row, const void *at) {
    (void)row;
    return oct_cli_format("%" PRId64, *(const int64_t *)at);
}

/* The fewest digits that read back as the same float. */
static char *show_f32(const octet_field *row, const void *at) {
    (void)row;
    float value = *(const float *)at;
    for (int digits = 1;; digits++) {
        char *text = oct_cli_format("%.*g", digits, (double)value);
        if (digits == 9 || strtof(text, NULL) == value) {
            return text;
        }
        free(text);
    }
}

static const show_function shows[] = {
    [OCTET_FIELD_FLAG] = show_flag, [OCTET_FIELD_WORD] = show_word,
    [OCTET_FIELD_U8] = show_u8,     [OCTET_FIELD_U16] = show_u16,
    [OCTET_FIELD_U32] = show_u32,   [OCTET_FIELD_I32] = show_i32,
    [OCTET_FIELD_I64] = show_i64,   [OCTET_FIELD_F32] = show_f32,
};

/* Where a row stands: the struct's own, or those of a group such as "input" (in text "x"). */
typedef struct group {
    const char *name, *word;
    const char *value;
    int kind;
} group;

static void add_field(oct_cli_table *table, const octet_field *row, const group *in) {
    const char *dot = in->name[0] != '\0' ? "." : "";
    char *value = shows[row->type](row, in->value + row->offset);
    oct_cli_cell(table, "%s%s%s", in->name, dot, row->name);
    oct_cli_cell(table, "%s", value);
    oct_cli_cell(table, "%s%s%s", row->word != NULL ? in->word : "",
                 row->word != NULL ? dot : "", row->word != NULL ? row->word : "");
    oct_cli_cell(table, "%s", row->about);
    free(value);
}

/* Arrays are left out: a recipe's quantizers by role have a table of their own. */
static bool is_shown(const octet_field *row, int kind) {
    return row->count == 1 && (row->scope >> kind & 1) != 0;
}

static void add_group(oct_cli_table *table, const octet_field *rows, const group *in) {
    for (const octet_field *row = rows; row->name != NULL; row++) {
        if (row->type != OCTET_FIELD_STRUCT && is_shown(row, in->kind)) {
            add_field(table, row, in);
        }
    }
}

void oct_cli_fields(octet_struct which, const void *value, int kind) {
    oct_cli_table table = {.columns = 4};
    static const char *const heads[] = {"field", "value", "word", "meaning"};
    for (int i = 0; i < 4; i++) {
        oct_cli_cell(&table, "%s", heads[i]);
    }
    group own = {"", "", value, kind};
    add_group(&table, octet_fields(which), &own);
    for (const octet_field *row = octet_fields(which); row->name != NULL; row++) {
        if (row->type == OCTET_FIELD_STRUCT && is_shown(row, kind)) {
            group inner = {row->name, row->word, own.value + row->offset, kind};
            add_group(&table, row->fields, &inner);
        }
    }
    oct_cli_table_print(&table);
}
