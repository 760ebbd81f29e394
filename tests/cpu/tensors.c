/* tensors.c - tensors for tests, and threads to work on them. */
#include "tensors.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 64
#define DIRT 0xa5

/* On a cache line, as a run's blocks are; odd shapes see to other places. */
static void *dirty_bytes(size_t size) {
    uint8_t *memory = aligned_alloc(64, (size + GUARD + 63) / 64 * 64);
    if (!memory) {
        abort();
    }
    memset(memory, DIRT, size + GUARD);
    return memory;
}

cpu_tensor cpu_tensor_plain(octet_dtype dtype, int64_t rows, int64_t cols, int64_t stride) {
    cpu_tensor t = {0};
    t.m.dtype = (uint8_t)dtype;
    t.m.rows = rows;
    t.m.cols = cols;
    t.m.stride = stride;
    t.bytes[0] = (size_t)(rows * stride) * (size_t)octet_dtype_bits(dtype) / 8;
    t.m.parts[0] = dirty_bytes(t.bytes[0]);
    return t;
}

cpu_tensor cpu_tensor_quantized(const octet_quantizer *quantizer, octet_dtype dtype,
                                int64_t rows, int64_t cols, int64_t copies) {
    cpu_tensor t = {0};
    octet_layout layout;
    octet_extents extents = {rows, cols, 0};
    t.m.quantizer = *quantizer;
    t.m.dtype = (uint8_t)dtype;
    t.m.rows = rows;
    t.m.cols = cols;
    if (octet_layout_make(&layout, quantizer, NULL)) {
        abort();
    }
    for (int i = 0; i < layout.count; i++) {
        const octet_buffer *buffer = &layout.buffers[i];
        int64_t size = octet_dtype_bits((octet_dtype)buffer->dtype) / 8 * copies;
        for (int d = 0; d < buffer->ndim; d++) {
            int64_t number = 0;
            if (octet_dim_eval(&number, &buffer->dims[d], &extents, NULL)) {
                abort();
            }
            size *= number;
        }
        t.bytes[buffer->part] = (size_t)size;
        t.m.parts[buffer->part] = dirty_bytes((size_t)size);
    }
    return t;
}

void cpu_tensor_free(cpu_tensor *tensor) {
    for (int part = 0; part < OCTET_PARTS; part++) {
        free(tensor->m.parts[part]);
    }
    memset(tensor, 0, sizeof *tensor);
}

bool cpu_tensor_guarded(const cpu_tensor *tensor) {
    for (int part = 0; part < OCTET_PARTS; part++) {
        const uint8_t *memory = tensor->m.parts[part];
        for (size_t i = 0; memory && i < GUARD; i++) {
            if (memory[tensor->bytes[part] + i] != DIRT) {
                return false;
            }
        }
    }
    return true;
}

int cpu_tensor_differ(const cpu_tensor *a, const cpu_tensor *b, size_t *at) {
    for (int part = 0; part < OCTET_PARTS; part++) {
        const uint8_t *x = a->m.parts[part], *y = b->m.parts[part];
        if (!x && !y) {
            continue;
        }
        *at = 0;
        if (!x || !y || a->bytes[part] != b->bytes[part]) {
            return part;
        }
        for (; *at < a->bytes[part]; ++*at) {
            if (x[*at] != y[*at]) {
                return part;
            }
        }
    }
    return -1;
}

void cpu_tensor_copy(cpu_tensor *to, const cpu_tensor *from) {
    for (int part = 0; part < OCTET_PARTS; part++) {
        if (to->m.parts[part] && from->m.parts[part]) {
            memcpy(to->m.parts[part], from->m.parts[part], from->bytes[part]);
        }
    }
}

float cpu_tensor_get(const cpu_tensor *tensor, int64_t row, int64_t col) {
    size_t at = (size_t)(row * tensor->m.stride + col);
    octet_dtype dtype = (octet_dtype)tensor->m.dtype;
    const char *memory = tensor->m.parts[0];
    uint32_t code = 0;
    uint16_t half;
    if (dtype == OCTET_F32) {
        memcpy(&code, memory + 4 * at, 4);
    } else {
        memcpy(&half, memory + 2 * at, 2);
        code = half;
    }
    return octet_decode(dtype, code);
}

void cpu_tensor_set(cpu_tensor *tensor, int64_t row, int64_t col, float value) {
    size_t at = (size_t)(row * tensor->m.stride + col);
    octet_dtype dtype = (octet_dtype)tensor->m.dtype;
    char *memory = tensor->m.parts[0];
    uint32_t code = octet_encode(dtype, value);
    uint16_t half = (uint16_t)code;
    if (dtype == OCTET_F32) {
        memcpy(memory + 4 * at, &code, 4);
    } else {
        memcpy(memory + 2 * at, &half, 2);
    }
}

/* ---- threads --------------------------------------------------------------------------- */

#define MOST_THREADS 8

typedef struct share {
    octet_task task;
    void *arg;
    int64_t begin, end;
} share;

static void *do_share(void *arg) {
    const share *s = arg;
    s->task(s->arg, s->begin, s->end);
    return NULL;
}

/* Shares of uneven size: where one ends must not matter. `pool` is the number of threads. */
static void parallel_for(void *pool, int64_t count, octet_task task, void *arg) {
    int threads = *(const int *)pool, started = 0;
    pthread_t ids[MOST_THREADS];
    share shares[MOST_THREADS];
    int64_t begin = 0;
    for (int i = 0; i < threads; i++) {
        int64_t rest = count - begin, size = (rest + i) / (threads - i);
        size = i == threads - 1 || size > rest ? rest : size;
        shares[i] = (share){task, arg, begin, begin + size};
        begin += size;
        if (size > 0 && pthread_create(&ids[started], NULL, do_share, &shares[i]) == 0) {
            started++;
        } else if (size > 0) {
            abort();
        }
    }
    for (int i = 0; i < started; i++) {
        pthread_join(ids[i], NULL);
    }
}

oct_threads cpu_threads(int count) {
    static int counts[MOST_THREADS + 1] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    return (oct_threads){count > 1 ? parallel_for : NULL, &counts[count], count};
}
