/* tensors.c - the buffers of a quantizer and of a shape, and how a device multiplies it.
 */

#include <math.h>

#include "octet_c.h"

static int read_quantizer(octet_quantizer *out, const char *text) {
    octet_error err;
    octet_status status = octet_quantizer_parse(out, text, &err);
    if (status) {
        (void)oct_py_raise(status, &err);
    }
    return status ? -1 : 0;
}

static PyObject *layout_row(const octet_buffer *buffer) {
    return Py_BuildValue("(sssN)", buffer->name, octet_part_name((octet_part)buffer->part),
                         octet_dtype_name((octet_dtype)buffer->dtype),
                         oct_py_dims(buffer->dims, buffer->ndim));
}

static PyObject *layout(PyObject *self, PyObject *args) {
    const char *text;
    octet_quantizer quantizer;
    octet_layout made;
    octet_error err;
    (void)self;
    if (!PyArg_ParseTuple(args, "s", &text) || read_quantizer(&quantizer, text)) {
        return NULL;
    }
    octet_status status = octet_layout_make(&made, &quantizer, &err);
    if (status) {
        return oct_py_raise(status, &err);
    }
    PyObject *rows = PyTuple_New(made.count);
    for (int i = 0; rows && i < made.count; i++) {
        PyObject *row = layout_row(&made.buffers[i]);
        oct_py_put(&rows, i, row);
    }
    return rows;
}

/* ---- the call that quantizes it ---------------------------------------------------------- */

/* What ops that quantize or dequantize take: see torch/request.h. */
static PyObject *tensor_words(PyObject *self, PyObject *args) {
    const char *dtype, *quantizer;
    (void)self;
    return PyArg_ParseTuple(args, "ss", &dtype, &quantizer)
               ? PyUnicode_FromFormat("%s %s", dtype, quantizer)
               : NULL;
}

static bool reads_scale(const octet_plan *plan) {
    bool found = false;
    for (int i = 0; i < plan->arg_count; i++) {
        found = found || plan->args[i].name == OCTET_NAME_SCALE;
    }
    return found;
}

/* A plan says it: whether it has an argument for the scale. */
static PyObject *takes_scale(PyObject *self, PyObject *args) {
    static const int64_t unit[] = {1, 1};
    const char *text;
    octet_quantizer quantizer;
    octet_error err;
    octet_plan plan = OCTET_PLAN_INIT;
    octet_proto source = octet_proto_make(OCTET_F32, 2, unit);
    (void)self;
    if (!PyArg_ParseTuple(args, "s", &text) || read_quantizer(&quantizer, text)) {
        return NULL;
    }
    if (quantizer.scheme == OCTET_SCHEME_NONE) {
        return PyBool_FromLong(0);
    }
    octet_status status = octet_plan_quantize(&plan, &source, &quantizer, &err);
    return status ? oct_py_raise(status, &err) : PyBool_FromLong(reads_scale(&plan));
}

/* ---- a proto's buffers ------------------------------------------------------------------- */

static int read_shape(int64_t shape[OCTET_MAX_RANK], PyObject *sizes) {
    Py_ssize_t rank = PySequence_Size(sizes);
    if (rank > OCTET_MAX_RANK) {
        PyErr_Format(PyExc_ValueError, "a tensor of %zd axes; at most %d", rank,
                     OCTET_MAX_RANK);
        return -1;
    }
    for (Py_ssize_t i = 0; i < rank; i++) {
        PyObject *item = PySequence_GetItem(sizes, i);
        shape[i] = item ? (int64_t)PyLong_AsLongLong(item) : -1;
        Py_XDECREF(item);
        if (PyErr_Occurred()) {
            return -1;
        }
    }
    return (int)rank;
}

static int read_dtype(const char *name) {
    octet_dtype dtype = OCTET_NONE;
    if (!octet_dtype_parse(&dtype, name, NULL) && dtype != OCTET_NONE) {
        return (int)dtype;
    }
    PyErr_Format(PyExc_ValueError, "'%s' is not a dtype", name);
    return -1;
}

static PyObject *shape_tuple(const octet_proto *proto) {
    PyObject *shape = PyTuple_New(proto->rank);
    for (int i = 0; shape && i < proto->rank; i++) {
        PyObject *size = PyLong_FromLongLong(proto->shape[i]);
        oct_py_put(&shape, i, size);
    }
    return shape;
}

static PyObject *buffer_rows(const octet_proto *proto) {
    octet_error err;
    octet_status status = octet_proto_check(proto, &err);
    int count = status ? 0 : octet_proto_buffer_count(proto);
    PyObject *rows = status ? oct_py_raise(status, &err) : PyTuple_New(count);
    for (int i = 0; rows && i < count; i++) {
        octet_proto buffer;
        status = octet_proto_buffer(&buffer, proto, i, &err);
        PyObject *row = status ? oct_py_raise(status, &err)
                               : Py_BuildValue("(ssN)", octet_proto_buffer_name(proto, i),
                                               octet_dtype_name((octet_dtype)buffer.dtype),
                                               shape_tuple(&buffer));
        oct_py_put(&rows, i, row);
    }
    return rows;
}

