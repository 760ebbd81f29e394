/* throw.cpp - an op that failed throws, and Python sees the exception of its status. The only
 * C++: an exception starts here, above every C frame of the op, and passes through none. */
#include <stdexcept>

#include "torch/ops.h"

/* pybind11's class of exceptions that set Python's error themselves, for modules that were built
 * apart. torch calls ops through pybind11, and every version lets this class pass. What it makes
 * of standard exceptions differs: std::invalid_argument is a ValueError until 2.14 and a
 * RuntimeError from 2.15 on. A torch that does not know the class sees a std::runtime_error
 * with the same text. */
namespace pybind11 {
class [[gnu::visibility("default")]] builtin_exception : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
    virtual void set_error() const = 0; /* called with the GIL */
};
} // namespace pybind11

namespace {

/* It holds the text itself: memory may be what is missing. */
class failure : public pybind11::builtin_exception {
  public:
    failure(octet_status is, const octet_error &from) noexcept
        : builtin_exception(""), status(is), err(from) {}
    const char *what() const noexcept override { return err.text; }
    void set_error() const override { oct_torch.set_python_error(status, err.text); }

  private:
    octet_status status;
    octet_error err;
};

template <octet_status (*op)(oct_torch_value *, octet_error *)>
void kernel(oct_torch_value *stack, uint64_t, uint64_t) {
    octet_error err = {};
    octet_status status = op(stack, &err);
    if (status != OCTET_OK) {
        throw failure(status, err);
    }
}

template <octet_status (*op)(oct_torch_value *, uint64_t, octet_error *)>
void kernel_into(oct_torch_value *stack, uint64_t, uint64_t outputs) {
    octet_error err = {};
    octet_status status = op(stack, outputs, &err);
    if (status != OCTET_OK) {
        throw failure(status, err);
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
