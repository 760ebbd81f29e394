/* cache.c - compiled kernels on disk: found by every fact they depend on, never trusted.
 *
 * A file is its facts, two lines about the payload, and the payload. It is code that this
 * process will run, so a folder or a file that somebody else could have written is as none. */
#define _XOPEN_SOURCE 700 /* S_ISVTX, mkstemp */
#include "cuda/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "octet cubin 1\n"
#define HEADER (sizeof MAGIC + OCT_CACHE_FACTS + 128)
#define MOST_BYTES ((size_t)256 << 20) /* no module comes near it */
#define NEW ".new-"                    /* a file's name while it is written, */
#define NEW_END "XXXXXX"               /* with letters and digits in place of these */
#define NEW_SECONDS 3600               /* nobody writes for so long */

void oct_cubin_free(oct_cubin *cubin) {
    free(cubin->data);
    *cubin = (oct_cubin){NULL, 0};
}

static bool fits(int length, size_t size) {
    return length > 0 && (size_t)length < size;
}

bool oct_cache_folder(char out[OCT_CACHE_PATH], const char *option) {
    const char *named = option ? option : getenv("OCTET_CACHE");
    if (named) {
        return fits(snprintf(out, OCT_CACHE_PATH, "%s", named), OCT_CACHE_PATH);
    }
    const char *base = getenv("XDG_CACHE_HOME"), *inner = "octet";
    if (!base || base[0] != '/') {
        base = getenv("HOME");
        inner = ".cache/octet";
    }
    return base && base[0] == '/' &&
           fits(snprintf(out, OCT_CACHE_PATH, "%s/%s", base, inner), OCT_CACHE_PATH);
}

/* The name of the file is short; the facts inside it decide. */
static bool path_of(char out[OCT_CACHE_PATH], const char *folder, const oct_cache_key *key) {
    char name[OCT_SHA256_TEXT];
    oct_sha256 hash;
    oct_sha256_start(&hash);
    oct_sha256_add(&hash, key->facts, strlen(key->facts));
    oct_sha256_text(name, &hash);
    return fits(snprintf(out, OCT_CACHE_PATH, "%s/%s-%.32s.cubin", folder, key->module, name),
                OCT_CACHE_PATH);
}

static size_t header_of(char out[HEADER], const oct_cache_key *key, const oct_cubin *cubin) {
    char sum[OCT_SHA256_TEXT];
    oct_sha256 hash;
    oct_sha256_start(&hash);
    oct_sha256_add(&hash, cubin->data, cubin->bytes);
    oct_sha256_text(sum, &hash);
    int length = snprintf(out, HEADER, MAGIC "%sbytes %zu\nsha256 %s\n\n", key->facts,
                          cubin->bytes, sum);
    return fits(length, HEADER) ? (size_t)length : 0;
}

static bool is_ours(const struct stat *about) {
    return about->st_uid == geteuid() || about->st_uid == 0;
}

/* In a folder with the sticky bit others may add files, but not replace those of this user. */
static bool is_safe_folder(const char *folder) {
    struct stat about;
    return stat(folder, &about) == 0 && S_ISDIR(about.st_mode) && is_ours(&about) &&
           (!(about.st_mode & S_IWOTH) || (about.st_mode & S_ISVTX));
}

static bool is_safe_file(const struct stat *about) {
    return S_ISREG(about->st_mode) && is_ours(about) && !(about->st_mode & (S_IWGRP | S_IWOTH));
}

static bool read_all(int file, unsigned char *to, size_t bytes) {
    while (bytes > 0) {
        ssize_t got = read(file, to, bytes);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return false;
        }
        to += got;
        bytes -= (size_t)got;
    }
    return true;
}

static bool write_all(int file, const void *data, size_t bytes) {
    const unsigned char *from = data;
    while (bytes > 0) {
        ssize_t put = write(file, from, bytes);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            return false;
        }
        from += put;
        bytes -= (size_t)put;
    }
    return true;
}

