/* signature.c - a Linear call from typed arguments, and its signatures as tuples of indices. */
#include <string.h>

#include "octet_c.h"
#include "torch/plan_cache.h"
#include "torch/state.h"
#include "torch/threads.h"

static const int64_t unit[] = OCT_PY_NO_SIZES;

/* ---- a call ------------------------------------------------------------------------------ */

static int fail(octet_status status, const octet_error *err) {
    if (status) {
        (void)oct_py_raise(status, err);
    }
    return status ? -1 : 0;
}

static int read_proto(octet_proto *out, const char *dtype, int rank, const char *quantizer) {
    octet_error err;
    octet_dtype found = OCTET_NONE;
    if (dtype && fail(octet_dtype_parse(&found, dtype, &err), &err)) {
        return -1;
    }
    memset(out, 0, sizeof *out);
    out->size = sizeof *out;
    if (dtype) {
        *out = octet_proto_make(found, rank, unit);
    }
    return quantizer ? fail(octet_quantizer_parse(&out->quantizer, quantizer, &err), &err) : 0;
}

/* A tensor that there is not stays all zero. */
static void put_on(octet_linear_args *args, octet_device device) {
    octet_proto *tensors[] = {&args->input, &args->weight, &args->bias, &args->gamma,
                              &args->beta};
    for (int i = 0; i < 5; i++) {
        if (tensors[i]->dtype != OCTET_NONE) {
            tensors[i]->device = device;
        }
    }
}

static int read_device(octet_linear_args *args, PyObject *text) {
    octet_error err;
    const char *device = PyUnicode_AsUTF8AndSize(text, NULL);
    if (!device || fail(octet_device_parse(&args->input.device, device, &err), &err)) {
        return -1;
    }
    put_on(args, args->input.device);
    return 0;
}

static int set_options(octet_linear_args *args, PyObject *fields) {
    PyObject *device = oct_py_find(fields, "device");
    if (device && (read_device(args, device) || PyDict_DelItemString(fields, "device"))) {
        return -1;
    }
    if (PyErr_Occurred()) {
        return -1;
    }
    return oct_py_set_fields(octet_fields(OCTET_STRUCT_LINEAR_ARGS), args, fields);
}

/* Pairs of a field's name and its value; the device is one of them. */
static int read_options(octet_linear_args *args, PyObject *options) {
    PyObject *fields = PyDict_New();
    int status = fields ? PyDict_MergeFromSeq2(fields, options, 1) : -1;
    status = status ? status : set_options(args, fields);
    Py_XDECREF(fields);
    return status;
}

static int read_tensors(octet_linear_args *args, PyObject *dtypes, PyObject *quantizers) {
    const char *x, *w, *b, *gamma = NULL, *beta = NULL, *qx, *qw;
    if (!PyArg_ParseTuple(dtypes, "ssz|zz", &x, &w, &b, &gamma, &beta) ||
        !PyArg_ParseTuple(quantizers, "zz", &qx, &qw)) {
        return -1;
    }
    return read_proto(&args->input, x, 2, qx) || read_proto(&args->weight, w, 2, qw) ||
                   read_proto(&args->bias, b, 1, NULL) ||
                   read_proto(&args->gamma, gamma, 1, NULL) ||
                   read_proto(&args->beta, beta, 1, NULL)
               ? -1
               : 0;
}

/* dtypes, quantizers, recipe, (input, weight, bias get a gradient), options. */
static int read_call(octet_linear_args *out, PyObject *args) {
    PyObject *dtypes, *quantizers, *options;
    const char *recipe;
    octet_error err;
    int grads[3];
    *out = OCTET_LINEAR_ARGS_INIT;
    if (!PyArg_ParseTuple(args, "O!O!s(ppp)O", &PyTuple_Type, &dtypes, &PyTuple_Type,
                          &quantizers, &recipe, &grads[0], &grads[1], &grads[2], &options) ||
        read_tensors(out, dtypes, quantizers) ||
        fail(octet_recipe_parse(&out->recipe, recipe, &err), &err)) {
        return -1;
    }
    out->input_requires_grad = grads[0] != 0;
    out->weight_requires_grad = grads[1] != 0;
    out->bias_requires_grad = grads[2] != 0;
    if (read_options(out, options)) {
        return -1;
    }
    /* Sizes do not count; they only have to fit together. */
    out->gamma.shape[0] = out->gamma.dtype ? out->weight.shape[1] : 0;
    out->beta.shape[0] = out->beta.dtype ? out->weight.shape[1] : 0;
    if (octet_prologue_is_gated((octet_prologue)out->prologue)) {
        out->input.shape[1] = 2 * out->weight.shape[1];
    }
    return 0;
}

