/* module.c - octet._C: thin wrappers of the C core. Nothing is decided here or in Python. */
#include "octet_c.h"
#include "torch/ops.h"

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "octet._C",
    .m_doc = "Octet's C core: values, layouts, plans and torch's ops.",
    .m_size = -1,
};

/* Takes the object over. */
static int add_owned(PyObject *module, const char *name, PyObject *object) {
    int status = object ? PyModule_AddObjectRef(module, name, object) : -1;
    Py_XDECREF(object);
    return status;
}

/* The overloads of an op that writes, by the number of its outputs. */
static PyObject *overloads(void) {
    int count = OCT_TORCH_INTO_OUTPUTS + 1;
    PyObject *names = PyTuple_New(count);
    for (int i = 0; names && i < count; i++) {
        PyObject *name = PyUnicode_FromString(oct_torch_overloads[i]);
        oct_py_put(&names, i, name);
    }
    return names;
}

/* The parts of a quantized tensor that only its columnwise bytes have, by name. */
static PyObject *columnwise_parts(void) {
    return Py_BuildValue("(sss)", octet_part_name(OCTET_PART_COL_DATA),
                         octet_part_name(OCTET_PART_COL_SCALE),
                         octet_part_name(OCTET_PART_COL_AMAX));
}

PyMODINIT_FUNC PyInit__C(void);
PyMODINIT_FUNC PyInit__C(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && (PyModule_AddFunctions(module, oct_py_value_methods) ||
                   PyModule_AddFunctions(module, oct_py_tensor_methods) ||
                   PyModule_AddFunctions(module, oct_py_plan_methods) ||
                   PyModule_AddFunctions(module, oct_py_signature_methods) ||
                   PyModule_AddFunctions(module, oct_py_phase_methods) ||
                   PyModule_AddFunctions(module, oct_py_device_methods) ||
                   PyModule_AddFunctions(module, oct_py_hook_methods) ||
                   add_owned(module, "LiveValue", oct_py_live_type()) ||
                   add_owned(module, "OVERLOADS", overloads()) ||
                   add_owned(module, "COLUMNWISE_PARTS", columnwise_parts()) ||
                   PyModule_AddIntConstant(module, "FORWARD_SLOTS", OCTET_FORWARD_SLOTS) ||
                   PyModule_AddIntConstant(module, "BACKWARD_SLOTS", OCTET_BACKWARD_SLOTS) ||
                   PyModule_AddIntConstant(module, "MOST_CHUNKS", OCTET_MOST_CHUNKS) ||
                   PyModule_AddIntConstant(module, "NO_EXPONENT", OCT_PY_NO_EXPONENT) ||
                   PyModule_AddIntConstant(module, "ALIGN", OCTET_ALIGN))) {
        Py_CLEAR(module);
    }
    return module;
}
