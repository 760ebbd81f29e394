/* memory.c - the buffers of a plan in the caller's memory: found, and checked before use. */
#include "run/run.h"

#include "core/fail.h"
#include "core/size.h"
#include "plan/names.h"

_Static_assert(OCT_REGIONS <= 64, "regions are bits of a uint64_t");

static int region_of(const octet_plan_buffer *buffer) {
    static const uint8_t first[OCTET_PLACES] = {
        [OCTET_PLACE_ARG] = 0,
        [OCTET_PLACE_OUT] = OCT_REGION_OUTS,
        [OCTET_PLACE_SAVED] = OCT_REGION_SAVED,
        [OCTET_PLACE_RESTORED] = OCT_REGION_RESTORED,
        [OCTET_PLACE_WORK] = OCT_REGION_WORK,
        [OCTET_PLACE_EXCHANGE] = OCT_REGION_EXCHANGES,
    };
    bool single = buffer->place == OCTET_PLACE_SAVED || buffer->place == OCTET_PLACE_WORK;
    return first[buffer->place] + (single ? 0 : buffer->port);
}

const void *oct_region_start(const octet_memory *memory, int index) {
    return index < OCT_REGION_OUTS        ? memory->args[index]
           : index < OCT_REGION_EXCHANGES ? memory->outs[index - OCT_REGION_OUTS]
           : index < OCT_REGION_SAVED     ? memory->exchanges[index - OCT_REGION_EXCHANGES]
           : index == OCT_REGION_SAVED    ? memory->saved
           : index == OCT_REGION_WORK     ? memory->workspace
                                          : memory->restored[index - OCT_REGION_RESTORED];
}

int64_t oct_region_stride(const octet_memory *memory, int index) {
    return index < OCT_REGION_OUTS ? memory->arg_strides[index] : 0;
}

int64_t oct_region_bytes(const octet_memory *memory, int index) {
    return index < OCT_REGION_SAVED    ? 0
           : index == OCT_REGION_SAVED ? memory->saved_bytes
           : index == OCT_REGION_WORK  ? memory->workspace_bytes
                                       : memory->restored_bytes[index - OCT_REGION_RESTORED];
}

void oct_region_put(octet_memory *memory, int index, void *at) {
    if (index < OCT_REGION_OUTS) {
        memory->args[index] = at;
    } else if (index < OCT_REGION_EXCHANGES) {
        memory->outs[index - OCT_REGION_OUTS] = at;
    } else if (index < OCT_REGION_SAVED) {
        memory->exchanges[index - OCT_REGION_EXCHANGES] = at;
    } else if (index == OCT_REGION_SAVED) {
        memory->saved = at;
    } else if (index == OCT_REGION_WORK) {
        memory->workspace = at;
    } else {
        memory->restored[index - OCT_REGION_RESTORED] = at;
    }
}

void *oct_memory_at(const octet_plan *plan, const octet_memory *memory, uint8_t buffer) {
    if (buffer == OCTET_ABSENT || plan->buffers[buffer].bytes == 0) {
        return NULL;
    }
    const octet_plan_buffer *b = &plan->buffers[buffer];
    return (char *)oct_region_start(memory, region_of(b)) + b->offset;
}

/* ---- what the phase uses --------------------------------------------------------------- */

static void set_port(oct_region *r, const octet_port *port) {
    r->port = port;
    r->need = port->bytes;
    r->align = octet_dtype_bits((octet_dtype)port->dtype) / 8;
}

static void set_arena(oct_region *r, int64_t need) {
    r->port = NULL;
    r->need = need;
    r->align = OCTET_ARENA_ALIGN;
}

/* The bytes of an earlier plan's arena up to the last that this plan knows of. */
static int64_t restored_bytes(const octet_plan *plan, int port) {
    int64_t bytes = 0;
    for (int i = 0; i < plan->buffer_count; i++) {
        const octet_plan_buffer *b = &plan->buffers[i];
        bool here = b->place == OCTET_PLACE_RESTORED && b->port == port && b->bytes;
        bytes = here && b->offset + b->bytes > bytes ? b->offset + b->bytes : bytes;
    }
    return bytes;
}

static void set_region(oct_region *r, const octet_plan *plan, const octet_memory *m,
                       int index) {
    r->index = index;
    r->at = oct_region_start(m, index);
    r->stride = oct_region_stride(m, index);
    r->bytes = oct_region_bytes(m, index);
    if (index < OCT_REGION_OUTS) {
        set_port(r, &plan->args[index]);
    } else if (index < OCT_REGION_EXCHANGES) {
        set_port(r, &plan->outs[index - OCT_REGION_OUTS]);
    } else if (index < OCT_REGION_SAVED) {
        set_port(r, &plan->exchanges[index - OCT_REGION_EXCHANGES]);
    } else {
        set_arena(r, index == OCT_REGION_SAVED ? plan->saved_bytes
                     : index == OCT_REGION_WORK
                         ? plan->workspace_bytes
                         : restored_bytes(plan, index - OCT_REGION_RESTORED));
    }
}

