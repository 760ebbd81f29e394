/* dtype.h - the element types, one row each. */
#ifndef OCT_CORE_DTYPE_H
#define OCT_CORE_DTYPE_H

#include "core/text.h"

/* Names by octet_dtype, NULL-terminated: the word list of a dtype field. */
extern const char *const oct_dtype_words[OCTET_DTYPES + 1];

octet_status oct_dtype_parse_span(octet_dtype *out, oct_span text, octet_error *err);

/* F32, BF16 or F16: what a tensor may be before it is quantized. */
bool oct_dtype_is_high_precision(uint8_t dtype);

#endif
