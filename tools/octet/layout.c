/* layout.c - octet layout: the buffers that hold a quantized tensor. */
#include "cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* "roundup(ceil(K / 32), 4)", owned by the caller. */
static char *show_dim(const octet_dim *dim, int rank) {
    const char *const names[] = {"1", "M", "K", "N", rank > 2 ? "leading" : "M"};
    const char *axis = names[dim->axis];
    char *text = dim->mul > 1 ? oct_cli_format("%s * %u", axis, (unsigned)dim->mul)
                              : oct_cli_format("%s", axis);
    if (dim->div > 1) {
        char *inner = text;
        text = oct_cli_format("ceil(%s / %u)", inner, (unsigned)dim->div);
        free(inner);
    }
    if (dim->align > 1) {
        char *inner = text;
        text = oct_cli_format("roundup(%s, %u)", inner, (unsigned)dim->align);
        free(inner);
    }
    return text;
}

/* Leading axes of a tensor that has none take no place. */
static char *show_dims(const octet_buffer *buffer, int rank) {
    char *text = oct_cli_format("%s", "");
    for (int i = 0; i < buffer->ndim; i++) {
        if (buffer->dims[i].axis == OCTET_AXIS_LEADING && rank < 2) {
            continue;
        }
        char *before = text;
        char *dim = show_dim(&buffer->dims[i], rank);
        text = oct_cli_format("%s%s%s", before, before[0] != '\0' ? " x " : "", dim);
        free(before);
        free(dim);
    }
    return text;
}

static char *show_shape(const octet_proto *proto) {
    char *text = oct_cli_format("%s", proto->rank == 0 ? "scalar" : "");
    for (int i = 0; i < proto->rank; i++) {
        char *before = text;
        text = oct_cli_format("%s%s%" PRId64, before, i > 0 ? "x" : "", proto->shape[i]);
        free(before);
    }
    return text;
}

static void add_row(oct_cli_table *table, const char *const cells[4], int64_t bytes) {
    char unit[16];
    oct_cli_unit(unit, bytes);
    for (int i = 0; i < 4; i++) {
        oct_cli_cell(table, "%s", cells[i]);
    }
    oct_cli_cell(table, "%" PRId64, bytes);
    oct_cli_cell(table, "%s", unit);
}

static octet_status add_buffer(oct_cli_table *table, const octet_proto *proto,
                               const octet_buffer *buffer, int index, octet_error *err) {
    octet_proto stored;
    int64_t bytes;
    octet_status status = octet_proto_buffer(&stored, proto, index, err);
    if (status == OCTET_OK) {
        status = octet_proto_bytes(&bytes, &stored, err);
    }
    if (status != OCTET_OK) {
        return status;
    }
    char *dims = show_dims(buffer, proto->rank);
    char *shape = show_shape(&stored);
    const char *dtype = octet_dtype_name((octet_dtype)buffer->dtype);
    add_row(table, (const char *const[]){buffer->name, dtype, dims, shape}, bytes);
    free(dims);
    free(shape);
    return OCTET_OK;
}

static octet_status add_buffers(oct_cli_table *table, const octet_proto *proto,
                                octet_error *err) {
    octet_layout layout;
    octet_status status = octet_layout_make(&layout, &proto->quantizer, err);
    for (int i = 0; status == OCTET_OK && i < layout.count; i++) {
        status = add_buffer(table, proto, &layout.buffers[i], i, err);
    }
    return status;
}

static octet_status add_totals(oct_cli_table *table, const octet_proto *proto,
                               octet_error *err) {
    octet_proto plain = octet_proto_make((octet_dtype)proto->dtype, proto->rank, proto->shape);
    int64_t bytes, plain_bytes;
    octet_status status = octet_proto_bytes(&bytes, proto, err);
    if (status == OCTET_OK) {
        status = octet_proto_bytes(&plain_bytes, &plain, err);
    }
    if (status != OCTET_OK) {
        return status;
    }
    const char *dtype = octet_dtype_name((octet_dtype)proto->dtype);
    char *shape = show_shape(proto);
    for (int i = 0; i < table->columns; i++) {
        oct_cli_cell(table, "%s", "");
    }
    add_row(table, (const char *const[]){"total", "", "", ""}, bytes);
    add_row(table, (const char *const[]){"plain", dtype, "", shape}, plain_bytes);
    free(shape);
    if (plain_bytes > 0) {
        for (int i = 0; i < 4; i++) {
            oct_cli_cell(table, "%s", i == 0 ? "ratio" : "");
        }
        oct_cli_cell(table, "%.3f", (double)bytes / (double)plain_bytes);
        oct_cli_cell(table, "%s", "");
    }
    return OCTET_OK;
}

