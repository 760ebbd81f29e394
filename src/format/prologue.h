/* prologue.h - which functions of the input are gated, and which are norms. */
#ifndef OCT_FORMAT_PROLOGUE_H
#define OCT_FORMAT_PROLOGUE_H

#include "octet.h"

/* What is applied to the input, or to its first half: an activation alone. */
typedef enum oct_activation {
    OCT_ACT_NONE = 0, /* norms, and no prologue */
    OCT_ACT_GELU,
    OCT_ACT_QGELU,
    OCT_ACT_RELU,
    OCT_ACT_SRELU,
    OCT_ACT_SILU,
    OCT_ACT_SIGMOID
} oct_activation;

static inline bool oct_prologue_is_gated(int prologue) {
    return prologue >= OCTET_GLU && prologue < OCTET_PROLOGUES;
}

static inline bool oct_prologue_is_norm(int prologue) {
    return prologue == OCTET_RMSNORM || prologue == OCTET_LAYERNORM;
}

static inline oct_activation oct_prologue_activation(int prologue) {
    return prologue == OCTET_GELU || prologue == OCTET_GEGLU     ? OCT_ACT_GELU
           : prologue == OCTET_QGELU || prologue == OCTET_QGEGLU ? OCT_ACT_QGELU
           : prologue == OCTET_RELU || prologue == OCTET_REGLU   ? OCT_ACT_RELU
           : prologue == OCTET_SRELU || prologue == OCTET_SREGLU ? OCT_ACT_SRELU
           : prologue == OCTET_SILU || prologue == OCTET_SWIGLU  ? OCT_ACT_SILU
           : prologue == OCTET_GLU                               ? OCT_ACT_SIGMOID
                                                                 : OCT_ACT_NONE;
}

/* Floats of a row's statistics: its rstd, or its mean and rstd. */
static inline int oct_prologue_statistics(int prologue) {
    return prologue == OCTET_LAYERNORM ? 2 : prologue == OCTET_RMSNORM ? 1 : 0;
}

#endif
