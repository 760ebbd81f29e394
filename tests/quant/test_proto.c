/* test_proto.c - a tensor without data answers what a tensor can be asked. */
#include "octet.h"

#include "test.h"

static octet_proto make(octet_dtype dtype, const char *quantizer) {
    int64_t shape[] = {4, 8, 64};
    octet_proto proto = octet_proto_make(dtype, 3, shape);
    if (quantizer) {
        CHECK_EQ_INT(octet_quantizer_parse(&proto.quantizer, quantizer, NULL), OCTET_OK);
    }
    return proto;
}

TEST(proto__flattens_to_two_axes) {
    octet_proto proto = make(OCTET_BF16, "mxfp8:e4m3"), flat;
    CHECK_EQ_INT(octet_proto_flatten(&flat, &proto, NULL), OCTET_OK);
    CHECK(flat.rank == 2 && flat.shape[0] == 32 && flat.shape[1] == 64 && flat.shape[2] == 0);
    CHECK(octet_quantizer_equal(&flat.quantizer, &proto.quantizer));
    octet_proto scalar = octet_proto_make(OCTET_F32, 0, NULL);
    CHECK_EQ_INT(octet_proto_flatten(&flat, &scalar, NULL), OCTET_OK);
    CHECK(flat.shape[0] == 1 && flat.shape[1] == 1);
}

TEST(proto__usage_changes_buffers_and_nothing_shared) {
    octet_proto proto = make(OCTET_BF16, "mxfp8:e4m3"), row;
    octet_quantizer before = proto.quantizer;
    CHECK_EQ_INT(octet_proto_with_usage(&row, &proto, true, false, NULL), OCTET_OK);
    CHECK_EQ_INT(octet_proto_buffer_count(&proto), 4);
    CHECK_EQ_INT(octet_proto_buffer_count(&row), 2);
    CHECK(octet_quantizer_equal(&proto.quantizer, &before));
    octet_proto plain = make(OCTET_BF16, NULL);
    octet_error err;
    CHECK_EQ_INT(octet_proto_with_usage(&row, &plain, true, false, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "no usages"));
}

TEST(proto__equality_and_hash_follow_every_field) {
    octet_proto a = make(OCTET_BF16, "mxfp8:e4m3"), b = a;
    CHECK(octet_proto_equal(&a, &b) && octet_proto_hash(&a) == octet_proto_hash(&b));
    uint8_t *bytes[] = {&b.dtype,       &b.rank,           &b.requires_grad,
                        &b.device.kind, &b.quantizer.pow2, (uint8_t *)&b.shape[1]};
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
        *bytes[i] ^= 1;
        CHECK(!octet_proto_equal(&a, &b) && octet_proto_hash(&a) != octet_proto_hash(&b));
        *bytes[i] ^= 1;
    }
    b.reserved = 1;
    CHECK(octet_proto_equal(&a, &b));
}

TEST(proto__prints_for_people) {
    octet_proto proto = make(OCTET_BF16, "mxfp8:e4m3");
    char text[OCTET_PROTO_TEXT];
    proto.device = (octet_device){OCTET_CUDA, 1, 90};
    proto.requires_grad = 1;
    size_t length = octet_proto_print(text, sizeof text, &proto);
    CHECK_EQ_STR(text, "bf16 (4, 8, 64) mxfp8:e4m3/1x32+row+col on cuda:1/90 with grad");
    CHECK_EQ_INT(length, strlen(text));
}

TEST(proto__device_is_read_from_its_text) {
    octet_device device;
    octet_error err;
    CHECK_EQ_INT(octet_device_parse(&device, "cuda:3/100", NULL), OCTET_OK);
    CHECK(device.kind == OCTET_CUDA && device.index == 3 && device.arch == 100);
    CHECK_EQ_INT(octet_device_parse(&device, "cpu", NULL), OCTET_OK);
    CHECK(device.kind == OCTET_CPU && device.index == 0 && device.arch == 0);
    const char *wrong[] = {"", "gpu", "cpu:0", "cuda:", "cuda:256", "cuda:0/", "cuda:0/90x"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK_EQ_INT(octet_device_parse(&device, wrong[i], &err), OCTET_INVALID);
        CHECK(strstr(err.text, "is not a device"));
    }
    CHECK_EQ_INT(octet_device_parse(&device, NULL, NULL), OCTET_INVALID);
    CHECK_EQ_INT(octet_device_parse(NULL, "cpu", NULL), OCTET_INVALID);
}

