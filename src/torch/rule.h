/* rule.h - what a delayed recipe says about the scales of a role. */
#ifndef OCT_TORCH_RULE_H
#define OCT_TORCH_RULE_H

#include "octet.h"

/* Sets format, algorithm, margin and length. A text that was read lately is not read again. */
octet_status oct_rule_get(octet_delayed *out, const char *recipe, octet_role role,
                          octet_error *err);

#endif
