/* compare.h - one quantizer value, input and shape on both devices, and their bytes compared.
 *
 * A shared helper returns what it found; these check, so they are a header. */
#ifndef OCTET_TEST_CUDA_COMPARE_H
#define OCTET_TEST_CUDA_COMPARE_H

#include <math.h>

#include "../cpu/inputs.h"
#include "../cpu/quantizers.h"
#include "device.h"
#include "format/scales.h"
#include "test.h"

static const octet_scheme cuda_schemes[] = {OCTET_FP8_TENSOR, OCTET_FP8_DELAYED,
                                            OCTET_FP8_BLOCK,  OCTET_MXFP8,
                                            OCTET_NVFP4,      OCTET_MXFP4};

#define CUDA_QUANTIZERS (6 * CPU_QUANTIZERS)

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
    oct_live live = {&scale, &amax, NULL, seed, 0, NULL};
    oct_cpu_amax(&amax, &x->m, NULL);
    oct_cpu_amax_parts(&out.m, &x->m, NULL);
    oct_cpu_quantize(&out.m, &x->m, &live, NULL);
    return out;
}

/* Of the shares of an amax; NaN where one of them is. */
static inline float cuda_largest(const float *shares) {
    float most = 0;
    for (int i = 0; i < OCT_AMAX_SHARES; i++) {
        most = shares[i] >= most ? shares[i] : shares[i] < most ? most : NAN;
    }
    return most;
}

/* A place for what one direction of a quantized tensor decodes to; without parts where it has
 * no such direction, or `wanted` is false. */
static inline cpu_tensor cuda_copy_of(const cpu_tensor *of, octet_use use, bool wanted) {
    const octet_quantizer *q = &of->m.quantizer;
    int64_t rows = of->m.rows;
    if (!wanted || !of->m.parts[oct_data_part(use)]) {
        return (cpu_tensor){.bytes = {0}};
    }
    if (use == OCTET_USE_COL && q->hadamard) {
        rows = (rows + 15) / 16 * 16;
    }
    return cpu_tensor_plain(OCTET_BF16, rows, of->m.cols, of->m.cols);
}

/* A copy that a quantize made is what a decode makes of its bytes; of few rows it made none. */
static inline void cuda_check_copy(cpu_tensor *copy, const cpu_tensor *of, octet_use use) {
    if (oct_cuda_copy_waits(&of->m)) {
        cpu_tensor_free(copy);
    } else if (copy->m.parts[0]) {
        cpu_tensor want = cuda_copy_of(of, use, true);
        CHECK_EQ_INT(oct_cuda_decode(cuda_on(), &want.m, &of->m, use, NULL), OCTET_OK);
        cuda_check_plain(copy, &want, of);
        cpu_tensor_free(&want);
        cpu_tensor_free(copy);
    }
}

/* Copies are the same where their bytes are not asked for; `of` has the amaxes and the bytes.
 */
static inline void cuda_check_copies_alone(const cpu_tensor *of, const cpu_tensor *x,
                                           const oct_cuda_live *with, uint64_t seed) {
    cpu_tensor made = cpu_tensor_quantized(&of->m.quantizer, (octet_dtype)of->m.dtype,
                                           of->m.rows, of->m.cols, 1);
    cpu_tensor row = cuda_copy_of(of, OCTET_USE_ROW, true);
    cpu_tensor col = cuda_copy_of(of, OCTET_USE_COL, seed % 3 != 0);
    oct_cuda_live live = *with;
    live.row_copy = &row.m;
    live.col_copy = &col.m;
    live.row_passes = seed % 5 != 0;
    live.col_passes = seed % 7 != 0;
    for (int part = OCTET_PART_ROW_AMAX; part <= OCTET_PART_COL_AMAX; part++) {
        if (made.m.parts[part]) {
            memcpy(made.m.parts[part], of->m.parts[part], of->bytes[part]);
        }
    }
    CHECK_EQ_INT(oct_cuda_quantize(cuda_on(), &made.m, &x->m, &live, NULL), OCTET_OK);
    CHECK(cpu_tensor_guarded(&made));
    if (oct_cuda_copy_waits(&of->m)) {
        cuda_check_parts(&made, of);
    }
    cuda_check_copy(&row, of, OCTET_USE_ROW);
    cuda_check_copy(&col, of, OCTET_USE_COL);
    cpu_tensor_free(&made);
}

