/* fuzz_values.c - any text given to the parsers of values: read and printed back, or refused.
 */
#include "fuzz.h"

#define PRINTER(name, type)                                                                    \
    static size_t print_##name(char *text, size_t size, const void *value) {                   \
        return octet_##name##_print(text, size, (const type *)value);                          \
    }
PRINTER(quantizer, octet_quantizer)
PRINTER(recipe, octet_recipe)
PRINTER(proto, octet_proto)
PRINTER(device, octet_device)

static void try_dtype(const char *text) {
    octet_dtype dtype = OCTET_NONE;
    octet_error err = {OCTET_OK, 0, ""};
    octet_status status = octet_dtype_parse(&dtype, text, &err);
    if (status) {
        fuzz_refused(status, &err, text);
        return;
    }
    LAW(dtype >= OCTET_NONE && dtype < OCTET_DTYPES);
    LAW(!strcmp(octet_dtype_name(dtype), text));
}

static void try_device(const char *text) {
    octet_device device, again;
    octet_error err = {OCTET_OK, 0, ""};
    octet_status status = octet_device_parse(&device, text, &err);
    if (status) {
        fuzz_refused(status, &err, text);
        return;
    }
    char *printed = fuzz_printed(print_device, &device);
    LAW(octet_device_parse(&again, printed, NULL) == OCTET_OK);
    LAW(!memcmp(&device, &again, sizeof device));
    free(printed);
}

static const octet_extents sizes[] = {
    {0, 0, 0}, {1, 1, 1}, {127, 129, 33}, {INT64_MAX, INT64_MAX, INT64_MAX}, {-1, 4, 0}};

static void measure(const octet_quantizer *quantizer) {
    octet_layout layout;
    octet_error err = {OCTET_OK, 0, ""};
    LAW(octet_layout_make(&layout, quantizer, &err) == OCTET_OK);
    LAW(layout.count >= 0 && layout.count <= OCTET_MAX_BUFFERS);
    for (int i = 0; i < layout.count; i++) {
        const octet_buffer *buffer = &layout.buffers[i];
        LAW(buffer->ndim <= 2 && buffer->part < OCTET_PARTS && buffer->name);
        for (int d = 0; d < buffer->ndim; d++) {
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
                int64_t value = -1;
                octet_status status = octet_dim_eval(&value, &buffer->dims[d], &sizes[s], &err);
                LAW(status || value >= 0);
            }
        }
    }
}

static void turn(const octet_quantizer *quantizer) {
    for (int usage = 0; usage < 4; usage++) {
        octet_quantizer other;
        octet_error err = {OCTET_OK, 0, ""};
        octet_status status =
            octet_quantizer_with_usage(&other, quantizer, usage & 1, usage >> 1, &err);
        if (status) {
            fuzz_refused(status, &err, NULL);
        } else {
            LAW(octet_quantizer_check(&other, &err) == OCTET_OK);
        }
    }
    LAW(octet_quantizer_row_step(quantizer) >= 0);
    LAW(octet_quantizer_column_step(quantizer) >= 0);
    (void)octet_quantizer_transposable(quantizer);
}

static void try_quantizer(const char *text) {
    octet_quantizer value, again;
    octet_error err = {OCTET_OK, 0, ""};
    octet_status status = octet_quantizer_parse(&value, text, &err);
    if (status) {
        fuzz_refused(status, &err, text);
        return;
    }
    char *printed = fuzz_printed(print_quantizer, &value);
    LAW(strlen(printed) < OCTET_QUANTIZER_TEXT);
    LAW(octet_quantizer_parse(&again, printed, NULL) == OCTET_OK);
    LAW(octet_quantizer_equal(&value, &again));
    LAW(octet_quantizer_hash(&value) == octet_quantizer_hash(&again));
    free(printed);
    if (value.scheme) {
        LAW(octet_quantizer_check(&value, &err) == OCTET_OK);
        measure(&value);
        turn(&value);
    }
}

static void try_recipe(const char *text) {
    octet_recipe value, again;
    octet_error err = {OCTET_OK, 0, ""};
    octet_status status = octet_recipe_parse(&value, text, &err);
    if (status) {
        fuzz_refused(status, &err, text);
        return;
    }
    char *printed = fuzz_printed(print_recipe, &value);
    LAW(strlen(printed) < OCTET_RECIPE_TEXT);
    LAW(octet_recipe_parse(&again, printed, NULL) == OCTET_OK);
    LAW(octet_recipe_equal(&value, &again));
    LAW(octet_recipe_hash(&value) == octet_recipe_hash(&again));
    free(printed);
    LAW(octet_recipe_check(&value, &err) == OCTET_OK);
    for (int role = 0; role < OCTET_ROLES; role++) {
        octet_quantizer quantizer;
        LAW(!octet_recipe_quantizer(&quantizer, &value, (octet_role)role, &err));
        LAW(!quantizer.scheme || !octet_quantizer_check(&quantizer, &err));
    }
}

static void ask_proto(const octet_proto *value) {
    octet_proto other;
    octet_error err = {OCTET_OK, 0, ""};
    int64_t bytes = -1, sum = 0;
    octet_status status = octet_proto_bytes(&bytes, value, &err);
    LAW(status || bytes >= 0);
    int count = octet_proto_buffer_count(value);
    LAW(count >= 1 && count <= OCTET_MAX_BUFFERS);
    for (int i = -1; i <= count; i++) {
        int64_t one = -1;
        octet_status made = octet_proto_buffer(&other, value, i, &err);
        LAW((i >= 0 && i < count) == (octet_proto_buffer_name(value, i) != NULL));
        LAW((i >= 0 && i < count) || made);
        if (!made && !status) {
            LAW(octet_proto_bytes(&one, &other, &err) == OCTET_OK);
            sum += one;
        }
    }
    LAW(status || sum == bytes);
    if (octet_proto_flatten(&other, value, &err) == OCTET_OK) {
        LAW(other.rank == 2);
    }
}

static void try_proto(const char *text) {
    octet_proto value, again;
    octet_error err = {OCTET_OK, 0, ""};
    octet_status status = octet_proto_parse(&value, text, &err);
    if (status) {
        fuzz_refused(status, &err, text);
        return;
    }
    char *printed = fuzz_printed(print_proto, &value);
    LAW(strlen(printed) < OCTET_PROTO_TEXT);
    LAW(octet_proto_parse(&again, printed, NULL) == OCTET_OK);
    LAW(octet_proto_equal(&value, &again));
    LAW(octet_proto_hash(&value) == octet_proto_hash(&again));
    free(printed);
    LAW(octet_proto_check(&value, &err) == OCTET_OK);
    ask_proto(&value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_bytes in = {data, size};
    char *text = fuzz_text(&in);
    try_dtype(text);
    try_device(text);
    try_quantizer(text);
    try_recipe(text);
    try_proto(text);
    free(text);
    return 0;
}
