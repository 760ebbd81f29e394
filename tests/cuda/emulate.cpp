/* emulate.cpp - runs a kernel over a grid, the threads of a block as fibers of one thread. */
#include "emulate.h"

#include "emulate_launch.h"
#include "emulate_watch.h"

#include <dlfcn.h>
#if defined(OCTET_WATCHED)
#include <link.h>
#endif
#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

/* ---- fibers: stacks that one thread of the machine changes between --------------------- */

/* Fibers of one thread cannot race with each other, and a clock for each would cost
 * ThreadSanitizer a hundred times what the kernels do: to it a launch is the launching
 * thread's. What changes from one fiber to another it does not see, so that its own stack has
 * nothing but what a launch both enters and leaves. */
#if defined(__clang__)
#define UNSEEN __attribute__((disable_sanitizer_instrumentation))
#else
#define UNSEEN __attribute__((no_sanitize_thread))
#endif

namespace {

constexpr int MOST_THREADS = 1024;
constexpr size_t STACK_BYTES = 256 << 10;
constexpr size_t GUARD_BYTES = 64 << 10;

struct fiber {
#if defined(__x86_64__)
    void *sp;
#else
    ucontext_t context;
#endif
    char *stack;
    size_t stack_bytes;
    void *fake; /* AddressSanitizer's own */
    const uint32_t *gate;
    uint32_t seen; /* it may go on when *gate is another */
    bool done, waited;
};

/* Those of a launch, and what waits for them to end; a second set for a launch that comes
 * between while another is under way. */
fiber sets[2][MOST_THREADS], outsides[2];
fiber *fibers = sets[0], *outside = &outsides[0];
fiber *current = outside, *before;

} // namespace

#if defined(__x86_64__)
extern "C" void emulated_change(void **save, void *to);
asm(".text\n"
    ".globl emulated_change\n"
    ".hidden emulated_change\n"
    ".type emulated_change, @function\n"
    "emulated_change:\n"
    "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n"
    "    pushq %r13\n    pushq %r14\n    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n    popq %r14\n    popq %r13\n"
    "    popq %r12\n    popq %rbx\n    popq %rbp\n"
    "    ret\n"
    ".size emulated_change, .-emulated_change\n");
#endif

namespace {

/* On arrival. The stack of the thread that launches is learned when it is left. */
UNSEEN void arrive(fiber *self) {
#if defined(__SANITIZE_ADDRESS__)
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(self->fake, &bottom, &bytes);
    if (before == outside) {
        outside->stack = static_cast<char *>(const_cast<void *>(bottom));
        outside->stack_bytes = bytes;
    }
#else
    (void)self;
#endif
}

UNSEEN void change_to(fiber *to) {
    fiber *from = current;
    if (from == to) {
        return;
    }
    before = from;
    current = to;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&from->fake, to->stack, to->stack_bytes);
#endif
#if defined(__x86_64__)
    emulated_change(&from->sp, to->sp);
#else
    swapcontext(&from->context, &to->context);
#endif
    arrive(from);
}

/* ---- a block's threads and their barriers ---------------------------------------------- */

constexpr int MOST_WARPS = MOST_THREADS / 32;

struct warp {
    uint64_t words[2][32]; /* of this operation and of the one before it */
    uint32_t lanes[2];
    int operation;
    int arrived, alive;
    uint32_t round, syncs;
};

struct block {
    warp warps[MOST_WARPS];
    int arrived, alive;
    uint32_t round;
    int votes[2];
    bool backward;
};

struct shared_range {
    const char *from;
    size_t bytes;
};

block now;
emulated_launch job;
void (*call_kernel)(void);
alignas(64) unsigned char params[4096];
void *dynamic_shared;
watched_thread watched; /* but for what changes from one thread to another */

} // namespace

void emulated_fail(const char *what) {
    Dl_info at;
    const char *name = job.kernel && dladdr(job.kernel, &at) ? at.dli_sname : nullptr;
    fprintf(stderr, "emulated kernel %s, block (%u, %u, %u), thread %u: %s\n",
            name ? name : "of no name", blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, what);
    abort();
}

