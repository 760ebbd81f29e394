/* prologue.c - norms and activations of the input, and their gradients.
 *
 * A task has some rows, or a tile of them. Rows are widened to floats a strip at a time, and
 * results are rounded once. Statistics, and the means that a norm's gradient needs, are sums
 * over a row in the order of format/norm.h. */
#include "cpu/column_sums.h"
#include "cpu/schemes.h"
#include "format/norm.h"

#define STRIP OCT_NORM_LANES /* columns at a time: a round of lanes */
#define TILE_ROWS 8
#define GROUP_ROWS 4 /* of a task that has whole rows */

_Static_assert(STRIP % OCT_ACT_BLOCK == 0, "a strip is whole blocks");

typedef struct prologue_work {
    const oct_prologue_call *call;
    oct_grid grid;
    int64_t cols; /* K */
    oct_shared_max most;
} prologue_work;

/* Floats of a strip. Loops go over whole blocks of them, which compilers make vectors of; what
 * lies behind the last column is zeros, and stays inside. */
typedef struct strip {
    float at[STRIP];
} strip;

static void pad(strip *out, int64_t count) {
    for (int64_t i = count; i % OCT_ACT_BLOCK; i++) {
        out->at[i] = 0.0f;
    }
}

/* `count` columns of a row from col on, and zeros up to a whole block. */
static void take(strip *out, const oct_matrix *from, int64_t row, int64_t col, int64_t count) {
    octet_dtype dtype = (octet_dtype)from->dtype;
    const void *at = oct_plain_at(from->parts[0], row * from->stride + col, dtype);
    oct_cpu_kernels()->widen(out->at, at, count, dtype);
    pad(out, count);
}

static void put(const oct_matrix *to, int64_t row, int64_t col, const float *from,
                int64_t count) {
    octet_dtype dtype = (octet_dtype)to->dtype;
    void *at = oct_plain_at(to->parts[0], row * to->stride + col, dtype);
    oct_cpu_kernels()->narrow(at, from, count, dtype);
}

static int64_t whole_blocks(int64_t count) {
    return (count + OCT_ACT_BLOCK - 1) / OCT_ACT_BLOCK * OCT_ACT_BLOCK;
}

/* ---- sums over a row ------------------------------------------------------------------- */

typedef struct lanes {
    float at[OCT_NORM_LANES];
} lanes;

/* Lanes that a row of so many columns uses, a power of two; the others are +0, and adding them
 * changes nothing. */
static int64_t lanes_of(int64_t cols) {
    int64_t count = 1;
    while (count < cols && count < OCT_NORM_LANES) {
        count *= 2;
    }
    return count;
}

static void clear(lanes *sums, int64_t cols) {
    memset(sums->at, 0, (size_t)lanes_of(cols) * sizeof *sums->at);
}

static float fold(lanes *sums, int64_t cols) {
    for (int64_t half = lanes_of(cols) / 2; half > 0; half /= 2) {
        for (int64_t l = 0; l < half; l++) {
            sums->at[l] += sums->at[l + half];
        }
    }
    return sums->at[0];
}

static float row_mean(const oct_matrix *x, int64_t row) {
    lanes sums;
    strip values;
    clear(&sums, x->cols);
    for (int64_t col = 0; col < x->cols; col += STRIP) {
        int64_t count = oct_min(STRIP, x->cols - col);
        take(&values, x, row, col, count);
        oct_sums_add(sums.at, values.at, count);
    }
    return oct_norm_mean(fold(&sums, x->cols), x->cols);
}

static float row_rstd(const oct_prologue_call *call, int64_t row, float mean) {
    const oct_matrix *x = call->x;
    lanes sums;
    strip values;
    clear(&sums, x->cols);
    for (int64_t col = 0; col < x->cols; col += STRIP) {
        int64_t count = oct_min(STRIP, x->cols - col);
        take(&values, x, row, col, count);
        for (int64_t c = 0; c < count; c++) {
            float apart = values.at[c] - mean;
            sums.at[c] += apart * apart;
        }
    }
    return oct_norm_rstd(fold(&sums, x->cols), x->cols, call->eps);
}

