/* build_id.h - which build of a library a process has loaded. */
#ifndef OCT_CUDA_BUILD_ID_H
#define OCT_CUDA_BUILD_ID_H

#include <stddef.h>

/* The build of the library that has the function at `inside`, as text without blanks: the build
 * ID that its linker wrote, in hex; where it has none, the bytes and the time of its file; ""
 * where it has no file. A version's two numbers do not tell patched builds apart: these do. */
void oct_build_id(char *out, size_t size, const void *inside);

#endif
