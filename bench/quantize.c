/* quantize.c - how fast tensors become bytes, next to a plain copy by the same threads.
 *
 *     quantize [threads [rows [cols]]]
 *
 * GB/s are bytes moved by time: the source once for each pass over it (schemes with a tensor
 * amax read it twice), and everything written. The copy is memcpy, source and target counted.
 * Before anything is timed, this instruction set's bytes are compared with the reference's. */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cpu/cpu.h"

#define RUNS 7

typedef struct bench {
    oct_threads threads;
    oct_matrix source;
    oct_matrix dst; /* parts of the largest case; each case uses what it needs */
    int64_t moved;  /* bytes of one run */
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

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- tensors --------------------------------------------------------------------------- */

/* Numbers like a layer's: bell-shaped, a few large. */
static oct_matrix make_source(octet_dtype dtype, int64_t rows, int64_t cols) {
    oct_matrix m = {.dtype = (uint8_t)dtype, .rows = rows, .cols = cols, .stride = cols};
    uint64_t state = 1;
    int64_t size = octet_dtype_bits(dtype) / 8;
    m.parts[0] = allocate(rows * cols * size);
    for (int64_t i = 0; i < rows * cols; i++) {
        float sum = 0;
        for (int k = 0; k < 3; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            sum += (float)(int32_t)(state >> 32) * 0x1p-31f;
        }
        uint32_t code = octet_encode(dtype, i % 997 == 0 ? 16 * sum : sum);
        memcpy((char *)m.parts[0] + i * size, &code, (size_t)size);
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

static oct_matrix make_quantized(const char *text, const oct_matrix *source, int64_t *bytes) {
    oct_matrix m = {.dtype = source->dtype, .rows = source->rows, .cols = source->cols};
    octet_layout layout;
    octet_error err;
    if (octet_quantizer_parse(&m.quantizer, text, &err) ||
        octet_layout_make(&layout, &m.quantizer, &err)) {
        fprintf(stderr, "%s: %s\n", text, err.text);
        exit(1);
    }
    *bytes = 0;
    for (int i = 0; i < layout.count; i++) {
        int64_t size = part_bytes(&layout.buffers[i], &m);
        m.parts[layout.buffers[i].part] = allocate(size);
        *bytes += size;
    }
    return m;
}

static void free_parts(oct_matrix *m) {
    for (int part = 0; part < OCTET_PARTS; part++) {
        free(m->parts[part]);
    }
}

static int64_t plain_bytes(const oct_matrix *m) {
    return m->rows * m->cols * octet_dtype_bits((octet_dtype)m->dtype) / 8;
}

/* ---- what is timed --------------------------------------------------------------------- */

static void quantize(bench *b) {
    octet_scheme scheme = (octet_scheme)b->dst.quantizer.scheme;
    oct_live live = {.scale = &b->scale, .amax = &b->amax, .new_amax = &b->amax, .seed = 7};
    if (scheme == OCTET_FP8_TENSOR) {
        oct_cpu_amax(&b->amax, &b->source, &b->threads);
    } else if (scheme == OCTET_NVFP4) {
        oct_cpu_amax_parts(&b->dst, &b->source, &b->threads);
    }
    oct_cpu_quantize(&b->dst, &b->source, &live, &b->threads);
}

static void dequantize(bench *b) {
    oct_cpu_dequantize(&b->source, &b->dst,
                       b->dst.quantizer.rowwise ? OCTET_USE_ROW : OCTET_USE_COL, &b->threads);
}

static void column_sums(bench *b) {
    oct_cpu_bias_grad(&b->dst, &b->source, false, &b->threads);
}

static void cast(bench *b) {
    oct_cpu_cast(&b->dst, &b->source, &b->threads);
}

static void copy_task(void *arg, int64_t begin, int64_t end) {
    const bench *b = arg;
    int64_t piece = plain_bytes(&b->source) / 64;
    for (int64_t i = begin; i < end; i++) {
        memcpy((char *)b->dst.parts[0] + i * piece, (char *)b->source.parts[0] + i * piece,
               (size_t)piece);
    }
}

static void copy(bench *b) {
    b->threads.parallel_for(b->threads.pool, 64, copy_task, b);
}

/* GB/s of the best of several runs. */
static double speed(bench *b, void (*run)(bench *)) {
    double best = INFINITY;
    run(b);
    for (int i = 0; i < RUNS; i++) {
        double start = now();
        run(b);
        double took = now() - start;
        best = took < best ? took : best;
    }
    return (double)b->moved / best / 1e9;
}

/* ---- the same bytes as the reference ---------------------------------------------------- */

static const struct {
    const char *text;
    octet_dtype dtype;
    int passes; /* over the source */
    double aim; /* part of the copy's speed; 0: none */
} cases[] = {
    {"fp8-tensor:e4m3+row", OCTET_BF16, 2, 0.60},
    {"fp8-tensor:e4m3", OCTET_BF16, 2, 0.45},
    {"fp8-tensor:e5m2", OCTET_F32, 2, 0.45},
    {"fp8-delayed:e4m3+row", OCTET_BF16, 1, 0.60},
    {"fp8-delayed:e4m3", OCTET_BF16, 1, 0.45},
    {"fp8-block:e4m3+row", OCTET_BF16, 1, 0.60},
    {"fp8-block:e4m3", OCTET_BF16, 1, 0.45},
    {"fp8-block:e4m3/128x128", OCTET_BF16, 1, 0.45},
    {"mxfp8:e4m3+row", OCTET_BF16, 1, 0.60},
    {"mxfp8:e4m3", OCTET_BF16, 1, 0.45},
    {"mxfp8:e4m3", OCTET_F16, 1, 0.45},
    {"mxfp8:e4m3/32x32", OCTET_BF16, 1, 0.45},
    {"nvfp4:e2m1+row", OCTET_BF16, 2, 0.60},
    {"nvfp4:e2m1", OCTET_BF16, 2, 0.45},
    {"nvfp4:e2m1/16x16", OCTET_BF16, 2, 0.45},
    {"nvfp4:e2m1+rht", OCTET_BF16, 3, 0},
    {"nvfp4:e2m1+rht+sr", OCTET_BF16, 3, 0},
    {"nvfp4:e2m1+4over6+row", OCTET_BF16, 2, 0},
};

#define CASES ((int)(sizeof cases / sizeof cases[0]))

/* A number for everything that all cases make of a small tensor. */
static uint64_t fingerprint(void) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < CASES; i++) {
        int64_t bytes = 0;
        bench b = {.source = make_source(cases[i].dtype, 419, 1031), .scale = 3};
        b.dst = make_quantized(cases[i].text, &b.source, &bytes);
        b.threads.count = 1;
        quantize(&b);
        octet_layout layout;
        if (octet_layout_make(&layout, &b.dst.quantizer, NULL)) {
            exit(1);
        }
        for (int k = 0; k < layout.count; k++) {
            const uint8_t *part = b.dst.parts[layout.buffers[k].part];
            for (int64_t at = 0; at < part_bytes(&layout.buffers[k], &b.dst); at++) {
                hash = (hash ^ part[at]) * 0x100000001b3u;
            }
        }
        free_parts(&b.source);
        free_parts(&b.dst);
    }
    return hash;
}

/* The instruction set is chosen once per process, so the reference runs in a child. */
static uint64_t reference_fingerprint(void) {
    int ends[2];
    uint64_t hash = 0;
    if (pipe(ends)) {
        return 0;
    }
    pid_t child = fork();
    if (child == 0) {
        setenv("OCTET_CPU", "reference", 1);
        hash = fingerprint();
        _exit(write(ends[1], &hash, sizeof hash) != (ssize_t)sizeof hash);
    }
    if (child < 0 || read(ends[0], &hash, sizeof hash) != (ssize_t)sizeof hash) {
        hash = 0;
    }
    waitpid(child, NULL, 0);
    close(ends[0]);
    close(ends[1]);
    return hash;
}

/* ---- the table ------------------------------------------------------------------------- */

static void line(const char *what, octet_dtype dtype, double gbps, double copied, double aim) {
    printf("%-32s %-5s %7.1f %6.0f%%", what, octet_dtype_name(dtype), gbps,
           100 * gbps / copied);
    printf(aim > 0 ? "   %.0f%%%s\n" : "\n", 100 * aim, gbps < aim * copied ? "  below" : "");
}

static void time_case(bench b, int i, double copied) {
    int64_t written = 0;
    b.source = make_source(cases[i].dtype, b.source.rows, b.source.cols);
    b.dst = make_quantized(cases[i].text, &b.source, &written);
    b.scale = 100;
    b.moved = cases[i].passes * plain_bytes(&b.source) + written;
    line(cases[i].text, cases[i].dtype, speed(&b, quantize), copied, cases[i].aim);
    if (strstr(cases[i].text, "+row")) {
        b.moved = plain_bytes(&b.source) + written;
        line("  and back", cases[i].dtype, speed(&b, dequantize), copied, 0);
    }
    free_parts(&b.source);
    free_parts(&b.dst);
}

static void time_plain(bench b, double copied) {
    oct_matrix other = b.source;
    b.source = make_source(OCTET_BF16, other.rows, other.cols);
    b.dst = make_source(OCTET_F32, 1, other.cols);
    b.moved = plain_bytes(&b.source);
    line("column sums", OCTET_BF16, speed(&b, column_sums), copied, 0);
    free_parts(&b.dst);
    b.dst = make_source(OCTET_F32, other.rows, other.cols);
    b.moved = plain_bytes(&b.source) + plain_bytes(&b.dst);
    line("cast to f32", OCTET_BF16, speed(&b, cast), copied, 0);
    free_parts(&b.source);
    free_parts(&b.dst);
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 2;
    int64_t rows = argc > 2 ? atoll(argv[2]) : 8192, cols = argc > 3 ? atoll(argv[3]) : 4096;
    uint64_t wanted = reference_fingerprint();
    if (wanted == 0 || fingerprint() != wanted) {
        fprintf(stderr, "%s: bytes differ from the reference's\n", oct_cpu_name());
        return 1;
    }
    octet_pool *pool = NULL;
    octet_error err;
    if (threads < 1 || octet_pool_create(&pool, threads, &err)) {
        fprintf(stderr, "no pool of %d threads\n", threads);
        return 1;
    }
    bench b = {.threads = {octet_pool_parallel_for, pool, threads}};
    b.source = make_source(OCTET_F32, rows, cols);
    b.dst = make_source(OCTET_F32, rows, cols);
    b.moved = 2 * plain_bytes(&b.source);
    double copied = speed(&b, copy);
    printf("%s, %d threads, %lld x %lld, GB/s moved; bytes equal the reference's\n",
           oct_cpu_name(), threads, (long long)rows, (long long)cols);
    printf("%-32s %-5s %7s %7s   aim\n", "", "from", "GB/s", "of copy");
    line("copy", OCTET_F32, copied, copied, 0);
    free_parts(&b.source);
    free_parts(&b.dst);
    for (int i = 0; i < CASES; i++) {
        time_case(b, i, copied);
    }
    time_plain(b, copied);
    octet_pool_free(pool);
    return 0;
}