namespace {

UNSEEN int thread_of(const fiber *f) {
    return static_cast<int>(f - fibers);
}

UNSEEN bool ready(const fiber *f) {
    return !f->done && (!f->gate || *f->gate != f->seen);
}

/* The next thread that may go on; outside when all have ended. */
UNSEEN fiber *next_fiber(int from) {
    int count = static_cast<int>(job.threads), at = from;
    for (int i = 0; i < count; i++) {
        at += now.backward ? -1 : 1;
        at = at == count ? 0 : at < 0 ? count - 1 : at;
        if (ready(&fibers[at])) {
            return &fibers[at];
        }
    }
    if (now.alive) {
        emulated_fail("threads wait at different barriers, for ever");
    }
    return outside;
}

UNSEEN void go_on_with(fiber *to) {
    fiber *self = current;
    threadIdx.x = to == outside ? 0 : static_cast<unsigned>(thread_of(to));
    change_to(to);
    if (self != outside) {
        threadIdx.x = static_cast<unsigned>(thread_of(self));
    }
}

void wait_for(const uint32_t *gate, uint32_t seen) {
    watched_settle();
    current->gate = gate;
    current->seen = seen;
    go_on_with(next_fiber(thread_of(current)));
    current->gate = nullptr;
}

void open_block(block *b) {
    if (b->arrived == b->alive) {
        b->arrived = 0;
        b->round++;
    }
}

void open_warp(warp *w) {
    if (w->arrived == w->alive) {
        w->arrived = 0;
        w->round++;
        w->syncs += w->operation == EMULATED_SYNC;
        w->lanes[w->round % 2] = 0; /* of the operation after this one */
    }
}

void leave_block() {
    warp *w = &now.warps[thread_of(current) / 32];
    watched_settle();
    current->done = true;
    now.alive--;
    w->alive--;
    if (now.arrived) {
        open_block(&now);
    }
    if (w->arrived) {
        open_warp(w);
    }
}

/* A fiber runs its thread of one block after the other. */
UNSEEN void run_threads() {
    arrive(current);
    for (;;) {
        call_kernel();
        leave_block();
        go_on_with(next_fiber(thread_of(current)));
    }
}

void make_fiber(fiber *f) {
    size_t all = STACK_BYTES + GUARD_BYTES;
    void *memory = mmap(nullptr, all, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, GUARD_BYTES, PROT_NONE)) {
        emulated_fail("no memory for its stack");
    }
    f->stack = static_cast<char *>(memory) + GUARD_BYTES;
    f->stack_bytes = STACK_BYTES;
#if defined(__x86_64__)
    /* What emulated_change pops: six registers, where to return to, and that one's caller. */
    void **top = reinterpret_cast<void **>(f->stack + STACK_BYTES) - 8;
    memset(top, 0, 8 * sizeof *top);
    top[6] = reinterpret_cast<void *>(run_threads);
    f->sp = top;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&f->context, run_threads, 0);
#endif
}

/* ---- a launch -------------------------------------------------------------------------- */

/* A struct of more than 16 bytes lies in memory, at the same place whatever its size; a smaller
 * one without floats is passed as two words would be. */
template <size_t N> struct bytes_of {
    uint64_t words[N / 8];
};

template <size_t N> void call_with() {
    auto *kernel = reinterpret_cast<void (*)(bytes_of<N>)>(job.kernel);
    bytes_of<N> copy;
    memcpy(&copy, params, N);
    kernel(copy);
}

void (*caller_for(size_t bytes))(void) {
    return bytes <= 16     ? call_with<16>
           : bytes <= 64   ? call_with<64>
           : bytes <= 256  ? call_with<256>
           : bytes <= 1024 ? call_with<1024>
                           : call_with<4096>;
}

/* What another block has left: all bits set, a NaN of every format. */
void spoil_shared() {
    for (int i = 0; i < 2; i++) {
        if (watched.shared[i]) {
            memset(const_cast<char *>(watched.shared[i]), 0xff, watched.shared_bytes[i]);
        }
    }
}

void start_block(unsigned x, unsigned y, unsigned z) {
    int threads = static_cast<int>(job.threads);
    blockIdx = {x, y, z};
    now.arrived = 0;
    now.alive = threads;
    now.backward = (x + y + z) % 2;
    now.votes[0] = now.votes[1] = 0;
    for (int w = 0; w * 32 < threads; w++) {
        warp *it = &now.warps[w];
        it->arrived = 0;
        it->alive = min(32, threads - w * 32);
        it->lanes[0] = it->lanes[1] = 0;
    }
    for (int i = 0; i < threads; i++) {
        fibers[i].done = fibers[i].waited = false;
        fibers[i].gate = nullptr;
    }
    watched.block = x + gridDim.x * (y + gridDim.y * z);
    spoil_shared();
    go_on_with(&fibers[now.backward ? threads - 1 : 0]);
}