/* A place for the column sums of each 128 rows; without parts where they are not `wanted`. */
static inline cpu_tensor cuda_sums_of(const cpu_tensor *of, bool wanted) {
    return wanted && of->m.rows * of->m.cols > 0
               ? cpu_tensor_plain(OCTET_F32, (of->m.rows + 127) / 128, of->m.cols, of->m.cols)
               : (cpu_tensor){.bytes = {0}};
}

/* Joined, they are the CPU's sums. */
static inline void cuda_check_sums(cpu_tensor *sums, const cpu_tensor *x) {
    if (sums->m.parts[0]) {
        cpu_tensor want = cpu_tensor_plain(OCTET_F32, 1, x->m.cols, x->m.cols);
        cpu_tensor got = cpu_tensor_plain(OCTET_F32, 1, x->m.cols, x->m.cols);
        oct_cuda_joining joining = {&got.m, sums->m.parts[0], x->m.rows, false};
        oct_cpu_bias_grad(&want.m, &x->m, false, NULL);
        CHECK_EQ_INT(oct_cuda_bias_grad(cuda_on(), &joining, NULL), OCTET_OK);
        cuda_check_plain(&got, &want, x);
        CHECK(cpu_tensor_guarded(sums));
        cpu_tensor_free(&want);
        cpu_tensor_free(&got);
        cpu_tensor_free(sums);
    }
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
    float shares[OCT_AMAX_SHARES];
    int64_t rounding = (int64_t)seed;
    uint32_t stream = (uint32_t)(seed >> 8 & 7);
    oct_cpu_amax(&amax, &x->m, NULL);
    oct_live live = {&scale, &amax, delayed ? &new_amax[0] : NULL, seed, stream, NULL};
    oct_cuda_live cuda_live = {.scale = delayed ? &scale : NULL,
                               .amax = current ? &cuda_amax : NULL,
                               .new_amax = delayed ? &new_amax[1] : NULL,
                               .seed = q->stochastic ? &rounding : NULL,
                               .stream = stream};
    bool blocks = q->scheme >= OCTET_MXFP8;
    cpu_tensor row = cuda_copy_of(&got, OCTET_USE_ROW, blocks && seed % 5 < 3);
    cpu_tensor col = cuda_copy_of(&got, OCTET_USE_COL, blocks && seed % 7 < 4);
    cpu_tensor sums = cuda_sums_of(&got, seed % 3 != 0);
    cuda_live.row_copy = &row.m;
    cuda_live.col_copy = &col.m;
    cuda_live.sums = q->scheme == OCTET_NVFP4 ? NULL : sums.m.parts[0];
    oct_cpu_amax_parts(&want.m, &x->m, NULL);
    oct_cpu_quantize(&want.m, &x->m, &live, NULL);
    oct_cuda_amaxing whole = {&cuda_amax, 1, &from.m, false},
                     parts = {shares, OCT_AMAX_SHARES, &from.m, false};
    memset(shares, 0xFF, sizeof shares);
    CHECK_EQ_INT(oct_cuda_amax(cuda_on(), &whole, NULL), OCTET_OK);
    CHECK_EQ_INT(oct_cuda_amax(cuda_on(), &parts, NULL), OCTET_OK);
    CHECK_EQ_BITS(cuda_amax, amax);
    CHECK_EQ_BITS(cuda_largest(shares), amax);
    if (current && seed & 1) {
        cuda_live.amax = shares;
        cuda_live.amaxes = OCT_AMAX_SHARES;
    }
    if (q->scheme == OCTET_NVFP4) {
        for (int part = OCTET_PART_ROW_AMAX; part <= OCTET_PART_COL_AMAX; part++) {
            if (got.m.parts[part]) {
                memset(got.m.parts[part], 0, got.bytes[part]);
            }
        }
        CHECK_EQ_INT(oct_cuda_amax_parts(cuda_on(), &got.m, &from.m, sums.m.parts[0], NULL),
                     OCTET_OK);
    }
    CHECK_EQ_INT(oct_cuda_quantize(cuda_on(), &got.m, &from.m, &cuda_live, NULL), OCTET_OK);
    cuda_check_parts(&got, &want);
    cuda_check_copy(&row, &got, OCTET_USE_ROW);
    cuda_check_copy(&col, &got, OCTET_USE_COL);
    cuda_check_sums(&sums, x);
    cuda_live.sums = NULL;
    if (blocks) {
        cuda_check_copies_alone(&want, &from, &cuda_live, seed);
    }
    CHECK_EQ_BITS(new_amax[1], new_amax[0]);
    cuda_exact_free(&from, shift);
    cpu_tensor_free(&want);
    cpu_tensor_free(&got);
}

#endif
