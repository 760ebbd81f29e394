/* rule.h - what a delayed recipe says about the scales of a role. */
#ifndef OCT_TORCH_RULE_H
#define OCT_TORCH_RULE_H

#include "octet.h"

#define OCT_CACHED_RULES 64 /* the most rules that are cached */

/* Sets format, algorithm, margin and length. A cached text is not parsed again. */
octet_status oct_rule_get(octet_delayed *out, const char *recipe, octet_role role,
                          octet_error *err);

/* How many rules are cached, and how many may be. */
typedef struct oct_rule_counts {
    int rules, most;
} oct_rule_counts;
oct_rule_counts oct_rule_count(void);

#endif
