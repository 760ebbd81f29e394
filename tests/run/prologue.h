/* prologue.h - a prologue in double precision, and how far fp32 may be from it.
 *
 * Written from the formulas of docs/prologues.md, not from src/format. One rounding of fp32 is
 * u = 2^-24 of its result. */
#ifndef OCTET_RUN_PROLOGUE_H
#define OCTET_RUN_PROLOGUE_H

#include "decode.h"

typedef struct run_prologue {
    const octet_plan *plan;
    run_view dst, x, grad;
    const float *stats;
    const void *gamma, *beta;
    uint8_t gamma_dtype, beta_dtype;
} run_prologue;

typedef struct run_number_of {
    double want, bound;
} run_number_of;

#define RUN_U 0x1p-24
#define RUN_TINY 0x1p-125 /* results near zero lose no more than this */

static inline double run_x(const run_prologue *p, int64_t r, int64_t c) {
    return run_decode_at(&p->x, OCTET_USE_VALUES, r, c);
}

static inline double run_dy(const run_prologue *p, int64_t r, int64_t c) {
    return run_decode_at(&p->grad, OCTET_USE_VALUES, r, c);
}

/* ---- norms ------------------------------------------------------------------------------- */

static inline bool run_centred(const run_prologue *p) {
    return p->plan->prologue == OCTET_LAYERNORM;
}

static inline double run_mean(const run_prologue *p, int64_t r) {
    return run_centred(p) ? (double)p->stats[2 * r] : 0;
}

static inline double run_rstd(const run_prologue *p, int64_t r) {
    return (double)p->stats[run_centred(p) ? 2 * r + 1 : r];
}

static inline double run_normed(const run_prologue *p, int64_t r, int64_t c) {
    return (run_x(p, r, c) - run_mean(p, r)) * run_rstd(p, r);
}

static inline double run_factor(const run_prologue *p, int64_t c) {
    double gamma = run_load(p->gamma, (octet_dtype)p->gamma_dtype, c);
    return p->plan->zero_centered ? 1 + gamma : gamma;
}

/* Roundings of a sum over a row: a lane's own, then those of the tree. */
static inline double run_row_roundings(int64_t cols) {
    return (double)(cols / 1024) + 24;
}

/* The mean errs by its sum's roundings. The deviation is taken around the mean that was found,
 * so it has no part in that; its own terms are squares, none of which cancel. */
static inline run_number_of run_statistics_law(const run_prologue *p, int64_t r, int64_t c) {
    const float *found = p->dst.parts[OCTET_PART_VALUES];
    int64_t cols = p->x.cols, most = cols ? cols : 1; /* of nothing the mean is 0 */
    bool centred = run_centred(p);
    double sum = 0, size = 0, squares = 0;
    double mean = centred ? (double)found[2 * r] : 0;
    for (int64_t i = 0; i < cols; i++) {
        double x = run_x(p, r, i);
        sum += x;
        size += fabs(x);
        squares += (x - mean) * (x - mean);
    }
    double rstd = 1 / sqrt(squares / (double)most + (double)p->plan->eps);
    run_number_of of_mean = {sum / (double)most,
                             run_row_roundings(cols) * RUN_U * size / (double)most};
    run_number_of of_rstd = {rstd, run_row_roundings(cols) * RUN_U * rstd};
    return centred && c == 0 ? of_mean : of_rstd;
}

static inline run_number_of run_norm_law(const run_prologue *p, int64_t r, int64_t c) {
    double scaled = run_normed(p, r, c) * run_factor(p, c);
    double beta = p->beta ? run_load(p->beta, (octet_dtype)p->beta_dtype, c) : 0;
    double factor = run_normed(p, r, c) * (fabs(run_factor(p, c)) + 1);
    run_number_of law = {scaled + beta,
                         8 * RUN_U * (fabs(scaled) + fabs(factor) + fabs(beta)) + RUN_TINY};
    return law;
}

static inline run_number_of run_norm_grad_law(const run_prologue *p, int64_t r, int64_t c) {
    int64_t cols = p->x.cols;
    double grads = 0, along = 0, grads_size = 0, along_size = 0;
    for (int64_t i = 0; i < cols; i++) {
        double g = run_dy(p, r, i) * run_factor(p, i), normed = run_normed(p, r, i);
        double size = fabs(run_dy(p, r, i)) * (fabs(run_factor(p, i)) + 1);
        grads += g / (double)cols;
        along += g * normed / (double)cols;
        grads_size += size / (double)cols;
        along_size += size * fabs(normed) / (double)cols;
    }
    double g = run_dy(p, r, c) * run_factor(p, c), normed = run_normed(p, r, c);
    double own = fabs(run_dy(p, r, c)) * (fabs(run_factor(p, c)) + 1);
    grads = run_centred(p) ? grads : 0;
    double size = own + grads_size + fabs(normed) * along_size;
    run_number_of law = {run_rstd(p, r) * (g - grads - normed * along),
                         run_rstd(p, r) * run_row_roundings(cols) * RUN_U * size + RUN_TINY};
    return law;
}