TEST(proto__plain_has_one_buffer_itself) {
    octet_proto proto = make(OCTET_F16, NULL), buffer;
    int64_t bytes;
    CHECK_EQ_INT(octet_proto_buffer_count(&proto), 1);
    CHECK_EQ_STR(octet_proto_buffer_name(&proto, 0), "");
    CHECK(octet_proto_buffer_name(&proto, 1) == NULL &&
          octet_proto_buffer_name(&proto, -1) == NULL);
    CHECK_EQ_INT(octet_proto_buffer(&buffer, &proto, 0, NULL), OCTET_OK);
    CHECK(octet_proto_equal(&buffer, &proto));
    CHECK_EQ_INT(octet_proto_bytes(&bytes, &proto, NULL), OCTET_OK);
    CHECK_EQ_INT(bytes, 4 * 8 * 64 * 2);
    proto.dtype = OCTET_E2M1;
    proto.shape[2] = 63;
    CHECK_EQ_INT(octet_proto_bytes(&bytes, &proto, NULL), OCTET_OK);
    CHECK_EQ_INT(bytes, 4 * 8 * 32);
    octet_error err;
    CHECK_EQ_INT(octet_proto_buffer(&buffer, &proto, 1, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "buffer 1 of a proto that has 1"));
}

static void refuses(octet_proto proto, const char *says) {
    octet_error err = {OCTET_OK, 0, ""};
    int64_t bytes = -7;
    CHECK_EQ_INT(octet_proto_bytes(&bytes, &proto, &err), OCTET_INVALID);
    CHECK_OF(strstr(err.text, says), err.text);
    CHECK_EQ_INT(bytes, -7);
}

TEST(proto__wrong_values_are_refused_with_the_rule) {
    int64_t shape[OCTET_MAX_RANK + 1] = {2, 2};
    octet_proto proto = octet_proto_make(OCTET_BF16, OCTET_MAX_RANK + 1, shape);
    refuses(proto, "at most 16 axes");
    proto = make(OCTET_BF16, NULL);
    proto.shape[1] = -3;
    refuses(proto, "axis 1 of a rank-3 shape is -3");
    proto = make(OCTET_BF16, NULL);
    proto.shape[9] = 1;
    refuses(proto, "those past the rank are 0");
    proto = make(OCTET_BF16, NULL);
    proto.shape[0] = proto.shape[1] = INT64_MAX;
    refuses(proto, "exceed 64 bits");
    proto.shape[1] = 1;
    proto.shape[2] = 1;
    refuses(proto, "exceed 64 bits"); /* the elements fit, two bytes each do not */
    refuses(make(OCTET_NONE, NULL), "there is no tensor");
    refuses(make(OCTET_U8, "mxfp8:e4m3"), "stands for f32, bf16 or f16, not u8");
    proto = make(OCTET_BF16, NULL);
    proto.dtype = 200;
    refuses(proto, "dtype is 200");
    proto = make(OCTET_BF16, NULL);
    proto.size = 3;
    refuses(proto, "octet_proto.size is 3");
    proto = make(OCTET_BF16, "mxfp8:e4m3");
    proto.quantizer.block_cols = 31;
    refuses(proto, "blocks of 1x32 or 32x32, not 1x31");
    proto = make(OCTET_BF16, NULL);
    proto.device.index = 1;
    refuses(proto, "on cpu with index 1 and arch 0");
    proto = make(OCTET_BF16, NULL);
    proto.quantizer.pow2 = 1; /* of no scheme: its text would not tell */
    refuses(proto, "octet_quantizer.pow2 is 1, which has no meaning here");
    CHECK_EQ_INT(octet_proto_buffer_count(NULL), -1);
}

TEST_MAIN(proto__flattens_to_two_axes, proto__usage_changes_buffers_and_nothing_shared,
          proto__equality_and_hash_follow_every_field, proto__prints_for_people,
          proto__device_is_read_from_its_text, proto__plain_has_one_buffer_itself,
          proto__wrong_values_are_refused_with_the_rule)
