/* mlp.c - runs an MLP that was trained in Python, from its safetensors file; no Python, no
 * torch.
 *
 *     mlp MODEL RECIPE INPUT OUTPUT
 *
 * MODEL is the flat state dict of an nn.Sequential of octet.Linear layers with quantized
 * weights and ReLUs between them: octet.flatten_state_dict, then safetensors' save_file. INPUT
 * has a tensor "x", F32 of (rows, features). OUTPUT gets a tensor "y". RECIPE is what inputs
 * are quantized by: current, block, mxfp8, nvfp4, mxfp4.
 *
 * A weight is its buffers and a text: "0.weight._rowwise_data", ..., and "0.weight._octet", the
 * bytes of "f32 96x64 mxfp8:e4m3/1x32+row+col". The text is all that is needed to plan. */
#include <octet.h>

#include "safetensors.h"

enum { LAYERS_MOST = 16, BUFFERS_MOST = OCTET_MAX_BUFFERS };

typedef struct layer {
    int number;         /* its place in the nn.Sequential */
    octet_proto weight; /* what its text says: dtype, shape, quantizer */
    octet_plan plan;
    void *buffers[BUFFERS_MOST];
    float *bias; /* NULL: it has none */
    void *workspace;
} layer;

typedef struct network {
    int count;
    layer layers[LAYERS_MOST];
    char problem[sizeof(octet_error) + 256];
} network;

static bool fail(network *n, const char *format, ...) {
    va_list values;
    va_start(values, format);
    (void)vsnprintf(n->problem, sizeof n->problem, format, values);
    va_end(values);
    return false;
}

static void *aligned(int64_t bytes) {
    size_t room = ((size_t)bytes / OCTET_ARENA_ALIGN + 1) * OCTET_ARENA_ALIGN;
    return aligned_alloc(OCTET_ARENA_ALIGN, room);
}

/* A copy of a tensor's bytes, aligned for numbers. */
static void *copied(const tensor_entry *tensor) {
    void *made = aligned(tensor->end - tensor->begin);
    return made ? memcpy(made, tensor->data, (size_t)(tensor->end - tensor->begin)) : NULL;
}

/* ---- what the file says ------------------------------------------------------------------ */

/* "f32 96x64 mxfp8:..." as a proto, whose own text is "f32 (96, 64) mxfp8:...". */
static bool read_text(network *n, layer *l, const tensor_entry *tensor) {
    char said[256], text[300], dtype[8], quantizer[200];
    long long rows, columns;
    int64_t size = tensor->end - tensor->begin;
    octet_error err;
    if (strcmp(tensor->dtype, "U8") != 0 || size >= (int64_t)sizeof said) {
        return fail(n, "%s is no text", tensor->name);
    }
    memcpy(said, tensor->data, (size_t)size);
    said[size] = 0;
    int read = 0; /* all of it, or it is no text of Octet's */
    int found = sscanf(said, "%7[a-z0-9] %18lldx%18lld %199s%n", dtype, &rows, &columns,
                       quantizer, &read);
    if (found != 4 || read != size) {
        return fail(n, "%s does not say dtype, shape and quantizer of a matrix", tensor->name);
    }
    (void)snprintf(text, sizeof text, "%s (%lld, %lld) %s", dtype, rows, columns, quantizer);
    if (octet_proto_parse(&l->weight, text, &err)) {
        return fail(n, "%s: %s", tensor->name, err.text);
    }
    return true;
}

static const char *dtype_word(octet_dtype dtype) {
    return dtype == OCTET_F32 ? "F32" : "U8"; /* no buffer is of another */
}

/* The buffers that the quantizer has, each of the shape that it should be of. */
static bool read_buffers(network *n, layer *l, const tensor_file *file) {
    int count = octet_proto_buffer_count(&l->weight);
    for (int i = 0; i < count; i++) {
        char name[TENSOR_NAME];
        octet_proto wanted;
        octet_error err;
        (void)snprintf(name, sizeof name, "%d.weight.%s", l->number,
                       octet_proto_buffer_name(&l->weight, i));
        if (octet_proto_buffer(&wanted, &l->weight, i, &err)) {
            return fail(n, "%s: %s", name, err.text);
        }
        const tensor_entry *found = tensor_find(file, name);
        bool same = found && found->rank == wanted.rank &&
                    strcmp(found->dtype, dtype_word((octet_dtype)wanted.dtype)) == 0;
        for (int j = 0; same && j < wanted.rank; j++) {
            same = found->shape[j] == wanted.shape[j];
        }
        if (!same) {
            char text[OCTET_PROTO_TEXT];
            octet_proto_print(text, sizeof text, &wanted);
            return fail(n, "%s is not there, or not %s: the file is damaged", name, text);
        }
        l->buffers[i] = copied(found);
        if (l->buffers[i] == NULL) {
            return fail(n, "there is no memory for %s", name);
        }
    }
    return true;
}

