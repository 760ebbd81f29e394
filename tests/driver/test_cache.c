/* test_cache.c - compiled kernels on disk: what is whole and ours is read, all else ignored. */
#define _XOPEN_SOURCE 700
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache_place.h"
#include "cuda/build_id.h"
#include "cuda/nvrtc.h"
#include "test.h"

TEST(cache__what_was_written_is_read_and_nothing_else_is_left) {
    place p;
    begin(&p);
    CHECK(is_read(&p, &key));
    CHECK_EQ_INT(entries(&p), 1);
    oct_cache_write(p.folder, &key, &p.cubin);
    CHECK_EQ_INT(entries(&p), 1);
    end(&p);
}

TEST(cache__other_facts_are_another_module) {
    place p;
    begin(&p);
    oct_cache_key other = key;
    other.facts[6] = '2';
    CHECK(!is_read(&p, &other));
    oct_cache_write(p.folder, &other, &p.cubin);
    CHECK_EQ_INT(entries(&p), 2);
    CHECK(is_read(&p, &key) && is_read(&p, &other));
    end(&p);
}

TEST(cache__a_file_under_a_name_that_is_not_its_own_is_ignored) {
    place p, q;
    begin(&p);
    CHECK_EQ_INT(entries(&p), 1);
    begin(&q);
    oct_cache_key other = key;
    other.facts[6] = '2';
    CHECK(entries(&q) == 1 && remove(q.file) == 0);
    oct_cache_write(q.folder, &other, &q.cubin);
    CHECK_EQ_INT(entries(&q), 1);
    CHECK_EQ_INT(rename(p.file, q.file), 0);
    CHECK(!is_read(&q, &other));
    end(&p);
    end(&q);
}

TEST(cache__a_file_that_ends_early_is_ignored_wherever_it_ends) {
    place p;
    unsigned char whole[2048];
    begin(&p);
    CHECK_EQ_INT(entries(&p), 1);
    size_t bytes = slurp(whole, sizeof whole, p.file);
    CHECK(bytes > BYTES && bytes < sizeof whole);
    for (size_t i = 0; i < bytes; i++) {
        CHECK(truncate(p.file, (off_t)i) == 0 && !is_read(&p, &key));
        put(p.file, whole, bytes);
    }
    whole[bytes] = 0;
    put(p.file, whole, bytes + 1);
    CHECK(!is_read(&p, &key));
    put(p.file, whole, bytes);
    CHECK(is_read(&p, &key));
    end(&p);
}

TEST(cache__a_file_with_a_wrong_byte_is_ignored_wherever_it_is) {
    place p;
    unsigned char whole[2048];
    begin(&p);
    CHECK_EQ_INT(entries(&p), 1);
    size_t bytes = slurp(whole, sizeof whole, p.file);
    for (size_t i = 0; i < bytes; i++) {
        whole[i] ^= 1u << i % 8;
        put(p.file, whole, bytes);
        CHECK(!is_read(&p, &key));
        whole[i] ^= 1u << i % 8;
    }
    oct_cache_write(p.folder, &key, &p.cubin);
    CHECK(is_read(&p, &key));
    end(&p);
}

TEST(cache__a_folder_that_anyone_may_change_is_not_used) {
    place p;
    begin(&p);
    CHECK_EQ_INT(chmod(p.folder, 0777), 0);
    CHECK(!is_read(&p, &key));
    CHECK(entries(&p) == 1 && remove(p.file) == 0);
    oct_cache_write(p.folder, &key, &p.cubin);
    CHECK_EQ_INT(entries(&p), 0);
    CHECK_EQ_INT(chmod(p.folder, 01777), 0);
    oct_cache_write(p.folder, &key, &p.cubin);
    CHECK(is_read(&p, &key));
    end(&p);
}

