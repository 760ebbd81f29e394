/* test_golden_plans.c - plans stay what they were: digests by problem, in
 * tests/golden/plans.txt.
 *
 * A digest that changed is a plan that another release makes otherwise: other buffers, another
 * order, other bytes. If that is meant, say so in the changelog and renew the file:
 *
 *     build/tests/linear/test_golden_plans --renew */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "octet.h"
#include "test.h"

#define LINE 512

/* The path of the file beside tests/linear. */
static void path_of(char *path, size_t size) {
    const char *here = __FILE__, *end = strstr(here, "linear/test_golden_plans.c");
    (void)snprintf(path, size, "%.*sgolden/plans.txt", (int)(end - here), here);
}

/* Of all plans of a problem, one after the other; 0: the problem has none. */
static uint64_t digest_of(const char *problem, octet_error *err) {
    octet_linear_backward_args args = OCTET_LINEAR_BACKWARD_ARGS_INIT;
    octet_linear_args forward;
    static octet_chain chain;
    bool backward = strncmp(problem, "linear-backward", 15) == 0;
    octet_status status = backward ? octet_linear_backward_parse(&args, problem, err)
                                   : octet_linear_parse(&forward, problem, err);
    if (!status && !backward) {
        status = octet_linear_backward_make(&args, &forward, err);
    }
    status = status ? status : octet_plan_chain(&chain, &args, err);
    uint64_t digest = 0;
    for (int i = 0; !status && i < chain.count; i++) {
        digest = digest * 0x9e3779b97f4a7c15u + octet_plan_hash(&chain.plans[i]);
    }
    return digest;
}

/* A line without its digest and its end, if it is a problem; NULL: a comment or nothing. */
static char *problem_in(char *line) {
    line[strcspn(line, "\n")] = '\0';
    char *at = strstr(line, "linear");
    return line[0] == '#' ? NULL : at;
}

TEST(golden_plans__digests_stay) {
    char path[LINE], line[LINE];
    path_of(path, sizeof path);
    FILE *file = fopen(path, "r");
    int count = 0;
    if (!CHECK_OF(file, path)) {
        return;
    }
    while (fgets(line, sizeof line, file)) {
        octet_error err = {OCTET_OK, 0, ""};
        const char *problem = problem_in(line);
        if (problem) {
            uint64_t digest = digest_of(problem, &err), kept = strtoull(line, NULL, 16);
            count++;
            test_report(digest == kept, TEST_HERE("the plan is the golden one"),
                        "%s: %016" PRIx64 " is not %016" PRIx64 " %s", problem, digest, kept,
                        err.text);
        }
    }
    (void)fclose(file);
    CHECK(count > 100);
}

/* Any byte of a plan moves its digest, and so does the number of plans. */
TEST(golden_plans__digests_tell_plans_apart) {
    static const char *const problems[] = {
        "linear m=40 k=48 n=56 in=bf16 recipe=mxfp8",
        "linear m=41 k=48 n=56 in=bf16 recipe=mxfp8",
        "linear m=40 k=48 n=56 in=bf16 recipe=mxfp8 grad=none",
        "linear m=40 k=48 n=56 in=bf16 recipe=mxfp8+batch_invariant",
        "linear m=40 k=48 n=56 in=bf16 recipe=mxfp8 device=cuda:0/90",
    };
    for (int i = 0; i < 5; i++) {
        for (int j = 0; j < i; j++) {
            CHECK(digest_of(problems[i], NULL) != digest_of(problems[j], NULL));
        }
    }
}

/* Writes the file anew with the digests of this build; its comments and problems stay. */
static int renew(void) {
    char path[LINE], line[LINE];
    char *text = malloc(1 << 20);
    size_t length = 0;
    path_of(path, sizeof path);
    FILE *file = text ? fopen(path, "r") : NULL;
    while (file && fgets(line, sizeof line, file)) {
        const char *problem = problem_in(line);
        octet_error err = {OCTET_OK, 0, ""};
        uint64_t digest = problem ? digest_of(problem, &err) : 0;
        if (err.status) {
            printf("%s: %s\n", problem, err.text);
            return 1;
        }
        length += (size_t)(problem ? snprintf(text + length, 2 * LINE, "%016" PRIx64 " %s\n",
                                              digest, problem)
                                   : snprintf(text + length, 2 * LINE, "%s\n", line));
    }
    if (!file || fclose(file) || !(file = fopen(path, "w"))) {
        printf("%s cannot be read and written\n", path);
        return 1;
    }
    bool written = fwrite(text, 1, length, file) == length;
    written = fclose(file) == 0 && written;
    free(text);
    return !written;
}

int main(int argc, char **argv) {
    static const test_case *const cases[] = {golden_plans__digests_stay,
                                             golden_plans__digests_tell_plans_apart};
    if (argc > 1 && strcmp(argv[1], "--renew") == 0) {
        return renew();
    }
    return test_main(cases, sizeof cases / sizeof cases[0], argc > 1 ? argv[1] : "");
}
