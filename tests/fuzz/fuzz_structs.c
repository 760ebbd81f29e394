/* fuzz_structs.c - public structs made of any bytes, given to the functions that check them.
 *
 * A byte chooses the struct, one a text that it begins as; then come patches, each a place and
 * up to eight bytes. What a check accepts must print, hash, plan and round-trip. */
#include "fuzz.h"

static const char *const quantizers[] = {"none",
                                         "fp8-tensor:e4m3",
                                         "fp8-delayed:e5m2",
                                         "fp8-block:e4m3/128x128",
                                         "mxfp8:e4m3",
                                         "nvfp4:e2m1",
                                         "nvfp4:e2m1/1x16+rht+sr",
                                         "mxfp4:e2m1/32x32+swizzled",
                                         "nvfp4:e2m1/1x16+rowscaled"};
static const char *const recipes[] = {"none",    "delayed:history=4",
                                      "current", "block",
                                      "mxfp8",   "nvfp4",
                                      "mxfp4",   "custom:input=mxfp8:e4m3,weight=nvfp4:e2m1"};
static const char *const protos[] = {"bf16 (8, 128)", "f32 () on cuda:1/90",
                                     "bf16 (4, 3, 64) mxfp8:e4m3/1x32+row with grad",
                                     "f16 (0, 9223372036854775807)"};
static const char *const problems[] = {
    "linear-backward m=8 k=64 n=32 in=bf16 bias recipe=mxfp8",
    "linear-backward m=4x3 k=16 n=8 in=f32 recipe=delayed raise_amax delay_wgrad",
    "linear-backward m=128 k=64 n=32 in=bf16 recipe=current parallel=row tp=2 sequence",
    "linear-backward m=8 k=64 n=32 in=bf16 prologue=layernorm eps=1e-05 beta recipe=nvfp4",
    "linear-backward m=8 k=64 n=32 in=f16 prologue=swiglu main_grad=add bias cache=read",
    "linear-backward m=none k=64 n=32 in=bf16 device=cuda:0/90 recipe=block quantize_output"};

#define PICK(list, byte) (list)[(byte) % (sizeof(list) / sizeof(list)[0])]

static void patch(fuzz_bytes *in, void *value, size_t size) {
    while (in->left) {
        uint8_t place[2], count = fuzz_u8(in);
        fuzz_take(in, place, 2);
        size_t at = (size_t)(place[0] | place[1] << 8) % size, some = count % 8 + 1u;
        some = some < size - at ? some : size - at;
        fuzz_take(in, (char *)value + at, some);
    }
}

#define PRINTER(name, type)                                                                    \
    static size_t print_##name(char *text, size_t size, const void *value) {                   \
        return octet_##name##_print(text, size, (const type *)value);                          \
    }
PRINTER(quantizer, octet_quantizer)
PRINTER(recipe, octet_recipe)
PRINTER(proto, octet_proto)
PRINTER(linear, octet_linear_args)
PRINTER(device, octet_device)

/* Whole: what a check refuses is only told, what it accepts has a text of its own. */
static void try_quantizer(fuzz_bytes *in, uint8_t start) {
    octet_quantizer value, again;
    octet_error err = {OCTET_OK, 0, ""};
    LAW(octet_quantizer_parse(&value, PICK(quantizers, start), &err) == OCTET_OK);
    patch(in, &value, sizeof value);
    octet_status status = octet_quantizer_check(&value, &err);
    octet_layout layout;
    octet_status made = octet_layout_make(&layout, &value, NULL);
    octet_status turned = octet_quantizer_with_usage(&again, &value, true, false, NULL);
    (void)octet_quantizer_hash(&value);
    (void)octet_quantizer_equal(&value, &again);
    (void)octet_quantizer_transposable(&value);
    (void)octet_quantizer_row_step(&value);
    (void)octet_quantizer_column_step(&value);
    char *text = fuzz_printed(print_quantizer, &value);
    if (status) {
        fuzz_refused(status, &err, NULL);
        LAW(made && turned);
    } else if (value.scheme) {
        LAW(!made && !turned);
        LAW(octet_quantizer_parse(&again, text, &err) == OCTET_OK);
        LAW(octet_quantizer_equal(&value, &again));
    }
    free(text);
}

static void try_recipe(fuzz_bytes *in, uint8_t start) {
    octet_recipe value, again;
    octet_quantizer quantizer;
    octet_error err = {OCTET_OK, 0, ""};
    LAW(octet_recipe_parse(&value, PICK(recipes, start), &err) == OCTET_OK);
    patch(in, &value, sizeof value);
    octet_status status = octet_recipe_check(&value, &err);
    char *text = fuzz_printed(print_recipe, &value);
    (void)octet_recipe_hash(&value);
    for (int role = -1; role <= OCTET_ROLES; role++) {
        octet_status asked = octet_recipe_quantizer(&quantizer, &value, (octet_role)role, NULL);
        LAW(asked || (role >= 0 && role < OCTET_ROLES));
    }
    if (status) {
        fuzz_refused(status, &err, NULL);
    } else {
        LAW(octet_recipe_parse(&again, text, &err) == OCTET_OK);
        LAW(octet_recipe_equal(&value, &again));
    }
    free(text);
}

