/* safetensors.h - a small reader of safetensors files, which trusts nothing that it reads.
 *
 * A file is 8 bytes that say how long its header is (little-endian), the header, which is JSON,
 * and the bytes of the tensors. The header is one object: a name, then dtype, shape and
 * data_offsets, counted from the end of the header. "__metadata__" is passed over. Names with
 * escapes or beyond ASCII are refused, since no tensor of a model needs them.
 *
 *     tensor_file file;
 *     if (!tensor_file_read(&file, "model.safetensors")) { puts(file.problem); }
 *     const tensor_entry *weight = tensor_find(&file, "weight");
 *     tensor_file_free(&file); */
#ifndef EXAMPLES_SAFETENSORS_H
#define EXAMPLES_SAFETENSORS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS_MOST = 1024, TENSOR_NAME = 128, TENSOR_RANK = 8 };
#define TENSOR_HEADER_MOST 100000000 /* bytes, the format's own bound */

typedef struct tensor_entry {
    char name[TENSOR_NAME];
    char dtype[8]; /* "F32", "BF16", "U8", ... */
    int rank;
    int64_t shape[TENSOR_RANK];
    int64_t begin, end;  /* of its bytes, from the first byte after the header */
    const uint8_t *data; /* of any alignment: copy it before it is read as numbers */
} tensor_entry;

typedef struct tensor_file {
    uint8_t *bytes; /* the whole file */
    int64_t size;
    int64_t at, header_end; /* where the header is being read, and where it ends */
    int count;
    tensor_entry entries[TENSORS_MOST];
    char problem[256]; /* what is wrong with it; "" while nothing is */
} tensor_file;

/* Says what is wrong, unless something was before; false. */
static bool tensor_fail(tensor_file *f, const char *format, ...) {
    if (f->problem[0] == 0) {
        va_list values;
        va_start(values, format);
        (void)vsnprintf(f->problem, sizeof f->problem, format, values);
        va_end(values);
    }
    return false;
}

/* ---- JSON, as far as a header needs it --------------------------------------------------- */

/* The next byte that is no blank; 0 at the end of the header. It stays unread. */
static int json_peek(tensor_file *f) {
    while (f->at < f->header_end && strchr(" \t\r\n", f->bytes[f->at]) && f->bytes[f->at]) {
        f->at++;
    }
    return f->at < f->header_end ? f->bytes[f->at] : 0;
}

static bool json_take(tensor_file *f, char wanted) {
    if (json_peek(f) != wanted) {
        return tensor_fail(f, "the header has no '%c' at byte %lld", wanted, (long long)f->at);
    }
    f->at++;
    return true;
}

/* A string of printable ASCII without escapes, of at most size - 1 bytes. */
static bool json_string(tensor_file *f, char *out, int64_t size) {
    if (!json_take(f, '"')) {
        return false;
    }
    int64_t start = f->at;
    while (f->at < f->header_end && f->bytes[f->at] != '"') {
        if (f->bytes[f->at] == '\\' || f->bytes[f->at] < 0x20 || f->bytes[f->at] > 0x7e) {
            return tensor_fail(f, "the name at byte %lld has an escape, or is not ASCII",
                               (long long)start);
        }
        f->at++;
    }
    int64_t length = f->at - start;
    if (length >= size) {
        return tensor_fail(f, "the string at byte %lld has %lld bytes; at most %lld are read",
                           (long long)start, (long long)length, (long long)(size - 1));
    }
    memcpy(out, f->bytes + start, (size_t)length);
    out[length] = 0;
    return json_take(f, '"');
}

/* Passes over a string of "__metadata__", whatever is in it. */
static bool json_skip_string(tensor_file *f) {
    if (!json_take(f, '"')) {
        return false;
    }
    while (f->at < f->header_end && f->bytes[f->at] != '"') {
        f->at += f->bytes[f->at] == '\\' ? 2 : 1;
    }
    return json_take(f, '"');
}

