/* request.c - an op's request: text and sizes become arguments, and these a plan. */
#include "torch/request.h"

#include <string.h>

#include "torch/api.h"

static octet_status plan_linear(octet_chain *out, const oct_request *p, octet_error *err) {
    octet_linear_backward_args args;
    octet_status status =
        octet_linear_backward_parse_words(&args, p->text, p->sizes, p->rank, err);
    if (status) {
        return status;
    }
    args.forward.threads = p->threads;
    return octet_plan_chain(out, &args, err);
}

/* The last word of a tensor's text; without it the device is the tensor's own. */
static octet_status read_device(octet_device *device, const char *word, octet_error *err) {
    static const char name[] = "device=";
    if (strncmp(word, name, sizeof name - 1) != 0) {
        return oct_torch_fail(err, OCTET_INVALID,
                              "'%.60s' follows the quantizer; only device=... may", word);
    }
    return octet_device_parse(device, word + sizeof name - 1, err);
}

/* The first word of a text, cut off if it is longer than any may be. *rest: what follows it, or
 * NULL. Returns its length. */
static size_t take_word(char word[OCTET_LINEAR_TEXT], const char **rest, const char *text) {
    const char *space = strchr(text, ' ');
    size_t length = space ? (size_t)(space - text) : strlen(text);
    size_t fits = length < OCTET_LINEAR_TEXT ? length : OCTET_LINEAR_TEXT - 1;
    memcpy(word, text, fits);
    word[fits] = 0;
    *rest = space ? space + 1 : NULL;
    return length;
}

/* A quantizer, and perhaps a device. */
static octet_status read_quantizer(octet_proto *proto, const char *text, octet_error *err) {
    char word[OCTET_LINEAR_TEXT];
    const char *rest;
    size_t length = take_word(word, &rest, text);
    if (length >= sizeof word) {
        return oct_torch_fail(err, OCTET_INVALID, "a quantizer of %zu characters", length);
    }
    octet_status status = octet_quantizer_parse(&proto->quantizer, word, err);
    return status || !rest ? status : read_device(&proto->device, rest, err);
}

/* "bf16 mxfp8:e4m3/1x32+row": dtype, quantizer, and perhaps a device. */
static octet_status read_tensor(octet_proto *proto, const oct_request *p, octet_error *err) {
    char word[OCTET_LINEAR_TEXT];
    const char *rest;
    octet_dtype dtype = OCTET_NONE;
    (void)take_word(word, &rest, p->text);
    octet_status status = octet_dtype_parse(&dtype, word, NULL);
    if (!rest || status || dtype < OCTET_F32 || dtype > OCTET_F16) {
        return oct_torch_fail(err, OCTET_INVALID,
                              "'%s' is not a dtype (f32, bf16, f16) and a quantizer", p->text);
    }
    if (p->rank > OCTET_MAX_RANK) {
        return oct_torch_fail(err, OCTET_INVALID, "a tensor of %d axes; at most %d", p->rank,
                              OCTET_MAX_RANK);
    }
    *proto = octet_proto_make(dtype, p->rank, p->sizes);
    proto->device = p->device;
    return read_quantizer(proto, rest, err);
}

static octet_status plan_tensor(octet_plan *plan, const oct_request *p, octet_error *err) {
    octet_proto proto;
    octet_status status = read_tensor(&proto, p, err);
    *plan = OCTET_PLAN_INIT;
    if (status || p->kind == OCTET_PLAN_DEQUANTIZE) {
        return status ? status : octet_plan_dequantize(plan, &proto, err);
    }
    octet_quantizer quantizer = proto.quantizer;
    memset(&proto.quantizer, 0, sizeof proto.quantizer);
    return octet_plan_quantize(plan, &proto, &quantizer, err);
}

static bool is_tensor(octet_plan_kind kind) {
    return kind == OCTET_PLAN_QUANTIZE || kind == OCTET_PLAN_DEQUANTIZE;
}

octet_status oct_request_chain(octet_chain *out, const oct_request *request, octet_error *err) {
    if (!is_tensor(request->kind)) {
        return plan_linear(out, request, err);
    }
    *out = (octet_chain){.size = sizeof *out, .count = 1};
    return plan_tensor(&out->plans[0], request, err);
}

