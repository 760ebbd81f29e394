/* amax.c - the largest magnitude: of a tensor, or of each row and column. */
#include "cuda/kernels/amax.h"

#include "cuda/quantize.h"

static const char *const flat_names[3] = {"amax_flat_f32", "amax_flat_bf16", "amax_flat_f16"};
static const char *const tiles_names[3] = {"amax_tiles_f32", "amax_tiles_bf16",
                                           "amax_tiles_f16"};

static oct_amax_flat_params flat_of(const oct_cuda_amaxing *of) {
    const oct_matrix *source = of->source;
    oct_amax_flat_params p = {
        .source = source->parts[0], .count = source->rows * source->cols, .raises = of->raises};
    *(of->count > 1 ? &p.shares : &p.out) = of->out;
    return p;
}

static bool is_dense(const oct_matrix *source) {
    return source->stride == source->cols || source->rows <= 1;
}

/* Chunks of a dense tensor. One of nothing has shares, and an amax to raise, too. */
static int64_t chunks_of(const oct_amax_flat_params *p, int64_t chunk) {
    int64_t chunks = oct_size_ceil_div(p->count, chunk);
    return chunks ? chunks : p->raises || p->shares;
}

/* Blocks take chunks in turn. There are as many blocks as fit on the GPU at once, at most one
 * for each share. */
static octet_status flat(const oct_cuda_on *on, oct_amax_flat_two *p, uint8_t dtype,
                         octet_error *err) {
    int64_t chunk = OCT_FLAT_THREADS * OCT_FLAT_LOADS * (dtype == OCTET_F32 ? 4 : 8);
    int64_t most = (int64_t)oct_cuda_facts_of(on->cuda)->processors * OCT_FLAT_RESIDENT;
    int64_t first = chunks_of(&p->of[0], chunk);
    int64_t blocks = first + chunks_of(&p->of[1], chunk);
    most = most < OCT_AMAX_SHARES ? most : OCT_AMAX_SHARES;
    blocks = blocks < most ? blocks : most;
    p->of[1].first = blocks ? (uint32_t)(first % blocks) : 0;
    oct_cuda_launch launch = {.module = OCT_MODULE_amax, .input = dtype, .params = p};
    launch.kernel = flat_names[oct_dtype_index(dtype)];
    launch.grid[0] = (uint32_t)blocks;
    launch.grid[1] = launch.grid[2] = 1;
    launch.threads = OCT_FLAT_THREADS;
    launch.params_bytes = sizeof *p;
    return oct_cuda_launch_kernel(on, &launch, err);
}

static octet_status tiles(const oct_cuda_on *on, const oct_amax_tiles_params *p, uint8_t dtype,
                          octet_error *err) {
    oct_cuda_launch launch = {.module = OCT_MODULE_amax, .input = dtype, .params = p};
    launch.kernel = tiles_names[oct_dtype_index(dtype)];
    launch.grid[0] = oct_cuda_tiles(p->q.rows, p->q.cols);
    launch.grid[1] = launch.grid[2] = 1;
    launch.threads = oct_cuda_tile_threads(dtype);
    launch.params_bytes = sizeof *p;
    return oct_cuda_launch_kernel(on, &launch, err);
}

/* A tensor's amax; also raised in a second place if that is not NULL. */
static octet_status measure(const oct_cuda_on *on, const oct_cuda_amaxing *one, float *copy,
                            octet_error *err) {
    const oct_matrix *source = one->source;
    if (is_dense(source)) {
        oct_amax_flat_two p = {.of = {flat_of(one)}};
        p.of[0].copy = copy;
        return flat(on, &p, source->dtype, err);
    }
    oct_amax_tiles_params p = {.row = one->out, .col = copy};
    p.q = oct_cuda_quantize_params(source, source);
    int64_t zeros = one->count > 1 ? one->count * (int64_t)sizeof(float) : 0;
    octet_status status = oct_cuda_zero(on, one->out, zeros, err);
    return status ? status : tiles(on, &p, source->dtype, err);
}

octet_status oct_cuda_amax(const oct_cuda_on *on, const oct_cuda_amaxing *one,
                           octet_error *err) {
    return measure(on, one, NULL, err);
}

octet_status oct_cuda_amax_two(const oct_cuda_on *on, const oct_cuda_amaxing two[2],
                               octet_error *err) {
    const oct_matrix *a = two[0].source, *b = two[1].source;
    if (is_dense(a) && is_dense(b) && a->dtype == b->dtype) {
        oct_amax_flat_two both = {.of = {flat_of(&two[0]), flat_of(&two[1])}};
        return flat(on, &both, a->dtype, err);
    }
    octet_status status = oct_cuda_amax(on, &two[0], err);
    return status ? status : oct_cuda_amax(on, &two[1], err);
}

octet_status oct_cuda_amax_parts(const oct_cuda_on *on, const oct_matrix *dst,
                                 const oct_matrix *source, float *sums, octet_error *err) {
    const octet_quantizer *q = &dst->quantizer;
    float *row = dst->parts[OCTET_PART_ROW_AMAX], *col = dst->parts[OCTET_PART_COL_AMAX];
    if (!q->row_scaled && !(q->hadamard && col) && !sums) {
        oct_cuda_amaxing one = {row ? row : col, 1, source, false};
        return measure(on, &one, row ? col : NULL, err);
    }
    oct_amax_tiles_params p = {.row = row, .col = col, .by_line = q->row_scaled};
    p.q = oct_cuda_quantize_params(source, source);
    p.q.sums = sums;
    p.hadamard = q->hadamard != OCTET_HADAMARD_NONE;
    for (int r = 0; r < OCT_HADAMARD_ROWS; r++) {
        p.weights[r] = oct_hadamard_weight(oct_hadamard_signs(q), r);
    }
    return tiles(on, &p, source->dtype, err);
}
