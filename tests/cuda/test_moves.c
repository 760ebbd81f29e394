/* test_moves.c - bytes that only change place: transpose, swizzle, pad, assemble. */
#include <stdlib.h>

#include "compare.h"
#include "cuda/kernels/moves.h"

static cpu_tensor filled(int shape, uint64_t seed) {
    int64_t rows = cpu_shapes[shape][0], cols = cpu_shapes[shape][1];
    cpu_tensor x = cpu_tensor_plain(OCTET_BF16, rows, cols, cols);
    cpu_fill(&x, CPU_INPUT_BLOCKS, seed);
    return x;
}

static cpu_tensor empty_like(const octet_quantizer *q, const cpu_tensor *x) {
    return cpu_tensor_quantized(q, (octet_dtype)x->m.dtype, x->m.rows, x->m.cols, 1);
}

/* ---- transpose ------------------------------------------------------------------------- */

static void check_turn(octet_quantizer q, const cpu_tensor *x, bool have_row) {
    octet_use have = have_row ? OCTET_USE_ROW : OCTET_USE_COL;
    q.rowwise = have_row;
    q.columnwise = !have_row;
    cpu_tensor source = cuda_quantized(&q, x, 9);
    cpu_tensor from = cuda_exact(&source, 0);
    q.rowwise = !have_row;
    q.columnwise = have_row;
    cpu_tensor want = empty_like(&q, x), got = empty_like(&q, x);
    oct_cpu_transpose(&want.m, &source.m, have, NULL);
    CHECK_EQ_INT(oct_cuda_transpose(cuda_on(), &got.m, &from.m, have, NULL), OCTET_OK);
    cuda_check_parts(&got, &want);
    cuda_exact_free(&from, 0);
    cpu_tensor_free(&source);
    cpu_tensor_free(&want);
    cpu_tensor_free(&got);
}

TEST(transpose__equals_the_cpu) {
    for (int i = 0; i < CUDA_QUANTIZERS; i++) {
        octet_quantizer q;
        if (!cuda_quantizer(&q, i) || !octet_quantizer_transposable(&q) || !q.rowwise ||
            q.columnwise) {
            continue;
        }
        for (int s = i % 2; s < CPU_SHAPES; s += 2) {
            cpu_tensor x = filled(s, (uint64_t)(i + s));
            check_turn(q, &x, true);
            check_turn(q, &x, false);
            cpu_tensor_free(&x);
        }
    }
}

/* Aligned and wide enough that whole tiles are turned. */
TEST(transpose__of_whole_tiles) {
    static const char *const texts[] = {"fp8-tensor:e4m3", "nvfp4:e2m1/16x16",
                                        "mxfp4:e2m1/32x32"};
    for (int i = 0; i < 9; i++) {
        octet_quantizer q;
        CHECK_EQ_INT(octet_quantizer_parse(&q, texts[i % 3], NULL), OCTET_OK);
        int64_t rows = i < 3 ? 256 : i < 6 ? 144 : 400, cols = i < 3 ? 384 : i < 6 ? 272 : 128;
        cpu_tensor x = cpu_tensor_plain(OCTET_BF16, rows, cols, cols);
        cpu_fill(&x, CPU_INPUT_CODES, (uint64_t)i);
        check_turn(q, &x, true);
        check_turn(q, &x, false);
        cpu_tensor_free(&x);
    }
}

/* ---- swizzle --------------------------------------------------------------------------- */

static void check_swizzle(octet_quantizer q, const cpu_tensor *x) {
    q.swizzled = 0;
    cpu_tensor source = cuda_quantized(&q, x, 9), from = cuda_exact(&source, 0);
    q.swizzled = 1;
    cpu_tensor want = cuda_quantized(&q, x, 9), got = cuda_quantized(&q, x, 9);
    for (int use = OCTET_USE_ROW; use <= OCTET_USE_COL; use++) {
        int part = use == OCTET_USE_ROW ? OCTET_PART_ROW_SCALE : OCTET_PART_COL_SCALE;
        if (got.m.parts[part]) {
            memset(got.m.parts[part], 0x5a, got.bytes[part]);
            CHECK_EQ_INT(oct_cuda_swizzle(cuda_on(), &got.m, &from.m, (octet_use)use, NULL),
                         OCTET_OK);
        }
    }
    cuda_check_parts(&got, &want);
    cuda_exact_free(&from, 0);
    cpu_tensor_free(&source);
    cpu_tensor_free(&want);
    cpu_tensor_free(&got);
}

TEST(swizzle__equals_quantizing_swizzled) {
    for (int i = 0; i < CUDA_QUANTIZERS; i++) {
        octet_quantizer q;
        if (!cuda_quantizer(&q, i) || !q.swizzled || q.stochastic || q.row_scaled ||
            q.four_over_six) {
            continue;
        }
        for (int s = i % 2; s < CPU_SHAPES; s += 2) {
            cpu_tensor x = filled(s, (uint64_t)(i + s));
            check_swizzle(q, &x);
            cpu_tensor_free(&x);
        }
    }
}

