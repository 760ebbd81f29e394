/* twins.h - two runs of nearly the same call: the tensors that they have in common. */
#ifndef OCTET_RUN_TWINS_H
#define OCTET_RUN_TWINS_H

#include "check.h"

static inline int find_op(const octet_plan *plan, octet_op op) {
    for (int i = 0; i < plan->step_count; i++) {
        if (plan->steps[i].op == op) {
            return i;
        }
    }
    return -1;
}

static inline int find_tensor(const octet_plan *plan, int name, int form) {
    for (int i = 0; i < plan->tensor_count; i++) {
        const octet_plan_tensor *t = &plan->tensors[i];
        if (t->name == name && t->form == form) {
            return i;
        }
    }
    return -1;
}

/* A port's rows, which may lie apart in either group. */
typedef struct rows_of {
    int64_t rows, bytes, stride;
    char *at;
} rows_of;

static inline rows_of argument_rows(const run_group *group, int rank, int plan, int index) {
    const octet_port *port = &group->plans[plan].args[index];
    const octet_memory *m = &group->memory[rank][plan];
    bool matrix = port->part == OCTET_PART_VALUES && port->ndim == 2;
    int64_t size = octet_dtype_bits((octet_dtype)port->dtype) / 8;
    rows_of made = {matrix ? port->shape[0] : 1, matrix ? port->shape[1] * size : port->bytes,
                    0, (char *)(uintptr_t)m->args[index]};
    made.stride = m->arg_strides[index] ? m->arg_strides[index] * size : made.bytes;
    return made;
}

static inline void copy_rows(const rows_of *to, const rows_of *from) {
    for (int64_t r = 0; to->bytes && r < to->rows; r++) {
        memcpy(to->at + r * to->stride, from->at + r * from->stride, (size_t)to->bytes);
    }
}

static inline bool same_rows(const rows_of *a, const rows_of *b) {
    for (int64_t r = 0; a->bytes && r < a->rows; r++) {
        if (memcmp(a->at + r * a->stride, b->at + r * b->stride, (size_t)a->bytes) != 0) {
            return false;
        }
    }
    return true;
}

/* The argument of the other call that is the same tensor's part; -1: it has none. */
static inline int twin_of(const octet_plan *plan, const octet_port *port) {
    for (int i = 0; i < plan->arg_count; i++) {
        const octet_port *other = &plan->args[i];
        if (other->name == port->name && other->form == port->form &&
            other->part == port->part) {
            return i;
        }
    }
    return -1;
}

#endif