_Static_assert(OCTET_PLAN_LINEAR == 0 && OCTET_PLAN_LINEAR_BACKWARD == 1 &&
                   OCTET_PLAN_LINEAR_WGRAD == 2,
               "kinds of a Linear's plans are their places in the chain");

int oct_chain_at(octet_plan_kind kind) {
    return is_tensor(kind) ? 0 : (int)kind;
}

octet_status oct_chain_lacks(const oct_request *request, octet_error *err) {
    return oct_torch_fail(
        err, OCTET_INVALID, "'%.200s' leaves nothing for %s", request->text,
        request->kind == OCTET_PLAN_LINEAR_BACKWARD
            ? "a backward: it wants no gradient"
            : "a later wgrad: say delay_wgrad, and want the weight's gradient");
}

octet_status oct_request_plan(octet_plan *plan, const oct_request *request, octet_error *err) {
    octet_chain chain;
    int at = oct_chain_at(request->kind);
    octet_status status = oct_request_chain(&chain, request, err);
    if (!status && at >= chain.count) {
        status = oct_chain_lacks(request, err);
    }
    if (!status) {
        *plan = chain.plans[at];
    }
    return status;
}

/* Invalid sizes get the parser's error. */
static octet_status wrong_sizes(const oct_request *request, octet_error *err) {
    octet_plan plan;
    octet_status status = oct_request_plan(&plan, request, err);
    return status ? status
                  : oct_torch_fail(err, OCTET_INVALID, "%d sizes; they exceed 64 bits",
                                   request->rank);
}

octet_status oct_request_extents(octet_extents *out, const oct_request *request,
                                 octet_error *err) {
    bool tensor = is_tensor(request->kind);
    int last = tensor ? 1 : 2, leading = request->rank - last;
    bool fits = request->rank <= OCTET_MAX_RANK && (tensor || leading >= 0);
    int64_t m = 1;
    for (int i = 0; fits && i < request->rank; i++) {
        int64_t size = request->sizes[i];
        fits = size >= 0;
        if (fits && i < leading) {
            fits = size == 0 || m <= INT64_MAX / size;
            m = fits ? m * size : m;
        }
    }
    if (!fits) {
        return wrong_sizes(request, err);
    }
    *out = (octet_extents){m, leading >= 0 ? request->sizes[leading] : 1,
                           tensor ? 0 : request->sizes[leading + 1]};
    return OCTET_OK;
}

/* ---- ports in the caller's rank ---------------------------------------------------------- */

octet_status oct_port_shape(oct_shape *out, const octet_plan *plan, const octet_port *port,
                            const oct_request *request, octet_error *err) {
    bool one = plan->kind == OCTET_PLAN_QUANTIZE || plan->kind == OCTET_PLAN_DEQUANTIZE;
    int leading = request->rank - (one ? 1 : 2);
    out->rank = 0;
    for (int i = 0; i < port->ndim; i++) {
        bool many = port->dims[i].axis == OCTET_AXIS_LEADING;
        if (out->rank + (many ? leading : 1) > OCTET_MAX_RANK) {
            return oct_torch_fail(err, OCTET_INVALID, "a tensor of more than %d axes",
                                  OCTET_MAX_RANK);
        }
        for (int axis = 0; many && axis < leading; axis++) {
            int64_t size = request->sizes[axis];
            const octet_dim *dim = &port->dims[i]; /* ranks split or join the first axis */
            out->sizes[out->rank++] = axis ? size : size * dim->mul / dim->div;
        }
        if (!many) {
            out->sizes[out->rank++] = port->shape[i];
        }
    }
    return OCTET_OK;
}

int oct_port_tensor(const octet_plan *plan, octet_place place, int port) {
    bool alias = place == OCTET_PLACE_OUT && plan->outs[port].alias != OCTET_ABSENT;
    if (alias) {
        place = OCTET_PLACE_ARG;
        port = plan->outs[port].alias;
    }
    for (int i = 0; i < plan->buffer_count; i++) {
        if (plan->buffers[i].place == place && plan->buffers[i].port == port) {
            return plan->buffers[i].tensor;
        }
    }
    return -1;
}
