/* library.h - finds a library of CUDA's at run time, and its functions. */
#ifndef OCT_CUDA_LIBRARY_H
#define OCT_CUDA_LIBRARY_H

#include "octet.h"

/* What to look for, and where besides the places common to all. */
typedef struct oct_library {
    const char *title;          /* "NVRTC", for people */
    const char *const *sonames; /* best first, ended by NULL */
    const char *folders;        /* joined by ':'; may be NULL */
    const char *fix;            /* what to do where there is none */
} oct_library;

/* A function to find and where its pointer goes in a table; a list ends with a NULL name. */
typedef struct oct_symbol {
    const char *name;
    size_t offset;
} oct_symbol;

/* A stand-in for the driver, NVRTC and cuBLASLt, for tests: the library that the environment's
 * OCTET_CUDA_DRIVER names. NULL where it names none, or one that cannot be opened. */
void *oct_library_stand_in(void);

/* Looks, in this order, at what the process has loaded, in library->folders, where the system
 * looks, and in /usr/local/cuda/lib64. OCTET_UNSUPPORTED says all that. The handle is never
 * closed: the functions stay for the life of the process. */
octet_status oct_library_open(void **out, const oct_library *library, octet_error *err);

/* Fills a table. NULL, or the name of the first function that the library lacks. */
const char *oct_library_find(void *table, const oct_symbol *symbols, void *handle);

#endif
