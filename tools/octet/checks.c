/* checks.c - what octet doctor verifies: known numbers, and texts that read back. */
#include "cli.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One law's checks: how many were made, and how many of them failed. */
typedef struct tally {
    int made, wrong;
} tally;

/* Counts one check; a failure is printed by `format`, which then owns the line. */
OCT_CLI_FORMAT(3, 4)
static void expect(tally *t, bool is_right, const char *format, ...) {
    t->made++;
    if (is_right) {
        return;
    }
    t->wrong++;
    va_list list;
    va_start(list, format);
    fputs("  wrong: ", stdout);
    vprintf(format, list);
    putchar('\n');
    va_end(list);
}

/* ---- scalar formats -------------------------------------------------------------------- */

static void check_encode(tally *t) {
    static const struct {
        octet_dtype format;
        float value;
        uint32_t code;
    } rows[] = {
        {OCTET_E4M3, 1.0f, 0x38},        {OCTET_E4M3, -0.0f, 0x80},
        {OCTET_E4M3, 448.0f, 0x7E},      {OCTET_E4M3, -1e30f, 0xFE},
        {OCTET_E4M3, INFINITY, 0x7E},    {OCTET_E4M3, NAN, 0x7F},
        {OCTET_E4M3, 0x1p-9f, 0x01},     {OCTET_E4M3, 0x1p-10f, 0x00},
        {OCTET_E4M3, 0x1.8p-9f, 0x02},   {OCTET_E4M3, 134.4f, 0x70},
        {OCTET_E5M2, 1.0f, 0x3C},        {OCTET_E5M2, -0.0f, 0x80},
        {OCTET_E5M2, 57344.0f, 0x7B},    {OCTET_E5M2, -INFINITY, 0xFB},
        {OCTET_E5M2, NAN, 0x7F},         {OCTET_E5M2, 0x1p-16f, 0x01},
        {OCTET_E2M1, 0.25f, 0x0},        {OCTET_E2M1, 0.75f, 0x2},
        {OCTET_E2M1, 1.25f, 0x2},        {OCTET_E2M1, 1.75f, 0x4},
        {OCTET_E2M1, 2.5f, 0x4},         {OCTET_E2M1, 3.5f, 0x6},
        {OCTET_E2M1, 5.0f, 0x6},         {OCTET_E2M1, -100.0f, 0xF},
        {OCTET_E2M1, NAN, 0x7},          {OCTET_E2M1, -0.0f, 0x8},
        {OCTET_E8M0, 1.0f, 127},         {OCTET_E8M0, 1.5f, 128},
        {OCTET_E8M0, 0.0f, 0},           {OCTET_E8M0, INFINITY, 254},
        {OCTET_E8M0, NAN, 255},          {OCTET_E8M0, 0x1p-127f, 0},
        {OCTET_BF16, 1.0f, 0x3F80},      {OCTET_BF16, 0x1.01p0f, 0x3F80},
        {OCTET_BF16, 0x1.03p0f, 0x3F82}, {OCTET_F16, 1.0f, 0x3C00},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint32_t code = octet_encode(rows[i].format, rows[i].value);
        expect(t, code == rows[i].code, "%s of %g is 0x%" PRIx32 ", not 0x%" PRIx32,
               octet_dtype_name(rows[i].format), (double)rows[i].value, rows[i].code, code);
    }
}

