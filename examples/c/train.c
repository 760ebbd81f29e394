/* train.c - two spirals told apart by a small MLP, trained in fp32 and in each recipe.
 *
 * Everything Octet does here is in the first half: a Linear is two plans and the memory they
 * run on. The rest is an ordinary training loop: features, ReLU, softmax, Adam. */
#include <math.h>
#include <octet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    POINTS = 384,
    FEATURES = 32,
    HIDDEN = 96,
    CLASSES = 2,
    STEPS = 300,
    ROWS = 10,
    HISTORY = 16
};

static const char *const recipes[] = {"none", "delayed", "current", "block", "mxfp8", "nvfp4"};
enum { RECIPES = sizeof recipes / sizeof recipes[0] };
#define DROP 50.0 /* the loss must fall at least this far in every recipe */

/* What a network has allocated; all of it goes when it has been trained. */
static void *arenas[64];
static int arena_count;

static void *memory(int64_t bytes) {
    size_t room = ((size_t)bytes / OCTET_ARENA_ALIGN + 1) * OCTET_ARENA_ALIGN;
    void *made = arena_count < 64 ? aligned_alloc(OCTET_ARENA_ALIGN, room) : NULL;
    if (made == NULL) {
        exit(1);
    }
    arenas[arena_count++] = made;
    return memset(made, 0, room);
}

static void free_memory(void) {
    while (arena_count > 0) {
        free(arenas[--arena_count]);
    }
}

/* ---- a Linear layer ---------------------------------------------------------------------- */

/* Delayed scaling's state, forward and backward; other recipes never look at it. */
typedef struct scaling {
    float scale[OCTET_FORWARD_SLOTS], amax[OCTET_FORWARD_SLOTS];
    float history[OCTET_FORWARD_SLOTS * HISTORY];
} scaling;

typedef struct layer {
    octet_plan forward, backward;
    octet_memory forward_memory, backward_memory;
    void *tensor[OCTET_NAMES]; /* by octet_plan_name: input, weight, bias, output, ... */
    scaling state[2];
    int64_t seed; /* stochastic rounding: another one each step */
    int64_t parameters[2];
} layer;

/* Every port of a plan has a name; the layer's tensors go by the same. */
static octet_memory bind_memory(const octet_plan *plan, void *const tensor[OCTET_NAMES]) {
    octet_memory m = OCTET_MEMORY_INIT;
    for (int i = 0; i < plan->arg_count; i++) {
        m.args[i] = tensor[plan->args[i].name];
    }
    for (int i = 0; i < plan->out_count; i++) {
        m.outs[i] = tensor[plan->outs[i].name];
    }
    m.saved_bytes = plan->saved_bytes;
    m.saved = memory(plan->saved_bytes);
    m.workspace_bytes = plan->workspace_bytes;
    m.workspace = memory(plan->workspace_bytes);
    return m;
}

/* Plans both directions of "linear m=.. k=.. n=..", and makes what they read and write. */
static octet_status layer_make(layer *l, const char *problem, float *input, float *grad_input,
                               octet_error *err) {
    octet_linear_args args;
    octet_linear_backward_args backward;
    memset(l, 0, sizeof *l);
    l->forward = l->backward = OCTET_PLAN_INIT;
    octet_status status = octet_linear_parse(&args, problem, err);
    status = status ? status : octet_plan_linear(&l->forward, &args, err);
    status = status ? status : octet_linear_backward_make(&backward, &args, err);
    status = status ? status : octet_plan_linear_backward(&l->backward, &backward, err);
    if (status) {
        return status;
    }
    int64_t m = args.input.shape[0], k = args.weight.shape[1], n = args.weight.shape[0];
    const int64_t floats[OCTET_NAMES] = {
        [OCTET_NAME_WEIGHT] = n * k,      [OCTET_NAME_BIAS] = n,
        [OCTET_NAME_OUTPUT] = m * n,      [OCTET_NAME_GRAD_OUTPUT] = m * n,
        [OCTET_NAME_GRAD_WEIGHT] = n * k, [OCTET_NAME_GRAD_BIAS] = n,
    };
    for (int name = 0; name < OCTET_NAMES; name++) {
        l->tensor[name] = memory(floats[name] * (int64_t)sizeof(float));
    }
    l->tensor[OCTET_NAME_INPUT] = input;
    l->tensor[OCTET_NAME_GRAD_INPUT] = grad_input;
    l->tensor[OCTET_NAME_SEED] = &l->seed;
    for (int i = 0; i < OCTET_FORWARD_SLOTS; i++) {
        l->state[0].scale[i] = l->state[1].scale[i] = 1;
    }
    l->tensor[OCTET_NAME_SCALE] = l->state[0].scale;
    l->tensor[OCTET_NAME_AMAX] = l->state[0].amax;
    l->forward_memory = bind_memory(&l->forward, l->tensor);
    l->tensor[OCTET_NAME_SCALE] = l->state[1].scale;
    l->tensor[OCTET_NAME_AMAX] = l->state[1].amax;
    l->backward_memory = bind_memory(&l->backward, l->tensor);
    l->backward_memory.restored[0] = l->forward_memory.saved;
    l->backward_memory.restored_bytes[0] = l->forward_memory.saved_bytes;
    l->parameters[0] = n * k;
    l->parameters[1] = n;
    return OCTET_OK;
}

