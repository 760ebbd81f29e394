/* gemm.c - the CPU's products, timed: GFLOP/s by operand, GB/s of weights for few rows, and
 * what batch invariance costs.
 *
 *     build/bench/gemm [threads] [words that a line must contain ...]
 *
 * Every figure is the median of several runs; of batch invariance, the shortest, in
 * seconds of all threads. OCTET_CPU
 * chooses the instruction set. */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cpu/cpu.h"

#define RUNS 7

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* An operand by name: a plain dtype or a quantizer's text. */
typedef struct operand {
    const char *text;
    octet_use use;
} operand;

typedef struct pair {
    const char *name;
    octet_gemm gemm;
    operand a, b;
} pair;

#define ROW OCTET_USE_ROW
#define COL OCTET_USE_COL
#define PLAIN OCTET_USE_VALUES

static const pair pairs[] = {
    {"f32", OCTET_FPROP, {"f32", PLAIN}, {"f32", PLAIN}},
    {"f32", OCTET_DGRAD, {"f32", PLAIN}, {"f32", PLAIN}},
    {"f32", OCTET_WGRAD, {"f32", PLAIN}, {"f32", PLAIN}},
    {"bf16", OCTET_FPROP, {"bf16", PLAIN}, {"bf16", PLAIN}},
    {"bf16", OCTET_DGRAD, {"bf16", PLAIN}, {"bf16", PLAIN}},
    {"bf16", OCTET_WGRAD, {"bf16", PLAIN}, {"bf16", PLAIN}},
    {"fp8-tensor", OCTET_FPROP, {"fp8-tensor:e4m3", ROW}, {"fp8-tensor:e4m3", ROW}},
    {"fp8-tensor", OCTET_DGRAD, {"fp8-tensor:e5m2", ROW}, {"fp8-tensor:e4m3", ROW}},
    {"fp8-tensor", OCTET_WGRAD, {"fp8-tensor:e5m2", ROW}, {"fp8-tensor:e4m3", ROW}},
    {"fp8-block", OCTET_FPROP, {"fp8-block:e4m3", ROW}, {"fp8-block:e4m3/128x128", ROW}},
    {"fp8-block", OCTET_DGRAD, {"fp8-block:e4m3", ROW}, {"fp8-block:e4m3/128x128", ROW}},
    {"fp8-block", OCTET_WGRAD, {"fp8-block:e4m3", COL}, {"fp8-block:e4m3", COL}},
    {"mxfp8", OCTET_FPROP, {"mxfp8:e4m3", ROW}, {"mxfp8:e4m3", ROW}},
    {"mxfp8", OCTET_DGRAD, {"mxfp8:e4m3", ROW}, {"mxfp8:e4m3", COL}},
    {"mxfp8", OCTET_WGRAD, {"mxfp8:e4m3", COL}, {"mxfp8:e4m3", COL}},
    {"nvfp4", OCTET_FPROP, {"nvfp4:e2m1", ROW}, {"nvfp4:e2m1/16x16", ROW}},
    {"nvfp4", OCTET_DGRAD, {"nvfp4:e2m1", ROW}, {"nvfp4:e2m1/16x16", ROW}},
    {"nvfp4", OCTET_WGRAD, {"nvfp4:e2m1+rht", COL}, {"nvfp4:e2m1+rht", COL}},
    {"nvfp4-rowscaled", OCTET_FPROP, {"nvfp4:e2m1+rowscaled", ROW}, {"nvfp4:e2m1", ROW}},
};

static const int64_t shapes[][3] = {{2048, 1024, 4096}, {512, 2048, 2048}}; /* M, K, N */

/* ---- operands of random bytes ---------------------------------------------------------------
 */

