/* test_cache_faults.c - every file operation of the kernel cache fails once, by count: the call
 * that wanted a kernel works all the same, nothing is left open, and the cache works again.
 *
 * The linker sends the library's file operations here (--wrap). */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_gpu.h"

int __real_open(const char *path, int flags, ...);
ssize_t __real_read(int file, void *to, size_t bytes);
ssize_t __real_write(int file, const void *from, size_t bytes);
int __real_close(int file);
int __real_fstat(int file, struct stat *about);
int __real_stat(const char *path, struct stat *about);
int __real_mkdir(const char *path, mode_t mode);
int __real_mkstemp(char *path);
int __real_rename(const char *from, const char *to);
int __real_unlink(const char *path);
DIR *__real_opendir(const char *path);
int __real_openat(int folder, const char *path, int flags, ...);
int __real_fstatat(int folder, const char *path, struct stat *about, int flags);
int __real_renameat(int from_folder, const char *from, int to_folder, const char *to);
int __real_unlinkat(int folder, const char *path, int flags);
int __wrap_open(const char *path, int flags, ...);
ssize_t __wrap_read(int file, void *to, size_t bytes);
ssize_t __wrap_write(int file, const void *from, size_t bytes);
int __wrap_close(int file);
int __wrap_fstat(int file, struct stat *about);
int __wrap_stat(const char *path, struct stat *about);
int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_mkstemp(char *path);
int __wrap_rename(const char *from, const char *to);
int __wrap_unlink(const char *path);
DIR *__wrap_opendir(const char *path);
int __wrap_openat(int folder, const char *path, int flags, ...);
int __wrap_fstatat(int folder, const char *path, struct stat *about, int flags);
int __wrap_renameat(int from_folder, const char *from, int to_folder, const char *to);
int __wrap_unlinkat(int folder, const char *path, int flags);

/* SHORT: a read or write of half the bytes; KILL: the process ends there. */
enum { SHORT = -1, KILL = -2 };

static struct {
    int count, at, kind;
    bool counts;
} fault;

/* Whether this operation fails; it has set errno. */
static bool fails(void) {
    if (!fault.counts || ++fault.count != fault.at) {
        return false;
    }
    if (fault.kind == KILL) {
        (void)kill(getpid(), SIGKILL);
    }
    errno = fault.kind;
    return fault.kind != SHORT;
}

static size_t shorter(size_t bytes) {
    bool now = fault.counts && fault.kind == SHORT && fault.count == fault.at;
    return now && bytes > 1 ? bytes / 2 : bytes;
}

int __wrap_open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
    va_end(more);
    return fails() ? -1 : __real_open(path, flags, mode);
}

ssize_t __wrap_read(int file, void *to, size_t bytes) {
    return fails() ? -1 : __real_read(file, to, shorter(bytes));
}

ssize_t __wrap_write(int file, const void *from, size_t bytes) {
    return fails() ? -1 : __real_write(file, from, shorter(bytes));
}

/* A file is closed even where close tells of an error. */
int __wrap_close(int file) {
    bool failed = fails();
    int result = __real_close(file);
    return failed ? -1 : result;
}

int __wrap_fstat(int file, struct stat *about) {
    return fails() ? -1 : __real_fstat(file, about);
}

int __wrap_stat(const char *path, struct stat *about) {
    return fails() ? -1 : __real_stat(path, about);
}

int __wrap_mkdir(const char *path, mode_t mode) {
    return fails() ? -1 : __real_mkdir(path, mode);
}

int __wrap_mkstemp(char *path) {
    return fails() ? -1 : __real_mkstemp(path);
}

int __wrap_rename(const char *from, const char *to) {
    return fails() ? -1 : __real_rename(from, to);
}

int __wrap_unlink(const char *path) {
    return fails() ? -1 : __real_unlink(path);
}

DIR *__wrap_opendir(const char *path) {
    return fails() ? NULL : __real_opendir(path);
}

int __wrap_openat(int folder, const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
    va_end(more);
    return fails() ? -1 : __real_openat(folder, path, flags, mode);
}

int __wrap_fstatat(int folder, const char *path, struct stat *about, int flags) {
    return fails() ? -1 : __real_fstatat(folder, path, about, flags);
}

int __wrap_renameat(int from_folder, const char *from, int to_folder, const char *to) {
    return fails() ? -1 : __real_renameat(from_folder, from, to_folder, to);
}

int __wrap_unlinkat(int folder, const char *path, int flags) {
    return fails() ? -1 : __real_unlinkat(folder, path, flags);
}

/* ---- laws -------------------------------------------------------------------------------- */

static int entries(const char *folder, const char *word) {
    int count = 0;
    DIR *inside = __real_opendir(folder);
    for (struct dirent *e; inside && (e = readdir(inside));) {
        count +=
            e->d_name[0] != '.' || strstr(e->d_name, ".new-") ? !!strstr(e->d_name, word) : 0;
    }
    if (inside) {
        (void)closedir(inside);
    }
    return count;
}

