/* test_cache_limit.c - how much a folder of compiled kernels holds, and what leaves it first.
 */
#define _XOPEN_SOURCE 700
#include <pthread.h>

#include "cache_place.h"

#define MODULE_KIB 300 /* of a module: three of them fit a MiB */

/* A module of MODULE_KIB, by its number. */
static oct_cache_key big_key(int number) {
    oct_cache_key made = {"big", ""};
    (void)snprintf(made.facts, sizeof made.facts, "octet 1\nnumber %d\n", number);
    return made;
}

static void write_big(const place *p, int number) {
    static unsigned char data[MODULE_KIB << 10];
    oct_cache_key made = big_key(number);
    oct_cubin cubin = {data, sizeof data};
    oct_cache_write(p->folder, &made, &cubin);
}

static bool is_big_there(const place *p, int number) {
    oct_cubin got = {NULL, 0};
    oct_cache_key made = big_key(number);
    bool found = oct_cache_read(&got, p->folder, &made);
    CHECK(!found || got.bytes == MODULE_KIB << 10);
    oct_cubin_free(&got);
    return found;
}

/* Every file of the folder but the last one written is made older by so many seconds. */
static void grow_older(const place *p, int seconds) {
    DIR *folder = opendir(p->folder);
    for (struct dirent *e; folder && (e = readdir(folder));) {
        struct stat about;
        if (fstatat(dirfd(folder), e->d_name, &about, 0) == 0 && S_ISREG(about.st_mode)) {
            struct timespec times[2] = {{0, UTIME_OMIT}, about.st_mtim};
            times[1].tv_sec -= seconds;
            CHECK_EQ_INT(utimensat(dirfd(folder), e->d_name, times, 0), 0);
        }
    }
    CHECK(folder && closedir(folder) == 0);
}

TEST(cache__beyond_the_limit_the_oldest_modules_leave) {
    place p;
    begin(&p);
    CHECK_EQ_INT(setenv("OCTET_CACHE_MIB", "1", 1), 0);
    for (int i = 0; i < 5; i++) {
        grow_older(&p, 10);
        write_big(&p, i);
    }
    CHECK_EQ_INT(entries(&p), 3);
    CHECK(!is_big_there(&p, 0) && !is_big_there(&p, 1) && !is_read(&p, &key));
    CHECK(is_big_there(&p, 4) && is_big_there(&p, 3) && is_big_there(&p, 2));
    CHECK_EQ_INT(unsetenv("OCTET_CACHE_MIB"), 0);
    end(&p);
}

TEST(cache__a_module_that_is_read_is_as_new) {
    place p;
    begin(&p);
    CHECK_EQ_INT(setenv("OCTET_CACHE_MIB", "1", 1), 0);
    for (int i = 0; i < 3; i++) {
        grow_older(&p, 10);
        write_big(&p, i);
    }
    grow_older(&p, 10);
    CHECK(is_big_there(&p, 0));
    write_big(&p, 3);
    CHECK(is_big_there(&p, 0) && !is_big_there(&p, 1) && is_big_there(&p, 2));
    CHECK_EQ_INT(unsetenv("OCTET_CACHE_MIB"), 0);
    end(&p);
}

TEST(cache__without_room_nothing_is_written) {
    place p;
    begin(&p);
    CHECK_EQ_INT(setenv("OCTET_CACHE_MIB", "0", 1), 0);
    write_big(&p, 0);
    CHECK(!is_big_there(&p, 0) && is_read(&p, &key));
    CHECK_EQ_INT(unsetenv("OCTET_CACHE_MIB"), 0);
    write_big(&p, 0);
    CHECK(is_big_there(&p, 0));
    end(&p);
}

/* Only modules leave, and only those of this user. */
TEST(cache__what_is_not_a_module_of_this_user_does_not_leave) {
    place p;
    char path[160];
    begin(&p);
    CHECK_EQ_INT(entries(&p), 1);
    leave(&p, "notes.txt", 99);
    leave(&p, "other.cubin", 99);
    (void)snprintf(path, sizeof path, "%s/other.cubin", p.folder);
    bool given = chown(path, 12345, (gid_t)-1) == 0;
    CHECK_EQ_INT(setenv("OCTET_CACHE_MIB", "1", 1), 0);
    for (int i = 0; i < 4; i++) {
        write_big(&p, i);
    }
    CHECK(has(&p, "notes.txt") && has(&p, "other.cubin") == given && !is_read(&p, &key));
    CHECK_EQ_INT(unsetenv("OCTET_CACHE_MIB"), 0);
    end(&p);
}

static void *fill_up(void *arg) {
    for (int i = 0; i < 40; i++) {
        write_big(arg, i % 8);
    }
    return NULL;
}

TEST(cache__writers_at_once_stay_below_the_limit_and_readers_see_whole_files) {
    place p;
    pthread_t writers[2];
    begin(&p);
    CHECK_EQ_INT(setenv("OCTET_CACHE_MIB", "1", 1), 0);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_INT(pthread_create(&writers[i], NULL, fill_up, &p), 0);
    }
    for (int i = 0; i < 400; i++) {
        (void)is_big_there(&p, i % 8); /* whole, or not there */
    }
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_INT(pthread_join(writers[i], NULL), 0);
    }
    write_big(&p, 0);
    CHECK(is_big_there(&p, 0) && entries(&p) <= 3);
    CHECK_EQ_INT(unsetenv("OCTET_CACHE_MIB"), 0);
    end(&p);
}

TEST(cache__a_relative_folder_and_a_limit_that_is_none_are_refused) {
    octet_error err;
    char folder[OCT_CACHE_PATH];
    CHECK_EQ_INT(oct_cache_check("here/kernels", &err), OCTET_INVALID);
    CHECK(strstr(err.text, "options.cache is 'here/kernels'") && strstr(err.text, "absolute"));
    CHECK(!oct_cache_folder(folder, "here/kernels"));
    CHECK_EQ_INT(setenv("OCTET_CACHE", "./x", 1), 0);
    CHECK_EQ_INT(oct_cache_check(NULL, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "OCTET_CACHE is './x'") && !oct_cache_folder(folder, NULL));
    CHECK_EQ_INT(oct_cache_check("/x", &err), OCTET_OK);
    CHECK_EQ_INT(oct_cache_check("", &err), OCTET_OK);
    CHECK_EQ_INT(unsetenv("OCTET_CACHE"), 0);
    static const char *const wrong[] = {"many", "-1", "1.5", "99999999999999999999"};
    for (int i = 0; i < 4; i++) {
        CHECK_EQ_INT(setenv("OCTET_CACHE_MIB", wrong[i], 1), 0);
        CHECK_EQ_INT(oct_cache_check(NULL, &err), OCTET_INVALID);
        CHECK_OF(strstr(err.text, wrong[i]) != NULL, wrong[i]);
    }
    CHECK_EQ_INT(unsetenv("OCTET_CACHE_MIB"), 0);
    CHECK_EQ_INT(oct_cache_check(NULL, &err), OCTET_OK);
}

TEST_MAIN(cache__beyond_the_limit_the_oldest_modules_leave,
          cache__a_module_that_is_read_is_as_new, cache__without_room_nothing_is_written,
          cache__what_is_not_a_module_of_this_user_does_not_leave,
          cache__writers_at_once_stay_below_the_limit_and_readers_see_whole_files,
          cache__a_relative_folder_and_a_limit_that_is_none_are_refused)
