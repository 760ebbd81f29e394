/* prologue.c - a prologue in double precision: f(x), and what its backward makes. */
#include "prologue.h"

#include <math.h>

#define SLACK 0x1p-16 /* of magnitudes: more than fp32 loses in any row that is verified */

static int kind_of(const oct_cli_chain *chain) {
    return chain->args.forward.prologue;
}

static bool is_gated(const oct_cli_chain *chain) {
    return octet_prologue_is_gated((octet_prologue)kind_of(chain));
}

static double x_at(const oct_cli_chain *chain, int64_t r, int64_t c) {
    return chain->x.at[r * chain->x.cols + c];
}

/* ---- activations ----------------------------------------------------------------------- */

typedef struct activation {
    double value, slope;
    double size; /* of the slope's terms */
} activation;

static activation activation_at(int kind, double x) {
    bool gelu = kind == OCTET_GELU || kind == OCTET_GEGLU;
    bool quick = kind == OCTET_QGELU || kind == OCTET_QGEGLU;
    double positive = x > 0 ? x : 0;
    if (kind == OCTET_RELU || kind == OCTET_REGLU) {
        return (activation){positive, x > 0, 1};
    }
    if (kind == OCTET_SRELU || kind == OCTET_SREGLU) {
        return (activation){positive * positive, 2 * positive, 2 * positive};
    }
    double two = 2 * sqrt(2 / acos(-1.0));
    double z = gelu ? two * (x + 0.044715 * x * x * x) : quick ? 1.702 * x : x;
    double dz = gelu ? two * (1 + 3 * 0.044715 * x * x) : quick ? 1.702 : 1;
    double s = 1 / (1 + exp(-z)), bell = s / (1 + exp(z));
    return kind == OCTET_GLU ? (activation){s, bell, bell}
                             : (activation){x * s, s + x * bell * dz, s + fabs(x * bell * dz)};
}

/* ---- save=memory: an activation's input in 8 bits -------------------------------------- */

/* docs/prologues.md, "The bound of 8 bits". */
typedef struct moved {
    double by, least; /* at most so far; elements below `least` may become 0 */
} moved;

bool oct_cli_packs(const oct_cli_chain *chain) {
    bool found = false;
    for (int i = 0; i < chain->plans[0].tensor_count; i++) {
        found = found || chain->plans[0].tensors[i].form == OCTET_FORM_PACKED;
    }
    return found;
}

static moved moved_at(const oct_cli_chain *chain, int64_t r, int64_t c) {
    double largest = 0;
    for (int64_t i = c / 32 * 32; i < chain->x.cols && i < c / 32 * 32 + 32; i++) {
        largest = fmax(largest, fabs(x_at(chain, r, i)));
    }
    double least = fmax(largest / 224, 0x1p-127) / 1024 +
                   oct_cli_least_of((octet_dtype)chain->args.forward.input.dtype);
    return (moved){fmax(fabs(x_at(chain, r, c)) / 16, least), least};
}

/* The largest |a'| and |a''|. */
static double rate_of(int kind, double x, bool of_slope) {
    switch (kind) {
    case OCTET_RELU:
    case OCTET_REGLU:
        return of_slope ? 0 : 1;
    case OCTET_SRELU:
    case OCTET_SREGLU:
        return of_slope ? 2 : 2 * x;
    case OCTET_GLU:
        return of_slope ? 0.0963 : 0.25;
    case OCTET_SILU:
    case OCTET_SWIGLU:
        return of_slope ? 0.5001 : 1.1;
    default: /* GELU, and its quick kind */
        return of_slope ? 0.8511 : 1.13;
    }
}

/* How far f(x), or what its gradient is multiplied by for column `col` of x, may move. */
static double value_moves(const oct_cli_chain *chain, int64_t r, int64_t c) {
    int kind = kind_of(chain);
    double g = x_at(chain, r, c), u = 1, by_u = 0, by_g = moved_at(chain, r, c).by;
    if (is_gated(chain)) {
        u = fabs(x_at(chain, r, chain->w.cols + c));
        by_u = moved_at(chain, r, chain->w.cols + c).by;
    }
    return rate_of(kind, fabs(g) + by_g, false) * by_g * (u + by_u) +
           fabs(activation_at(kind, g).value) * by_u;
}

