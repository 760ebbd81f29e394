/* fields.c - equality, hash and text of a struct from its one table of fields. */
#include "core/fields.h"

#include <string.h>

#include "core/fail.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "members are read and set through their low bytes, and formats stored little-endian"
#endif

static const char *member(const octet_field *row, const void *value, int index) {
    return (const char *)value + row->offset + (size_t)index * row->stride;
}

static uint64_t bits_u16(const char *at) {
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return bits;
}

static uint64_t bits_u32(const char *at) {
    uint32_t bits;
    memcpy(&bits, at, sizeof bits);
    return bits;
}

static uint64_t bits_u64(const char *at) {
    uint64_t bits;
    memcpy(&bits, at, sizeof bits);
    return bits;
}

/* The bits of an element, with -0.0 read as 0.0 so that equal numbers hash alike. */
static uint64_t element_bits(const octet_field *row, const void *value, int index) {
    const char *at = member(row, value, index);
    switch (row->type) {
    case OCTET_FIELD_U16:
        return bits_u16(at);
    case OCTET_FIELD_U32:
    case OCTET_FIELD_I32:
        return bits_u32(at);
    case OCTET_FIELD_F32:
        return bits_u32(at) == 0x80000000u ? 0 : bits_u32(at);
    case OCTET_FIELD_I64:
        return bits_u64(at);
    default:
        return (unsigned char)*at;
    }
}

bool oct_fields_equal(const octet_field *rows, const void *a, const void *b) {
    for (const octet_field *row = rows; row->name; row++) {
        for (int i = 0; i < row->count; i++) {
            bool same = row->type == OCTET_FIELD_STRUCT
                            ? oct_fields_equal(row->rows, member(row, a, i), member(row, b, i))
                            : element_bits(row, a, i) == element_bits(row, b, i);
            if (!same) {
                return false;
            }
        }
    }
    return true;
}

#define HASH_START 0x6F637465745F3031u

/* One round of a 64-bit multiply-xorshift mix. */
static uint64_t mix(uint64_t hash, uint64_t bits) {
    hash = (hash ^ bits) * 0x9E3779B97F4A7C15u;
    return hash ^ (hash >> 29);
}

uint64_t oct_fields_hash(const octet_field *rows, const void *value) {
    uint64_t hash = HASH_START;
    for (const octet_field *row = rows; row->name; row++) {
        for (int i = 0; i < row->count; i++) {
            hash = mix(hash, row->type == OCTET_FIELD_STRUCT
                                 ? oct_fields_hash(row->rows, member(row, value, i))
                                 : element_bits(row, value, i));
        }
    }
    return hash;
}

uint64_t oct_hash_bytes(const void *bytes, size_t count) {
    uint64_t hash = HASH_START;
    for (size_t at = 0; at < count; at += sizeof(uint64_t)) {
        uint64_t bits = 0;
        memcpy(&bits, (const char *)bytes + at,
               count - at < sizeof bits ? count - at : sizeof bits);
        hash = mix(hash, bits);
    }
    return hash;
}

int64_t oct_field_get(const octet_field *row, const void *value) {
    uint64_t bits = element_bits(row, value, 0);
    return row->type == OCTET_FIELD_I32 ? (int32_t)(uint32_t)bits : (int64_t)bits;
}

void oct_field_set(const octet_field *row, void *value, int64_t number) {
    static const uint8_t type_bytes[] = {
        [OCTET_FIELD_FLAG] = 1, [OCTET_FIELD_WORD] = 1, [OCTET_FIELD_U8] = 1,
        [OCTET_FIELD_U16] = 2,  [OCTET_FIELD_U32] = 4,  [OCTET_FIELD_I32] = 4,
        [OCTET_FIELD_I64] = 8,  [OCTET_FIELD_F32] = 4,  [OCTET_FIELD_STRUCT] = 0,
    };
    memcpy((char *)value + row->offset, &number, type_bytes[row->type]); /* its low bytes */
}

static int64_t type_max(uint8_t type) {
    switch (type) {
    case OCTET_FIELD_FLAG:
        return 1;
    case OCTET_FIELD_U8:
        return UINT8_MAX;
    case OCTET_FIELD_U16:
        return UINT16_MAX;
    case OCTET_FIELD_U32:
        return UINT32_MAX;
    case OCTET_FIELD_I32:
        return INT32_MAX;
    default:
        return INT64_MAX;
    }
}