TEST(cache__a_folder_that_a_group_may_change_is_not_used) {
    place p;
    begin(&p);
    CHECK_EQ_INT(chmod(p.folder, 0770), 0);
    CHECK(!is_read(&p, &key));
    CHECK(entries(&p) == 1 && remove(p.file) == 0);
    oct_cache_write(p.folder, &key, &p.cubin);
    CHECK_EQ_INT(entries(&p), 0);
    CHECK_EQ_INT(chmod(p.folder, 0750), 0);
    oct_cache_write(p.folder, &key, &p.cubin);
    CHECK(is_read(&p, &key));
    end(&p);
}

TEST(cache__a_file_that_others_may_change_is_ignored) {
    place p;
    begin(&p);
    CHECK(entries(&p) == 1 && chmod(p.file, 0620) == 0);
    CHECK(!is_read(&p, &key));
    CHECK(chmod(p.file, 0602) == 0 && !is_read(&p, &key));
    CHECK(chmod(p.file, 0600) == 0 && is_read(&p, &key));
    end(&p);
}

/* Only root can give a file away, and root's are everyone's to read. */
TEST(cache__what_another_user_owns_is_ignored) {
    place p;
    begin(&p);
    CHECK_EQ_INT(entries(&p), 1);
    if (chown(p.file, 12345, (gid_t)-1) == 0) {
        CHECK(!is_read(&p, &key));
        CHECK(chown(p.file, geteuid(), (gid_t)-1) == 0 && is_read(&p, &key));
        CHECK(chown(p.folder, 12345, (gid_t)-1) == 0 && !is_read(&p, &key));
    }
    end(&p);
}

TEST(cache__what_is_not_a_plain_file_is_ignored) {
    place p;
    char aside[128];
    begin(&p);
    CHECK_EQ_INT(entries(&p), 1);
    (void)snprintf(aside, sizeof aside, "%s-aside", p.folder);
    CHECK(rename(p.file, aside) == 0 && symlink(aside, p.file) == 0);
    CHECK(!is_read(&p, &key));
    CHECK(remove(p.file) == 0 && mkfifo(p.file, 0600) == 0 && !is_read(&p, &key));
    CHECK(remove(p.file) == 0 && mkdir(p.file, 0700) == 0 && !is_read(&p, &key));
    oct_cache_write(p.folder, &key, &p.cubin);
    CHECK_EQ_INT(entries(&p), 1); /* the folder in the way stays, nothing beside it */
    CHECK_EQ_INT(remove(aside), 0);
    end(&p);
}

TEST(cache__a_folder_is_made_for_this_user_with_those_above_it) {
    place p, inner;
    struct stat about;
    begin(&p);
    inner = p;
    (void)snprintf(inner.folder, sizeof inner.folder, "%.50s/a/b", p.folder);
    oct_cache_write(inner.folder, &key, &p.cubin);
    CHECK(is_read(&inner, &key));
    CHECK(stat(inner.folder, &about) == 0 && (about.st_mode & 0777) == 0700);
    end(&inner);
    (void)snprintf(inner.folder, sizeof inner.folder, "%.50s/a", p.folder);
    end(&inner);
    end(&p);
}

TEST(cache__a_folder_that_cannot_be_made_is_ignored) {
    place p, inner;
    begin(&p);
    CHECK_EQ_INT(entries(&p), 1);
    inner = p;
    (void)snprintf(inner.folder, sizeof inner.folder, "/dev/null/x");
    oct_cache_write(inner.folder, &key, &p.cubin);
    CHECK(!is_read(&inner, &key));
    CHECK_EQ_INT(chmod(p.folder, 0500), 0); /* root may write all the same */
    oct_cache_write(p.folder, &key, &p.cubin);
    CHECK(is_read(&p, &key));
    CHECK_EQ_INT(chmod(p.folder, 0700), 0);
    end(&p);
}

