/* lt_run.c - descriptors of a matmul, the library's choice of algorithm, and the launch. */
#include <string.h>

#include "core/fail.h"
#include "cuda/library.h"
#include "cuda/lt.h"

/* cublasLtMatmulDescAttributes_t, cublasLtMatmulPreferenceAttributes_t, cublasLtEpilogue_t and
 * cublasLtPointerMode_t. */
enum {
    DESC_POINTER_MODE = 2,
    DESC_OP_A = 3,
    DESC_OP_B = 4,
    DESC_EPILOGUE = 7,
    DESC_BIAS_POINTER = 8,
    DESC_A_SCALE_POINTER = 17,
    DESC_B_SCALE_POINTER = 18,
    DESC_FAST_ACCUM = 25,
    DESC_BIAS_TYPE = 26,
    DESC_A_SCALE_MODE = 31,
    DESC_B_SCALE_MODE = 32
};
enum {
    PREF_WORKSPACE = 1,
    PREF_REDUCTIONS = 3,
    PREF_ALIGN_A = 5,
    PREF_ALIGN_B = 6,
    PREF_ALIGN_C = 7,
    PREF_ALIGN_D = 8
};
enum { EPILOGUE_BIAS = 4, POINTERS_ON_DEVICE = 1 };
/* cublasLtReductionScheme_t: parts of a long sum are added before it is rounded to dst's type,
 * which then happens once. */
enum { REDUCE_IN_FP32 = 2 };

#define CANDIDATES 16 /* asked of the library, at most */

/* cublasLtMatmulHeuristicResult_t. */
typedef struct candidate {
    uint64_t algo[8];
    size_t workspace_bytes;
    int32_t state;
    float waves;
    int32_t reserved[4];
} candidate;

_Static_assert(!OCT_CUDA_HAS_BITS || (sizeof(candidate) == 96), "as cuBLASLt declares it");

/* A value to set; bytes 0: leave the library's. */
typedef struct attribute {
    int name;
    const void *value;
    size_t bytes;
} attribute;

static bool is_refusal(int result) {
    return result == OCT_LT_INVALID_VALUE || result == OCT_LT_ARCH_MISMATCH ||
           result == OCT_LT_NOT_SUPPORTED;
}

/* Attributes of other than their default value only: each call costs. */
static int set_attributes(uint64_t *operation, const oct_cublaslt *api, const attribute *from,
                          size_t count) {
    int result = 0;
    for (size_t i = 0; !result && i < count; i++) {
        if (from[i].bytes) {
            result = api->cublasLtMatmulDescSetAttribute(operation, from[i].name, from[i].value,
                                                         from[i].bytes);
        }
    }
    return result;
}

static int set_operation(uint64_t *operation, const oct_cublaslt *api, const oct_lt_matmul *p) {
    int32_t a_op = p->a_op, b_op = p->b_op, pointers = POINTERS_ON_DEVICE;
    int32_t a_mode = p->a_scale, b_mode = p->b_scale, bias_type = p->bias_type;
    uint32_t epilogue = EPILOGUE_BIAS;
    int8_t fast = 1;
    bool modes = p->a_scale != OCT_LT_NONE && (p->a_scale || p->b_scale);
    bool bias = p->bias_type != OCT_LT_NONE;
    const attribute attributes[] = {
        {DESC_OP_A, &a_op, a_op ? sizeof a_op : 0},
        {DESC_OP_B, &b_op, b_op ? sizeof b_op : 0},
        {DESC_A_SCALE_MODE, &a_mode, modes ? sizeof a_mode : 0},
        {DESC_B_SCALE_MODE, &b_mode, modes ? sizeof b_mode : 0},
        {DESC_FAST_ACCUM, &fast, p->fast ? sizeof fast : 0},
        {DESC_EPILOGUE, &epilogue, bias ? sizeof epilogue : 0},
        {DESC_BIAS_TYPE, &bias_type, bias ? sizeof bias_type : 0},
        {DESC_POINTER_MODE, &pointers, p->device_alpha ? sizeof pointers : 0},
    };
    int result = api->cublasLtMatmulDescInit_internal(operation, 32 * sizeof *operation,
                                                      OCT_LT_COMPUTE_32F, OCT_LT_R_32F);
    return result ? result
                  : set_attributes(operation, api, attributes,
                                   sizeof attributes / sizeof attributes[0]);
}

