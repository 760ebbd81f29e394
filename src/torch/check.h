/* check.h - whether a tensor is what a port asks for. */
#ifndef OCT_TORCH_CHECK_H
#define OCT_TORCH_CHECK_H

#include "torch/device.h"
#include "torch/request.h"

#define OCT_UNKNOWN_SIZE (-1) /* of a tensor or a port that a compiler describes */

/* dtype, number of elements, shape. */
octet_status oct_check_values(const oct_tensor_facts *f, const octet_port *port,
                              octet_error *err);
/* The same, and where it is. */
octet_status oct_check_port(const oct_tensor_facts *f, const octet_plan *plan,
                            const octet_port *port, octet_error *err);
/* The failure with the argument's name before it. */
octet_status oct_name_argument(octet_error *err, int index, const octet_port *port);

#endif
