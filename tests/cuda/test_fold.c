/* test_fold.c - MXFP8 folded into blocks of 128, against its definition, code by code. */
#include "compare.h"

/* ---- the definition --------------------------------------------------------------------- */

static double value_of(uint8_t format, int code) {
    return (double)octet_decode((octet_dtype)format, (uint32_t)code);
}

/* The code nearest to a code's value times 2^-by; of two the even one. A search of all codes:
 * it shares nothing with the encoders. NaN and Inf stay as they are. */
static uint8_t model_shifted(uint8_t format, int code, int by) {
    double value = value_of(format, code), wanted = ldexp(fabs(value), -by), least = INFINITY;
    int found = 0;
    if (!isfinite(value)) {
        return (uint8_t)code;
    }
    for (int i = 0; i < 128; i++) {
        double apart = fabs(value_of(format, i) - wanted);
        if (isfinite(value_of(format, i)) &&
            (apart < least || (apart == least && i % 2 == 0))) {
            least = apart;
            found = i;
        }
    }
    return (uint8_t)(found | (code & 0x80));
}

static uint8_t model_code(uint8_t format, int code, int by) {
    static uint8_t table[2][256][256];
    static bool known[2][256][256];
    int e5m2 = format == OCTET_E5M2;
    if (!known[e5m2][by][code]) {
        table[e5m2][by][code] = model_shifted(format, code, by);
        known[e5m2][by][code] = true;
    }
    return table[e5m2][by][code];
}

/* The E8M0 code of element (r, c), where the layout says that it is. */
static int scale_code(const oct_matrix *m, octet_use use, int64_t r, int64_t c) {
    const uint8_t *scales = m->parts[oct_scale_part(use)];
    int64_t wide = (m->cols + 31) / 32, columns = (m->cols + 127) / 128 * 128;
    return use == OCTET_USE_ROW ? scales[r * ((wide + 3) / 4 * 4) + c / 32]
                                : scales[r / 32 * columns + c];
}

/* A place for what an MXFP8 tensor is folded to, along its rows or, by_rows, its columns. */
static cpu_tensor folded_like(const oct_matrix *m, bool by_rows) {
    octet_quantizer q;
    int64_t rows = by_rows ? 16 : 8, cols = by_rows ? 8 : 16;
    CHECK_EQ_INT(octet_quantizer_parse(&q, "fp8-block:e4m3", NULL), OCTET_OK);
    q.format = m->quantizer.format;
    q.rowwise = !by_rows;
    q.columnwise = by_rows;
    return cpu_tensor_quantized(&q, (octet_dtype)m->dtype, (m->rows + rows - 1) / rows * rows,
                                (m->cols + cols - 1) / cols * cols, 1);
}

/* The largest scale of the 128 of (r, c). */
static int group_code(const oct_matrix *m, octet_use use, bool by_rows, int64_t r, int64_t c) {
    int64_t length = by_rows ? m->rows : m->cols, first = (by_rows ? r : c) / 128 * 128;
    int most = 0;
    for (int64_t i = first; i < first + 128 && i < length; i++) {
        int code = scale_code(m, use, by_rows ? i : r, by_rows ? c : i);
        most = code > most ? code : most;
    }
    return most;
}

static cpu_tensor model_fold(const oct_matrix *m, octet_use use, bool by_rows) {
    cpu_tensor out = folded_like(m, by_rows);
    octet_use to = by_rows ? OCTET_USE_COL : OCTET_USE_ROW;
    uint8_t *codes = out.m.parts[oct_data_part(to)];
    float *scales = out.m.parts[oct_scale_part(to)];
    const uint8_t *from = m->parts[oct_data_part(use)];
    int64_t lines = by_rows ? out.m.cols : out.m.rows,
            length = by_rows ? out.m.rows : out.m.cols;
    for (int64_t i = 0; i < lines * length; i++) {
        int64_t line = i / length, along = i % length;
        int64_t r = by_rows ? along : line, c = by_rows ? line : along;
        bool there = r < m->rows && c < m->cols;
        int most = there ? group_code(m, use, by_rows, r, c) : 0;
        codes[i] = 0;
        if (there) {
            int by = most - scale_code(m, use, r, c);
            codes[i] = model_code(m->quantizer.format, from[r * m->cols + c], by);
        }
        if (along % 128 == 0) {
            scales[along / 128 * lines + line] =
                there ? octet_decode(OCTET_E8M0, (uint32_t)most) : 0.0f;
        }
    }
    return out;
}

static void check_folded(const cpu_tensor *got, const cpu_tensor *of, octet_use use,
                         bool by_rows) {
    cpu_tensor want = model_fold(&of->m, use, by_rows);
    cuda_check_parts(got, &want);
    cpu_tensor_free(&want);
}

