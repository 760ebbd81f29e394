/* emulate_watch.cpp - accesses of threads that nothing orders; see emulate_watch.h. */
#include "emulate_watch.h"

#include "emulate_launch.h"

#include <atomic>
#include <memory>
#include <stdio.h>
#include <string.h>
#include <unordered_map>

extern "C" void emulated_fail(const char *what);

namespace {

enum kind { PLAIN = 1, ATOMIC = 2 };

/* What has touched a byte, in as few bytes as it takes: counters may wrap around. */
struct touch {
    uint32_t launch, block, barriers;
    uint16_t warp_syncs;
    uint16_t thread : 12, kind : 4; /* kind 0: nothing has */
};

/* Two reads are enough: of two threads at least one is another than the one that writes. */
struct cell {
    touch write, reads[2];
};

constexpr size_t PAGE = 1024, MOST_PAGES = 2048;
struct page {
    cell cells[PAGE];
};

std::unordered_map<uintptr_t, std::unique_ptr<page>> pages;
uintptr_t last_number;
page *last_page;
std::atomic<int> mode, found;

cell *cell_of(uintptr_t at) {
    uintptr_t number = at / PAGE;
    if (!last_page || number != last_number) {
        std::unique_ptr<page> &p = pages[number];
        if (!p) {
            p = std::make_unique<page>();
        }
        last_number = number;
        last_page = p.get();
    }
    return &last_page->cells[at % PAGE];
}

bool is_in(const char *at, const char *from, size_t bytes) {
    return from && at >= from && at < from + bytes;
}

/* Whether nothing orders an earlier touch of this launch and the thread that runs now. */
bool races(const touch &t, const watched_thread &now, uint32_t kind, bool shared) {
    if (!t.kind || t.launch != now.launch || (t.kind == ATOMIC && kind == ATOMIC)) {
        return false;
    }
    if (t.block != now.block) {
        return !shared; /* shared memory is another block's by then */
    }
    bool same_warp = t.thread / 32 == now.thread / 32;
    return t.thread != now.thread && t.barriers == now.barriers &&
           !(same_warp && t.warp_syncs != now.warp_syncs);
}

void tell(const char *what, const void *at, const touch *other) {
    char text[256];
    int length = snprintf(text, sizeof text, "%s at %p", what, at);
    if (other) {
        snprintf(text + length, sizeof text - static_cast<size_t>(length),
                 ", as thread %u of block %u did before", static_cast<unsigned>(other->thread),
                 other->block);
    }
    found++;
    if (mode == 1) {
        emulated_fail(text);
    }
}

touch touch_of(const watched_thread &now, uint32_t kind) {
    touch t = {now.launch, now.block, now.barriers, now.warp_syncs, 0, 0};
    t.thread = now.thread & 0xfffu;
    t.kind = kind & 0xfu;
    return t;
}

/* Bytes that two threads write, as the first of them left them: one that the second one does
 * not change is right in either order. Looked at when that thread has written them. */
struct pending {
    const char *at;
    char was;
    touch first;
};

pending waiting[16];
int waiting_count;

void settle() {
    int count = waiting_count;
    waiting_count = 0;
    for (int i = 0; i < count; i++) {
        if (*waiting[i].at != waiting[i].was) {
            tell("nothing orders a write and a write", waiting[i].at, &waiting[i].first);
            return;
        }
    }
}

/* Of a launch that may begin early: what the one in front writes is not there yet, and what it
 * reads is still needed. */
bool is_early(const watched_thread &now, const cell &c, bool writes) {
    return now.may_overtake && !now.waited &&
           (writes || (c.write.kind && c.write.launch + 1 >= now.launch));
}

void note_read(cell &c, const watched_thread &now, uint32_t kind) {
    const touch &first = c.reads[0];
    bool same = first.kind && first.launch == now.launch && first.block == now.block &&
                first.barriers == now.barriers && first.thread != now.thread;
    c.reads[same] = touch_of(now, kind);
}

/* One byte. False: it was told about. */
bool look(const char *at, const watched_thread &now, bool writes, uint32_t kind, bool shared) {
    cell &c = *cell_of(reinterpret_cast<uintptr_t>(at));
    if (!shared && is_early(now, c, writes)) {
        tell(writes ? "it writes before it has waited for the launch in front"
                    : "it reads what the launch in front writes, and has not waited for it",
             at, nullptr);
        return false;
    }
    if (races(c.write, now, kind, shared) && !writes) {
        tell("nothing orders a write and a read", at, &c.write);
        return false;
    }
    if (races(c.write, now, kind, shared) && waiting_count < 16) {
        waiting[waiting_count++] = {at, *at, c.write};
    }
    if (!writes) {
        note_read(c, now, kind);
        return true;
    }
    for (const touch &read : c.reads) {
        if (races(read, now, kind, shared)) {
            tell("nothing orders a read and a write", at, &read);
            return false;
        }
    }
    c.write = touch_of(now, kind);
    return true;
}

void accessed(const void *address, size_t bytes, bool writes, uint32_t kind) {
    const char *at = static_cast<const char *>(address);
    if (mode.load(std::memory_order_relaxed) == 0) {
        return;
    }
    const watched_thread &now = watched_now();
    settle();
    if (is_in(at, now.stack, now.stack_bytes)) {
        return;
    }
    bool shared = is_in(at, now.shared[0], now.shared_bytes[0]) ||
                  is_in(at, now.shared[1], now.shared_bytes[1]);
    for (size_t i = 0; i < bytes && look(at + i, now, writes, kind, shared); i++) {
    }
}

} // namespace

