/* plans.c - what a plan takes, gives, saves and restores, as plain tuples. */
#include <string.h>

#include "octet_c.h"
#include "torch/check.h"
#include "torch/cuda.h"
#include "torch/ops.h"
#include "torch/plan_cache.h"
#include "torch/replay.h"
#include "torch/request.h"
#include "torch/rule.h"
#include "torch/state.h"
#include "torch/threads.h"

static int find_kind(const char *name) {
    static const char *const names[OCTET_PLAN_KINDS] = {
        "linear", "linear_backward", "linear_wgrad", "quantize", "dequantize"};
    for (int i = 0; i < OCTET_PLAN_KINDS; i++) {
        if (!strcmp(name, names[i])) {
            return i;
        }
    }
    PyErr_Format(PyExc_ValueError, "'%s' is not a kind of plan", name);
    return -1;
}

static int read_sizes(oct_request *request, PyObject *sizes) {
    Py_ssize_t rank = PySequence_Size(sizes);
    if (rank > OCTET_MAX_RANK + 1) {
        PyErr_Format(PyExc_ValueError, "%zd sizes; at most %d axes", rank, OCTET_MAX_RANK);
        return -1;
    }
    for (Py_ssize_t i = 0; i < rank; i++) {
        PyObject *item = PySequence_GetItem(sizes, i);
        request->sizes[i] = item ? (int64_t)PyLong_AsLongLong(item) : -1;
        Py_XDECREF(item);
        if (PyErr_Occurred()) {
            return -1;
        }
    }
    request->rank = (int)rank;
    return rank < 0 ? -1 : 0;
}

/* kind, text, sizes. */
static int read_plan(octet_plan *plan, PyObject *args) {
    const char *kind_name, *text;
    PyObject *sizes;
    octet_error err;
    if (!PyArg_ParseTuple(args, "ssO", &kind_name, &text, &sizes)) {
        return -1;
    }
    int kind = find_kind(kind_name);
    oct_request request = {.kind = (octet_plan_kind)kind, .text = text, .threads = 1};
    if (kind < 0 || read_sizes(&request, sizes)) {
        return -1;
    }
    octet_status status = oct_request_plan(plan, &request, &err);
    if (status) {
        (void)oct_py_raise(status, &err);
    }
    return status ? -1 : 0;
}

/* ---- ports and saved buffers ------------------------------------------------------------- */

static PyObject *port_tuple(const octet_plan *plan, octet_place place, int index) {
    const octet_port *port = place == OCTET_PLACE_ARG ? &plan->args[index] : &plan->outs[index];
    char name[64], quantizer[OCTET_QUANTIZER_TEXT] = "none";
    octet_call_tensor called = {.name = port->name, .form = port->form};
    int tensor = oct_port_tensor(plan, place, index);
    (void)octet_call_tensor_print(name, sizeof name, &called);
    if (tensor >= 0) {
        (void)octet_quantizer_print(quantizer, sizeof quantizer,
                                    &plan->tensors[tensor].quantizer);
    }
    return Py_BuildValue(
        "(sssNiisi)", name, octet_part_name((octet_part)port->part),
        octet_dtype_name((octet_dtype)port->dtype), oct_py_dims(port->dims, port->ndim),
        (int)port->is_mutable,
        port->alias == OCTET_ABSENT || place == OCTET_PLACE_ARG ? -1 : port->alias, quantizer,
        (int)(place == OCTET_PLACE_ARG && oct_is_in_state(plan, index)));
}

static PyObject *ports(const octet_plan *plan, octet_place place) {
    int count = place == OCTET_PLACE_ARG ? plan->arg_count : plan->out_count;
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        PyObject *port = port_tuple(plan, place, i);
        oct_py_put(&tuple, i, port);
    }
    return tuple;
}

/* The buffers of the saved arena: (bytes of an element, dims), each rounded up to OCTET_ALIGN;
 * their sum is the arena. */
static PyObject *arena(const octet_plan *plan) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < plan->buffer_count; i++) {
        const octet_plan_buffer *b = &plan->buffers[i];
        if (b->place != OCTET_PLACE_SAVED) {
            continue;
        }
        PyObject *term = Py_BuildValue("(iN)", octet_dtype_bits((octet_dtype)b->dtype) / 8,
                                       oct_py_dims(b->dims, b->ndim));
        oct_py_append(&list, term);
    }
    return oct_py_frozen(list);
}

