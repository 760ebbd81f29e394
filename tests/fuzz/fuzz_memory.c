/* fuzz_memory.c - exactly sized memory for a chain of plans, its data, and what must agree. */
#define _POSIX_C_SOURCE 200809L
#include "fuzz_memory.h"

#include "cpu/isa.h"

int fuzz_best_isa(void) {
    return oct_cpu_isa();
}

/* The process has one table; a test may change it between runs. */
void fuzz_use_isa(int isa) {
    oct_table *table = (oct_table *)oct_cpu_table();
    *table = oct_isa_table(isa);
}

/* ---- memory ------------------------------------------------------------------------------ */

static uint64_t next(uint64_t *state) {
    *state += 0x9E3779B97F4A7C15u;
    uint64_t z = (*state ^ *state >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* A code of the dtype near 1 in magnitude. */
static uint32_t number(octet_dtype dtype, uint64_t random) {
    float value = (float)(int32_t)(random & 0xFFFF) / 16384.0f - 2.0f;
    bool scalar = dtype == OCTET_F32 || dtype == OCTET_BF16 || dtype == OCTET_F16;
    return scalar ? octet_encode(dtype, value) : (uint32_t)(random & 0xFF);
}

static void fill_argument(unsigned char *at, const octet_port *port, const fuzz_choice *choice,
                          uint64_t state) {
    size_t each = (size_t)octet_dtype_bits((octet_dtype)port->dtype) / 8;
    for (size_t i = 0; i + each <= (size_t)port->bytes; i += each) {
        uint64_t random = next(&state);
        uint32_t code = number((octet_dtype)port->dtype, random >> 8);
        bool any = choice->values == FUZZ_ANY_BITS || each == 8 ||
                   (choice->values == FUZZ_SOME_BITS && (random & 63) == 0);
        if (choice->values == FUZZ_ZEROS && (random & 7)) {
            random = code = 0;
        }
        memcpy(at + i, any ? (void *)&random : (void *)&code, each);
    }
}

static void *keep(fuzz_results *out, size_t bytes, size_t align) {
    void *at = NULL;
    LAW(posix_memalign(&at, align, bytes ? bytes : 1) == 0);
    LAW(out->block_count < (int)(sizeof out->blocks / sizeof out->blocks[0]));
    out->blocks[out->block_count++] = at;
    return at;
}

static void *filled(fuzz_results *out, int64_t bytes, int fill) {
    void *at = keep(out, (size_t)bytes, OCTET_ARENA_ALIGN);
    memset(at, fill, (size_t)bytes);
    return at;
}

static bool is_matrix(const octet_port *port) {
    return port->part == OCTET_PART_VALUES && port->ndim == 2 && port->bytes > 0;
}

/* Dense, or with rows that lie apart; the last row ends where the memory does. */
static void give_argument(fuzz_results *out, const octet_plan *plan, int plan_at, int port_at,
                          const fuzz_choice *choice) {
    const octet_port *port = &plan->args[port_at];
    octet_memory *memory = &out->memory[plan_at];
    uint64_t state = (uint64_t)choice->seed << 16 | (uint64_t)(plan_at * 64 + port_at);
    unsigned char *dense = fuzz_exact((size_t)port->bytes);
    fill_argument(dense, port, choice, state);
    size_t each = (size_t)octet_dtype_bits((octet_dtype)port->dtype) / 8, gap = 0, row = 0;
    size_t rows = is_matrix(port) ? (size_t)port->shape[0] : 1;
    if (is_matrix(port) && choice->apart) {
        gap = choice->apart * each;
        row = (size_t)port->shape[1] * each;
        memory->arg_strides[port_at] = port->shape[1] + choice->apart;
    } else {
        row = (size_t)port->bytes;
        rows = 1;
    }
    unsigned char *at = keep(out, (size_t)port->bytes + gap * (rows - 1), 16);
    memset(at, 0x5A, (size_t)port->bytes + gap * (rows - 1));
    for (size_t r = 0; r < rows; r++) {
        memcpy(at + r * (row + gap), dense + r * row, row);
    }
    memory->args[port_at] = at;
    free(dense);
}

static void give_memory(fuzz_results *out, const octet_chain *chain, int at,
                        const fuzz_choice *choice) {
    const octet_plan *plan = &chain->plans[at];
    octet_memory *memory = &out->memory[at];
    *memory = OCTET_MEMORY_INIT;
    for (int i = 0; i < plan->arg_count; i++) {
        give_argument(out, plan, at, i, choice);
    }
    for (int i = 0; i < plan->out_count; i++) {
        bool alias = plan->outs[i].alias != OCTET_ABSENT;
        memory->outs[i] = alias ? NULL : filled(out, plan->outs[i].bytes, choice->fill);
    }
    for (int i = 0; i < plan->exchange_count; i++) {
        memory->exchanges[i] = filled(out, plan->exchanges[i].bytes, choice->fill);
    }
    memory->saved = filled(out, plan->saved_bytes, choice->fill);
    memory->saved_bytes = plan->saved_bytes;
    memory->workspace = filled(out, plan->workspace_bytes, choice->fill);
    memory->workspace_bytes = plan->workspace_bytes;
    for (int i = 0; i < at; i++) {
        memory->restored[i] = out->memory[i].saved;
        memory->restored_bytes[i] = out->memory[i].saved_bytes;
    }
}

static const void *start_of(const octet_memory *m, const octet_plan_buffer *b) {
    switch (b->place) {
    case OCTET_PLACE_ARG:
        return m->args[b->port];
    case OCTET_PLACE_OUT:
        return m->outs[b->port];
    case OCTET_PLACE_EXCHANGE:
        return m->exchanges[b->port];
    case OCTET_PLACE_SAVED:
        return m->saved;
    case OCTET_PLACE_RESTORED:
        return m->restored[b->port];
    default:
        return m->workspace;
    }
}

/* ---- running ----------------------------------------------------------------------------- */

static void one_by_one(void *pool, int64_t count, octet_task task, void *arg) {
    (void)pool;
    for (int64_t i = count; i-- > 0;) {
        task(arg, i, i + 1);
    }
}

static void in_halves(void *pool, int64_t count, octet_task task, void *arg) {
    (void)pool;
    int64_t half = count / 2;
    if (count > half) {
        task(arg, half, count);
    }
    if (half > 0) {
        task(arg, 0, half);
    }
}

static octet_exec exec_of(const fuzz_choice *choice, octet_pool **pool) {
    octet_exec exec = OCTET_EXEC_INIT;
    exec.threads = choice->split == FUZZ_SERIAL ? 0 : choice->threads;
    if (choice->split == FUZZ_ONE_BY_ONE) {
        exec.parallel_for = one_by_one;
    } else if (choice->split == FUZZ_HALVES) {
        exec.parallel_for = in_halves;
    } else if (choice->split == FUZZ_POOL) {
        int threads = choice->threads % 3 + 2;
        LAW(octet_pool_create(pool, threads, NULL) == OCTET_OK);
        exec.threads = (uint32_t)threads;
        exec.parallel_for = octet_pool_parallel_for;
        exec.pool = *pool;
    }
    return exec;
}

/* Every rank has what this one has: whole pieces of `from`, as often as `to` has room. */
static void collect(const octet_plan *plan, const octet_memory *memory, const octet_step *s) {
    const octet_plan_buffer *from = &plan->buffers[s->from], *to = &plan->buffers[s->to];
    const unsigned char *source = (const unsigned char *)start_of(memory, from) + from->offset;
    unsigned char *out = (unsigned char *)start_of(memory, to) + to->offset;
    bool strided = from->place == OCTET_PLACE_ARG && memory->arg_strides[from->port];
    for (int64_t done = 0; done < to->bytes && from->bytes > 0; done += from->bytes) {
        int64_t some = to->bytes - done < from->bytes ? to->bytes - done : from->bytes;
        if (strided) {
            memset(out + done, 0x11, (size_t)some);
        } else {
            memmove(out + done, source, (size_t)some);
        }
    }
}

static void run_plan(const octet_plan *plan, const octet_memory *memory,
                     const octet_exec *exec) {
    octet_error err = {OCTET_OK, 0, ""};
    for (int phase = 0; phase < plan->phases; phase++) {
        if (octet_run_phase(plan, phase, memory, exec, &err)) {
            fprintf(stderr, "%s\n", err.text);
            LAW(false && "a plan on its own memory runs");
        }
        for (int i = 0; i < plan->step_count; i++) {
            if (plan->steps[i].phase == phase && plan->steps[i].op == OCTET_OP_COLLECTIVE) {
                collect(plan, memory, &plan->steps[i]);
            }
        }
    }
}

void fuzz_run_chain(fuzz_results *out, const octet_chain *chain, const fuzz_choice *choice) {
    octet_pool *pool = NULL;
    octet_exec exec = exec_of(choice, &pool);
    out->block_count = 0;
    for (int i = 0; i < chain->count; i++) {
        give_memory(out, chain, i, choice);
        run_plan(&chain->plans[i], &out->memory[i], &exec);
    }
    octet_pool_free(pool);
}

void fuzz_results_free(fuzz_results *results) {
    for (int i = 0; i < results->block_count; i++) {
        free(results->blocks[i]);
    }
    results->block_count = 0;
}

/* ---- what must agree --------------------------------------------------------------------- */

/* Bit i: something of a product is in buffer i, at the end. */
static uint64_t multiplied(const octet_plan *plan, const octet_plan *previous, uint64_t saved) {
    uint64_t mask = 0;
    for (int i = 0; previous && i < plan->restored_count; i++) {
        if (saved >> previous->saved[i] & 1 && plan->restored[i] != OCTET_ABSENT) {
            mask |= (uint64_t)1 << plan->restored[i];
        }
    }
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *s = &plan->steps[i];
        bool from = s->op == OCTET_OP_COLLECTIVE && (mask >> s->from & 1);
        bool mixed = s->op == OCTET_OP_GEMM || (s->reads & mask) || from;
        uint64_t to = s->op == OCTET_OP_COLLECTIVE ? (uint64_t)1 << s->to : s->writes;
        mask = mixed ? mask | to : mask;
    }
    return mask;
}

static bool is_result(const octet_plan *plan, const octet_plan_buffer *b) {
    bool out = b->place == OCTET_PLACE_OUT && plan->outs[b->port].alias == OCTET_ABSENT;
    bool argument = b->place == OCTET_PLACE_ARG && plan->args[b->port].is_mutable;
    return out || argument || b->place == OCTET_PLACE_SAVED;
}

/* From its first byte to its last; what lies between rows must stay as it was. */
static size_t span_of(const octet_memory *memory, const octet_plan_buffer *b) {
    int64_t stride = b->place == OCTET_PLACE_ARG ? memory->arg_strides[b->port] : 0;
    int64_t each = octet_dtype_bits((octet_dtype)b->dtype) / 8;
    return (size_t)(stride ? ((b->shape[0] - 1) * stride + b->shape[1]) * each : b->bytes);
}

static bool is_nan(octet_dtype dtype, const unsigned char *at) {
    uint32_t code = 0;
    bool scalar = dtype == OCTET_F32 || dtype == OCTET_BF16 || dtype == OCTET_F16;
    memcpy(&code, at, scalar ? (size_t)octet_dtype_bits(dtype) / 8 : 1);
    float value = octet_decode(dtype, code);
    return scalar && value != value;
}

/* The first byte that differs, or `bytes`. Of two NaNs that meet, instruction sets keep either:
 * across them any NaN equals any. */
static size_t first_other(const unsigned char *x, const unsigned char *y, size_t bytes,
                          octet_dtype dtype, bool across) {
    size_t each = (size_t)octet_dtype_bits(dtype) / 8;
    for (size_t i = 0; i + each <= bytes; i += each) {
        bool same = !memcmp(x + i, y + i, each);
        if (!same && !(across && is_nan(dtype, x + i) && is_nan(dtype, y + i))) {
            return i;
        }
    }
    return bytes;
}

void fuzz_same(const fuzz_results *a, const fuzz_results *b, const octet_chain *chain,
               bool across) {
    uint64_t mask = 0;
    for (int p = 0; p < chain->count; p++) {
        const octet_plan *plan = &chain->plans[p];
        mask = multiplied(plan, p ? &chain->plans[p - 1] : NULL, mask);
        for (int i = 0; i < plan->buffer_count; i++) {
            const octet_plan_buffer *buffer = &plan->buffers[i];
            if (!is_result(plan, buffer) || !buffer->bytes || (across && (mask >> i & 1))) {
                continue;
            }
            const unsigned char *x = start_of(&a->memory[p], buffer);
            const unsigned char *y = start_of(&b->memory[p], buffer);
            size_t bytes = span_of(&a->memory[p], buffer);
            size_t at = first_other(x + buffer->offset, y + buffer->offset, bytes,
                                    (octet_dtype)buffer->dtype, across);
            if (at < bytes) {
                char name[128];
                (void)octet_plan_buffer_print(name, sizeof name, plan, i);
                fprintf(stderr, "plan %d: %s, byte %zu\n", p, name, at);
                LAW(false &&
                    "results do not depend on splits, nor casts on the instruction set");
            }
        }
    }
}
