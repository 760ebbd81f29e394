/* test_applied.c - a cast that computes f(x) leaves the bytes of f(x) written and then cast. */
#include "every_isa.h"

#include "prologue_cases.h"
#include "quantizers.h"

typedef struct applied_case {
    octet_quantizer q;
    int prologue, shape, threads;
    uint64_t seed; /* which dtype, numbers and options */
} applied_case;

/* The tensor's amaxes, where casts read them. */
static void measure(cpu_tensor *dst, const cpu_tensor *f) {
    oct_cpu_amax_parts(&dst->m, &f->m, NULL);
}

static void check(const applied_case *p) {
    const int64_t *sides = cpu_shapes[p->shape];
    prologue_case c;
    prologue_case_make(&c, p->prologue, sides[0], sides[1], p->seed);
    octet_dtype dtype = (octet_dtype)c.x.m.dtype;
    prologue_case_run(&c, NULL);
    cpu_tensor want = cpu_tensor_quantized(&p->q, dtype, sides[0], sides[1], 1);
    cpu_tensor got = cpu_tensor_quantized(&p->q, dtype, sides[0], sides[1], 1);
    if (p->q.scheme == OCTET_NVFP4) {
        measure(&want, &c.f);
        measure(&got, &c.f);
    }
    float scale = 2.5f, amaxes[2] = {-1, -1}, amax = -1;
    oct_threads threads = cpu_threads(p->threads);
    oct_live live = {&scale, &c.amax, &amaxes[0], p->seed, 3, NULL};
    oct_cpu_quantize(&want.m, &c.f.m, &live, NULL);
    /* f(x) lies nowhere: who reads it crashes. */
    oct_matrix nowhere = c.f.m;
    oct_prologue_call call = c.call;
    call.x = &c.x.m;
    call.stats = c.stats.m.parts[0];
    nowhere.parts[0] = NULL;
    live.apply = &call;
    live.new_amax = &amaxes[1];
    oct_cpu_prologue_amax(&amax, &call, &threads);
    oct_cpu_quantize(&got.m, &nowhere, &live, &threads);
    size_t at = 0;
    bool same = cpu_tensor_differ(&want, &got, &at) == -1 && cpu_tensor_guarded(&got) &&
                oct_f32_bits(amax) == oct_f32_bits(c.amax) &&
                oct_f32_bits(amaxes[0]) == oct_f32_bits(amaxes[1]);
    if (!CHECK(same && prologue_case_guarded(&c)) && test_failures <= TEST_REPORTS) {
        char text[OCTET_QUANTIZER_TEXT];
        octet_quantizer_print(text, sizeof text, &p->q);
        printf("    prologue %d, %s of %s, %dx%d, seed %d\n", p->prologue, text,
               octet_dtype_name(dtype), (int)sides[0], (int)sides[1], (int)p->seed);
    }
    cpu_tensor_free(&want);
    cpu_tensor_free(&got);
    prologue_case_free(&c);
}

/* Every prologue, shape and kind of numbers, with quantizers as they come; the first of a row
 * of seeds is F32, which blocks of 128 do not take. */
static void check_scheme(octet_scheme scheme, int step) {
    int index = 0, count = 0;
    for (int i = 0; i < (OCTET_PROLOGUES - 1) * CPU_SHAPES * 2; i++) {
        applied_case p = {.prologue = 1 + i % (OCTET_PROLOGUES - 1),
                          .shape = i / (OCTET_PROLOGUES - 1) % CPU_SHAPES,
                          .threads = 1 + i % 3,
                          .seed = (uint64_t)(i * 7 + 1)};
        do {
            index = (index + step) % CPU_QUANTIZERS;
        } while (!cpu_quantizer(&p.q, scheme, index) || p.q.four_over_six);
        if (scheme == OCTET_FP8_BLOCK && p.seed % 3 == 0) {
            p.seed++;
        }
        check(&p);
        count++;
    }
    CHECK(count > 700);
}

TEST(applied__one_scale) {
    check_scheme(OCTET_FP8_TENSOR, 1);
    check_scheme(OCTET_FP8_DELAYED, 1);
}

TEST(applied__blocks) {
    check_scheme(OCTET_FP8_BLOCK, 1);
}

TEST(applied__mxfp8) {
    check_scheme(OCTET_MXFP8, 1);
}

TEST(applied__fp4) {
    check_scheme(OCTET_NVFP4, 7);
    check_scheme(OCTET_MXFP4, 7);
}

CPU_TEST_MAIN(applied__one_scale, applied__blocks, applied__mxfp8, applied__fp4)