/* Where each saved buffer lies: ("arg", 1), ("out", 2), ("saved", 0), ("restored", 0). */
static PyObject *slots(const octet_plan *plan, const uint8_t *buffers, int count) {
    static const char *const places[OCTET_PLACES] = {"arg",      "out",  "saved",
                                                     "restored", "work", "exchange"};
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        const octet_plan_buffer *b = &plan->buffers[buffers[i]];
        PyObject *region = Py_BuildValue("(si)", places[b->place], (int)b->port);
        oct_py_put(&tuple, i, region);
    }
    return tuple;
}

static int restores(const octet_plan *plan, int port) {
    for (int i = 0; i < plan->buffer_count; i++) {
        if (plan->buffers[i].place == OCTET_PLACE_RESTORED && plan->buffers[i].port == port) {
            return 1;
        }
    }
    return 0;
}

/* ---- arguments that a compiler describes ---------------------------------------------------
 */

/* A port of the plan, its shape as far as the sizes are known. */
static octet_port known_port(const octet_plan *plan, int index, const oct_request *sizes) {
    octet_port port = plan->args[index];
    octet_extents extents = {1, 1, 1};
    bool tensor = plan->kind == OCTET_PLAN_QUANTIZE || plan->kind == OCTET_PLAN_DEQUANTIZE;
    int last = tensor ? 1 : 2, leading = sizes->rank - last;
    int64_t known[5] = {1, OCT_UNKNOWN_SIZE, OCT_UNKNOWN_SIZE, OCT_UNKNOWN_SIZE, 0};
    if (leading >= 0) {
        known[OCTET_AXIS_M] = 1;
        for (int i = 0; i < leading; i++) {
            bool unknown = known[OCTET_AXIS_M] < 0 || sizes->sizes[i] < 0;
            known[OCTET_AXIS_M] =
                unknown ? OCT_UNKNOWN_SIZE : known[OCTET_AXIS_M] * sizes->sizes[i];
        }
        known[OCTET_AXIS_K] = sizes->sizes[leading];
        known[OCTET_AXIS_N] = tensor ? 1 : sizes->sizes[leading + 1];
    }
    known[OCTET_AXIS_LEADING] = known[OCTET_AXIS_M];
    extents.m = known[OCTET_AXIS_M] < 0 ? 0 : known[OCTET_AXIS_M];
    extents.k = known[OCTET_AXIS_K] < 0 ? 0 : known[OCTET_AXIS_K];
    extents.n = known[OCTET_AXIS_N] < 0 ? 0 : known[OCTET_AXIS_N];
    for (int i = 0; i < port.ndim; i++) {
        bool missing = known[port.dims[i].axis] < 0 ||
                       octet_dim_eval(&port.shape[i], &port.dims[i], &extents, NULL);
        port.shape[i] = missing ? OCT_UNKNOWN_SIZE : port.shape[i];
    }
    return port;
}

/* A tensor by its dtype's name, or none that Octet has, and its shape. */
static int read_facts(oct_tensor_facts *out, oct_request *shape, const char *dtype,
                      PyObject *sizes) {
    *out = (oct_tensor_facts){.elements = 1, .dtype = INT32_MIN, .sizes = shape->sizes};
    octet_dtype found;
    if (dtype && !octet_dtype_parse(&found, dtype, NULL)) {
        out->dtype = oct_torch.dtypes[found];
    }
    if (read_sizes(shape, sizes)) {
        return -1;
    }
    out->dim = shape->rank;
    for (int i = 0; i < shape->rank; i++) {
        bool unknown = out->elements < 0 || shape->sizes[i] < 0;
        out->elements = unknown ? OCT_UNKNOWN_SIZE : out->elements * shape->sizes[i];
    }
    return 0;
}

static octet_status check_one(const oct_request *request, int index,
                              const oct_tensor_facts *facts, octet_error *err) {
    const octet_chain *chain = NULL;
    oct_request unit = *request;
    memset(unit.sizes, 0, sizeof unit.sizes);
    unit.rank =
        request->kind == OCTET_PLAN_QUANTIZE || request->kind == OCTET_PLAN_DEQUANTIZE ? 2 : 3;
    unit.threads = oct_request_threads(&unit);
    int at = oct_chain_at(request->kind);
    octet_status status = oct_chain_get(&chain, &unit, err);
    if (!status && at >= chain->count) {
        status = oct_chain_lacks(request, err);
    }
    if (!status && index >= 0 && index < chain->plans[at].arg_count) {
        octet_port port = known_port(&chain->plans[at], index, request);
        status = oct_check_values(facts, &port, err);
        status = status ? oct_name_argument(err, index, &port) : OCTET_OK;
    } /* else an arena that a plan saved: bytes, as many as they are */
    oct_chain_release(chain);
    return status;
}

