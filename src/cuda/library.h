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

/* CUDA has libraries of 64 bits only: elsewhere none is found, and there are no GPUs. */
#define OCT_CUDA_HAS_BITS (sizeof(void *) == 8)

/* Fills a table of functions. Looks, in this order, at what the process has loaded, in
 * library->folders, where the system looks, and in /usr/local/cuda/lib64; OCTET_UNSUPPORTED
 * says all that, or why one that is there does not load. What was found is never closed: the
 * functions stay for the life of the process.
 *
 * A test defines oct_stand_in, which gives the path of a library that stands in for each of
 * CUDA's whose first function it has; one that cannot be opened is as if there were none. The
 * library itself does not define it, and no variable of the environment is asked. */
octet_status oct_library_load(void *table, const oct_library *library,
                              const oct_symbol *symbols, octet_error *err);

#endif