static void try_proto(fuzz_bytes *in, uint8_t start) {
    octet_proto value, again;
    octet_error err = {OCTET_OK, 0, ""};
    int64_t bytes = 0;
    LAW(octet_proto_parse(&value, PICK(protos, start), &err) == OCTET_OK);
    patch(in, &value, sizeof value);
    octet_status status = octet_proto_check(&value, &err);
    octet_status sized = octet_proto_bytes(&bytes, &value, NULL);
    int count = octet_proto_buffer_count(&value);
    for (int i = -1; i < 8; i++) {
        octet_status made = octet_proto_buffer(&again, &value, i, NULL);
        LAW(made || (i >= 0 && i < count));
        (void)octet_proto_buffer_name(&value, i);
    }
    char *text = fuzz_printed(print_proto, &value);
    (void)octet_proto_hash(&value);
    if (status) {
        fuzz_refused(status, &err, NULL);
        LAW(count < 0 && sized);
    } else {
        LAW(count > 0 && octet_proto_parse(&again, text, &err) == OCTET_OK);
        LAW(octet_proto_equal(&value, &again));
    }
    free(text);
}

static void try_linear(fuzz_bytes *in, uint8_t start) {
    octet_linear_backward_args value, made;
    octet_linear_args again;
    octet_error err = {OCTET_OK, 0, ""};
    static octet_chain chain;
    LAW(octet_linear_backward_parse(&value, PICK(problems, start), &err) == OCTET_OK);
    patch(in, &value, sizeof value);
    octet_status status = octet_linear_check(&value.forward, &err);
    if (status) {
        fuzz_refused(status, &err, NULL);
    }
    LAW(status == octet_linear_backward_make(&made, &value.forward, NULL) || !status);
    char *text = fuzz_printed(print_linear, &value.forward);
    (void)octet_linear_backward_hash(&value);
    if (!status && octet_linear_parse(&again, text, &err) == OCTET_OK) {
        char *twice = fuzz_printed(print_linear, &again);
        LAW(!strcmp(text, twice));
        free(twice);
    }
    free(text);
    octet_status planned = octet_plan_chain(&chain, &value, &err);
    LAW(planned || !status);
    if (planned) {
        fuzz_refused(planned, &err, NULL);
    }
}

static void try_dim(fuzz_bytes *in) {
    octet_dim dim;
    octet_extents extents;
    octet_error err = {OCTET_OK, 0, ""};
    int64_t value = -1;
    fuzz_take(in, &dim, sizeof dim);
    fuzz_take(in, &extents, sizeof extents);
    octet_status status = octet_dim_eval(&value, &dim, &extents, &err);
    if (status) {
        fuzz_refused(status, &err, NULL);
    } else {
        LAW(value >= 0);
    }
}

/* Of every byte but the pointers, which the caller vouches for; the memory is as large as the
 * state says, where it says something that fits. */
static void try_delayed(fuzz_bytes *in) {
    octet_delayed state = OCTET_DELAYED_INIT;
    octet_error err = {OCTET_OK, 0, ""};
    uint8_t how = fuzz_u8(in);
    state.format = OCTET_E4M3;
    state.length = 3;
    state.slots = 2;
    patch(in, &state, offsetof(octet_delayed, scale));
    bool small = state.slots > 0 && state.slots < 1000 && state.length < 1000;
    size_t slots = small ? (size_t)state.slots : 1, rows = small ? state.length : 1;
    float *amax = fuzz_exact(slots * sizeof *amax);
    state.scale = how & 1 ? NULL : fuzz_exact(slots * sizeof(float));
    state.history = how & 2 ? NULL : fuzz_exact(slots * rows * sizeof(float));
    for (size_t i = 0; i < slots; i++) {
        uint32_t bits = (uint32_t)how << 24 ^ (uint32_t)i * 2654435761u;
        memcpy(&amax[i], &bits, sizeof bits);
        if (state.scale) {
            memcpy(&state.scale[i], &bits, sizeof bits);
        }
        for (size_t r = 0; state.history && r < rows; r++) {
            memcpy(&state.history[r * slots + i], &bits, sizeof bits);
        }
    }
    if (small || state.slots <= 0) {
        octet_status status = octet_delayed_record(&state, how & 4 ? NULL : amax, NULL, &err);
        status = octet_delayed_update(&state, how & 8 ? amax : NULL, NULL, &err);
        status = octet_delayed_step(&state, how & 4 ? NULL : amax, NULL, &err);
        status = octet_delayed_update_all(&state, how & 16 ? -1 : 1, NULL, &err);
        if (status) {
            fuzz_refused(status, &err, NULL);
        }
    }
    free(state.scale);
    free(state.history);
    free(amax);
}

static void try_device(fuzz_bytes *in) {
    octet_device device;
    fuzz_take(in, &device, sizeof device);
    free(fuzz_printed(print_device, &device));
    for (int scheme = -1; scheme <= OCTET_SCHEMES; scheme++) {
        (void)octet_support_name(octet_scheme_support((octet_scheme)scheme, &device));
        LAW(octet_scheme_name((octet_scheme)scheme) != NULL);
    }
    uint8_t byte = fuzz_u8(in);
    LAW(octet_dtype_name((octet_dtype)byte) && octet_dtype_bits((octet_dtype)byte) >= 0);
    LAW(octet_status_name((octet_status)byte) && octet_role_name((octet_role)byte));
    LAW(octet_part_name((octet_part)byte) != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_bytes in = {data, size};
    uint8_t kind = fuzz_u8(&in), start = fuzz_u8(&in);
    switch (kind % 7) {
    case 0:
        try_quantizer(&in, start);
        break;
    case 1:
        try_recipe(&in, start);
        break;
    case 2:
        try_proto(&in, start);
        break;
    case 3:
        try_linear(&in, start);
        break;
    case 4:
        try_dim(&in);
        break;
    case 5:
        try_delayed(&in);
        break;
    default:
        try_device(&in);
    }
    return 0;
}
