/* prologue.c - casts that compute f(x) while they read x, next to a step that writes it first.
 *
 *     prologue [rows [cols [runs]]]
 *
 * One thread. Each pair is timed in turns and the best of its runs counts, so that what else
 * the machine does hits both alike. GB/s count x and the bytes that are made; a ratio above 1
 * says that the cast which applies is faster. Bytes are compared before anything is timed. */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cpu/cpu.h"

typedef struct bench {
    oct_prologue_call call; /* f(x) into `made`; its amax where the scheme wants it */
    oct_matrix x, made, dst;
    float *stats;
    float amax, scale;
} bench;

static void *allocate(int64_t bytes) {
    void *memory = aligned_alloc(4096, ((size_t)bytes + 4095) / 4096 * 4096 + 4096);
    if (!memory) {
        fprintf(stderr, "cannot allocate %lld bytes\n", (long long)bytes);
        exit(1);
    }
    memset(memory, 0, (size_t)bytes);
    return memory;
}

/* The thread's own time: what it waits for a processor does not count. */
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- tensors --------------------------------------------------------------------------- */

static oct_matrix make_plain(int64_t rows, int64_t cols) {
    oct_matrix m = {.dtype = OCTET_BF16, .rows = rows, .cols = cols, .stride = cols};
    uint64_t state = 1;
    uint16_t *at = allocate(rows * cols * 2);
    m.parts[0] = at;
    for (int64_t i = 0; i < rows * cols; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        at[i] = (uint16_t)octet_encode(OCTET_BF16, (float)(int32_t)(state >> 32) * 0x1p-30f);
    }
    return m;
}

static int64_t part_bytes(const octet_buffer *buffer, const oct_matrix *m) {
    octet_extents extents = {m->rows, m->cols, 0};
    int64_t bytes = octet_dtype_bits((octet_dtype)buffer->dtype) / 8, number = 0;
    for (int d = 0; d < buffer->ndim; d++) {
        if (octet_dim_eval(&number, &buffer->dims[d], &extents, NULL)) {
            exit(1);
        }
        bytes *= number;
    }
    return bytes;
}

static octet_layout layout_of(const octet_quantizer *q) {
    octet_layout layout;
    if (octet_layout_make(&layout, q, NULL)) {
        exit(1);
    }
    return layout;
}

static int64_t make_dst(bench *b, const char *text) {
    int64_t bytes = 0;
    octet_error err;
    b->dst = (oct_matrix){.dtype = OCTET_BF16, .rows = b->made.rows, .cols = b->made.cols};
    if (octet_quantizer_parse(&b->dst.quantizer, text, &err)) {
        fprintf(stderr, "%s: %s\n", text, err.text);
        exit(1);
    }
    octet_layout layout = layout_of(&b->dst.quantizer);
    for (int i = 0; i < layout.count; i++) {
        int64_t size = part_bytes(&layout.buffers[i], &b->dst);
        b->dst.parts[layout.buffers[i].part] = allocate(size);
        bytes += size;
    }
    return bytes;
}

static void free_parts(oct_matrix *m) {
    for (int part = 0; part < OCTET_PARTS; part++) {
        free(m->parts[part]);
    }
}

/* ---- what is timed --------------------------------------------------------------------- */

static void written_first(bench *b) {
    oct_threads serial = {NULL, NULL, 1};
    octet_scheme scheme = (octet_scheme)b->dst.quantizer.scheme;
    oct_live live = {.scale = &b->scale, .amax = &b->amax, .new_amax = &b->amax};
    b->call.dst = &b->made;
    b->call.amax = scheme == OCTET_FP8_TENSOR ? &b->amax : NULL;
    oct_cpu_prologue(&b->call, &serial);
    oct_cpu_quantize(&b->dst, &b->made, &live, &serial);
}

static void on_the_way(bench *b) {
    oct_threads serial = {NULL, NULL, 1};
    octet_scheme scheme = (octet_scheme)b->dst.quantizer.scheme;
    oct_live live = {.scale = &b->scale, .amax = &b->amax, .new_amax = &b->amax};
    oct_matrix source = b->made;
    source.parts[0] = NULL;
    b->call.dst = NULL;
    b->call.amax = NULL;
    live.apply = &b->call;
    if (scheme == OCTET_FP8_TENSOR) {
        oct_cpu_prologue_amax(&b->amax, &b->call, &serial);
    }
    oct_cpu_quantize(&b->dst, &source, &live, &serial);
}

