/* text.c - writing text into a caller's buffer and reading words out of one. */
#include "core/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"

oct_writer oct_writer_start(char *text, size_t size) {
    if (size > 0) {
        text[0] = 0;
    }
    return (oct_writer){text, size, 0};
}

static void write_bytes(oct_writer *writer, const char *text, size_t length) {
    if (writer->length < writer->size) {
        size_t room = writer->size - 1 - writer->length;
        size_t fits = length < room ? length : room;
        memcpy(writer->text + writer->length, text, fits);
        writer->text[writer->length + fits] = 0;
    }
    writer->length += length;
}

void oct_write(oct_writer *writer, const char *text) {
    write_bytes(writer, text, strlen(text));
}

void oct_write_i64(oct_writer *writer, int64_t value) {
    char digits[24];
    char *at = digits + sizeof digits;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do {
        *--at = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest);
    if (value < 0) {
        *--at = '-';
    }
    write_bytes(writer, at, (size_t)(digits + sizeof digits - at));
}

/* Digits and exponent of a positive float such that 0.DIGITS * 10^exponent reads back as it. */
static int shortest_digits(char digits[16], float value) {
    char text[32];
    char plain[32];
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    /* A thread may take subnormal numbers for 0; then they are widened by their encoding. */
    double wide = bits < 0x00800000u ? (double)bits * 0x1p-149 : (double)value;
    for (int count = 1; count <= 9; count++) {
        (void)snprintf(text, sizeof text, "%.*e", count - 1, wide);
        char *mark = strchr(text, 'e');
        size_t n = 0;
        for (const char *at = text; at < mark; at++) {
            if (*at >= '0' && *at <= '9') {
                digits[n++] = *at; /* the locale's decimal point falls out here */
            }
        }
        digits[n] = 0;
        int exponent = atoi(mark + 1);
        (void)snprintf(plain, sizeof plain, "%se%d", digits, exponent - (int)n + 1);
        float read = strtof(plain, NULL);
        if (memcmp(&read, &value, sizeof read) == 0) { /* a thread may take subnormals for 0 */
            return exponent + 1;
        }
    }
    return 0;
}

