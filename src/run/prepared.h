/* prepared.h - a phase whose launches are decided: its list, and the memory that it fits. */
#ifndef OCT_RUN_PREPARED_H
#define OCT_RUN_PREPARED_H

#include <stdatomic.h>

#include "run/run.h"

struct octet_prepared {
    const octet_plan *plan;
    int phase;
    octet_cuda *cuda;
    void *list;        /* NULL: runs decide */
    atomic_bool stale; /* likewise, from now on */
    oct_regions used;  /* as they were in the memory that it was prepared for */
};

static inline uint8_t oct_low_of(const void *at) {
    return (uint8_t)((uintptr_t)at % OCT_START_ALIGN);
}

#endif
