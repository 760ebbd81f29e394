/* test_proto_text.c - dtypes, devices and protos from their texts and back. */
#include "octet.h"

#include "test.h"

TEST(dtype__text_round_trips) {
    for (int i = 0; i < OCTET_DTYPES; i++) {
        octet_dtype dtype = OCTET_DTYPES;
        CHECK_EQ_INT(octet_dtype_parse(&dtype, octet_dtype_name((octet_dtype)i), NULL),
                     OCTET_OK);
        CHECK_EQ_INT(dtype, i);
    }
}

TEST(dtype__wrong_text_is_refused_with_what_is_allowed) {
    static const char *const wrong[] = {"", "bf", "bf16 ", " bf16", "BF16", "?"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        octet_dtype dtype = OCTET_DTYPES;
        octet_error err = {OCTET_OK, 0, ""};
        CHECK_EQ_INT(octet_dtype_parse(&dtype, wrong[i], &err), OCTET_INVALID);
        CHECK_OF(strstr(err.text, "is not a dtype; allowed: none, f32, bf16, f16, u8, i64"),
                 err.text);
        CHECK_EQ_INT(err.column, 1);
        CHECK_EQ_INT(dtype, OCTET_DTYPES);
    }
    octet_dtype dtype;
    CHECK_EQ_INT(octet_dtype_parse(&dtype, NULL, NULL), OCTET_INVALID);
    CHECK_EQ_INT(octet_dtype_parse(NULL, "f32", NULL), OCTET_INVALID);
}

TEST(device__text_round_trips) {
    static const char *const pairs[][2] = {{"cpu", "cpu"},
                                           {"cuda", "cuda:0"},
                                           {"cuda:3", "cuda:3"},
                                           {"cuda:255/120", "cuda:255/120"},
                                           {"cuda/90", "cuda:0/90"}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        octet_device device, back;
        char text[32];
        CHECK_EQ_INT(octet_device_parse(&device, pairs[i][0], NULL), OCTET_OK);
        CHECK_EQ_INT(octet_device_print(text, sizeof text, &device), strlen(pairs[i][1]));
        CHECK_EQ_STR(text, pairs[i][1]);
        CHECK_EQ_INT(octet_device_parse(&back, text, NULL), OCTET_OK);
        CHECK(memcmp(&device, &back, sizeof back) == 0);
    }
}

TEST(proto__text_round_trips) {
    static const char *const pairs[][2] = {
        {"bf16 (8, 128)", "bf16 (8, 128) on cpu"},
        {"  f32\t() ", "f32 () on cpu"},
        {"i64(1)", "i64 (1) on cpu"},
        {"u8 ( 0 ,7 )on cuda", "u8 (0, 7) on cuda:0"},
        {"e2m1 (3, 5) with grad", "e2m1 (3, 5) on cpu with grad"},
        {"f16 (4, 64) none", "f16 (4, 64) on cpu"},
        {"bf16 (4, 8, 64) mxfp8:e4m3 on cuda:1/90 with grad",
         "bf16 (4, 8, 64) mxfp8:e4m3/1x32+row+col on cuda:1/90 with grad"},
        {"f32 (2, 16) nvfp4:e2m1+rht+sr  with  grad ",
         "f32 (2, 16) nvfp4:e2m1/1x16+row+col+rht+sr on cpu with grad"},
        {"f32 (1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,9223372036854775807)", NULL},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        octet_proto proto, back;
        octet_error err = {OCTET_OK, 0, ""};
        char text[OCTET_PROTO_TEXT];
        CHECK_OF(octet_proto_parse(&proto, pairs[i][0], &err) == OCTET_OK, err.text);
        CHECK(octet_proto_print(text, sizeof text, &proto) < sizeof text);
        CHECK_OF(!pairs[i][1] || strcmp(text, pairs[i][1]) == 0, text);
        CHECK_OF(octet_proto_parse(&back, text, &err) == OCTET_OK, err.text);
        CHECK_OF(octet_proto_equal(&proto, &back), text);
        CHECK_EQ_INT(octet_proto_hash(&proto), octet_proto_hash(&back));
    }
}

