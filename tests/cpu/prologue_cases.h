/* prologue_cases.h - tensors of a prologue's call, for tests of devices. */
#ifndef OCTET_TEST_CPU_PROLOGUE_CASES_H
#define OCTET_TEST_CPU_PROLOGUE_CASES_H

#include "inputs.h"

#include "format/prologue.h"

/* All that a prologue reads and writes. Parameters are in another dtype than x, now and then.
 */
typedef struct prologue_case {
    oct_prologue_call call;
    cpu_tensor x, grad, gamma, beta, stats, f, dx, dgamma;
    float amax;
} prologue_case;

static inline void prologue_case_make(prologue_case *c, int prologue, int64_t rows,
                                      int64_t cols, uint64_t seed) {
    octet_dtype dtype = (octet_dtype)(OCTET_F32 + seed % 3);
    octet_dtype other = (octet_dtype)(OCTET_F32 + seed / 3 % 3);
    int64_t wide = oct_prologue_is_gated(prologue) ? 2 * cols : cols;
    int64_t gap = (int64_t)(seed % 4) * 4, count = oct_prologue_statistics(prologue);
    cpu_input input = (cpu_input)(seed % CPU_INPUTS);
    c->x = cpu_tensor_plain(dtype, rows, wide, wide + gap);
    c->grad = cpu_tensor_plain(dtype, rows, cols, cols);
    c->gamma = cpu_tensor_plain(other, 1, cols, cols);
    c->beta = cpu_tensor_plain(other, 1, cols, cols);
    c->stats = cpu_tensor_plain(OCTET_F32, rows, count, count);
    c->f = cpu_tensor_plain(dtype, rows, cols, cols);
    c->dx = cpu_tensor_plain(dtype, rows, wide, wide);
    c->dgamma = cpu_tensor_plain(other, 1, cols, cols);
    cpu_fill(&c->x, input, seed);
    cpu_fill(&c->grad, seed % 2 ? CPU_INPUT_BLOCKS : (cpu_input)(seed / 2 % CPU_INPUTS),
             seed + 1);
    cpu_fill(&c->gamma, seed % 5 ? CPU_INPUT_BLOCKS : CPU_INPUT_SPECIALS, seed + 2);
    cpu_fill(&c->beta, CPU_INPUT_TIES, seed + 3);
    c->amax = -1;
    c->call = (oct_prologue_call){.prologue = (uint8_t)prologue,
                                  .zero_centered = seed % 3 == 0,
                                  .eps = seed % 2 ? 1e-5f : 0x1p-20f};
    if (oct_prologue_is_norm(prologue)) {
        c->call.gamma = (oct_vector){c->gamma.m.parts[0], c->gamma.m.dtype};
    }
    if (prologue == OCTET_LAYERNORM && seed % 4) {
        c->call.beta = (oct_vector){c->beta.m.parts[0], c->beta.m.dtype};
    }
}

static inline bool prologue_case_guarded(const prologue_case *c) {
    return cpu_tensor_guarded(&c->x) && cpu_tensor_guarded(&c->grad) &&
           cpu_tensor_guarded(&c->stats) && cpu_tensor_guarded(&c->f) &&
           cpu_tensor_guarded(&c->dx) && cpu_tensor_guarded(&c->dgamma);
}

static inline void prologue_case_free(prologue_case *c) {
    cpu_tensor *all[] = {&c->x,     &c->grad, &c->gamma, &c->beta,
                         &c->stats, &c->f,    &c->dx,    &c->dgamma};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        cpu_tensor_free(all[i]);
    }
}

/* Statistics, f(x) with its amax, dx and gamma's gradient, by the CPU. */
static inline void prologue_case_run(prologue_case *c, const oct_threads *threads) {
    oct_prologue_call call = c->call;
    call.x = &c->x.m;
    if (oct_prologue_is_norm(call.prologue)) {
        call.dst = &c->stats.m;
        oct_cpu_statistics(&call, threads);
        call.stats = c->stats.m.parts[0];
    }
    call.dst = &c->f.m;
    call.amax = &c->amax;
    oct_cpu_prologue(&call, threads);
    call.amax = NULL;
    call.dst = &c->dx.m;
    call.grad = &c->grad.m;
    oct_cpu_prologue_grad(&call, threads);
    if (oct_prologue_is_norm(call.prologue)) {
        call.dst = &c->dgamma.m;
        oct_cpu_gamma_grad(&call, threads);
    }
}

#endif
