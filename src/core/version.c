/* version.c - the version as text, made of the header's three numbers. */
#include "octet.h"

#define TEXT(number) #number
#define DOTTED(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

const char *octet_version(void) {
    return DOTTED(OCTET_VERSION_MAJOR, OCTET_VERSION_MINOR, OCTET_VERSION_PATCH);
}