static inline run_number_of run_gamma_law(const run_prologue *p, int64_t c) {
    double sum = 0, size = 0;
    for (int64_t r = 0; r < p->grad.rows; r++) {
        double term = run_dy(p, r, c) * run_normed(p, r, c);
        sum += term;
        size += fabs(term);
    }
    run_number_of law = {sum, (double)(p->grad.rows + 16) * RUN_U * size + RUN_TINY};
    return law;
}

/* ---- activations ------------------------------------------------------------------------- */

typedef struct run_act {
    double value, slope;
    double loss; /* roundings that a result may be off by: z is rounded, and e^z follows */
    double size; /* of the slope's terms */
} run_act;

static inline run_act run_activation(int prologue, double x) {
    bool gelu = prologue == OCTET_GELU || prologue == OCTET_GEGLU;
    bool quick = prologue == OCTET_QGELU || prologue == OCTET_QGEGLU;
    if (prologue == OCTET_RELU || prologue == OCTET_REGLU) {
        return (run_act){x > 0 ? x : 0, x > 0, 1, 1};
    }
    if (prologue == OCTET_SRELU || prologue == OCTET_SREGLU) {
        return (run_act){x > 0 ? x * x : 0, x > 0 ? 2 * x : 0, 2, x > 0 ? 2 * x : 0};
    }
    double two = 2 * sqrt(2 / acos(-1.0));
    double z = gelu ? two * (x + 0.044715 * x * x * x) : quick ? 1.702 * x : x;
    double dz = gelu ? two * (1 + 3 * 0.044715 * x * x) : quick ? 1.702 : 1;
    double s = 1 / (1 + exp(-z)), bell = s / (1 + exp(z));
    double loss = 12 + 8 * fabs(z);
    return prologue == OCTET_GLU
               ? (run_act){s, bell, loss, bell}
               : (run_act){x * s, s + x * bell * dz, loss, s + fabs(x * bell * dz)};
}

static inline run_number_of run_act_law(const run_prologue *p, int64_t r, int64_t c) {
    run_act act = run_activation(p->plan->prologue, run_x(p, r, c));
    bool gated = octet_prologue_is_gated((octet_prologue)p->plan->prologue);
    double want = act.value * (gated ? run_x(p, r, p->dst.cols + c) : 1);
    run_number_of law = {want, (act.loss + 2) * RUN_U * fabs(want) + RUN_TINY};
    return law;
}

static inline run_number_of run_act_grad_law(const run_prologue *p, int64_t r, int64_t c) {
    int64_t cols = p->grad.cols;
    bool gated = octet_prologue_is_gated((octet_prologue)p->plan->prologue);
    run_act act = run_activation(p->plan->prologue, run_x(p, r, c % cols));
    double dy = run_dy(p, r, c % cols), gate = gated ? run_x(p, r, cols + c % cols) : 1;
    if (c >= cols) {
        run_number_of law = {dy * act.value, (act.loss + 2) * RUN_U * fabs(dy * act.value)};
        law.bound += RUN_TINY;
        return law;
    }
    run_number_of law = {dy * act.slope * gate, 0};
    law.bound = (2 * act.loss + 4) * RUN_U * fabs(dy * gate) * act.size + RUN_TINY * 16;
    return law;
}

/* What a step should have written at (r, c) of its result, before that is rounded. */
static inline run_number_of run_prologue_law(const run_prologue *p, int op, int64_t r,
                                             int64_t c) {
    bool norm = octet_prologue_is_norm((octet_prologue)p->plan->prologue);
    return op == OCTET_OP_STATISTICS   ? run_statistics_law(p, r, c)
           : op == OCTET_OP_GAMMA_GRAD ? run_gamma_law(p, c)
           : op == OCTET_OP_PROLOGUE
               ? (norm ? run_norm_law(p, r, c) : run_act_law(p, r, c))
               : (norm ? run_norm_grad_law(p, r, c) : run_act_grad_law(p, r, c));
}

#endif
