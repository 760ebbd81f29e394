/* rule.c - a cache of delayed scaling's rules, by recipe and role. A step asks for the same two
 * rules again and again, and parsing a recipe takes longer than updating a layer's scales. The
 * table is process-wide, as the ops are. */
#include "torch/rule.h"

#include <stdlib.h>
#include <string.h>

#include "core/table.h"
#include "torch/api.h"

/* A parsed text, for one role. */
typedef struct remembered {
    oct_entry entry;
    octet_role role;
    octet_delayed rule;
    char text[];
} remembered;

typedef struct wanted {
    const char *text;
    octet_role role;
} wanted;

static bool same_rule(const oct_entry *entry, const void *key) {
    const remembered *r = (const remembered *)entry;
    const wanted *w = key;
    return r->role == w->role && !strcmp(r->text, w->text);
}

static void free_rule(oct_entry *entry) {
    free(entry);
}

static oct_table_set rule_sets[OCT_CACHED_RULES / OCT_TABLE_WAYS];
static oct_table rules = {rule_sets, OCT_CACHED_RULES / OCT_TABLE_WAYS, same_rule, free_rule, 0,
                          0};

/* Without memory for the entry, the text is parsed again next time. */
static void remember(const wanted *w, uint64_t hash, const octet_delayed *rule) {
    size_t length = strlen(w->text);
    remembered *r = malloc(sizeof *r + length + 1);
    if (r) {
        oct_entry_start(&r->entry, hash);
        r->role = w->role;
        r->rule = *rule;
        memcpy(r->text, w->text, length + 1);
        oct_table_put(&rules, &r->entry);
        oct_entry_leave(&rules, &r->entry);
    }
}

/* Algorithm and margin come from the recipe, the element format from the role. */
static octet_status read_rule(octet_delayed *out, const char *text, octet_role role,
                              octet_error *err) {
    octet_recipe recipe;
    octet_quantizer quantizer;
    octet_status status = octet_recipe_parse(&recipe, text, err);
    if (!status && recipe.kind != OCTET_RECIPE_DELAYED) {
        status = oct_torch_fail(err, OCTET_INVALID, "'%s' has no delayed state", text);
    }
    status = status ? status : octet_recipe_quantizer(&quantizer, &recipe, role, err);
    if (!status) {
        *out = OCTET_DELAYED_INIT;
        out->format = quantizer.format;
        out->algo = recipe.algo;
        out->margin = recipe.margin;
        out->length = recipe.history;
    }
    return status;
}

octet_status oct_rule_get(octet_delayed *out, const char *recipe, octet_role role,
                          octet_error *err) {
    wanted w = {recipe, role};
    uint64_t hash = oct_mix_bytes((uint64_t)role, recipe, strlen(recipe));
    remembered *found = (remembered *)oct_table_find(&rules, hash, &w);
    if (found) {
        *out = found->rule;
        oct_entry_leave(&rules, &found->entry);
        return OCTET_OK;
    }
    octet_status status = read_rule(out, recipe, role, err);
    if (!status) {
        remember(&w, hash, out);
    }
    return status;
}

oct_rule_counts oct_rule_count(void) {
    return (oct_rule_counts){oct_table_count(&rules), oct_table_capacity(&rules)};
}