void watched_settle() {
    settle();
}

int emulated_watch(int how) {
#if defined(OCTET_WATCHED)
    if (pages.size() > MOST_PAGES) { /* what was touched long ago orders nothing */
        pages.clear();
        last_page = nullptr;
    }
    mode = how;
    return 1;
#else
    (void)how;
    return 0;
#endif
}

int emulated_found(void) {
    return found;
}

extern "C" void emulated_atomic_at(const void *at, size_t bytes) {
    accessed(at, bytes, true, ATOMIC);
}

/* ---- what the compiler calls ------------------------------------------------------------- */

#if defined(OCTET_WATCHED)
#define SIZED(bytes)                                                                           \
    extern "C" void __tsan_read##bytes(void *at) {                                             \
        accessed(at, bytes, false, PLAIN);                                                     \
    }                                                                                          \
    extern "C" void __tsan_write##bytes(void *at) {                                            \
        accessed(at, bytes, true, PLAIN);                                                      \
    }                                                                                          \
    extern "C" void __tsan_unaligned_read##bytes(void *at) {                                   \
        accessed(at, bytes, false, PLAIN);                                                     \
    }                                                                                          \
    extern "C" void __tsan_unaligned_write##bytes(void *at) {                                  \
        accessed(at, bytes, true, PLAIN);                                                      \
    }                                                                                          \
    extern "C" void __tsan_volatile_read##bytes(void *at) {                                    \
        accessed(at, bytes, false, ATOMIC);                                                    \
    }                                                                                          \
    extern "C" void __tsan_volatile_write##bytes(void *at) {                                   \
        accessed(at, bytes, true, ATOMIC);                                                     \
    }

SIZED(1)
SIZED(2)
SIZED(4)
SIZED(8)
SIZED(16)

extern "C" void __tsan_read_range(void *at, size_t bytes) {
    accessed(at, bytes, false, PLAIN);
}

extern "C" void __tsan_write_range(void *at, size_t bytes) {
    accessed(at, bytes, true, PLAIN);
}

extern "C" void *__tsan_memcpy(void *to, const void *from, size_t bytes) {
    accessed(from, bytes, false, PLAIN);
    accessed(to, bytes, true, PLAIN);
    return memcpy(to, from, bytes);
}

extern "C" void *__tsan_memset(void *to, int value, size_t bytes) {
    accessed(to, bytes, true, PLAIN);
    return memset(to, value, bytes);
}

extern "C" void __tsan_init(void) {
}

extern "C" void __tsan_func_entry(void *) {
}

extern "C" void __tsan_func_exit(void) {
}
#endif
