/* cache.c - compiled kernels on disk: found by every fact they depend on, never trusted.
 *
 * A file is its facts, two lines about the payload, and the payload. It is code that this
 * process will run, so a folder or a file that somebody else could have written is as none. */
#define _XOPEN_SOURCE 700 /* S_ISVTX, futimens */
#include "cuda/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/environment.h"
#include "core/fail.h"
#include "cuda/cache_bound.h"

#define MAGIC "octet cubin 1\n"
#define HEADER (sizeof MAGIC + OCT_CACHE_FACTS + 128)
#define MOST_BYTES ((size_t)256 << 20) /* no module comes near it */
#define NAME 128
#define NEW_TRIES 100

void oct_cubin_free(oct_cubin *cubin) {
    free(cubin->data);
    *cubin = (oct_cubin){NULL, 0};
}

static bool fits(int length, size_t size) {
    return length > 0 && (size_t)length < size;
}

octet_status oct_cache_check(const char *option, octet_error *err) {
    const char *named = option ? option : oct_environment("OCTET_CACHE");
    if (named && named[0] && named[0] != '/') {
        return oct_fail(err, OCTET_INVALID,
                        "%s is '%.200s'; the folder of compiled kernels is an absolute path, "
                        "or empty for none: kernels in the folder that a process happens to be "
                        "in are not its own",
                        option ? "options.cache" : "OCTET_CACHE", named);
    }
    return oct_cache_limit_check(err);
}

bool oct_cache_folder(char out[OCT_CACHE_PATH], const char *option) {
    const char *named = option ? option : oct_environment("OCTET_CACHE");
    if (named) {
        return named[0] == '/' &&
               fits(snprintf(out, OCT_CACHE_PATH, "%s", named), OCT_CACHE_PATH);
    }
    const char *base = oct_environment("XDG_CACHE_HOME"), *inner = "octet";
    if (!base || base[0] != '/') {
        base = oct_environment("HOME");
        inner = ".cache/octet";
    }
    return base && base[0] == '/' &&
           fits(snprintf(out, OCT_CACHE_PATH, "%s/%s", base, inner), OCT_CACHE_PATH);
}

/* The name of the file is short; the facts inside it decide. */
static bool name_of(char out[NAME], const oct_cache_key *key) {
    char sum[OCT_SHA256_TEXT];
    oct_sha256 hash;
    oct_sha256_start(&hash);
    oct_sha256_add(&hash, key->facts, strlen(key->facts));
    oct_sha256_text(sum, &hash);
    return fits(snprintf(out, NAME, "%s-%.32s" OCT_CUBIN, key->module, sum), NAME);
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
static bool is_safe_folder(const struct stat *about) {
    return S_ISDIR(about->st_mode) && is_ours(about) &&
           (!(about->st_mode & (S_IWGRP | S_IWOTH)) || (about->st_mode & S_ISVTX));
}

/* The folder, which stays the one that was looked at whatever its path becomes; -1: none that
 * only this user (or root) can change. */
static int open_folder(const char *folder) {
    struct stat about;
    int at = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (at >= 0 && (fstat(at, &about) || !is_safe_folder(&about))) {
        (void)close(at);
        at = -1;
    }
    return at;
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

/* A file that is used is as new: those that nobody uses are removed first. */
static void renew(int file) {
    const struct timespec now[2] = {{0, UTIME_OMIT}, {0, UTIME_NOW}};
    (void)futimens(file, now);
}

static bool read_file(oct_cubin *out, int folder, const char *name, const oct_cache_key *key) {
    int file = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) {
        return false;
    }
    oct_cubin whole;
    bool found = load(&whole, file);
    if (found && !strip(&whole, key)) {
        oct_cubin_free(&whole);
        found = false;
    }
    if (found) {
        renew(file);
        *out = whole;
    }
    (void)close(file);
    return found;
}

bool oct_cache_read(oct_cubin *out, const char *folder, const oct_cache_key *key) {
    char name[NAME];
    int at = name_of(name, key) ? open_folder(folder) : -1;
    if (at < 0) {
        return false;
    }
    bool found = read_file(out, at, name, key);
    (void)close(at);
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

/* A file of a name that nobody has, to be written; its name is where OCT_NEW is. -1: none. */
static int open_new(char name[OCT_NEW_TEXT], int folder) {
    struct timespec now = {0, 0};
    int file = -1;
    for (int i = 0; file < 0 && i < NEW_TRIES; i++) {
        (void)clock_gettime(CLOCK_MONOTONIC, &now);
        uint64_t bits = (uint64_t)now.tv_nsec * 0x9E3779B97F4A7C15u + (uint64_t)getpid() +
                        (uint64_t)(uintptr_t)&now * 0xC2B2AE3D27D4EB4Fu + (uint64_t)i;
        oct_cache_new_name(name, bits ^ bits >> 29);
        file = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                      S_IRUSR | S_IWUSR);
        if (file < 0 && errno != EEXIST && errno != EINTR) {
            break;
        }
    }
    return file;
}

/* The header and the module in a new file, which then gets its name. */
static void write_file(int folder, const char *name, const char *header,
                       const oct_cubin *cubin) {
    char own[OCT_NEW_TEXT];
    struct stat now;
    int file = open_new(own, folder);
    if (file < 0) {
        return;
    }
    bool whole =
        write_all(file, header, strlen(header)) && write_all(file, cubin->data, cubin->bytes);
    bool dated = fstat(file, &now) == 0;
    whole = close(file) == 0 && whole;
    if (!whole || renameat(folder, own, folder, name) != 0) {
        (void)unlinkat(folder, own, 0);
    }
    if (dated) {
        oct_cache_sweep(folder, now.st_mtime, name);
    }
}

void oct_cache_write(const char *folder, const oct_cache_key *key, const oct_cubin *cubin) {
    char name[NAME], header[HEADER];
    size_t length = header_of(header, key, cubin);
    if (length == 0 || !name_of(name, key) || strlen(folder) >= OCT_CACHE_PATH ||
        length + cubin->bytes > oct_cache_limit()) {
        return;
    }
    make_folder(folder);
    int at = open_folder(folder);
    if (at >= 0) {
        write_file(at, name, header, cubin);
        (void)close(at);
    }
}
