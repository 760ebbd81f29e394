/* gemm_thin.c - which products have so few rows that reading b is all that takes time. */
#include "cuda/kernels/thin.h"

#include "cuda/gemm.h"

_Static_assert(OCT_THIN_ROWS <= OCT_CUDA_FEW_ROWS, "a cast of so many has written its bytes");

/* A kernel, and for how many rows of dst at most. */
typedef struct thin_kernel {
    int64_t rows;
    const char *name;
} thin_kernel;

/* Kernels by what is multiplied; the first that has the rows is taken. */
typedef struct kind {
    uint8_t format, scale_format;
    uint8_t shift;  /* log2 of the elements of a block */
    uintptr_t unit; /* bytes of scales that are read at once */
    thin_kernel kernels[5];
} kind;

static const kind kinds[] = {
    {OCTET_E4M3, OCTET_F32, 7, 4, {{8, "thin_fp8_128_8"}, {16, "thin_fp8_128_16"}}},
    {OCTET_E4M3,
     OCTET_E8M0,
     5,
     4,
     {{1, "thin_mx_1"},
      {2, "thin_mx_2"},
      {4, "thin_mx_4"},
      {8, "thin_fp8_32_8"},
      {16, "thin_fp8_32_16"}}},
    {OCTET_E2M1, OCTET_E4M3, 4, 2, {{8, "thin_fp4_8"}, {16, "thin_fp4_16"}}},
};

/* Along the product, in whole 16 bytes, scales in rows: all that inference has. */
static bool is_of(const oct_gemm_operand *o, const kind *k) {
    bool codes = o->format == k->format && o->scale && o->scale_format == k->scale_format &&
                 o->shift == k->shift;
    bool scales = !o->lines_down && !o->scales.tiles && (uintptr_t)o->scale % k->unit == 0 &&
                  o->scales.count <= UINT32_MAX / 4;
    return codes && scales && !o->across && o->pitch % 16 == 0 && (uintptr_t)o->data % 16 == 0;
}

static const kind *kind_of(const oct_gemm_params *p) {
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (is_of(&p->a, &kinds[i]) && is_of(&p->b, &kinds[i])) {
            return &kinds[i];
        }
    }
    return NULL;
}

bool oct_gemm_is_thin(const oct_gemm_params *p) {
    return p->a.outer <= OCT_THIN_ROWS && p->a.depth > 0 && p->a.depth <= INT32_MAX / 2 &&
           p->b.outer <= INT32_MAX && kind_of(p);
}

static const char *kernel_of(const oct_gemm_params *p) {
    const thin_kernel *kernel = kind_of(p)->kernels;
    while (kernel->rows < p->a.outer) {
        kernel++;
    }
    return kernel->name;
}

octet_status oct_gemm_thin(const oct_cuda_on *on, const oct_gemm_params *p, octet_error *err) {
    oct_thin_params params = {.gemm = *p};
    params.ahead = (uint32_t)oct_cuda_facts_of(on->cuda)->processors * OCT_THIN_RESIDENT;
    oct_cuda_launch launch = {
        .module = OCT_MODULE_thin,
        .kernel = kernel_of(p),
        .grid = {(uint32_t)oct_size_ceil_div(p->b.outer, OCT_THIN_COLS), 1, 1},
        .threads = OCT_THIN_THREADS,
        .params = &params,
        .params_bytes = sizeof params};
    return oct_cuda_launch_kernel(on, &launch, err);
}