/* After a step: the amaxes that the plans measured become the next step's scales, and the next
 * step rounds by another seed. */
static octet_status layer_advance(layer *l, octet_error *err) {
    octet_status status = OCTET_OK;
    for (int i = 0; i < 2 && !status; i++) {
        octet_delayed state = OCTET_DELAYED_INIT;
        state.format = i == 0 ? OCTET_E4M3 : OCTET_E5M2;
        state.length = HISTORY;
        state.slots = i == 0 ? OCTET_FORWARD_SLOTS : OCTET_BACKWARD_SLOTS;
        state.scale = l->state[i].scale;
        state.history = l->state[i].history;
        status = octet_delayed_record(&state, l->state[i].amax, NULL, err);
        status = status ? status : octet_delayed_update(&state, NULL, NULL, err);
    }
    l->seed++;
    return status;
}

/* ---- the rest of a network --------------------------------------------------------------- */

static float *floats_of(layer *l, octet_plan_name name) {
    return l->tensor[name];
}

static uint32_t seed;

/* In [-1, 1). */
static float noise(void) {
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / 8388608.0f - 1.0f;
}

/* Points of two spirals, as sines and cosines of their coordinates. */
static void make_data(float *features, int *labels) {
    seed = 1;
    for (int i = 0; i < POINTS; i++) {
        float turn = (float)(i / 2) / (POINTS / 2) * 3.5f + 0.3f;
        float angle = turn * 3.0f + (i % 2 ? 3.14159265f : 0.0f);
        float at[2] = {turn * cosf(angle) + 0.1f * noise(),
                       turn * sinf(angle) + 0.1f * noise()};
        labels[i] = i % 2;
        for (int j = 0; j < FEATURES; j++) {
            float frequency = 0.15f * (float)(1 + j / 4);
            float phase = frequency * at[j % 2];
            features[i * FEATURES + j] = j / 2 % 2 ? cosf(phase) : sinf(phase);
        }
    }
}

static void start_weights(layer *l, int64_t inputs) {
    float *w = floats_of(l, OCTET_NAME_WEIGHT);
    float spread = sqrtf(3.0f / (float)inputs);
    for (int64_t i = 0; i < l->parameters[0]; i++) {
        w[i] = spread * noise();
    }
}

/* Mean cross-entropy of the logits, and its gradient. */
static double softmax_loss(float *grad, const float *logits, const int *labels) {
    double loss = 0;
    for (int i = 0; i < POINTS; i++) {
        const float *z = logits + i * CLASSES;
        float margin = z[1 - labels[i]] - z[labels[i]];
        float wrong = 1.0f / (1.0f + expf(-margin)); /* the probability of the other class */
        loss += margin > 0 ? margin + log1p(exp(-(double)margin)) : log1p(exp((double)margin));
        grad[i * CLASSES + labels[i]] = -wrong / (float)POINTS;
        grad[i * CLASSES + 1 - labels[i]] = wrong / (float)POINTS;
    }
    return loss / (double)POINTS;
}

/* Adam on one array; state holds both moments. */
static void adam(float *w, const float *grad, float *state, int64_t count, int step) {
    float rate = 0.004f * sqrtf(1 - powf(0.999f, (float)step)) / (1 - powf(0.9f, (float)step));
    for (int64_t i = 0; i < count; i++) {
        float *m = state + 2 * i, *v = m + 1;
        *m = 0.9f * *m + 0.1f * grad[i];
        *v = 0.999f * *v + 0.001f * grad[i] * grad[i];
        w[i] -= rate * *m / (sqrtf(*v) + 1e-8f);
    }
}

typedef struct network {
    layer first, second;
    float hidden[POINTS * HIDDEN], grad_hidden[POINTS * HIDDEN];
    float moments[2 * (HIDDEN * (FEATURES + 1) + CLASSES * (HIDDEN + 1))];
} network;

