/* four_over_six.h - the parameters of the four-over-six kernels. */
#ifndef OCT_CUDA_KERNELS_FOUR_OVER_SIX_H
#define OCT_CUDA_KERNELS_FOUR_OVER_SIX_H

#include "format/scales.h"
#include "format/scaling.h"

#define OCT_CHOICE_THREADS 256

/* One direction: lines (rows or columns) cut into blocks of 16. */
typedef struct oct_four_over_six_params {
    const void *source;
    int64_t lines, length;           /* length: of a line, in elements */
    int64_t line_step, element_step; /* of the source, in elements */
    uint8_t *codes;
    int64_t line_bytes; /* of codes */
    uint8_t *scales;    /* zeroed */
    oct_scales at;
    const float *amax; /* of the tensor, or of each line */
    float aim;
    uint8_t square; /* 16 lines share a scale */
    uint8_t row_scaled;
    uint8_t squared;  /* errors are squared */
    uint8_t down;     /* threads follow the lines, for neighbours in memory are lines */
    uint32_t squares; /* of 16 lines, in all */
    uint32_t reserved;
} oct_four_over_six_params;

#endif