/* A whole number that is not negative and fits. */
static bool json_number(tensor_file *f, int64_t *out) {
    int64_t value = 0, start = (json_peek(f), f->at);
    while (f->at < f->header_end && f->bytes[f->at] >= '0' && f->bytes[f->at] <= '9') {
        int digit = f->bytes[f->at] - '0';
        if (value > (INT64_MAX - digit) / 10) {
            return tensor_fail(f, "the number at byte %lld is too large", (long long)start);
        }
        value = 10 * value + digit;
        f->at++;
    }
    *out = value;
    return f->at > start || tensor_fail(f, "byte %lld is no number", (long long)start);
}

/* "[1, 2]": at most `most` numbers. */
static bool json_numbers(tensor_file *f, int64_t *out, int *count, int most) {
    *count = 0;
    if (!json_take(f, '[')) {
        return false;
    }
    while (json_peek(f) != ']') {
        if (*count == most) {
            return tensor_fail(f, "the list before byte %lld has more than %d numbers",
                               (long long)f->at, most);
        }
        if ((*count > 0 && !json_take(f, ',')) || !json_number(f, &out[*count])) {
            return false;
        }
        ++*count;
    }
    return json_take(f, ']');
}

/* ---- entries ----------------------------------------------------------------------------- */

static const tensor_entry *tensor_find(const tensor_file *f, const char *name) {
    for (int i = 0; i < f->count; i++) {
        if (strcmp(f->entries[i].name, name) == 0) {
            return &f->entries[i];
        }
    }
    return NULL;
}

/* Bytes of an element; 0: a dtype that this reader does not know. */
static int64_t tensor_width(const char *dtype) {
    static const struct {
        const char *name;
        int64_t bytes;
    } known[] = {{"F32", 4}, {"BF16", 2}, {"F16", 2}, {"U8", 1}, {"I64", 8}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].name, dtype) == 0) {
            return known[i].bytes;
        }
    }
    return 0;
}

/* The offsets lie in the file and are as far apart as dtype and shape say. */
static bool tensor_check(tensor_file *f, tensor_entry *e) {
    int64_t bytes = tensor_width(e->dtype), room = f->size - f->header_end;
    if (bytes == 0) {
        return tensor_fail(f, "%s: dtype %s is not known", e->name, e->dtype);
    }
    for (int i = 0; i < e->rank; i++) {
        if (e->shape[i] > 0 && bytes > room / e->shape[i]) {
            return tensor_fail(f, "%s: its shape is larger than the file", e->name);
        }
        bytes *= e->shape[i];
    }
    if (e->begin > e->end || e->end > room || e->end - e->begin != bytes) {
        return tensor_fail(f,
                           "%s: data_offsets are %lld to %lld; its shape needs %lld bytes of "
                           "the %lld after the header",
                           e->name, (long long)e->begin, (long long)e->end, (long long)bytes,
                           (long long)room);
    }
    e->data = f->bytes + f->header_end + e->begin;
    return true;
}

/* {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, in any order. */
static bool tensor_body(tensor_file *f, tensor_entry *e) {
    int seen[3] = {0}, count = 0;
    int64_t offsets[2] = {0};
    if (!json_take(f, '{')) {
        return false;
    }
    do {
        char key[16];
        if (!json_string(f, key, sizeof key) || !json_take(f, ':')) {
            return false;
        }
        if (strcmp(key, "dtype") == 0 && !seen[0]++) {
            (void)json_string(f, e->dtype, sizeof e->dtype);
        } else if (strcmp(key, "shape") == 0 && !seen[1]++) {
            (void)json_numbers(f, e->shape, &e->rank, TENSOR_RANK);
        } else if (strcmp(key, "data_offsets") == 0 && !seen[2]++) {
            (void)json_numbers(f, offsets, &count, 2);
        } else {
            return tensor_fail(f, "%s: the key %s is not known, or there twice", e->name, key);
        }
    } while (f->problem[0] == 0 && json_peek(f) == ',' && json_take(f, ','));
    if (f->problem[0] || !json_take(f, '}')) {
        return false;
    }
    if (!seen[0] || !seen[1] || count != 2) {
        return tensor_fail(f, "%s lacks dtype, shape or two data_offsets", e->name);
    }
    e->begin = offsets[0];
    e->end = offsets[1];
    return tensor_check(f, e);
}