void oct_write_f32(oct_writer *writer, float value) {
    if (!isfinite(value)) {
        oct_write(writer, isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
        return;
    }
    if (signbit(value)) {
        oct_write(writer, "-");
        value = -value;
    }
    static const float zero = 0;
    if (memcmp(&value, &zero, sizeof value) == 0) {
        oct_write(writer, "0");
        return;
    }
    char digits[16] = "";
    int exponent = shortest_digits(digits, value);
    int count = (int)strlen(digits);
    while (count > 1 && digits[count - 1] == '0') {
        digits[--count] = 0;
    }
    if (exponent > 0 && exponent <= 7) {
        write_bytes(writer, digits, (size_t)(count < exponent ? count : exponent));
        write_bytes(writer, "000000", (size_t)(count < exponent ? exponent - count : 0));
        if (count > exponent) {
            oct_write(writer, ".");
            oct_write(writer, digits + exponent);
        }
    } else if (exponent <= 0 && exponent > -4) {
        oct_write(writer, "0.");
        write_bytes(writer, "000", (size_t)-exponent);
        oct_write(writer, digits);
    } else {
        write_bytes(writer, digits, 1);
        oct_write(writer, count > 1 ? "." : "");
        oct_write(writer, digits + 1);
        oct_write(writer, "e");
        oct_write_i64(writer, exponent - 1);
    }
}

void oct_write_pad(oct_writer *writer, size_t start, size_t column) {
    do {
        write_bytes(writer, " ", 1);
    } while (writer->length < start + column);
}

oct_span oct_span_skip(oct_span span, int count) {
    /* The empty span may have no text: null plus zero is undefined. */
    const char *text = count ? span.text + count : span.text;
    return (oct_span){text, span.length - count, span.column + count};
}

octet_status oct_span_of(oct_span *out, const char *text, octet_error *err) {
    octet_status status = oct_need(text, "text", err);
    if (!status && strlen(text) > INT32_MAX) {
        status = oct_fail(err, OCTET_INVALID, "a text of %zu bytes is too long", strlen(text));
    }
    if (!status) {
        *out = (oct_span){text, (int)strlen(text), 1};
    }
    return status;
}

oct_span oct_span_take(oct_span *rest, const char *stops) {
    int length = 0;
    while (length < rest->length && !strchr(stops, rest->text[length])) {
        length++;
    }
    oct_span taken = {rest->text, length, rest->column};
    *rest = oct_span_skip(*rest, length);
    return taken;
}

char oct_span_next(oct_span *rest) {
    if (rest->length == 0) {
        return 0;
    }
    char next = rest->text[0];
    *rest = oct_span_skip(*rest, 1);
    return next;
}

void oct_span_blanks(oct_span *rest) {
    while (rest->length && strchr(OCT_BLANKS, rest->text[0])) {
        *rest = oct_span_skip(*rest, 1);
    }
}

bool oct_span_is(oct_span span, const char *word) {
    return strlen(word) == (size_t)span.length &&
           memcmp(span.text, word, (size_t)span.length) == 0;
}

bool oct_span_starts(oct_span span, const char *prefix) {
    size_t length = strlen(prefix);
    return length <= (size_t)span.length && memcmp(span.text, prefix, length) == 0;
}

int oct_span_find(oct_span span, const char *const *words) {
    for (int i = 0; words[i]; i++) {
        if (oct_span_is(span, words[i])) {
            return i;
        }
    }
    return -1;
}

bool oct_span_count(int64_t *out, oct_span span, int64_t max) {
    int64_t value = 0;
    for (int i = 0; i < span.length; i++) {
        int digit = span.text[i] - '0';
        if (digit < 0 || digit > 9 || value > (max - digit) / 10) {
            return false;
        }
        value = value * 10 + digit;
    }
    *out = value;
    return span.length > 0;
}

bool oct_span_integer(int64_t *out, oct_span span, int64_t min, int64_t max) {
    if (!oct_span_starts(span, "-")) {
        return oct_span_count(out, span, max) && *out >= min;
    }
    int64_t size;
    if (!oct_span_count(&size, oct_span_skip(span, 1), INT64_MAX) || -size < min ||
        -size > max) {
        return false;
    }
    *out = -size;
    return true;
}

bool oct_span_is_integer(oct_span span) {
    oct_span digits = oct_span_skip(span, oct_span_starts(span, "-"));
    for (int i = 0; i < digits.length; i++) {
        if (digits.text[i] < '0' || digits.text[i] > '9') {
            return false;
        }
    }
    return digits.length > 0;
}

/* Whether a message has the word, and not only as a part of another. */
static bool has_word(const char *message, oct_span word) {
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    for (const char *at = message; *at; at++) {
        bool begins = at == message || !strchr(letters, at[-1]);
        if (begins && strncmp(at, word.text, (size_t)word.length) == 0 &&
            !(at[word.length] && strchr(letters, at[word.length]))) {
            return true;
        }
    }
    return false;
}

oct_span oct_span_named(oct_span text, const char *message) {
    oct_span rest = text;
    (void)oct_span_take(&rest, ":+"); /* the name of the whole */
    while (oct_span_next(&rest)) {
        oct_span item = oct_span_take(&rest, ":+,"), after = item;
        oct_span word = oct_span_take(&after, "=");
        oct_span value = oct_span_skip(after, after.length > 0);
        if ((word.length && has_word(message, word)) ||
            (value.length && has_word(message, value))) {
            return item;
        }
    }
    return text;
}

/* Copies the digits of a decimal without its point and counts how many followed the point. */
static bool collect_digits(char *plain, int room, oct_span mantissa, int *after_point) {
    int n = 0;
    bool point = false;
    for (int i = 0; i < mantissa.length; i++) {
        char c = mantissa.text[i];
        if (c == '.' && !point) {
            point = true;
        } else if (c >= '0' && c <= '9' && n < room) {
            plain[n++] = c;
            *after_point += point;
        } else {
            return false;
        }
    }
    plain[n] = 0;
    return n > 0;
}

bool oct_span_f32(float *out, oct_span span) {
    char plain[64];
    int after_point = 0;
    int64_t exponent = 0;
    bool negative = oct_span_starts(span, "-");
    oct_span rest = oct_span_skip(span, negative);
    oct_span mantissa = oct_span_take(&rest, "eE");
    if (!collect_digits(plain, 40, mantissa, &after_point)) {
        return false;
    }
    if (rest.length > 0) {
        bool plus = oct_span_starts(oct_span_skip(rest, 1), "+"); /* instead of a minus */
        oct_span digits = oct_span_skip(rest, plus ? 2 : 1);
        if (!(plus ? oct_span_count(&exponent, digits, 999)
                   : oct_span_integer(&exponent, digits, -999, 999))) {
            return false;
        }
    }
    /* Without a decimal point strtof reads the same number in every locale. */
    size_t n = strlen(plain);
    (void)snprintf(plain + n, sizeof plain - n, "e%d", (int)exponent - after_point);
    float value = strtof(plain, NULL);
    *out = negative ? -value : value;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bool vanished = bits == 0 && strspn(plain, "0") != n;
    return isfinite(value) && !vanished;
}

oct_span oct_span_shown(oct_span span) {
    if (span.length > 60) {
        span.length = 60;
        while (span.length > 56 && ((unsigned char)span.text[span.length] & 0xC0) == 0x80) {
            span.length--; /* a byte that continues a UTF-8 character */
        }
    }
    return span;
}

const char *oct_list_words(char out[OCT_LIST_TEXT], const char *const *words) {
    oct_writer writer = oct_writer_start(out, OCT_LIST_TEXT);
    for (int i = 0; words[i]; i++) {
        oct_write(&writer, i ? ", " : "");
        oct_write(&writer, words[i]);
    }
    return out;
}
