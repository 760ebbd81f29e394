/* scheme.c - the table of schemes. */
#include "format/scheme.h"

#define TRAITS(with, name, word, what, ...) [OCTET_##name] = {.takes = (what), __VA_ARGS__},
#define WORD(with, name, word, ...) [OCTET_##name] = (word),

const oct_scheme oct_schemes[OCTET_SCHEMES] = {OCT_SCHEME_ROWS(TRAITS, )};

/* And a NULL at the end. */
const char *const oct_scheme_words[OCTET_SCHEMES + 1] = {[OCTET_SCHEME_NONE] = "none",
                                                         OCT_SCHEME_ROWS(WORD, )};