static octet_status show(const octet_proto *proto, octet_error *err) {
    octet_proto flat;
    oct_cli_table table = {.columns = 6, .right = {[4] = true, [5] = true}};
    static const char *const heads[] = {"buffer", "dtype", "dimensions", "shape", "bytes", ""};
    for (int i = 0; i < 6; i++) {
        oct_cli_cell(&table, "%s", heads[i]);
    }
    octet_status status = octet_proto_flatten(&flat, proto, err);
    if (status == OCTET_OK) {
        status = add_buffers(&table, proto, err);
    }
    if (status == OCTET_OK) {
        status = add_totals(&table, proto, err);
    }
    if (status == OCTET_OK) {
        char text[OCTET_QUANTIZER_TEXT];
        (void)octet_quantizer_print(text, sizeof(text), &proto->quantizer);
        printf("%s\n\n", text);
        printf("  M = %" PRId64 ", K = %" PRId64 "\n\n", flat.shape[0], flat.shape[1]);
        oct_cli_table_print(&table);
    }
    oct_cli_table_drop(&table);
    return status;
}

static octet_dtype find_dtype(const char *name) {
    for (int dtype = OCTET_NONE + 1; dtype < OCTET_DTYPES; dtype++) {
        if (strcmp(octet_dtype_name((octet_dtype)dtype), name) == 0) {
            return (octet_dtype)dtype;
        }
    }
    return OCTET_NONE;
}

/* The tensor that the arguments name; on failure says why and returns false. */
static bool read_proto(octet_proto *out, const char *command, char **words, const char *dtype) {
    oct_cli_source source = {.command = command, .text = words[0]};
    octet_error err;
    octet_quantizer quantizer;
    int64_t shape[OCTET_MAX_RANK];
    if (octet_quantizer_parse(&quantizer, words[0], &err) != OCTET_OK) {
        (void)oct_cli_reject(&source, &err);
        return false;
    }
    int rank = oct_cli_read_shape(shape, words[1], &err);
    if (rank < 0) {
        source.text = words[1];
        (void)oct_cli_reject(&source, &err);
        return false;
    }
    octet_dtype found = find_dtype(dtype);
    if (found == OCTET_NONE) {
        (void)oct_cli_fail(command, "--dtype is \"%s\"; allowed: f32, bf16, f16", dtype);
        return false;
    }
    *out = octet_proto_make(found, rank, shape);
    out->quantizer = quantizer;
    return true;
}

static int run(const oct_cli_command *self, int count, char **words) {
    oct_cli_option options[] = {{"--dtype", "bf16"}, {NULL, NULL}};
    if (oct_cli_arguments(self, &count, words, options) != OCT_CLI_OK) {
        return OCT_CLI_USAGE;
    }
    if (count != 2) {
        return oct_cli_misuse(self, "QUANTIZER and SHAPE are needed, %d given", count);
    }
    octet_proto proto;
    octet_error err;
    if (!read_proto(&proto, self->name, words, options[0].value)) {
        return OCT_CLI_ERROR;
    }
    if (show(&proto, &err) != OCTET_OK) {
        return oct_cli_fail(self->name, "%s", err.text);
    }
    return OCT_CLI_OK;
}

const oct_cli_command oct_cli_layout = {
    .name = "layout",
    .usage = "QUANTIZER SHAPE [--dtype bf16|f16|f32]",
    .summary = "the buffers that hold a quantized tensor, and their bytes",
    .about =
        "Prints the buffers in which a quantizer keeps a tensor of that shape, in flatten\n"
        "order: each dimension as an expression over M (the rows: the product of the leading\n"
        "axes) and K (the columns: the last axis), its numbers and its bytes, then the total\n"
        "and its ratio to the bytes of the plain tensor. SHAPE is lengths joined by x, of any\n"
        "rank, or the word scalar; lengths of 0 and 1 are fine.",
    .example = "octet layout mxfp8:e4m3 300x129",
    .run = run,
};