static PyObject *check_argument(PyObject *self, PyObject *args) {
    const char *kind_name, *text, *dtype;
    PyObject *sizes, *shape;
    int index;
    oct_request own = {.rank = 0};
    oct_tensor_facts facts;
    octet_error err;
    (void)self;
    if (!PyArg_ParseTuple(args, "ssOizO", &kind_name, &text, &sizes, &index, &dtype, &shape)) {
        return NULL;
    }
    int kind = find_kind(kind_name);
    oct_request request = {.kind = (octet_plan_kind)kind, .text = text};
    if (kind < 0 || read_sizes(&request, sizes) || read_facts(&facts, &own, dtype, shape)) {
        return NULL;
    }
    octet_status status = check_one(&request, index, &facts, &err);
    return status ? oct_py_raise(status, &err) : Py_NewRef(Py_None);
}

/* ---- methods ----------------------------------------------------------------------------- */

static PyObject *describe(PyObject *self, PyObject *args) {
    octet_plan plan;
    (void)self;
    if (read_plan(&plan, args)) {
        return NULL;
    }
    return Py_BuildValue("(NNNNN(ii))", ports(&plan, OCTET_PLACE_ARG),
                         ports(&plan, OCTET_PLACE_OUT), arena(&plan),
                         slots(&plan, plan.saved, plan.saved_count),
                         slots(&plan, plan.restored, plan.restored_count), restores(&plan, 0),
                         restores(&plan, 1));
}

/* Of what a plan saves, the bytes of an input in 8 bits. */
static long long packed_bytes(const octet_plan *plan) {
    long long bytes = 0;
    for (int i = 0; i < plan->saved_count; i++) {
        const octet_plan_buffer *b = &plan->buffers[plan->saved[i]];
        bytes += plan->tensors[b->tensor].form == OCTET_FORM_PACKED ? b->bytes : 0;
    }
    return bytes;
}

static PyObject *measure(PyObject *self, PyObject *args) {
    octet_plan plan;
    (void)self;
    if (read_plan(&plan, args)) {
        return NULL;
    }
    return Py_BuildValue("(LLLL)", (long long)plan.saved_bytes, (long long)plan.aliased_bytes,
                         (long long)plan.workspace_bytes, packed_bytes(&plan));
}

static PyObject *products(PyObject *self, PyObject *args) {
    octet_plan plan;
    long count = 0;
    (void)self;
    if (read_plan(&plan, args)) {
        return NULL;
    }
    for (int i = 0; i < plan.step_count; i++) {
        const octet_step *step = &plan.steps[i];
        /* A product in chunks counts once. */
        count += step->op == OCTET_OP_GEMM && (step->chunk == OCTET_ABSENT || !step->chunk);
    }
    return PyLong_FromLong(count);
}

/* ("fprop", "native", is padded, left operand, its quantizer, right operand, its quantizer). */
static PyObject *product_tuple(const octet_plan *plan, int at) {
    static const char *const gemms[OCTET_GEMMS] = {"fprop", "dgrad", "wgrad"};
    const octet_step *step = &plan->steps[at];
    const octet_plan_tensor *operands[] = {&plan->tensors[step->a], &plan->tensors[step->b]};
    char names[2][64], quantizers[2][OCTET_QUANTIZER_TEXT];
    for (int i = 0; i < 2; i++) {
        octet_call_tensor tensor = {.name = operands[i]->name};
        (void)octet_call_tensor_print(names[i], sizeof names[i], &tensor);
        (void)octet_quantizer_print(quantizers[i], sizeof quantizers[i],
                                    &operands[i]->quantizer);
    }
    return Py_BuildValue("(ssNssss)", gemms[step->gemm],
                         octet_support_name(octet_step_support(plan, at)),
                         PyBool_FromLong(octet_step_is_padded(plan, at)), names[0],
                         quantizers[0], names[1], quantizers[1]);
}

static PyObject *product_facts(PyObject *self, PyObject *args) {
    octet_plan plan;
    (void)self;
    if (read_plan(&plan, args)) {
        return NULL;
    }
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < plan.step_count; i++) {
        if (plan.steps[i].op != OCTET_OP_GEMM) {
            continue;
        }
        PyObject *row = product_tuple(&plan, i);
        oct_py_append(&list, row);
    }
    return oct_py_frozen(list);
}