static PyObject *words_of(const octet_linear_args *args) {
    char text[OCTET_LINEAR_TEXT];
    (void)octet_linear_print_words(text, sizeof text, args);
    return PyUnicode_FromString(text);
}

/* Whether amaxes of delayed scaling are taken at all: only those can be raised. */
static bool takes_amaxes(const octet_recipe *recipe) {
    bool found = false;
    for (int role = 0; role < OCTET_ROLES; role++) {
        octet_quantizer quantizer;
        if (!octet_recipe_quantizer(&quantizer, recipe, (octet_role)role, NULL)) {
            found = found || quantizer.scheme == OCTET_FP8_DELAYED;
        }
    }
    return found;
}

/* A layer asks to raise amaxes, or to skip them, whatever its recipe. */
static PyObject *linear_words(PyObject *self, PyObject *args) {
    octet_linear_args call;
    octet_error err;
    (void)self;
    if (read_call(&call, args) || fail(octet_linear_check(&call, &err), &err)) {
        return NULL;
    }
    if (!takes_amaxes(&call.recipe)) {
        call.raise_amax = call.skip_amax = 0;
    }
    return words_of(&call);
}

static PyObject *gradient_words(PyObject *self, PyObject *args) {
    octet_linear_backward_args back;
    octet_proto given;
    octet_error err;
    const char *words, *dtype, *quantizer;
    char text[OCTET_LINEAR_TEXT];
    (void)self;
    if (!PyArg_ParseTuple(args, "szz", &words, &dtype, &quantizer) ||
        read_proto(&given, dtype, 2, quantizer) ||
        fail(octet_linear_backward_parse_words(&back, words, unit, 3, &err), &err)) {
        return NULL;
    }
    if (dtype) {
        back.grad_output.dtype = given.dtype;
    }
    if (quantizer) {
        back.grad_output.quantizer = given.quantizer;
    }
    (void)octet_linear_backward_print_words(text, sizeof text, &back);
    return PyUnicode_FromString(text);
}

/* Of a forward's or a backward's words. */
static PyObject *input_words(PyObject *self, PyObject *args) {
    octet_linear_backward_args back;
    octet_error err;
    const char *words, *quantizer;
    int of_backward;
    char text[OCTET_LINEAR_TEXT];
    (void)self;
    if (!PyArg_ParseTuple(args, "ssp", &words, &quantizer, &of_backward) ||
        fail(octet_linear_backward_parse_words(&back, words, unit, 3, &err), &err) ||
        fail(octet_quantizer_parse(&back.forward.input.quantizer, quantizer, &err), &err)) {
        return NULL;
    }
    if (!of_backward) {
        return words_of(&back.forward);
    }
    (void)octet_linear_backward_print_words(text, sizeof text, &back);
    return PyUnicode_FromString(text);
}

/* The words without a device: ranks that make the same call have one each. */
static PyObject *words_on_cpu(PyObject *self, PyObject *args) {
    octet_linear_args call;
    octet_error err;
    const char *words;
    (void)self;
    if (!PyArg_ParseTuple(args, "s", &words) ||
        fail(octet_linear_parse_words(&call, words, unit, 3, &err), &err)) {
        return NULL;
    }
    put_on(&call, (octet_device){0});
    return words_of(&call);
}

/* ---- tuples ------------------------------------------------------------------------------ */

static PyObject *indices(const uint8_t *from, int count) {
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        PyObject *index = PyLong_FromLong(from[i] == OCTET_ABSENT ? -1 : from[i]);
        oct_py_put(&tuple, i, index);
    }
    return tuple;
}

/* (name, first, count, quantizer, is_mutable) */
static PyObject *tensor_tuple(const octet_call_tensor *tensor) {
    char name[64], quantizer[OCTET_QUANTIZER_TEXT];
    (void)octet_call_tensor_print(name, sizeof name, tensor);
    (void)octet_quantizer_print(quantizer, sizeof quantizer, &tensor->quantizer);
    return Py_BuildValue("(siisO)", name, (int)tensor->start, (int)tensor->count, quantizer,
                         tensor->is_mutable ? Py_True : Py_False);
}

static PyObject *tensors_tuple(const octet_call_tensor *tensors, int count) {
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        PyObject *tensor = tensors[i].count ? tensor_tuple(&tensors[i]) : Py_NewRef(Py_None);
        oct_py_put(&tuple, i, tensor);
    }
    return tuple;
}

static PyObject *saved_tuple(const octet_signature *s) {
    PyObject *tuple = PyTuple_New(s->saved_count);
    for (int i = 0; tuple && i < s->saved_count; i++) {
        PyObject *pair = Py_BuildValue("(Oi)", s->saved[i].is_argument ? Py_True : Py_False,
                                       (int)s->saved[i].index);
        oct_py_put(&tuple, i, pair);
    }
    return tuple;
}

