/* hooks.c - the hooks for saved tensors that are active now, all of them.
 *
 * torch shows the innermost pair alone. So they are taken off one by one and put back. In C,
 * since an interruption (Ctrl-C) between two lines of Python would lose some. */
#include <stdbool.h>

#include "octet_c.h"

/* Takes off the innermost pair. A new reference; NULL with an exception set, or without one
 * where there is none left. */
static PyObject *take(PyObject *top, PyObject *pop) {
    PyObject *pair = PyObject_CallFunctionObjArgs(top, Py_True, NULL);
    if (!pair || pair == Py_None) {
        Py_XDECREF(pair);
        return NULL;
    }
    PyObject *done = PyObject_CallNoArgs(pop);
    Py_XDECREF(done);
    if (!done) {
        Py_CLEAR(pair);
    }
    return pair;
}

/* Puts a pair back, whether an exception is set or not. */
static void put_back(PyObject *pair, PyObject *push) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *done = PyObject_CallObject(push, pair);
    Py_XDECREF(done);
    if (type) { /* the first failure is the one to tell */
        PyErr_Clear();
        PyErr_Restore(type, value, trace);
    }
}

static PyObject *saved_tensors_hooks(PyObject *self, PyObject *args) {
    PyObject *top, *pop, *push, *pair;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOO", &top, &pop, &push)) {
        return NULL;
    }
    PyObject *pairs = PyList_New(0);
    while (pairs && (pair = take(top, pop))) {
        bool listed = PyList_Append(pairs, pair) == 0;
        if (!listed) {
            put_back(pair, push);
        }
        Py_DECREF(pair);
        if (!listed) {
            break;
        }
    }
    for (Py_ssize_t i = pairs ? PyList_Size(pairs) : 0; i-- > 0;) {
        put_back(PyList_GetItem(pairs, i), push);
    }
    if (PyErr_Occurred()) {
        Py_CLEAR(pairs);
    }
    return pairs;
}

PyMethodDef oct_py_hook_methods[] = {
    {"saved_tensors_hooks", saved_tensors_hooks, METH_VARARGS,
     "saved_tensors_hooks(top, pop, push) -> the active pairs, innermost first; the arguments "
     "are torch's functions"},
    {NULL, NULL, 0, NULL},
};
