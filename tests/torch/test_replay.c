/* test_replay.c - which runs are captured, and that no other run is taken for one of them. */
#define _GNU_SOURCE /* setenv */
#include "torch/replay.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/api.h"
#include "fake_cuda.h"
#include "test.h"
#include "torch/plan_cache.h"

#define MEMORY 8192
#define OUTPUTS 2

static fake_cuda *fake;

/* A GPU for the whole program, as torch's is: graphs are cached for it. */
static octet_exec exec_of(void) {
    static octet_cuda *cuda;
    octet_exec exec = OCTET_EXEC_INIT;
    octet_cuda_options options = OCTET_CUDA_OPTIONS_INIT;
    octet_error err = {OCTET_OK, 0, ""};
    if (!cuda) {
        fake_cuda_get *get = NULL;
        void *found = dlsym(dlopen(TEST_FAKE_CUDA, RTLD_NOW), "fake_cuda_counts");
        memcpy(&get, &found, sizeof found);
        fake = get();
        fake->memory_mib = 140 << 10;
        options.cache = "";
        CHECK_EQ_INT(setenv("OCTET_CUDA_DRIVER", TEST_FAKE_CUDA, 1), 0);
        CHECK_OF(octet_cuda_open(&cuda, &options, &err) == OCTET_OK, err.text);
    }
    fake->launches = fake->graph_launches = fake->graph_nodes = 0;
    exec.cuda = cuda;
    return exec;
}

/* Two launches: an amax and a cast. */
static const octet_plan *plan_of(int64_t rows) {
    const octet_plan *plan = NULL;
    oct_request request = {.kind = OCTET_PLAN_QUANTIZE,
                           .text = "bf16 fp8-tensor:e4m3+row",
                           .sizes = {rows, 32},
                           .rank = 2,
                           .threads = 1,
                           .device = {OCTET_CUDA, 0, 90}};
    octet_error err = {OCTET_OK, 0, ""};
    CHECK_OF(oct_plan_get(&plan, &request, &err) == OCTET_OK, err.text);
    CHECK(plan->out_count == OUTPUTS && plan->workspace_bytes <= MEMORY);
    return plan;
}

/* Memory for such a plan, `at` apart from that of other numbers. Nothing is written there. */
static octet_memory memory_at(int at, const octet_plan *plan) {
    static _Alignas(256) unsigned char bytes[MEMORY * (2 + OUTPUTS) + 8192 * 64];
    octet_memory memory = OCTET_MEMORY_INIT;
    unsigned char *base = bytes + (size_t)at * 64;
    memory.args[0] = base;
    memory.workspace = base + MEMORY;
    memory.workspace_bytes = plan->workspace_bytes;
    for (int i = 0; i < OUTPUTS; i++) {
        memory.outs[i] = base + MEMORY * (2 + i);
    }
    return memory;
}

static void run(const octet_plan *plan, const octet_memory *memory,
                const octet_delayed *updates, const octet_exec *exec) {
    const oct_run it = {plan, memory, updates};
    octet_error err = {OCTET_OK, 0, ""};
    CHECK_OF(oct_replay_run(&it, exec, &err) == OCTET_OK, err.text);
}

static void times(int count, int at, int64_t rows, const octet_exec *exec) {
    const octet_plan *plan = plan_of(rows);
    octet_memory memory = memory_at(at, plan);
    for (int i = 0; i < count; i++) {
        run(plan, &memory, NULL, exec);
    }
    oct_plan_release(plan);
}

TEST(replay__from_the_fourth_time_on) {
    octet_exec exec = exec_of();
    oct_replay_counts before = oct_replay_count();
    times(3, 0, 16, &exec);
    CHECK(fake->launches == 6 && fake->graph_launches == 0);
    times(1, 0, 16, &exec);
    CHECK(fake->launches == 6 && fake->graph_launches == 1 && fake->graph_nodes == 2);
    times(5, 0, 16, &exec);
    CHECK(fake->launches == 6 && fake->graph_launches == 6 && fake->graph_nodes == 12);
    oct_replay_counts after = oct_replay_count();
    CHECK(after.graphs == before.graphs + 1 && after.replays == before.replays + 6);
    CHECK(oct_replay_allow(false));
    times(2, 0, 16, &exec);
    CHECK(fake->launches == 10 && fake->graph_launches == 6);
    CHECK(!oct_replay_allow(true));
    times(1, 0, 16, &exec);
    CHECK(fake->launches == 10 && fake->graph_launches == 7);
}

/* Sizes that come once have no list; one is made by their second run, whatever the addresses.
 */
