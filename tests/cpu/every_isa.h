/* every_isa.h - a main that runs every law once per instruction set the machine has.
 *
 * The set is chosen once per process, so each run is a child with OCTET_CPU set. */
#ifndef OCTET_TEST_CPU_EVERY_ISA_H
#define OCTET_TEST_CPU_EVERY_ISA_H

#define _POSIX_C_SOURCE 200809L

#include "cpu/isa.h"
#include "test.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define CPU_TEST_MAIN(...)                                                                     \
    int main(int argc, char **argv) {                                                          \
        static const test_case *const cases[] = {__VA_ARGS__};                                 \
        return cpu_test_main(cases, sizeof cases / sizeof cases[0], argc > 1 ? argv[1] : "");  \
    }

/* 0: passed; 1: failed; 2: the machine does not have it. */
static inline int cpu_test_child(const char *isa, const test_case *const *cases, size_t count,
                                 const char *filter) {
    setenv("OCTET_CPU", isa, 1);
    if (strcmp(oct_cpu_name(), isa) != 0) {
        return 2;
    }
    printf("%s:\n", isa);
    return test_main(cases, count, filter);
}

static inline int cpu_test_main(const test_case *const *cases, size_t count,
                                const char *filter) {
    int failed = 0, ran = 0;
    for (int isa = 0; oct_isa_name(isa); isa++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            exit(cpu_test_child(oct_isa_name(isa), cases, count, filter));
        }
        int status = 0;
        bool ended = child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status);
        int code = ended ? WEXITSTATUS(status) : 1;
        if (!ended) {
            printf("FAILED: the run of %s did not end by itself\n", oct_isa_name(isa));
        }
        failed += code == 1;
        ran += code == 0;
    }
    return failed > 0 || ran == 0;
}

#endif
