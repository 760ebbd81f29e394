/* blocks.c - guarded memory, and where a plan's buffers lie in it. */
#include "fill.h"

/* Bytes behind a block that nobody may touch. */
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define HIDE(at, size) ASAN_POISON_MEMORY_REGION(at, size)
#define SHOW(at, size) ASAN_UNPOISON_MEMORY_REGION(at, size)
#else
#define HIDE(at, size) (void)0
#define SHOW(at, size) (void)0
#endif
#define GUARD 64
#define GUARD_BYTE 0xA5

typedef struct block {
    size_t size;
    unsigned char *at;
} block;

/* Large blocks are cached for the next group: the system is slow to hand them out. */
#define LARGE ((size_t)1 << 20)
#define SPARES 16
static unsigned char *spares[SPARES];
static size_t spare_rooms[SPARES];

static unsigned char *take(size_t room) {
    for (int i = 0; i < SPARES; i++) {
        if (spares[i] && spare_rooms[i] == room) {
            unsigned char *at = spares[i];
            spares[i] = NULL;
            return at;
        }
    }
    return aligned_alloc(64, room);
}

static void give(unsigned char *at, size_t room) {
    for (int i = 0; room >= LARGE && i < SPARES; i++) {
        if (!spares[i]) {
            spares[i] = at;
            spare_rooms[i] = room;
            return;
        }
    }
    free(at);
}

static size_t room_for(size_t size) {
    return (size + GUARD + 63) / 64 * 64;
}

void *run_allocate(run_group *group, int64_t bytes, int fill) {
    block *b = malloc(sizeof *b);
    void **blocks = realloc(group->blocks, sizeof *blocks * (size_t)(group->block_count + 1));
    unsigned char *at = take(room_for((size_t)bytes));
    if (!b || !blocks || !at) {
        exit(2);
    }
    *b = (block){(size_t)bytes, at};
    size_t end = b->size < LARGE ? b->size : LARGE; /* the middle of workspace stays as it is */
    memset(b->at, fill, end);
    memset(b->at + b->size - end, fill, end);
    memset(b->at + b->size, GUARD_BYTE, GUARD);
    HIDE(b->at + b->size, GUARD);
    group->blocks = blocks;
    group->blocks[group->block_count++] = b;
    return b->at;
}

uint64_t run_group_hash(const run_group *group) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (int i = 0; i < group->block_count; i++) {
        const block *b = group->blocks[i];
        for (size_t j = 0; j < b->size && j < 16384; j++) {
            hash = (hash ^ b->at[j]) * 0x100000001B3u;
        }
    }
    return hash;
}

int run_group_overruns(const run_group *group) {
    int count = 0;
    for (int i = 0; i < group->block_count; i++) {
        const block *b = group->blocks[i];
        SHOW(b->at + b->size, GUARD);
        for (int j = 0; j < GUARD; j++) {
            count += b->at[b->size + (size_t)j] != GUARD_BYTE;
        }
    }
    return count;
}

void run_group_free(run_group *group) {
    run_layer *l = &group->layer;
    run_values *all[] = {&l->x,    &l->w,  &l->b,  &l->dy, &l->y,         &l->gamma,
                         &l->beta, &l->dx, &l->dw, &l->db, &l->main_grad, &l->bias_main_grad};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        run_values_free(all[i]);
    }
    for (int i = 0; i < group->block_count; i++) {
        block *b = group->blocks[i];
        SHOW(b->at + b->size, GUARD);
        give(b->at, room_for(b->size));
        free(b);
    }
    free(group->blocks);
    group->blocks = NULL;
    group->block_count = 0;
}

const void *run_block_start(const octet_memory *m, const octet_plan_buffer *b) {
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

void *run_at(const run_group *group, int rank, int plan, int buffer) {
    if (buffer == OCTET_ABSENT) {
        return NULL;
    }
    const octet_plan_buffer *b = &group->plans[plan].buffers[buffer];
    return (char *)run_block_start(&group->memory[rank][plan], b) + b->offset;
}

run_view run_view_of(const run_group *group, int rank, int plan, int tensor) {
    const octet_plan *p = &group->plans[plan];
    const octet_plan_tensor *t = &p->tensors[tensor];
    run_view v = {.quantizer = t->quantizer, .dtype = (octet_dtype)t->dtype};
    octet_status bad = octet_dim_eval(&v.rows, &t->rows, &p->extents, NULL);
    bad = bad ? bad : octet_dim_eval(&v.cols, &t->cols, &p->extents, NULL);
    if (bad) {
        exit(2);
    }
    for (int part = 0; part < OCTET_PARTS; part++) {
        v.parts[part] = run_at(group, rank, plan, t->buffers[part]);
    }
    int values = t->buffers[OCTET_PART_VALUES];
    v.stride = v.cols;
    if (values != OCTET_ABSENT && p->buffers[values].place == OCTET_PLACE_ARG) {
        int64_t stride = group->memory[rank][plan].arg_strides[p->buffers[values].port];
        v.stride = stride ? stride : v.cols;
    }
    return v;
}

run_values run_local(const run_values *whole, int rank, int64_t rows, int64_t cols) {
    return run_values_cut(whole, whole->rows == rows ? 0 : rank * rows,
                          whole->cols == cols ? 0 : rank * cols, rows, cols);
}
