/* octet.h - the whole public C API: values in, plan out, run on your memory.
 *
 * Everything here is a value: a struct without pointers or hidden state, copied by assignment.
 * Functions take the out parameter first and an optional octet_error last. They never abort,
 * exit, print or allocate (octet_pool_create, octet_capture and an open GPU do), and write
 * nothing to *out unless they return OCTET_OK. They have no state, so any thread may call any
 * of them at any time as long as no other thread is writing the structs passed in. A `const
 * char *` that is returned points at static text; text written through `char *, size_t` is the
 * caller's, and the length it needs is returned as by snprintf.
 *
 * Structs begin with their size. Those that the caller fills (octet_linear_args, ...) or holds
 * for the library to fill (octet_plan) start from their _INIT macro, which sets it: `octet_plan
 * plan = OCTET_PLAN_INIT;`, or later `plan = OCTET_PLAN_INIT;`. A size from another version of
 * this header is refused. Small values (octet_quantizer, octet_proto,
 * octet_recipe, octet_layout) need no initializer where they are an out parameter.
 * Zero is the default of every field.
 */
#ifndef OCTET_H
#define OCTET_H

/* The one place of the version: CMake, pkg-config and the Python package read it from here. */
#define OCTET_VERSION_MAJOR 0
#define OCTET_VERSION_MINOR 1
#define OCTET_VERSION_PATCH 0

#include "octet/base.h"
#include "octet/cuda.h"
#include "octet/graph.h"
#include "octet/linear.h"
#include "octet/plan.h"
#include "octet/quant.h"
#include "octet/run.h"
#include "octet/signature.h"

#endif
