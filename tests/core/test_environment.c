/* test_environment.c - what the environment may say, and to which programs. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/environment.h"
#include "test.h"

#define SAYS "OCTET_TEST_SAYS"
#define SEEN 3      /* how a program ends that sees the variable, */
#define UNSEEN 4    /* and one that does not */
#define FOREIGN 126 /* and what the kernel cannot run: an emulator runs this test */

TEST(environment__a_plain_program_reads_it) {
    CHECK_EQ_INT(setenv(SAYS, "yes", 1), 0);
    CHECK(oct_environment(SAYS) && strcmp(oct_environment(SAYS), "yes") == 0);
    CHECK_EQ_INT(unsetenv(SAYS), 0);
    CHECK(oct_environment(SAYS) == NULL);
}

/* A copy of this program that runs as another user. */
static bool copy_for_another(char *path) {
    struct stat about;
    int from = open("/proc/self/exe", O_RDONLY), to = mkstemp(path);
    bool made = from >= 0 && to >= 0 && fstat(from, &about) == 0;
    for (off_t at = 0; made && at < about.st_size;) {
        made = sendfile(to, from, &at, (size_t)(about.st_size - at)) > 0;
    }
    made = made && fchown(to, 65534, (gid_t)-1) == 0 && fchmod(to, 04755) == 0;
    (void)close(from);
    (void)close(to);
    return made;
}

static int status_of(const char *path) {
    pid_t child = fork();
    if (child == 0) {
        (void)execl(path, path, "--says", (char *)NULL);
        _exit(errno == ENOEXEC ? FOREIGN : 127);
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Only root can give a file away; file systems may ignore whose program it is. */
TEST(environment__a_program_with_another_users_rights_does_not) {
    char path[] = "/tmp/octet-environment-XXXXXX";
    bool made = copy_for_another(path);
    CHECK_EQ_INT(setenv(SAYS, "yes", 1), 0);
    int own = status_of("/proc/self/exe");
    if (made && own != FOREIGN) {
        int status = status_of(path);
        CHECK(status == UNSEEN || status == SEEN); /* the latter where rights are not given */
    }
    CHECK(own == SEEN || own == FOREIGN);
    CHECK_EQ_INT(unsetenv(SAYS), 0);
    (void)unlink(path);
}

/* Of a program that was started by the tests above: whether it sees the variable if, and only
 * if, its rights are its caller's. */
static int says(void) {
    bool seen = oct_environment(SAYS) != NULL, more = getauxval(AT_SECURE) != 0;
    return seen == more ? 1 : seen ? SEEN : UNSEEN;
}

int main(int argc, char **argv) {
    static const test_case *const cases[] = {
        environment__a_plain_program_reads_it,
        environment__a_program_with_another_users_rights_does_not};
    if (argc > 1 && strcmp(argv[1], "--says") == 0) {
        _exit(says()); /* a sanitizer that looks for leaks has not the rights to do so here */
    }
    return test_main(cases, sizeof cases / sizeof cases[0], argc > 1 ? argv[1] : "");
}
