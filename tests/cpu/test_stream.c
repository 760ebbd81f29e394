/* test_stream.c - dot products that read codes in place, against their double-precision value.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/isa.h"
#include "gemm_operand.h"
#include "test.h"

#define ROWS OCT_STREAM_ROWS /* of a */
#define COLS OCT_GEMM_ROWS   /* rows of b */

/* Eight rows of a and four of b. Buffers end where the kernel may read last, so that reading
 * past one is seen. */
typedef struct dots {
    octet_dtype format;
    int shift;
    int64_t count, blocks;
    float *a[ROWS]; /* each a bf16 */
    uint8_t *codes[COLS];
    float *scales[COLS];
} dots;

static int64_t code_bytes(const dots *d) {
    return d->format == OCTET_E2M1 ? (d->count + 1) / 2 : d->count;
}

static dots dots_make(octet_dtype format, int shift, int64_t count) {
    dots d = {.format = format, .shift = shift, .count = count};
    d.blocks = shift ? operand_up(count, 1 << shift) >> shift : 0;
    for (int r = 0; r < ROWS; r++) {
        d.a[r] = calloc((size_t)count, sizeof *d.a[r]);
    }
    for (int r = 0; r < COLS; r++) {
        int64_t pad = OCT_STREAM_SCALES;
        d.codes[r] = calloc((size_t)code_bytes(&d), 1);
        d.scales[r] = shift ? calloc((size_t)(d.blocks + pad), sizeof *d.scales[r]) : NULL;
    }
    return d;
}

static void dots_free(dots *d) {
    for (int r = 0; r < ROWS; r++) {
        free(d->a[r]);
    }
    for (int r = 0; r < COLS; r++) {
        free(d->codes[r]);
        free(d->scales[r]);
    }
}

static float as_bf16(float value) {
    return octet_decode(OCTET_BF16, octet_encode(OCTET_BF16, value));
}

/* Zeros, the least and the largest moderate magnitudes, powers of two and their neighbours. */
static float special(uint64_t n) {
    int k = (int)(n / 8 % 21) - 10;
    const float values[] = {0.0f,
                            -0.0f,
                            0x1p-103f,
                            -0x1.02p-103f,
                            ldexpf(1.0f, k),
                            ldexpf(-0x1.02p0f, k),
                            ldexpf(0x1.fep-1f, k),
                            ldexpf(0x1.8p0f, k)};
    return values[n % 8];
}

typedef enum fill {
    USUAL,
    SPECIAL,  /* a and the scales at their limits */
    OUTLIERS, /* one huge element of a in each block of 128, the largest there is */
    NOT_FINITE
} fill;

static uint8_t random_code(const dots *d, uint64_t *state, bool finite) {
    octet_quantizer q = {.format = (uint8_t)d->format};
    return d->format != OCTET_E2M1 && finite ? operand_code(&q, state)
                                             : (uint8_t)operand_random(state);
}

static float random_scale(fill how, uint64_t *state) {
    static const float limits[] = {0x1p-127f, 0x1p-126f, 0x1.4p-140f, 0x1.fffffep-20f, 0.0f};
    float usual = ldexpf(1.0f + (float)(operand_random(state) % 64) / 64.0f,
                         (int)(operand_random(state) % 9) - 4);
    uint64_t n = operand_random(state) % 10;
    return how == SPECIAL && n < 5 ? limits[n] : how == NOT_FINITE && n == 0 ? NAN : usual;
}

static void dots_fill(dots *d, fill how, uint64_t seed) {
    uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
    for (int r = 0; r < ROWS; r++) {
        for (int64_t p = 0; p < d->count; p++) {
            float usual = (float)((int64_t)(operand_random(&state) % 2001) - 1000) / 300.0f;
            uint64_t n = operand_random(&state);
            d->a[r][p] = as_bf16(how == SPECIAL ? special(n) : usual);
            if (how == OUTLIERS && p % 128 == 77) {
                d->a[r][p] = n % 2 ? 0x1.fep73f : -0x1.fep73f;
            }
            if (how == NOT_FINITE && n % 97 == 0) {
                d->a[r][p] = n % 2 ? NAN : INFINITY;
            }
        }
    }
    for (int r = 0; r < COLS; r++) {
        for (int64_t n = 0; n < code_bytes(d); n++) {
            d->codes[r][n] = random_code(d, &state, how != NOT_FINITE || seed % 2);
        }
        for (int64_t n = 0; n < d->blocks; n++) {
            d->scales[r][n] = random_scale(how, &state);
        }
    }
}

