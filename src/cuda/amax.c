/* amax.c - the largest magnitude: of a tensor, or of each row and column. */
#include "cuda/kernels/amax.h"

#include "cuda/quantize.h"

#define BLOCKS_EACH 8 /* of a dense tensor's kernel, on a multiprocessor */

static const char *const flat_names[3] = {"amax_flat_f32", "amax_flat_bf16", "amax_flat_f16"};
static const char *const tiles_names[3] = {"amax_tiles_f32", "amax_tiles_bf16",
                                           "amax_tiles_f16"};

static oct_amax_flat_params flat_of(float *out, float *copy, const oct_matrix *source) {
    return (oct_amax_flat_params){source->parts[0], source->rows * source->cols, out, copy, 0};
}

static oct_amax_flat_params recorded(const oct_cuda_amaxing *one) {
    oct_amax_flat_params p = flat_of(one->out, NULL, one->source);
    p.records = one->records;
    return p;
}

static bool is_dense(const oct_matrix *source) {
    return source->stride == source->cols || source->rows <= 1;
}

/* Chunks of a dense tensor; an amax of nothing is recorded, too. */
static int64_t chunks_of(const oct_amax_flat_params *p, int64_t chunk) {
    int64_t chunks = oct_size_ceil_div(p->count, chunk);
    return chunks || !p->records ? chunks : 1;
}

/* Blocks of each, by the chunks it has: as many as fit on the GPU at once. */
static octet_status flat(const oct_cuda_on *on, oct_amax_flat_two *p, uint8_t dtype,
                         octet_error *err) {
    int64_t chunk = OCT_FLAT_THREADS * OCT_FLAT_LOADS * (dtype == OCTET_F32 ? 4 : 8);
    int64_t most = (int64_t)oct_cuda_facts_of(on->cuda)->processors * BLOCKS_EACH;
    int64_t first = chunks_of(&p->of[0], chunk), second = chunks_of(&p->of[1], chunk);
    double part = first + second > most ? (double)most / (double)(first + second) : 1.0;
    p->split = (uint32_t)((double)first * part + 0.5);
    p->split = first && !p->split ? 1 : p->split;
    uint32_t rest = (uint32_t)((double)second * part);
    oct_cuda_launch launch = {.module = OCT_MODULE_amax, .params = p};
    launch.kernel = flat_names[oct_dtype_index(dtype)];
    launch.grid[0] = p->split + (second && !rest ? 1 : rest);
    launch.grid[1] = launch.grid[2] = 1;
    launch.threads = OCT_FLAT_THREADS;
    launch.params_bytes = sizeof *p;
    return oct_cuda_launch_kernel(on, &launch, err);
}

static octet_status tiles(const oct_cuda_on *on, const oct_amax_tiles_params *p, uint8_t dtype,
                          octet_error *err) {
    oct_cuda_launch launch = {.module = OCT_MODULE_amax, .params = p};
    launch.kernel = tiles_names[oct_dtype_index(dtype)];
    launch.grid[0] = oct_cuda_tiles(p->q.rows, p->q.cols);
    launch.grid[1] = launch.grid[2] = 1;
    launch.threads = oct_cuda_tile_threads(dtype);
    launch.params_bytes = sizeof *p;
    return oct_cuda_launch_kernel(on, &launch, err);
}

/* A tensor's amax into one or two places. */
static octet_status measure(const oct_cuda_on *on, const oct_amax_flat_params *p,
                            const oct_matrix *source, octet_error *err) {
    oct_amax_flat_two one = {.of = {*p}};
    oct_amax_tiles_params many = {.row = p->out, .col = p->copy};
    many.q = oct_cuda_quantize_params(source, source);
    return is_dense(source) ? flat(on, &one, source->dtype, err)
                            : tiles(on, &many, source->dtype, err);
}

octet_status oct_cuda_amax(const oct_cuda_on *on, const oct_cuda_amaxing *one,
                           octet_error *err) {
    oct_amax_flat_params p = recorded(one);
    return measure(on, &p, one->source, err);
}

octet_status oct_cuda_amax_two(const oct_cuda_on *on, const oct_cuda_amaxing two[2],
                               octet_error *err) {
    const oct_matrix *a = two[0].source, *b = two[1].source;
    if (is_dense(a) && is_dense(b) && a->dtype == b->dtype) {
        oct_amax_flat_two both = {.of = {recorded(&two[0]), recorded(&two[1])}};
        return flat(on, &both, a->dtype, err);
    }
    octet_status status = oct_cuda_amax(on, &two[0], err);
    return status ? status : oct_cuda_amax(on, &two[1], err);
}

octet_status oct_cuda_amax_parts(const oct_cuda_on *on, const oct_matrix *dst,
                                 const oct_matrix *source, octet_error *err) {
    const octet_quantizer *q = &dst->quantizer;
    float *row = dst->parts[OCTET_PART_ROW_AMAX], *col = dst->parts[OCTET_PART_COL_AMAX];
    if (!q->row_scaled && !(q->hadamard && col)) {
        oct_amax_flat_params p = flat_of(row ? row : col, row ? col : NULL, source);
        return measure(on, &p, source, err);
    }
    oct_amax_tiles_params p = {.row = row, .col = col, .by_line = q->row_scaled};
    p.q = oct_cuda_quantize_params(source, source);
    p.hadamard = q->hadamard != OCTET_HADAMARD_NONE;
    for (int r = 0; r < OCT_HADAMARD_ROWS; r++) {
        p.weights[r] = oct_hadamard_weight(oct_hadamard_signs(q), r);
    }
    return tiles(on, &p, source->dtype, err);
}
