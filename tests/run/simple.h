/* simple.h - one plan in memory of its own, with arguments by a rule; its results as bytes. */
#ifndef OCTET_RUN_SIMPLE_H
#define OCTET_RUN_SIMPLE_H

#include <stdlib.h>
#include <string.h>

#include "octet.h"

/* The value of element i of an argument. */
typedef float simple_value(const octet_port *port, int64_t i);

typedef struct simple {
    octet_plan plan;
    octet_memory memory;
} simple;

/* Zeroed, and never NULL. */
static inline void *simple_block(int64_t bytes) {
    size_t size = ((size_t)bytes + OCTET_ARENA_ALIGN) & ~(size_t)(OCTET_ARENA_ALIGN - 1);
    void *made = aligned_alloc(OCTET_ARENA_ALIGN, size);
    if (!made) {
        abort();
    }
    return memset(made, 0, size);
}

static inline void *simple_argument(const octet_port *port, simple_value *value) {
    unsigned char *at = simple_block(port->bytes);
    int size = octet_dtype_bits((octet_dtype)port->dtype) / 8;
    for (int64_t i = 0; i < port->bytes / size; i++) {
        bool scale = port->name == OCTET_NAME_SCALE;
        uint32_t bits = octet_encode((octet_dtype)port->dtype, scale ? 2 : value(port, i));
        memcpy(at + i * size, &bits, (size_t)size);
    }
    return at;
}

/* The forward plan of a problem, ready to run. */
static inline octet_status simple_start(simple *s, const char *problem, simple_value *value,
                                        octet_error *err) {
    octet_linear_args args;
    *s = (simple){.plan = OCTET_PLAN_INIT, .memory = OCTET_MEMORY_INIT};
    octet_status status = octet_linear_parse(&args, problem, err);
    status = status ? status : octet_plan_linear(&s->plan, &args, err);
    for (int i = 0; !status && i < s->plan.arg_count; i++) {
        s->memory.args[i] = simple_argument(&s->plan.args[i], value);
    }
    for (int i = 0; !status && i < s->plan.out_count; i++) {
        s->memory.outs[i] = simple_block(s->plan.outs[i].bytes);
    }
    if (!status) {
        s->memory.saved = simple_block(s->memory.saved_bytes = s->plan.saved_bytes);
        s->memory.workspace = simple_block(s->memory.workspace_bytes = s->plan.workspace_bytes);
    }
    return status;
}

/* Whether two runs of a plan left the same bytes in outputs and in the saved block. */
static inline bool simple_same(const simple *a, const simple *b) {
    bool same = memcmp(a->memory.saved, b->memory.saved, (size_t)a->plan.saved_bytes) == 0;
    for (int i = 0; i < a->plan.out_count; i++) {
        same = same &&
               memcmp(a->memory.outs[i], b->memory.outs[i], (size_t)a->plan.outs[i].bytes) == 0;
    }
    return same;
}

static inline void simple_end(simple *s) {
    for (int i = 0; i < s->plan.arg_count; i++) {
        free((void *)(uintptr_t)s->memory.args[i]);
    }
    for (int i = 0; i < s->plan.out_count; i++) {
        free(s->memory.outs[i]);
    }
    free(s->memory.saved);
    free(s->memory.workspace);
}

#endif
