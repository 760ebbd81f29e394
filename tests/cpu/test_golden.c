/* test_golden.c - small tensors and the bytes they become, written out in tests/golden. */
#include "every_isa.h"

#include "tensors.h"

#include <ctype.h>

#define MOST 8192

typedef struct golden_case {
    char name[64];
    octet_quantizer q;
    octet_dtype dtype;
    int64_t rows, cols;
    float scale;
    uint64_t seed;
    float input[MOST];
    char expect[OCTET_PARTS][128 * 16];
    float amax; /* delayed: what must be measured; negative: not said */
} golden_case;

/* word*3 stands for word three times: its length, and how often. */
static size_t word_of(const char *text, long *times) {
    size_t length = strcspn(text, "* \n");
    *times = text[length] == '*' ? strtol(text + length + 1, NULL, 10) : 1;
    return length;
}

static const char *next_word(const char *text) {
    text += strcspn(text, " \n");
    return text + strspn(text, " \n");
}

static void read_input(golden_case *c, const char *text) {
    int64_t n = 0;
    long times;
    for (; *text; text = next_word(text)) {
        (void)word_of(text, &times);
        float value = strtof(text, NULL);
        while (times-- > 0 && n < MOST) {
            c->input[n++] = value;
        }
    }
    CHECK_EQ_INT(n, c->rows * c->cols);
}

static void read_expect(golden_case *c, const char *text) {
    octet_layout layout;
    size_t length = strcspn(text, " ");
    bool known = false;
    CHECK_EQ_INT(octet_layout_make(&layout, &c->q, NULL), OCTET_OK);
    for (int i = 0; i < layout.count; i++) {
        const octet_buffer *buffer = &layout.buffers[i];
        if (strlen(buffer->name) == length && strncmp(buffer->name, text, length) == 0) {
            known = true;
            snprintf(c->expect[buffer->part], sizeof c->expect[0], "%s", text + length + 1);
        }
    }
    CHECK(known);
}

/* A part as the file writes it: as many digits as an element has, repeats counted. */
static void write_part(char *out, size_t size, const cpu_tensor *t, int part) {
    size_t width = part == OCTET_PART_SCALE || part >= OCTET_PART_ROW_AMAX ||
                           (t->m.quantizer.scheme == OCTET_FP8_BLOCK &&
                            (part == OCTET_PART_ROW_SCALE || part == OCTET_PART_COL_SCALE))
                       ? 4
                       : 1;
    const uint8_t *bytes = t->m.parts[part];
    size_t used = 0;
    for (size_t i = 0, run; i < t->bytes[part] && used + 32 < size; i += run * width) {
        uint32_t word = bytes[i];
        if (width == 4) {
            memcpy(&word, bytes + i, 4);
        }
        for (run = 1; i + (run + 1) * width <= t->bytes[part] &&
                      memcmp(bytes + i, bytes + i + run * width, width) == 0;
             run++) {
        }
        run = run > 2 || word == 0 ? run : 1;
        used += (size_t)snprintf(out + used, size - used, "%s%0*x", used ? " " : "",
                                 (int)width * 2, word);
        if (run > 1) {
            used += (size_t)snprintf(out + used, size - used, "*%zu", run);
        }
    }
}

static void check_parts(const golden_case *c, const cpu_tensor *got) {
    char text[sizeof c->expect[0]];
    for (int part = 0; part < OCTET_PARTS; part++) {
        if (!got->m.parts[part]) {
            continue;
        }
        write_part(text, sizeof text, got, part);
        char plain[sizeof c->expect[0]];
        snprintf(plain, sizeof plain, "%s", c->expect[part]);
        plain[strcspn(plain, "\n")] = 0;
        if (!CHECK_EQ_STR(text, plain)) {
            printf("    case %s: %s\n", c->name, octet_part_name((octet_part)part));
        }
    }
}