static void statistics_task(void *arg, int64_t begin, int64_t end) {
    const prologue_work *work = arg;
    const oct_prologue_call *call = work->call;
    float *to = call->dst->parts[0];
    bool centred = call->prologue == OCTET_LAYERNORM;
    int64_t last = oct_min(end * GROUP_ROWS, call->x->rows);
    for (int64_t row = begin * GROUP_ROWS; row < last; row++) {
        float mean = centred ? row_mean(call->x, row) : 0.0f;
        float rstd = row_rstd(call, row, mean);
        if (centred) {
            to[2 * row] = mean;
            to[2 * row + 1] = rstd;
        } else {
            to[row] = rstd;
        }
    }
}

void oct_cpu_statistics(const oct_prologue_call *call, const oct_threads *threads) {
    prologue_work work = {.call = call};
    oct_parallel(threads, oct_size_ceil_div(call->x->rows, GROUP_ROWS), statistics_task, &work);
}

/* ---- f(x) -------------------------------------------------------------------------------- */

static oct_norm_row norm_of(const oct_prologue_call *call, int64_t row) {
    bool centred = call->prologue == OCTET_LAYERNORM;
    const float *at = call->stats + row * (centred ? 2 : 1);
    oct_norm_row norm = {centred ? at[0] : 0.0f, at[centred]};
    return norm;
}

/* Columns of gamma or beta. */
static void take_vector(strip *out, const oct_vector *from, int64_t col, int64_t count) {
    octet_dtype dtype = (octet_dtype)from->dtype;
    oct_cpu_kernels()->widen(out->at, oct_plain_at(from->at, col, dtype), count, dtype);
    pad(out, count);
}

static void take_factors(strip *out, const oct_prologue_call *call, int64_t col,
                         int64_t count) {
    take_vector(out, &call->gamma, col, count);
    for (int64_t c = 0; call->zero_centered && c < count; c++) {
        out->at[c] = oct_norm_factor(out->at[c], true);
    }
}

/* x = (x - mean) rstd factor + beta, in place; beta may be NULL. */
static void norm_strip(strip *x, const oct_norm_row *norm, const strip *factors,
                       const strip *beta, int64_t count) {
    for (int64_t i = 0; i < count; i += OCT_ACT_BLOCK) {
        float *at = x->at + i;
        const float *factor = factors->at + i;
        for (int j = 0; j < OCT_ACT_BLOCK; j++) {
            at[j] = oct_normed(norm, at[j]) * factor[j];
        }
        for (int j = 0; beta && j < OCT_ACT_BLOCK; j++) {
            at[j] += beta->at[i + j];
        }
        for (int j = 0; j < OCT_ACT_BLOCK; j++) {
            at[j] = oct_one_nan(at[j]);
        }
    }
}

/* Rounds row r of a tile of f(x). */
static void put_row(const oct_tile *to, int64_t r, const float *from) {
    oct_cpu_kernels()->narrow(oct_tile_row(to, r), from, to->cols, to->dtype);
}

static void norm_tile(const oct_tile *to, const oct_prologue_call *call, const oct_rect *rect) {
    strip factors, beta, x;
    take_factors(&factors, call, rect->col, rect->cols);
    if (call->beta.at) {
        take_vector(&beta, &call->beta, rect->col, rect->cols);
    }
    for (int64_t r = 0; r < rect->rows; r++) {
        oct_norm_row norm = norm_of(call, rect->row + r);
        take(&x, call->x, rect->row + r, rect->col, rect->cols);
        norm_strip(&x, &norm, &factors, call->beta.at ? &beta : NULL, rect->cols);
        put_row(to, r, x.at);
    }
}

