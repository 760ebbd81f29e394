/* fields.h - equality, hash and text of a struct from its one table of fields. */
#ifndef OCT_CORE_FIELDS_H
#define OCT_CORE_FIELDS_H

#include "core/text.h"

/* Entries of a table. The last argument of each is the line for people. */
#define OCT_FIELD(S, member, word, type, words, fields, scope, limit, about)                   \
    {#member, word, about, words, fields, scope, offsetof(S, member), 0, 1, type, limit}
#define OCT_FLAG(S, member, word, scope, about)                                                \
    OCT_FIELD(S, member, word, OCTET_FIELD_FLAG, NULL, NULL, scope, 2, about)
/* `words` is an array whose last element is NULL. */
#define OCT_WORD(S, member, word, words, scope, about)                                         \
    OCT_FIELD(S, member, word, OCTET_FIELD_WORD, words, NULL, scope,                           \
              sizeof(words) / sizeof(words)[0] - 1, about)
#define OCT_NUMBER(S, member, word, type, scope, about)                                        \
    OCT_FIELD(S, member, word, type, NULL, NULL, scope, 0, about)
#define OCT_STRUCT(S, member, word, fields, about)                                             \
    OCT_FIELD(S, member, word, OCTET_FIELD_STRUCT, NULL, fields, UINT32_MAX, 0, about)
#define OCT_ARRAY(S, member, type, fields, about)                                              \
    {#member,                                                                                  \
     NULL,                                                                                     \
     about,                                                                                    \
     NULL,                                                                                     \
     fields,                                                                                   \
     UINT32_MAX,                                                                               \
     offsetof(S, member),                                                                      \
     sizeof((S){0}.member[0]),                                                                 \
     sizeof((S){0}.member) / sizeof((S){0}.member[0]),                                         \
     type,                                                                                     \
     0}
#define OCT_FIELDS_END {NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0}

#define OCT_ANY UINT32_MAX

/* Value by value; members that no field names (sizes, reserved bytes) do not count. */
bool oct_fields_equal(const octet_field *fields, const void *a, const void *b);
uint64_t oct_fields_hash(const octet_field *fields, const void *value);
/* Of a value without padding, every byte of which counts. */
uint64_t oct_hash_bytes(const void *bytes, size_t count);

/* A scalar field as a number: FLAG, WORD, U8, U16, U32, I32, I64. */
int64_t oct_field_get(const octet_field *field, const void *value);
void oct_field_set(const octet_field *field, void *value, int64_t number);

/* A scalar field from its text and to it. */
octet_status oct_field_parse(const octet_field *field, void *value, oct_span text,
                             octet_error *err);
void oct_field_write(const octet_field *field, const void *value, oct_writer *writer);

/* Flags are 0 or 1, words are in their list, floats are finite; fields out of scope are zero.
 */
octet_status oct_fields_check(const octet_field *fields, const void *value, int kind,
                              const char *what, octet_error *err);

/* The field whose text word is `word`, or NULL. */
const octet_field *oct_fields_find(const octet_field *fields, oct_span word);

#endif
