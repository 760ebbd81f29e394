/* test_graph.c - launches captured as a graph: what is asked of the driver, and what it may
 * refuse. */
#define _XOPEN_SOURCE 700 /* setenv */
#include "fake_gpu.h"
#include "octet/graph.h"

/* Kernels, fills and copies to launch, and what the last one is to say. */
typedef struct asked {
    int kernels, fills, copies;
    octet_status status;
} asked;

static octet_status launch(const void *arg, const octet_exec *exec, octet_error *err) {
    const asked *a = arg;
    const oct_cuda_on on = {.cuda = exec->cuda, .stream = exec->stream};
    const oct_cuda_launch one = launch_of("some_kernel");
    static uint32_t words[4];
    octet_status status = OCTET_OK;
    for (int i = 0; i < a->kernels && !status; i++) {
        status = oct_cuda_launch_kernel(&on, &one, err);
    }
    for (int i = 0; i < a->fills && !status; i++) {
        status = oct_cuda_fill(&on, words, 7, 4, err);
    }
    for (int i = 0; i < a->copies && !status; i++) {
        status = oct_cuda_copy(&on, words, words + 2, 4, err);
    }
    return status ? status : a->status;
}

/* NULL where it fails. */
static octet_graph *capture(octet_cuda *cuda, const asked *a, octet_error *err) {
    octet_exec exec = OCTET_EXEC_INIT;
    octet_graph *graph = NULL;
    exec.cuda = cuda;
    octet_status status = octet_capture(&graph, launch, a, &exec, err);
    CHECK((status == OCTET_OK) == (graph != NULL));
    return graph;
}

TEST(graph__is_launched_as_one) {
    octet_cuda *cuda = begin("");
    octet_exec exec = OCTET_EXEC_INIT;
    exec.cuda = cuda;
    const asked three = {.kernels = 3};
    octet_graph *graph = capture(cuda, &three, NULL);
    CHECK(fake->launches == 0 && fake->graph_launches == 0);
    CHECK(fake->graphs == 0 && fake->graph_execs == 1 && fake->streams == 1);
    if (CHECK(graph != NULL)) {
        for (int i = 1; i <= 2; i++) {
            CHECK_EQ_INT(octet_replay(graph, &exec, NULL), OCTET_OK);
            CHECK(fake->graph_launches == i && fake->graph_nodes == 3 * i);
        }
        octet_graph *other = capture(cuda, &three, NULL);
        CHECK(fake->streams == 1 && fake->graph_execs == 2 && fake->launches == 0);
        octet_graph_free(other);
    }
    octet_graph_free(graph);
    octet_graph_free(NULL);
    CHECK_EQ_INT(fake->graph_execs, 0);
    end(cuda);
    CHECK_EQ_INT(fake->streams, 0);
}

/* And leaves nothing behind; the next one is captured. */
TEST(graph__of_what_cannot_be_is_none) {
    static const struct {
        asked launches;
        octet_status status;
        const char *text;
    } cases[] = {
        {{.kernels = 0}, OCTET_UNSUPPORTED, "launch 0 kernels"},
        {{.kernels = 257}, OCTET_UNSUPPORTED, "launch 257 kernels; a graph has 1 to 256"},
        {{.kernels = 3, .fills = 1}, OCTET_UNSUPPORTED, "1 of the 4 launches are fills"},
        {{.kernels = 1, .copies = 1}, OCTET_UNSUPPORTED, "1 of the 2 launches are fills"},
        {{.kernels = 2, .status = OCTET_INVALID}, OCTET_INVALID, ""},
    };
    const asked one = {.kernels = 1};
    octet_cuda *cuda = begin("");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        octet_error err = {OCTET_OK, 0, ""};
        CHECK(capture(cuda, &cases[i].launches, &err) == NULL);
        CHECK(!cases[i].text[0] || err.status == cases[i].status);
        CHECK_OF(strstr(err.text, cases[i].text) != NULL, err.text);
        CHECK(fake->graphs == 0 && fake->graph_execs == 0 && fake->launches == 0);
        CHECK(fake->fills == 0 && fake->copies == 0);
    }
    octet_error err = {OCTET_OK, 0, ""};
    fake->graph_result = OCT_CU_OUT_OF_MEMORY;
    CHECK(capture(cuda, &one, &err) == NULL && err.status == OCTET_NO_MEMORY);
    fake->graph_result = 0;
    fake->launch_result = 700;
    CHECK(capture(cuda, &one, NULL) == NULL);
    fake->launch_result = 0;
    CHECK(fake->graphs == 0 && fake->graph_execs == 0);
    octet_graph *graph = capture(cuda, &one, NULL);
    CHECK(graph != NULL);
    octet_graph_free(graph);
    end(cuda);
}

