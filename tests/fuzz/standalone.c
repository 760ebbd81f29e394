/* standalone.c - a fuzzer for any C compiler: replays a corpus, then mutates it for a while.
 *
 *     fuzz_values [-seconds=N] [-runs=N] [-seed=N] [-dict=FILE] [-out=FOLDER] CORPUS...
 *
 * Where the library is compiled with -fsanitize-coverage=trace-pc, inputs that reach new code
 * join the corpus in memory. An input that ends the process is left in FOLDER. */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"

#define MOST_INPUT 4096
#define MOST_INPUTS 20000
#define MOST_WORDS 512
#define EDGES (1 << 16)

typedef struct input {
    uint8_t *data;
    size_t size;
} input;

static struct {
    input inputs[MOST_INPUTS], words[MOST_WORDS];
    int input_count, word_count;
    uint64_t random;
    long runs;
    const char *out;
    const uint8_t *current; /* what is being run, for who dies of it */
    size_t current_size;
} fuzz = {.out = "."};

static uint8_t edges[EDGES];
static int new_edges;

/* The compiler calls it on every edge; it must not be instrumented itself. */
void __sanitizer_cov_trace_pc(void);
__attribute__((no_sanitize("address", "undefined"))) void __sanitizer_cov_trace_pc(void) {
    uintptr_t at = (uintptr_t)__builtin_return_address(0);
    uint8_t *edge = &edges[(at ^ at >> 16) % EDGES];
    new_edges += *edge == 0;
    *edge = 1;
}

static uint64_t draw(uint64_t limit) {
    fuzz.random = fuzz.random * 6364136223846793005u + 1442695040888963407u;
    return limit ? (fuzz.random >> 33) % limit : 0;
}

/* ---- findings ---------------------------------------------------------------------------- */

/* Only what a signal handler may call. */
static void leave_finding(void) {
    static char path[1024];
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t i = 0; i < fuzz.current_size; i++) {
        hash = (hash ^ fuzz.current[i]) * 0x100000001B3u;
    }
    size_t length = strlen(fuzz.out);
    if (!fuzz.current || length > 900) {
        return;
    }
    memcpy(path, fuzz.out, length);
    memcpy(path + length, "/crash-", 7);
    for (int i = 0; i < 16; i++) {
        path[length + 7 + (size_t)i] = "0123456789abcdef"[hash >> (60 - 4 * i) & 15];
    }
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ssize_t put = file < 0 ? -1 : write(file, fuzz.current, fuzz.current_size);
    put = put < 0 ? put : write(2, "finding: ", 9);
    put = put < 0 ? put : write(2, path, strlen(path));
    put = put < 0 ? put : write(2, "\n", 1);
    (void)put;
    fuzz.current = NULL;
}

static void on_signal(int number) {
    leave_finding();
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

/* The sanitizers end the process by themselves, and call this first. */
void __sanitizer_set_death_callback(void (*)(void)) __attribute__((weak));

static void watch(void) {
    static const int numbers[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        (void)signal(numbers[i], on_signal);
    }
    if (__sanitizer_set_death_callback) {
        __sanitizer_set_death_callback(leave_finding);
    }
}

/* In memory of its own size: a read past the input is seen. */
static void run(const uint8_t *data, size_t size) {
    uint8_t *exact = malloc(size ? size : 1);
    if (!exact) {
        return;
    }
    memcpy(exact, data, size);
    fuzz.current = exact;
    fuzz.current_size = size;
    (void)alarm(60); /* an input that takes a minute is a finding */
    (void)LLVMFuzzerTestOneInput(exact, size);
    fuzz.current = NULL;
    fuzz.runs++;
    free(exact);
}

/* ---- corpus and dictionary --------------------------------------------------------------- */

static void add(input *list, int *count, int most, input one) {
    uint8_t *copy = *count < most ? malloc(one.size ? one.size : 1) : NULL;
    if (copy) {
        memcpy(copy, one.data, one.size);
        list[(*count)++] = (input){copy, one.size};
    }
}

static bool load_file(const char *path) {
    static uint8_t data[1 << 16];
    FILE *file = fopen(path, "rb");
    if (!file) {
        return false;
    }
    size_t size = fread(data, 1, sizeof data, file);
    (void)fclose(file);
    add(fuzz.inputs, &fuzz.input_count, MOST_INPUTS, (input){data, size});
    return true;
}

static bool load(const char *path) {
    DIR *folder = opendir(path);
    if (!folder) {
        return load_file(path);
    }
    for (struct dirent *e; (e = readdir(folder));) {
        char inner[1024];
        int length = snprintf(inner, sizeof inner, "%s/%s", path, e->d_name);
        if (e->d_name[0] != '.' && length > 0 && (size_t)length < sizeof inner) {
            (void)load_file(inner);
        }
    }
    (void)closedir(folder);
    return true;
}

/* Lines of libFuzzer's form: "word", with \xNN for bytes. */
static void load_words(const char *path) {
    char line[512];
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        uint8_t word[256];
        size_t size = 0;
        const char *at = strchr(line, '"');
        if (line[0] == '#' || !at) {
            continue;
        }
        for (at++; *at && *at != '"' && size < sizeof word; at++) {
            if (at[0] == '\\' && at[1] == 'x' && at[2] && at[3]) {
                char digits[3] = {at[2], at[3], 0};
                word[size++] = (uint8_t)strtoul(digits, NULL, 16);
                at += 3;
            } else {
                at += at[0] == '\\' && at[1];
                word[size++] = (uint8_t)*at;
            }
        }
        add(fuzz.words, &fuzz.word_count, MOST_WORDS, (input){word, size});
    }
    if (file) {
        (void)fclose(file);
    }
}

