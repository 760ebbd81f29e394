/* fold.h - how far a folded product's operands are from their bytes, from the definition alone.
 */
#ifndef OCTET_RUN_FOLD_H
#define OCTET_RUN_FOLD_H

#include "decode.h"

static inline bool run_is_folded(const octet_plan *plan, const octet_step *step) {
    return step->op == OCTET_OP_GEMM && step->a_copy != OCTET_ABSENT &&
           plan->tensors[step->a_copy].form == OCTET_FORM_FOLDED;
}

/* Of element (r, c): half of the format's least step times the largest scale of its 128, which
 * lie along the columns of a row, or by_rows along the rows of a column; 0 where its own scale
 * is the largest. */
static inline double run_fold_error(const run_view *v, octet_use use, bool by_rows, int64_t r,
                                    int64_t c) {
    bool col = use == OCTET_USE_COL;
    double own = run_mx_scale(v, col, r, c), most = own;
    int64_t length = by_rows ? v->rows : v->cols, first = (by_rows ? r : c) / 128 * 128;
    for (int64_t i = first; i < first + 128 && i < length; i += 32) {
        most = fmax(most, run_mx_scale(v, col, by_rows ? i : r, by_rows ? c : i));
    }
    double half = v->quantizer.format == OCTET_E5M2 ? 0x1p-17 : 0x1p-10;
    return own < most ? half * most : 0;
}

#endif
