/* throw.cpp - an op that failed throws, and torch makes a Python exception of it. The only C++:
 * an exception starts here, above every C frame of the op, and passes through none. */
#include <new>
#include <stdexcept>

#include "torch/ops.h"

namespace {

/* Memory that is not there, in the words of the error. */
class no_memory : public std::bad_alloc {
  public:
    explicit no_memory(const octet_error &from) noexcept : err(from) {}
    const char *what() const noexcept override { return err.text; }

  private:
    octet_error err;
};

/* torch turns these into ValueError, MemoryError and RuntimeError. Its OutOfMemoryError is a C++
 * class of its own that no stable function throws; eager layers raise that in Python. */
[[noreturn]] void raise(octet_status status, const octet_error &err) {
    if (status == OCTET_INVALID) {
        throw std::invalid_argument(err.text);
    }
    if (status == OCTET_NO_MEMORY) {
        throw no_memory(err);
    }
    throw std::runtime_error(err.text);
}

template <octet_status (*op)(oct_torch_value *, octet_error *)>
void kernel(oct_torch_value *stack, uint64_t, uint64_t) {
    octet_error err = {};
    octet_status status = op(stack, &err);
    if (status != OCTET_OK) {
        raise(status, err);
    }
}

template <octet_status (*op)(oct_torch_value *, uint64_t, octet_error *)>
void kernel_into(oct_torch_value *stack, uint64_t, uint64_t outputs) {
    octet_error err = {};
    octet_status status = op(stack, outputs, &err);
    if (status != OCTET_OK) {
        raise(status, err);
    }
}

} // namespace

extern "C" const oct_torch_kernel oct_torch_kernels[] = {
#define X(name, schema) kernel<oct_op_##name>,
    OCT_TORCH_OPS(X)
#undef X
};

extern "C" const oct_torch_kernel oct_torch_into_kernels[] = {
#define X(name, arguments) kernel_into<oct_op_##name>,
    OCT_TORCH_INTO_OPS(X)
#undef X
};