static void check_decode(tally *t) {
    static const struct {
        octet_dtype format;
        uint32_t code;
        float value;
    } rows[] = {
        {OCTET_E4M3, 0x7E, 448.0f},   {OCTET_E4M3, 0x81, -0x1p-9f},
        {OCTET_E4M3, 0x70, 128.0f},   {OCTET_E5M2, 0x7B, 57344.0f},
        {OCTET_E5M2, 0x7C, INFINITY}, {OCTET_E5M2, 1, 0x1p-16f},
        {OCTET_E2M1, 0x1, 0.5f},      {OCTET_E2M1, 0x3, 1.5f},
        {OCTET_E2M1, 0x5, 3.0f},      {OCTET_E2M1, 0x7, 6.0f},
        {OCTET_E2M1, 0xC, -2.0f},     {OCTET_E8M0, 127, 1.0f},
        {OCTET_E8M0, 0, 0x1p-127f},   {OCTET_E8M0, 254, 0x1p127f},
        {OCTET_BF16, 0xC000, -2.0f},  {OCTET_F16, 0x7BFF, 65504.0f},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        float value = octet_decode(rows[i].format, rows[i].code);
        expect(t, value == rows[i].value, "%s 0x%" PRIx32 " is %g, not %g",
               octet_dtype_name(rows[i].format), rows[i].code, (double)rows[i].value,
               (double)value);
    }
    expect(t, isnan(octet_decode(OCTET_E4M3, 0x7F)) != 0, "e4m3 0x7f is not NaN");
    expect(t, isnan(octet_decode(OCTET_E8M0, 255)) != 0, "e8m0 0xff is not NaN");
}

static void check_random(tally *t) {
    static const uint8_t known[2][16] = {
        {0x2E, 0x22, 0x50, 0xB8, 0x4B, 0xB0, 0x8C, 0xC5, 0x20, 0xA0, 0xA7, 0x14, 0xF9, 0xFF,
         0x84, 0x7A},
        {0x5E, 0xFF, 0x9D, 0xFA, 0x4B, 0x84, 0x10, 0x6C, 0x17, 0xC7, 0x79, 0x69, 0x83, 0xFF,
         0x90, 0x05},
    };
    for (uint32_t direction = 0; direction < 2; direction++) {
        uint8_t bytes[16];
        octet_random_block(bytes, 0x0123456789ABCDEFu, 0, direction, 0);
        expect(t, memcmp(bytes, known[direction], sizeof(bytes)) == 0,
               "random block 0 of direction %" PRIu32 " differs", direction);
    }
    /* 2.5 lies halfway between 2 and 3: half of the random bytes round up. */
    expect(t, octet_encode_stochastic(2.5f, 127) == 0x4, "2.5 with 127 is not 2");
    expect(t, octet_encode_stochastic(2.5f, 128) == 0x5, "2.5 with 128 is not 3");
    expect(t, octet_encode_stochastic(-2.5f, 128) == 0xD, "-2.5 with 128 is not -3");
}

/* ---- texts and layouts ----------------------------------------------------------------- */

static void check_quantizers(tally *t) {
    static const char *const texts[][2] = {
        {"fp8-tensor:e5m2", "fp8-tensor:e5m2+row+col"},
        {"fp8-delayed:e4m3+row", "fp8-delayed:e4m3+row"},
        {"fp8-block:e4m3", "fp8-block:e4m3/1x128+row+col"},
        {"fp8-block:e4m3/128x128+nopow2+col", "fp8-block:e4m3/128x128+col+nopow2"},
        {"mxfp8:e4m3", "mxfp8:e4m3/1x32+row+col"},
        {"nvfp4:e2m1/16x16", "nvfp4:e2m1/16x16+row+col"},
        {"nvfp4:e2m1+sr+rht", "nvfp4:e2m1/1x16+row+col+rht+sr"},
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        octet_quantizer read, again;
        char text[OCTET_QUANTIZER_TEXT] = "";
        bool is_right = octet_quantizer_parse(&read, texts[i][0], NULL) == OCTET_OK;
        if (is_right) {
            (void)octet_quantizer_print(text, sizeof(text), &read);
        }
        is_right = is_right && strcmp(text, texts[i][1]) == 0 &&
                   octet_quantizer_parse(&again, text, NULL) == OCTET_OK &&
                   octet_quantizer_equal(&read, &again) &&
                   octet_quantizer_hash(&read) == octet_quantizer_hash(&again);
        expect(t, is_right, "%s reads as \"%s\", not %s", texts[i][0], text, texts[i][1]);
    }
}