/* ---- padding --------------------------------------------------------------------------- */

typedef struct padding {
    int64_t lines, length, more; /* more: lines of zeros below */
    int64_t skip;                /* bytes from a boundary of 16 to the source */
    int64_t pitch;               /* of the source */
    uint8_t *memory, *from;
    oct_matrix to;
} padding;

/* The source ends where its memory ends, so that a sanitizer sees a byte too many; `gap` bytes
 * lie between its lines. */
static padding padding_make(const int64_t size[2], int64_t more, int64_t skip, int64_t gap) {
    int64_t lines = size[0], length = size[1], total = lines * (length + gap) - gap;
    padding p = {.lines = lines, .length = length, .more = more, .skip = skip};
    p.pitch = length + gap;
    p.memory = malloc((size_t)(skip + total));
    p.from = p.memory + skip;
    p.to =
        (oct_matrix){.dtype = OCTET_U8, .rows = lines + more, .cols = (length + 15) / 16 * 16};
    size_t bytes = (size_t)(p.to.rows * p.to.cols);
    p.to.parts[0] = aligned_alloc(16, bytes);
    memset(p.to.parts[0], 0xff, bytes);
    for (int64_t i = 0; i < total; i++) {
        p.from[i] = (uint8_t)(1 + i * 7 % 255);
    }
    return p;
}

static void padding_check(padding *p) {
    const uint8_t *to = p->to.parts[0];
    int64_t wrong = 0;
    for (int64_t i = 0; i < p->to.rows * p->to.cols; i++) {
        int64_t line = i / p->to.cols, at = i % p->to.cols;
        bool there = line < p->lines && at < p->length;
        wrong += to[i] != (there ? p->from[line * p->pitch + at] : 0);
    }
    test_report(wrong == 0, TEST_HERE("bytes, then zeros"), "%d x %d: %d are wrong",
                (int)p->lines, (int)p->length, (int)wrong);
    free(p->memory);
    free(p->to.parts[0]);
}

static oct_cuda_padding padding_of(const padding *p) {
    bool dense = p->pitch == p->length;
    return (oct_cuda_padding){&p->to, p->from, p->lines, p->length, dense ? 0 : p->pitch};
}

/* One to five of them in a launch, of any sizes. */
TEST(pad__lines_then_zeros) {
    static const int64_t lengths[] = {1, 15, 16, 17, 31, 33, 70, 250, 4099};
    for (int i = 0; i < 9 * 4; i++) {
        padding all[OCT_CUDA_PADDINGS];
        oct_cuda_padding paddings[OCT_CUDA_PADDINGS];
        int count = 1 + i % OCT_CUDA_PADDINGS;
        for (int n = 0; n < count; n++) {
            int64_t size[2] = {1 + 13 * ((i + n) % 4), lengths[(i / 4 + 5 * n) % 9]};
            all[n] = padding_make(size, (i + n) % 3 * 5, (i + n) % 2, (i + n) % 5 * 4);
            paddings[n] = padding_of(&all[n]);
        }
        CHECK_EQ_INT(oct_cuda_pad(cuda_on(), paddings, count, NULL), OCTET_OK);
        for (int n = 0; n < count; n++) {
            padding_check(&all[n]);
        }
    }
}

/* ---- assemble -------------------------------------------------------------------------- */

/* Any bytes will do: only their places matter. */
static void fill_parts(cpu_tensor *t, uint64_t seed) {
    for (int part = 0; part < OCTET_PARTS; part++) {
        for (size_t i = 0; t->m.parts[part] && i < t->bytes[part]; i++) {
            ((uint8_t *)t->m.parts[part])[i] = (uint8_t)cpu_random(&seed);
        }
    }
}

static void check_assemble(const octet_quantizer *q, int64_t rows, int64_t cols,
                           int64_t ranks) {
    cpu_tensor want = cpu_tensor_quantized(q, OCTET_BF16, rows * ranks, cols, 1);
    cpu_tensor got = cpu_tensor_quantized(q, OCTET_BF16, rows * ranks, cols, 1);
    cpu_tensor shards = cpu_tensor_quantized(q, OCTET_BF16, rows, cols, ranks);
    fill_parts(&shards, (uint64_t)(rows + cols));
    cpu_tensor from = cuda_exact(&shards, 0);
    oct_cpu_assemble(&want.m, &shards.m, ranks);
    CHECK_EQ_INT(oct_cuda_assemble(cuda_on(), &got.m, &from.m, ranks, NULL), OCTET_OK);
    cuda_check_parts(&got, &want);
    cuda_exact_free(&from, 0);
    cpu_tensor_free(&want);
    cpu_tensor_free(&got);
    cpu_tensor_free(&shards);
}

TEST(assemble__equals_the_cpu) {
    static const int64_t cols[] = {1, 33, 130, 256};
    for (int i = 0; i < CUDA_QUANTIZERS; i++) {
        octet_quantizer q;
        if (!cuda_quantizer(&q, i)) {
            continue;
        }
        int64_t rows = q.scheme == OCTET_FP8_BLOCK ? 128 : 96;
        check_assemble(&q, rows, cols[i % 4], 3);
        check_assemble(&q, i % 2 ? rows : 131, cols[i % 4], 1);
        check_assemble(&q, 0, cols[i % 4], 2);
    }
}