static double time_of(bench *b, void (*run)(bench *), double best) {
    double start = now();
    run(b);
    double took = now() - start;
    return took < best ? took : best;
}

static uint64_t fingerprint(const oct_matrix *dst) {
    uint64_t hash = 0xcbf29ce484222325u;
    octet_layout layout = layout_of(&dst->quantizer);
    for (int k = 0; k < layout.count; k++) {
        const uint8_t *part = dst->parts[layout.buffers[k].part];
        for (int64_t at = 0; at < part_bytes(&layout.buffers[k], dst); at++) {
            hash = (hash ^ part[at]) * 0x100000001b3u;
        }
    }
    return hash;
}

static int compare(bench *b, const char *name, const char *text, int runs) {
    double first = INFINITY, way = INFINITY;
    int64_t bytes = make_dst(b, text) + b->x.rows * b->x.cols * 2;
    b->scale = 16;
    written_first(b);
    uint64_t wanted = fingerprint(&b->dst);
    on_the_way(b);
    bool same = fingerprint(&b->dst) == wanted;
    for (int i = 0; i < runs; i++) {
        first = time_of(b, written_first, first);
        way = time_of(b, on_the_way, way);
    }
    printf("%-10s %-24s %7.2f %7.2f %7.2f%s\n", name, text, (double)bytes / first / 1e9,
           (double)bytes / way / 1e9, first / way, same ? "" : "  bytes differ");
    free_parts(&b->dst);
    return !same;
}

int main(int argc, char **argv) {
    static const char *const texts[] = {
        "fp8-tensor:e4m3+row", "fp8-tensor:e4m3", "fp8-delayed:e4m3+row", "fp8-delayed:e4m3",
        "fp8-block:e4m3+row",  "fp8-block:e4m3",  "mxfp8:e4m3+row",       "mxfp8:e4m3",
        "mxfp4:e2m1+row",      "mxfp4:e2m1",
    };
    static const struct {
        const char *name;
        octet_prologue is;
    } functions[] = {{"rmsnorm", OCTET_RMSNORM},
                     {"swiglu", OCTET_SWIGLU},
                     {"gelu", OCTET_GELU},
                     {"srelu", OCTET_SRELU}};
    int64_t rows = argc > 1 ? atoll(argv[1]) : 2048, cols = argc > 2 ? atoll(argv[2]) : 4096;
    int runs = argc > 3 ? atoi(argv[3]) : 7, wrong = 0;
    printf("%s, one thread, %lld x %lld bf16, GB/s of x and bytes\n", oct_cpu_name(),
           (long long)rows, (long long)cols);
    printf("%-10s %-24s %7s %7s %7s\n", "", "", "step", "in cast", "ratio");
    for (size_t f = 0; f < sizeof functions / sizeof functions[0]; f++) {
        bench b = {.call = {.prologue = (uint8_t)functions[f].is, .eps = 1e-5f}};
        bool gated = functions[f].is == OCTET_SWIGLU;
        oct_matrix gamma = make_plain(1, cols);
        oct_threads serial = {NULL, NULL, 1};
        b.x = make_plain(rows, gated ? 2 * cols : cols);
        b.made = make_plain(rows, cols);
        b.stats = allocate(rows * 8);
        b.call.x = &b.x;
        b.call.gamma = (oct_vector){gamma.parts[0], OCTET_BF16};
        b.call.stats = b.stats;
        if (functions[f].is == OCTET_RMSNORM) {
            oct_matrix stats = {.dtype = OCTET_F32, .rows = rows, .cols = 1, .stride = 1};
            stats.parts[0] = b.stats;
            b.call.dst = &stats;
            oct_cpu_statistics(&b.call, &serial);
        }
        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
            wrong += compare(&b, functions[f].name, texts[i], runs);
        }
        free_parts(&b.x);
        free_parts(&b.made);
        free_parts(&gamma);
        free(b.stats);
    }
    return wrong != 0;
}
