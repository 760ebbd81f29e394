/* support.h - what the environment asks of products. */
#ifndef OCT_QUANT_SUPPORT_H
#define OCT_QUANT_SUPPORT_H

#include "octet.h"

/* Whether $OCTET_MXFP8 asks for exact products of MXFP8; OCTET_INVALID where it says what means
 * nothing. It is read at each call. */
octet_status oct_exact_asked(bool *out, octet_error *err);

#endif
