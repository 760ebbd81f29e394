/* embedded.h - the kernels' sources and every header they include, as texts in the library. */
#ifndef OCT_CUDA_EMBEDDED_H
#define OCT_CUDA_EMBEDDED_H

#include <stddef.h>

/* A name is what an #include says: "cuda/kernels/amax.cu", "format/e4m3.h", "stdint.h". */
typedef struct oct_cuda_text {
    const char *name;
    const unsigned char *text; /* ended by a 0 that `bytes` does not count */
    size_t bytes;
} oct_cuda_text;

/* Sorted as cmake/embed.cmake listed them; written by it. */
extern const oct_cuda_text oct_cuda_texts[];
extern const int oct_cuda_text_count;

#endif
