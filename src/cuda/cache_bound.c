/* cache_bound.c - what a folder of compiled kernels may hold, and what leaves it first. */
#define _XOPEN_SOURCE 700 /* fstatat, fdopendir */
#include "cuda/cache_bound.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/environment.h"
#include "core/fail.h"
#include "core/text.h"

#define LIMIT_MIB 512
#define MOST_MIB (SIZE_MAX >> 20)
#define NEW ".new-"
#define NEW_COUNT 6      /* letters and digits behind it */
#define NEW_SECONDS 3600 /* nobody writes for so long */
#define NAME 128

static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

static bool limit_of(int64_t *mib) {
    const char *text = oct_environment("OCTET_CACHE_MIB");
    oct_span span;
    *mib = LIMIT_MIB;
    return !text || !text[0] ||
           (!oct_span_of(&span, text, NULL) && oct_span_count(mib, span, MOST_MIB));
}

octet_status oct_cache_limit_check(octet_error *err) {
    int64_t mib;
    if (limit_of(&mib)) {
        return OCTET_OK;
    }
    return oct_fail(err, OCTET_INVALID,
                    "OCTET_CACHE_MIB is '%.32s'; it is a whole number: the MiB of compiled "
                    "kernels that are stored on disk",
                    oct_environment("OCTET_CACHE_MIB"));
}

size_t oct_cache_limit(void) {
    int64_t mib;
    bool said = limit_of(&mib);
    return (size_t)(said ? mib : LIMIT_MIB) << 20;
}

void oct_cache_new_name(char out[OCT_NEW_TEXT], uint64_t bits) {
    size_t length = strlen(NEW);
    memcpy(out, NEW, length);
    for (int i = 0; i < NEW_COUNT; i++) {
        out[length++] = letters[bits % (sizeof letters - 1)];
        bits /= sizeof letters - 1;
    }
    out[length] = 0;
}

static bool is_new_name(const char *name) {
    size_t length = strlen(NEW);
    return strncmp(name, NEW, length) == 0 && strlen(name) == length + NEW_COUNT &&
           strspn(name + length, letters) == NEW_COUNT;
}

static bool is_module_name(const char *name) {
    size_t length = strlen(name), end = strlen(OCT_CUBIN);
    return length > end && length < NAME && strcmp(name + length - end, OCT_CUBIN) == 0;
}

/* ---- modules of a folder ----------------------------------------------------------------- */

typedef struct module_file {
    char name[NAME];
    struct timespec used;
    size_t bytes;
} module_file;

typedef struct listing {
    module_file *files;
    size_t count, room;
    bool whole; /* there was memory for all of them */
} listing;

static void add(listing *list, const char *name, const struct stat *about) {
    if (list->count == list->room) {
        size_t room = list->room ? 2 * list->room : 64;
        module_file *more = realloc(list->files, room * sizeof *more);
        if (!more) {
            list->whole = false;
            return;
        }
        list->files = more;
        list->room = room;
    }
    module_file *file = &list->files[list->count++];
    memcpy(file->name, name, strlen(name) + 1);
    file->used = about->st_mtim;
    file->bytes = (size_t)about->st_size;
}

/* Oldest first. Every process sorts the same files the same way. */
static int by_age(const void *x, const void *y) {
    const module_file *a = x, *b = y;
    if (a->used.tv_sec != b->used.tv_sec) {
        return a->used.tv_sec < b->used.tv_sec ? -1 : 1;
    }
    if (a->used.tv_nsec != b->used.tv_nsec) {
        return a->used.tv_nsec < b->used.tv_nsec ? -1 : 1;
    }
    return strcmp(a->name, b->name);
}

static void evict(int folder, listing *list, const char *spared) {
    size_t total = 0, limit = oct_cache_limit();
    for (size_t i = 0; i < list->count; i++) {
        total += list->files[i].bytes;
    }
    if (total <= limit || !list->whole) {
        return;
    }
    qsort(list->files, list->count, sizeof *list->files, by_age);
    for (size_t i = 0; i < list->count && total > limit; i++) {
        const module_file *file = &list->files[i];
        /* One that another process has removed is as good as removed. */
        if (strcmp(file->name, spared) != 0) {
            (void)unlinkat(folder, file->name, 0);
            total -= file->bytes;
        }
    }
}

void oct_cache_sweep(int folder, time_t now, const char *spared) {
    listing list = {.whole = true};
    int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = again < 0 ? NULL : fdopendir(again);
    for (struct dirent *e; entries && (e = readdir(entries));) {
        struct stat about;
        bool written = is_new_name(e->d_name), module = is_module_name(e->d_name);
        if ((!written && !module) ||
            fstatat(folder, e->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISREG(about.st_mode) || about.st_uid != geteuid()) {
            continue;
        }
        if (module) {
            add(&list, e->d_name, &about);
        } else if (about.st_mtime < now - NEW_SECONDS) {
            (void)unlinkat(folder, e->d_name, 0);
        }
    }
    if (entries) {
        (void)closedir(entries);
    } else if (again >= 0) {
        (void)close(again);
    }
    evict(folder, &list, spared);
    free(list.files);
}
