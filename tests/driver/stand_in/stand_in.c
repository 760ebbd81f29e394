/* stand_in.c - a test names the library that stands in for CUDA's: OCTET_CUDA_DRIVER.
 *
 * Programs that link this file honour the variable; the library alone does not. */
#include <stdlib.h>

const char *oct_stand_in(void);

const char *oct_stand_in(void) {
    return getenv("OCTET_CUDA_DRIVER");
}
