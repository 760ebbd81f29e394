/* test_quantizer.c - quantizers are values: text, equality, hash, usage, and what is refused.
 */
#include <math.h>
#include <string.h>

#include "octet.h"

#include <locale.h>
#include <stdlib.h>

#include "every_quantizer.h"
#include "test.h"

static octet_quantizer parsed(const char *text) {
    octet_quantizer q = {0};
    octet_error err = {OCTET_OK, 0, ""};
    CHECK_OF(octet_quantizer_parse(&q, text, &err) == OCTET_OK, err.text);
    return q;
}

static const char *printed(char text[OCTET_QUANTIZER_TEXT], const octet_quantizer *q) {
    size_t length = octet_quantizer_print(text, OCTET_QUANTIZER_TEXT, q);
    CHECK(length < OCTET_QUANTIZER_TEXT && length == strlen(text));
    return text;
}

/* The rules of docs/text-forms.md written once more, as a predicate. */
static bool should_be_valid(const octet_quantizer *q) {
    bool nv = q->scheme == OCTET_NVFP4, fp4 = nv || q->scheme == OCTET_MXFP4;
    bool mx = q->scheme == OCTET_MXFP8;
    bool block = q->scheme == OCTET_FP8_BLOCK, current = q->scheme == OCTET_FP8_TENSOR;
    bool blocked = fp4 || mx || block, square = q->block_rows > 1;
    if ((q->format == OCTET_E2M1) != fp4 || blocked != (q->block_rows > 0)) {
        return false;
    }
    if ((!q->rowwise && !q->columnwise) ||
        ((q->pow2 || q->epsilon != 0) && !block && !current)) {
        return false;
    }
    if ((!fp4 && (q->hadamard || q->stochastic)) ||
        (!nv && (q->row_scaled || q->four_over_six || q->max256))) {
        return false;
    }
    if ((q->swizzled && !fp4 && !mx) || (q->max256 && !q->four_over_six)) {
        return false;
    }
    return !(q->hadamard && square) &&
           !(q->row_scaled && (square || q->hadamard || q->stochastic)) &&
           !(q->four_over_six && (q->hadamard || q->stochastic));
}

TEST(quantizer__valid_is_exactly_what_the_rules_say) {
    int64_t valid = 0;
    for (int64_t i = 0; i < quantizer_count(); i++) {
        octet_quantizer q = quantizer_number(i);
        octet_error err = {OCTET_OK, 0, ""};
        octet_status status = octet_quantizer_check(&q, &err);
        CHECK_EQ_INT(status, should_be_valid(&q) ? OCTET_OK : OCTET_INVALID);
        CHECK((status == OCTET_OK) == (err.text[0] == 0));
        valid += status == OCTET_OK;
    }
    CHECK(valid > 200);
}

TEST(quantizer__parse_and_print_are_inverse) {
    char text[OCTET_QUANTIZER_TEXT], again[OCTET_QUANTIZER_TEXT];
    for (int64_t i = 0; i < quantizer_count(); i++) {
        octet_quantizer q = quantizer_number(i);
        if (octet_quantizer_check(&q, NULL) == OCTET_OK) {
            octet_quantizer back = parsed(printed(text, &q));
            CHECK_OF(octet_quantizer_equal(&q, &back), text);
            CHECK_EQ_INT(octet_quantizer_hash(&q), octet_quantizer_hash(&back));
            CHECK_EQ_STR(printed(again, &back), text);
        }
    }
}

TEST(quantizer__every_field_counts_in_equality_and_hash) {
    const octet_field *rows = octet_fields(OCTET_STRUCT_QUANTIZER);
    octet_quantizer q = parsed("nvfp4:e2m1/1x16+row");
    for (const octet_field *row = rows; row->name; row++) {
        octet_quantizer other = q;
        ((unsigned char *)&other)[row->offset] ^= 1;
        CHECK_OF(!octet_quantizer_equal(&q, &other), row->name);
        CHECK(octet_quantizer_hash(&q) != octet_quantizer_hash(&other));
    }
}

