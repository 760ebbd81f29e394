/* recipe_text.c - a recipe's one line, kind+flag+flag:word=value,word=value, and back. */
#include <string.h>

#include "core/fail.h"
#include "quant/quantizer.h"
#include "quant/recipe.h"

static const char *const group_words[] = {
    [OCT_GROUP_INPUT] = "x.", [OCT_GROUP_WEIGHT] = "w.", [OCT_GROUP_GRAD] = "g."};

/* What a word of the text sets: a field of the recipe, or one of some groups' parameters. */
typedef struct target {
    const octet_field *field;
    int groups; /* 0: the field is the recipe's own */
    bool off;   /* the word began with "no" */
} target;

static target find_target(int kind, oct_span word) {
    target found = {NULL, 0, false};
    int group = oct_span_starts(word, "x.")   ? OCT_GROUP_INPUT
                : oct_span_starts(word, "w.") ? OCT_GROUP_WEIGHT
                : oct_span_starts(word, "g.") ? OCT_GROUP_GRAD
                                              : 0;
    oct_span name = oct_span_skip(word, group ? 2 : 0);
    const octet_field *own = group ? NULL : oct_fields_find(oct_recipe_fields, name);
    const octet_field *shared = oct_fields_find(oct_qparams_fields, name);
    if (own && own->type != OCTET_FIELD_STRUCT && (own->scope >> kind & 1)) {
        found.field = own;
    } else if (shared && group && (oct_recipe_groups(kind, shared) & group)) {
        found = (target){shared, group, false};
    } else if (shared && !group && oct_recipe_shorthand(kind, shared)) {
        found = (target){shared, oct_recipe_shorthand(kind, shared), false};
    }
    return found;
}

/* "norht", "x.norht": the word without its "no". */
static target find_negated(int kind, oct_span word) {
    char plain[32];
    int prefix = word.length > 2 && word.text[1] == '.' ? 2 : 0;
    target found = {NULL, 0, false};
    if (word.length >= (int)sizeof plain ||
        !oct_span_starts(oct_span_skip(word, prefix), "no")) {
        return found;
    }
    memcpy(plain, word.text, (size_t)prefix);
    memcpy(plain + prefix, word.text + prefix + 2, (size_t)(word.length - prefix - 2));
    found = find_target(kind, (oct_span){plain, word.length - 2, word.column});
    found.off = true;
    return found;
}

static octet_status unknown_word(int kind, oct_span word, octet_error *err) {
    char list[256];
    oct_writer writer = oct_writer_start(list, sizeof list);
    for (const octet_field *field = oct_recipe_fields; field->name; field++) {
        if (field->word && field->type != OCTET_FIELD_STRUCT && (field->scope >> kind & 1)) {
            oct_write(&writer, writer.length ? ", " : "");
            oct_write(&writer, field->word);
        }
    }
    for (const octet_field *field = oct_qparams_fields; field->name; field++) {
        if (oct_recipe_groups(kind, field)) {
            oct_write(&writer, writer.length ? ", " : "");
            oct_write(&writer, oct_recipe_shorthand(kind, field) ? field->word : "x|w|g.");
            oct_write(&writer, oct_recipe_shorthand(kind, field) ? "" : field->word);
        }
    }
    for (int role = 0; kind == OCTET_RECIPE_CUSTOM && role < OCTET_ROLES; role++) {
        oct_write(&writer, ", ");
        oct_write(&writer, oct_role_words[role]);
    }
    return oct_fail_at(err, word.column, "'%.*s' is not a word of recipe %s; allowed: %s",
                       OCT_SHOW(word), oct_recipe_words[kind],
                       writer.length ? list : "nothing");
}

static bool is_switch(const octet_field *field) {
    return field->type == OCTET_FIELD_FLAG || field->words == oct_hadamard_words;
}

/* A bare word switches its field on or off; otherwise the value is read. */
static octet_status set_field(const target *found, void *where, oct_span value,
                              octet_error *err) {
    if (value.text) {
        return oct_field_parse(found->field, where, value, err);
    }
    oct_field_set(found->field, where, !found->off);
    return OCTET_OK;
}