/* ---- from bytes ------------------------------------------------------------------------- */

static const int64_t shapes[][2] = {{128, 128}, {16, 16},  {1, 1},     {33, 70}, {128, 300},
                                    {257, 48},  {5, 1000}, {144, 272}, {7, 129}};
#define SHAPES ((int)(sizeof shapes / sizeof shapes[0]))

static void check_fold(const cpu_tensor *made, octet_use use, bool by_rows) {
    cpu_tensor got = folded_like(&made->m, by_rows), from = cuda_exact(made, 0);
    CHECK_EQ_INT(oct_cuda_fold(cuda_on(), &got.m, &from.m, use, NULL), OCTET_OK);
    check_folded(&got, made, use, by_rows);
    cuda_exact_free(&from, 0);
    cpu_tensor_free(&got);
}

/* Random bytes: every code, and scales near each other, far apart, and those of NaN and 2^-127.
 */
static void fill_bytes(cpu_tensor *t, uint64_t seed, uint64_t spread) {
    for (int part = 0; part < OCTET_PARTS; part++) {
        bool scales = part == OCTET_PART_ROW_SCALE || part == OCTET_PART_COL_SCALE;
        for (size_t i = 0; t->m.parts[part] && i < t->bytes[part]; i++) {
            uint64_t random = cpu_random(&seed), scale = 100 + random % spread;
            ((uint8_t *)t->m.parts[part])[i] = (uint8_t)(scales ? scale : random);
        }
    }
}

TEST(fold__any_bytes) {
    static const uint64_t spreads[] = {2, 5, 20, 40, 156};
    for (int i = 0; i < SHAPES * 10; i++) {
        octet_quantizer q;
        int s = i / 10, e5m2 = i % 2;
        CHECK_EQ_INT(octet_quantizer_parse(&q, e5m2 ? "mxfp8:e5m2" : "mxfp8:e4m3", NULL),
                     OCTET_OK);
        cpu_tensor made = cpu_tensor_quantized(&q, OCTET_BF16, shapes[s][0], shapes[s][1], 1);
        fill_bytes(&made, (uint64_t)i, spreads[i % 10 / 2]);
        if (i % 3 == 0) { /* one huge block beside the others, which vanish */
            ((uint8_t *)made.m.parts[OCTET_PART_ROW_SCALE])[0] = (uint8_t)(i % 2 ? 255 : 254);
            ((uint8_t *)made.m.parts[OCTET_PART_COL_SCALE])[0] = 254;
        }
        check_fold(&made, OCTET_USE_ROW, false);
        check_fold(&made, OCTET_USE_COL, true);
        cpu_tensor_free(&made);
    }
}

/* Squares of one direction serve both. */
TEST(fold__squares_are_read_across) {
    for (int i = 0; i < SHAPES * 2; i++) {
        octet_quantizer q;
        CHECK_EQ_INT(
            octet_quantizer_parse(&q, i % 2 ? "mxfp8:e4m3/32x32" : "mxfp8:e5m2/32x32", NULL),
            OCTET_OK);
        cpu_tensor x =
            cpu_tensor_plain(OCTET_BF16, shapes[i / 2][0], shapes[i / 2][1], shapes[i / 2][1]);
        cpu_fill(&x, CPU_INPUT_BLOCKS, (uint64_t)i);
        cpu_tensor made = cuda_quantized(&q, &x, 1);
        for (int by_rows = 0; by_rows < 2; by_rows++) {
            check_fold(&made, OCTET_USE_ROW, by_rows);
            check_fold(&made, OCTET_USE_COL, by_rows);
        }
        cpu_tensor_free(&made);
        cpu_tensor_free(&x);
    }
}

/* ---- how far a number moves ---------------------------------------------------------------
 */

/* At most half of the format's least step times the scale of the 128; not at all under the
 * largest scale; and a number that is normal afterwards not either. */
static void check_bound(uint8_t format) {
    double step = format == OCTET_E5M2 ? 0x1p-16 : 0x1p-9;
    double normal = format == OCTET_E5M2 ? 0x1p-14 : 0x1p-6;
    for (int i = 0; i < 256 * 256; i++) {
        int code = i % 256, by = i / 256;
        double value = value_of(format, code),
               got = value_of(format, model_code(format, code, by));
        double wanted = ldexp(value, -by);
        if (!isfinite(value)) {
            CHECK_EQ_INT(model_code(format, code, by), code);
            continue;
        }
        CHECK(fabs(got - wanted) <= step / 2);
        CHECK(got == wanted || (by > 0 && fabs(got) <= normal));
        CHECK(signbit(got) == signbit(value));
    }
}