static double slope_moves(const oct_cli_chain *chain, int64_t r, int64_t col) {
    int kind = kind_of(chain);
    int64_t cols = chain->w.cols, c = col % cols;
    double g = x_at(chain, r, c), u = 1, by_u = 0;
    moved of_g = moved_at(chain, r, c);
    if (col >= cols) {
        return rate_of(kind, fabs(g) + of_g.by, false) * of_g.by;
    }
    if (is_gated(chain)) {
        u = fabs(x_at(chain, r, cols + c));
        by_u = moved_at(chain, r, cols + c).by;
    }
    bool jumps = (kind == OCTET_RELU || kind == OCTET_REGLU) && fabs(g) <= of_g.least;
    double change = jumps ? 1 : rate_of(kind, 0, true) * of_g.by;
    return fabs(activation_at(kind, g).slope) * by_u + (u + by_u) * change;
}

/* ---- norms ----------------------------------------------------------------------------- */

typedef struct norm {
    double mean, rstd;
} norm;

static norm norm_at(const oct_cli_chain *chain, int64_t r) {
    int64_t cols = chain->x.cols;
    double sum = 0, squares = 0;
    for (int64_t c = 0; c < cols; c++) {
        sum += x_at(chain, r, c);
    }
    norm made = {kind_of(chain) == OCTET_LAYERNORM && cols ? sum / (double)cols : 0, 0};
    for (int64_t c = 0; c < cols; c++) {
        squares += (x_at(chain, r, c) - made.mean) * (x_at(chain, r, c) - made.mean);
    }
    double eps = (double)chain->args.forward.eps;
    made.rstd = 1 / sqrt(squares / (double)(cols ? cols : 1) + eps);
    return made;
}

static double factor_at(const oct_cli_chain *chain, int64_t c) {
    return chain->gamma.at[c] + chain->args.forward.zero_centered;
}

static double beta_at(const oct_cli_chain *chain, int64_t c) {
    return chain->args.forward.beta.dtype ? chain->beta.at[c] : 0;
}

/* ---- f(x) ------------------------------------------------------------------------------ */

static void fill(const oct_cli_chain *chain, oct_cli_matrix *f, oct_cli_matrix *off,
                 bool packed) {
    bool norms = octet_prologue_is_norm((octet_prologue)kind_of(chain));
    for (int64_t r = 0; r < f->rows; r++) {
        norm n = norms ? norm_at(chain, r) : (norm){0, 0};
        for (int64_t c = 0; c < f->cols; c++) {
            double x = x_at(chain, r, c),
                   gate = is_gated(chain) ? x_at(chain, r, f->cols + c) : 1;
            double value = norms
                               ? (x - n.mean) * n.rstd * factor_at(chain, c) + beta_at(chain, c)
                               : activation_at(kind_of(chain), x).value * gate;
            double size =
                norms ? (fabs(x) + fabs(n.mean)) * n.rstd * (fabs(factor_at(chain, c)) + 1) +
                            fabs(beta_at(chain, c))
                      : fabs(value);
            f->at[r * f->cols + c] = value;
            double moves = packed ? value_moves(chain, r, c) : 0;
            off->at[r * f->cols + c] = moves + SLACK * (size + moves) + 0x1p-120;
        }
    }
}

static oct_cli_matrix one_of_two(const oct_cli_chain *chain, bool first, bool packed) {
    oct_cli_matrix f = oct_cli_matrix_make(chain->x.rows, chain->w.cols);
    oct_cli_matrix off = oct_cli_matrix_make(f.rows, f.cols);
    fill(chain, &f, &off, packed);
    oct_cli_matrix_drop(first ? &off : &f);
    return first ? f : off;
}

oct_cli_matrix oct_cli_prologue(const oct_cli_chain *chain) {
    return one_of_two(chain, true, false);
}

oct_cli_matrix oct_cli_prologue_deviation(const oct_cli_chain *chain, bool packed) {
    return one_of_two(chain, false, packed);
}

/* ---- backward -------------------------------------------------------------------------- */

/* A number and how far it may be off, before it is rounded. */
typedef struct near {
    double want, bound;
} near;

static near near_of(const oct_cli_result *grad, int64_t r, int64_t c) {
    int64_t at = r * grad->want.cols + c;
    return (near){grad->want.at[at], grad->bound.at[at]};
}