static octet_status set_target(octet_recipe *recipe, const target *found, oct_span word,
                               oct_span value, octet_error *err) {
    if (!value.text && !is_switch(found->field)) {
        return oct_fail_at(err, word.column, "'%.*s' needs a value: %s=...", OCT_SHOW(word),
                           found->field->word);
    }
    if (value.text && found->off) {
        return oct_fail_at(err, value.column, "'%.*s' takes no value", OCT_SHOW(word));
    }
    if (!found->groups) {
        return set_field(found, recipe, value, err);
    }
    octet_status status = OCTET_OK;
    for (int group = OCT_GROUP_INPUT; !status && group <= OCT_GROUP_GRAD; group <<= 1) {
        if (found->groups & group) {
            status = set_field(found, oct_recipe_group(recipe, group), value, err);
        }
    }
    return status;
}

/* What the text has set so far, as bits: roles, the recipe's own fields, and the fields of
 * groups, each by the groups that it set: "pow2" may be followed by "x.nopow2", not by
 * "nopow2". */
typedef struct seen {
    uint32_t roles, fields;
    uint64_t params;
} seen;

static bool first_role(seen *seen, int role) {
    uint32_t bit = (uint32_t)1 << role;
    bool first = !(seen->roles & bit);
    seen->roles |= bit;
    return first;
}

static bool first_target(seen *seen, const target *found) {
    bool own = !found->groups;
    uint32_t field = own ? (uint32_t)1 << (found->field - oct_recipe_fields) : 0;
    uint64_t param =
        own ? 0 : (uint64_t)1 << ((found->field - oct_qparams_fields) * 8 + found->groups);
    bool first = !(seen->fields & field) && !(seen->params & param);
    seen->fields |= field;
    seen->params |= param;
    return first;
}

static octet_status parse_item(octet_recipe *recipe, seen *seen, oct_span item,
                               octet_error *err) {
    oct_span rest = item;
    oct_span word = oct_span_take(&rest, "=");
    oct_span value = {NULL, 0, rest.column};
    if (oct_span_next(&rest) == '=') {
        value = rest;
    }
    int role = recipe->kind == OCTET_RECIPE_CUSTOM ? oct_span_find(word, oct_role_words) : -1;
    target found = {NULL, 0, false};
    if (role < 0) {
        found = find_target(recipe->kind, word);
        found = found.field ? found : find_negated(recipe->kind, word);
    }
    if (role < 0 && !found.field) {
        return unknown_word(recipe->kind, word, err);
    }
    if (!(role >= 0 ? first_role(seen, role) : first_target(seen, &found))) {
        return oct_fail_at(err, word.column, "'%.*s' is given twice", OCT_SHOW(word));
    }
    return role >= 0 ? oct_quantizer_parse_span(&recipe->custom[role], value, err)
                     : set_target(recipe, &found, word, value, err);
}

octet_status oct_recipe_parse_span(octet_recipe *out, oct_span text, octet_error *err) {
    oct_span rest = text;
    oct_span name = oct_span_take(&rest, "+:");
    int kind = oct_span_find(name, oct_recipe_words);
    if (kind < 0) {
        char list[OCT_LIST_TEXT];
        return oct_fail_at(err, name.column, "'%.*s' is not a recipe; allowed: %s",
                           OCT_SHOW(name), oct_list_words(list, oct_recipe_words));
    }
    octet_recipe recipe = oct_recipe_default((octet_recipe_kind)kind);
    seen seen = {0, 0, 0};
    octet_status status = OCTET_OK;
    while (!status && oct_span_starts(rest, "+")) {
        (void)oct_span_next(&rest);
        status = parse_item(&recipe, &seen, oct_span_take(&rest, "+:"), err);
    }
    while (!status && oct_span_next(&rest)) { /* ':' first, then ',' */
        status = parse_item(&recipe, &seen, oct_span_take(&rest, ","), err);
    }
    octet_error cause;
    if (!status && octet_recipe_check(&recipe, &cause)) {
        status =
            oct_fail_at(err, oct_span_named(text, cause.text).column, "%.400s", cause.text);
    }
    if (!status) {
        *out = recipe;
    }
    return status;
}

