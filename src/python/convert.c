/* convert.c - failures, field tables and dimensions as Python objects, and back. */
#include <stdio.h>
#include <string.h>

#include "octet_c.h"

PyObject *oct_py_raise(octet_status status, const octet_error *err) {
    PyObject *kinds[] = {PyExc_SystemError, PyExc_ValueError, PyExc_NotImplementedError,
                         PyExc_MemoryError, PyExc_RuntimeError};
    size_t at = (size_t)status;
    PyErr_SetString(at < sizeof kinds / sizeof *kinds ? kinds[at] : PyExc_SystemError,
                    err->text);
    return NULL;
}

/* ---- reading a field --------------------------------------------------------------------- */

static PyObject *read_one(const octet_field *row, const char *at) {
    uint8_t u8;
    uint16_t u16;
    uint32_t u32;
    int32_t i32;
    int64_t i64;
    float f32;
    switch (row->type) {
    case OCTET_FIELD_FLAG:
        return PyBool_FromLong(*(const uint8_t *)at);
    case OCTET_FIELD_WORD:
        u8 = *(const uint8_t *)at;
        return PyUnicode_FromString(u8 < row->limit ? row->words[u8] : "?");
    case OCTET_FIELD_U8:
        return PyLong_FromLong(*(const uint8_t *)at);
    case OCTET_FIELD_U16:
        memcpy(&u16, at, sizeof u16);
        return PyLong_FromLong(u16);
    case OCTET_FIELD_U32:
        memcpy(&u32, at, sizeof u32);
        return PyLong_FromUnsignedLong(u32);
    case OCTET_FIELD_I32:
        memcpy(&i32, at, sizeof i32);
        return PyLong_FromLong(i32);
    case OCTET_FIELD_I64:
        memcpy(&i64, at, sizeof i64);
        return PyLong_FromLongLong(i64);
    case OCTET_FIELD_F32:
        memcpy(&f32, at, sizeof f32);
        return PyFloat_FromDouble((double)f32);
    default:
        return oct_py_fields(row->rows, at);
    }
}

static PyObject *read_row(const octet_field *row, const char *at) {
    if (row->count <= 1) {
        return read_one(row, at);
    }
    PyObject *tuple = PyTuple_New(row->count);
    for (int i = 0; tuple && i < row->count; i++) {
        PyObject *item = read_one(row, at + (size_t)i * row->stride);
        if (!item || PyTuple_SetItem(tuple, i, item)) {
            Py_CLEAR(tuple);
        }
    }
    return tuple;
}

PyObject *oct_py_fields(const octet_field *rows, const void *from) {
    PyObject *dict = PyDict_New();
    for (const octet_field *row = rows; dict && row->name; row++) {
        PyObject *value = read_row(row, (const char *)from + row->offset);
        if (!value || PyDict_SetItemString(dict, row->name, value)) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(value);
    }
    return dict;
}

/* ---- writing a field --------------------------------------------------------------------- */

/* "max, most_recent, callback" */
static const char *list_words(char *out, size_t size, const octet_field *row) {
    size_t length = 0;
    out[0] = 0;
    for (int i = 0; i < row->limit && length < size; i++) {
        int more = snprintf(out + length, size - length, "%s%s", i ? ", " : "", row->words[i]);
        length += more > 0 ? (size_t)more : 0;
    }
    return out;
}

static int write_word(const octet_field *row, char *at, PyObject *value) {
    const char *word = PyUnicode_AsUTF8AndSize(value, NULL);
    for (int i = 0; word && i < row->limit; i++) {
        if (!strcmp(word, row->words[i])) {
            *(uint8_t *)at = (uint8_t)i;
            return 0;
        }
    }
    if (word) {
        char words[256];
        PyErr_Format(PyExc_ValueError, "%s is '%s'; allowed: %s", row->name, word,
                     list_words(words, sizeof words, row));
    }
    return -1;
}

static int write_integer(const octet_field *row, char *at, PyObject *value) {
    long long number = PyLong_AsLongLong(value);
    int64_t i64 = (int64_t)number;
    int32_t i32 = (int32_t)number;
    uint32_t u32 = (uint32_t)number;
    uint16_t u16 = (uint16_t)number;
    uint8_t u8 = (uint8_t)number;
    bool fits = true;
    if (number == -1 && PyErr_Occurred()) {
        return -1;
    }
    switch (row->type) {
    case OCTET_FIELD_U8:
        fits = u8 == number;
        memcpy(at, &u8, sizeof u8);
        break;
    case OCTET_FIELD_U16:
        fits = u16 == number;
        memcpy(at, &u16, sizeof u16);
        break;
    case OCTET_FIELD_U32:
        fits = u32 == number;
        memcpy(at, &u32, sizeof u32);
        break;
    case OCTET_FIELD_I32:
        fits = i32 == number;
        memcpy(at, &i32, sizeof i32);
        break;
    default:
        memcpy(at, &i64, sizeof i64);
        break;
    }
    if (!fits) {
        PyErr_Format(PyExc_ValueError, "%s cannot be %lld", row->name, number);
    }
    return fits ? 0 : -1;
}

static int write_one(const octet_field *row, char *at, PyObject *value) {
    if (row->type == OCTET_FIELD_STRUCT) {
        return oct_py_set_fields(row->rows, at, value);
    }
    if (row->type == OCTET_FIELD_WORD) {
        return write_word(row, at, value);
    }
    if (row->type == OCTET_FIELD_FLAG) {
        int truth = PyObject_IsTrue(value);
        *(uint8_t *)at = truth > 0;
        return truth < 0 ? -1 : 0;
    }
    if (row->type == OCTET_FIELD_F32) {
        double number = PyFloat_AsDouble(value);
        float f32 = (float)number;
        memcpy(at, &f32, sizeof f32);
        return PyErr_Occurred() ? -1 : 0;
    }
    return write_integer(row, at, value);
}

static const octet_field *find_row(const octet_field *rows, PyObject *key) {
    const char *name = PyUnicode_AsUTF8AndSize(key, NULL);
    for (const octet_field *row = rows; name && row->name; row++) {
        if (!strcmp(name, row->name) && row->count <= 1) {
            return row;
        }
    }
    if (name) {
        PyErr_Format(PyExc_ValueError, "there is no field '%s'", name);
    }
    return NULL;
}

int oct_py_set_fields(const octet_field *rows, void *to, PyObject *fields) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    if (!PyDict_Check(fields)) {
        PyErr_SetString(PyExc_TypeError, "fields are a dict");
        return -1;
    }
    while (PyDict_Next(fields, &at, &key, &value)) {
        const octet_field *row = find_row(rows, key);
        if (!row || write_one(row, (char *)to + row->offset, value)) {
            return -1;
        }
    }
    return 0;
}

/* ---- dimensions -------------------------------------------------------------------------- */

PyObject *oct_py_dims(const octet_dim *dims, int count) {
    static const char *const axes[] = {"one", "m", "k", "n", "leading"};
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        PyObject *dim = Py_BuildValue("(siii)", axes[dims[i].axis], (int)dims[i].mul,
                                      (int)dims[i].div, (int)dims[i].align);
        if (!dim || PyTuple_SetItem(tuple, i, dim)) {
            Py_CLEAR(tuple);
        }
    }
    return tuple;
}
