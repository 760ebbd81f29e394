/* string.h - memcpy and memset, which the run-time compiler knows without a header. */
#ifndef OCT_KERNELS_STRING_H
#define OCT_KERNELS_STRING_H

#include <stddef.h>

#endif