/* The shared variables of kernels' modules. */
std::mutex one_map;
std::map<const void *, shared_range> shared_ranges;

shared_range shared_of(const void *kernel) {
    std::lock_guard<std::mutex> guard(one_map);
    return shared_ranges[kernel];
}

void watch(const emulated_launch *launch, uint32_t number) {
    shared_range own = shared_of(launch->kernel);
    watched.launch = number;
    watched.may_overtake = launch->overtakes != 0;
    watched.shared[0] = own.from;
    watched.shared_bytes[0] = own.bytes;
    watched.shared[1] = static_cast<const char *>(dynamic_shared);
    watched.shared_bytes[1] = launch->shared_bytes;
}

/* Blocks in order, or the first one last. */
void run_now(const emulated_launch *launch, bool backward, uint32_t number) {
    job = *launch;
    memset(params, 0xa5, sizeof params);
    memcpy(params, launch->params, launch->params_bytes);
    call_kernel = caller_for(launch->params_bytes);
    blockDim = {launch->threads, 1, 1};
    gridDim = {launch->grid[0], launch->grid[1], launch->grid[2]};
    for (unsigned i = 0; i < launch->threads; i++) {
        if (!fibers[i].stack) {
            make_fiber(&fibers[i]);
        }
    }
    dynamic_shared = nullptr;
    if (launch->shared_bytes && posix_memalign(&dynamic_shared, 1024, launch->shared_bytes)) {
        emulated_fail("no memory for shared memory");
    }
    watch(launch, number);
    const unsigned blocks = gridDim.x * gridDim.y * gridDim.z;
    for (unsigned i = 0; i < blocks; i++) {
        unsigned at = backward ? blocks - 1 - i : i;
        start_block(at % gridDim.x, at / gridDim.x % gridDim.y, at / gridDim.x / gridDim.y);
    }
    free(dynamic_shared);
}

/* ---- launches that overtake ------------------------------------------------------------ */

std::mutex one_launch;
int overtaking; /* emulated_overtake */
bool waiting;
emulated_launch late; /* where `waiting`: not yet done, and the next one may begin before it */
alignas(64) unsigned char late_params[sizeof params];
int overtaken;
uint32_t numbers, late_number; /* of launches, from 1 on */

void keep(const emulated_launch *launch) {
    late_number = numbers;
    memcpy(late_params, launch->params, launch->params_bytes);
    late = *launch;
    late.params = late_params;
    waiting = true;
}

void do_late() {
    if (waiting) {
        waiting = false;
        run_now(&late, false, late_number);
    }
}

/* All that is of the launch under way. */
struct scene {
    uint3 thread, at;
    dim3 block_dim, grid_dim;
    block threads;
    emulated_launch launch;
    void (*call)(void);
    alignas(64) unsigned char bytes[sizeof params];
    void *shared;
    fiber *self;
    watched_thread seen;
};

void leave_scene(scene *s) {
    *s = {threadIdx,   blockIdx, blockDim,       gridDim, now,    job,
          call_kernel, {},       dynamic_shared, current, watched};
    memcpy(s->bytes, params, sizeof params);
    fibers = sets[1];
    current = outside = &outsides[1];
}

void back_to_scene(const scene *s) {
    threadIdx = s->thread;
    blockIdx = s->at;
    blockDim = s->block_dim;
    gridDim = s->grid_dim;
    now = s->threads;
    job = s->launch;
    call_kernel = s->call;
    memcpy(params, s->bytes, sizeof params);
    dynamic_shared = s->shared;
    fibers = sets[0];
    outside = &outsides[0];
    current = s->self;
    watched = s->seen;
}

} // namespace

/* By a thread that is to go on after the launch before its own. */
void emulated_after(void) {
    static scene left;
    if (waiting && fibers == sets[0]) {
        leave_scene(&left);
        do_late();
        back_to_scene(&left);
    }
    current->waited = true;
}

const watched_thread &watched_now() {
    watched.barriers = now.round;
    watched.warp_syncs = static_cast<uint16_t>(now.warps[threadIdx.x / 32].syncs);
    watched.thread = static_cast<uint16_t>(threadIdx.x);
    watched.waited = current->waited;
    watched.stack = current->stack;
    watched.stack_bytes = current->stack_bytes;
    return watched;
}

