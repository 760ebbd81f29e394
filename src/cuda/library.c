/* library.c - finds a library of CUDA's at run time, and its functions. */
#define _GNU_SOURCE /* dladdr */
#include "cuda/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/fail.h"

#define TOOLKIT "/usr/local/cuda/lib64"
#define LONGEST_PATH 4096

/* The library's own symbols come first to it, and nobody else sees them. */
#define HOW (RTLD_NOW | RTLD_LOCAL)

/* What is looked for, and why the first one that is there does not load. */
typedef struct search {
    const oct_library *library;
    char why[256];
} search;

static void *open_loaded(const oct_library *library) {
    void *found = NULL;
    for (int i = 0; library->sonames[i] && !found; i++) {
        found = dlopen(library->sonames[i], HOW | RTLD_NOLOAD);
    }
    return found;
}

static void note_reason(search *s) {
    const char *why = dlerror();
    if (why && !s->why[0]) {
        (void)snprintf(s->why, sizeof s->why, "%s", why);
    }
}

/* `length` characters of `folder`. A path that is too long is not there. */
static void *open_in(search *s, const char *folder, size_t length) {
    const char *const *sonames = s->library->sonames;
    void *found = NULL;
    for (int i = 0; sonames[i] && !found; i++) {
        char path[LONGEST_PATH];
        int size = snprintf(path, sizeof path, "%.*s/%s", (int)length, folder, sonames[i]);
        if (size > 0 && (size_t)size < sizeof path && !access(path, F_OK)) {
            found = dlopen(path, HOW);
            if (!found) {
                note_reason(s);
            }
        }
    }
    return found;
}

static void *open_in_folders(search *s) {
    void *found = NULL;
    const char *at = s->library->folders ? s->library->folders : "";
    while (*at && !found) {
        size_t length = strcspn(at, ":");
        if (length > 0 && length < LONGEST_PATH) {
            found = open_in(s, at, length);
        }
        at += length + (at[length] == ':');
    }
    return found;
}

static void *open_by_system(search *s) {
    const char *const *sonames = s->library->sonames;
    void *found = NULL;
    for (int i = 0; sonames[i] && !found; i++) {
        found = dlopen(sonames[i], HOW);
    }
    return found ? found : open_in(s, TOOLKIT, sizeof TOOLKIT - 1);
}

static octet_status not_found(const search *s, octet_error *err) {
    const oct_library *library = s->library;
    const char *other = library->sonames[1];
    bool given = library->folders && library->folders[0];
    if (s->why[0]) {
        return oct_fail(err, OCTET_UNSUPPORTED, "no %s: it is there but does not load: %s; %s",
                        library->title, s->why, library->fix);
    }
    return oct_fail(err, OCTET_UNSUPPORTED,
                    "no %s: %s%s%s is not loaded in this process, %s%.160s%snot where the "
                    "system looks, not in " TOOLKIT "; %s",
                    library->title, library->sonames[0], other ? " or " : "",
                    other ? other : "", given ? "not in the folders given: " : "",
                    given ? library->folders : "", given ? ", " : "", library->fix);
}

static octet_status find_library(void **out, const oct_library *library, octet_error *err) {
    search s = {library, ""};
    void *found = open_loaded(library);
    found = found ? found : open_in_folders(&s);
    found = found ? found : open_by_system(&s);
    if (!found) {
        return not_found(&s, err);
    }
    *out = found;
    return OCTET_OK;
}

/* Of tests: the path of a library that stands in for CUDA's, or NULL. This library has none. */
extern const char *oct_stand_in(void) __attribute__((weak, visibility("hidden")));

/* The library to take functions from: the stand-in where there is one for it. */
static octet_status choose(void **out, const oct_library *library, const char *first,
                           octet_error *err) {
    const char *path = oct_stand_in ? oct_stand_in() : NULL;
    if (!path || !path[0]) {
        return find_library(out, library, err);
    }
    void *handle = dlopen(path, HOW);
    if (!handle) {
        return oct_fail(err, OCTET_UNSUPPORTED, "no %s: its stand-in is %.120s: %s",
                        library->title, path, dlerror());
    }
    *out = handle;
    return dlsym(handle, first) ? OCTET_OK : find_library(out, library, err);
}

/* `inside` is one of its functions, or NULL. */
static octet_status too_old(const oct_library *library, void *inside, const char *missing,
                            octet_error *err) {
    Dl_info about;
    bool placed = inside && dladdr(inside, &about) && about.dli_fname;
    return oct_fail(err, OCTET_UNSUPPORTED, "this %s%s%.200s is too old, it has no %s; %s",
                    library->title, placed ? ", " : "", placed ? about.dli_fname : "", missing,
                    library->fix);
}

octet_status oct_library_load(void *table, const oct_library *library,
                              const oct_symbol *symbols, octet_error *err) {
    void *handle = NULL, *first = NULL;
    if (!OCT_CUDA_HAS_BITS) {
        return oct_fail(err, OCTET_UNSUPPORTED,
                        "no %s: CUDA has none for programs of 32 bits; build for 64",
                        library->title);
    }
    octet_status status = choose(&handle, library, symbols[0].name, err);
    for (int i = 0; !status && symbols[i].name; i++) {
        void *found = dlsym(handle, symbols[i].name);
        first = first ? first : found;
        if (!found) {
            status = too_old(library, first, symbols[i].name, err);
        }
        /* ISO C has no conversion from an object pointer to a function pointer; POSIX promises
         * that the bytes are the same. */
        memcpy((char *)table + symbols[i].offset, &found, sizeof found);
    }
    return status;
}
