/* verify.c - octet verify: run a problem, and hold its results against double precision. */
#include <stdlib.h>

#include "expect.h"
#include "problems.h"

static double size_of(double x) {
    return x < 0 ? -x : x;
}

/* ---- what the run made ----------------------------------------------------------------- */

/* The tensor that goes by this name among what the plan hands out; its numbers into `got`. */
static octet_status read_result(oct_cli_matrix *got, oct_cli_chain *chain,
                                const oct_cli_result *r, octet_quantizer *quantizer,
                                octet_error *err) {
    const octet_plan *p = &chain->plans[r->plan];
    const octet_memory *m = &chain->memory[r->plan];
    int at = p->tensor_count - 1;
    while (p->tensors[at].name != r->name || p->tensors[at].form != OCTET_FORM_GIVEN) {
        at--;
    }
    const octet_plan_tensor *t = &p->tensors[at];
    octet_dtype dtype = (octet_dtype)t->dtype;
    uint8_t values = t->buffers[OCTET_PART_VALUES];
    *quantizer = t->quantizer;
    *got = oct_cli_matrix_make(r->want.rows, r->want.cols);
    octet_plan decode = OCTET_PLAN_INIT;
    octet_memory memory = OCTET_MEMORY_INIT;
    octet_exec exec = OCTET_EXEC_INIT;
    const void *from = values == OCTET_ABSENT ? NULL
                       : p->buffers[values].place == OCTET_PLACE_OUT
                           ? m->outs[p->buffers[values].port]
                           : m->args[p->buffers[values].port];
    octet_status status = OCTET_OK;
    if (from == NULL) {
        octet_proto proto = octet_proto_make(dtype, 2, (int64_t[]){got->rows, got->cols});
        proto.quantizer = t->quantizer;
        status = octet_plan_dequantize(&decode, &proto, err);
        for (int i = 0; i < decode.arg_count && status == OCTET_OK; i++) {
            memory.args[i] = m->outs[p->buffers[t->buffers[decode.args[i].part]].port];
        }
        from = memory.outs[0] = oct_cli_chain_memory(chain, decode.outs[0].bytes);
        status = status == OCTET_OK ? octet_run(&decode, &memory, &exec, err) : status;
    }
    for (int64_t i = 0; i < got->rows * got->cols && status == OCTET_OK; i++) {
        got->at[i] = oct_cli_load(from, dtype, i);
    }
    return status;
}

/* A result that is quantized moves once more, by what the format does to numbers as large as
 * they may be. */
static void widen(oct_cli_result *r, const octet_quantizer *q, octet_dtype dtype) {
    oct_cli_matrix largest = oct_cli_matrix_make(r->want.rows, r->want.cols);
    for (int64_t i = 0; i < largest.rows * largest.cols; i++) {
        largest.at[i] = size_of(r->want.at[i]) + r->bound.at[i];
    }
    oct_cli_matrix more =
        oct_cli_deviation(q, &largest, OCTET_USE_VALUES, oct_cli_matrix_amax(&largest));
    for (int64_t i = 0; i < more.rows * more.cols; i++) {
        r->bound.at[i] += more.at[i] + oct_cli_unit_of(dtype) * largest.at[i];
    }
    oct_cli_matrix_drop(&more);
    oct_cli_matrix_drop(&largest);
}

/* One line: the worst error over its bound. Returns whether every number is within. */
static bool show_result(oct_cli_table *table, const oct_cli_result *r,
                        const oct_cli_matrix *got) {
    static const char *const names[OCTET_NAMES] = {
        [OCTET_NAME_OUTPUT] = "output",
        [OCTET_NAME_GRAD_INPUT] = "grad_input",
        [OCTET_NAME_GRAD_WEIGHT] = "grad_weight",
        [OCTET_NAME_MAIN_GRAD] = "main_grad",
        [OCTET_NAME_GRAD_BIAS] = "grad_bias",
        [OCTET_NAME_BIAS_MAIN_GRAD] = "bias_main_grad",
        [OCTET_NAME_GRAD_GAMMA] = "grad_gamma",
        [OCTET_NAME_GRAD_BETA] = "grad_beta",
    };
    double worst = 0, error = 0, bound = 0;
    int64_t wrong = 0, count = got->rows * got->cols;
    for (int64_t i = 0; i < count; i++) {
        double off = size_of(got->at[i] - r->want.at[i]);
        bool within = off <= r->bound.at[i]; /* false for NaN */
        wrong += !within;
        if (!within || off / r->bound.at[i] >= worst) {
            worst = off / r->bound.at[i];
            error = off;
            bound = r->bound.at[i];
        }
    }
    oct_cli_cell(table, "%s", names[r->name]);
    oct_cli_cell(table, "%lldx%lld", (long long)got->rows, (long long)got->cols);
    oct_cli_cell(table, "%.3g", error);
    oct_cli_cell(table, "%.3g", bound);
    oct_cli_cell(table, "%.3f", worst);
    if (wrong > 0) {
        oct_cli_cell(table, "OVER at %lld of %lld", (long long)wrong, (long long)count);
    } else {
        oct_cli_cell(table, "ok");
    }
    return wrong == 0;
}

/* ---- the command ----------------------------------------------------------------------- */

typedef struct verifying {
    octet_exec exec;
    int count; /* problems so far */
} verifying;

