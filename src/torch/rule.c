/* rule.c - delayed scaling's rules by recipe and role: the last ones are remembered.
 *
 * A step asks for the same two over and over, and to read a recipe takes longer than to move a
 * layer's scales by it. As with plans, what the table holds are functions of their keys, and
 * who finds a place in use by another thread reads for himself. */
#include "torch/rule.h"

#include <string.h>

#include "core/table.h"
#include "torch/api.h"

enum { PLACES = 8, TEXT = 120 }; /* of a role; longer texts are read each time */

typedef struct place {
    atomic_bool in_use;
    char text[TEXT + 1]; /* empty: never taken */
    octet_delayed rule;
} place;

/* Process-wide, as the ops are. The roles of one recipe do not meet. */
static place places[OCTET_ROLES][PLACES];

static place *place_of(const char *text, size_t length, octet_role role) {
    return &places[role][oct_mix_bytes(length, text, length) % PLACES];
}

static bool recall(octet_delayed *out, place *p, const char *text) {
    if (!oct_enter_set(&p->in_use)) {
        return false;
    }
    bool is_it = !strcmp(p->text, text);
    if (is_it) {
        *out = p->rule;
    }
    oct_leave_set(&p->in_use);
    return is_it;
}

static void remember(place *p, const char *text, const octet_delayed *rule) {
    if (oct_enter_set(&p->in_use)) {
        memcpy(p->text, text, strlen(text) + 1);
        p->rule = *rule;
        oct_leave_set(&p->in_use);
    }
}

/* The recipe says algorithm and margin, the role which format the scales aim at. */
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
    size_t length = strlen(recipe);
    place *p = length && length <= TEXT ? place_of(recipe, length, role) : NULL;
    if (p && recall(out, p, recipe)) {
        return OCTET_OK;
    }
    octet_status status = read_rule(out, recipe, role, err);
    if (!status && p) {
        remember(p, recipe, out);
    }
    return status;
}