static int open_files(void) {
    return entries("/proc/self/fd", "");
}

static void empty(const char *folder) {
    DIR *inside = __real_opendir(folder);
    for (struct dirent *e; inside && (e = readdir(inside));) {
        (void)unlinkat(dirfd(inside), e->d_name, 0);
    }
    if (inside) {
        (void)closedir(inside);
    }
}

/* A kernel's first launch, with a cache there; operation `at` fails by `kind`. Gives how many
 * there were. */
static int launch(const char *folder, int at, int kind) {
    octet_error err = {OCTET_OK, 0, ""};
    oct_cuda_launch what = launch_of("some_kernel");
    oct_cuda_on on = {.cuda = begin(folder)};
    fault.count = 0;
    fault.at = at;
    fault.kind = kind;
    fault.counts = true;
    octet_status status = oct_cuda_launch_kernel(&on, &what, &err);
    fault.counts = false;
    CHECK_OF(status == OCTET_OK, err.text);
    CHECK_EQ_INT(fake->launches, 1);
    end(on.cuda);
    return fault.count;
}

static const int kinds[] = {EINTR, ENOSPC, EIO, EACCES, SHORT};
#define KINDS ((int)(sizeof kinds / sizeof kinds[0]))

/* With an empty cache, which is written, or with a full one, which is read. */
static void fail_each(const char *folder, bool full) {
    empty(folder);
    (void)launch(folder, 0, 0);
    if (!full) {
        empty(folder);
    }
    int count = launch(folder, 0, 0), files = open_files();
    CHECK(count > (full ? 4 : 8));
    printf("%d operations where the cache is %s\n", count, full ? "read" : "written");
    for (int i = 0; i < KINDS * count; i++) {
        if (!full) {
            empty(folder);
        }
        (void)launch(folder, i / KINDS + 1, kinds[i % KINDS]);
        CHECK_EQ_INT(open_files(), files);
        CHECK(entries(folder, ".cubin") <= 1);
        (void)launch(folder, 0, 0);
        CHECK(fake->compiles <= 1);
        (void)launch(folder, 0, 0);
        CHECK_EQ_INT(fake->compiles, 0); /* it is there, and whole */
    }
}

TEST(cache_faults__of_a_writer_do_no_harm) {
    char folder[] = "/tmp/octet-faults-XXXXXX";
    CHECK(mkdtemp(folder) != NULL);
    fail_each(folder, false);
    empty(folder);
    CHECK_EQ_INT(rmdir(folder), 0);
}

TEST(cache_faults__of_a_reader_do_no_harm) {
    char folder[] = "/tmp/octet-faults-XXXXXX";
    CHECK(mkdtemp(folder) != NULL);
    fail_each(folder, true);
    empty(folder);
    CHECK_EQ_INT(rmdir(folder), 0);
}

/* Short reads and writes, and those that were interrupted, are continued. */
TEST(cache_faults__interruptions_cost_nothing) {
    char folder[] = "/tmp/octet-faults-XXXXXX";
    CHECK(mkdtemp(folder) != NULL);
    (void)launch(folder, 0, 0);
    int count = launch(folder, 0, 0), interrupted = 0;
    for (int i = 1; i <= count; i++) {
        (void)launch(folder, i, SHORT);
        CHECK_EQ_INT(fake->compiles, 0);
        (void)launch(folder, i, EINTR);
        interrupted += fake->compiles;
    }
    CHECK(interrupted < count); /* stat and open are not repeated, read is */
    empty(folder);
    CHECK_EQ_INT(rmdir(folder), 0);
}

/* Killed at any operation, reading or writing: the next process finds a cache that works. */
TEST(cache_faults__a_killed_process_leaves_a_cache_that_works) {
    char folder[] = "/tmp/octet-faults-XXXXXX";
    int killed = 0;
    CHECK(mkdtemp(folder) != NULL);
    (void)launch(folder, 0, 0);
    for (int i = 0; i < 60; i++) {
        if (i < 30) {
            empty(folder);
        }
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            (void)launch(folder, i % 30 + 1, KILL);
            _exit(0);
        }
        int status = 0;
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        (void)launch(folder, 0, 0);
        (void)launch(folder, 0, 0);
        CHECK_EQ_INT(fake->compiles, 0);
    }
    printf("%d processes were killed\n", killed);
    CHECK(killed > 10);
    empty(folder);
    CHECK_EQ_INT(rmdir(folder), 0);
}

TEST_MAIN(cache_faults__of_a_writer_do_no_harm, cache_faults__of_a_reader_do_no_harm,
          cache_faults__interruptions_cost_nothing,
          cache_faults__a_killed_process_leaves_a_cache_that_works)
