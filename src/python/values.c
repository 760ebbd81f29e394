/* values.c - quantizers, recipes and problems by their texts: canonical form, fields, identity.
 */
#include <string.h>

#include "octet_c.h"

enum { QUANTIZER, RECIPE, LINEAR, KINDS };

typedef union value {
    octet_quantizer quantizer;
    octet_recipe recipe;
    octet_linear_args linear;
} value;

static int find_kind(const char *name) {
    static const char *const names[KINDS] = {"quantizer", "recipe", "linear"};
    for (int i = 0; i < KINDS; i++) {
        if (!strcmp(name, names[i])) {
            return i;
        }
    }
    PyErr_Format(PyExc_ValueError, "'%s' is not quantizer, recipe or linear", name);
    return -1;
}

static octet_status parse(value *out, int kind, const char *text, octet_error *err) {
    return kind == QUANTIZER ? octet_quantizer_parse(&out->quantizer, text, err)
           : kind == RECIPE  ? octet_recipe_parse(&out->recipe, text, err)
                             : octet_linear_parse(&out->linear, text, err);
}

static octet_status check(const value *v, int kind, octet_error *err) {
    return kind == QUANTIZER ? octet_quantizer_check(&v->quantizer, err)
           : kind == RECIPE  ? octet_recipe_check(&v->recipe, err)
                             : octet_linear_check(&v->linear, err);
}

static PyObject *print(const value *v, int kind) {
    char text[OCTET_LINEAR_TEXT];
    if (kind == QUANTIZER) {
        (void)octet_quantizer_print(text, sizeof text, &v->quantizer);
    } else if (kind == RECIPE) {
        (void)octet_recipe_print(text, sizeof text, &v->recipe);
    } else {
        (void)octet_linear_print(text, sizeof text, &v->linear);
    }
    return PyUnicode_FromString(text);
}

static const octet_field *rows_of(int kind) {
    static const octet_struct structs[KINDS] = {OCTET_STRUCT_QUANTIZER, OCTET_STRUCT_RECIPE,
                                                OCTET_STRUCT_LINEAR_ARGS};
    return octet_fields(structs[kind]);
}

/* The value that a text means; -1 with an exception set. */
static int read_value(value *out, const char *kind_name, const char *text) {
    octet_error err;
    int kind = find_kind(kind_name);
    octet_status status = kind < 0 ? OCTET_OK : parse(out, kind, text, &err);
    if (status) {
        (void)oct_py_raise(status, &err);
    }
    return status ? -1 : kind;
}

/* ---- methods ----------------------------------------------------------------------------- */

static PyObject *canonical(PyObject *self, PyObject *args) {
    const char *kind, *text;
    value v;
    (void)self;
    if (!PyArg_ParseTuple(args, "ss", &kind, &text)) {
        return NULL;
    }
    int which = read_value(&v, kind, text);
    return which < 0 ? NULL : print(&v, which);
}

static PyObject *fields(PyObject *self, PyObject *args) {
    const char *kind, *text;
    value v;
    (void)self;
    if (!PyArg_ParseTuple(args, "ss", &kind, &text)) {
        return NULL;
    }
    int which = read_value(&v, kind, text);
    return which < 0 ? NULL : oct_py_fields(rows_of(which), &v);
}

static PyObject *make(PyObject *self, PyObject *args) {
    const char *kind, *text;
    PyObject *changes;
    octet_error err;
    value v;
    (void)self;
    if (!PyArg_ParseTuple(args, "ssO", &kind, &text, &changes)) {
        return NULL;
    }
    int which = read_value(&v, kind, text);
    if (which < 0 || oct_py_set_fields(rows_of(which), &v, changes)) {
        return NULL;
    }
    octet_status status = check(&v, which, &err);
    return status ? oct_py_raise(status, &err) : print(&v, which);
}

static PyObject *equal(PyObject *self, PyObject *args) {
    const char *kind, *a, *b;
    value left, right;
    (void)self;
    if (!PyArg_ParseTuple(args, "sss", &kind, &a, &b)) {
        return NULL;
    }
    int which = read_value(&left, kind, a);
    if (which < 0 || read_value(&right, kind, b) < 0) {
        return NULL;
    }
    return PyBool_FromLong(which == QUANTIZER
                               ? octet_quantizer_equal(&left.quantizer, &right.quantizer)
                           : which == RECIPE ? octet_recipe_equal(&left.recipe, &right.recipe)
                                             : octet_linear_equal(&left.linear, &right.linear));
}

static PyObject *hash(PyObject *self, PyObject *args) {
    const char *kind, *text;
    value v;
    (void)self;
    if (!PyArg_ParseTuple(args, "ss", &kind, &text)) {
        return NULL;
    }
    int which = read_value(&v, kind, text);
    if (which < 0) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(which == QUANTIZER ? octet_quantizer_hash(&v.quantizer)
                                       : which == RECIPE  ? octet_recipe_hash(&v.recipe)
                                                          : octet_linear_hash(&v.linear));
}

static PyObject *with_usage(PyObject *self, PyObject *args) {
    const char *text;
    int rowwise, columnwise;
    octet_error err;
    value v;
    (void)self;
    if (!PyArg_ParseTuple(args, "spp", &text, &rowwise, &columnwise) ||
        read_value(&v, "quantizer", text) < 0) {
        return NULL;
    }
    octet_status status =
        octet_quantizer_with_usage(&v.quantizer, &v.quantizer, rowwise, columnwise, &err);
    return status ? oct_py_raise(status, &err) : print(&v, QUANTIZER);
}

