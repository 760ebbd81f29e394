/* overlap.c - a model of what a plan's collectives cost beside its products.
 *
 * Products run one after the other, and so do collectives: each phase begins when the one
 * before is done and all that it reads has arrived, each collective when what it sends is there
 * and the one before has ended. Casts and copies take no time here, and a product in chunks
 * none more than a whole one: what is found is the most that can be gained. */
#include "overlap.h"

#include <math.h>
#include <stdlib.h>

static int read_rate(double *out, const oct_cli_command *command, const oct_cli_option *option,
                     double unit) {
    char *end;
    double value = strtod(option->value, &end);
    bool zero = value == 0 && option->value[0] != '\0' && unit < 1; /* a latency may be none */
    if (*end != '\0' || !isfinite(value) || !(value > 0 || zero)) {
        return oct_cli_misuse(command, "%s is \"%s\"; it is a number above 0", option->name,
                              option->value);
    }
    *out = value * unit;
    return OCT_CLI_OK;
}

int oct_cli_read_rates(oct_cli_rates *out, const oct_cli_command *command,
                       const oct_cli_option *options) {
    int status = read_rate(&out->link, command, &options[0], 1e9);
    status = status ? status : read_rate(&out->speed, command, &options[1], 1e12);
    return status ? status : read_rate(&out->latency, command, &options[2], 1e-6);
}

/* What a rank sends: rings, so that every link is in use all the time. */
static double sent_bytes(const octet_plan *plan, const octet_step *step) {
    double from = (double)plan->buffers[step->from].bytes, ranks = plan->tp_size;
    from /= step->chunk == OCTET_ABSENT ? 1 : plan->chunks;
    switch (step->collective) {
    case OCTET_ALL_GATHER:
        return from * (ranks - 1);
    case OCTET_REDUCE_SCATTER:
        return from * (ranks - 1) / ranks;
    default:
        return 2 * from * (ranks - 1) / ranks;
    }
}

/* Two for each term of each sum. */
static double operations(const octet_plan *plan, const octet_step *step) {
    const octet_plan_tensor *a = &plan->tensors[step->a], *dst = &plan->tensors[step->dst];
    int64_t rows = 0, cols = 0, terms = 0;
    bool down = step->gemm == OCTET_WGRAD;
    bool found = !octet_dim_eval(&rows, &dst->rows, &plan->extents, NULL) &&
                 !octet_dim_eval(&cols, &dst->cols, &plan->extents, NULL) &&
                 !octet_dim_eval(&terms, down ? &a->rows : &a->cols, &plan->extents, NULL);
    return found ? 2.0 * (double)rows * (double)cols * (double)terms : 0;
}

/* A plan's times, in seconds. */
typedef struct model {
    double products, links, bytes;
    int collectives;
    double phases[OCTET_PLAN_STEPS + 1];               /* the products of each */
    double sends[OCTET_PLAN_EXCHANGES];                /* each collective */
    octet_collective_call calls[OCTET_PLAN_EXCHANGES]; /* and when it begins and ends */
} model;

static void add_steps(model *m, const octet_plan *plan, const oct_cli_rates *rates) {
    int collective = 0;
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        if (step->op == OCTET_OP_GEMM) {
            double time = operations(plan, step) / rates->speed;
            m->phases[step->phase] += time;
            m->products += time;
        } else if (step->op == OCTET_OP_COLLECTIVE && collective < m->collectives) {
            double bytes = sent_bytes(plan, step);
            m->sends[collective] = bytes / rates->link + rates->latency;
            m->links += m->sends[collective++];
            m->bytes += bytes;
        }
    }
}

static double later(double a, double b) {
    return a > b ? a : b;
}

/* Runs products and collectives beside each other; gives when the last of both has ended. */
static double beside(const model *m, int phases) {
    double ended[OCTET_PLAN_EXCHANGES] = {0}, computed = 0, sent = 0;
    for (int phase = 0; phase <= phases; phase++) {
        for (int i = 0; i < m->collectives; i++) {
            if (m->calls[i].begin == phase) {
                sent = later(sent, computed) + m->sends[i];
                ended[i] = sent;
            }
        }
        for (int i = 0; i < m->collectives; i++) {
            computed = m->calls[i].end == phase ? later(computed, ended[i]) : computed;
        }
        computed += phase < phases ? m->phases[phase] : 0;
    }
    return later(computed, sent);
}

void oct_cli_overlap(const octet_plan *plan, const oct_cli_rates *rates) {
    /* When a collective begins and ends is the plan's alone; the chain says where its memory
     * lies, which does not matter here. */
    octet_chain *chain = oct_cli_memory(NULL, sizeof *chain);
    *chain = (octet_chain){.count = 1};
    chain->plans[0] = *plan;
    model *m = oct_cli_memory(NULL, sizeof *m);
    *m = (model){0};
    m->collectives = octet_collectives_of(m->calls, chain, 0);
    free(chain);
    if (m->collectives) {
        char unit[16];
        add_steps(m, plan, rates);
        /* Whole products, and so one collective where chunks have several. */
        double apart = m->products + m->links - (plan->chunks - 1) * rates->latency;
        double together = beside(m, plan->phases);
        oct_cli_unit(unit, (int64_t)m->bytes);
        printf("modelled at %g GB/s, %g TFLOP/s and %g us a collective, without casts:\n",
               rates->link / 1e9, rates->speed / 1e12, rates->latency / 1e-6);
        printf("  a rank sends %.0f B%s%s in %d collectives, %.1f us; products %.1f us, %d "
               "%s\n",
               m->bytes, unit[0] ? ", " : "", unit, m->collectives, m->links * 1e6,
               m->products * 1e6, plan->chunks, plan->chunks > 1 ? "chunks" : "chunk");
        printf("  one after the other %.1f us, beside each other %.1f us: %.1f us are gained\n",
               apart * 1e6, together * 1e6, (apart - together) * 1e6);
    }
    free(m);
}