static void activation_tile(const oct_tile *to, const oct_prologue_call *call,
                            const oct_rect *rect) {
    strip x, gate;
    bool gated = oct_prologue_is_gated(call->prologue);
    oct_act_call act = {.act = oct_prologue_activation(call->prologue),
                        .count = whole_blocks(rect->cols),
                        .x = x.at,
                        .gate = gated ? gate.at : NULL,
                        .out = x.at};
    for (int64_t r = 0; r < rect->rows; r++) {
        take(&x, call->x, rect->row + r, rect->col, rect->cols);
        if (gated) {
            take(&gate, call->x, rect->row + r, call->x->cols / 2 + rect->col, rect->cols);
        }
        oct_cpu_kernels()->activate(&act);
        put_row(to, r, x.at);
    }
}

/* f(x) of a rectangle of at most a strip's columns. */
static void apply_tile(const oct_tile *to, const oct_prologue_call *call,
                       const oct_rect *rect) {
    if (oct_prologue_is_norm(call->prologue)) {
        norm_tile(to, call, rect);
    } else {
        activation_tile(to, call, rect);
    }
}

static void apply_task(void *arg, int64_t begin, int64_t end) {
    prologue_work *work = arg;
    const oct_prologue_call *call = work->call;
    uint32_t most = 0;
    for (int64_t i = begin; i < end; i++) {
        oct_rect rect = oct_grid_at(&work->grid, i);
        oct_tile tile = oct_tile_of(call->dst, &rect);
        apply_tile(&tile, call, &rect);
        if (call->amax) {
            uint32_t found = oct_cpu_kernels()->absmax(&tile);
            most = found > most ? found : most;
        }
    }
    oct_shared_max_put(&work->most, most);
}

void oct_cpu_prologue(const oct_prologue_call *call, const oct_threads *threads) {
    prologue_work work = {.call = call};
    work.grid = (oct_grid){call->dst->rows, call->dst->cols, TILE_ROWS, STRIP};
    oct_parallel(threads, oct_grid_count(&work.grid), apply_task, &work);
    if (call->amax) {
        *call->amax = oct_bits_f32(atomic_load(&work.most));
    }
}

/* ---- f(x) that is cast, not written ------------------------------------------------------ */

oct_tile oct_applied_tile(void *memory, const oct_prologue_call *call, const oct_rect *rect) {
    octet_dtype dtype = (octet_dtype)call->x->dtype;
    oct_tile tile = {memory, rect->cols, rect->rows, rect->cols, dtype};
    apply_tile(&tile, call, rect);
    return tile;
}

void oct_each_applied(const oct_quantize_call *call, const oct_rect *tile,
                      const oct_parts *parts) {
    float memory[OCT_APPLIED_BYTES / sizeof(float)];
    oct_grid grid = {tile->rows, tile->cols, parts->rows, parts->cols};
    for (int64_t i = 0; i < oct_grid_count(&grid); i++) {
        oct_rect rect = oct_grid_within(&grid, tile, i);
        oct_tile x = oct_applied_tile(memory, call->apply, &rect);
        parts->part(parts->work, &rect, &x);
    }
}

static void amax_task(void *arg, int64_t begin, int64_t end) {
    prologue_work *work = arg;
    float memory[TILE_ROWS * STRIP];
    uint32_t most = 0;
    for (int64_t i = begin; i < end; i++) {
        oct_rect rect = oct_grid_at(&work->grid, i);
        oct_tile tile = oct_applied_tile(memory, work->call, &rect);
        uint32_t found = oct_cpu_kernels()->absmax(&tile);
        most = found > most ? found : most;
    }
    oct_shared_max_put(&work->most, most);
}

