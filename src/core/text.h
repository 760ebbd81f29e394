/* text.h - writing text into a caller's buffer and reading words out of one. */
#ifndef OCT_CORE_TEXT_H
#define OCT_CORE_TEXT_H

#include "octet.h"

/* Writes like snprintf: what does not fit is counted, not written. */
typedef struct oct_writer {
    char *text;
    size_t size;
    size_t length; /* of the whole text, terminator not counted */
} oct_writer;

oct_writer oct_writer_start(char *text, size_t size);
void oct_write(oct_writer *writer, const char *text);
void oct_write_i64(oct_writer *writer, int64_t value);
/* The shortest decimal that reads back as the same float, whatever the locale. */
void oct_write_f32(oct_writer *writer, float value);
/* Spaces up to a column counted from `start`, at least one. */
void oct_write_pad(oct_writer *writer, size_t start, size_t column);

/* A piece of a text and the 1-based column where it begins. */
typedef struct oct_span {
    const char *text;
    int length;
    int column;
} oct_span;

/* A whole text, refused when it is NULL or longer than columns can count. */
octet_status oct_span_of(oct_span *out, const char *text, octet_error *err);
/* The first characters of the rest up to one of `stops` or the end; the rest shrinks by them.
 */
oct_span oct_span_take(oct_span *rest, const char *stops);
/* The next character of the rest, which shrinks by it; 0 at the end. */
char oct_span_next(oct_span *rest);
/* The rest without the blanks it begins with. */
#define OCT_BLANKS " \t\r\n"
void oct_span_blanks(oct_span *rest);
bool oct_span_is(oct_span span, const char *word);
bool oct_span_starts(oct_span span, const char *prefix);
oct_span oct_span_skip(oct_span span, int count);
/* The index of span in a NULL-terminated list, or -1. */
int oct_span_find(oct_span span, const char *const *words);
/* A whole decimal number without sign, within 0..max. */
bool oct_span_count(int64_t *out, oct_span span, int64_t max);
/* A decimal number, also "-3". */
bool oct_span_integer(int64_t *out, oct_span span, int64_t min, int64_t max);
/* Whether it is written as a whole number, however large. */
bool oct_span_is_integer(oct_span span);
/* The first word of a text, such as "eps" in "current+pow2:eps=3", that a message names by
 * itself or by its value; the whole text where none is. Words lie between ':', '+' and ','. */
oct_span oct_span_named(oct_span text, const char *message);
/* A finite decimal such as 0.5, 1e-12 or 448, read the same in every locale. One that is not 0
 * but would be read as 0 is none. */
bool oct_span_f32(float *out, oct_span span);

/* For messages: at most 60 bytes of the span, never half a character. printf("%.*s",
 * OCT_SHOW(s)) */
oct_span oct_span_shown(oct_span span);
#define OCT_SHOW(span) oct_span_shown(span).length, (span).text

/* For messages: "word, word, word" of a NULL-terminated list, cut short where it must be. */
#define OCT_LIST_TEXT 192
const char *oct_list_words(char out[OCT_LIST_TEXT], const char *const *words);

#endif
