/* base.h - status and errors, element types, scalar formats, field tables. */
#ifndef OCTET_BASE_H
#define OCTET_BASE_H

/* The include may stand inside `extern "C"`: the C++ parts below say so themselves. */
#ifdef __cplusplus
extern "C++" {
#endif
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
}
#endif

#if defined(__GNUC__)
#define OCTET_API __attribute__((visibility("default")))
#else
#define OCTET_API
#endif

#if defined(__GNUC__)
#define OCTET_CHECKED __attribute__((warn_unused_result))
#else
#define OCTET_CHECKED
#endif

/* The value of every _INIT macro: the size is set, all else is zero. It may initialize a
 * variable or be assigned. It is no constant expression in ISO C: write a static struct as
 * {.size = sizeof(octet_plan)}. */
#ifdef __cplusplus
extern "C++" {
template <class T> inline T octet_sized_value() {
    T value = T();
    value.size = sizeof(T);
    return value;
}
}
#define OCTET_SIZED(T) octet_sized_value<T>()
extern "C" {
#else
#define OCTET_SIZED(T) ((T){.size = sizeof(T)})
#endif

/* ---- status and errors ---------------------------------------------------------------- */

typedef enum octet_status {
    OCTET_OK = 0,
    OCTET_INVALID = 1,     /* the caller broke a rule; the text gives the value and the rule */
    OCTET_UNSUPPORTED = 2, /* a valid request that this build or device cannot serve */
    OCTET_NO_MEMORY = 3,
    OCTET_DEVICE = 4 /* a driver or device library failed */
} octet_status;

/* Filled on failure only; may be NULL. This struct will not grow, so it has no size member and
 * needs no initializer. `column` is the 1-based position in a parsed text, 0 if there is none.
 */
typedef struct octet_error {
    octet_status status;
    int32_t column;
    char text[504];
} octet_error;

OCTET_API const char *octet_version(void); /* "0.1.0" */
OCTET_API const char *octet_status_name(octet_status status);

/* ---- element types and scalar formats -------------------------------------------------- */

typedef enum octet_dtype {
    OCTET_NONE = 0,
    OCTET_F32,
    OCTET_BF16,
    OCTET_F16,
    OCTET_U8,
    OCTET_I64,
    OCTET_E4M3, /* 1/4/3, max 448, no infinity, 0x7f is NaN */
    OCTET_E5M2, /* 1/5/2, max 57344 */
    OCTET_E2M1, /* 1/2/1, max 6, two codes a byte, first in the low nibble */
    OCTET_E8M0, /* 8-bit power of two, 255 is NaN */
    OCTET_DTYPES
} octet_dtype;

OCTET_API const char *octet_dtype_name(octet_dtype dtype); /* "bf16"; "?" when unknown */
OCTET_API int octet_dtype_bits(octet_dtype dtype);         /* 0 when unknown */
/* The dtype of a name; "none" is one, too. */
OCTET_API OCTET_CHECKED octet_status octet_dtype_parse(octet_dtype *out, const char *text,
                                                       octet_error *err);

/* Nearest code, ties to even; E4M3, E5M2 and E2M1 saturate; E8M0 rounds up. docs/formats.md has
 * every case. `format` is F32, BF16, F16, E4M3, E5M2, E2M1 or E8M0; anything else gives 0. Bits
 * of a code above its format are ignored. On 32-bit x86 a signalling NaN is returned quiet: the
 * calling convention does that. */
OCTET_API uint32_t octet_encode(octet_dtype format, float value);
OCTET_API float octet_decode(octet_dtype format, uint32_t code);
/* E2M1 with stochastic rounding by one random byte. */
OCTET_API uint32_t octet_encode_stochastic(float value, uint8_t random);
/* Philox4x32-10: the 16 random bytes, little-endian words, of one block of 16 elements.
 * The key is the seed, the counter (block, direction, stream), low words first. direction 0 is
 * rowwise, 1 columnwise; stream is OCTET_STREAM_* of the tensor's role. */
OCTET_API void octet_random_block(uint8_t out[16], uint64_t seed, uint64_t block,
                                  uint32_t direction, uint32_t stream);

/* ---- fields: one table per struct ------------------------------------------------------ */

typedef enum octet_field_type {
    OCTET_FIELD_FLAG, /* uint8_t, 0 or 1 */
    OCTET_FIELD_WORD, /* uint8_t, an index into `words` */
    OCTET_FIELD_U8,
    OCTET_FIELD_U16,
    OCTET_FIELD_U32,
    OCTET_FIELD_I32,
    OCTET_FIELD_I64,
    OCTET_FIELD_F32,
    OCTET_FIELD_STRUCT /* a struct with `fields` of its own */
} octet_field_type;

/* A field of a struct, in the table of that struct: equality, hash, text and views in other
 * languages all come from these fields. Static and immutable; a table ends with a NULL name. */
typedef struct octet_field {
    const char *name;  /* the C member's name */
    const char *word;  /* its word in the text form; NULL if the text has a fixed position for
                        * it */
    const char *about; /* one line for people */
    const char *const *words;         /* WORD: NULL-terminated, indexed by the value */
    const struct octet_field *fields; /* STRUCT */
    uint32_t scope;                   /* bit s: the field is used by scheme or recipe kind s */
    uint16_t offset;
    uint16_t stride; /* bytes from one element of an array to the next */
    uint8_t count;   /* 1, or the length of an array */
    uint8_t type;    /* octet_field_type */
    uint8_t limit;   /* FLAG and WORD: values are less than this */
} octet_field;

typedef enum octet_struct {
    OCTET_STRUCT_QUANTIZER,
    OCTET_STRUCT_PROTO,
    OCTET_STRUCT_RECIPE,
    OCTET_STRUCT_LINEAR_ARGS,
    OCTET_STRUCT_LINEAR_BACKWARD_ARGS
} octet_struct;

/* Borrowed: the static fields of one struct, ended by a NULL name. NULL when unknown. */
OCTET_API const octet_field *octet_fields(octet_struct which);

#ifdef __cplusplus
}
#endif

#endif
