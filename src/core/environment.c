/* environment.c - the environment, as far as a process may believe it. */
#define _GNU_SOURCE /* secure_getenv */
#include "core/environment.h"

#include <stdlib.h>

const char *oct_environment(const char *name) {
#if defined(__linux__)
    return secure_getenv(name);
#else
    return getenv(name); /* no library that a variable names is loaded there */
#endif
}