static double code_value(const dots *d, int j, int64_t p) {
    uint32_t code =
        d->format == OCTET_E2M1 ? d->codes[j][p / 2] >> (p % 2 * 4) & 0xfu : d->codes[j][p];
    return (double)octet_decode(d->format, code);
}

/* ---- kernels ----------------------------------------------------------------------------- */

/* One streamer of the machine. */
typedef struct subject {
    oct_streamer streamer;
    bool bf16;
    const char *name;
} subject;

enum { SUBJECTS = 16 };

/* Those of every instruction set that the machine has, reference first. */
static int subjects_of(subject out[SUBJECTS], octet_dtype format) {
    int count = 0;
    for (int isa = 0; isa <= oct_cpu_isa() && count + 2 <= SUBJECTS; isa++) {
        oct_gemm_kernels k = oct_isa_table(isa).gemm;
        out[count++] = (subject){k.stream_f32[format], false, oct_isa_name(isa)};
        if (k.stream_bf16[format].dot) {
            out[count++] = (subject){k.stream_bf16[format], true, oct_isa_name(isa)};
        }
    }
    return count;
}

/* The first `rows` rows of a, in the subject's order. */
static void *arranged(const subject *s, const dots *d, int first, int rows, int64_t *pitch) {
    int64_t whole = operand_up(d->count, OCT_STREAM_PAD), bytes = s->bf16 ? 2 : 4;
    char *out = calloc((size_t)(rows * whole), (size_t)bytes);
    *pitch = whole * bytes;
    for (int i = 0; i < rows; i++) {
        char *row = out + i * *pitch;
        for (int64_t p = 0; p < d->count; p++) {
            uint16_t word = (uint16_t)octet_encode(OCTET_BF16, d->a[first + i][p]);
            if (s->bf16) {
                memcpy(row + p * 2, &word, sizeof word);
            } else {
                memcpy(row + p * 4, &d->a[first + i][p], sizeof(float));
            }
        }
        if (s->streamer.arrange) {
            s->streamer.arrange(row, whole);
        }
    }
    return out;
}

/* out[j * rows + i] for rows first .. first + rows - 1 of a. */
static void run(const subject *s, const dots *d, int first, int rows, float out[COLS * ROWS]) {
    oct_stream_call call = {.out = out, .count = d->count, .shift = d->shift, .rows = rows};
    void *a = arranged(s, d, first, rows, &call.a_pitch);
    call.a = a;
    for (int j = 0; j < COLS; j++) {
        call.codes[j] = d->codes[j];
        call.scales[j] = d->scales[j];
    }
    s->streamer.dot(&call);
    free(a);
}

/* The error over its bound: each term passes at most count + 3 roundings; what is below fp32's
 * least number is lost once for each block and once at the end. */
static double error_of(const dots *d, int i, int j, float got) {
    double exact = 0.0, size = 0.0;
    int64_t block = d->shift ? (int64_t)1 << d->shift : d->count;
    for (int64_t first = 0; first < d->count; first += block) {
        double sum = 0.0, magnitudes = 0.0;
        double scale = d->shift ? (double)d->scales[j][first >> d->shift] : 1.0;
        for (int64_t p = first; p < d->count && p < first + block; p++) {
            sum += (double)d->a[i][p] * code_value(d, j, p);
            magnitudes += fabs((double)d->a[i][p] * code_value(d, j, p));
        }
        exact += scale * sum;
        size += scale * magnitudes;
    }
    if (!isfinite(exact)) {
        bool same = isnan(exact) ? isnan(got) : (double)got == exact;
        return same ? 0.0 : INFINITY;
    }
    double n = (double)d->count + 3.0, u = 0x1p-24;
    double bound = n * u / (1.0 - n * u) * size + 0x1p-149 * (double)(d->blocks + 1);
    double error = fabs((double)got - exact);
    return isnan(error) ? INFINITY : error / bound;
}