TEST(quantizer__texts_of_the_documentation) {
    static const char *const pairs[][2] = {
        {"fp8-tensor:e4m3+row+col", "fp8-tensor:e4m3+row+col"},
        {"fp8-tensor:e5m2+pow2+eps=0.5", "fp8-tensor:e5m2+row+col+pow2+eps=0.5"},
        {"fp8-delayed:e4m3+col", "fp8-delayed:e4m3+col"},
        {"fp8-block:e4m3/1x128+row", "fp8-block:e4m3/1x128+row"},
        {"fp8-block:e4m3/128x128+nopow2", "fp8-block:e4m3/128x128+row+col+nopow2"},
        {"fp8-block:e4m3+pow2", "fp8-block:e4m3/1x128+row+col"},
        {"mxfp8:e4m3", "mxfp8:e4m3/1x32+row+col"},
        {"mxfp8:e4m3/32x32+swizzled", "mxfp8:e4m3/32x32+row+col+swizzled"},
        {"nvfp4:e2m1/16x16", "nvfp4:e2m1/16x16+row+col"},
        {"nvfp4:e2m1/1x16+rht+sr", "nvfp4:e2m1/1x16+row+col+rht+sr"},
        {"nvfp4:e2m1+rht=plain", "nvfp4:e2m1/1x16+row+col+rht=plain"},
        {"nvfp4:e2m1+rht=signed", "nvfp4:e2m1/1x16+row+col+rht"},
        {"nvfp4:e2m1+4over6=mse+max256", "nvfp4:e2m1/1x16+row+col+4over6=mse+max256"},
        {"nvfp4:e2m1+4over6+row", "nvfp4:e2m1/1x16+row+4over6"},
        {"nvfp4:e2m1+rowscaled", "nvfp4:e2m1/1x16+row+col+rowscaled"},
        {"mxfp4:e2m1", "mxfp4:e2m1/1x32+row+col"},
        {"mxfp4:e2m1/32x32+sr+col", "mxfp4:e2m1/32x32+col+sr"},
        {"mxfp4:e2m1+rht+sr", "mxfp4:e2m1/1x32+row+col+rht+sr"},
        {"none", "none"},
    };
    char text[OCTET_QUANTIZER_TEXT];
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        octet_quantizer q = parsed(pairs[i][0]);
        CHECK_EQ_STR(printed(text, &q), pairs[i][1]);
    }
}