static void run_case(const golden_case *c) {
    cpu_tensor x = cpu_tensor_plain(c->dtype, c->rows, c->cols, c->cols);
    cpu_tensor got = cpu_tensor_quantized(&c->q, c->dtype, c->rows, c->cols, 1);
    float amax = 0, measured = -1;
    for (int64_t i = 0; i < c->rows * c->cols; i++) {
        cpu_tensor_set(&x, i / c->cols, i % c->cols, c->input[i]);
    }
    oct_cpu_amax(&amax, &x.m, NULL);
    oct_cpu_amax_parts(&got.m, &x.m, NULL);
    oct_live live = {&c->scale, &amax, &measured, c->seed, 0, NULL};
    oct_cpu_quantize(&got.m, &x.m, &live, NULL);
    check_parts(c, &got);
    if (c->amax >= 0) {
        CHECK_EQ_BITS(measured, c->amax);
    }
    cpu_tensor_free(&x);
    cpu_tensor_free(&got);
}

static octet_dtype dtype_of(const char *name) {
    int dtype = OCTET_F32;
    while (dtype < OCTET_F16 && strncmp(name, octet_dtype_name((octet_dtype)dtype),
                                        strlen(octet_dtype_name((octet_dtype)dtype))) != 0) {
        dtype++;
    }
    return (octet_dtype)dtype;
}

static void read_line(golden_case *c, char *line) {
    char *rest = strchr(line, ' ');
    rest = rest ? rest + 1 : line + strlen(line);
    line[strcspn(line, "\n")] = 0;
    if (strncmp(line, "quantizer ", 10) == 0) {
        CHECK_EQ_INT(octet_quantizer_parse(&c->q, rest, NULL), OCTET_OK);
    } else if (strncmp(line, "dtype ", 6) == 0) {
        c->dtype = dtype_of(rest);
    } else if (strncmp(line, "shape ", 6) == 0) {
        char *end;
        c->rows = strtoll(rest, &end, 10);
        c->cols = strtoll(end, NULL, 10);
    } else if (strncmp(line, "scale ", 6) == 0) {
        c->scale = strtof(rest, NULL);
    } else if (strncmp(line, "seed ", 5) == 0) {
        c->seed = strtoull(rest, NULL, 0);
    } else if (strncmp(line, "amax ", 5) == 0) {
        c->amax = strtof(rest, NULL);
    } else if (strncmp(line, "input ", 6) == 0) {
        read_input(c, rest);
    } else if (strncmp(line, "expect ", 7) == 0) {
        read_expect(c, rest);
    } else {
        CHECK_EQ_STR(line, "a line of a golden case");
    }
}

/* The files lie beside this one: tests/golden. */
static FILE *open_golden(const char *name) {
    char path[1024];
    const char *here = __FILE__, *slash = strrchr(here, '/');
    int folder = slash ? (int)(slash - here) : 0;
    snprintf(path, sizeof path, "%.*s/../golden/%s", folder, folder ? here : ".", name);
    return fopen(path, "r");
}

static int run_file(const char *name) {
    static golden_case c;
    static char line[4096];
    int cases = 0;
    FILE *file = open_golden(name);
    if (!CHECK(file != NULL)) {
        return 0;
    }
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "case ", 5) == 0) {
            if (cases++) {
                run_case(&c);
            }
            memset(&c, 0, sizeof c);
            c.amax = -1;
            snprintf(c.name, sizeof c.name, "%.*s", (int)strcspn(line + 5, "\n"), line + 5);
        } else if (line[0] != '#' && !isspace((unsigned char)line[0])) {
            read_line(&c, line);
        }
    }
    fclose(file);
    if (cases) {
        run_case(&c);
    }
    return cases;
}

TEST(golden__per_tensor) {
    CHECK_EQ_INT(run_file("fp8-tensor.txt"), 5);
}

TEST(golden__delayed) {
    CHECK_EQ_INT(run_file("fp8-delayed.txt"), 2);
}

TEST(golden__block) {
    CHECK_EQ_INT(run_file("fp8-block.txt"), 4);
}

TEST(golden__mxfp8) {
    CHECK_EQ_INT(run_file("mxfp8.txt"), 4);
}

TEST(golden__nvfp4) {
    CHECK_EQ_INT(run_file("nvfp4.txt"), 7);
}

TEST(golden__mxfp4) {
    CHECK_EQ_INT(run_file("mxfp4.txt"), 6);
}

CPU_TEST_MAIN(golden__per_tensor, golden__delayed, golden__block, golden__mxfp8, golden__nvfp4,
              golden__mxfp4)
