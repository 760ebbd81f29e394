/* workspace.c - where the buffers of a workspace lie. Two share bytes where no step needs both.
 *
 * Example: backward behind SwiGLU with save=memory. What the input decodes to, and f of it,
 * have been read for the last time when wgrad begins: what wgrad's operands are padded to may
 * lie there. */
#include "core/size.h"
#include "plan/build.h"

/* The steps from the first to the last that use a buffer. */
typedef struct span {
    int first, last;
} span;

/* When each step may run at the earliest. A device may do a cast, or a measurement, together
 * with an earlier one that is alike (src/run/pair.c), behind all that make what it reads; these
 * may have been done early, too. Example: a cast that is step 6 and reads what a product, step
 * 3, writes may be done with step 4. */
static void find_earliest(uint8_t out[OCTET_PLAN_STEPS], const octet_plan *plan) {
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        bool moves = step->op == OCTET_OP_AMAX || step->op == OCTET_OP_QUANTIZE;
        int at = moves ? 0 : i;
        for (int k = 0; k < i && moves; k++) {
            const octet_step *before = &plan->steps[k];
            int behind = before->phase != step->phase   ? k + 1
                         : before->writes & step->reads ? out[k] + 1
                                                        : 0;
            at = at > behind ? at : behind;
        }
        out[i] = (uint8_t)at;
    }
}

static void use(span spans[OCTET_PLAN_BUFFERS], const octet_plan *plan, int index, int from) {
    const octet_step *step = &plan->steps[index];
    uint64_t used = step->reads | step->writes;
    used |= step->scratch == OCTET_ABSENT ? 0 : (uint64_t)1 << step->scratch;
    for (int i = 0; i < plan->buffer_count && used >> i; i++) {
        if (used >> i & 1) {
            spans[i].first = spans[i].first < from ? spans[i].first : from;
            spans[i].last = index;
        }
    }
}

/* Those that no step names are taken as used by all. */
static void find_spans(span spans[OCTET_PLAN_BUFFERS], const octet_plan *plan) {
    uint8_t earliest[OCTET_PLAN_STEPS];
    find_earliest(earliest, plan);
    for (int i = 0; i < plan->buffer_count; i++) {
        spans[i] = (span){OCTET_PLAN_STEPS, -1};
    }
    for (int i = 0; i < plan->step_count; i++) {
        use(spans, plan, i, earliest[i]);
    }
    for (int i = 0; i < plan->buffer_count; i++) {
        if (spans[i].last < 0) {
            spans[i] = (span){0, OCTET_PLAN_STEPS};
        }
    }
}

/* The largest first: what is small fits between. What products work in is behind the rest. */
static bool goes_before(const octet_plan_buffer *a, const octet_plan_buffer *b) {
    return a->sized != b->sized ? b->sized : a->bytes > b->bytes;
}

static int by_size(uint8_t order[OCTET_PLAN_BUFFERS], const octet_plan *plan, uint64_t bits) {
    int count = 0;
    for (int i = 0; i < plan->buffer_count; i++) {
        int at = count;
        if (!(bits >> i & 1)) {
            continue;
        }
        while (at > 0 && goes_before(&plan->buffers[i], &plan->buffers[order[at - 1]])) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = (uint8_t)i;
        count++;
    }
    return count;
}

/* The end of a buffer that is needed beside this one and lies in its way; 0: none does. */
static int64_t in_the_way(const octet_plan *plan, const span *spans, const uint8_t *order,
                          int index) {
    const octet_plan_buffer *b = &plan->buffers[order[index]];
    const span *own = &spans[order[index]];
    for (int i = 0; i < index; i++) {
        const octet_plan_buffer *other = &plan->buffers[order[i]];
        const span *theirs = &spans[order[i]];
        if (own->first <= theirs->last && theirs->first <= own->last &&
            b->offset < other->offset + other->bytes && other->offset < b->offset + b->bytes) {
            return (other->offset + other->bytes + OCTET_ALIGN - 1) / OCTET_ALIGN * OCTET_ALIGN;
        }
    }
    return 0;
}

bool oct_share_workspace(octet_plan *plan, uint64_t bits) {
    uint8_t order[OCTET_PLAN_BUFFERS];
    span spans[OCTET_PLAN_BUFFERS];
    int count = by_size(order, plan, bits);
    int64_t start = plan->workspace_bytes, all = start;
    bool fits = true;
    find_spans(spans, plan);
    for (int i = 0; i < count; i++) {
        int64_t bytes = 0;
        fits = fits && oct_size_round_up(&bytes, plan->buffers[order[i]].bytes, OCTET_ALIGN) &&
               oct_size_add(&all, all, bytes);
    }
    /* No end is behind the sum of all, so no sum below overflows. */
    for (int i = 0; fits && i < count; i++) {
        octet_plan_buffer *b = &plan->buffers[order[i]];
        int64_t end, bytes = (b->bytes + OCTET_ALIGN - 1) / OCTET_ALIGN * OCTET_ALIGN;
        b->offset = start;
        while ((end = in_the_way(plan, spans, order, i)) != 0) {
            b->offset = end;
        }
        end = b->offset + bytes;
        plan->workspace_bytes = end > plan->workspace_bytes ? end : plan->workspace_bytes;
    }
    return fits;
}