/* Rowwise bytes of lines that are not whole blocks may be joined, too. */
TEST(assemble__joins_rows_of_any_number) {
    static const char *const texts[] = {"fp8-tensor:e4m3", "fp8-block:e4m3+row",
                                        "mxfp8:e4m3+row",  "mxfp8:e4m3+row+swizzled",
                                        "nvfp4:e2m1+row",  "nvfp4:e2m1+rowscaled+row"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        octet_quantizer q;
        CHECK_EQ_INT(octet_quantizer_parse(&q, texts[i], NULL), OCTET_OK);
        check_assemble(&q, 37, 70, 4);
        check_assemble(&q, 1, 70, 5);
    }
}

/* ---- chunks of rows -------------------------------------------------------------------- */

/* Leaves of a matrix the parts that a step would have. */
static oct_matrix with_parts(const oct_matrix *of, bool data) {
    oct_matrix m = *of;
    for (int part = 0; part < OCTET_PARTS; part++) {
        bool scale = part == OCTET_PART_ROW_SCALE ||
                     (part == OCTET_PART_ROW_AMAX && of->quantizer.row_scaled);
        m.parts[part] = (data ? part == OCTET_PART_ROW_DATA : scale) ? m.parts[part] : NULL;
    }
    return m;
}

/* A chunk of each of `ranks` shards of so many rows: its scales, and its codes in the whole. */
static void check_chunk(const octet_quantizer *q, int64_t rows, const oct_chunk *chunk) {
    int64_t cols = 70, piece = rows / chunk->chunks * chunk->ranks;
    cpu_tensor want = cpu_tensor_quantized(q, OCTET_BF16, rows * chunk->ranks, cols, 1);
    cpu_tensor got = cpu_tensor_quantized(q, OCTET_BF16, rows * chunk->ranks, cols, 1);
    cpu_tensor shards = cpu_tensor_quantized(q, OCTET_BF16, rows, cols, chunk->ranks);
    cpu_tensor one = cpu_tensor_quantized(q, OCTET_BF16, piece, cols, 1);
    cpu_tensor other = cpu_tensor_quantized(q, OCTET_BF16, piece, cols, 1);
    oct_threads threads = {NULL, NULL, 1};
    fill_parts(&shards, (uint64_t)rows);
    fill_parts(&one, 5);
    memcpy(other.m.parts[OCTET_PART_ROW_DATA], one.m.parts[OCTET_PART_ROW_DATA],
           one.bytes[OCTET_PART_ROW_DATA]);
    cpu_tensor from = cuda_exact(&shards, 0);
    oct_matrix a = with_parts(&shards.m, false), b = with_parts(&from.m, false);
    oct_matrix to = with_parts(&one.m, false), into = with_parts(&other.m, false);
    oct_cpu_take(&to, &a, chunk);
    CHECK_EQ_INT(oct_cuda_take(cuda_on(), &into, &b, chunk, NULL), OCTET_OK);
    for (int part = 0; part < OCTET_PARTS; part++) {
        CHECK(!to.parts[part] ||
              memcmp(to.parts[part], into.parts[part], one.bytes[part]) == 0);
    }
    oct_matrix codes = with_parts(&one.m, true);
    oct_cpu_join(&want.m, &codes, chunk, &threads);
    CHECK_EQ_INT(oct_cuda_join(cuda_on(), &got.m, &codes, chunk, NULL), OCTET_OK);
    cuda_check_parts(&got, &want);
    cuda_exact_free(&from, 0);
    cpu_tensor_free(&want);
    cpu_tensor_free(&got);
    cpu_tensor_free(&shards);
    cpu_tensor_free(&one);
    cpu_tensor_free(&other);
}

TEST(chunks__equal_the_cpu) {
    static const char *const texts[] = {
        "fp8-tensor:e4m3+row", "fp8-block:e4m3+row",      "fp8-block:e4m3/128x128+row",
        "mxfp8:e4m3+row",      "mxfp8:e4m3+row+swizzled", "nvfp4:e2m1+row",
        "mxfp4:e2m1+row",      "nvfp4:e2m1+rowscaled+row"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        octet_quantizer q;
        CHECK_EQ_INT(octet_quantizer_parse(&q, texts[i], NULL), OCTET_OK);
        bool whole = q.swizzled || q.block_rows > 1;
        for (int chunk = 0; chunk < 3; chunk++) {
            check_chunk(&q, whole ? 384 : 33, &(oct_chunk){4, 3, chunk});
        }
    }
}

TEST_MAIN(transpose__equals_the_cpu, transpose__of_whole_tiles,
          swizzle__equals_quantizing_swizzled, pad__lines_then_zeros, assemble__equals_the_cpu,
          assemble__joins_rows_of_any_number, chunks__equal_the_cpu)