static PyObject *lent_tuple(const octet_signature *s) {
    static const char *const names[OCTET_LENTS] = {"scale",     "state",          "seed",
                                                   "main_grad", "bias_main_grad", "queue"};
    PyObject *tuple = PyTuple_New(s->lent_count);
    for (int i = 0; tuple && i < s->lent_count; i++) {
        PyObject *name = PyUnicode_FromString(names[s->lent[i]]);
        oct_py_put(&tuple, i, name);
    }
    return tuple;
}

/* ---- signatures -------------------------------------------------------------------------- */

/* The chain of a call's words, shared with the ops. Ended by oct_chain_release. */
static const octet_chain *read_chain(int *flat, const char **words, PyObject *args) {
    const octet_chain *chain = NULL;
    octet_error err;
    if (!PyArg_ParseTuple(args, "sp", words, flat)) {
        return NULL;
    }
    oct_request request = {
        .kind = OCTET_PLAN_LINEAR, .text = *words, .sizes = OCT_PY_NO_SIZES, .rank = 3};
    request.threads = oct_request_threads(&request);
    return fail(oct_chain_get(&chain, &request, &err), &err) ? NULL : chain;
}

static PyObject *linear_signature(PyObject *self, PyObject *args) {
    octet_signature s;
    const char *words;
    int flat;
    (void)self;
    const octet_chain *chain = read_chain(&flat, &words, args);
    if (!chain) {
        return NULL;
    }
    octet_signature_of(&s, chain, flat != 0);
    oct_join_state(&s);
    oct_chain_release(chain);
    return Py_BuildValue(
        "(NNNNOiOOO)", tensors_tuple(s.args, s.arg_count), tensors_tuple(s.outs, s.out_count),
        saved_tuple(&s), lent_tuple(&s), s.saves_arena ? Py_True : Py_False, (int)s.returned,
        s.delays_wgrad ? Py_True : Py_False, s.returns_amaxes ? Py_True : Py_False,
        s.has_backward ? Py_True : Py_False);
}

static PyObject *backward_signature(PyObject *self, PyObject *args) {
    octet_linear_backward_args call;
    octet_signature forward;
    octet_backward_signature s;
    octet_error err;
    const char *words;
    int flat;
    (void)self;
    const octet_chain *chain = read_chain(&flat, &words, args);
    if (!chain) {
        return NULL;
    }
    octet_signature_of(&forward, chain, flat != 0);
    octet_backward_signature_of(&s, chain, flat != 0);
    oct_join_state_of_backward(&s, &forward);
    oct_chain_release(chain);
    if (fail(octet_linear_backward_parse_words(&call, words, unit, 3, &err), &err)) {
        return NULL;
    }
    return Py_BuildValue(
        "(NNNNiO(ss))", indices(s.read, s.read_count), indices(s.written, s.written_count),
        indices(s.later, s.later_count), tensors_tuple(s.grads, OCTET_GRADS), (int)s.returned,
        s.raises_amaxes ? Py_True : Py_False, octet_dtype_name(call.forward.input.dtype),
        octet_dtype_name(call.forward.weight.dtype));
}

PyMethodDef oct_py_signature_methods[] = {
    {"linear_words", linear_words, METH_VARARGS,
     "linear_words(dtypes, quantizers, recipe, grads, options) -> a call's words\n"
     "dtypes: of input, weight and bias, and of gamma and beta where there are any;\n"
     "quantizers: of input and weight; options: pairs, gamma_requires_grad among them;\n"
     "raise_amax and skip_amax are left out where a recipe has no amaxes"},
    {"gradient_words", gradient_words, METH_VARARGS,
     "gradient_words(words, dtype, quantizer) -> those of the backward where it arrives so"},
    {"input_words", input_words, METH_VARARGS,
     "input_words(words, quantizer, of_backward) -> the call whose input arrives quantized"},
    {"words_on_cpu", words_on_cpu, METH_VARARGS,
     "words_on_cpu(words) -> the same call where there is no other device"},
    {"linear_signature", linear_signature, METH_VARARGS,
     "linear_signature(words, flat) -> (args, outs, saved, lent, saves_arena, returned, "
     "delays_wgrad, returns_amaxes, has_backward)"},
    {"backward_signature", backward_signature, METH_VARARGS,
     "backward_signature(words, flat) -> (read, written, later, grads, returned, "
     "raises_amaxes, "
     "dtypes)"},
    {NULL, NULL, 0, NULL},
};