static near norm_dx(const oct_cli_chain *chain, const oct_cli_result *grad, int64_t r,
                    int64_t col) {
    norm n = norm_at(chain, r);
    int64_t cols = grad->want.cols;
    double grads = 0, along = 0, off = 0, off_along = 0, size = 0, size_along = 0;
    for (int64_t c = 0; c < cols; c++) {
        near g = near_of(grad, r, c);
        double factor = factor_at(chain, c), normed = (x_at(chain, r, c) - n.mean) * n.rstd;
        grads += g.want * factor / (double)cols;
        along += g.want * factor * normed / (double)cols;
        off += g.bound * fabs(factor) / (double)cols;
        off_along += g.bound * fabs(factor * normed) / (double)cols;
        size += fabs(g.want) * (fabs(factor) + 1) / (double)cols;
        size_along += fabs(g.want * normed) * (fabs(factor) + 1) / (double)cols;
    }
    bool centred = kind_of(chain) == OCTET_LAYERNORM;
    near g = near_of(grad, r, col);
    double factor = factor_at(chain, col), normed = (x_at(chain, r, col) - n.mean) * n.rstd;
    double sizes = fabs(g.want) * (fabs(factor) + 1) + size + fabs(normed) * size_along;
    double offs = g.bound * fabs(factor) + (centred ? off : 0) + fabs(normed) * off_along;
    return (near){n.rstd * (g.want * factor - (centred ? grads : 0) - normed * along),
                  n.rstd * (offs + SLACK * (sizes + offs))};
}

static near activation_dx(const oct_cli_chain *chain, const oct_cli_result *grad, int64_t r,
                          int64_t col) {
    int64_t cols = grad->want.cols, c = col % cols;
    near g = near_of(grad, r, c);
    activation act = activation_at(kind_of(chain), x_at(chain, r, c));
    double gate = is_gated(chain) ? x_at(chain, r, cols + c) : 1;
    double slope = col < cols ? act.slope * gate : act.value;
    double size = col < cols ? act.size * fabs(gate) : fabs(act.value);
    double moves = oct_cli_packs(chain) ? slope_moves(chain, r, col) : 0;
    return (near){g.want * slope, g.bound * fabs(slope) + (fabs(g.want) + g.bound) *
                                                              (moves + SLACK * (size + moves))};
}

/* Column sums: of the gradient, or of it times what is normed. */
static near summed(const oct_cli_chain *chain, const oct_cli_result *grad, int64_t c,
                   bool gamma) {
    near sum = {0, 0};
    double size = 0;
    for (int64_t r = 0; r < grad->want.rows; r++) {
        norm n = norm_at(chain, r);
        near g = near_of(grad, r, c);
        double by = gamma ? (x_at(chain, r, c) - n.mean) * n.rstd : 1;
        sum.want += g.want * by;
        sum.bound += g.bound * fabs(by);
        size += (fabs(g.want) + g.bound) * (fabs(by) + (gamma ? fabs(n.mean) * n.rstd : 0));
    }
    sum.bound += SLACK * size;
    return sum;
}

oct_cli_result oct_cli_prologue_grad(const oct_cli_chain *chain, const octet_step *step,
                                     const oct_cli_result *grad, octet_dtype dtype) {
    bool dx = step->op == OCTET_OP_PROLOGUE_GRAD;
    bool norms = octet_prologue_is_norm((octet_prologue)kind_of(chain));
    oct_cli_result made = {.plan = grad->plan};
    made.want =
        oct_cli_matrix_make(dx ? grad->want.rows : 1, dx ? chain->x.cols : grad->want.cols);
    made.bound = oct_cli_matrix_make(made.want.rows, made.want.cols);
    for (int64_t i = 0; i < made.want.rows * made.want.cols; i++) {
        int64_t r = i / made.want.cols, c = i % made.want.cols;
        near one = !dx     ? summed(chain, grad, c, step->op == OCTET_OP_GAMMA_GRAD)
                   : norms ? norm_dx(chain, grad, r, c)
                           : activation_dx(chain, grad, r, c);
        made.want.at[i] = one.want;
        made.bound.at[i] = one.bound + oct_cli_unit_of(dtype) * (fabs(one.want) + one.bound) +
                           oct_cli_least_of(dtype) + 0x1p-120;
    }
    return made;
}
