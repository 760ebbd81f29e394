/* driver.h - the CUDA driver, found once for the process, and its errors in words. */
#ifndef OCT_CUDA_DRIVER_H
#define OCT_CUDA_DRIVER_H

#include "cuda/api.h"
#include "octet.h"

/* The driver's functions, initialized. Borrowed; the same for every caller. OCTET_UNSUPPORTED
 * where there is no driver, OCTET_DEVICE where it fails. Any thread may call it. */
octet_status oct_driver_get(const oct_driver **out, octet_error *err);

/* CUDA_VERSION that the driver serves: 1000 * major + 10 * minor. 0 where it does not say. */
int oct_driver_version(const oct_driver *driver);

#endif
