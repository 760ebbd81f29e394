/* threads.c - the pool that --threads asks for. */
#include "chain.h"

#include <stdlib.h>

int oct_cli_threads(octet_exec *exec, octet_pool **pool, const oct_cli_command *self,
                    const char *text) {
    char *end = NULL;
    long threads = strtol(text, &end, 10);
    octet_error err;
    if (end == text || *end != '\0' || threads < 1 || threads > 1024) {
        return oct_cli_misuse(self, "--threads is \"%s\"; it is 1 to 1024", text);
    }
    if (octet_pool_create(pool, (int)threads, &err) != OCTET_OK) {
        return oct_cli_fail(self->name, "%s", err.text);
    }
    exec->threads = (uint32_t)threads;
    exec->parallel_for = octet_pool_parallel_for;
    exec->pool = *pool;
    return OCT_CLI_OK;
}