static octet_status parse_word(const octet_field *row, void *value, oct_span text,
                               octet_error *err) {
    int at = oct_span_find(text, row->words);
    if (at < 0) {
        char list[OCT_LIST_TEXT];
        return oct_fail_at(err, text.column, "'%.*s' is not a value of %s; allowed: %s",
                           OCT_SHOW(text), row->word, oct_list_words(list, row->words));
    }
    oct_field_set(row, value, at);
    return OCTET_OK;
}

octet_status oct_field_parse(const octet_field *row, void *value, oct_span text,
                             octet_error *err) {
    if (row->type == OCTET_FIELD_WORD) {
        return parse_word(row, value, text, err);
    }
    if (row->type == OCTET_FIELD_F32) {
        float number;
        if (!oct_span_f32(&number, text)) {
            return oct_fail_at(err, text.column,
                               "'%.*s' is not a number that fits a float; %s takes a finite "
                               "one, neither too large nor rounded to 0",
                               OCT_SHOW(text), row->word);
        }
        memcpy((char *)value + row->offset, &number, sizeof number);
        return OCTET_OK;
    }
    int64_t number;
    int64_t min = row->type == OCTET_FIELD_I32 ? INT32_MIN : 0;
    if (!oct_span_integer(&number, text, min, type_max(row->type))) {
        return oct_fail_at(err, text.column,
                           "'%.*s' is %s from %lld to %lld; "
                           "%s takes one",
                           OCT_SHOW(text),
                           oct_span_is_integer(text) && (min < 0 || text.text[0] != '-')
                               ? "no number"
                               : "not a whole number",
                           (long long)min, (long long)type_max(row->type), row->word);
    }
    oct_field_set(row, value, number);
    return OCTET_OK;
}

void oct_field_write(const octet_field *row, const void *value, oct_writer *writer) {
    if (row->type == OCTET_FIELD_F32) {
        float number;
        memcpy(&number, member(row, value, 0), sizeof number);
        oct_write_f32(writer, number);
    } else if (row->type == OCTET_FIELD_WORD) {
        int64_t at = oct_field_get(row, value);
        oct_write(writer, at < row->limit ? row->words[at] : "?");
    } else {
        oct_write_i64(writer, oct_field_get(row, value));
    }
}

static octet_status out_of_range(const octet_field *row, uint64_t bits, const char *what,
                                 octet_error *err) {
    if (row->type == OCTET_FIELD_F32) {
        return oct_fail(err, OCTET_INVALID, "%s.%s is not finite", what, row->name);
    }
    if (row->type == OCTET_FIELD_FLAG) {
        return oct_fail(err, OCTET_INVALID, "%s.%s is %llu; a flag is 0 or 1", what, row->name,
                        (unsigned long long)bits);
    }
    return oct_fail(err, OCTET_INVALID, "%s.%s is %llu; it must be below %d", what, row->name,
                    (unsigned long long)bits, row->limit);
}

static octet_status out_of_scope(const octet_field *row, const void *value, const char *what,
                                 octet_error *err) {
    char text[64];
    oct_writer writer = oct_writer_start(text, sizeof text);
    oct_field_write(row, value, &writer);
    return oct_fail(err, OCTET_INVALID, "%s.%s is %s, which has no meaning here: leave it 0",
                    what, row->name, text);
}

octet_status oct_fields_check(const octet_field *rows, const void *value, int kind,
                              const char *what, octet_error *err) {
    for (const octet_field *row = rows; row->name; row++) {
        if (row->type == OCTET_FIELD_STRUCT) {
            continue;
        }
        uint64_t bits = element_bits(row, value, 0);
        bool infinite = row->type == OCTET_FIELD_F32 && (bits & 0x7F800000u) == 0x7F800000u;
        if ((row->limit && bits >= row->limit) || infinite) {
            return out_of_range(row, bits, what, err);
        }
        if (bits != 0 && !(row->scope >> kind & 1)) {
            return out_of_scope(row, value, what, err);
        }
    }
    return OCTET_OK;
}

const octet_field *oct_fields_find(const octet_field *rows, oct_span word) {
    for (const octet_field *row = rows; row->name; row++) {
        if (row->word && oct_span_is(word, row->word)) {
            return row;
        }
    }
    return NULL;
}
