/* live.c - LiveValue: an attribute that a function computes at every read.
 *
 * Compiled code guards on what it reads. A property would be traced, and a plain attribute is
 * only as new as the last write. An attribute that lies in C is read by the guard itself,
 * before each call: so a graph can depend on the autocast of this thread and task, on whether a
 * backward is running, or on a tensor's version. */
#include "octet_c.h"

typedef struct {
    PyObject_HEAD PyObject *read;
    PyObject *write;
} live;

static PyObject *get_value(PyObject *self, void *closure) {
    (void)closure;
    PyObject *read = ((live *)self)->read;
    return read ? PyObject_CallNoArgs(read) : Py_NewRef(Py_None);
}

static int set_value(PyObject *self, PyObject *value, void *closure) {
    (void)closure;
    PyObject *write = ((live *)self)->write;
    if (!value || !write || write == Py_None) {
        PyErr_SetString(PyExc_AttributeError, "this value is read-only");
        return -1;
    }
    PyObject *done = PyObject_CallFunctionObjArgs(write, value, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static int init(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"read", "write", NULL};
    PyObject *read, *write = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O", names, &read, &write)) {
        return -1;
    }
    live *made = (live *)self;
    PyObject *old_read = made->read, *old_write = made->write;
    made->read = Py_NewRef(read);
    made->write = Py_NewRef(write);
    Py_XDECREF(old_read);
    Py_XDECREF(old_write);
    return 0;
}

static int traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((live *)self)->read);
    Py_VISIT(((live *)self)->write);
    return 0;
}

static int clear(PyObject *self) {
    Py_CLEAR(((live *)self)->read);
    Py_CLEAR(((live *)self)->write);
    return 0;
}

static void dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)clear(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyGetSetDef attributes[] = {
    {"value", get_value, set_value, "What the function says now.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* Python's slots hold functions as pointers to data, which ISO C alone does not allow. */
#if defined(__GNUC__)
#define SLOT(function) (__extension__(void *)(function))
#else
#define SLOT(function) ((void *)(function))
#endif

static PyType_Slot slots[] = {
    {Py_tp_doc, "An attribute `value` that `read()` computes at every read."},
    {Py_tp_init, SLOT(init)},
    {Py_tp_getset, attributes},
    {Py_tp_traverse, SLOT(traverse)},
    {Py_tp_clear, SLOT(clear)},
    {Py_tp_dealloc, SLOT(dealloc)},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "octet._C.LiveValue",
    .basicsize = sizeof(live),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

PyObject *oct_py_live_type(void) {
    return PyType_FromSpec(&spec);
}