void *emulated_dynamic_shared(void) {
    return dynamic_shared;
}

void emulated_block_barrier(void) {
    uint32_t seen = now.round;
    now.arrived++;
    open_block(&now);
    if (now.round == seen) {
        wait_for(&now.round, seen);
    }
}

int emulated_barrier_count(int held) {
    int *votes = &now.votes[0];
    *votes += held;
    emulated_block_barrier();
    int count = *votes;
    emulated_block_barrier();
    *votes = 0;
    emulated_block_barrier();
    return count;
}

const uint64_t *emulated_exchange(int operation, uint64_t value, uint32_t *lanes) {
    warp *w = &now.warps[threadIdx.x / 32];
    uint32_t seen = w->round, lane = threadIdx.x % 32;
    if (w->arrived && w->operation != operation) {
        emulated_fail("lanes of a warp are at different operations");
    }
    w->operation = operation;
    w->words[seen % 2][lane] = value;
    w->lanes[seen % 2] |= 1u << lane;
    w->arrived++;
    open_warp(w);
    if (w->round == seen) {
        wait_for(&w->round, seen);
    }
    *lanes = w->lanes[seen % 2];
    return w->words[seen % 2];
}

/* What a block has in static variables it has once: a kernel does not overtake itself. */
void emulated_run(const emulated_launch *launch) {
    std::lock_guard<std::mutex> lock(one_launch);
    if (launch->threads < 1 || launch->threads > MOST_THREADS ||
        launch->params_bytes > sizeof params || launch->shared_bytes > 227 << 10) {
        emulated_fail("a launch that no device takes");
    }
    numbers++;
    if (!launch->overtakes || (waiting && late.kernel == launch->kernel)) {
        do_late();
    }
    if (overtaking == 1 && launch->overtakes && !waiting) {
        keep(launch);
        return;
    }
    bool behind = waiting;
    overtaking = overtaking ? 1 : 0;
    run_now(launch, behind, numbers);
    if (waiting) {
        emulated_fail("no block has waited for the launch before");
    }
    overtaken += behind;
}

void emulated_finish(void) {
    std::lock_guard<std::mutex> lock(one_launch);
    do_late();
}

void emulated_overtake(int on) {
    emulated_finish();
    overtaking = on;
}

int emulated_overtaken(void) {
    return overtaken;
}

#if defined(OCTET_WATCHED)
/* A module that is loaded: the variables that begin as zeros are its kernels' shared ones. */
static int take_shared(dl_phdr_info *library, size_t, void *arg) {
    auto *found = static_cast<std::pair<const void *, shared_range> *>(arg);
    const char *base = reinterpret_cast<const char *>(library->dlpi_addr);
    for (int i = 0; base == found->first && i < library->dlpi_phnum; i++) {
        const auto &segment = library->dlpi_phdr[i];
        if (segment.p_type == PT_LOAD && segment.p_memsz > segment.p_filesz) {
            found->second = {base + segment.p_vaddr + segment.p_filesz,
                             segment.p_memsz - segment.p_filesz};
        }
    }
    return base == found->first;
}

static void remember_shared(void *kernel) {
    Dl_info module;
    if (dladdr(kernel, &module)) {
        std::pair<const void *, shared_range> found = {module.dli_fbase, {}};
        dl_iterate_phdr(take_shared, &found);
        std::lock_guard<std::mutex> guard(one_map);
        shared_ranges[kernel] = found.second;
    }
}
#else
static void remember_shared(void *) {
}
#endif

/* A module is a library of its own beside this one, so that what two of them call alike stays
 * apart. */
void *emulated_kernel(const char *module, const char *name) {
    Dl_info self;
    char path[4096];
    if (!dladdr(reinterpret_cast<void *>(emulated_kernel), &self)) {
        return nullptr;
    }
    const char *slash = strrchr(self.dli_fname, '/');
    int folder = slash ? static_cast<int>(slash - self.dli_fname) : 1;
    snprintf(path, sizeof path, "%.*s/libemulated_%s.so", folder, slash ? self.dli_fname : ".",
             module);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
    }
    void *kernel = library ? dlsym(library, name) : nullptr;
    remember_shared(kernel);
    return kernel;
}
