/* compare.h - one quantizer value, input and shape on both devices, and their bytes compared.
 *
 * A shared helper returns what it found; these check, so they are a header. */
#ifndef OCTET_TEST_CUDA_COMPARE_H
#define OCTET_TEST_CUDA_COMPARE_H

#include "../cpu/inputs.h"
#include "../cpu/quantizers.h"
#include "device.h"
#include "test.h"

static const octet_scheme cuda_schemes[] = {OCTET_FP8_TENSOR, OCTET_FP8_DELAYED,
                                            OCTET_FP8_BLOCK, OCTET_MXFP8, OCTET_NVFP4};

#define CUDA_QUANTIZERS (5 * CPU_QUANTIZERS)

/* Quantizer number `index` of all schemes; false when there is none. */
static inline bool cuda_quantizer(octet_quantizer *out, int index) {
    return cpu_quantizer(out, cuda_schemes[index / CPU_QUANTIZERS], index % CPU_QUANTIZERS);
}

static inline void cuda_report(const cpu_tensor *of, const char *what) {
    char text[OCTET_QUANTIZER_TEXT];
    octet_quantizer_print(text, sizeof text, &of->m.quantizer);
    if (test_failures <= TEST_REPORTS) {
        printf("    %s %dx%d dtype %d: %s\n", text, (int)of->m.rows, (int)of->m.cols,
               of->m.dtype, what);
    }
}

/* Every part, padding included, and no byte past any of them. */
static inline void cuda_check_parts(const cpu_tensor *got, const cpu_tensor *want) {
    size_t at = 0;
    int part = cpu_tensor_differ(got, want, &at);
    if (!CHECK_EQ_INT(part, -1)) {
        char what[64];
        snprintf(what, sizeof what, "part %d differs at byte %zu", part, at);
        cuda_report(want, what);
    }
    CHECK(cpu_tensor_guarded(got));
}

/* Elements of plain tensors; of is what they were made from. */
static inline void cuda_check_plain(const cpu_tensor *got, const cpu_tensor *want,
                                    const cpu_tensor *of) {
    int64_t row = 0, col = 0;
    if (!CHECK(cuda_same(got, want, &row, &col))) {
        char what[160];
        snprintf(what, sizeof what, "(%d, %d) in dtype %d is %a, not %a", (int)row, (int)col,
                 want->m.dtype, (double)cpu_tensor_get(got, row, col),
                 (double)cpu_tensor_get(want, row, col));
        cuda_report(of, what);
    }
    CHECK(cpu_tensor_guarded(got));
}

/* x by the CPU: amaxes and everything else. */
static inline cpu_tensor cuda_quantized(const octet_quantizer *q, const cpu_tensor *x,
                                        uint64_t seed) {
    cpu_tensor out = cpu_tensor_quantized(q, (octet_dtype)x->m.dtype, x->m.rows, x->m.cols, 1);
    float scale = 3.0f, amax;
    oct_live live = {&scale, &amax, NULL, seed};
    oct_cpu_amax(&amax, &x->m, NULL);
    oct_cpu_amax_parts(&out.m, &x->m, NULL);
    oct_cpu_quantize(&out.m, &x->m, &live, NULL);
    return out;
}

/* amax, amax parts and quantize on both devices; the source begins `shift` elements past a
 * boundary. */
static inline void cuda_check_quantize(const octet_quantizer *q, const cpu_tensor *x,
                                       uint64_t seed, int64_t shift) {
    octet_dtype dtype = (octet_dtype)x->m.dtype;
    cpu_tensor want = cpu_tensor_quantized(q, dtype, x->m.rows, x->m.cols, 1);
    cpu_tensor got = cpu_tensor_quantized(q, dtype, x->m.rows, x->m.cols, 1);
    cpu_tensor from = cuda_exact(x, shift);
    bool delayed = q->scheme == OCTET_FP8_DELAYED, current = q->scheme == OCTET_FP8_TENSOR;
    float scale = 3.0f, amax = 0, new_amax[2] = {delayed ? -1 : 0, 0}, cuda_amax = 0;
    int64_t random[2] = {(int64_t)(seed / 2), (int64_t)(seed - seed / 2)};
    oct_cpu_amax(&amax, &x->m, NULL);
    oct_live live = {&scale, &amax, delayed ? &new_amax[0] : NULL, seed};
    oct_cuda_live cuda_live = {delayed ? &scale : NULL, current ? &cuda_amax : NULL,
                               delayed ? &new_amax[1] : NULL, q->stochastic ? random : NULL};
    oct_cpu_amax_parts(&want.m, &x->m, NULL);
    oct_cpu_quantize(&want.m, &x->m, &live, NULL);
    oct_cuda_amaxing amaxing = {&cuda_amax, &from.m, false};
    CHECK_EQ_INT(oct_cuda_amax(cuda_on(), &amaxing, NULL), OCTET_OK);
    CHECK_EQ_BITS(cuda_amax, amax);
    if (q->scheme == OCTET_NVFP4) {
        for (int part = OCTET_PART_ROW_AMAX; part <= OCTET_PART_COL_AMAX; part++) {
            if (got.m.parts[part]) {
                memset(got.m.parts[part], 0, got.bytes[part]);
            }
        }
        CHECK_EQ_INT(oct_cuda_amax_parts(cuda_on(), &got.m, &from.m, NULL), OCTET_OK);
    }
    CHECK_EQ_INT(oct_cuda_quantize(cuda_on(), &got.m, &from.m, &cuda_live, NULL), OCTET_OK);
    cuda_check_parts(&got, &want);
    CHECK_EQ_BITS(new_amax[1], new_amax[0]);
    cuda_exact_free(&from, shift);
    cpu_tensor_free(&want);
    cpu_tensor_free(&got);
}

#endif