static void check(const dots *d, const char *what) {
    subject subjects[SUBJECTS];
    int count = subjects_of(subjects, d->format);
    for (int n = 0; n < count; n++) {
        for (int rows = 1; rows <= ROWS; rows++) {
            float out[COLS * ROWS];
            double worst = 0.0;
            run(&subjects[n], d, 0, rows, out);
            for (int at = 0; at < COLS * rows; at++) {
                double error = error_of(d, at % rows, at / rows, out[at]);
                worst = error > worst ? error : worst;
            }
            test_report(worst <= 1.0, TEST_HERE("error within its bound"),
                        "%s, %s: format %d, blocks of 2^%d, %d elements, %d rows: %g",
                        subjects[n].name, what, (int)d->format, d->shift, (int)d->count, rows,
                        worst);
        }
    }
}

/* Every format with the blocks it has. */
static const struct {
    octet_dtype format;
    int shift;
} kinds[] = {
    {OCTET_E4M3, 0}, {OCTET_E4M3, 5}, {OCTET_E4M3, 7}, {OCTET_E5M2, 0},
    {OCTET_E5M2, 5}, {OCTET_E5M2, 7}, {OCTET_E2M1, 4},
};

#define KINDS (sizeof kinds / sizeof kinds[0])

static void check_all(fill how, const char *what) {
    static const int64_t counts[] = {1,  2,  3,  15, 16,  17,  31,  32,  33,  47,  63,
                                     64, 65, 95, 97, 127, 128, 129, 200, 257, 1000};
    for (size_t k = 0; k < KINDS; k++) {
        for (size_t n = 0; n < sizeof counts / sizeof counts[0]; n++) {
            dots d = dots_make(kinds[k].format, kinds[k].shift, counts[n]);
            dots_fill(&d, how, 31 * k + n + 1);
            check(&d, what);
            dots_free(&d);
        }
    }
}

TEST(stream__usual_values_within_the_bound) {
    check_all(USUAL, "usual");
}

TEST(stream__values_at_their_limits_within_the_bound) {
    check_all(SPECIAL, "at the limits");
}

TEST(stream__an_outlier_per_block_within_the_bound) {
    check_all(OUTLIERS, "outliers");
}

TEST(stream__nan_and_inf_reach_their_sums) {
    check_all(NOT_FINITE, "not finite");
}

/* One element of a is 1, the others 0: the sum is the code's value, to the bit. */
TEST(stream__every_code_is_worth_what_it_decodes_to) {
    for (size_t k = 0; k < KINDS; k++) {
        dots d = dots_make(kinds[k].format, kinds[k].shift, 128);
        subject subjects[SUBJECTS];
        int count = subjects_of(subjects, d.format);
        for (int code = 0; code < 256; code++) {
            int64_t p = code % 128;
            memset(d.a[0], 0, 128 * sizeof *d.a[0]);
            d.a[0][p] = 1.0f;
            for (int r = 0; r < COLS; r++) {
                memset(d.codes[r], 0, (size_t)code_bytes(&d));
                d.codes[r][d.format == OCTET_E2M1 ? p / 2 : p] = (uint8_t)code;
                for (int64_t n = 0; n < d.blocks; n++) {
                    d.scales[r][n] = 1.0f;
                }
            }
            float value = (float)code_value(&d, 0, p);
            for (int n = 0; n < count; n++) {
                float out[COLS * ROWS];
                run(&subjects[n], &d, 0, 1, out);
                bool same = isnan(value) ? isnan(out[2]) != 0 : out[2] == value;
                test_report(same, TEST_HERE("the value"), "%s: format %d code %d: %g, not %g",
                            subjects[n].name, (int)d.format, code, (double)out[2],
                            (double)value);
            }
        }
        dots_free(&d);
    }
}