TEST(replay__a_plan_is_prepared_by_its_second_run) {
    octet_exec exec = exec_of();
    int before = oct_plan_count().prepared;
    const octet_plan *plan = plan_of(48);
    octet_memory first = memory_at(0, plan), second = memory_at(1, plan);
    first.args[0] = NULL;
    const oct_run bad = {plan, &first, NULL};
    CHECK_EQ_INT(oct_replay_run(&bad, &exec, NULL), OCTET_INVALID);
    first = memory_at(0, plan);
    run(plan, &first, NULL, &exec);
    CHECK_EQ_INT(oct_plan_count().prepared, before);
    run(plan, &second, NULL, &exec);
    CHECK_EQ_INT(oct_plan_count().prepared, before + 1);
    run(plan, &first, NULL, &exec);
    CHECK_EQ_INT(oct_plan_count().prepared, before + 1);
    CHECK_EQ_INT(fake->launches, 6);
    CHECK_EQ_INT(
        oct_replay_run(&(oct_run){plan, &(octet_memory){.size = 8}, NULL}, &exec, NULL),
        OCTET_INVALID);
    oct_plan_release(plan);
}

/* Another plan, any other address or stride, or a state that is updated: another run. */
TEST(replay__of_nothing_else) {
    octet_exec exec = exec_of();
    float numbers[16] = {0};
    octet_delayed state = OCTET_DELAYED_INIT, later;
    state.format = OCTET_E4M3;
    state.length = 4;
    state.slots = 3;
    state.scale = numbers;
    state.history = numbers + 4;
    later = state;
    later.margin = 1;
    const octet_plan *plan = plan_of(24), *other = plan_of(25);
    octet_memory usual = memory_at(100, plan);
    octet_memory others[] = {usual, usual, usual, usual, usual};
    others[1].args[0] = (const char *)usual.args[0] + 64;
    others[2].outs[1] = (char *)usual.outs[1] + 64;
    others[3].workspace = (char *)usual.workspace + 64;
    others[4].arg_strides[0] = 40;
    for (int i = 0; i < 5; i++) {
        run(plan, &usual, NULL, &exec);
    }
    CHECK(fake->launches == 6 && fake->graph_launches == 2);
    for (int i = 0; i < 5; i++) {
        run(i ? plan : other, &others[i], NULL, &exec);
        CHECK(fake->launches == 6 + 2 * (i + 1) && fake->graph_launches == 2);
    }
    fake->graph_nodes = 0;
    for (int i = 0; i < 8; i++) { /* three launches each; the fourth of either is replayed */
        run(plan, &usual, i < 4 ? &state : &later, &exec);
        CHECK_EQ_INT(fake->launches, 16 + 3 * (i + 1 - (i >= 3) - (i == 7)));
    }
    CHECK(fake->graph_launches == 4 && fake->graph_nodes == 6);
    run(plan, &usual, NULL, &exec);
    CHECK(fake->graph_launches == 5 && fake->graph_nodes == 8);
    oct_plan_release(plan);
    oct_plan_release(other);
}

TEST(replay__not_into_a_capture) {
    octet_exec exec = exec_of();
    fake->is_capturing = 1;
    times(5, 200, 16, &exec);
    CHECK(fake->launches == 10 && fake->graph_launches == 0);
    fake->is_capturing = 0;
    times(5, 200, 16, &exec);
    CHECK(fake->launches == 16 && fake->graph_launches == 2);
    fake->is_capturing = 1;
    times(1, 200, 16, &exec);
    CHECK(fake->launches == 18 && fake->graph_launches == 2);
    fake->is_capturing = 0;
}

/* What cannot be captured is tried once; it runs all the same, and its errors are told. */
TEST(replay__where_capturing_fails_runs_are_launched) {
    octet_exec exec = exec_of();
    fake->graph_result = OCT_CU_OUT_OF_MEMORY;
    times(5, 300, 16, &exec);
    fake->graph_result = 0;
    times(5, 300, 16, &exec);
    CHECK(fake->launches == 20 && fake->graph_launches == 0);
    times(4, 301, 16, &exec);
    CHECK_EQ_INT(fake->graph_launches, 1);
    const octet_plan *plan = plan_of(16);
    octet_memory memory = memory_at(301, plan);
    const oct_run it = {plan, &memory, NULL};
    octet_error err = {OCTET_OK, 0, ""};
    fake->launch_result = 700;
    CHECK_EQ_INT(oct_replay_run(&it, &exec, &err), OCTET_DEVICE);
    CHECK(strstr(err.text, "cuGraphLaunch") != NULL);
    fake->launch_result = 0;
    CHECK_EQ_INT(oct_replay_run(&it, &exec, &err), OCTET_OK);
    oct_plan_release(plan);
}

/* More runs in a step than there are places: those that have one keep it. Those that nobody
 * asks for any more make room. After all other tests, since it leaves no place free. */
