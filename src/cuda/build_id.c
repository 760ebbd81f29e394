/* build_id.c - which build of a library a process has loaded. */
#define _GNU_SOURCE /* dl_iterate_phdr, dladdr */
#include "cuda/build_id.h"

#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

typedef struct search {
    uintptr_t inside;
    char *out;
    size_t size;
} search;

static void write_hex(const search *s, const unsigned char *bytes, size_t count) {
    size_t length = 0;
    for (size_t i = 0; i < count && length + 2 < s->size; i++) {
        (void)snprintf(s->out + length, s->size - length, "%02x", bytes[i]);
        length += 2;
    }
}

/* A segment of notes: each is its lengths, a name and a text, both in whole words. */
static void read_notes(const search *s, const unsigned char *at, size_t bytes) {
    ElfW(Nhdr) note;
    while (bytes >= sizeof note) {
        memcpy(&note, at, sizeof note);
        size_t name = ((size_t)note.n_namesz + 3) & ~(size_t)3;
        size_t text = ((size_t)note.n_descsz + 3) & ~(size_t)3;
        size_t rest = bytes - sizeof note;
        if (name > rest || text > rest - name) {
            return;
        }
        const unsigned char *begin = at + sizeof note;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
            memcmp(begin, "GNU", 4) == 0) {
            write_hex(s, begin + name, note.n_descsz);
            return;
        }
        at = begin + name + text;
        bytes = rest - name - text;
    }
}

static bool has(const struct dl_phdr_info *library, uintptr_t inside) {
    bool found = false;
    for (int i = 0; i < library->dlpi_phnum && !found; i++) {
        const ElfW(Phdr) *segment = &library->dlpi_phdr[i];
        found = segment->p_type == PT_LOAD &&
                inside - (library->dlpi_addr + segment->p_vaddr) < segment->p_memsz;
    }
    return found;
}

static int look(struct dl_phdr_info *library, size_t size, void *arg) {
    const search *s = arg;
    (void)size;
    if (!has(library, s->inside)) {
        return 0;
    }
    for (int i = 0; i < library->dlpi_phnum && !s->out[0]; i++) {
        const ElfW(Phdr) *segment = &library->dlpi_phdr[i];
        if (segment->p_type == PT_NOTE) {
            uintptr_t at = library->dlpi_addr + segment->p_vaddr;
            read_notes(s, (const unsigned char *)at, segment->p_memsz);
        }
    }
    return 1;
}

void oct_build_id(char *out, size_t size, const void *inside) {
    search s = {(uintptr_t)inside, out, size};
    Dl_info about;
    struct stat file;
    out[0] = 0;
    (void)dl_iterate_phdr(look, &s);
    if (!out[0] && dladdr(inside, &about) && about.dli_fname &&
        stat(about.dli_fname, &file) == 0) {
        (void)snprintf(out, size, "%lld-%lld", (long long)file.st_size,
                       (long long)file.st_mtime);
    }
}