TEST(fold__a_number_moves_by_half_of_the_least_step) {
    check_bound(OCTET_E4M3);
    check_bound(OCTET_E5M2);
}

/* ---- by the cast ------------------------------------------------------------------------ */

/* Copies of both directions, or of one, beside bytes or instead of them. */
typedef struct casting {
    cpu_tensor x, want, got, row, col;
} casting;

static casting casting_of(const char *text, octet_dtype dtype, const int64_t shape[2],
                          uint64_t seed) {
    octet_quantizer q;
    casting c;
    CHECK_EQ_INT(octet_quantizer_parse(&q, text, NULL), OCTET_OK);
    c.x = cpu_tensor_plain(dtype, shape[0], shape[1], shape[1]);
    cpu_fill(&c.x, (cpu_input)(seed % CPU_INPUTS), seed);
    c.want = cuda_quantized(&q, &c.x, 1);
    c.got = cpu_tensor_quantized(&q, dtype, shape[0], shape[1], 1);
    c.row = (cpu_tensor){.bytes = {0}};
    c.col = (cpu_tensor){.bytes = {0}};
    if (q.rowwise && seed % 5 != 4) {
        c.row = folded_like(&c.want.m, false);
    }
    if (q.columnwise && seed % 3 != 2) {
        c.col = folded_like(&c.want.m, true);
    }
    return c;
}

static oct_cuda_live live_of(const casting *c, uint64_t seed) {
    bool row = c->row.m.quantizer.scheme, col = c->col.m.quantizer.scheme;
    return (oct_cuda_live){.row_copy = &c->row.m,
                           .col_copy = &c->col.m,
                           .row_passes = row && seed % 2,
                           .col_passes = col && seed % 4 > 1};
}

/* Few rows are folded by the product. Bytes that may be left out are not looked at. */
static void check_casting(casting *c, const oct_cuda_live *live) {
    bool waits = oct_cuda_copy_waits(&c->x.m);
    if (!(live->row_passes || live->col_passes) || waits) {
        cuda_check_parts(&c->got, &c->want);
    }
    CHECK(cpu_tensor_guarded(&c->got));
    if (c->row.m.quantizer.scheme && !waits) {
        check_folded(&c->row, &c->want, OCTET_USE_ROW, false);
    }
    if (c->col.m.quantizer.scheme && !waits) {
        check_folded(&c->col, &c->want, OCTET_USE_COL, true);
    }
    cpu_tensor *all[] = {&c->x, &c->want, &c->got, &c->row, &c->col};
    for (int i = 0; i < 5; i++) {
        cpu_tensor_free(all[i]);
    }
}

static const int64_t casts[][2] = {{128, 128}, {32, 48}, {160, 272}, {256, 16},
                                   {33, 64},   {64, 70}, {16, 128},  {144, 400}};
static const char *const texts[] = {"mxfp8:e4m3",     "mxfp8:e5m2",       "mxfp8:e4m3+row",
                                    "mxfp8:e4m3+col", "mxfp8:e4m3/32x32", "mxfp8:e5m2+col"};

TEST(fold__casts_write_what_their_bytes_are_folded_to) {
    for (uint64_t i = 0; i < 8 * 6 * 6; i++) {
        octet_dtype dtype = (octet_dtype)(OCTET_F32 + i % 3);
        casting c = casting_of(texts[i / 8 % 6], dtype, casts[i % 8], i);
        oct_cuda_live live = live_of(&c, i);
        CHECK_EQ_INT(oct_cuda_quantize(cuda_on(), &c.got.m, &c.x.m, &live, NULL), OCTET_OK);
        check_casting(&c, &live);
    }
}

/* Two tensors at once, whether one launch does both or not. */
TEST(fold__two_casts_at_once) {
    for (uint64_t i = 0; i < 64; i++) {
        octet_dtype dtype = (octet_dtype)(OCTET_F32 + i % 3);
        casting a = casting_of("mxfp8:e4m3", dtype, casts[i % 8], i);
        casting b = casting_of("mxfp8:e4m3", dtype, casts[i / 8], i + 7);
        oct_cuda_quantizing two[2] = {{&a.got.m, &a.x.m, live_of(&a, i)},
                                      {&b.got.m, &b.x.m, live_of(&b, i + 7)}};
        CHECK_EQ_INT(oct_cuda_quantize_two(cuda_on(), two, NULL), OCTET_OK);
        check_casting(&a, &two[0].live);
        check_casting(&b, &two[1].live);
    }
}

TEST_MAIN(fold__any_bytes, fold__squares_are_read_across,
          fold__a_number_moves_by_half_of_the_least_step,
          fold__casts_write_what_their_bytes_are_folded_to, fold__two_casts_at_once)