octet_status octet_recipe_parse(octet_recipe *out, const char *text, octet_error *err) {
    oct_span span;
    octet_status status = oct_need(out, "out", err);
    status = status ? status : oct_span_of(&span, text, err);
    return status ? status : oct_recipe_parse_span(out, span, err);
}

/* Flags are written before the ':' and values after it, so a recipe is walked twice. */
typedef struct pass {
    oct_writer *writer;
    bool values;
    int count; /* values written so far */
} pass;

static void write_item(pass *pass, const char *prefix, const octet_field *field,
                       const void *value) {
    int64_t number = oct_field_get(field, value);
    bool is_flag = is_switch(field) && number <= 1;
    if (is_flag == pass->values) {
        return;
    }
    oct_write(pass->writer, is_flag ? "+" : pass->count++ ? "," : ":");
    oct_write(pass->writer, prefix);
    oct_write(pass->writer, is_flag && !number ? "no" : "");
    oct_write(pass->writer, field->word);
    if (!is_flag) {
        oct_write(pass->writer, "=");
        oct_field_write(field, value, pass->writer);
    }
}

/* One parameter of the groups: by its short word where that says it all, else group by group.
 */
static void write_param(pass *pass, const octet_field *field, octet_recipe *recipe,
                        octet_recipe *usual) {
    int together = oct_recipe_shorthand(recipe->kind, field);
    int changed = 0;
    const octet_qparams *first = NULL;
    bool alike = true;
    for (int group = OCT_GROUP_INPUT; group <= OCT_GROUP_GRAD; group <<= 1) {
        const octet_qparams *params = oct_recipe_group(recipe, group);
        bool differs = oct_field_get(field, params) !=
                       oct_field_get(field, oct_recipe_group(usual, group));
        changed |= differs ? group : 0;
        if (together & group) {
            first = first ? first : params;
            alike = alike && oct_field_get(field, params) == oct_field_get(field, first);
        }
    }
    if (together && alike && (changed & together) == together) {
        write_item(pass, "", field, first);
        changed &= ~together;
    }
    for (int group = OCT_GROUP_INPUT; group <= OCT_GROUP_GRAD; group <<= 1) {
        if (changed & group) {
            write_item(pass, group_words[group], field, oct_recipe_group(recipe, group));
        }
    }
}

static void write_pass(pass *pass, octet_recipe *recipe, octet_recipe *usual) {
    for (const octet_field *field = oct_recipe_fields; field->name; field++) {
        if (field->word && field->type != OCTET_FIELD_STRUCT &&
            oct_field_get(field, recipe) != oct_field_get(field, usual)) {
            write_item(pass, "", field, recipe);
        }
    }
    for (const octet_field *field = oct_qparams_fields; field->name; field++) {
        write_param(pass, field, recipe, usual);
    }
}

void oct_recipe_write(oct_writer *writer, const octet_recipe *recipe) {
    if (recipe->kind >= OCTET_RECIPES) {
        oct_write(writer, "?");
        return;
    }
    octet_recipe copy = *recipe;
    octet_recipe usual = oct_recipe_default(recipe->kind);
    pass flags = {writer, false, 0};
    pass values = {writer, true, 0};
    oct_write(writer, oct_recipe_words[recipe->kind]);
    write_pass(&flags, &copy, &usual);
    write_pass(&values, &copy, &usual);
    for (int role = 0; role < OCTET_ROLES; role++) {
        if (oct_quantizer_is(&recipe->custom[role])) {
            oct_write(writer, values.count++ ? "," : ":");
            oct_write(writer, oct_role_words[role]);
            oct_write(writer, "=");
            oct_quantizer_write(writer, &recipe->custom[role]);
        }
    }
}

size_t octet_recipe_print(char *text, size_t size, const octet_recipe *recipe) {
    oct_writer writer = oct_writer_start(text, size);
    if (!recipe) {
        return 0;
    }
    oct_recipe_write(&writer, recipe);
    return writer.length;
}
