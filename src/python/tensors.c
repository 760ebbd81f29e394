/* tensors.c - the buffers of a quantizer and of a shape, and how a device multiplies it.
 */

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
        if (!row || PyTuple_SetItem(rows, i, row)) {
            Py_CLEAR(rows);
        }
    }
    return rows;
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
        if (!size || PyTuple_SetItem(shape, i, size)) {
            Py_CLEAR(shape);
        }
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
        if (!row || PyTuple_SetItem(rows, i, row)) {
            Py_CLEAR(rows);
        }
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
    {"buffers", buffers, METH_VARARGS,
     "buffers(shape, dtype, quantizer) -> ((name, dtype, shape), ...) in flatten order"},
    {"support", support, METH_VARARGS,
     "support(quantizer, device) -> how the device multiplies it: native, folded, emulated"},
    {"cpu_name", cpu_name, METH_NOARGS, "cpu_name() -> the instruction set of the CPU kernels"},
    {"version", version, METH_NOARGS, "version() -> text"},
    {NULL, NULL, 0, NULL},
};