/* A file may have no more than 200 bytes, as if the disk were full behind them. */
TEST(cache__a_full_disk_keeps_what_there_was_and_no_part_of_a_file) {
    place p;
    struct rlimit was, small;
    begin(&p);
    CHECK_EQ_INT(getrlimit(RLIMIT_FSIZE, &was), 0);
    small = was;
    small.rlim_cur = 200;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    CHECK_EQ_INT(setrlimit(RLIMIT_FSIZE, &small), 0);
    oct_cache_write(p.folder, &key, &p.cubin);
    bool kept = entries(&p) == 1 && is_read(&p, &key);
    bool none = remove(p.file) == 0;
    oct_cache_write(p.folder, &key, &p.cubin);
    none = none && entries(&p) == 0 && !is_read(&p, &key);
    CHECK_EQ_INT(setrlimit(RLIMIT_FSIZE, &was), 0);
    (void)signal(SIGXFSZ, handler);
    CHECK(kept && none);
    oct_cache_write(p.folder, &key, &p.cubin);
    CHECK(is_read(&p, &key));
    end(&p);
}

TEST(cache__what_a_killed_writer_left_is_removed_after_an_hour) {
    static const char *const others[] = {".new-a1B2c", ".new-a1B2c3d", ".new-a1B2c-",
                                         "new-a1B2c3", ".old-a1B2c3"};
    place p;
    char path[160];
    begin(&p);
    CHECK_EQ_INT(entries(&p), 1);
    leave(&p, ".new-a1B2c3", 7200);
    leave(&p, ".new-ZZZZZZ", 7200);
    leave(&p, ".new-000000", 1800);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        leave(&p, others[i], 7200);
    }
    (void)snprintf(path, sizeof path, "%s/.new-folder", p.folder);
    CHECK_EQ_INT(mkdir(path, 0700), 0);
    leave(&p, ".new-folder", 7200);
    (void)snprintf(path, sizeof path, "%s/.new-linked", p.folder);
    CHECK_EQ_INT(symlink(p.file, path), 0);
    leave(&p, ".new-linked", 7200);
    oct_cache_write(p.folder, &key, &p.cubin);
    CHECK(!has(&p, ".new-a1B2c3") && !has(&p, ".new-ZZZZZZ") && is_read(&p, &key));
    CHECK(has(&p, ".new-000000") && has(&p, ".new-folder") && has(&p, ".new-linked"));
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        CHECK_OF(has(&p, others[i]), others[i]);
    }
    end(&p);
}

/* Only root can give a file away. */
TEST(cache__what_another_writer_left_is_left) {
    place p;
    char path[160];
    begin(&p);
    CHECK_EQ_INT(entries(&p), 1);
    leave(&p, ".new-a1B2c3", 7200);
    (void)snprintf(path, sizeof path, "%s/.new-a1B2c3", p.folder);
    bool given = chown(path, 12345, (gid_t)-1) == 0;
    oct_cache_write(p.folder, &key, &p.cubin);
    CHECK_EQ_INT(has(&p, ".new-a1B2c3"), given);
    end(&p);
}

TEST(cache__two_builds_of_one_version_of_the_compiler_are_two_keys) {
    oct_compiler compiler = {.major = 13, .minor = 0, .build = "65be0db3"};
    oct_compile what = {.source = oct_module_source("amax"), .arch = "sm_90a"};
    oct_cache_key one = {.module = "amax"}, other = one;
    oct_compiler_key(&one, &compiler, &what, 13000);
    CHECK(strstr(one.facts, "\nnvrtc 13.0\n") && strstr(one.facts, "\nbuild 65be0db3\n"));
    compiler.build[0] = '7';
    oct_compiler_key(&other, &compiler, &what, 13000);
    CHECK(strcmp(one.facts, other.facts) != 0);
}

/* libc's, and that of this program, which are not one. */
TEST(cache__a_build_is_that_of_the_library_that_has_the_function) {
    char ours[OCT_BUILD_TEXT], libc[OCT_BUILD_TEXT], again[OCT_BUILD_TEXT], little[8];
    oct_build_id(ours, sizeof ours, (const void *)(uintptr_t)slurp);
    oct_build_id(libc, sizeof libc, (const void *)(uintptr_t)fopen);
    oct_build_id(again, sizeof again, (const void *)(uintptr_t)fclose);
    oct_build_id(little, sizeof little, (const void *)(uintptr_t)fopen);
    CHECK(ours[0] && libc[0] && strcmp(ours, libc) != 0);
    CHECK_EQ_STR(libc, again);
    CHECK(strlen(little) < sizeof little && strncmp(little, libc, strlen(little)) == 0);
    oct_build_id(ours, sizeof ours, NULL);
    CHECK_EQ_STR(ours, "");
}

