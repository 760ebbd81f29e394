/* lt_part.c - some rows of dst as a product of their own. */
#include "core/fail.h"
#include "cuda/lt.h"

/* Scales of 1 x 128 blocks lie block by block, each with all rows: a part's are moved together.
 * Others begin where the part does. */
static bool is_moved(const oct_lt_product *part, const oct_gemm_operand *a) {
    return part->matmul.b_scale == OCT_LT_SCALE_VEC128_32F && part->matmul.n < a->outer &&
           !part->rest;
}

static const char *scale_of(const oct_gemm_operand *a, int64_t first) {
    int64_t bytes = a->scale_format == OCTET_F32 ? 4 : 1;
    return (const char *)a->scale + oct_scale_at(&a->scales, first, 0) * bytes;
}

/* On which boundaries a part lies at `at`, where the next one lies `step` bytes further: those
 * that all of them keep. Chunks of one length are one matmul then, and found at once. */
static uint8_t part_align(const void *at, int64_t step) {
    return oct_lt_align((const void *)((uintptr_t)at | (uintptr_t)step));
}

oct_lt_product oct_lt_part(const oct_lt_product *whole, const oct_gemm_operand *a,
                           int64_t first, int64_t rows) {
    oct_lt_product part = *whole;
    bool blocks =
        part.matmul.b_scale != OCT_LT_NONE && part.matmul.b_scale != OCT_LT_SCALE_SCALAR_32F;
    int64_t step = whole->chunk < whole->matmul.n ? whole->chunk : 0, d_row = 0;
    part.rest = 0;
    part.matmul.n = rows;
    part.memory.b = (const char *)part.memory.b + first * part.a_bytes;
    if (!part.sums) {
        d_row = part.matmul.ldd * (part.matmul.d_type == OCT_LT_R_32F ? 4 : 2);
        part.memory.d = (char *)part.memory.d + first * d_row;
    }
    part.matmul.b_align = part_align(part.memory.b, step * part.a_bytes);
    part.matmul.d_align = part_align(part.memory.d, step * d_row);
    if (blocks) {
        part.memory.b_scale =
            is_moved(&part, a) ? (const void *)part.scales : scale_of(a, first);
    }
    return part;
}

/* It begins with whole eights, so that it lies in one square. */
oct_lt_product oct_lt_rest(const oct_lt_product *whole, const oct_gemm_operand *a) {
    oct_lt_product part = *whole;
    oct_lt_matmul *to = &part.matmul;
    bool vectors = to->b_scale == OCT_LT_SCALE_VEC128_32F;
    to->n = OCT_LT_ROWS;
    to->ldb = to->k;
    to->ldd = to->m;
    to->d_type = OCT_LT_R_32F;
    to->bias_type = OCT_LT_NONE;
    to->bias_align = to->accumulate = 0;
    to->b_align = oct_lt_align(part.eight.rows);
    to->d_align = oct_lt_align(part.eight.sums);
    part.sums = true;
    part.memory.b = part.eight.rows;
    part.memory.b_scale =
        vectors ? (const void *)part.eight.scales : scale_of(a, whole->matmul.n);
    part.memory.d = part.eight.sums;
    part.memory.bias = NULL;
    return part;
}

int oct_lt_rest_copies(oct_cuda_padding out[2], oct_matrix room[2], const oct_lt_product *whole,
                       const oct_gemm_operand *a) {
    int64_t first = whole->matmul.n;
    if (!whole->rest) {
        return 0;
    }
    room[0] = (oct_matrix){.dtype = OCTET_U8, .rows = OCT_LT_ROWS, .cols = whole->matmul.k};
    room[0].parts[OCTET_PART_VALUES] = whole->eight.rows;
    out[0] = (oct_cuda_padding){&room[0], a->data + first * a->pitch, whole->rest, a->depth,
                                a->pitch};
    room[1] = (oct_matrix){.dtype = OCTET_U8,
                           .rows = a->scales.blocks,
                           .cols = OCT_LT_ROWS * (int64_t)sizeof(float)};
    room[1].parts[OCTET_PART_VALUES] = whole->eight.scales;
    out[1] = (oct_cuda_padding){&room[1], (const uint8_t *)scale_of(a, first), a->scales.blocks,
                                whole->rest * (int64_t)sizeof(float),
                                a->scales.block_step * (int64_t)sizeof(float)};
    return whole->matmul.b_scale == OCT_LT_SCALE_VEC128_32F ? 2 : 1;
}

octet_status oct_lt_part_move(const oct_cuda_on *on, const oct_lt_product *part,
                              const oct_gemm_operand *a, int64_t first, octet_error *err) {
    int64_t rows = part->matmul.n, blocks = a->scales.blocks;
    oct_matrix from = {
        .dtype = OCTET_F32, .rows = blocks, .cols = rows, .stride = a->scales.block_step};
    oct_matrix to = {.dtype = OCTET_F32, .rows = blocks, .cols = rows, .stride = rows};
    if (!is_moved(part, a)) {
        return OCTET_OK;
    }
    from.parts[OCTET_PART_VALUES] = (void *)(uintptr_t)scale_of(a, first);
    to.parts[OCTET_PART_VALUES] = part->scales;
    return oct_cuda_cast(on, &to, &from, err);
}

octet_status oct_lt_part_refused(octet_error *err, int64_t number, int64_t rows) {
    return oct_fail(err, OCTET_DEVICE,
                    "cublasLtMatmul refused part %lld of a product of %lld rows; the parts "
                    "before it are added to the result",
                    (long long)number, (long long)rows);
}

/* Scales that the library has multiplied by are not factors any more. */
octet_status oct_lt_part_finish(const oct_cuda_on *on, const oct_lt_product *part,
                                const oct_gemm_params *own, int64_t first, octet_error *err) {
    enum { BLOCKS = 1 << 16 };
    oct_gemm_finish_params params = {
        .gemm = *own, .sums = part->memory.d, .pitch = part->matmul.ldd, .first = first};
    int64_t left = own->a.outer - first;
    params.count = left < part->matmul.n ? left : part->matmul.n;
    oct_cuda_launch launch = {
        .module = OCT_MODULE_sums,
        .kernel = "gemm_finish",
        .grid = {(uint32_t)(params.count < BLOCKS ? params.count : BLOCKS), 1, 1},
        .threads = OCT_GEMM_THREADS,
        .params = &params,
        .params_bytes = sizeof params};
    if (part->matmul.a_scale == OCT_LT_SCALE_SCALAR_32F) {
        params.gemm.a.factor = params.gemm.b.factor = NULL;
    }
    params.gemm.bias = part->bias_after ? NULL : params.gemm.bias;
    return oct_cuda_launch_kernel(on, &launch, err);
}