void oct_cpu_prologue_amax(float *out, const oct_prologue_call *call,
                           const oct_threads *threads) {
    prologue_work work = {.call = call};
    int64_t cols = call->x->cols / (oct_prologue_is_gated(call->prologue) ? 2 : 1);
    work.grid = (oct_grid){call->x->rows, cols, TILE_ROWS, STRIP};
    oct_parallel(threads, oct_grid_count(&work.grid), amax_task, &work);
    *out = oct_bits_f32(atomic_load(&work.most));
}

/* ---- dx ---------------------------------------------------------------------------------- */

/* What a norm's gradient reads of a strip: g = grad factor, and x normed. */
static void take_grads(strip *g, strip *normed, const oct_prologue_call *call, int64_t row,
                       const oct_rect *rect) {
    strip factors;
    oct_norm_row norm = norm_of(call, row);
    take_factors(&factors, call, rect->col, rect->cols);
    take(g, call->grad, row, rect->col, rect->cols);
    take(normed, call->x, row, rect->col, rect->cols);
    for (int64_t i = 0; i < rect->cols; i += OCT_ACT_BLOCK) {
        for (int j = 0; j < OCT_ACT_BLOCK; j++) {
            g->at[i + j] *= factors.at[i + j];
            normed->at[i + j] = oct_normed(&norm, normed->at[i + j]);
        }
    }
}

/* Both sums of a strip into their lanes: whole blocks, then what is left. */
static void add_grads(lanes *grads, lanes *along, const strip *g, const strip *normed,
                      int64_t count) {
    int64_t whole = count / OCT_ACT_BLOCK * OCT_ACT_BLOCK;
    for (int64_t i = 0; i < whole; i += OCT_ACT_BLOCK) {
        for (int j = 0; j < OCT_ACT_BLOCK; j++) {
            grads->at[i + j] += g->at[i + j];
            along->at[i + j] += g->at[i + j] * normed->at[i + j];
        }
    }
    for (int64_t c = whole; c < count; c++) {
        grads->at[c] += g->at[c];
        along->at[c] += g->at[c] * normed->at[c];
    }
}

static oct_norm_means row_means(const oct_prologue_call *call, int64_t row) {
    lanes grads, along;
    strip g, normed;
    int64_t cols = call->x->cols;
    clear(&grads, cols);
    clear(&along, cols);
    for (int64_t col = 0; col < cols; col += STRIP) {
        oct_rect rect = {row, col, 1, oct_min(STRIP, cols - col)};
        take_grads(&g, &normed, call, row, &rect);
        add_grads(&grads, &along, &g, &normed, rect.cols);
    }
    bool centred = call->prologue == OCTET_LAYERNORM;
    oct_norm_means means = {centred ? oct_norm_mean(fold(&grads, cols), cols) : 0.0f,
                            oct_norm_mean(fold(&along, cols), cols)};
    return means;
}

static void norm_grad_row(const oct_prologue_call *call, int64_t row) {
    oct_norm_row norm = norm_of(call, row);
    oct_norm_means means = row_means(call, row);
    strip g, normed;
    for (int64_t col = 0; col < call->x->cols; col += STRIP) {
        oct_rect rect = {row, col, 1, oct_min(STRIP, call->x->cols - col)};
        take_grads(&g, &normed, call, row, &rect);
        for (int64_t i = 0; i < rect.cols; i += OCT_ACT_BLOCK) {
            for (int j = 0; j < OCT_ACT_BLOCK; j++) {
                g.at[i + j] = oct_norm_grad(&norm, &means, g.at[i + j], normed.at[i + j]);
            }
        }
        put(call->dst, row, col, g.at, rect.cols);
    }
}

static void norm_grad_task(void *arg, int64_t begin, int64_t end) {
    const prologue_work *work = arg;
    int64_t last = oct_min(end * GROUP_ROWS, work->call->x->rows);
    for (int64_t row = begin * GROUP_ROWS; row < last; row++) {
        norm_grad_row(work->call, row);
    }
}

