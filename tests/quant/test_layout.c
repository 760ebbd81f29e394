/* test_layout.c - buffers, their order and their sizes, for any shape. */
#include "octet.h"

#include "every_quantizer.h"
#include "test.h"

static int64_t ceil_div(int64_t n, int64_t by) {
    return (n + by - 1) / by;
}

static int64_t round_up(int64_t n, int64_t to) {
    return ceil_div(n, to) * to;
}

/* One buffer as the tables of the documentation give it. */
typedef struct expected {
    const char *name;
    uint8_t dtype;
    int64_t rows, cols; /* cols 0 and dtype F32: a vector of `rows` */
    bool vector;
} expected;

static int expect_per_tensor(expected *out, const octet_quantizer *q, int64_t m, int64_t k) {
    int n = 0;
    if (q->rowwise) {
        out[n++] = (expected){"_data", OCTET_U8, m, k, false};
    }
    if (q->columnwise) {
        out[n++] = (expected){"_transpose", OCTET_U8, k, m, false};
    }
    out[n++] = (expected){"_scale_inv", OCTET_F32, 1, 0, true};
    return n;
}

static int expect_block(expected *out, const octet_quantizer *q, int64_t m, int64_t k) {
    bool square = q->block_rows > 1;
    int n = 0;
    if (q->rowwise) {
        out[n++] = (expected){"_rowwise_data", OCTET_U8, m, k, false};
        out[n++] = (expected){"_rowwise_scale_inv", OCTET_F32,
                              square ? ceil_div(m, 128) : ceil_div(k, 128),
                              square ? round_up(ceil_div(k, 128), 4) : round_up(m, 4), false};
    }
    if (q->columnwise) {
        out[n++] = (expected){"_columnwise_data", OCTET_U8, k, m, false};
        out[n++] = (expected){"_columnwise_scale_inv", OCTET_F32,
                              square ? ceil_div(k, 128) : ceil_div(m, 128),
                              square ? round_up(ceil_div(m, 128), 4) : round_up(k, 4), false};
    }
    return n;
}

static int expect_mx(expected *out, const octet_quantizer *q, int64_t m, int64_t k) {
    int n = 0;
    if (q->rowwise) {
        out[n++] = (expected){"_rowwise_data", OCTET_U8, m, k, false};
        out[n++] = (expected){"_rowwise_scale_inv", OCTET_U8, round_up(m, 128),
                              round_up(ceil_div(k, 32), 4), false};
    }
    if (q->columnwise) {
        out[n++] = (expected){"_columnwise_data", OCTET_U8, m, k, false};
        out[n++] = (expected){"_columnwise_scale_inv", OCTET_U8, round_up(ceil_div(m, 32), 4),
                              round_up(k, 128), false};
    }
    return n;
}

static int expect_fp4(expected *out, const octet_quantizer *q, int64_t m, int64_t k) {
    bool amax = q->scheme == OCTET_NVFP4;
    int64_t block = amax ? 16 : 32;
    int64_t packed = q->hadamard ? round_up(m, 16) / 2 : ceil_div(m, 2);
    int n = 0;
    if (q->rowwise) {
        out[n++] = (expected){"_rowwise_data", OCTET_U8, m, ceil_div(k, 2), false};
        out[n++] = (expected){"_rowwise_scale_inv", OCTET_U8, round_up(m, 128),
                              round_up(ceil_div(k, block), 4), false};
    }
    if (q->columnwise) {
        out[n++] = (expected){"_columnwise_data", OCTET_U8, k, packed, false};
        out[n++] = (expected){"_columnwise_scale_inv", OCTET_U8, round_up(k, 128),
                              round_up(ceil_div(m, block), 4), false};
    }
    if (q->rowwise && amax) {
        out[n++] = (expected){"_amax_rowwise", OCTET_F32, q->row_scaled ? m : 1, 0, true};
    }
    if (q->columnwise && amax) {
        out[n++] = (expected){"_amax_columnwise", OCTET_F32, q->row_scaled ? k : 1, 0, true};
    }
    return n;
}

