/* cache.h - compiled kernels on disk: found by every fact they depend on, never trusted. */
#ifndef OCT_CUDA_CACHE_H
#define OCT_CUDA_CACHE_H

#include "cuda/sha256.h"
#include "octet.h"

/* A compiled module. Whoever gets one frees it by oct_cubin_free. */
typedef struct oct_cubin {
    unsigned char *data;
    size_t bytes;
} oct_cubin;

void oct_cubin_free(oct_cubin *cubin);

#define OCT_CACHE_FACTS 768
#define OCT_CACHE_PATH 4096

/* What a compiled module depends on, as text: each fact is a line "name value". It is written
 * before the module in its file and must be found there unchanged. */
typedef struct oct_cache_key {
    const char *module;
    char facts[OCT_CACHE_FACTS];
} oct_cache_key;

/* OCTET_INVALID where options.cache or OCTET_CACHE names a relative folder, or OCTET_CACHE_MIB
 * is no size. */
octet_status oct_cache_check(const char *option, octet_error *err);

/* The folder that options.cache, OCTET_CACHE, XDG_CACHE_HOME and HOME name, in this order.
 * False where there is to be none: an empty or relative name, or a path that is too long. */
bool oct_cache_folder(char out[OCT_CACHE_PATH], const char *option);

/* False unless the folder has that module, whole, made under the same facts, in a file that
 * only this user (or root) can have written. */
bool oct_cache_read(oct_cubin *out, const char *folder, const oct_cache_key *key);

/* Makes the folder where it can. Nothing is said where it cannot: the next process compiles. A
 * reader sees the whole file or none, whoever else writes it. What killed writers have left in
 * the folder is removed once it is an hour old, and so are the modules that were not used for
 * the longest time, until those that stay fit the limit: cache_bound.h. */
void oct_cache_write(const char *folder, const oct_cache_key *key, const oct_cubin *cubin);

#endif
