/* convert.c - failures, field tables and dimensions as Python objects, and back. */
#include <stdio.h>
#include <string.h>

#include "octet_c.h"

void oct_py_set_error(PyObject *kind, const char *text) {
    PyObject *words = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    if (words) {
        PyErr_SetObject(kind, words);
    }
    Py_XDECREF(words);
}

/* PyDict_GetItemString would say that there is none where memory is what is missing. */
PyObject *oct_py_find(PyObject *dict, const char *name) {
    PyObject *key = PyUnicode_FromString(name);
    PyObject *found = key ? PyDict_GetItemWithError(dict, key) : NULL;
    Py_XDECREF(key);
    return found;
}

PyObject *oct_py_raise(octet_status status, const octet_error *err) {
    PyObject *kinds[] = {PyExc_SystemError, PyExc_ValueError, PyExc_NotImplementedError,
                         PyExc_MemoryError, PyExc_RuntimeError};
    size_t at = (size_t)status;
    oct_py_set_error(at < sizeof kinds / sizeof *kinds ? kinds[at] : PyExc_SystemError,
                     err->text);
    return NULL;
}

/* ---- tuples ------------------------------------------------------------------------------ */

void oct_py_put(PyObject **tuple, int at, PyObject *item) {
    if (item) {
        (void)PyTuple_SetItem(*tuple, at, item); /* of a tuple that nobody else has */
        return;
    }
    Py_DECREF(*tuple);
    *tuple = NULL;
}

void oct_py_append(PyObject **list, PyObject *item) {
    if (!item || PyList_Append(*list, item)) {
        Py_DECREF(*list);
        *list = NULL;
    }
    Py_XDECREF(item);
}

PyObject *oct_py_frozen(PyObject *list) {
    PyObject *tuple = list ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

/* ---- reading a field --------------------------------------------------------------------- */

static PyObject *read_one(const octet_field *field, const char *at) {
    uint8_t u8;
    uint16_t u16;
    uint32_t u32;
    int32_t i32;
    int64_t i64;
    float f32;
    switch (field->type) {
    case OCTET_FIELD_FLAG:
        return PyBool_FromLong(*(const uint8_t *)at);
    case OCTET_FIELD_WORD:
        u8 = *(const uint8_t *)at;
        return PyUnicode_FromString(u8 < field->limit ? field->words[u8] : "?");
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
        return oct_py_fields(field->fields, at);
    }
}

static PyObject *read_field(const octet_field *field, const char *at) {
    if (field->count <= 1) {
        return read_one(field, at);
    }
    PyObject *tuple = PyTuple_New(field->count);
    for (int i = 0; tuple && i < field->count; i++) {
        PyObject *item = read_one(field, at + (size_t)i * field->stride);
        oct_py_put(&tuple, i, item);
    }
    return tuple;
}

PyObject *oct_py_fields(const octet_field *fields, const void *from) {
    PyObject *dict = PyDict_New();
    for (const octet_field *field = fields; dict && field->name; field++) {
        PyObject *value = read_field(field, (const char *)from + field->offset);
        if (!value || PyDict_SetItemString(dict, field->name, value)) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(value);
    }
    return dict;
}

/* ---- writing a field --------------------------------------------------------------------- */

/* "max, most_recent, callback" */
static const char *list_words(char *out, size_t size, const octet_field *field) {
    size_t length = 0;
    out[0] = 0;
    for (int i = 0; i < field->limit && length < size; i++) {
        int more =
            snprintf(out + length, size - length, "%s%s", i ? ", " : "", field->words[i]);
        length += more > 0 ? (size_t)more : 0;
    }
    return out;
}

static int write_word(const octet_field *field, char *at, PyObject *value) {
    const char *word = PyUnicode_AsUTF8AndSize(value, NULL);
    for (int i = 0; word && i < field->limit; i++) {
        if (!strcmp(word, field->words[i])) {
            *(uint8_t *)at = (uint8_t)i;
            return 0;
        }
    }
    if (word) {
        char words[256];
        PyErr_Format(PyExc_ValueError, "%s is '%s'; allowed: %s", field->name, word,
                     list_words(words, sizeof words, field));
    }
    return -1;
}

static int write_integer(const octet_field *field, char *at, PyObject *value) {
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
    switch (field->type) {
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
        PyErr_Format(PyExc_ValueError, "%s cannot be %lld", field->name, number);
    }
    return fits ? 0 : -1;
}

static int write_one(const octet_field *field, char *at, PyObject *value) {
    if (field->type == OCTET_FIELD_STRUCT) {
        return oct_py_set_fields(field->fields, at, value);
    }
    if (field->type == OCTET_FIELD_WORD) {
        return write_word(field, at, value);
    }
    if (field->type == OCTET_FIELD_FLAG) {
        int truth = PyObject_IsTrue(value);
        *(uint8_t *)at = truth > 0;
        return truth < 0 ? -1 : 0;
    }
    if (field->type == OCTET_FIELD_F32) {
        double number = PyFloat_AsDouble(value);
        float f32 = (float)number;
        memcpy(at, &f32, sizeof f32);
        return PyErr_Occurred() ? -1 : 0;
    }
    return write_integer(field, at, value);
}

static const octet_field *find_field(const octet_field *fields, PyObject *key) {
    const char *name = PyUnicode_AsUTF8AndSize(key, NULL);
    for (const octet_field *field = fields; name && field->name; field++) {
        if (!strcmp(name, field->name) && field->count <= 1) {
            return field;
        }
    }
    if (name) {
        PyErr_Format(PyExc_ValueError, "there is no field '%s'", name);
    }
    return NULL;
}

int oct_py_set_fields(const octet_field *table, void *to, PyObject *fields) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    if (!PyDict_Check(fields)) {
        PyErr_SetString(PyExc_TypeError, "fields are a dict");
        return -1;
    }
    while (PyDict_Next(fields, &at, &key, &value)) {
        const octet_field *field = find_field(table, key);
        if (!field || write_one(field, (char *)to + field->offset, value)) {
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
        oct_py_put(&tuple, i, dim);
    }
    return tuple;
}