static PyObject *row_step(PyObject *self, PyObject *args) {
    const char *text;
    value v;
    (void)self;
    if (!PyArg_ParseTuple(args, "s", &text) || read_value(&v, "quantizer", text) < 0) {
        return NULL;
    }
    return PyLong_FromLongLong(octet_quantizer_row_step(&v.quantizer));
}

static PyObject *column_step(PyObject *self, PyObject *args) {
    const char *text;
    value v;
    (void)self;
    if (!PyArg_ParseTuple(args, "s", &text) || read_value(&v, "quantizer", text) < 0) {
        return NULL;
    }
    return PyLong_FromLongLong(octet_quantizer_column_step(&v.quantizer));
}

static PyObject *transposable(PyObject *self, PyObject *args) {
    const char *text;
    value v;
    (void)self;
    if (!PyArg_ParseTuple(args, "s", &text) || read_value(&v, "quantizer", text) < 0) {
        return NULL;
    }
    return PyBool_FromLong(octet_quantizer_transposable(&v.quantizer));
}

static PyObject *role_quantizer(PyObject *self, PyObject *args) {
    const char *text, *role;
    octet_error err;
    value recipe, v;
    (void)self;
    if (!PyArg_ParseTuple(args, "ss", &text, &role) ||
        read_value(&recipe, "recipe", text) < 0) {
        return NULL;
    }
    int which = 0;
    while (which < OCTET_ROLES && strcmp(role, octet_role_name((octet_role)which)) != 0) {
        which++;
    }
    if (which == OCTET_ROLES) {
        PyErr_Format(PyExc_ValueError, "'%s' is not a role of a Linear", role);
        return NULL;
    }
    octet_status status =
        octet_recipe_quantizer(&v.quantizer, &recipe.recipe, (octet_role)which, &err);
    return status ? oct_py_raise(status, &err) : print(&v, QUANTIZER);
}

static PyObject *parameter_quantizer(PyObject *self, PyObject *args) {
    static const int64_t unit[] = {1, 1, 1};
    const char *words;
    octet_error err;
    octet_linear_args call;
    value v;
    (void)self;
    if (!PyArg_ParseTuple(args, "s", &words)) {
        return NULL;
    }
    octet_status status = octet_linear_parse_words(&call, words, unit, 3, &err);
    status = status ? status : octet_linear_parameter_quantizer(&v.quantizer, &call, &err);
    return status ? oct_py_raise(status, &err) : print(&v, QUANTIZER);
}

/* Of the input, or of the gradient that arrives, of calls with these words. */
static PyObject *shared_quantizer(PyObject *self, PyObject *args) {
    static const int64_t unit[] = {1, 1, 1};
    const char *words;
    int of_grad;
    octet_error err;
    octet_linear_backward_args call;
    value v;
    (void)self;
    if (!PyArg_ParseTuple(args, "sp", &words, &of_grad)) {
        return NULL;
    }
    octet_status status = octet_linear_backward_parse_words(&call, words, unit, 3, &err);
    if (!status) {
        status = of_grad ? octet_linear_shared_grad(&v.quantizer, &call, &err)
                         : octet_linear_shared_input(&v.quantizer, &call.forward, &err);
    }
    return status ? oct_py_raise(status, &err) : print(&v, QUANTIZER);
}

/* Asks a dict of role -> text; what it lacks is not quantized. */
static octet_status ask(octet_quantizer *out, const octet_quantizer_role *role, void *user,
                        octet_error *err) {
    PyObject *text = oct_py_find(user, octet_role_name(role->role));
    const char *utf8 = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    return utf8 ? octet_quantizer_parse(out, utf8, err) : OCTET_OK;
}

static PyObject *custom_recipe(PyObject *self, PyObject *args) {
    PyObject *roles;
    octet_error err;
    value v;
    (void)self;
    if (!PyArg_ParseTuple(args, "O!", &PyDict_Type, &roles)) {
        return NULL;
    }
    octet_status status = octet_recipe_custom(&v.recipe, ask, roles, &err);
    if (PyErr_Occurred()) {
        return NULL;
    }
    return status ? oct_py_raise(status, &err) : print(&v, RECIPE);
}

PyMethodDef oct_py_value_methods[] = {
    {"canonical", canonical, METH_VARARGS, "canonical(kind, text) -> text"},
    {"fields", fields, METH_VARARGS, "fields(kind, text) -> dict of the struct's fields"},
    {"make", make, METH_VARARGS, "make(kind, text, fields) -> text with fields changed"},
    {"equal", equal, METH_VARARGS, "equal(kind, text, text) -> bool"},
    {"hash", hash, METH_VARARGS, "hash(kind, text) -> int"},
    {"with_usage", with_usage, METH_VARARGS,
     "with_usage(quantizer, rowwise, columnwise) -> text"},
    {"row_step", row_step, METH_VARARGS,
     "row_step(quantizer) -> rows that stay together; 0: all"},
    {"column_step", column_step, METH_VARARGS,
     "column_step(quantizer) -> columns that stay together; 0: all"},
    {"transposable", transposable, METH_VARARGS,
     "transposable(quantizer) -> one direction's bytes give the other's"},
    {"role_quantizer", role_quantizer, METH_VARARGS, "role_quantizer(recipe, role) -> text"},
    {"parameter_quantizer", parameter_quantizer, METH_VARARGS,
     "parameter_quantizer(words) -> the quantizer of a weight that is stored for such calls"},
    {"shared_quantizer", shared_quantizer, METH_VARARGS,
     "shared_quantizer(words, of_grad) -> the quantizer of a cast that such calls may share"},
    {"custom_recipe", custom_recipe, METH_VARARGS, "custom_recipe({role: quantizer}) -> text"},
    {NULL, NULL, 0, NULL},
};
