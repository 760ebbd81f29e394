/* check.h - checks that a tensor fits a port. */
#ifndef OCT_TORCH_CHECK_H
#define OCT_TORCH_CHECK_H

#include "torch/device.h"
#include "torch/request.h"

#define OCT_UNKNOWN_SIZE (-1) /* a size that a compiler does not know */

/* Checks dtype, number of elements and shape. */
octet_status oct_check_values(const oct_tensor_facts *f, const octet_port *port,
                              octet_error *err);
/* The same, and the device. */
octet_status oct_check_port(const oct_tensor_facts *f, const octet_plan *plan,
                            const octet_port *port, octet_error *err);
/* Puts the argument's name in front of the error. */
octet_status oct_name_argument(octet_error *err, int index, const octet_port *port);

#endif