static void *write_often(void *arg) {
    place *p = arg;
    for (int i = 0; i < 200; i++) {
        oct_cache_write(p->folder, &key, &p->cubin);
    }
    return NULL;
}

TEST(cache__a_reader_sees_the_whole_file_whoever_writes_it) {
    place p;
    pthread_t writers[2];
    begin(&p);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_INT(pthread_create(&writers[i], NULL, write_often, &p), 0);
    }
    for (int i = 0; i < 400; i++) {
        CHECK(is_read(&p, &key));
    }
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_INT(pthread_join(writers[i], NULL), 0);
    }
    CHECK_EQ_INT(entries(&p), 1);
    end(&p);
}

TEST(cache__the_folder_is_the_first_that_is_named) {
    char folder[OCT_CACHE_PATH];
    CHECK(setenv("OCTET_CACHE", "/a", 1) == 0 && setenv("XDG_CACHE_HOME", "/b", 1) == 0 &&
          setenv("HOME", "/c", 1) == 0);
    CHECK(oct_cache_folder(folder, "/given") && strcmp(folder, "/given") == 0);
    CHECK(!oct_cache_folder(folder, ""));
    CHECK(oct_cache_folder(folder, NULL) && strcmp(folder, "/a") == 0);
    CHECK(setenv("OCTET_CACHE", "", 1) == 0 && !oct_cache_folder(folder, NULL));
    CHECK(unsetenv("OCTET_CACHE") == 0 && oct_cache_folder(folder, NULL));
    CHECK_EQ_STR(folder, "/b/octet");
    CHECK(setenv("XDG_CACHE_HOME", "relative", 1) == 0 && oct_cache_folder(folder, NULL));
    CHECK_EQ_STR(folder, "/c/.cache/octet");
    CHECK(unsetenv("HOME") == 0 && !oct_cache_folder(folder, NULL));
}

/* FIPS 180-4's examples, and the lengths where the padding takes another block. */
TEST(cache__the_hash_is_sha256) {
    static const struct {
        const char *text, *sum;
        int times;
    } cases[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", 1},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", 1},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1", 1},
        {"a", "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318", 55},
        {"a", "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb", 64},
        {"a", "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0", 1000000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        oct_sha256 hash;
        char sum[OCT_SHA256_TEXT];
        oct_sha256_start(&hash);
        for (int n = 0; n < cases[i].times; n++) {
            oct_sha256_add(&hash, cases[i].text, strlen(cases[i].text));
        }
        oct_sha256_text(sum, &hash);
        CHECK_EQ_STR(sum, cases[i].sum);
    }
}

TEST_MAIN(cache__what_was_written_is_read_and_nothing_else_is_left,
          cache__other_facts_are_another_module,
          cache__a_file_under_a_name_that_is_not_its_own_is_ignored,
          cache__a_file_that_ends_early_is_ignored_wherever_it_ends,
          cache__a_file_with_a_wrong_byte_is_ignored_wherever_it_is,
          cache__a_folder_that_anyone_may_change_is_not_used,
          cache__a_folder_that_a_group_may_change_is_not_used,
          cache__a_file_that_others_may_change_is_ignored,
          cache__what_another_user_owns_is_ignored, cache__what_is_not_a_plain_file_is_ignored,
          cache__a_folder_is_made_for_this_user_with_those_above_it,
          cache__a_folder_that_cannot_be_made_is_ignored,
          cache__a_full_disk_keeps_what_there_was_and_no_part_of_a_file,
          cache__what_a_killed_writer_left_is_removed_after_an_hour,
          cache__what_another_writer_left_is_left,
          cache__two_builds_of_one_version_of_the_compiler_are_two_keys,
          cache__a_build_is_that_of_the_library_that_has_the_function,
          cache__a_reader_sees_the_whole_file_whoever_writes_it,
          cache__the_folder_is_the_first_that_is_named, cache__the_hash_is_sha256)