static octet_status network_make(network *n, const char *recipe, float *features,
                                 octet_error *err) {
    char problem[128];
    memset(n, 0, sizeof *n);
    (void)snprintf(problem, sizeof problem,
                   "linear m=%d k=%d n=%d in=f32 bias recipe=%s grad=wb", POINTS, FEATURES,
                   HIDDEN, recipe);
    octet_status status = layer_make(&n->first, problem, features, NULL, err);
    (void)snprintf(problem, sizeof problem, "linear m=%d k=%d n=%d in=f32 bias recipe=%s",
                   POINTS, HIDDEN, CLASSES, recipe);
    status = status ? status : layer_make(&n->second, problem, n->hidden, n->grad_hidden, err);
    if (!status) {
        start_weights(&n->first, FEATURES);
        start_weights(&n->second, HIDDEN);
    }
    return status;
}

static void relu(network *n) {
    const float *y = floats_of(&n->first, OCTET_NAME_OUTPUT);
    for (int i = 0; i < POINTS * HIDDEN; i++) {
        n->hidden[i] = y[i] > 0 ? y[i] : 0;
    }
}

static void relu_backward(network *n) {
    float *grad = floats_of(&n->first, OCTET_NAME_GRAD_OUTPUT);
    for (int i = 0; i < POINTS * HIDDEN; i++) {
        grad[i] = n->hidden[i] > 0 ? n->grad_hidden[i] : 0;
    }
}

static void learn(network *n, int step) {
    float *moments = n->moments;
    for (int i = 0; i < 4; i++) {
        layer *l = i < 2 ? &n->first : &n->second;
        octet_plan_name name = i % 2 ? OCTET_NAME_BIAS : OCTET_NAME_WEIGHT;
        octet_plan_name grad = i % 2 ? OCTET_NAME_GRAD_BIAS : OCTET_NAME_GRAD_WEIGHT;
        adam(floats_of(l, name), floats_of(l, grad), moments, l->parameters[i % 2], step);
        moments += 2 * l->parameters[i % 2];
    }
}

/* One step on all points. */
static octet_status train_step(double *loss, network *n, const int *labels, int step,
                               octet_error *err) {
    octet_exec exec = OCTET_EXEC_INIT;
    layer *a = &n->first, *b = &n->second;
    octet_status status = octet_run(&a->forward, &a->forward_memory, &exec, err);
    relu(n);
    status = status ? status : octet_run(&b->forward, &b->forward_memory, &exec, err);
    *loss = softmax_loss(floats_of(b, OCTET_NAME_GRAD_OUTPUT), floats_of(b, OCTET_NAME_OUTPUT),
                         labels);
    status = status ? status : octet_run(&b->backward, &b->backward_memory, &exec, err);
    relu_backward(n);
    status = status ? status : octet_run(&a->backward, &a->backward_memory, &exec, err);
    status = status ? status : layer_advance(a, err);
    status = status ? status : layer_advance(b, err);
    learn(n, step);
    return status;
}

static octet_status train(double losses[STEPS], const char *recipe, octet_error *err) {
    static float features[POINTS * FEATURES];
    static int labels[POINTS];
    static network n;
    make_data(features, labels);
    octet_status status = network_make(&n, recipe, features, err);
    for (int step = 0; step < STEPS && !status; step++) {
        status = train_step(&losses[step], &n, labels, step + 1, err);
    }
    free_memory();
    return status;
}

int main(void) {
    static double losses[RECIPES][STEPS];
    int failed = 0;
    octet_error err;
    for (int i = 0; i < RECIPES; i++) {
        if (train(losses[i], recipes[i], &err)) {
            fprintf(stderr, "%s: %s\n", recipes[i], err.text);
            return 1;
        }
    }
    printf("loss by step, on %s kernels\n%6s", octet_cpu_name(), "");
    for (int i = 0; i < RECIPES; i++) {
        printf("%10s", recipes[i]);
    }
    for (int row = 0; row <= ROWS; row++) {
        int step = row > 0 ? row * STEPS / ROWS : 1;
        printf("\n%6d", step);
        for (int i = 0; i < RECIPES; i++) {
            printf("%10.4f", losses[i][step - 1]);
        }
    }
    printf("\n");
    for (int i = 0; i < RECIPES; i++) {
        bool falls = losses[i][STEPS - 1] * DROP < losses[i][0];
        failed += !falls;
        if (!falls) {
            printf("%s: the loss fell less than %g times\n", recipes[i], DROP);
        }
    }
    return failed > 0;
}