/* A row's sums do not depend on the rows beside it. */
TEST(stream__rows_of_a_do_not_see_each_other) {
    for (size_t k = 0; k < KINDS; k++) {
        dots d = dots_make(kinds[k].format, kinds[k].shift, 333);
        subject subjects[SUBJECTS];
        int count = subjects_of(subjects, d.format);
        dots_fill(&d, USUAL, k + 1);
        for (int n = 0; n < count; n++) {
            float all[COLS * ROWS], one[COLS * ROWS];
            run(&subjects[n], &d, 0, ROWS, all);
            for (int i = 0; i < ROWS; i++) {
                run(&subjects[n], &d, i, 1, one);
                for (int j = 0; j < COLS; j++) {
                    CHECK(memcmp(&one[j], &all[j * ROWS + i], sizeof one[j]) == 0);
                }
            }
        }
        dots_free(&d);
    }
}

/* ---- what may be streamed ---------------------------------------------------------------- */

static bool plain_is_moderate(float value, octet_dtype dtype) {
    uint32_t code = octet_encode(dtype, value);
    uint8_t data[3 * 4] = {0}; /* 0, the value, 0 */
    size_t bytes = dtype == OCTET_F32 ? 4 : 2;
    memcpy(data + bytes, &code, bytes);
    oct_matrix m = {.dtype = (uint8_t)dtype, .rows = 1, .cols = 3, .stride = 3};
    m.parts[OCTET_PART_VALUES] = data;
    oct_view view = oct_view_make(&m, OCTET_USE_VALUES, false);
    return oct_view_is_moderate(&view);
}

TEST(stream__plain_values_are_moderate_within_their_limits) {
    static const float yes[] = {0.0f,        -0.0f,    1.0f,      0x1p-103f,
                                -0x1.fep73f, INFINITY, -INFINITY, NAN};
    static const float no[] = {0x1p-104f, 0x1p-133f, -0x1.fep-104f, 0x1p74f, 0x1.fep127f};
    for (size_t n = 0; n < sizeof yes / sizeof yes[0]; n++) {
        CHECK(plain_is_moderate(yes[n], OCTET_F32));
        CHECK(plain_is_moderate(yes[n], OCTET_BF16));
    }
    for (size_t n = 0; n < sizeof no / sizeof no[0]; n++) {
        CHECK(!plain_is_moderate(no[n], OCTET_F32));
        CHECK(!plain_is_moderate(no[n], OCTET_BF16));
    }
    CHECK(!plain_is_moderate(0x1p-149f, OCTET_F32));
    CHECK(!plain_is_moderate(0x1.fffffep-104f, OCTET_F32));
    CHECK(plain_is_moderate(0x1.fffffep73f, OCTET_F32));
    CHECK(plain_is_moderate(0x1p-24f, OCTET_F16));
}

/* A block of 32 under this scale, `code` in it once. */
static bool block_is_moderate(uint8_t scale, uint8_t code) {
    uint8_t codes[32] = {0}, scales[128 * 4] = {0};
    oct_matrix m = {.rows = 1, .cols = 32};
    if (!CHECK(octet_quantizer_parse(&m.quantizer, "mxfp8:e4m3", NULL) == OCTET_OK)) {
        return false;
    }
    codes[7] = code;
    scales[0] = scale;
    m.parts[OCTET_PART_ROW_DATA] = codes;
    m.parts[OCTET_PART_ROW_SCALE] = scales;
    oct_view view = oct_view_make(&m, OCTET_USE_ROW, false);
    return oct_view_is_moderate(&view);
}

TEST(stream__blocks_are_moderate_by_their_scales) {
    CHECK(block_is_moderate(127, 0x38));
    CHECK(block_is_moderate(40, 0x01));
    CHECK(!block_is_moderate(39, 0x01));
    CHECK(block_is_moderate(184, 0x7e));
    CHECK(!block_is_moderate(185, 0x7e));
    CHECK(block_is_moderate(0, 0x00)); /* what a block of zeros has */
    CHECK(block_is_moderate(0, 0x80));
    CHECK(!block_is_moderate(255, 0x00));
}

TEST_MAIN(stream__usual_values_within_the_bound,
          stream__values_at_their_limits_within_the_bound,
          stream__an_outlier_per_block_within_the_bound, stream__nan_and_inf_reach_their_sums,
          stream__every_code_is_worth_what_it_decodes_to,
          stream__rows_of_a_do_not_see_each_other,
          stream__plain_values_are_moderate_within_their_limits,
          stream__blocks_are_moderate_by_their_scales)