static PyObject *buffers(PyObject *self, PyObject *args) {
    const char *dtype_name, *text;
    PyObject *sizes;
    int64_t shape[OCTET_MAX_RANK];
    (void)self;
    if (!PyArg_ParseTuple(args, "Oss", &sizes, &dtype_name, &text)) {
        return NULL;
    }
    int rank = read_shape(shape, sizes);
    int dtype = rank < 0 ? -1 : read_dtype(dtype_name);
    if (dtype < 0) {
        return NULL;
    }
    octet_proto proto = octet_proto_make((octet_dtype)dtype, rank, shape);
    return read_quantizer(&proto.quantizer, text) ? NULL : buffer_rows(&proto);
}

/* ---- what there is ----------------------------------------------------------------------- */

static PyObject *support(PyObject *self, PyObject *args) {
    const char *text, *where;
    octet_quantizer quantizer;
    octet_device device;
    octet_error err;
    (void)self;
    if (!PyArg_ParseTuple(args, "ss", &text, &where) || read_quantizer(&quantizer, text)) {
        return NULL;
    }
    octet_status status = octet_device_parse(&device, where, &err);
    if (status) {
        return oct_py_raise(status, &err);
    }
    octet_support found = octet_scheme_support((octet_scheme)quantizer.scheme, &device);
    return PyUnicode_FromString(octet_support_name(found));
}

/* Who counts saturated codes compares their magnitudes with the largest. */
static PyObject *largest_code(PyObject *self, PyObject *args) {
    const char *text;
    octet_quantizer quantizer;
    (void)self;
    if (!PyArg_ParseTuple(args, "s", &text) || read_quantizer(&quantizer, text)) {
        return NULL;
    }
    octet_dtype format = (octet_dtype)quantizer.format;
    int bits = octet_dtype_bits(format);
    if (quantizer.scheme == OCTET_SCHEME_NONE || !bits) {
        PyErr_Format(PyExc_ValueError, "'%s' makes no codes", text);
        return NULL;
    }
    return Py_BuildValue("(ii)", bits, (int)octet_encode(format, 1e30f));
}

/* Of each code; OCT_PY_NO_EXPONENT of what is no scale: zero, NaN, and the least E8M0, which
 * is that of a block of zeros. */
static PyObject *scale_exponents(PyObject *self, PyObject *args) {
    const char *text;
    octet_quantizer quantizer;
    (void)self;
    if (!PyArg_ParseTuple(args, "s", &text) || read_quantizer(&quantizer, text)) {
        return NULL;
    }
    octet_dtype format = octet_scale_format((octet_scheme)quantizer.scheme);
    int count = octet_dtype_bits(format) == 8 ? 256 : 0;
    PyObject *tuple = PyTuple_New(count);
    for (int code = 0; tuple && code < count; code++) {
        float value = octet_decode(format, (uint32_t)code);
        int exponent = OCT_PY_NO_EXPONENT;
        if (code && value > 0 && value < INFINITY) {
            (void)frexpf(value, &exponent);
            exponent--;
        }
        PyObject *item = PyLong_FromLong(exponent);
        oct_py_put(&tuple, code, item);
    }
    return tuple;
}

static PyObject *cpu_name(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    return PyUnicode_FromString(octet_cpu_name());
}

static PyObject *version(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    return PyUnicode_FromString(octet_version());
}

PyMethodDef oct_py_tensor_methods[] = {
    {"layout", layout, METH_VARARGS,
     "layout(quantizer) -> ((name, part, dtype, dims), ...) in flatten order"},
    {"tensor_words", tensor_words, METH_VARARGS,
     "tensor_words(dtype, quantizer) -> the words of a call that quantizes or dequantizes"},
    {"takes_scale", takes_scale, METH_VARARGS,
     "takes_scale(quantizer) -> it quantizes by a scale that the caller hands over"},
    {"buffers", buffers, METH_VARARGS,
     "buffers(shape, dtype, quantizer) -> ((name, dtype, shape), ...) in flatten order"},
    {"support", support, METH_VARARGS,
     "support(quantizer, device) -> how the device multiplies it: native, folded, emulated"},
    {"largest_code", largest_code, METH_VARARGS,
     "largest_code(quantizer) -> (bits of a code, the code of the largest number); the code's "
     "highest bit is the sign"},
    {"scale_exponents", scale_exponents, METH_VARARGS,
     "scale_exponents(quantizer) -> of each code of a block scale its exponent, NO_EXPONENT of "
     "what is no scale; nothing where scales are float32"},
    {"cpu_name", cpu_name, METH_NOARGS, "cpu_name() -> the instruction set of the CPU kernels"},
    {"version", version, METH_NOARGS, "version() -> text"},
    {NULL, NULL, 0, NULL},
};
