/* rule.h - what a delayed recipe says about the scales of a role. */
#ifndef OCT_TORCH_RULE_H
#define OCT_TORCH_RULE_H

#include "octet.h"

#define OCT_CACHED_RULES 64 /* remembered at most */

/* Sets format, algorithm, margin and length. A text that was read lately is not read again. */
octet_status oct_rule_get(octet_delayed *out, const char *recipe, octet_role role,
                          octet_error *err);

/* How many are remembered now, and how many may be. */
typedef struct oct_rule_counts {
    int rules, most;
} oct_rule_counts;
oct_rule_counts oct_rule_count(void);

#endif