static void find_used(oct_regions *out, const octet_plan *plan, int phase,
                      const octet_memory *memory) {
    uint64_t reads = 0, writes = 0, used = 0, written = 0;
    for (int i = 0; i < plan->step_count; i++) {
        const octet_step *step = &plan->steps[i];
        if (step->phase == phase && step->op != OCTET_OP_COLLECTIVE) {
            reads |= step->reads;
            writes |= step->writes;
            writes |= step->scratch == OCTET_ABSENT ? 0 : (uint64_t)1 << step->scratch;
        }
    }
    for (int i = 0; i < plan->buffer_count; i++) {
        uint64_t bit = (uint64_t)1 << region_of(&plan->buffers[i]);
        used |= (reads | writes) >> i & 1 ? bit : 0;
        written |= writes >> i & 1 ? bit : 0;
    }
    out->count = 0;
    for (int i = 0; i < OCT_REGIONS && used >> i; i++) {
        if (used >> i & 1) {
            oct_region *r = &out->at[out->count];
            set_region(r, plan, memory, i);
            r->is_written = written >> i & 1;
            out->count += r->need > 0;
        }
    }
}

/* ---- what may be wrong ----------------------------------------------------------------- */

#define NAME_TEXT 96

/* "argument 2 (weight.cached rowwise data)", "the workspace". */
static const char *name_of(char text[NAME_TEXT], const oct_region *r) {
    int index = r->index;
    static const char *const arenas[] = {"saved", "restored[0]", "restored[1]", "workspace"};
    oct_writer writer = oct_writer_start(text, NAME_TEXT);
    if (!r->port) {
        oct_write(&writer, arenas[index - OCT_REGION_SAVED]);
        return text;
    }
    oct_write(&writer, index < OCT_REGION_OUTS        ? "argument "
                       : index < OCT_REGION_EXCHANGES ? "output "
                                                      : "exchange ");
    oct_write_i64(&writer, index < OCT_REGION_OUTS        ? index
                           : index < OCT_REGION_EXCHANGES ? index - OCT_REGION_OUTS
                                                          : index - OCT_REGION_EXCHANGES);
    oct_write(&writer, " (");
    oct_write_part_name(&writer, r->port->name, r->port->form, r->port->part);
    oct_write(&writer, ")");
    return text;
}

/* Rows of a plain matrix may lie apart; then the region is as long as they reach. */
static octet_status check_stride(oct_region *r, octet_error *err) {
    char name[NAME_TEXT];
    if (!r->stride) {
        return OCTET_OK;
    }
    const octet_port *port = r->port;
    bool is_matrix = port->part == OCTET_PART_VALUES && port->ndim == 2;
    int64_t cols = port->shape[port->ndim - 1];
    if (!is_matrix && r->stride != cols) {
        return oct_fail(err, OCTET_INVALID,
                        "%s has a stride of %lld elements; only a matrix that is not quantized "
                        "may have one",
                        name_of(name, r), (long long)r->stride);
    }
    if (r->stride < cols) {
        return oct_fail(err, OCTET_INVALID,
                        "%s has a stride of %lld elements, less than its row of %lld",
                        name_of(name, r), (long long)r->stride, (long long)cols);
    }
    int64_t apart;
    if (is_matrix &&
        (!oct_size_mul(&apart, port->shape[0] - 1, r->stride) ||
         !oct_size_add(&apart, apart, cols) || !oct_size_mul(&r->need, apart, r->align))) {
        return oct_fail(err, OCTET_INVALID, "%s with a stride of %lld exceeds 64-bit sizes",
                        name_of(name, r), (long long)r->stride);
    }
    return OCTET_OK;
}

static octet_status check_region(oct_region *r, octet_error *err) {
    char name[NAME_TEXT];
    if (!r->at) {
        return oct_fail(err, OCTET_INVALID, "%s is NULL; this phase uses %lld bytes of it",
                        name_of(name, r), (long long)r->need);
    }
    if (!r->port && r->bytes < r->need) {
        return oct_fail(err, OCTET_INVALID, "%s has %lld bytes; the plan needs %lld",
                        name_of(name, r), (long long)r->bytes, (long long)r->need);
    }
    if ((uintptr_t)r->at % (uintptr_t)r->align) {
        return oct_fail(err, OCTET_INVALID, "%s is at %p; it must be aligned to %d bytes",
                        name_of(name, r), (void *)r->at, r->align);
    }
    return check_stride(r, err);
}

static bool overlap(const oct_region *a, const oct_region *b) {
    uintptr_t x = (uintptr_t)a->at, y = (uintptr_t)b->at;
    return x < y + (uint64_t)b->need && y < x + (uint64_t)a->need;
}

/* What one step writes no other may see change, so written memory is nothing else besides. */
static octet_status check_overlap(const oct_regions *used, const oct_region *written,
                                  octet_error *err) {
    for (int i = 0; i < used->count; i++) {
        const oct_region *other = &used->at[i];
        if (other != written && overlap(written, other)) {
            char here[NAME_TEXT], there[NAME_TEXT];
            return oct_fail(err, OCTET_INVALID,
                            "%s is written but overlaps %s: %lld bytes at %p and %lld at %p",
                            name_of(here, written), name_of(there, other),
                            (long long)written->need, (void *)written->at,
                            (long long)other->need, (void *)other->at);
        }
    }
    return OCTET_OK;
}

octet_status oct_memory_regions(oct_regions *used, const octet_plan *plan, int phase,
                                const octet_memory *memory, octet_error *err) {
    octet_status status = OCTET_OK;
    find_used(used, plan, phase, memory);
    for (int i = 0; i < used->count && !status; i++) {
        status = check_region(&used->at[i], err);
    }
    for (int i = 0; i < used->count && !status; i++) {
        if (used->at[i].is_written) {
            status = check_overlap(used, &used->at[i], err);
        }
    }
    return status;
}

octet_status oct_memory_check(const octet_plan *plan, int phase, const octet_memory *memory,
                              octet_error *err) {
    oct_regions used;
    return oct_memory_regions(&used, plan, phase, memory, err);
}
