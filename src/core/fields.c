/* fields.c - equality, hash and text of a struct from its one table of fields. */
#include "core/fields.h"

#include <string.h>

#include "core/fail.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "members are read and set through their low bytes, and formats stored little-endian"
#endif

static const char *member(const octet_field *field, const void *value, int index) {
    return (const char *)value + field->offset + (size_t)index * field->stride;
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
static uint64_t element_bits(const octet_field *field, const void *value, int index) {
    const char *at = member(field, value, index);
    switch (field->type) {
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

bool oct_fields_equal(const octet_field *fields, const void *a, const void *b) {
    for (const octet_field *field = fields; field->name; field++) {
        for (int i = 0; i < field->count; i++) {
            bool same =
                field->type == OCTET_FIELD_STRUCT
                    ? oct_fields_equal(field->fields, member(field, a, i), member(field, b, i))
                    : element_bits(field, a, i) == element_bits(field, b, i);
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

uint64_t oct_fields_hash(const octet_field *fields, const void *value) {
    uint64_t hash = HASH_START;
    for (const octet_field *field = fields; field->name; field++) {
        for (int i = 0; i < field->count; i++) {
            hash = mix(hash, field->type == OCTET_FIELD_STRUCT
                                 ? oct_fields_hash(field->fields, member(field, value, i))
                                 : element_bits(field, value, i));
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

int64_t oct_field_get(const octet_field *field, const void *value) {
    uint64_t bits = element_bits(field, value, 0);
    return field->type == OCTET_FIELD_I32 ? (int32_t)(uint32_t)bits : (int64_t)bits;
}

void oct_field_set(const octet_field *field, void *value, int64_t number) {
    static const uint8_t type_bytes[] = {
        [OCTET_FIELD_FLAG] = 1, [OCTET_FIELD_WORD] = 1, [OCTET_FIELD_U8] = 1,
        [OCTET_FIELD_U16] = 2,  [OCTET_FIELD_U32] = 4,  [OCTET_FIELD_I32] = 4,
        [OCTET_FIELD_I64] = 8,  [OCTET_FIELD_F32] = 4,  [OCTET_FIELD_STRUCT] = 0,
    };
    memcpy((char *)value + field->offset, &number, type_bytes[field->type]); /* its low bytes */
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

static octet_status parse_word(const octet_field *field, void *value, oct_span text,
                               octet_error *err) {
    int at = oct_span_find(text, field->words);
    if (at < 0) {
        char list[OCT_LIST_TEXT];
        return oct_fail_at(err, text.column, "'%.*s' is not a value of %s; allowed: %s",
                           OCT_SHOW(text), field->word, oct_list_words(list, field->words));
    }
    oct_field_set(field, value, at);
    return OCTET_OK;
}

octet_status oct_field_parse(const octet_field *field, void *value, oct_span text,
                             octet_error *err) {
    if (field->type == OCTET_FIELD_WORD) {
        return parse_word(field, value, text, err);
    }
    if (field->type == OCTET_FIELD_F32) {
        float number;
        if (!oct_span_f32(&number, text)) {
            return oct_fail_at(err, text.column,
                               "'%.*s' is not a number that fits a float; %s takes a finite "
                               "one, neither too large nor rounded to 0",
                               OCT_SHOW(text), field->word);
        }
        memcpy((char *)value + field->offset, &number, sizeof number);
        return OCTET_OK;
    }
    int64_t number;
    int64_t min = field->type == OCTET_FIELD_I32 ? INT32_MIN : 0;
    if (!oct_span_integer(&number, text, min, type_max(field->type))) {
        return oct_fail_at(err, text.column,
                           "'%.*s' is %s from %lld to %lld; "
                           "%s takes one",
                           OCT_SHOW(text),
                           oct_span_is_integer(text) && (min < 0 || text.text[0] != '-')
                               ? "no number"
                               : "not a whole number",
                           (long long)min, (long long)type_max(field->type), field->word);
    }
    oct_field_set(field, value, number);
    return OCTET_OK;
}

void oct_field_write(const octet_field *field, const void *value, oct_writer *writer) {
    if (field->type == OCTET_FIELD_F32) {
        float number;
        memcpy(&number, member(field, value, 0), sizeof number);
        oct_write_f32(writer, number);
    } else if (field->type == OCTET_FIELD_WORD) {
        int64_t at = oct_field_get(field, value);
        oct_write(writer, at < field->limit ? field->words[at] : "?");
    } else {
        oct_write_i64(writer, oct_field_get(field, value));
    }
}

static octet_status out_of_range(const octet_field *field, uint64_t bits, const char *what,
                                 octet_error *err) {
    if (field->type == OCTET_FIELD_F32) {
        return oct_fail(err, OCTET_INVALID, "%s.%s is not finite", what, field->name);
    }
    if (field->type == OCTET_FIELD_FLAG) {
        return oct_fail(err, OCTET_INVALID, "%s.%s is %llu; a flag is 0 or 1", what,
                        field->name, (unsigned long long)bits);
    }
    return oct_fail(err, OCTET_INVALID, "%s.%s is %llu; it must be below %d", what, field->name,
                    (unsigned long long)bits, field->limit);
}

static octet_status out_of_scope(const octet_field *field, const void *value, const char *what,
                                 octet_error *err) {
    char text[64];
    oct_writer writer = oct_writer_start(text, sizeof text);
    oct_field_write(field, value, &writer);
    return oct_fail(err, OCTET_INVALID, "%s.%s is %s, which has no meaning here: leave it 0",
                    what, field->name, text);
}

octet_status oct_fields_check(const octet_field *fields, const void *value, int kind,
                              const char *what, octet_error *err) {
    for (const octet_field *field = fields; field->name; field++) {
        if (field->type == OCTET_FIELD_STRUCT) {
            continue;
        }
        uint64_t bits = element_bits(field, value, 0);
        bool infinite = field->type == OCTET_FIELD_F32 && (bits & 0x7F800000u) == 0x7F800000u;
        if ((field->limit && bits >= field->limit) || infinite) {
            return out_of_range(field, bits, what, err);
        }
        if (bits != 0 && !(field->scope >> kind & 1)) {
            return out_of_scope(field, value, what, err);
        }
    }
    return OCTET_OK;
}

const octet_field *oct_fields_find(const octet_field *fields, oct_span word) {
    for (const octet_field *field = fields; field->name; field++) {
        if (field->word && oct_span_is(word, field->word)) {
            return field;
        }
    }
    return NULL;
}