/* What differs from run to run. */
static int set_pointers(uint64_t *operation, const oct_cublaslt *api,
                        const oct_lt_product *product) {
    const oct_lt_memory *m = &product->memory;
    bool scaled = product->matmul.a_scale != OCT_LT_NONE;
    bool bias = product->matmul.bias_type != OCT_LT_NONE;
    const attribute attributes[] = {
        {DESC_A_SCALE_POINTER, &m->a_scale, scaled ? sizeof m->a_scale : 0},
        {DESC_B_SCALE_POINTER, &m->b_scale, scaled ? sizeof m->b_scale : 0},
        {DESC_BIAS_POINTER, &m->bias, bias ? sizeof m->bias : 0},
    };
    return set_attributes(operation, api, attributes, sizeof attributes / sizeof attributes[0]);
}

static int set_layout(uint64_t *layout, const oct_cublaslt *api, int type,
                      const int64_t shape[3]) {
    return api->cublasLtMatrixLayoutInit_internal(
        layout, 8 * sizeof *layout, type, (uint64_t)shape[0], (uint64_t)shape[1], shape[2]);
}

static int describe(oct_lt_algorithm *out, const oct_cublaslt *api, const oct_lt_matmul *p) {
    bool a_turned = p->a_op == OCT_LT_OP_T, b_turned = p->b_op == OCT_LT_OP_T;
    int64_t a[] = {a_turned ? p->k : p->m, a_turned ? p->m : p->k, p->lda};
    int64_t b[] = {b_turned ? p->n : p->k, b_turned ? p->k : p->n, p->ldb};
    int64_t d[] = {p->m, p->n, p->ldd};
    int result = set_operation(out->operation, api, p);
    result = result ? result : set_layout(out->a, api, p->a_type, a);
    result = result ? result : set_layout(out->b, api, p->b_type, b);
    return result ? result : set_layout(out->d, api, p->d_type, d);
}

static int set_preference(uint64_t preference[8], const oct_cublaslt *api,
                          const oct_lt_matmul *p) {
    uint64_t workspace = (uint64_t)p->workspace_bytes;
    uint32_t a = 1u << p->a_align, b = 1u << p->b_align, d = 1u << p->d_align;
    uint32_t reductions = REDUCE_IN_FP32;
    const attribute attributes[] = {
        {PREF_WORKSPACE, &workspace, sizeof workspace},
        {PREF_REDUCTIONS, &reductions, sizeof reductions},
        {PREF_ALIGN_A, &a, sizeof a},
        {PREF_ALIGN_B, &b, sizeof b},
        {PREF_ALIGN_C, &d, sizeof d},
        {PREF_ALIGN_D, &d, sizeof d},
    };
    int result = api->cublasLtMatmulPreferenceInit_internal(preference, 8 * sizeof *preference);
    for (size_t i = 0; !result && i < sizeof attributes / sizeof attributes[0]; i++) {
        result = api->cublasLtMatmulPreferenceSetAttribute(
            preference, attributes[i].name, attributes[i].value, attributes[i].bytes);
    }
    return result;
}

/* The candidate asked for, or the last one before it. */
static void choose(oct_lt_algorithm *out, const candidate *candidates, int count, int pick) {
    int usable = 0;
    for (int i = 0; i < count && usable <= pick; i++) {
        if (candidates[i].state == 0) {
            memcpy(out->algo, candidates[i].algo, sizeof out->algo);
            out->found = OCT_LT_FRESH;
            usable++;
        }
    }
}

