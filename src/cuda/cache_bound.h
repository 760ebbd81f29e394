/* cache_bound.h - what a folder of compiled kernels may hold, and what leaves it first. */
#ifndef OCT_CUDA_CACHE_BOUND_H
#define OCT_CUDA_CACHE_BOUND_H

#include <sys/types.h>

#include "octet.h"

#define OCT_CUBIN ".cubin" /* the end of a module's name */
#define OCT_NEW_TEXT 16    /* of a file's name while it is written */

/* The bytes that the modules of a folder have together, at most: OCTET_CACHE_MIB, a whole
 * number of MiB; 512 where it is not set or says something else. */
size_t oct_cache_limit(void);
/* OCTET_INVALID where it says something else. */
octet_status oct_cache_limit_check(octet_error *err);

/* A name for a file while it is written: six letters or digits of these bits. */
void oct_cache_new_name(char out[OCT_NEW_TEXT], uint64_t bits);

/* Removes files of this user in an open folder: those that processes which were killed while
 * they wrote have left, older than `now` by an hour, whatever the clock of this machine says;
 * and then modules, the oldest first, until the rest fits the limit. `spared` stays. Processes
 * that do so at once choose the same files; a reader has what he has opened. */
void oct_cache_sweep(int folder, time_t now, const char *spared);

#endif