TEST(quantizer__wrong_text_gives_column_word_and_choices) {
    static const struct {
        const char *text;
        int column;
        const char *says;
    } cases[] = {
        {"", 1, "'' is not a scheme; allowed: none, fp8-tensor"},
        {"mxfp9:e4m3", 1, "'mxfp9' is not a scheme"},
        {"mxfp8", 6, "a format must follow: mxfp8:e4m3"},
        {"mxfp8:e4m4", 7, "'e4m4' is not a format of mxfp8; allowed: e4m3, e5m2"},
        {"nvfp4:e4m3", 7, "allowed: e2m1"},
        {"mxfp4:e4m3", 7, "allowed: e2m1"},
        {"mxfp4:e2m1/1x16", 12, "allowed: 1x32, 32x32"},
        {"mxfp4:e2m1+4over6", 12, "allowed: row, col, rht, sr, swizzled"},
        {"mxfp4:e2m1/32x32+rht", 18, "rht transforms columnwise bytes only"},
        {"mxfp8:e4m3/2x32", 12, "'2x32' is not a block of mxfp8; allowed: 1x32, 32x32"},
        {"mxfp8:e4m3/", 12, "'' is not a block"},
        {"mxfp8:e4m3/1x", 12, "'1x' is not a block"},
        {"fp8-tensor:e4m3/1x128", 17, "fp8-tensor has no blocks"},
        {"mxfp8:e4m3+rwo", 12, "'rwo' is not an option of mxfp8; allowed: row, col, swizzled"},
        {"mxfp8:e4m3+norow", 12, "'norow' is not an option"},
        {"mxfp8:e4m3+", 12, "'' is not an option"},
        {"mxfp8:e4m3+row+row", 16, "'row' is given twice"},
        {"mxfp8:e4m3+pow2", 12, "'pow2' is not an option of mxfp8"},
        {"fp8-tensor:e4m3+eps", 17, "'eps' needs a value"},
        {"fp8-tensor:e4m3+eps=x", 21, "'x' is not a number"},
        {"fp8-tensor:e4m3+eps=1e99", 21, "'1e99' is not a number"},
        {"nvfp4:e2m1+rht=loud", 16,
         "'loud' is not a value of rht; allowed: none, signed, plain"},
        {"nvfp4:e2m1/16x16+rht", 18, "rht transforms columnwise bytes only"},
        {"none+row", 1, "'none+row' is not a scheme"},
        {"none:e4m3", 5, "nothing may follow 'none'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        octet_quantizer q = {.size = 77};
        octet_error err = {OCTET_OK, 0, ""};
        CHECK_EQ_INT(octet_quantizer_parse(&q, cases[i].text, &err), OCTET_INVALID);
        CHECK_EQ_INT(err.status, OCTET_INVALID);
        CHECK_OF(err.column == cases[i].column, cases[i].text);
        CHECK_OF(strstr(err.text, cases[i].says), err.text);
        CHECK_EQ_INT(q.size, 77); /* nothing written */
    }
}

TEST(quantizer__usage_makes_another_value) {
    octet_quantizer both = parsed("mxfp8:e4m3"), before = both, row;
    CHECK_EQ_INT(octet_quantizer_with_usage(&row, &both, true, false, NULL), OCTET_OK);
    CHECK(row.rowwise && !row.columnwise);
    CHECK(octet_quantizer_equal(&both, &before) && !octet_quantizer_equal(&both, &row));
    CHECK_EQ_INT(octet_quantizer_with_usage(&row, &row, false, true, NULL), OCTET_OK);
    CHECK(!row.rowwise && row.columnwise);
    octet_error err;
    CHECK_EQ_INT(octet_quantizer_with_usage(&row, &row, false, false, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "no usage") && row.columnwise);
}

TEST(quantizer__bad_structs_are_refused_with_words) {
    octet_error err;
    octet_quantizer q = parsed("mxfp8:e4m3");
    CHECK_EQ_INT(octet_quantizer_parse(NULL, "mxfp8:e4m3", &err), OCTET_INVALID);
    CHECK(strstr(err.text, "out is NULL"));
    CHECK_EQ_INT(octet_quantizer_parse(&q, NULL, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_quantizer_check(NULL, NULL), OCTET_INVALID);
    q.size = 28;
    CHECK_EQ_INT(octet_quantizer_check(&q, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "octet_quantizer.size is 28 but this library's"));
    q = parsed("mxfp8:e4m3");
    q.scheme = 99;
    CHECK_EQ_INT(octet_quantizer_check(&q, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "scheme is 99"));
    q = parsed("fp8-tensor:e4m3");
    q.rowwise = 2;
    CHECK_EQ_INT(octet_quantizer_check(&q, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "rowwise is 2; a flag is 0 or 1"));
    q.rowwise = 1;
    q.epsilon = -1.0f;
    CHECK_EQ_INT(octet_quantizer_check(&q, &err), OCTET_INVALID);
    q.epsilon = strtof("nan", NULL);
    CHECK_EQ_INT(octet_quantizer_check(&q, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "not finite"));
}

TEST(quantizer__printing_never_writes_past_its_room) {
    octet_quantizer q = parsed("nvfp4:e2m1+4over6=mse+max256");
    char text[OCTET_QUANTIZER_TEXT], cut[OCTET_QUANTIZER_TEXT];
    size_t length = octet_quantizer_print(text, sizeof text, &q);
    CHECK_EQ_INT(octet_quantizer_print(NULL, 0, &q), length);
    for (size_t room = 1; room <= length + 1; room++) {
        memset(cut, '#', sizeof cut);
        CHECK_EQ_INT(octet_quantizer_print(cut, room, &q), length);
        CHECK(strlen(cut) == (room <= length ? room - 1 : length) && cut[room] == '#');
        CHECK(strncmp(cut, text, strlen(cut)) == 0);
    }
    memset(&q, 0xFF, sizeof q);
    CHECK(octet_quantizer_print(text, sizeof text, &q) > 0); /* rubbish prints as something */
}

TEST(quantizer__epsilon_survives_every_exponent_and_locale) {
    const char *const locales[] = {"C", "de_DE.UTF-8", "fr_FR.UTF-8"};
    char text[OCTET_QUANTIZER_TEXT];
    for (size_t l = 0; l < sizeof locales / sizeof locales[0]; l++) {
        (void)setlocale(LC_ALL, locales[l]); /* one that is not installed leaves "C" */
        octet_quantizer q = parsed("fp8-tensor:e4m3");
        for (uint32_t bits = 1; bits < 0x7F800000u; bits += 0x10001u * 37) {
            memcpy(&q.epsilon, &bits, sizeof bits);
            octet_quantizer back = parsed(printed(text, &q));
            CHECK_OF(octet_quantizer_equal(&q, &back), text);
        }
    }
    (void)setlocale(LC_ALL, "C");
}

TEST(quantizer__rows_that_stay_together) {
    static const struct {
        const char *text;
        int64_t rows;
    } cases[] = {
        {"fp8-tensor:e4m3", 1},         {"fp8-block:e4m3/1x128+row", 1},
        {"fp8-block:e4m3/1x128", 128},  {"fp8-block:e4m3/128x128+row", 128},
        {"mxfp8:e4m3+row", 1},          {"mxfp8:e4m3", 32},
        {"mxfp8:e4m3+row+swizzled", 0}, {"nvfp4:e2m1+row", 1},
        {"nvfp4:e2m1/16x16+row", 16},   {"nvfp4:e2m1+col+rht", 16},
        {"mxfp4:e2m1/32x32+row", 32},   {"mxfp4:e2m1+col+rht", 32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        octet_quantizer q = parsed(cases[i].text);
        CHECK_EQ_INT(octet_quantizer_row_step(&q), cases[i].rows);
    }
}

TEST(quantizer__columns_that_stay_together) {
    static const struct {
        const char *text;
        int64_t columns;
    } cases[] = {
        {"fp8-tensor:e4m3", 1},
        {"fp8-delayed:e4m3", 1},
        {"fp8-block:e4m3/1x128", 128},
        {"fp8-block:e4m3/1x128+col", 1},
        {"fp8-block:e4m3/128x128", 128},
        {"fp8-block:e4m3/128x128+col", 128},
        {"mxfp8:e4m3", 32},
        {"mxfp8:e4m3+col", 1},
        {"mxfp8:e4m3+row+swizzled", 0},
        {"nvfp4:e2m1+row", 16},
        {"nvfp4:e2m1/16x16+row+col", 16},
        {"mxfp4:e2m1/32x32+row", 32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        octet_quantizer q = parsed(cases[i].text);
        CHECK_EQ_INT(octet_quantizer_column_step(&q), cases[i].columns);
    }
}

TEST(quantizer__transposable_schemes) {
    static const char *const yes[] = {"fp8-tensor:e4m3",        "fp8-delayed:e5m2",
                                      "fp8-block:e4m3/128x128", "mxfp8:e4m3/32x32",
                                      "nvfp4:e2m1/16x16",       "mxfp4:e2m1/32x32"};
    static const char *const no[] = {
        "fp8-block:e4m3/1x128",    "mxfp8:e4m3", "nvfp4:e2m1",         "nvfp4:e2m1/16x16+sr",
        "nvfp4:e2m1/16x16+4over6", "mxfp4:e2m1", "mxfp4:e2m1/32x32+sr"};
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        octet_quantizer turns = parsed(yes[i]), stays = parsed(no[i]);
        CHECK_OF(octet_quantizer_transposable(&turns), yes[i]);
        CHECK_OF(!octet_quantizer_transposable(&stays), no[i]);
    }
}

/* Somebody who looks for his mistake prints it. */
TEST(quantizer__prints_an_epsilon_that_is_refused) {
    static const struct {
        float epsilon;
        const char *words;
    } cases[] = {
        {INFINITY, "eps=inf"}, {-INFINITY, "eps=-inf"}, {NAN, "eps=nan"}, {-1.5f, "eps=-1.5"}};
    for (int i = 0; i < 4; i++) {
        octet_quantizer q;
        char text[OCTET_QUANTIZER_TEXT];
        CHECK_EQ_INT(octet_quantizer_parse(&q, "fp8-tensor:e4m3", NULL), OCTET_OK);
        q.epsilon = cases[i].epsilon;
        CHECK(octet_quantizer_print(text, sizeof text, &q) < sizeof text);
        CHECK_OF(strstr(text, cases[i].words) != NULL, text);
        CHECK_EQ_INT(octet_quantizer_check(&q, NULL), OCTET_INVALID);
    }
}

TEST_MAIN(quantizer__prints_an_epsilon_that_is_refused,
          quantizer__valid_is_exactly_what_the_rules_say,
          quantizer__parse_and_print_are_inverse,
          quantizer__every_field_counts_in_equality_and_hash,
          quantizer__texts_of_the_documentation,
          quantizer__wrong_text_gives_column_word_and_choices,
          quantizer__usage_makes_another_value, quantizer__bad_structs_are_refused_with_words,
          quantizer__printing_never_writes_past_its_room,
          quantizer__epsilon_survives_every_exponent_and_locale,
          quantizer__rows_that_stay_together, quantizer__columns_that_stay_together,
          quantizer__transposable_schemes)