static void activation_grad_task(void *arg, int64_t begin, int64_t end) {
    const prologue_work *work = arg;
    const oct_prologue_call *call = work->call;
    strip x, gate, grad;
    bool gated = oct_prologue_is_gated(call->prologue);
    for (int64_t i = begin; i < end; i++) {
        oct_rect rect = oct_grid_at(&work->grid, i);
        int64_t other = call->grad->cols + rect.col;
        oct_act_call act = {.act = oct_prologue_activation(call->prologue),
                            .count = whole_blocks(rect.cols),
                            .x = x.at,
                            .gate = gated ? gate.at : NULL,
                            .grad = grad.at,
                            .out = x.at,
                            .gate_out = gate.at};
        for (int64_t row = rect.row; row < rect.row + rect.rows; row++) {
            take(&x, call->x, row, rect.col, rect.cols);
            take(&grad, call->grad, row, rect.col, rect.cols);
            if (gated) {
                take(&gate, call->x, row, other, rect.cols);
            }
            oct_cpu_kernels()->activate_grad(&act);
            put(call->dst, row, rect.col, x.at, rect.cols);
            if (gated) {
                put(call->dst, row, other, gate.at, rect.cols);
            }
        }
    }
}

void oct_cpu_prologue_grad(const oct_prologue_call *call, const oct_threads *threads) {
    prologue_work work = {.call = call};
    const oct_matrix *grad = call->grad;
    if (oct_prologue_is_norm(call->prologue)) {
        oct_parallel(threads, oct_size_ceil_div(grad->rows, GROUP_ROWS), norm_grad_task, &work);
        return;
    }
    work.grid = (oct_grid){grad->rows, grad->cols, TILE_ROWS, STRIP};
    oct_parallel(threads, oct_grid_count(&work.grid), activation_grad_task, &work);
}

/* ---- gamma ------------------------------------------------------------------------------- */

/* grad normed, of a leaf of rows, dense. */
static void leaf_products(float *out, const oct_prologue_call *call, const oct_rect *rect) {
    strip grad, x;
    for (int64_t r = 0; r < rect->rows; r++) {
        oct_norm_row norm = norm_of(call, rect->row + r);
        take(&grad, call->grad, rect->row + r, rect->col, rect->cols);
        take(&x, call->x, rect->row + r, rect->col, rect->cols);
        for (int64_t c = 0; c < rect->cols; c++) {
            out[r * rect->cols + c] = grad.at[c] * oct_normed(&norm, x.at[c]);
        }
    }
}

/* As a bias's gradient: the columns of these products, summed. */
static void gamma_task(void *arg, int64_t begin, int64_t end) {
    const prologue_work *work = arg;
    const oct_prologue_call *call = work->call;
    const oct_kernels *kernels = oct_cpu_kernels();
    oct_sum_tree tree;
    float products[OCT_LEAF_ROWS * OCT_STRIP_COLS];
    for (int64_t i = begin; i < end; i++) {
        int64_t rows = call->grad->rows, col = i * OCT_STRIP_COLS;
        oct_rect rect = {0, col, 0, oct_min(OCT_STRIP_COLS, call->grad->cols - col)};
        tree.leaves = 0;
        for (rect.row = 0; rect.row < rows; rect.row += OCT_LEAF_ROWS) {
            rect.rows = oct_min(OCT_LEAF_ROWS, rows - rect.row);
            leaf_products(products, call, &rect);
            oct_tile tile = {products, rect.cols, rect.rows, rect.cols, OCTET_F32};
            kernels->sum_columns(oct_next_leaf(&tree), &tile);
            oct_put_leaf(&tree, rect.cols);
        }
        put(call->dst, 0, col, oct_total_of(&tree, rect.cols), rect.cols);
    }
}

void oct_cpu_gamma_grad(const oct_prologue_call *call, const oct_threads *threads) {
    prologue_work work = {.call = call};
    oct_parallel(threads, oct_size_ceil_div(call->grad->cols, OCT_STRIP_COLS), gamma_task,
                 &work);
}
