/* phases.c - the phases of a Linear's plan and the collectives between, as plain tuples. */
#include <string.h>

#include "octet_c.h"
#include "torch/plan_cache.h"
#include "torch/state.h"
#include "torch/threads.h"

static const char *const places[OCTET_PLACES] = {"arg",      "out",  "saved",
                                                 "restored", "work", "exchange"};

/* A tuple of `count` items that `item` makes. */
typedef PyObject *(*make_item)(const void *from, int index);

static PyObject *tuple_of(make_item item, const void *from, int count) {
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        PyObject *made = item(from, i);
        oct_py_put(&tuple, i, made);
    }
    return tuple;
}

static PyObject *exchange_item(const void *from, int index) {
    const octet_port *port = &((const octet_plan *)from)->exchanges[index];
    return Py_BuildValue("(sN)", octet_dtype_name((octet_dtype)port->dtype),
                         oct_py_dims(port->dims, port->ndim));
}

/* A buffer of the saved arena: (dtype, dims). */
static PyObject *arena_item(const void *from, int index) {
    const octet_plan *plan = from;
    uint8_t buffers[OCTET_PLAN_BUFFERS];
    (void)octet_arena_buffers(buffers, plan);
    const octet_plan_buffer *b = &plan->buffers[buffers[index]];
    return Py_BuildValue("(sN)", octet_dtype_name((octet_dtype)b->dtype),
                         oct_py_dims(b->dims, b->ndim));
}

static PyObject *arena(const octet_plan *plan) {
    uint8_t buffers[OCTET_PLAN_BUFFERS];
    return tuple_of(arena_item, plan, octet_arena_buffers(buffers, plan));
}

/* (place, port) of what a phase writes, or of what it only reads. */
static PyObject *regions(const octet_regions *from, bool written) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < from->count; i++) {
        const octet_region *r = &from->at[i];
        if ((r->is_written != 0) != written) {
            continue;
        }
        PyObject *item = Py_BuildValue("(si)", places[r->place], (int)r->port);
        oct_py_append(&list, item);
    }
    return oct_py_frozen(list);
}

/* The collectives after a phase: (kind, from, to, begin, end, chunk), where from and to are
 * (place, port, item), and the chunk is which of how many parts of the rows are sent. */
static PyObject *collectives(const octet_chain *chain, int at, int phase) {
    static const char *const kinds[] = {"none", "all_gather", "reduce_scatter", "sum", "max"};
    octet_collective_call calls[OCTET_PLAN_EXCHANGES];
    int count = octet_collectives_of(calls, chain, at);
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < count; i++) {
        const octet_collective_call *c = &calls[i];
        if (c->phase != phase) {
            continue;
        }
        PyObject *item = Py_BuildValue(
            "(s(sii)(sii)ii(ii))", kinds[c->kind], places[c->from_place], (int)c->from_port,
            (int)c->from_item, places[c->to_place], (int)c->to_port, (int)c->to_item,
            (int)c->begin, (int)c->end, c->chunk == OCTET_ABSENT ? 0 : (int)c->chunk,
            c->chunk == OCTET_ABSENT ? 1 : (int)c->chunks);
        oct_py_append(&list, item);
    }
    return oct_py_frozen(list);
}

/* The products of a phase in units of m x k x n; of gathered rows there are several. */
static int products(const octet_plan *plan, int phase) {
    int count = 0;
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        /* A product in chunks counts once, with the first. */
        bool first = step->chunk == OCTET_ABSENT || step->chunk == 0;
        bool here = step->op == OCTET_OP_GEMM && step->phase == phase && first;
        count += here ? plan->tensors[step->a].rows.mul : 0;
    }
    return count;
}

/* A plan of a chain. */
typedef struct member {
    const octet_chain *chain;
    int at;
} member;

static PyObject *phase_item(const void *from, int index) {
    const member *m = from;
    octet_regions used;
    const octet_plan *plan = &m->chain->plans[m->at];
    oct_phase_tensors(&used, plan, index);
    return Py_BuildValue("(NNNi)", regions(&used, true), regions(&used, false),
                         collectives(m->chain, m->at, index), products(plan, index));
}

/* Rows of the output: those of the input times and over the ranks that share them. */
static PyObject *output_rows(const octet_plan *plan) {
    for (int i = 0; i < plan->buffer_count; i++) {
        const octet_plan_buffer *b = &plan->buffers[i];
        const octet_plan_tensor *t = &plan->tensors[b->tensor];
        if (b->place == OCTET_PLACE_OUT && t->name == OCTET_NAME_OUTPUT) {
            return Py_BuildValue("(ii)", (int)t->rows.mul, (int)t->rows.div);
        }
    }
    return Py_BuildValue("(ii)", 1, 1);
}

static PyObject *plan_tuple(const octet_chain *chain, int at) {
    const octet_plan *plan = &chain->plans[at];
    const member m = {chain, at};
    return Py_BuildValue("(NNN(NN)Nii)", tuple_of(phase_item, &m, plan->phases),
                         tuple_of(exchange_item, plan, plan->exchange_count), arena(plan),
                         at > 0 ? arena(&chain->plans[0]) : PyTuple_New(0),
                         at > 1 ? arena(&chain->plans[1]) : PyTuple_New(0), output_rows(plan),
                         (int)plan->row_multiple, (int)plan->chunk_multiple);
}

static PyObject *phases(PyObject *self, PyObject *args) {
    const octet_chain *chain = NULL;
    octet_error err;
    const char *words;
    int at;
    (void)self;
    if (!PyArg_ParseTuple(args, "is", &at, &words)) {
        return NULL;
    }
    oct_request request = {
        .kind = (octet_plan_kind)at, .text = words, .sizes = OCT_PY_NO_SIZES, .rank = 3};
    request.threads = oct_request_threads(&request);
    octet_status status = oct_chain_get(&chain, &request, &err);
    if (!status && (at < 0 || at >= chain->count)) {
        status = oct_chain_lacks(&request, &err);
    }
    PyObject *found = status ? NULL : plan_tuple(chain, at);
    oct_chain_release(chain);
    return status ? oct_py_raise(status, &err) : found;
}

PyMethodDef oct_py_phase_methods[] = {
    {"phases", phases, METH_VARARGS,
     "phases(plan, words) -> (phases, exchanges, arena, restored arenas, output rows, row "
     "multiple, chunk multiple)\nplan: 0 forward, 1 backward, 2 wgrad; a phase: (written, "
     "read, collectives, "
     "products)"},
    {NULL, NULL, 0, NULL},
};
