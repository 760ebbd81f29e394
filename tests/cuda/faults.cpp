/* faults.cpp - stands between the library and what it calls: counts, and fails when told to.
 *
 * The linker sends the library's dlsym, malloc, calloc, realloc and free here (--wrap). */
#include "faults.h"

#include "cuda/api.h"

#include <atomic>
#include <stddef.h>
#include <string.h>

extern "C" {
void *__real_dlsym(void *handle, const char *name);
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *at, size_t bytes);
void __real_free(void *at);
/* A sanitizer's runtime is a shared library that calls them, too: they are visible to it. */
#pragma GCC visibility push(default)
void *__wrap_dlsym(void *handle, const char *name);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *at, size_t bytes);
void __wrap_free(void *at);
#pragma GCC visibility pop
}

namespace {

std::atomic<int> kinds;
std::atomic<long> count, fail_at, alive;
std::atomic<const char *> hit;

bool fails(int kind, const char *name) {
    if (!(kinds & kind) || ++count != fail_at) {
        return false;
    }
    hit = name;
    return true;
}

/* What makes a thing, and what ends one. A call that ends things does so even where it tells of
 * an error: it is an earlier one's. */
const char *const makers[] = {"cuDevicePrimaryCtxRetain", "cuModuleLoadData",
                              "cuStreamCreate",           "cuGraphInstantiateWithFlags",
                              "nvrtcCreateProgram",       "cublasLtCreate",
                              "cuStreamEndCapture",       "cuCtxPushCurrent_v2"};
const char *const enders[] = {"cuDevicePrimaryCtxRelease_v2",
                              "cuModuleUnload",
                              "cuStreamDestroy_v2",
                              "cuGraphExecDestroy",
                              "nvrtcDestroyProgram",
                              "cublasLtDestroy",
                              "cuGraphDestroy",
                              "cuCtxPopCurrent_v2"};

bool is_one_of(const char *const (&names)[8], const char *name) {
    for (const char *one : names) {
        if (strcmp(one, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Not out of memory, which has a status of its own: any error. */
int code_of(const char *name) {
    return strncmp(name, "cu", 2) == 0 && strncmp(name, "cublas", 6) != 0 ? 999
           : strncmp(name, "nvrtc", 5) == 0                               ? 11
                                                                          : 14;
}

/* A capture that fails ends all the same, without a graph. */
int (*destroy_graph)(void *graph);
template <class... A> void drop_graph(A...) {
}
[[maybe_unused]] void drop_graph(void *, void **graph) {
    destroy_graph(*graph);
    *graph = nullptr;
}

template <int N, class T> struct between;

/* Only calls that return a status can fail. */
template <int N, class... A> struct between<N, int(A...)> {
    static constexpr bool counts = true;
    static const char *name;
    static int (*real)(A...);
    static int call(A... values) {
        bool ends = is_one_of(enders, name), failed = fails(FAULT_CALLS, name);
        bool ends_capture = strcmp(name, "cuStreamEndCapture") == 0;
        if (failed && !ends && !ends_capture) {
            return code_of(name);
        }
        int result = real(values...);
        if (failed && ends_capture) {
            drop_graph(values...);
        } else if (result == 0) {
            alive += is_one_of(makers, name) ? 1 : ends ? -1 : 0;
        }
        return failed ? code_of(name) : result;
    }
};
template <int N, class... A> const char *between<N, int(A...)>::name;
template <int N, class... A> int (*between<N, int(A...)>::real)(A...);

/* A text, a version: as it is. */
template <int N, class R, class... A> struct between<N, R(A...)> {
    static constexpr bool counts = false;
};

template <class B> void *put_between(const char *name, void *found) {
    if constexpr (B::counts) {
        auto call = B::call;
        B::name = name;
        memcpy(&B::real, &found, sizeof found);
        memcpy(&found, &call, sizeof found);
    }
    return found;
}

} // namespace

void *__wrap_dlsym(void *handle, const char *name) {
    void *found = __real_dlsym(handle, name);
    if (strcmp(name, "cuGraphDestroy") == 0) {
        memcpy(&destroy_graph, &found, sizeof found);
    }
#define X(function, parameters)                                                                \
    if (found && strcmp(name, #function) == 0) {                                               \
        return put_between<between<__COUNTER__, int parameters>>(#function, found);            \
    }
    OCT_DRIVER_CALLS(X)
#undef X
#define X(result, function, parameters)                                                        \
    if (found && strcmp(name, #function) == 0) {                                               \
        return put_between<between<__COUNTER__, result parameters>>(#function, found);         \
    }
    OCT_NVRTC_CALLS(X)
    OCT_CUBLASLT_CALLS(X)
#undef X
    return found;
}

void *__wrap_malloc(size_t bytes) {
    void *at = fails(FAULT_MEMORY, "malloc") ? nullptr : __real_malloc(bytes);
    alive += at && kinds;
    return at;
}

void *__wrap_calloc(size_t number, size_t bytes) {
    void *at = fails(FAULT_MEMORY, "calloc") ? nullptr : __real_calloc(number, bytes);
    alive += at && kinds;
    return at;
}

void *__wrap_realloc(void *was, size_t bytes) {
    void *at = fails(FAULT_MEMORY, "realloc") ? nullptr : __real_realloc(was, bytes);
    alive += at && !was && kinds;
    return at;
}

void __wrap_free(void *at) {
    alive -= at && kinds;
    __real_free(at);
}

void faults_begin(int which, long at) {
    hit = nullptr;
    count = 0;
    fail_at = at;
    kinds = which;
}

long faults_end(void) {
    kinds = 0;
    return count;
}

const char *faults_hit(void) {
    return hit;
}

long faults_alive(void) {
    return alive;
}
