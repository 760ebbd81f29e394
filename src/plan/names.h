/* names.h - what tensors and buffers of a plan are called. */
#ifndef OCT_PLAN_NAMES_H
#define OCT_PLAN_NAMES_H

#include "core/text.h"

/* By octet_prologue; the last one is NULL. */
extern const char *const oct_prologue_words[OCTET_PROLOGUES + 1];

void oct_write_name(oct_writer *writer, int name, int form);
void oct_write_part_name(oct_writer *writer, int name, int form, int part);
void oct_write_tensor_name(oct_writer *writer, const octet_plan *plan, int tensor);
void oct_write_buffer_name(oct_writer *writer, const octet_plan *plan, int buffer);

#endif