/* The whole file, as a cubin that begins at its first byte. */
static bool load(oct_cubin *out, int file) {
    struct stat about;
    if (fstat(file, &about) || !is_safe_file(&about) || about.st_size <= 0 ||
        (size_t)about.st_size > MOST_BYTES) {
        return false;
    }
    oct_cubin whole = {malloc((size_t)about.st_size), (size_t)about.st_size};
    if (!whole.data || !read_all(file, whole.data, whole.bytes)) {
        oct_cubin_free(&whole);
        return false;
    }
    *out = whole;
    return true;
}

/* Leaves the payload where the header is the one that this payload must have under this key. */
static bool strip(oct_cubin *whole, const oct_cache_key *key) {
    const unsigned char *end = NULL;
    for (size_t i = 1; i < whole->bytes && i < HEADER && !end; i++) {
        bool blank = whole->data[i - 1] == '\n' && whole->data[i] == '\n';
        end = blank ? whole->data + i + 1 : NULL;
    }
    if (!end) {
        return false;
    }
    size_t length = (size_t)(end - whole->data);
    oct_cubin payload = {whole->data + length, whole->bytes - length};
    char expected[HEADER];
    if (payload.bytes == 0 || header_of(expected, key, &payload) != length ||
        memcmp(expected, whole->data, length) != 0) {
        return false;
    }
    memmove(whole->data, payload.data, payload.bytes);
    whole->bytes = payload.bytes;
    return true;
}

bool oct_cache_read(oct_cubin *out, const char *folder, const oct_cache_key *key) {
    char path[OCT_CACHE_PATH];
    if (!path_of(path, folder, key) || !is_safe_folder(folder)) {
        return false;
    }
    int file = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) {
        return false;
    }
    oct_cubin whole;
    bool found = load(&whole, file);
    (void)close(file);
    if (found && !strip(&whole, key)) {
        oct_cubin_free(&whole);
        found = false;
    }
    if (found) {
        *out = whole;
    }
    return found;
}

/* The folder and those above it, for this user alone. What exists stays as it is. */
static void make_folder(const char *folder) {
    char path[OCT_CACHE_PATH];
    size_t length = strlen(folder);
    memcpy(path, folder, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] == '/' || path[i] == '\0') {
            char was = path[i];
            path[i] = '\0';
            (void)mkdir(path, S_IRWXU);
            path[i] = was;
        }
    }
}

static bool is_new_name(const char *name) {
    static const char chosen[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    size_t length = strlen(NEW), end = strlen(NEW_END);
    return strncmp(name, NEW, length) == 0 && strlen(name) == length + end &&
           strspn(name + length, chosen) == end;
}

/* Removes what processes that were killed while they wrote have left: files of this user, and
 * older than one that was written now by an hour, whatever the clock of this machine says. */
static void sweep(const char *folder, const struct stat *now) {
    DIR *entries = opendir(folder);
    for (struct dirent *e; entries && (e = readdir(entries));) {
        struct stat about;
        if (is_new_name(e->d_name) &&
            fstatat(dirfd(entries), e->d_name, &about, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(about.st_mode) && about.st_uid == geteuid() &&
            about.st_mtime < now->st_mtime - NEW_SECONDS) {
            (void)unlinkat(dirfd(entries), e->d_name, 0);
        }
    }
    if (entries) {
        (void)closedir(entries);
    }
}

void oct_cache_write(const char *folder, const oct_cache_key *key, const oct_cubin *cubin) {
    char path[OCT_CACHE_PATH], own[OCT_CACHE_PATH], header[HEADER];
    size_t length = header_of(header, key, cubin);
    if (length == 0 || !path_of(path, folder, key) ||
        !fits(snprintf(own, sizeof own, "%s/" NEW NEW_END, folder), sizeof own)) {
        return;
    }
    make_folder(folder);
    int file = is_safe_folder(folder) ? mkstemp(own) : -1;
    if (file < 0) {
        return;
    }
    struct stat now;
    bool whole = write_all(file, header, length) && write_all(file, cubin->data, cubin->bytes);
    bool dated = fstat(file, &now) == 0;
    whole = close(file) == 0 && whole;
    if (!whole || rename(own, path) != 0) {
        (void)unlink(own);
    }
    if (dated) {
        sweep(folder, &now);
    }
}
