/* run_memory.h - the buffers of a plan in the caller's memory. */
#ifndef OCT_LINEAR_RUN_MEMORY_H
#define OCT_LINEAR_RUN_MEMORY_H

#include "octet.h"

/* Whether the memory serves every step of the phase. Writes nothing to it. */
octet_status oct_memory_check(const octet_plan *plan, int phase, const octet_memory *memory,
                              octet_error *err);

/* Where a buffer lies; NULL for OCTET_ABSENT. Of a buffer that is only read, not to be written.
 */
void *oct_memory_at(const octet_plan *plan, const octet_memory *memory, uint8_t buffer);

#endif