/* Every field that the text has a place for. */
TEST(proto__longest_text_round_trips) {
    octet_proto proto = {.size = sizeof proto, .rank = OCTET_MAX_RANK, .dtype = OCTET_BF16};
    for (int i = 0; i < OCTET_MAX_RANK; i++) {
        proto.shape[i] = i ? INT64_MAX / 2 : 0;
    }
    proto.device = (octet_device){OCTET_CUDA, 255, UINT16_MAX};
    proto.requires_grad = 1;
    octet_error err = {OCTET_OK, 0, ""};
    char text[OCTET_PROTO_TEXT];
    CHECK_EQ_INT(octet_quantizer_parse(&proto.quantizer,
                                       "nvfp4:e2m1/1x16+row+col+rht=plain+sr+swizzled", NULL),
                 OCTET_OK);
    CHECK(octet_proto_print(text, sizeof text, &proto) < sizeof text - 32);
    octet_proto back;
    CHECK_OF(octet_proto_parse(&back, text, &err) == OCTET_OK, err.text);
    CHECK(octet_proto_equal(&proto, &back));
}

TEST(proto__wrong_text_is_refused_with_its_column) {
    static const struct {
        const char *text;
        int column;
        const char *says;
    } cases[] = {
        {"", 1, "'' is not a dtype"},
        {"bf17 (8)", 1, "'bf17' is not a dtype"},
        {"bf16", 5, "does not begin with a shape"},
        {"bf16 8, 128", 6, "'8, 128' does not begin with a shape"},
        {"bf16 (8, 128", 6, "does not begin with a shape"},
        {"bf16 (8, x)", 10, "is not the length of an axis"},
        {"bf16 (8, -1)", 10, "is not the length of an axis"},
        {"bf16 (8 9)", 7, "is not the length of an axis"},
        {"bf16 (,8)", 7, "is not the length of an axis"},
        {"bf16 (8,)", 9, "follows ','"},
        {"bf16 (1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1)", 39, "more than 16 axes"},
        {"bf16 (8) mxfp9:e4m3", 10, "'mxfp9'"},
        {"bf16 (8) mxfp8:e4m3+no", 21, "'no'"},
        {"bf16 (8) on", 12, "'' is not a device"},
        {"bf16 (8) on gpu", 13, "'gpu' is not a device"},
        {"bf16 (8) with", 10, "'with' is not expected here; a proto is DTYPE (AXES)"},
        {"bf16 (8) with love", 10, "'with' is not expected here"},
        {"bf16 (8) on cpu mxfp8:e4m3", 17, "'mxfp8:e4m3' is not expected here"},
        {"bf16 (8) with grad on cpu", 20, "'on' is not expected here"},
        {"none (8)", 0, "there is no tensor"},
        {"u8 (8) mxfp8:e4m3", 0, "stands for f32, bf16 or f16"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        octet_proto proto = {.size = 77};
        octet_error err = {OCTET_OK, 0, ""};
        CHECK_EQ_INT(octet_proto_parse(&proto, cases[i].text, &err), OCTET_INVALID);
        CHECK_OF(strstr(err.text, cases[i].says), err.text);
        CHECK_OF(err.column == cases[i].column, err.text);
        CHECK_EQ_INT(proto.size, 77);
    }
    octet_proto proto;
    CHECK_EQ_INT(octet_proto_parse(&proto, NULL, NULL), OCTET_INVALID);
    CHECK_EQ_INT(octet_proto_parse(NULL, "f32 ()", NULL), OCTET_INVALID);
}

TEST_MAIN(dtype__text_round_trips, dtype__wrong_text_is_refused_with_what_is_allowed,
          device__text_round_trips, proto__text_round_trips, proto__longest_text_round_trips,
          proto__wrong_text_is_refused_with_its_column)
