/* recipe.h - the recipe's tables, for the layers that print or nest one. */
#ifndef OCT_QUANT_RECIPE_H
#define OCT_QUANT_RECIPE_H

#include "core/fields.h"

extern const octet_field oct_recipe_fields[];
extern const octet_field oct_qparams_fields[];
extern const char *const oct_recipe_words[OCTET_RECIPES + 1];
extern const char *const oct_role_words[OCTET_ROLES + 1];

#define OCT_MOST_MARGIN 64 /* of delayed scaling, either way: scales are over 2^margin */

/* The groups of roles that share parameters, as bits. */
enum { OCT_GROUP_INPUT = 1, OCT_GROUP_WEIGHT = 2, OCT_GROUP_GRAD = 4, OCT_GROUPS = 3 };

/* Which groups of a recipe kind offer a parameter (a field of oct_qparams_fields). */
int oct_recipe_groups(int kind, const octet_field *field);
/* The groups that the parameter's short word sets together. */
int oct_recipe_shorthand(int kind, const octet_field *field);
octet_qparams *oct_recipe_group(octet_recipe *recipe, int group);

/* The defaults of a kind that is in range. */
octet_recipe oct_recipe_default(octet_recipe_kind kind);
/* octet_recipe_quantizer for a recipe and role that are known to be valid. */
octet_quantizer oct_recipe_role(const octet_recipe *recipe, octet_role role);

octet_status oct_recipe_parse_span(octet_recipe *out, oct_span text, octet_error *err);
void oct_recipe_write(oct_writer *writer, const octet_recipe *recipe);

#endif
