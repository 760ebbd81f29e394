/* module.c - octet._C: thin wrappers of the C core. Nothing is decided here or in Python. */
#include "octet_c.h"

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "octet._C",
    .m_doc = "Octet's C core: values, layouts, plans and torch's ops.",
    .m_size = -1,
};

static int add_type(PyObject *module, const char *name, PyObject *type) {
    int status = type ? PyModule_AddObjectRef(module, name, type) : -1;
    Py_XDECREF(type);
    return status;
}

PyMODINIT_FUNC PyInit__C(void);
PyMODINIT_FUNC PyInit__C(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && (PyModule_AddFunctions(module, oct_py_value_methods) ||
                   PyModule_AddFunctions(module, oct_py_tensor_methods) ||
                   PyModule_AddFunctions(module, oct_py_plan_methods) ||
                   PyModule_AddFunctions(module, oct_py_signature_methods) ||
                   PyModule_AddFunctions(module, oct_py_device_methods) ||
                   add_type(module, "LiveValue", oct_py_live_type()) ||
                   PyModule_AddIntConstant(module, "ALIGN", OCTET_ALIGN))) {
        Py_CLEAR(module);
    }
    return module;
}