static uint32_t random_word(void) {
    static uint32_t state = 12345;
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

static void *allocate(int64_t bytes) {
    void *memory = aligned_alloc(256, ((size_t)bytes + 511) / 256 * 256);
    if (!memory) {
        fprintf(stderr, "no memory for %lld bytes\n", (long long)bytes);
        exit(1);
    }
    return memory;
}

/* Codes without NaN; every scale is 1. */
static void fill(const octet_buffer *buffer, const octet_quantizer *q, void *memory,
                 int64_t bytes) {
    bool data = buffer->part == OCTET_PART_ROW_DATA || buffer->part == OCTET_PART_COL_DATA;
    for (int64_t n = 0; data && n < bytes; n++) {
        ((uint8_t *)memory)[n] = (uint8_t)(random_word() & 0xb7);
    }
    for (int64_t n = 0; buffer->dtype == OCTET_F32 && n < bytes / 4; n++) {
        ((float *)memory)[n] = 1.0f;
    }
    if (!data && buffer->dtype != OCTET_F32) {
        memset(memory, q->scheme == OCTET_MXFP8 ? 127 : 0x38, (size_t)bytes);
    }
}

static void make_plain(oct_matrix *m, const char *text) {
    m->dtype = !strcmp(text, "f32") ? OCTET_F32 : OCTET_BF16;
    m->stride = m->cols;
    int64_t count = m->rows * m->cols;
    m->parts[0] = allocate(count * 4);
    for (int64_t n = 0; n < count; n++) {
        float value = (float)(int32_t)(random_word() % 2001) / 1000.0f - 1.0f;
        if (m->dtype == OCTET_F32) {
            ((float *)m->parts[0])[n] = value;
        } else {
            ((uint16_t *)m->parts[0])[n] = (uint16_t)octet_encode(OCTET_BF16, value);
        }
    }
}

static oct_matrix make(const operand *o, int64_t rows, int64_t cols) {
    oct_matrix m = {.rows = rows, .cols = cols, .dtype = OCTET_BF16};
    octet_layout layout;
    if (o->use == PLAIN) {
        make_plain(&m, o->text);
        return m;
    }
    if (octet_quantizer_parse(&m.quantizer, o->text, NULL) ||
        octet_layout_make(&layout, &m.quantizer, NULL)) {
        fprintf(stderr, "%s is not a quantizer\n", o->text);
        exit(1);
    }
    for (int n = 0; n < layout.count; n++) {
        const octet_buffer *buffer = &layout.buffers[n];
        int64_t bytes = buffer->dtype == OCTET_F32 ? 4 : 1, extent = 0;
        for (int d = 0; d < buffer->ndim; d++) {
            octet_extents extents = {rows, cols, 0};
            bytes *= octet_dim_eval(&extent, &buffer->dims[d], &extents, NULL) ? 0 : extent;
        }
        m.parts[buffer->part] = allocate(bytes);
        fill(buffer, &m.quantizer, m.parts[buffer->part], bytes);
    }
    return m;
}

static void release(oct_matrix *m) {
    for (int part = 0; part < OCTET_PARTS; part++) {
        free(m->parts[part]);
    }
}

/* ---- timing ---------------------------------------------------------------------------------
 */

typedef struct machine {
    oct_threads threads;
    void *scratch;
    bool invariant; /* products are */
    int rank;       /* of the times, sorted, that counts: the median, or 0, the shortest */
    clockid_t clock;
} machine;

static double seconds(const machine *on, const pair *p, const int64_t shape[3]) {
    int64_t m = shape[0], k = shape[1], n = shape[2];
    int64_t a_cols = p->gemm == OCTET_FPROP ? k : n;
    oct_matrix a = make(&p->a, m, a_cols);
    oct_matrix b = p->gemm == OCTET_WGRAD ? make(&p->b, m, k) : make(&p->b, n, k);
    int64_t rows = p->gemm == OCTET_WGRAD ? n : m, cols = p->gemm == OCTET_FPROP ? n : k;
    bool f32 = !strcmp(p->a.text, "f32");
    oct_matrix dst = make(&(operand){f32 ? "f32" : "bf16", PLAIN}, rows, cols);
    oct_cpu_gemm_call call = {.gemm = p->gemm,
                              .dst = dst,
                              .a = a,
                              .b = b,
                              .a_use = p->a.use,
                              .b_use = p->b.use,
                              .invariant = on->invariant,
                              .scratch = on->scratch,
                              .lanes = on->threads.count};
    double times[RUNS];
    for (int run = -2; run < RUNS; run++) {
        double start = now(on->clock);
        oct_cpu_gemm(&call, &on->threads);
        times[run < 0 ? 0 : run] = now(on->clock) - start;
    }
    qsort(times, RUNS, sizeof times[0], by_size);
    release(&a);
    release(&b);
    release(&dst);
    return times[on->rank];
}

static bool wanted(const char *line, int count, char **words) {
    for (int n = 0; n < count; n++) {
        if (!strstr(line, words[n])) {
            return false;
        }
    }
    return true;
}

static void time_products(const machine *on, int words, char **word) {
    static const char *const gemms[] = {"fprop", "dgrad", "wgrad"};
    printf("\n%-16s %-6s %5s %5s %5s  %9s %9s\n", "operands", "gemm", "M", "K", "N", "ms",
           "GFLOP/s");
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        for (size_t n = 0; n < sizeof pairs / sizeof pairs[0]; n++) {
            const pair *p = &pairs[n];
            char line[96];
            snprintf(line, sizeof line, "%-16s %-6s %5d %5d %5d", p->name, gemms[p->gemm],
                     (int)shapes[s][0], (int)shapes[s][1], (int)shapes[s][2]);
            if (wanted(line, words, word)) {
                double work = 2e-9 * (double)shapes[s][0] * (double)shapes[s][1];
                double taken = seconds(on, p, shapes[s]);
                printf("%s  %9.3f %9.1f\n", line, 1e3 * taken,
                       work * (double)shapes[s][2] / taken);
            }
        }
    }
}

