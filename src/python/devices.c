/* devices.c - the GPUs: how torch's are reached, and what plans call them. */
#include <stdio.h>

#include "octet_c.h"
#include "torch/cuda.h"

static PyObject *use_cuda(PyObject *self, PyObject *args) {
    const char *path, *folders;
    octet_error err;
    (void)self;
    if (!PyArg_ParseTuple(args, "ss", &path, &folders)) {
        return NULL;
    }
    octet_status status = oct_torch_cuda_load(path, folders, &err);
    return status ? oct_py_raise(status, &err) : Py_NewRef(Py_None);
}

static PyObject *cuda_device(PyObject *self, PyObject *args) {
    int index;
    octet_device device;
    octet_error err;
    char text[32];
    (void)self;
    if (!PyArg_ParseTuple(args, "i", &index)) {
        return NULL;
    }
    octet_status status = oct_torch_cuda_device(&device, index, &err);
    if (status) {
        return oct_py_raise(status, &err);
    }
    (void)snprintf(text, sizeof text, "cuda:%u/%u", device.index, device.arch);
    return PyUnicode_FromString(text);
}

PyMethodDef oct_py_device_methods[] = {
    {"use_cuda", use_cuda, METH_VARARGS,
     "use_cuda(path of libtorch_cuda, folders of CUDA's libraries); once per process"},
    {"cuda_device", cuda_device, METH_VARARGS,
     "cuda_device(index) -> what plans call that GPU: 'cuda:0/90'"},
    {NULL, NULL, 0, NULL},
};