TEST(graph__bad_arguments_are_refused) {
    octet_cuda *cuda = begin(""), *other = NULL;
    octet_cuda_options options = OCTET_CUDA_OPTIONS_INIT;
    octet_exec exec = OCTET_EXEC_INIT, none = OCTET_EXEC_INIT;
    octet_error err = {OCTET_OK, 0, ""};
    octet_graph *graph = NULL;
    const asked one = {.kernels = 1};
    exec.cuda = cuda;
    CHECK_EQ_INT(octet_capture(NULL, launch, &one, &exec, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_capture(&graph, NULL, &one, &exec, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_capture(&graph, launch, &one, NULL, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_capture(&graph, launch, &one, &none, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "octet_cuda_open") != NULL && !graph);
    CHECK(!octet_is_captured(NULL) && !octet_is_captured(&none));
    CHECK_EQ_INT(octet_cuda_graphs(NULL), 1);
    graph = capture(cuda, &one, NULL);
    CHECK_EQ_INT(octet_replay(NULL, &exec, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_replay(graph, &none, &err), OCTET_INVALID);
    options.cache = "";
    CHECK_EQ_INT(octet_cuda_open(&other, &options, NULL), OCTET_OK);
    none.cuda = other;
    CHECK_EQ_INT(octet_replay(graph, &none, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "the graph is of GPU 0") != NULL);
    octet_cuda_close(other);
    octet_graph_free(graph);
    end(cuda);
}

TEST(graph__a_failed_launch_is_told) {
    octet_cuda *cuda = begin("");
    octet_exec exec = OCTET_EXEC_INIT;
    octet_error err = {OCTET_OK, 0, ""};
    const asked one = {.kernels = 1};
    exec.cuda = cuda;
    octet_graph *graph = capture(cuda, &one, NULL);
    fake->launch_result = 700;
    if (CHECK(graph != NULL)) {
        CHECK_EQ_INT(octet_replay(graph, &exec, &err), OCTET_DEVICE);
        CHECK(strstr(err.text, "cuGraphLaunch: CUDA_ERROR_ILLEGAL_ADDRESS") != NULL);
        CHECK(strstr(err.text, "launched earlier") != NULL);
        fake->launch_result = 0;
        CHECK_EQ_INT(octet_replay(graph, &exec, NULL), OCTET_OK);
    }
    octet_graph_free(graph);
    end(cuda);
}

TEST(graph__streams_that_are_captured_are_known) {
    octet_cuda *cuda = begin("");
    octet_exec exec = OCTET_EXEC_INIT;
    exec.cuda = cuda;
    CHECK(!octet_is_captured(&exec));
    fake->is_capturing = 1;
    CHECK(octet_is_captured(&exec));
    end(cuda);
}

TEST(graph__a_gpu_has_memory_for_so_many) {
    static const int64_t cases[][2] = {{0, 1}, {64, 1}, {24 << 10, 384}, {140 << 10, 2240}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        octet_cuda *cuda = NULL, *first = begin("");
        octet_cuda_options options = OCTET_CUDA_OPTIONS_INIT;
        options.cache = "";
        fake->memory_mib = (size_t)cases[i][0];
        CHECK_EQ_INT(octet_cuda_open(&cuda, &options, NULL), OCTET_OK);
        CHECK_EQ_INT(octet_cuda_graphs(cuda), cases[i][1]);
        octet_cuda_close(cuda);
        end(first);
    }
}

TEST_MAIN(graph__is_launched_as_one, graph__of_what_cannot_be_is_none,
          graph__bad_arguments_are_refused, graph__a_failed_launch_is_told,
          graph__streams_that_are_captured_are_known, graph__a_gpu_has_memory_for_so_many)