/* {"format": "pt", ...}: strings only. */
static bool tensor_metadata(tensor_file *f) {
    if (!json_take(f, '{')) {
        return false;
    }
    while (json_peek(f) == '"') {
        if (!json_skip_string(f) || !json_take(f, ':') || !json_skip_string(f)) {
            return false;
        }
        if (json_peek(f) != ',') {
            break;
        }
        f->at++;
    }
    return json_take(f, '}');
}

static bool tensor_next(tensor_file *f) {
    tensor_entry e = {.rank = 0};
    if (!json_string(f, e.name, sizeof e.name) || !json_take(f, ':')) {
        return false;
    }
    if (strcmp(e.name, "__metadata__") == 0) {
        return tensor_metadata(f);
    }
    if (tensor_find(f, e.name)) {
        return tensor_fail(f, "%s is there twice", e.name);
    }
    if (f->count == TENSORS_MOST) {
        return tensor_fail(f, "there are more than %d tensors", TENSORS_MOST);
    }
    if (!tensor_body(f, &e)) {
        return false;
    }
    f->entries[f->count++] = e;
    return true;
}

static int tensor_order(const void *a, const void *b) {
    const tensor_entry *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return (x->end > y->end) - (x->end < y->end);
}

/* The format allows no holes and no byte of two tensors. */
static bool tensor_cover(tensor_file *f) {
    int64_t at = 0;
    qsort(f->entries, (size_t)f->count, sizeof f->entries[0], tensor_order);
    for (int i = 0; i < f->count; i++) {
        if (f->entries[i].begin != at) {
            return tensor_fail(f, "%s begins at %lld, the tensor before it ends at %lld",
                               f->entries[i].name, (long long)f->entries[i].begin,
                               (long long)at);
        }
        at = f->entries[i].end;
    }
    return at == f->size - f->header_end ||
           tensor_fail(f, "%lld bytes at the end belong to no tensor",
                       (long long)(f->size - f->header_end - at));
}

/* ---- files ------------------------------------------------------------------------------- */

static bool tensor_header(tensor_file *f) {
    uint64_t length = 0;
    for (int i = 0; i < 8 && f->size >= 8; i++) {
        length |= (uint64_t)f->bytes[i] << (8 * i);
    }
    if (f->size < 8 || length > TENSOR_HEADER_MOST || length > (uint64_t)f->size - 8) {
        return tensor_fail(f, "it has %lld bytes, too few for a header of %llu",
                           (long long)f->size, (unsigned long long)length);
    }
    f->at = 8;
    f->header_end = 8 + (int64_t)length;
    if (!json_take(f, '{')) {
        return false;
    }
    while (json_peek(f) != '}') {
        if (!tensor_next(f)) {
            return false;
        }
        if (json_peek(f) != ',') {
            break;
        }
        f->at++;
    }
    if (!json_take(f, '}')) {
        return false;
    }
    return json_peek(f) == 0 && f->at == f->header_end
               ? tensor_cover(f)
               : tensor_fail(f, "the header goes on after its end, at byte %lld",
                             (long long)f->at);
}

static bool tensor_load(tensor_file *f, const char *path) {
    FILE *stream = fopen(path, "rb");
    if (stream == NULL) {
        return tensor_fail(f, "it cannot be opened");
    }
    int64_t room = 0;
    for (size_t got = 1; got > 0; f->size += (int64_t)got) {
        if (f->size == room) {
            room = 2 * room + 65536;
            uint8_t *grown = realloc(f->bytes, (size_t)room);
            if (grown == NULL) {
                (void)fclose(stream);
                return tensor_fail(f, "there is no memory for it");
            }
            f->bytes = grown;
        }
        got = fread(f->bytes + f->size, 1, (size_t)(room - f->size), stream);
    }
    bool whole = !ferror(stream);
    (void)fclose(stream);
    return whole || tensor_fail(f, "it cannot be read to its end");
}

/* Reads a file and checks all of it. False: `problem` says why. Free it either way. */
static bool tensor_file_read(tensor_file *f, const char *path) {
    memset(f, 0, sizeof *f);
    return tensor_load(f, path) && tensor_header(f);
}

static void tensor_file_free(tensor_file *f) {
    free(f->bytes);
    f->bytes = NULL;
}

#endif