static PyObject *explain(PyObject *self, PyObject *args) {
    octet_plan plan;
    (void)self;
    if (read_plan(&plan, args)) {
        return NULL;
    }
    size_t length = octet_plan_print(NULL, 0, &plan);
    char *text = PyMem_Malloc(length + 1);
    if (!text) {
        return PyErr_NoMemory();
    }
    (void)octet_plan_print(text, length + 1, &plan);
    PyObject *result = PyUnicode_FromString(text);
    PyMem_Free(text);
    return result;
}

/* By kind as oct_py_raise, but for what is not supported: an op says RuntimeError. */
static void set_op_error(octet_status status, const char *text) {
    PyObject *kind = status == OCTET_INVALID     ? PyExc_ValueError
                     : status == OCTET_NO_MEMORY ? PyExc_MemoryError
                                                 : PyExc_RuntimeError;
    oct_py_set_error(kind, text);
}

static PyObject *register_ops(PyObject *self, PyObject *args) {
    const char *path;
    octet_error err;
    (void)self;
    if (!PyArg_ParseTuple(args, "s", &path)) {
        return NULL;
    }
    octet_status status = oct_torch_register(path, set_op_error, &err);
    return status ? oct_py_raise(status, &err) : Py_NewRef(Py_None);
}

static PyObject *cached_plans(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    oct_plan_counts counts = oct_plan_count();
    oct_rule_counts rules = oct_rule_count();
    return Py_BuildValue("((ii)(ii)L(ii)(ii))", counts.plans, counts.most_plans,
                         counts.structures, counts.most_structures, counts.plannings,
                         counts.prepared, counts.most_plans, rules.rules, rules.most);
}

static PyObject *replays(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    oct_replay_counts counts = oct_replay_count();
    return Py_BuildValue("(iiL)", counts.graphs, counts.most, (long long)counts.replays);
}

static PyObject *algorithms(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    int most, cached = oct_torch_cuda_algorithms(&most);
    return Py_BuildValue("(ii)", cached, most);
}

static PyObject *allow_replays(PyObject *self, PyObject *allow) {
    (void)self;
    int is_true = PyObject_IsTrue(allow);
    return is_true < 0 ? NULL : PyBool_FromLong(oct_replay_allow(is_true));
}

PyMethodDef oct_py_plan_methods[] = {
    {"describe", describe, METH_VARARGS,
     "describe(kind, text, sizes) -> (args, outs, arena, saved, restored, arenas)\n"
     "args and outs: (name, part, dtype, dims, is_mutable, alias or -1, quantizer, lies in the "
     "state that another argument takes)"},
    {"measure", measure, METH_VARARGS,
     "measure(kind, text, sizes) -> (saved bytes, aliased bytes, workspace bytes, of the saved "
     "ones those of an input in 8 bits)"},
    {"check_argument", check_argument, METH_VARARGS,
     "check_argument(kind, text, sizes, index, dtype, shape) raises what an op would: -1 is a "
     "size that is not known"},
    {"products", products, METH_VARARGS,
     "products(kind, text, sizes) -> how many matrix products the plan has"},
    {"product_facts", product_facts, METH_VARARGS,
     "product_facts(kind, text, sizes) -> (product, how it is multiplied, is padded, left "
     "operand, its quantizer, right operand, its quantizer) of each product of the plan"},
    {"explain", explain, METH_VARARGS, "explain(kind, text, sizes) -> the plan for people"},
    {"cached_plans", cached_plans, METH_NOARGS,
     "cached_plans() -> ((plans at their sizes, at most), (plans by text, at most), "
     "plannings, (prepared plans, at most), (rules of delayed scaling, at most))"},
    {"replays", replays, METH_NOARGS,
     "replays() -> (graphs that the ops cache, how many they may, runs that were one)"},
    {"algorithms", algorithms, METH_NOARGS,
     "algorithms() -> (algorithms of cuBLASLt that GPUs remember, how many they may)"},
    {"allow_replays", allow_replays, METH_O,
     "allow_replays(bool) -> bool: whether runs may be graphs; gives what was"},
    {"register_ops", register_ops, METH_VARARGS,
     "register_ops(path of libtorch_cpu) registers the ops; once per process"},
    {NULL, NULL, 0, NULL},
};