static octet_status ask(oct_lt_algorithm *out, oct_lt *lt, const oct_lt_product *product,
                        octet_error *err) {
    const oct_cublaslt *api = lt->api;
    uint64_t preference[8];
    candidate candidates[CANDIDATES];
    int count = 0, wanted = lt->pick < CANDIDATES ? lt->pick + 1 : CANDIDATES;
    memset(out, 0, sizeof *out);
    int mode = oct_cuda_relax(lt->cuda), result = describe(out, api, &product->matmul);
    result = result ? result : set_pointers(out->operation, api, product);
    result = result ? result : set_preference(preference, api, &product->matmul);
    if (!result) {
        result = api->cublasLtMatmulAlgoGetHeuristic(lt->handle, out->operation, out->a, out->b,
                                                     out->d, out->d, preference, wanted,
                                                     candidates, &count);
    }
    oct_cuda_unrelax(lt->cuda, mode);
    if (result && !is_refusal(result)) {
        return oct_lt_failed(err, api, "cublasLtMatmulAlgoGetHeuristic", result);
    }
    choose(out, candidates, result ? 0 : count, lt->pick);
    return OCTET_OK;
}

static void key_of(uint64_t key[OCT_LT_KEY], const oct_lt_product *product) {
    memcpy(key, &product->matmul, sizeof product->matmul);
}

octet_status oct_lt_find(oct_lt_algorithm *out, bool *found, oct_lt *lt,
                         const oct_lt_product *product, octet_error *err) {
    uint64_t key[OCT_LT_KEY];
    octet_status status = OCTET_OK;
    key_of(key, product);
    if (!oct_lt_cache_find(out, &lt->algorithms, key)) {
        status = ask(out, lt, product, err);
        if (!status) {
            oct_lt_cache_put(&lt->algorithms, key, out);
        }
    }
    *found = !status && out->found != OCT_LT_REFUSED;
    return status;
}

static int launch(oct_lt *lt, const oct_lt_product *product, oct_lt_algorithm *with,
                  void *stream) {
    const oct_lt_memory *m = &product->memory;
    const oct_lt_matmul *p = &product->matmul;
    const float one = 1.0f, beta = p->accumulate ? 1.0f : 0.0f;
    int result = set_pointers(with->operation, lt->api, product);
    if (result) {
        return result;
    }
    return lt->api->cublasLtMatmul(
        lt->handle, with->operation, p->device_alpha ? m->alpha : &one, m->a, with->a, m->b,
        with->b, p->device_alpha ? m->alpha + 1 : &beta, m->d, with->d, m->d, with->d,
        with->algo, m->workspace, (size_t)p->workspace_bytes, stream);
}

static void cache_algorithm(oct_lt *lt, const oct_lt_product *product,
                            const oct_lt_algorithm *algorithm) {
    uint64_t key[OCT_LT_KEY];
    key_of(key, product);
    oct_lt_cache_put(&lt->algorithms, key, algorithm);
}

octet_status oct_lt_run(bool *refused, oct_lt *lt, const oct_lt_product *product,
                        oct_lt_algorithm *algorithm, void *stream, octet_error *err) {
    /* The library loads a kernel when it is first launched, which a capture would forbid. */
    bool fresh = algorithm->found == OCT_LT_FRESH;
    int mode = fresh ? oct_cuda_relax(lt->cuda) : 0;
    int result = launch(lt, product, algorithm, stream);
    if (fresh) {
        oct_cuda_unrelax(lt->cuda, mode);
    }
    *refused = is_refusal(result);
    if (*refused) {
        oct_lt_algorithm none = {.found = OCT_LT_REFUSED};
        cache_algorithm(lt, product, &none);
        return OCTET_OK;
    }
    if (fresh && !result) {
        algorithm->found = OCT_LT_FOUND;
        cache_algorithm(lt, product, algorithm);
    }
    return result ? oct_lt_failed(err, lt->api, "cublasLtMatmul", result) : OCTET_OK;
}