static void check_recipes(tally *t) {
    for (int kind = 0; kind < OCTET_RECIPES; kind++) {
        octet_recipe made, read;
        char text[OCTET_RECIPE_TEXT] = "";
        bool is_right = octet_recipe_make(&made, (octet_recipe_kind)kind, NULL) == OCTET_OK;
        if (is_right) {
            (void)octet_recipe_print(text, sizeof(text), &made);
        }
        is_right = is_right && octet_recipe_parse(&read, text, NULL) == OCTET_OK &&
                   octet_recipe_equal(&made, &read);
        expect(t, is_right, "recipe %d does not read back from \"%s\"", kind, text);
    }
}

static void check_problems(tally *t) {
    static const char *const texts[] = {
        "linear m=8192 k=4096 n=14336 in=bf16 recipe=mxfp8 bias",
        "linear m=4x128 k=64 n=96 in=bf16 recipe=delayed:history=16 grad=none",
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        octet_linear_args read, again;
        char text[OCTET_LINEAR_TEXT] = "";
        bool is_right = octet_linear_parse(&read, texts[i], NULL) == OCTET_OK;
        if (is_right) {
            (void)octet_linear_print(text, sizeof(text), &read);
        }
        is_right = is_right && octet_linear_parse(&again, text, NULL) == OCTET_OK &&
                   octet_linear_equal(&read, &again);
        expect(t, is_right, "\"%s\" does not read back from \"%s\"", texts[i], text);
    }
}

/* 300 x 129: sizes that are multiples of nothing. */
static void check_layouts(tally *t) {
    static const struct {
        const char *quantizer;
        int64_t bytes;
    } rows[] = {
        {"fp8-tensor:e4m3", 38700 + 38700 + 4},
        {"fp8-block:e4m3/1x128", 38700 + 4 * 2 * 300 + 38700 + 4 * 3 * 132},
        {"mxfp8:e4m3", 38700 + 384 * 8 + 38700 + 12 * 256},
        {"nvfp4:e2m1", 300 * 65 + 384 * 12 + 129 * 150 + 256 * 20 + 4 + 4},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        octet_proto proto = octet_proto_make(OCTET_BF16, 2, (const int64_t[]){300, 129});
        int64_t bytes = -1;
        octet_status status = octet_quantizer_parse(&proto.quantizer, rows[i].quantizer, NULL);
        if (status == OCTET_OK) {
            status = octet_proto_bytes(&bytes, &proto, NULL);
        }
        expect(t, status == OCTET_OK && bytes == rows[i].bytes,
               "%s keeps 300x129 in %" PRId64 " bytes, not %" PRId64, rows[i].quantizer,
               rows[i].bytes, bytes);
    }
}

static void check_version(tally *t) {
    char *header = oct_cli_format("%d.%d.%d", OCTET_VERSION_MAJOR, OCTET_VERSION_MINOR,
                                  OCTET_VERSION_PATCH);
    expect(t, strcmp(header, octet_version()) == 0,
           "this program was built with the header of %s, the library is %s", header,
           octet_version());
    free(header);
}

int oct_cli_self_check(void) {
    static const struct {
        const char *law;
        void (*check)(tally *t);
    } laws[] = {
        {"header and library are one version", check_version},
        {"values encode to known codes", check_encode},
        {"codes decode to known values", check_decode},
        {"random bits and stochastic rounding are known", check_random},
        {"quantizer texts read back", check_quantizers},
        {"recipe texts read back", check_recipes},
        {"problem texts read back", check_problems},
        {"layouts have known bytes", check_layouts},
    };
    int wrong = 0;
    oct_cli_table table = {.columns = 3, .right = {[1] = true}};
    for (size_t i = 0; i < sizeof(laws) / sizeof(laws[0]); i++) {
        tally t = {0};
        laws[i].check(&t);
        oct_cli_cell(&table, "%s", laws[i].law);
        oct_cli_cell(&table, "%d %s", t.made, t.made == 1 ? "check " : "checks");
        oct_cli_cell(&table, "%s", t.wrong == 0 ? "ok" : "WRONG");
        wrong += t.wrong;
    }
    oct_cli_table_print(&table);
    return wrong;
}
