/* test_texts.c - spoiled texts: refused in words and nothing written, or read and read back. */
#include <stdlib.h>

#include "octet.h"
#include "test.h"

#define ROOM 512
#define ROUNDS 40000

static const char *const seeds[] = {
    "fp8-tensor:e4m3+row+col+pow2+eps=1e-5",
    "fp8-block:e4m3/128x128+row+nopow2+eps=0.25",
    "nvfp4:e2m1/16x16+4over6=mse+max256",
    "nvfp4:e2m1/1x16+rht=plain+sr",
    "delayed:history=16,algo=most_recent,margin=-3",
    "current+pow2+x.nopow2:g.eps=1e-4",
    "nvfp4+norht+nosr:4over6=weights,err=mse",
    "custom:input=mxfp8:e4m3,weight=mxfp8:e4m3,grad_output=fp8-tensor:e5m2",
    "linear m=4x128 k=64 n=32 in=f32 w=bf16 bias=f16 out=f16 recipe=nvfp4 grad=xb threads=8",
    "linear m=none k=5 n=3 in=f16 recipe=delayed cache=write delay_wgrad main_grad=add",
    "linear-backward m=16 k=32 n=48 in=bf16 recipe=block dy=f32 parallel=row tp=4",
    "linear-backward m=1 k=1 n=1 in=f32 recipe=custom:input=nvfp4:e2m1 qdy=mxfp8:e5m2",
    "linear m=3 k=5 n=7 in=bf16 prologue=layernorm eps=1e-5 beta=f32 gamma=f16 grad=xge",
    "linear m=3 k=5 n=7 in=bf16 prologue=swiglu recipe=mxfp8",
};
static const char *const bits[] = {
    "+",
    "no",
    ":",
    "=",
    ",",
    "/",
    "x",
    ".",
    " ",
    "-",
    "0",
    "\t",
    "nan",
    "1e",
    "1e38",
    "%n",
    "\x80",
    "\xc3\xa9",
    "x.",
    "none",
    "custom",
    "rht",
    "sr",
    "m=0",
    "+row",
    "2d",
    "65536",
    "4over6",
    "e-46",
    "threads=",
    "9223372036854775807",
    "18446744073709551616",
};

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

static uint64_t state = 0x6F63746574u;

static size_t below(size_t most) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(state >> 33) % most;
}

static void put(char text[ROOM], const char *more, size_t length) {
    size_t now = strlen(text), at = below(now + 1);
    if (now + length < ROOM) {
        memmove(text + at + length, text + at, now - at + 1);
        memcpy(text + at, more, length);
    }
}

static void take(char text[ROOM]) {
    size_t now = strlen(text), at = below(now + 1), length = below(now - at + 1);
    memmove(text + at, text + at + length, now - at - length + 1);
}

static void spoil(char text[ROOM]) {
    const char *other = seeds[below(COUNT(seeds))], *piece = bits[below(COUNT(bits))];
    size_t from = below(strlen(other)), length = below(strlen(other) - from + 1);
    switch (below(4)) {
    case 0:
        put(text, piece, strlen(piece));
        break;
    case 1:
        put(text, other + from, length);
        break;
    case 2:
        take(text);
        break;
    default:
        text[below(strlen(text) + 1)] = (char)below(256);
        break;
    }
}

/* One kind of value: how it is read, written and compared. */
typedef struct kind {
    octet_status (*parse)(void *, const char *, octet_error *);
    size_t (*print)(char *, size_t, const void *);
    bool (*equal)(const void *, const void *);
    uint64_t (*hash)(const void *);
    size_t size, room;
} kind;

#define KIND(name)                                                                             \
    static octet_status name##_parse(void *out, const char *text, octet_error *err) {          \
        return octet_##name##_parse(out, text, err);                                           \
    }                                                                                          \
    static size_t name##_print(char *text, size_t size, const void *value) {                   \
        return octet_##name##_print(text, size, value);                                        \
    }                                                                                          \
    static bool name##_equal(const void *a, const void *b) {                                   \
        return octet_##name##_equal(a, b);                                                     \
    }                                                                                          \
    static uint64_t name##_hash(const void *value) {                                           \
        return octet_##name##_hash(value);                                                     \
    }
KIND(quantizer)
KIND(recipe)
KIND(linear)
KIND(linear_backward)
#define ROW(name, type, room)                                                                  \
    {name##_parse, name##_print, name##_equal, name##_hash, sizeof(type), room}

static const kind kinds[] = {
    ROW(quantizer, octet_quantizer, OCTET_QUANTIZER_TEXT),
    ROW(recipe, octet_recipe, OCTET_RECIPE_TEXT),
    ROW(linear, octet_linear_args, OCTET_LINEAR_TEXT),
    ROW(linear_backward, octet_linear_backward_args, OCTET_LINEAR_TEXT),
};

static void check_refusal(const kind *k, const char *text, const void *out,
                          const octet_error *err) {
    static const unsigned char untouched[sizeof(octet_linear_backward_args)];
    CHECK_OF(!memcmp(out, untouched, k->size), text);
    CHECK_OF(err->status == OCTET_INVALID && err->text[0] != '\0', text);
    CHECK_OF(err->column >= 0 && err->column <= (int)strlen(text) + 1, text);
}

static void check_round_trip(const kind *k, const char *text, const void *value) {
    octet_linear_backward_args again; /* the largest of them */
    char first[OCTET_LINEAR_TEXT], second[OCTET_LINEAR_TEXT], little[8];
    CHECK_OF(k->print(first, sizeof first, value) < k->room, text);
    CHECK_OF(k->print(little, sizeof little, value) == strlen(first), text);
    CHECK_OF(strlen(little) < sizeof little && !strncmp(little, first, strlen(little)), text);
    if (CHECK_OF(k->parse(&again, first, NULL) == OCTET_OK, first)) {
        (void)k->print(second, sizeof second, &again);
        CHECK_EQ_STR(first, second);
        CHECK_OF(k->equal(value, &again) && k->hash(value) == k->hash(&again), text);
    }
}

/* In memory of its exact length, where a sanitizer sees a byte read beyond it. */
static bool check_text(const kind *k, const char *text) {
    octet_linear_backward_args out;
    octet_error err = {OCTET_OK, -1, ""};
    size_t size = strlen(text) + 1;
    char *exact = malloc(size);
    memset(&out, 0, sizeof out);
    if (!CHECK(exact != NULL)) {
        return false;
    }
    memcpy(exact, text, size);
    bool read = k->parse(&out, exact, &err) == OCTET_OK;
    if (read) {
        check_round_trip(k, exact, &out);
    } else {
        check_refusal(k, exact, &out, &err);
    }
    free(exact);
    return read;
}

TEST(texts__spoiled_are_refused_or_read_back) {
    int read[COUNT(kinds)] = {0};
    for (int round = 0; round < ROUNDS; round++) {
        char text[ROOM];
        (void)snprintf(text, sizeof text, "%s", seeds[below(COUNT(seeds))]);
        for (size_t times = below(4); times > 0; times--) {
            spoil(text);
        }
        for (size_t i = 0; i < COUNT(kinds); i++) {
            read[i] += check_text(&kinds[i], text);
        }
    }
    for (size_t i = 0; i < COUNT(kinds); i++) {
        CHECK(read[i] > ROUNDS / 50);
    }
}

TEST_MAIN(texts__spoiled_are_refused_or_read_back)