static bool read_bias(network *n, layer *l, const tensor_file *file) {
    char name[TENSOR_NAME];
    (void)snprintf(name, sizeof name, "%d.bias", l->number);
    const tensor_entry *found = tensor_find(file, name);
    if (found == NULL) {
        return true;
    }
    if (strcmp(found->dtype, "F32") != 0 || found->rank != 1 ||
        found->shape[0] != l->weight.shape[0]) {
        return fail(n, "%s is not F32 of (%lld)", name, (long long)l->weight.shape[0]);
    }
    l->bias = copied(found);
    return l->bias != NULL || fail(n, "there is no memory for %s", name);
}

/* ---- plans ------------------------------------------------------------------------------- */

/* Plans a layer for so many rows. All that the recipe asks for but x, weight and bias (the
 * scales of delayed scaling) is refused here, before anything runs. */
static bool plan_layer(network *n, layer *l, const char *recipe, int64_t rows) {
    char quantizer[OCTET_PROTO_TEXT], problem[1024];
    octet_linear_args args;
    octet_error err;
    octet_quantizer_print(quantizer, sizeof quantizer, &l->weight.quantizer);
    (void)snprintf(problem, sizeof problem,
                   "linear m=%lld k=%lld n=%lld in=f32 w=%s qw=%s recipe=%.200s%s grad=none",
                   (long long)rows, (long long)l->weight.shape[1],
                   (long long)l->weight.shape[0], octet_dtype_name(l->weight.dtype), quantizer,
                   recipe, l->bias ? " bias=f32" : "");
    l->plan = OCTET_PLAN_INIT;
    if (octet_linear_parse(&args, problem, &err) || octet_plan_linear(&l->plan, &args, &err)) {
        return fail(n, "layer %d: %s", l->number, err.text);
    }
    for (int i = 0; i < l->plan.arg_count; i++) {
        int name = l->plan.args[i].name;
        if (name != OCTET_NAME_INPUT && name != OCTET_NAME_WEIGHT && name != OCTET_NAME_BIAS) {
            char text[128];
            octet_port_print(text, sizeof text, &l->plan.args[i]);
            return fail(n, "recipe %s needs %s, which is not here; take another recipe", recipe,
                        text);
        }
    }
    l->workspace = aligned(l->plan.workspace_bytes);
    return l->workspace != NULL || fail(n, "there is no memory for layer %d", l->number);
}

/* All layers of a file, in the order of their numbers; each takes what the one before gives. */
static bool network_make(network *n, const tensor_file *file, const char *recipe,
                         const tensor_entry *x) {
    int64_t features = x->shape[1];
    for (int number = 0; number < 2 * LAYERS_MOST; number++) {
        char name[TENSOR_NAME];
        (void)snprintf(name, sizeof name, "%d.weight._octet", number);
        const tensor_entry *text = tensor_find(file, name);
        if (text == NULL) {
            continue;
        }
        if (n->count == LAYERS_MOST) {
            return fail(n, "there are more than %d layers", LAYERS_MOST);
        }
        layer *l = &n->layers[n->count++];
        l->number = number;
        if (!read_text(n, l, text) || !read_buffers(n, l, file) || !read_bias(n, l, file)) {
            return false;
        }
        if (l->weight.shape[1] != features) {
            return fail(n, "layer %d takes %lld features, but gets %lld", number,
                        (long long)l->weight.shape[1], (long long)features);
        }
        features = l->weight.shape[0];
        if (!plan_layer(n, l, recipe, x->shape[0])) {
            return false;
        }
    }
    return n->count > 0 || fail(n, "there is no layer: no tensor is called 0.weight._octet");
}

static void network_free(network *n) {
    for (int i = 0; i < n->count; i++) {
        for (int j = 0; j < BUFFERS_MOST; j++) {
            free(n->layers[i].buffers[j]);
        }
        free(n->layers[i].bias);
        free(n->layers[i].workspace);
    }
}

/* ---- running ----------------------------------------------------------------------------- */