typedef struct copy {
    char *to;
    const char *from;
    int64_t each;
} copy;

static void copy_part(void *arg, int64_t begin, int64_t end) {
    copy *c = arg;
    memcpy(c->to + begin * c->each, c->from + begin * c->each,
           (size_t)((end - begin) * c->each));
}

/* Bytes read per second while they are copied, in GB/s. */
static double copy_speed(const machine *on) {
    int64_t bytes = 256 << 20;
    copy c = {allocate(bytes), allocate(bytes), bytes / on->threads.count};
    memset(c.to, 1, (size_t)bytes);
    memset((void *)(uintptr_t)c.from, 2, (size_t)bytes);
    double times[RUNS];
    for (int run = 0; run < RUNS; run++) {
        double start = now(CLOCK_MONOTONIC);
        on->threads.parallel_for(on->threads.pool, on->threads.count, copy_part, &c);
        times[run] = now(CLOCK_MONOTONIC) - start;
    }
    qsort(times, RUNS, sizeof times[0], by_size);
    free(c.to);
    free((void *)(uintptr_t)c.from);
    return 1e-9 * (double)bytes / times[RUNS / 2];
}

/* Few rows against a weight of 8192 x 8192: how fast its bytes are read. */
static void time_thin(const machine *on, int words, char **word) {
    static const int64_t rows[] = {1, 2, 4, 8, 16};
    const int64_t size = 8192;
    printf("\n%-16s %-6s %5s  %9s %9s   copy reads %.1f GB/s\n", "operands", "gemm", "M", "ms",
           "GB/s", copy_speed(on));
    for (size_t n = 0; n < sizeof pairs / sizeof pairs[0]; n++) {
        const pair *p = &pairs[n];
        for (size_t r = 0; p->gemm == OCTET_FPROP && r < sizeof rows / sizeof rows[0]; r++) {
            char line[96];
            snprintf(line, sizeof line, "%-16s thin   %5d", p->name, (int)rows[r]);
            if (wanted(line, words, word)) {
                bool four = strstr(p->b.text, "nvfp4"), plain = p->b.use == PLAIN;
                double bits = four ? 4.5 : !plain ? 8 : !strcmp(p->b.text, "f32") ? 32 : 16;
                double taken = seconds(on, p, (int64_t[]){rows[r], size, size});
                printf("%s  %9.3f %9.1f\n", line, 1e3 * taken,
                       1e-9 * (double)(size * size) * bits / 8 / taken);
            }
        }
    }
}

/* A product whose rows do not depend on their number, beside the one that is fastest for it. */
static void time_invariant(const machine *on, int words, char **word) {
    static const int64_t rows[] = {1, 4, 16, 512, 4096};
    const int64_t size = 2048;
    machine usual = *on, pinned = *on;
    /* Two times are compared, and the machine may be busy: what it does besides is left out. */
    usual.rank = pinned.rank = 0;
    usual.clock = pinned.clock = CLOCK_PROCESS_CPUTIME_ID;
    pinned.invariant = true;
    printf("\n%-16s %-9s %5s %5s %5s  %9s %9s %6s\n", "operands", "", "M", "K", "N", "ms",
           "pinned ms", "ratio");
    for (size_t n = 0; n < sizeof pairs / sizeof pairs[0]; n++) {
        const pair *p = &pairs[n];
        bool may = p->gemm == OCTET_FPROP && p->a.use == ROW && !strstr(p->a.text, "nvfp4");
        for (size_t r = 0; may && r < sizeof rows / sizeof rows[0]; r++) {
            char line[96];
            int64_t shape[3] = {rows[r], size, size};
            snprintf(line, sizeof line, "%-16s invariant %5d %5d %5d", p->name, (int)rows[r],
                     (int)size, (int)size);
            if (wanted(line, words, word)) {
                double plain = seconds(&usual, p, shape), taken = seconds(&pinned, p, shape);
                printf("%s  %9.3f %9.3f %6.2f\n", line, 1e3 * plain, 1e3 * taken,
                       taken / plain);
            }
        }
    }
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 2;
    int words = argc > 2 ? argc - 2 : 0;
    octet_pool *pool;
    octet_error err;
    if (octet_pool_create(&pool, threads > 0 ? threads : 1, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    machine on = {{octet_pool_parallel_for, pool, threads > 0 ? threads : 1},
                  NULL,
                  false,
                  RUNS / 2,
                  CLOCK_MONOTONIC};
    on.scratch = allocate((int64_t)on.threads.count * OCT_CPU_LANE_BYTES);
    printf("%s, %d threads\n", oct_cpu_name(), on.threads.count);
    time_products(&on, words, argv + 2);
    time_thin(&on, words, argv + 2);
    time_invariant(&on, words, argv + 2);
    free(on.scratch);
    octet_pool_free(pool);
    return 0;
}