static int expect(expected *out, const octet_quantizer *q, int64_t m, int64_t k) {
    return q->format == OCTET_E2M1        ? expect_fp4(out, q, m, k)
           : q->scheme == OCTET_MXFP8     ? expect_mx(out, q, m, k)
           : q->scheme == OCTET_FP8_BLOCK ? expect_block(out, q, m, k)
                                          : expect_per_tensor(out, q, m, k);
}

static int64_t check_buffers(const octet_proto *proto, int64_t m, int64_t k) {
    expected want[OCTET_MAX_BUFFERS];
    int count = expect(want, &proto->quantizer, m, k);
    int64_t bytes = 0;
    CHECK_EQ_INT(octet_proto_buffer_count(proto), count);
    for (int i = 0; i < count; i++) {
        octet_proto got;
        CHECK_EQ_INT(octet_proto_buffer(&got, proto, i, NULL), OCTET_OK);
        CHECK_EQ_STR(octet_proto_buffer_name(proto, i), want[i].name);
        CHECK_EQ_INT(got.dtype, want[i].dtype);
        CHECK_EQ_INT(got.rank, want[i].vector ? 1 : 2);
        CHECK_EQ_INT(got.shape[0], want[i].rows);
        CHECK_EQ_INT(got.shape[1], want[i].cols);
        CHECK_EQ_INT(got.quantizer.scheme, OCTET_SCHEME_NONE);
        bytes += want[i].rows * (want[i].vector ? 1 : want[i].cols) *
                 (want[i].dtype == OCTET_F32 ? 4 : 1);
    }
    return bytes;
}

TEST(layout__every_quantizer_and_edge_shape) {
    static const int64_t sizes[] = {0, 1, 2, 15, 16, 17, 31, 32, 33, 127, 128, 129, 300};
    enum { SIZES = sizeof sizes / sizeof sizes[0] };
    for (int64_t i = 0; i < quantizer_count(); i++) {
        octet_quantizer q = quantizer_number(i);
        if (octet_quantizer_check(&q, NULL) != OCTET_OK) {
            continue;
        }
        for (int j = 0; j < SIZES * SIZES; j++) {
            int64_t shape[] = {sizes[j / SIZES], sizes[j % SIZES]};
            octet_proto proto = octet_proto_make(OCTET_BF16, 2, shape);
            int64_t bytes = -1;
            proto.quantizer = q;
            int64_t want = check_buffers(&proto, shape[0], shape[1]);
            CHECK_EQ_INT(octet_proto_bytes(&bytes, &proto, NULL), OCTET_OK);
            CHECK_EQ_INT(bytes, want);
        }
    }
}

TEST(layout__leading_axes_stay_where_data_is_not_packed_along_them) {
    int64_t shape[] = {3, 5, 7, 64};
    octet_proto proto = octet_proto_make(OCTET_BF16, 4, shape), buffer;
    CHECK_EQ_INT(octet_quantizer_parse(&proto.quantizer, "fp8-tensor:e4m3", NULL), OCTET_OK);
    CHECK_EQ_INT(octet_proto_buffer(&buffer, &proto, 0, NULL), OCTET_OK);
    CHECK(buffer.rank == 4 && memcmp(buffer.shape, shape, sizeof shape) == 0);
    CHECK_EQ_INT(octet_proto_buffer(&buffer, &proto, 1, NULL), OCTET_OK);
    CHECK(buffer.rank == 4 && buffer.shape[0] == 64 && buffer.shape[1] == 3);
    CHECK(buffer.shape[2] == 5 && buffer.shape[3] == 7);
    CHECK_EQ_INT(octet_quantizer_parse(&proto.quantizer, "nvfp4:e2m1", NULL), OCTET_OK);
    CHECK_EQ_INT(octet_proto_buffer(&buffer, &proto, 0, NULL), OCTET_OK);
    CHECK(buffer.rank == 4 && buffer.shape[2] == 7 && buffer.shape[3] == 32);
    CHECK_EQ_INT(octet_proto_buffer(&buffer, &proto, 2, NULL), OCTET_OK);
    CHECK(buffer.rank == 2 && buffer.shape[0] == 64 && buffer.shape[1] == 53);
    CHECK_EQ_INT(octet_proto_buffer(&buffer, &proto, 1, NULL), OCTET_OK);
    CHECK(buffer.rank == 2 && buffer.shape[0] == 128 && buffer.shape[1] == 4);
}

