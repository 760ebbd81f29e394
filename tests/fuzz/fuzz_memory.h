/* fuzz_memory.h - the plans of a chain run on memory of exactly their bytes. */
#ifndef OCTET_FUZZ_MEMORY_H
#define OCTET_FUZZ_MEMORY_H

#include "fuzz.h"

/* How parallel_for cuts its work. */
enum { FUZZ_SERIAL = 0, FUZZ_ONE_BY_ONE, FUZZ_HALVES, FUZZ_POOL };
/* What arguments hold: bits of any kind, or numbers near 1 with few of those among them. */
enum { FUZZ_ANY_BITS = 0, FUZZ_NUMBERS, FUZZ_SOME_BITS, FUZZ_ZEROS };

typedef struct fuzz_choice {
    uint8_t seed;
    uint8_t fill; /* of memory that is to be written */
    uint8_t threads, lanes;
    uint8_t split;
    uint8_t values;
    uint8_t apart; /* rows of plain arguments lie so many elements apart */
} fuzz_choice;

typedef struct fuzz_results {
    octet_memory memory[OCTET_CHAIN_PLANS];
    void *blocks[OCTET_CHAIN_PLANS *
                 (OCTET_PLAN_ARGS + OCTET_PLAN_OUTS + OCTET_PLAN_EXCHANGES + 2)];
    int block_count;
} fuzz_results;

/* The best instruction set of the machine; its numbers are those of cpu/isa.h. */
int fuzz_best_isa(void);
/* What follows runs with this one. */
void fuzz_use_isa(int isa);

/* Every phase of every plan, one rank for all of them. A plan that was made must run. */
void fuzz_run_chain(fuzz_results *out, const octet_chain *chain, const fuzz_choice *choice);
void fuzz_results_free(fuzz_results *results);
/* Outputs, saved blocks and written arguments are the same bytes; across instruction sets, of
 * what no product went into. */
void fuzz_same(const fuzz_results *a, const fuzz_results *b, const octet_chain *chain,
               bool across);

#endif
