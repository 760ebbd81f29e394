/* plugin.c - the ops for a program without Python: liboctet_torch.so, and its one function. */
#include <string.h>

#include "torch/ops.h"

/* There is no Python here: an op's failure is a std::runtime_error. */
static void no_python(octet_status status, const char *text) {
    (void)status;
    (void)text;
}

/* Registers the ops with the torch whose libtorch_cpu this names; "libtorch_cpu.so" is the one
 * that the program is linked to. Once per process, before a model that has layers is loaded.
 * NULL, or what went wrong, in memory of the library's. One thread at a time. */
OCTET_API const char *octet_torch_register(const char *libtorch) {
    static octet_error err;
    memset(&err, 0, sizeof err);
    return oct_torch_register(libtorch, no_python, &err) ? err.text : NULL;
}
