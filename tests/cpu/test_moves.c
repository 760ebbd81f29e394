/* test_moves.c - bytes that only change place: transpose, swizzle, assemble. */
#include "every_isa.h"

#include "inputs.h"
#include "model.h"
#include "quantizers.h"

#define ROWS 96

static const octet_scheme schemes[] = {OCTET_FP8_TENSOR, OCTET_FP8_DELAYED, OCTET_FP8_BLOCK,
                                       OCTET_MXFP8,      OCTET_NVFP4,       OCTET_MXFP4};

static void fill_quantized(cpu_tensor *out, const cpu_tensor *x, const float *amaxes) {
    float scale = 3.0f, amax = model_amax(x);
    oct_live live = {&scale, amaxes ? amaxes : &amax, NULL, 9, 0, NULL};
    oct_cpu_amax_parts(&out->m, &x->m, NULL);
    oct_cpu_quantize(&out->m, &x->m, &live, NULL);
}

static octet_quantizer with_usage(octet_quantizer q, bool row, bool col) {
    q.rowwise = row;
    q.columnwise = col;
    return q;
}

static void check_same(const cpu_tensor *got, const cpu_tensor *want) {
    size_t at = 0;
    int part = cpu_tensor_differ(got, want, &at);
    if (!CHECK_EQ_INT(part, -1) && test_failures <= TEST_REPORTS) {
        char text[OCTET_QUANTIZER_TEXT];
        octet_quantizer_print(text, sizeof text, &want->m.quantizer);
        printf("    %s %dx%d part %d at byte %zu\n", text, (int)want->m.rows, (int)want->m.cols,
               part, at);
    }
    CHECK(cpu_tensor_guarded(got));
}

/* ---- transpose ------------------------------------------------------------------------- */

static void check_turn(const octet_quantizer *q, const cpu_tensor *x, bool have_row) {
    octet_quantizer from = with_usage(*q, have_row, !have_row);
    octet_quantizer to = with_usage(*q, !have_row, have_row);
    octet_dtype dtype = (octet_dtype)x->m.dtype;
    cpu_tensor source = cpu_tensor_quantized(&from, dtype, x->m.rows, x->m.cols, 1);
    cpu_tensor want = cpu_tensor_quantized(&to, dtype, x->m.rows, x->m.cols, 1);
    fill_quantized(&source, x, NULL);
    fill_quantized(&want, x, NULL);
    for (int threads = 1; threads <= 5; threads += threads == 1 ? 1 : 3) {
        oct_threads t = cpu_threads(threads);
        cpu_tensor got = cpu_tensor_quantized(&to, dtype, x->m.rows, x->m.cols, 1);
        oct_cpu_transpose(&got.m, &source.m, have_row ? OCTET_USE_ROW : OCTET_USE_COL, &t);
        check_same(&got, &want);
        cpu_tensor_free(&got);
    }
    cpu_tensor_free(&source);
    cpu_tensor_free(&want);
}

TEST(transpose__equals_quantizing_the_other_direction) {
    for (int i = 0; i < 6 * CPU_QUANTIZERS; i++) {
        octet_quantizer q;
        if (!cpu_quantizer(&q, schemes[i / CPU_QUANTIZERS], i % CPU_QUANTIZERS) ||
            !octet_quantizer_transposable(&q) || !q.rowwise || q.columnwise) {
            continue;
        }
        for (int s = i % 2; s < CPU_SHAPES; s += 2) {
            cpu_tensor x = cpu_tensor_plain(OCTET_BF16, cpu_shapes[s][0], cpu_shapes[s][1],
                                            cpu_shapes[s][1]);
            cpu_fill(&x, CPU_INPUT_BLOCKS, (uint64_t)(i + s));
            check_turn(&q, &x, true);
            check_turn(&q, &x, false);
            cpu_tensor_free(&x);
        }
    }
}

/* ---- swizzle --------------------------------------------------------------------------- */

static void check_swizzle(octet_quantizer q, const cpu_tensor *x) {
    octet_dtype dtype = (octet_dtype)x->m.dtype;
    cpu_tensor made[2], got[2];
    for (int i = 0; i < 2; i++) {
        q.swizzled = (uint8_t)i;
        made[i] = cpu_tensor_quantized(&q, dtype, x->m.rows, x->m.cols, 1);
        got[i] = cpu_tensor_quantized(&q, dtype, x->m.rows, x->m.cols, 1);
        fill_quantized(&made[i], x, NULL);
        fill_quantized(&got[i], x, NULL);
    }
    for (int use = OCTET_USE_ROW; use <= OCTET_USE_COL; use++) {
        int part = use == OCTET_USE_ROW ? OCTET_PART_ROW_SCALE : OCTET_PART_COL_SCALE;
        for (int to = 0; to < 2 && made[0].m.parts[part]; to++) {
            memset(got[to].m.parts[part], 0x5a, got[to].bytes[part]);
            oct_cpu_swizzle(&got[to].m, &made[1 - to].m, (octet_use)use, to == 0);
        }
    }
    for (int i = 0; i < 2; i++) {
        check_same(&got[i], &made[i]);
        cpu_tensor_free(&made[i]);
        cpu_tensor_free(&got[i]);
    }
}

