/* fuzz.h - what every fuzz target has: its entry, its input piece by piece, laws that abort. */
#ifndef OCTET_FUZZ_H
#define OCTET_FUZZ_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "octet.h"
#include "octet/run.h"
#include "octet/signature.h"

/* libFuzzer's entry. A crash, a sanitizer's report or a broken law is a finding. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A law: it holds for every input. */
#define LAW(cond)                                                                              \
    do {                                                                                       \
        if (!(cond)) {                                                                         \
            fprintf(stderr, "%s:%d: broken law: %s\n", __FILE__, __LINE__, #cond);             \
            abort();                                                                           \
        }                                                                                      \
    } while (0)

/* What is left of the input. Past its end there are zeros. */
typedef struct fuzz_bytes {
    const uint8_t *at;
    size_t left;
} fuzz_bytes;

static inline void fuzz_take(fuzz_bytes *in, void *to, size_t bytes) {
    size_t some = bytes < in->left ? bytes : in->left;
    memset(to, 0, bytes);
    if (some) {
        memcpy(to, in->at, some);
        in->at += some;
        in->left -= some;
    }
}

static inline uint8_t fuzz_u8(fuzz_bytes *in) {
    uint8_t value;
    fuzz_take(in, &value, 1);
    return value;
}

/* Memory that ends where it ends: of no bytes, too. */
static inline void *fuzz_exact(size_t bytes) {
    void *at = malloc(bytes ? bytes : 1);
    LAW(at != NULL);
    return at;
}

/* The rest as a text in memory of its own length, up to its first NUL. */
static inline char *fuzz_text(fuzz_bytes *in) {
    size_t length = 0;
    while (length < in->left && in->at[length]) {
        length++;
    }
    char *text = fuzz_exact(length + 1);
    if (length) {
        memcpy(text, in->at, length);
    }
    text[length] = '\0';
    *in = (fuzz_bytes){in->at + length, in->left - length};
    return text;
}

/* A refusal says so in its status and in words, at a place that the text has. */
static inline void fuzz_refused(octet_status status, const octet_error *err, const char *text) {
    LAW(status == err->status);
    LAW(status > OCTET_OK && status <= OCTET_DEVICE);
    LAW(err->text[0] && memchr(err->text, '\0', sizeof err->text));
    LAW(err->column >= 0);
    LAW(!text || (size_t)err->column <= strlen(text) + 1);
}

/* Prints into memory of every size that matters: none, part of it, all of it. */
typedef size_t fuzz_print(char *text, size_t size, const void *value);
static inline char *fuzz_printed(fuzz_print *print, const void *value) {
    size_t length = print(NULL, 0, value);
    LAW(length < 1 << 20);
    char *whole = fuzz_exact(length + 1), *half = fuzz_exact(length / 2 + 1);
    LAW(print(whole, length + 1, value) == length);
    LAW(strlen(whole) == length);
    LAW(print(half, length / 2 + 1, value) == length);
    LAW(strlen(half) == length / 2 && !memcmp(half, whole, length / 2));
    free(half);
    return whole;
}

#endif
