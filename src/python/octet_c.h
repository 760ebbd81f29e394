/* octet_c.h - what the files of the extension module share. */
#ifndef OCT_PYTHON_H
#define OCT_PYTHON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "octet.h"
#include "octet/run.h"

/* Raises it in these words: a text that was cut may end in the middle of a letter. */
void oct_py_set_error(PyObject *kind, const char *text);

/* Raises the failure as ValueError, NotImplementedError, MemoryError or RuntimeError. Always
 * returns NULL. */
PyObject *oct_py_raise(octet_status status, const octet_error *err);

/* A value of a dict, borrowed; NULL where there is none, or with an exception set. */
PyObject *oct_py_find(PyObject *dict, const char *name);

/* A struct by its field table, as a dict: flags are bools, words strings, structs dicts. */
PyObject *oct_py_fields(const octet_field *fields, const void *from);
/* Writes those fields that the dict has. -1 with an exception set where one is wrong. */
int oct_py_set_fields(const octet_field *table, void *to, PyObject *fields);

/* Puts an item, which is taken over, into a tuple or list that is being made. Where the item is
 * NULL, or does not fit, that is let go and becomes NULL, too. */
void oct_py_put(PyObject **tuple, int at, PyObject *item);
void oct_py_append(PyObject **list, PyObject *item);
/* The items of a list, which is taken over, as a tuple; NULL of NULL. */
PyObject *oct_py_frozen(PyObject *list);

/* ("m", 1, 32, 4): roundup(ceil(m * 1 / 32), 4). */
PyObject *oct_py_dims(const octet_dim *dims, int count);

/* A plan's structure has no sizes: any will do. 0 is whole blocks, and equal shares and chunks.
 */
#define OCT_PY_NO_SIZES {0, 0, 0}

/* In the place of the exponent of a number that has none. */
#define OCT_PY_NO_EXPONENT (-1000)

/* The type LiveValue; owned. */
PyObject *oct_py_live_type(void);

/* Method tables of the other files; module.c joins them. Each ends with a NULL name. */
extern PyMethodDef oct_py_value_methods[];
extern PyMethodDef oct_py_tensor_methods[];
extern PyMethodDef oct_py_plan_methods[];
extern PyMethodDef oct_py_signature_methods[];
extern PyMethodDef oct_py_phase_methods[];
extern PyMethodDef oct_py_device_methods[];
extern PyMethodDef oct_py_hook_methods[];

#endif
