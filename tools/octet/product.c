/* product.c - products in double precision, by blocks that fit a cache and on several threads.
 */
#define _XOPEN_SOURCE 700 /* isatty */
#include "product.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DEEP 64   /* inner indices of a block, */
#define WIDE 512  /* and columns */
#define ROWS 16   /* of a thread between two looks at the clock */
#define LEAST 1e8 /* multiplications that are worth a word */

static double size_of(double x) {
    return x < 0 ? -x : x;
}

/* The matrix with rows as columns, or as it is. */
static oct_cli_matrix laid(const oct_cli_matrix *m, bool turned) {
    oct_cli_matrix made =
        oct_cli_matrix_make(turned ? m->cols : m->rows, turned ? m->rows : m->cols);
    for (int64_t r = 0; r < m->rows && turned; r++) {
        for (int64_t c = 0; c < m->cols; c++) {
            made.at[c * made.cols + r] = m->at[r * m->cols + c];
        }
    }
    if (!turned && m->rows * m->cols > 0) {
        memcpy(made.at, m->at, sizeof(double) * (size_t)m->rows * (size_t)m->cols);
    }
    return made;
}

/* a: (rows, inner), b: (inner, cols), each beside what it may be off by. */
typedef struct job {
    oct_cli_matrix a, la, b, lb;
    oct_cli_product *out;
    int64_t first; /* row of the band */
} job;

/* One row of a block: what inner indices [k, k_end) add to columns [c, c_end). */
static void add_row(const job *j, int64_t r, const int64_t k[2], const int64_t c[2]) {
    int64_t cols = j->b.cols;
    double *sum = j->out->sum.at + r * cols, *size = j->out->size.at + r * cols;
    double *deviation = j->out->deviation.at + r * cols;
    for (int64_t i = k[0]; i < k[1]; i++) {
        double x = j->a.at[r * j->a.cols + i], p = size_of(x), lx = j->la.at[r * j->a.cols + i];
        const double *y = j->b.at + i * cols, *ly = j->lb.at + i * cols;
        for (int64_t at = c[0]; at < c[1]; at++) {
            double q = size_of(y[at]);
            sum[at] += x * y[at];
            size[at] += p * q;
            deviation[at] += p * ly[at] + lx * q + lx * ly[at];
        }
    }
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static void do_rows(void *arg, int64_t begin, int64_t end) {
    const job *j = arg;
    for (int64_t c = 0; c < j->b.cols; c += WIDE) {
        const int64_t cols[2] = {c, least(c + WIDE, j->b.cols)};
        for (int64_t k = 0; k < j->a.cols; k += DEEP) {
            const int64_t deep[2] = {k, least(k + DEEP, j->a.cols)};
            for (int64_t r = begin; r < end; r++) {
                add_row(j, j->first + r, deep, cols);
            }
        }
    }
}

static void show(int64_t done, int64_t all) {
    if (done < all) {
        (void)fprintf(stderr, "\rverify: %lld%% of a product", (long long)(100 * done / all));
    } else {
        (void)fputs("\r                              \r", stderr);
    }
    (void)fflush(stderr);
}

static void run(job *j, const octet_exec *exec) {
    int64_t rows = j->a.rows, band = ROWS * (exec->threads > 1 ? exec->threads : 1);
    double work = (double)rows * (double)j->a.cols * (double)j->b.cols;
    bool shown = work > LEAST && isatty(STDERR_FILENO);
    for (j->first = 0; j->first < rows; j->first += band) {
        int64_t count = least(band, rows - j->first);
        if (shown) {
            show(j->first, rows);
        }
        if (exec->parallel_for != NULL) {
            exec->parallel_for(exec->pool, count, do_rows, j);
        } else {
            do_rows(j, 0, count);
        }
    }
    if (shown) {
        show(rows, rows);
    }
}

oct_cli_product oct_cli_multiply(const oct_cli_factor *a, const oct_cli_factor *b,
                                 const octet_exec *exec) {
    oct_cli_product made;
    job j = {laid(a->own, a->turned),
             laid(a->deviation, a->turned),
             laid(b->own, b->turned),
             laid(b->deviation, b->turned),
             &made,
             0};
    made.sum = oct_cli_matrix_make(j.a.rows, j.b.cols);
    made.size = oct_cli_matrix_make(j.a.rows, j.b.cols);
    made.deviation = oct_cli_matrix_make(j.a.rows, j.b.cols);
    made.inner = j.a.cols;
    run(&j, exec);
    oct_cli_matrix_drop(&j.a);
    oct_cli_matrix_drop(&j.la);
    oct_cli_matrix_drop(&j.b);
    oct_cli_matrix_drop(&j.lb);
    return made;
}
