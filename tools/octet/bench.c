/* bench.c - octet bench: how long a problem's steps take, and the rates that follow. */
#include <stdlib.h>
#include <time.h>

#include "chain.h"
#include "problems.h"

#define SECONDS 0.3 /* about as long is a step repeated */
#define LEAST 5
#define MOST 1000

typedef struct timing {
    const oct_cli_chain *chain;
    const octet_exec *exec;
    int plan, step; /* step -1: the whole plan */
} timing;

static double now(void) {
    struct timespec t;
    (void)timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A plan is a plain value: one that has a single step runs it on what the others left. */
static octet_status run_step(const timing *t, octet_error *err) {
    octet_plan single = t->chain->plans[t->plan];
    single.steps[0] = single.steps[t->step];
    single.steps[0].phase = 0;
    single.step_count = 1;
    single.phases = 1;
    return octet_run(&single, &t->chain->memory[t->plan], t->exec, err);
}

static octet_status run_once(const timing *t, octet_error *err) {
    return t->step >= 0 ? run_step(t, err) : oct_cli_chain_run(t->chain, t->plan, t->exec, err);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median over as many runs as fit the time. */
static octet_status measure(double *seconds, const timing *t, octet_error *err) {
    double times[MOST], spent = 0;
    int count = 0;
    octet_status status = run_once(t, err);
    while (status == OCTET_OK && count < MOST && (spent < SECONDS || count < LEAST)) {
        double start = now();
        status = run_once(t, err);
        times[count] = now() - start;
        spent += times[count++];
    }
    qsort(times, (size_t)count, sizeof times[0], ascending);
    *seconds = count > 0 ? times[count / 2] : 0;
    return status;
}

static int64_t bytes_of(const octet_plan *plan, const octet_step *step) {
    int64_t bytes = 0;
    for (int i = 0; i < plan->buffer_count; i++) {
        bytes += (step->reads >> i & 1) != 0 ? plan->buffers[i].bytes : 0;
        bytes += (step->writes >> i & 1) != 0 ? plan->buffers[i].bytes : 0;
    }
    return bytes;
}

/* Multiplications and additions of a product. */
static double flops_of(const octet_plan *plan, const octet_step *step) {
    const octet_plan_tensor *a = &plan->tensors[step->a];
    const octet_extents *e = &plan->extents;
    int64_t rows = 0;
    if (step->op != OCTET_OP_GEMM || octet_dim_eval(&rows, &a->rows, e, NULL) != OCTET_OK) {
        return 0;
    }
    return 2.0 * (double)rows * (double)e->k * (double)e->n;
}

static void add_row(oct_cli_table *table, const char *what, double seconds, double flops,
                    int64_t bytes) {
    oct_cli_cell(table, "%s", what);
    oct_cli_cell(table, "%.1f", seconds * 1e6);
    double rate = seconds > 0 ? 1e-9 / seconds : 0;
    if (flops > 0) {
        oct_cli_cell(table, "%.1f", flops * rate);
    } else {
        oct_cli_cell(table, "-");
    }
    oct_cli_cell(table, "%.2f", (double)bytes * rate);
}

static char *name_of(const octet_plan *plan, const octet_step *step) {
    static const char *const verbs[OCTET_OPS] = {
        [OCTET_OP_ZERO] = "zero",
        [OCTET_OP_CAST] = "cast",
        [OCTET_OP_AMAX] = "amax",
        [OCTET_OP_QUANTIZE] = "quantize",
        [OCTET_OP_DEQUANTIZE] = "dequantize",
        [OCTET_OP_TRANSPOSE] = "transpose",
        [OCTET_OP_SWIZZLE] = "swizzle",
        [OCTET_OP_ASSEMBLE] = "assemble",
        [OCTET_OP_JOIN] = "join",
        [OCTET_OP_GEMM] = "gemm",
        [OCTET_OP_ADD_BIAS] = "biased",
        [OCTET_OP_BIAS_GRAD] = "column sums",
        [OCTET_OP_STATISTICS] = "statistics",
        [OCTET_OP_PROLOGUE] = "prologue",
        [OCTET_OP_PROLOGUE_GRAD] = "prologue backward",
        [OCTET_OP_GAMMA_GRAD] = "gamma's gradient",
        [OCTET_OP_COLLECTIVE] = "collective",
    };
    static const char *const gemms[OCTET_GEMMS] = {"fprop", "dgrad", "wgrad"};
    char tensor[64] = "";
    uint8_t about = step->op == OCTET_OP_GEMM ? step->dst : step->a;
    if (about != OCTET_ABSENT) {
        (void)octet_plan_tensor_print(tensor, sizeof tensor, plan, about);
    }
    return oct_cli_format(
        "  %s %s", step->op == OCTET_OP_GEMM ? gemms[step->gemm] : verbs[step->op], tensor);
}

/* A line for the plan and one for each of its steps. */
static octet_status bench_plan(oct_cli_table *table, const oct_cli_chain *chain, int index,
                               const octet_exec *exec, octet_error *err) {
    static const char *const kinds[] = {"forward", "backward", "wgrad"};
    const octet_plan *plan = &chain->plans[index];
    double seconds = 0, flops = 0;
    int64_t bytes = 0;
    timing whole = {chain, exec, index, -1};
    octet_status status = measure(&seconds, &whole, err);
    for (int i = 0; i < plan->step_count; i++) {
        flops += flops_of(plan, &plan->steps[i]);
        bytes += bytes_of(plan, &plan->steps[i]);
    }
    add_row(table, kinds[index], seconds, flops, bytes);
    for (int i = 0; i < plan->step_count && status == OCTET_OK; i++) {
        const octet_step *step = &plan->steps[i];
        timing single = {chain, exec, index, i};
        if (step->op == OCTET_OP_COLLECTIVE) {
            continue;
        }
        status = measure(&seconds, &single, err);
        char *name = name_of(plan, step);
        add_row(table, name, seconds, flops_of(plan, step), bytes_of(plan, step));
        free(name);
    }
    return status;
}

typedef struct benching {
    octet_exec exec;
    int count; /* problems so far */
} benching;

static int bench_problem(void *context, const oct_cli_source *source, bool is_one_of_many) {
    benching *b = context;
    oct_cli_chain chain;
    octet_error err;
    oct_cli_table table = {.columns = 4, .right = {[1] = true, [2] = true, [3] = true}};
    static const char *const heads[] = {"step", "us", "GFLOP/s", "GB/s"};
    for (int i = 0; i < 4; i++) {
        oct_cli_cell(&table, "%s", heads[i]);
    }
    octet_status status = oct_cli_chain_make(&chain, source->text, b->exec.threads, &err);
    for (int i = 0; i < chain.count && status == OCTET_OK; i++) {
        status = bench_plan(&table, &chain, i, &b->exec, &err);
    }
    if (status == OCTET_OK) {
        fputs(b->count++ > 0 ? "\n" : "", stdout);
        if (is_one_of_many) {
            printf("# %s\n", source->text);
        }
        oct_cli_table_print(&table);
    }
    oct_cli_table_drop(&table);
    oct_cli_chain_drop(&chain);
    return status == OCTET_OK ? OCT_CLI_OK : oct_cli_reject(source, &err);
}

static int run(const oct_cli_command *self, int count, char **words) {
    oct_cli_option options[] = {{"--file", NULL}, {"--threads", "1"}, {NULL, NULL}};
    if (oct_cli_arguments(self, &count, words, options) != OCT_CLI_OK) {
        return OCT_CLI_USAGE;
    }
    octet_pool *pool = NULL;
    benching b = {.exec = OCTET_EXEC_INIT};
    int status = oct_cli_threads(&b.exec, &pool, self, options[1].value);
    if (status == OCT_CLI_OK) {
        oct_cli_visitor visitor = {bench_problem, &b};
        status = oct_cli_problems(self, count, words, options[0].value, visitor);
    }
    octet_pool_free(pool);
    return status;
}

const oct_cli_command oct_cli_bench = {
    .name = "bench",
    .usage = "[--threads N] PROBLEM... | --file PATH",
    .summary = "how long a Linear's steps take on this CPU, in GFLOP/s and GB/s",
    .about =
        "Runs forward and backward of each problem on this machine's CPU with made data and\n"
        "prints the median time of each plan and of each of its steps by itself. GFLOP/s\n"
        "count two operations a product; GB/s count the bytes of every buffer that a step\n"
        "reads or writes, once. Collectives are left out. Problems are those of octet plan.",
    .example = "octet bench --threads 2 linear m=64 k=96 n=48 in=bf16 recipe=mxfp8",
    .run = run,
};