TEST(layout__a_vector_is_one_row) {
    int64_t shape[] = {33};
    octet_proto proto = octet_proto_make(OCTET_F32, 1, shape), buffer;
    CHECK_EQ_INT(octet_quantizer_parse(&proto.quantizer, "mxfp8:e4m3+row", NULL), OCTET_OK);
    CHECK_EQ_INT(octet_proto_buffer(&buffer, &proto, 0, NULL), OCTET_OK);
    CHECK(buffer.rank == 1 && buffer.shape[0] == 33);
    CHECK_EQ_INT(octet_proto_buffer(&buffer, &proto, 1, NULL), OCTET_OK);
    CHECK(buffer.rank == 2 && buffer.shape[0] == 128 && buffer.shape[1] == 4);
}

TEST(layout__expressions_do_not_depend_on_the_shape) {
    octet_quantizer q;
    octet_layout layout;
    CHECK_EQ_INT(octet_quantizer_parse(&q, "nvfp4:e2m1+rht", NULL), OCTET_OK);
    CHECK_EQ_INT(octet_layout_make(&layout, &q, NULL), OCTET_OK);
    CHECK_EQ_INT(layout.count, 6);
    const octet_dim *packed = &layout.buffers[2].dims[1]; /* roundup(ceil(M / 2), 8) */
    CHECK(packed->axis == OCTET_AXIS_M && packed->mul == 1 && packed->div == 2 &&
          packed->align == 8);
    CHECK_EQ_INT(layout.buffers[0].dims[0].axis, OCTET_AXIS_LEADING);
    q.scheme = OCTET_SCHEME_NONE;
    q.size = 0;
    CHECK_EQ_INT(octet_layout_make(&layout, &q, NULL), OCTET_INVALID);
}

TEST(layout__dimensions_are_checked_arithmetic) {
    octet_dim dim = {OCTET_AXIS_M, 0, 1, 32, 4};
    octet_extents extents = {33, 5, 7};
    octet_error err;
    int64_t value = -1;
    CHECK_EQ_INT(octet_dim_eval(&value, &dim, &extents, NULL), OCTET_OK);
    CHECK_EQ_INT(value, 4);
    dim = (octet_dim){OCTET_AXIS_N, 0, 3, 2, 1};
    CHECK_EQ_INT(octet_dim_eval(&value, &dim, &extents, NULL), OCTET_OK);
    CHECK_EQ_INT(value, 11);
    extents.n = INT64_MAX;
    CHECK_EQ_INT(octet_dim_eval(&value, &dim, &extents, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "exceeds 64 bits") && value == 11);
    dim.mul = 1;
    dim.div = 1;
    dim.align = 128;
    CHECK_EQ_INT(octet_dim_eval(&value, &dim, &extents, &err), OCTET_INVALID);
    dim.div = 0;
    CHECK_EQ_INT(octet_dim_eval(&value, &dim, &extents, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "div 0"));
    dim = (octet_dim){OCTET_AXIS_M, 1, 1, 1, 1};
    CHECK_EQ_INT(octet_dim_eval(&value, &dim, &extents, NULL), OCTET_INVALID);
    dim = (octet_dim){9, 0, 1, 1, 1};
    CHECK_EQ_INT(octet_dim_eval(&value, &dim, &extents, &err), OCTET_INVALID);
    extents.k = -1;
    dim.axis = OCTET_AXIS_ONE;
    CHECK_EQ_INT(octet_dim_eval(&value, &dim, &extents, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "negative"));
    CHECK_EQ_INT(octet_dim_eval(NULL, &dim, &extents, &err), OCTET_INVALID);
}

TEST_MAIN(layout__every_quantizer_and_edge_shape,
          layout__leading_axes_stay_where_data_is_not_packed_along_them,
          layout__a_vector_is_one_row, layout__expressions_do_not_depend_on_the_shape,
          layout__dimensions_are_checked_arithmetic)