TEST(replay__is_bounded) {
    octet_exec exec = exec_of();
    const octet_plan *plan = plan_of(16);
    int most = 0;
    for (int step = 0; step < 7; step++) {
        fake->graph_launches = 0;
        for (int at = 1000; at < 4500; at++) {
            octet_memory memory = memory_at(at, plan);
            run(plan, &memory, NULL, &exec);
        }
        CHECK(oct_replay_count().graphs <= OCT_GRAPHS);
        CHECK(step < 5 || fake->graph_launches >= most);
        most = fake->graph_launches;
    }
    printf("%d of 3500 runs are replayed\n", most);
    CHECK(most > 1500 && most <= OCT_GRAPHS);
    CHECK_EQ_INT(fake->graph_execs, oct_replay_count().graphs);
    for (int step = 0; step < 300; step++) {
        fake->graph_launches = 0;
        for (int at = 5000; at < 6024; at++) {
            octet_memory memory = memory_at(at, plan);
            run(plan, &memory, NULL, &exec);
        }
    }
    printf("then %d of 1024\n", (int)fake->graph_launches);
    CHECK(fake->graph_launches > 900);
    CHECK_EQ_INT(fake->graph_execs, oct_replay_count().graphs);
    oct_plan_release(plan);
}

/* Those that never come again keep no others out. */
TEST(replay__after_many_runs_that_came_once) {
    octet_exec exec = exec_of();
    const octet_plan *plan = plan_of(40);
    for (int at = 0; at < 8000; at++) {
        octet_memory memory = memory_at(at, plan);
        run(plan, &memory, NULL, &exec);
    }
    CHECK(fake->launches == 16000 && fake->graph_launches == 0);
    times(10, 6200, 40, &exec);
    CHECK(fake->graph_launches == 7 || fake->graph_launches == 8); /* it is one of those */
    oct_plan_release(plan);
}

/* A plan that its table has pushed out stays with its graph, so that no other gets its
 * address. */
TEST(replay__pins_its_plan) {
    octet_exec exec = exec_of();
    times(5, 6100, 16, &exec);
    CHECK_EQ_INT(fake->graph_launches, 2);
    for (int64_t rows = 100; rows < 100 + 30 * OCT_CACHED_PLANS; rows++) {
        oct_plan_release(plan_of(rows));
    }
    fake->launches = fake->graph_launches = 0;
    times(2, 6100, 16, &exec); /* made anew: not that plan */
    CHECK(fake->launches == 4 && fake->graph_launches == 0);
}

typedef struct some_runs {
    octet_exec exec;
    const octet_plan *plan;
    int failures;
} some_runs;

static void *run_some(void *arg) {
    some_runs *some = arg;
    for (int i = 0; i < 4000; i++) {
        octet_memory memory = memory_at(7000 + i % 64, some->plan);
        const oct_run it = {some->plan, &memory, NULL};
        some->failures += oct_replay_run(&it, &some->exec, NULL) != OCTET_OK;
    }
    return NULL;
}

TEST(replay__by_many_threads) {
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    some_runs runs[THREADS];
    octet_exec exec = exec_of();
    const octet_plan *plan = plan_of(16);
    for (int i = 0; i < THREADS; i++) {
        runs[i] = (some_runs){exec, plan, 0};
        CHECK_EQ_INT(pthread_create(&threads[i], NULL, run_some, &runs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK_EQ_INT(pthread_join(threads[i], NULL), 0);
        CHECK_EQ_INT(runs[i].failures, 0);
    }
    oct_plan_release(plan);
    CHECK_EQ_INT(fake->launches / 2 + fake->graph_launches, THREADS * 4000);
    CHECK(fake->graph_launches > 0);
    CHECK_EQ_INT(fake->graph_execs, oct_replay_count().graphs);
    CHECK_EQ_INT(fake->homeless, 0);
}

/* Before any other test: what is wanted is asked once. */
TEST(replay__only_where_it_is_wanted) {
    static const char *const cases[][2] = {{"OCTET_CUDA_REPLAY", "0"},
                                           {"OCTET_CUDA_REPLAY", "1"},
                                           {"CUDA_LAUNCH_BLOCKING", "1"},
                                           {"CUDA_LAUNCH_BLOCKING", "0"}};
    static const int replays[] = {0, 2, 0, 2};
    for (int i = 0; i < 4; i++) {
        pid_t child = fork();
        if (!child) {
            (void)setenv(cases[i][0], cases[i][1], 1);
            octet_exec exec = exec_of();
            times(5, 0, 16, &exec);
            _exit(fake->graph_launches == replays[i] ? 0 : 1);
        }
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
}

TEST_MAIN(replay__only_where_it_is_wanted, replay__from_the_fourth_time_on,
          replay__a_plan_is_prepared_by_its_second_run, replay__of_nothing_else,
          replay__not_into_a_capture, replay__where_capturing_fails_runs_are_launched,
          replay__after_many_runs_that_came_once, replay__pins_its_plan,
          replay__by_many_threads, replay__is_bounded)