TEST(swizzle__equals_quantizing_swizzled_and_back) {
    for (int i = 0; i < 2 * CPU_QUANTIZERS; i++) {
        octet_quantizer q;
        if (!cpu_quantizer(&q, schemes[3 + i / CPU_QUANTIZERS], i % CPU_QUANTIZERS) ||
            !q.swizzled || q.stochastic || q.row_scaled) {
            continue;
        }
        for (int s = 0; s < CPU_SHAPES; s++) {
            cpu_tensor x = cpu_tensor_plain(OCTET_F32, cpu_shapes[s][0], cpu_shapes[s][1],
                                            cpu_shapes[s][1]);
            cpu_fill(&x, CPU_INPUT_BLOCKS, (uint64_t)(i + s));
            check_swizzle(q, &x);
            cpu_tensor_free(&x);
        }
    }
}

/* Row 33, k-block 5 of a matrix with 2 tiles along a row. */
TEST(swizzle__the_worked_example) {
    octet_quantizer q;
    CHECK_EQ_INT(octet_quantizer_parse(&q, "mxfp8:e4m3+row+swizzled", NULL), OCTET_OK);
    cpu_tensor x = cpu_tensor_plain(OCTET_F32, 128, 256, 256);
    cpu_tensor made = cpu_tensor_quantized(&q, OCTET_F32, 128, 256, 1);
    cpu_fill(&x, CPU_INPUT_ZEROS, 1);
    cpu_tensor_set(&x, 33, 5 * 32 + 7, 448.0f);
    fill_quantized(&made, &x, NULL);
    const uint8_t *scales = made.m.parts[OCTET_PART_ROW_SCALE];
    for (int i = 0; i < 128 * 8; i++) {
        CHECK_EQ_INT(scales[i], i == 533 ? 127 : 0);
    }
    cpu_tensor_free(&x);
    cpu_tensor_free(&made);
}

/* ---- assemble -------------------------------------------------------------------------- */

/* Shards share their tensor amaxes, as after a reduction over the ranks; amaxes per row are the
 * shard's own. */
static void share_amaxes(cpu_tensor *shard, const cpu_tensor *whole, int64_t first_row) {
    const float *row = whole->m.parts[OCTET_PART_ROW_AMAX];
    const float *col = whole->m.parts[OCTET_PART_COL_AMAX];
    if (row) {
        memcpy(shard->m.parts[OCTET_PART_ROW_AMAX],
               row + (shard->m.quantizer.row_scaled ? first_row : 0),
               shard->bytes[OCTET_PART_ROW_AMAX]);
    }
    if (col) {
        memcpy(shard->m.parts[OCTET_PART_COL_AMAX], col, shard->bytes[OCTET_PART_COL_AMAX]);
    }
}

static void put_shard(cpu_tensor *stacked, const cpu_tensor *shard, int64_t rank) {
    for (int part = 0; part < OCTET_PARTS; part++) {
        if (shard->m.parts[part]) {
            size_t size = shard->bytes[part];
            memcpy((uint8_t *)stacked->m.parts[part] + (size_t)rank * size,
                   shard->m.parts[part], size);
        }
    }
}

/* `rows` of each of `ranks`. */
static void check_assemble(const octet_quantizer *q, int64_t rows, int64_t cols,
                           int64_t ranks) {
    cpu_tensor x = cpu_tensor_plain(OCTET_BF16, rows * ranks, cols, cols);
    cpu_tensor want = cpu_tensor_quantized(q, OCTET_BF16, rows * ranks, cols, 1);
    cpu_tensor got = cpu_tensor_quantized(q, OCTET_BF16, rows * ranks, cols, 1);
    cpu_tensor stacked = cpu_tensor_quantized(q, OCTET_BF16, rows, cols, ranks);
    float scale = 3.0f;
    cpu_fill(&x, CPU_INPUT_BLOCKS, (uint64_t)cols);
    float amax = model_amax(&x);
    oct_live live = {&scale, &amax, NULL, 9, 0, NULL};
    fill_quantized(&want, &x, &amax);
    for (int64_t rank = 0; rank < ranks; rank++) {
        cpu_tensor shard = cpu_tensor_quantized(q, OCTET_BF16, rows, cols, 1);
        oct_matrix part = x.m;
        part.rows = rows;
        part.parts[0] = (uint16_t *)x.m.parts[0] + rank * rows * cols;
        share_amaxes(&shard, &want, rank * rows);
        oct_cpu_quantize(&shard.m, &part, &live, NULL);
        put_shard(&stacked, &shard, rank);
        cpu_tensor_free(&shard);
    }
    oct_cpu_assemble(&got.m, &stacked.m, ranks);
    check_same(&got, &want);
    cpu_tensor_free(&x);
    cpu_tensor_free(&want);
    cpu_tensor_free(&got);
    cpu_tensor_free(&stacked);
}

TEST(assemble__equals_quantizing_the_whole) {
    static const int64_t cols[] = {1, 33, 130};
    for (int i = 0; i < 6 * CPU_QUANTIZERS; i++) {
        octet_quantizer q;
        if (!cpu_quantizer(&q, schemes[i / CPU_QUANTIZERS], i % CPU_QUANTIZERS) ||
            q.stochastic) {
            continue; /* random bits are numbered by the shard's own rows */
        }
        int64_t rows = q.scheme == OCTET_FP8_BLOCK ? 128 : ROWS;
        check_assemble(&q, rows, cols[i % 3], 3);
        check_assemble(&q, i % 2 ? rows : 37, cols[i % 3], 1);
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

CPU_TEST_MAIN(transpose__equals_quantizing_the_other_direction,
              swizzle__equals_quantizing_swizzled_and_back, swizzle__the_worked_example,
              assemble__equals_quantizing_the_whole, assemble__joins_rows_of_any_number)