static bool run_layer(network *n, layer *l, const float *x, float *y) {
    octet_memory memory = OCTET_MEMORY_INIT;
    octet_exec exec = OCTET_EXEC_INIT;
    octet_error err;
    for (int i = 0, buffer = 0; i < l->plan.arg_count; i++) {
        switch (l->plan.args[i].name) {
        case OCTET_NAME_INPUT:
            memory.args[i] = x;
            break;
        case OCTET_NAME_BIAS:
            memory.args[i] = l->bias;
            break;
        default:
            memory.args[i] = l->buffers[buffer++];
            break; /* in the order of the proto */
        }
    }
    memory.outs[octet_port_find(l->plan.outs, l->plan.out_count, "output")] = y;
    memory.workspace = l->workspace;
    memory.workspace_bytes = l->plan.workspace_bytes;
    return octet_run(&l->plan, &memory, &exec, &err) == OCTET_OK ||
           fail(n, "layer %d: %s", l->number, err.text);
}

/* Runs all layers, with a ReLU between two. The result is the caller's, or NULL. */
static float *network_run(network *n, float *x, int64_t rows) {
    for (int i = 0; i < n->count && x != NULL; i++) {
        int64_t count = rows * n->layers[i].weight.shape[0];
        float *y = aligned(count * (int64_t)sizeof(float));
        if (y == NULL || !run_layer(n, &n->layers[i], x, y)) {
            (void)(y || fail(n, "there is no memory for the output"));
            free(y);
            y = NULL;
        }
        for (int64_t j = 0; y && i + 1 < n->count && j < count; j++) {
            y[j] = y[j] < 0 ? 0 : y[j]; /* NaN stays NaN, as in torch */
        }
        free(x);
        x = y;
    }
    return x;
}

/* Writes a safetensors file of "y" beside its place, then moves it there. */
static bool write_output(network *n, const char *path, const float *y, int64_t rows) {
    char header[160], beside[4096];
    int64_t columns = n->layers[n->count - 1].weight.shape[0];
    long long bytes = (long long)(rows * columns) * 4;
    uint8_t length[8];
    int size = snprintf(header, sizeof header,
                        "{\"y\":{\"dtype\":\"F32\",\"shape\":[%lld,%lld],\"data_offsets\":[0,"
                        "%lld]}}",
                        (long long)rows, (long long)columns, bytes);
    if (snprintf(beside, sizeof beside, "%s.part", path) >= (int)sizeof beside) {
        return fail(n, "its name is too long");
    }
    for (int i = 0; i < 8; i++) {
        length[i] = i < 4 ? (uint8_t)((unsigned)size >> (8 * i)) : 0;
    }
    FILE *stream = fopen(beside, "wb");
    if (stream == NULL) {
        return fail(n, "it cannot be written; is there such a folder?");
    }
    bool whole = fwrite(length, 1, 8, stream) == 8 &&
                 fwrite(header, 1, (size_t)size, stream) == (size_t)size &&
                 fwrite(y, 1, (size_t)bytes, stream) == (size_t)bytes;
    whole = fclose(stream) == 0 && whole;
    if (!whole || rename(beside, path) != 0) {
        (void)remove(beside);
        return fail(n, "it cannot be written whole");
    }
    return true;
}

/* ---- the command ------------------------------------------------------------------------- */

static int complain(const char *path, const char *problem) {
    fprintf(stderr, "%s: %s\n", path, problem);
    return 1;
}

static int run_files(char **paths, tensor_file *model, tensor_file *input, network *n) {
    if (!tensor_file_read(model, paths[1])) {
        return complain(paths[1], model->problem);
    }
    if (!tensor_file_read(input, paths[3])) {
        return complain(paths[3], input->problem);
    }
    const tensor_entry *x = tensor_find(input, "x");
    if (x == NULL || strcmp(x->dtype, "F32") != 0 || x->rank != 2) {
        return complain(paths[3], "it has no tensor x, F32 of (rows, features)");
    }
    if (!network_make(n, model, paths[2], x)) {
        return complain(paths[1], n->problem);
    }
    float *y = network_run(n, copied(x), x->shape[0]);
    if (y == NULL) {
        return complain(paths[1], n->problem[0] ? n->problem : "there is no memory for x");
    }
    bool written = write_output(n, paths[4], y, x->shape[0]);
    free(y);
    return written ? 0 : complain(paths[4], n->problem);
}

int main(int count, char **words) {
    static tensor_file model, input;
    static network n;
    if (count != 5) {
        fprintf(stderr, "usage: mlp MODEL RECIPE INPUT OUTPUT\n");
        return 2;
    }
    int status = run_files(words, &model, &input, &n);
    network_free(&n);
    tensor_file_free(&model);
    tensor_file_free(&input);
    return status;
}