/* ---- mutation ---------------------------------------------------------------------------- */

static void insert(uint8_t *data, size_t *size, size_t at, input what) {
    size_t some = what.size < MOST_INPUT - *size ? what.size : MOST_INPUT - *size;
    memmove(data + at + some, data + at, *size - at);
    memcpy(data + at, what.data, some);
    *size += some;
}

static void remove_some(uint8_t *data, size_t *size, size_t at) {
    size_t some = draw(*size - at < 16 ? *size - at + 1 : 16);
    memmove(data + at, data + at + some, *size - at - some);
    *size -= some;
}

static void change_bytes(uint8_t *data, size_t size, size_t at) {
    static const uint64_t edge[] = {0, 1, 127, 128, 255, 256, INT32_MAX, INT64_MAX};
    if (at >= size) {
        return;
    }
    uint64_t value = edge[draw(sizeof edge / sizeof edge[0])] + draw(3) - 1;
    size_t some = (size_t)1 << draw(4);
    switch (draw(4)) {
    case 0:
        data[at] ^= (uint8_t)(1 << draw(8));
        break;
    case 1:
        data[at] = (uint8_t)draw(256);
        break;
    case 2:
        data[at] = (uint8_t)('0' + draw(10));
        break;
    default:
        memcpy(data + at, &value, some < size - at ? some : size - at);
    }
}

static void splice(uint8_t *data, size_t *size, size_t at) {
    input other = fuzz.inputs[draw((uint64_t)fuzz.input_count)];
    size_t from = draw(other.size + 1), some = draw(other.size - from + 1);
    insert(data, size, at, (input){other.data + from, some});
}

static void mutate(void) {
    static uint8_t data[2 * MOST_INPUT];
    input base = {data, 0};
    if (fuzz.input_count) {
        base = fuzz.inputs[draw((uint64_t)fuzz.input_count)];
    }
    size_t size = base.size < MOST_INPUT ? base.size : MOST_INPUT;
    memmove(data, base.data, size);
    for (uint64_t times = draw(6) + 1; times; times--) {
        size_t at = draw(size + 1);
        uint64_t kind = draw(8);
        if (kind < 3) {
            change_bytes(data, size, at);
        } else if (kind == 3) {
            remove_some(data, &size, at);
        } else if (kind == 4 && fuzz.input_count) {
            splice(data, &size, at);
        } else if (fuzz.word_count) {
            insert(data, &size, at, fuzz.words[draw((uint64_t)fuzz.word_count)]);
        }
    }
    new_edges = 0;
    run(data, size);
    if (new_edges) {
        add(fuzz.inputs, &fuzz.input_count, MOST_INPUTS, (input){data, size});
    }
}

static double now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool is_option(const char *argument, const char *name, const char **value) {
    size_t length = strlen(name);
    *value = argument + length;
    return strncmp(argument, name, length) == 0;
}

int main(int argc, char **argv) {
    double seconds = 0, start = now();
    long most = -1;
    for (int i = 1; i < argc; i++) {
        const char *value;
        if (is_option(argv[i], "-seconds=", &value)) {
            seconds = strtod(value, NULL);
        } else if (is_option(argv[i], "-runs=", &value)) {
            most = strtol(value, NULL, 10);
        } else if (is_option(argv[i], "-seed=", &value)) {
            fuzz.random = strtoull(value, NULL, 10);
        } else if (is_option(argv[i], "-dict=", &value)) {
            load_words(value);
        } else if (is_option(argv[i], "-out=", &value)) {
            fuzz.out = value;
        } else if (!load(argv[i])) {
            fprintf(stderr, "%s cannot be read\n", argv[i]);
            return 2;
        }
    }
    watch();
    int corpus = fuzz.input_count;
    for (int i = 0; i < corpus; i++) {
        run(fuzz.inputs[i].data, fuzz.inputs[i].size);
    }
    while ((most < 0 || fuzz.runs < most) && now() - start < seconds) {
        mutate();
    }
    printf("%d inputs replayed, %ld executions, %d inputs that reach new code\n", corpus,
           fuzz.runs, fuzz.input_count - corpus);
    return corpus ? 0 : 2; /* a corpus that is not there is no test */
}