/* Delayed scaling needs scales for results before they are there. */
static void set_result_scales(oct_cli_chain *chain, const oct_cli_result *results, int count) {
    for (int i = 0; i < count; i++) {
        double amax = oct_cli_matrix_amax(&results[i].want);
        if (results[i].name == OCTET_NAME_OUTPUT) {
            chain->scale[0][OCTET_SLOT_OUTPUT] = oct_cli_chain_scale(chain, OCTET_OUTPUT, amax);
        } else if (results[i].name == OCTET_NAME_GRAD_INPUT) {
            chain->scale[1][OCTET_SLOT_GRAD_INPUT] =
                oct_cli_chain_scale(chain, OCTET_GRAD_INPUT, amax);
        }
    }
}

static octet_status compare(oct_cli_chain *chain, oct_cli_result *results, int count,
                            bool *good, octet_error *err) {
    octet_status status = OCTET_OK;
    oct_cli_table table = {.columns = 6, .right = {[2] = true, [3] = true, [4] = true}};
    static const char *const heads[] = {"result", "shape", "worst error", "bound", "share", ""};
    for (int i = 0; i < 6; i++) {
        oct_cli_cell(&table, "%s", heads[i]);
    }
    for (int i = 0; i < count && status == OCTET_OK; i++) {
        oct_cli_matrix got = {0, 0, NULL};
        octet_quantizer q;
        status = read_result(&got, chain, &results[i], &q, err);
        if (status == OCTET_OK && q.scheme != OCTET_SCHEME_NONE) {
            widen(&results[i], &q, (octet_dtype)chain->args.forward.input.dtype);
        }
        *good = (status != OCTET_OK || show_result(&table, &results[i], &got)) && *good;
        oct_cli_matrix_drop(&got);
    }
    if (status == OCTET_OK) {
        oct_cli_table_print(&table);
    }
    oct_cli_table_drop(&table);
    return status;
}

static octet_status verify(verifying *v, oct_cli_chain *chain, bool *good, octet_error *err) {
    oct_cli_result results[OCT_CLI_RESULTS];
    int count = oct_cli_expect(results, chain, &v->exec);
    octet_status status = OCTET_OK;
    set_result_scales(chain, results, count);
    for (int i = 0; i < chain->count && status == OCTET_OK; i++) {
        status = oct_cli_chain_run(chain, i, &v->exec, err);
    }
    if (status == OCTET_OK) {
        status = compare(chain, results, count, good, err);
    }
    for (int i = 0; i < count; i++) {
        oct_cli_result_drop(&results[i]);
    }
    return status;
}

static int verify_problem(void *context, const oct_cli_source *source, bool is_one_of_many) {
    verifying *v = context;
    oct_cli_chain chain;
    octet_error err;
    bool good = true;
    octet_status status = oct_cli_chain_make(&chain, source->text, v->exec.threads, &err);
    if (status == OCTET_OK && oct_cli_chain_has_collectives(&chain)) {
        status = OCTET_UNSUPPORTED;
        err = (octet_error){.status = status,
                            .text = "verify runs one rank, but the plan has collectives: drop "
                                    "parallel= or tp="};
    }
    if (status == OCTET_OK) {
        fputs(v->count++ > 0 ? "\n" : "", stdout);
        if (is_one_of_many) {
            printf("# %s\n", source->text);
        }
        status = verify(v, &chain, &good, &err);
    }
    oct_cli_chain_drop(&chain);
    if (status != OCTET_OK) {
        return oct_cli_reject(source, &err);
    }
    return good ? OCT_CLI_OK
                : oct_cli_fail(source->command, "a result is over its bound: %s", source->text);
}

static int run(const oct_cli_command *self, int count, char **words) {
    oct_cli_option options[] = {{"--file", NULL}, {"--threads", "1"}, {NULL, NULL}};
    if (oct_cli_arguments(self, &count, words, options) != OCT_CLI_OK) {
        return OCT_CLI_USAGE;
    }
    octet_pool *pool = NULL;
    verifying v = {.exec = OCTET_EXEC_INIT};
    int status = oct_cli_threads(&v.exec, &pool, self, options[1].value);
    if (status == OCT_CLI_OK) {
        oct_cli_visitor visitor = {verify_problem, &v};
        status = oct_cli_problems(self, count, words, options[0].value, visitor);
    }
    octet_pool_free(pool);
    return status;
}

const oct_cli_command oct_cli_verify = {
    .name = "verify",
    .usage = "[--threads N] PROBLEM... | --file PATH",
    .summary = "whether a Linear's results are as near to double precision as they must be",
    .about =
        "Runs forward and backward of each problem on this machine's CPU with made data, and\n"
        "compares every result with the layer in double precision. The bound of a result\n"
        "follows from its formats: half a step of each quantized operand (a whole one where\n"
        "rounding is stochastic), fp32 rounding of the sum, and the rounding of the result. A\n"
        "line gives the worst error relative to its bound; the exit status is 1 when one is\n"
        "over. Problems are those of octet plan, on one rank. --threads shares the work, of "
        "the\n"
        "run and of the comparison; 1024 x 1024 x 1024 takes some seconds a thread.",
    .example = "octet verify linear m=64 k=96 n=48 in=bf16 recipe=nvfp4 bias",
    .run = run,
};
