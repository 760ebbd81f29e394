/* fill.h - what the files that make a group share. */
#ifndef OCTET_RUN_FILL_H
#define OCTET_RUN_FILL_H

#include "group.h"

/* Guarded, aligned as blocks are, and the group's to free. */
void *run_allocate(run_group *group, int64_t bytes, int fill);
/* The start of the port or block that holds a buffer. */
const void *run_block_start(const octet_memory *memory, const octet_plan_buffer *buffer);

/* The layer's numbers and what follows from them. */
void run_make_layer(run_group *group);
/* Everything that one plan reads and writes on one rank. */
octet_status run_give_memory(run_group *group, int rank, int plan);

#endif
