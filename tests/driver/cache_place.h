/* cache_place.h - a folder of compiled kernels with one module in it, for the tests of the
 * cache.
 */
#ifndef OCTET_CACHE_PLACE_H
#define OCTET_CACHE_PLACE_H

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda/cache.h"
#include "test.h"

enum { BYTES = 300 };

static const oct_cache_key key = {"amax", "octet 1\nsource amax 0123\narch sm_90a\n"};

typedef struct place {
    char folder[64], file[400];
    unsigned char payload[BYTES];
    oct_cubin cubin;
} place;

/* A folder with one module in it. */
static inline void begin(place *p) {
    (void)snprintf(p->folder, sizeof p->folder, "/tmp/octet-cache-XXXXXX");
    CHECK(mkdtemp(p->folder) != NULL);
    for (int i = 0; i < BYTES; i++) {
        p->payload[i] = (unsigned char)(i * 7);
    }
    p->cubin = (oct_cubin){p->payload, BYTES};
    oct_cache_write(p->folder, &key, &p->cubin);
}

/* The number of entries; the path of the last one. */
static inline int entries(place *p) {
    int count = 0;
    DIR *folder = opendir(p->folder);
    for (struct dirent *e; folder && (e = readdir(folder));) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            (void)snprintf(p->file, sizeof p->file, "%s/%s", p->folder, e->d_name);
            count++;
        }
    }
    if (folder) {
        (void)closedir(folder);
    }
    return count;
}

static inline void end(place *p) {
    while (entries(p) > 0 && remove(p->file) == 0) {
    }
    CHECK_EQ_INT(rmdir(p->folder), 0);
}

/* Whether the module is found; what is found is what was written. */
static inline bool is_read(const place *p, const oct_cache_key *of) {
    oct_cubin got = {NULL, 0};
    bool found = oct_cache_read(&got, p->folder, of);
    if (found) {
        CHECK(got.bytes == BYTES && memcmp(got.data, p->payload, BYTES) == 0);
    }
    oct_cubin_free(&got);
    return found;
}

static inline size_t slurp(unsigned char *out, size_t size, const char *path) {
    FILE *file = fopen(path, "rb");
    size_t bytes = file ? fread(out, 1, size, file) : 0;
    if (file) {
        (void)fclose(file);
    }
    return bytes;
}

static inline void put(const char *path, const unsigned char *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0);
}

/* An entry of the folder, so many seconds older than its module. */
static inline void leave(place *p, const char *name, int seconds) {
    struct timespec times[2] = {{0, UTIME_OMIT}, {0, 0}};
    struct stat about;
    char path[160];
    CHECK(stat(p->file, &about) == 0);
    (void)snprintf(path, sizeof path, "%s/%s", p->folder, name);
    if (access(path, F_OK) != 0) {
        put(path, p->payload, BYTES / 2);
    }
    times[1].tv_sec = about.st_mtime - seconds;
    CHECK_EQ_INT(utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW), 0);
}

static inline bool has(const place *p, const char *name) {
    char path[160];
    struct stat about;
    (void)snprintf(path, sizeof path, "%s/%s", p->folder, name);
    return lstat(path, &about) == 0;
}

#endif
