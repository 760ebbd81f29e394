/* emulate_cublaslt.cpp - cuBLASLt, as far as the library uses it, by its documentation.
 *
 * Descriptors lie in the caller's opaque memory. A product is computed in double from what they
 * say, and refused where the documentation does. Device memory is the process's. */
#include "cuda/api.h"
#include "emulate_launch.h"
#include "format/bf16.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/e5m2.h"
#include "format/e8m0.h"
#include "format/f16.h"

#include <atomic>
#include <mutex>
#include <new>
#include <set>
#include <tuple>

#define X(result, name, parameters) extern "C" result name parameters;
OCT_CUBLASLT_CALLS(X)
#undef X

namespace {

constexpr int OK = 0, INVALID = 7, NOT_SUPPORTED = 15;
enum { R_32F = 0, R_16F = 2, R_16BF = 14, E4M3 = 28, E5M2 = 29, E2M1 = 33 };
enum { SCALAR = 0, VEC16 = 1, VEC32 = 2, VEC128 = 4, BLK128 = 5 };

/* Attributes by their numbers in cublasLt.h. */
struct operation {
    int32_t compute, scale_type, device_pointers, op_a, op_b, bias_type, mode_a, mode_b;
    uint32_t epilogue;
    int8_t fast;
    const void *bias, *scale_a, *scale_b;
};

struct layout {
    int32_t type;
    uint64_t rows, cols;
    int64_t ld;
};

struct preference {
    uint64_t workspace;
    uint32_t align[4];
    uint32_t reductions; /* bit 1: in fp32; the others: in d's own type */
};

struct result {
    uint64_t algo[8];
    size_t workspace;
    int32_t state;
    float waves;
    int32_t reserved[4];
};

static_assert(sizeof(operation) <= 256 && sizeof(layout) <= 64 && sizeof(preference) <= 64, "");

const char handle_object = 0;
std::atomic<int> matmuls, descriptors, strict_loads, matmul_status;
size_t library_version = 130002;
std::atomic<uint64_t> least_workspace;
std::atomic<uint32_t> least_boundary;
std::atomic<uint64_t> algorithm;

template <class T> bool take(T &to, const void *value, size_t bytes) {
    if (bytes != sizeof to) {
        return false;
    }
    memcpy(&to, value, bytes);
    return true;
}

bool is_fp8(int type) {
    return type == E4M3 || type == E5M2;
}

int64_t round_up(int64_t n, int64_t by) {
    return (n + by - 1) / by * by;
}

/* Element `at` of a column-major matrix; two FP4 share a byte. */
double element(const void *base, int64_t at, int type) {
    const uint8_t *bytes = static_cast<const uint8_t *>(base);
    uint16_t half;
    switch (type) {
    case R_32F:
        return static_cast<double>(static_cast<const float *>(base)[at]);
    case R_16F:
    case R_16BF:
        memcpy(&half, bytes + 2 * at, 2);
        return type == R_16F ? oct_f16_decode(half) : oct_bf16_decode(half);
    case E4M3:
        return oct_e4m3_decode(bytes[at]);
    case E5M2:
        return oct_e5m2_decode(bytes[at]);
    default:
        return oct_e2m1_decode(static_cast<uint8_t>(bytes[at / 2] >> at % 2 * 4));
    }
}

void store(void *base, int64_t at, int type, double value) {
    float rounded = static_cast<float>(value);
    if (type == R_32F) {
        static_cast<float *>(base)[at] = rounded;
    } else {
        static_cast<uint16_t *>(base)[at] =
            type == R_16F ? oct_f16_encode(rounded) : oct_bf16_encode(rounded);
    }
}

/* One operand of the product: element (outer, p) with its scale. */
struct operand {
    const void *data, *scale;
    int64_t outer, k, ld;
    int type, mode;
    bool across; /* stored outer x k, else k x outer */
    bool scaled;

    int64_t swizzled(int64_t line, int64_t block, int64_t length) const {
        int64_t tiles = (k + 4 * length - 1) / (4 * length);
        return (line / 128 * tiles + block / 4) * 512 + line % 32 * 16 + line % 128 / 32 * 4 +
               block % 4;
    }

    double factor(int64_t i, int64_t p) const {
        const float *floats = static_cast<const float *>(scale);
        const uint8_t *bytes = static_cast<const uint8_t *>(scale);
        switch (scaled ? mode : -1) {
        case SCALAR:
            return *floats;
        case VEC16:
            return oct_e4m3_decode(bytes[swizzled(i, p / 16, 16)]);
        case VEC32:
            return oct_e8m0_decode(bytes[swizzled(i, p / 32, 32)]);
        case VEC128:
            return floats[p / 128 * outer + i];
        case BLK128:
            return floats[i / 128 * round_up((k + 127) / 128, 4) + p / 128];
        default:
            return 1.0;
        }
    }

    double at(int64_t i, int64_t p) const {
        return element(data, across ? p * ld + i : i * ld + p, type) * factor(i, p);
    }
};

/* A product's descriptors, checked. */
struct matmul {
    operation op;
    layout a, b, d;

    int64_t k() const {
        return static_cast<int64_t>(op.op_a ? a.rows : a.cols);
    }

    bool shapes_agree() const {
        uint64_t m = op.op_a ? a.cols : a.rows, n = op.op_b ? b.rows : b.cols;
        uint64_t depth = op.op_b ? b.cols : b.rows;
        auto tall = [](const layout &l) { return l.ld >= static_cast<int64_t>(l.rows); };
        return m == d.rows && n == d.cols && static_cast<int64_t>(depth) == k() && tall(a) &&
               tall(b) && tall(d);
    }

    /* The table of types: operands, result, bias. */
    bool types_agree() const {
        bool fp8 = is_fp8(a.type) && is_fp8(b.type) && !(a.type == E5M2 && b.type == E5M2);
        bool narrow = fp8 || (a.type == E2M1 && b.type == E2M1);
        bool plain = a.type == b.type &&
                     (a.type == R_32F || a.type == R_16F || a.type == R_16BF) &&
                     (d.type == R_32F || d.type == a.type);
        bool result = d.type == R_32F || d.type == R_16F || d.type == R_16BF;
        int bias = narrow && d.type == R_32F ? R_16BF : d.type;
        bool bias_right = op.epilogue == 1 || (op.epilogue == 4 && op.bias_type == bias);
        return op.compute == 68 && op.scale_type == R_32F && ((narrow && result) || plain) &&
               bias_right;
    }

    bool scales_agree() const {
        bool blocks = (op.mode_a == VEC128 || op.mode_a == BLK128) &&
                      (op.mode_b == VEC128 || op.mode_b == BLK128) &&
                      !(op.mode_a == BLK128 && op.mode_b == BLK128);
        bool pointers = op.scale_a && op.scale_b;
        if (a.type == E2M1) {
            return pointers && op.mode_a == VEC16 && op.mode_b == VEC16;
        }
        if (is_fp8(a.type)) {
            return pointers && (blocks || (op.mode_a == op.mode_b && op.mode_a != VEC16));
        }
        return !op.scale_a && !op.scale_b;
    }

    /* FP8 and FP4 want whole 16 bytes, of leading dimensions and of what is stored one after
     * the other, D's too; FP4 and 128-blocks rows along the product, on any GPU that takes
     * them. */
    bool aligned() const {
        int64_t whole = a.type == E2M1 ? 32 : 16, d_whole = d.type == R_32F ? 4 : 8;
        bool along = op.op_a == 1 && op.op_b == 0;
        auto fits = [](const layout &l, int64_t by) {
            return l.ld % by == 0 && static_cast<int64_t>(l.rows) % by == 0;
        };
        return !(is_fp8(a.type) || a.type == E2M1) ||
               (fits(a, whole) && fits(b, whole) && fits(d, d_whole) && blocks_fit() &&
                (along || op.mode_a == VEC32 || op.mode_a == SCALAR));
    }

    /* Outer indices of 128-blocks come in eights. */
    bool blocks_fit() const {
        bool blocks = op.mode_a == VEC128 || op.mode_a == BLK128;
        return !blocks || (d.rows % 8 == 0 && d.cols % 8 == 0);
    }

    int check() const {
        return !shapes_agree()                                ? INVALID
               : types_agree() && scales_agree() && aligned() ? OK
                                                              : NOT_SUPPORTED;
    }
};

matmul matmul_of(void *op, void *a, void *b, void *d) {
    return {*static_cast<operation *>(op), *static_cast<layout *>(a), *static_cast<layout *>(b),
            *static_cast<layout *>(d)};
}

/* A kernel is loaded when it is first launched. Here each shape has one of its own. */
void load_kernel(const matmul &it, uint64_t algo) {
    static std::mutex lock;
    static std::set<std::tuple<uint64_t, uint64_t, int64_t, int, int, int, uint64_t>> loaded;
    std::lock_guard<std::mutex> guard(lock);
    bool fresh =
        loaded.insert({it.d.rows, it.d.cols, it.k(), it.a.type, it.d.type, it.op.mode_b, algo})
            .second;
    strict_loads += fresh && !emulated_is_relaxed();
}

/* The library may write any of its workspace, if there is one; here it writes both ends. */
void spoil(void *workspace, size_t bytes) {
    size_t end = bytes < 4096 ? bytes : 4096;
    if (!bytes) {
        return;
    }
    memset(workspace, 0xff, end);
    memset(static_cast<char *>(workspace) + bytes - end, 0xff, end);
}

bool on_boundary(const void *at, uintptr_t bytes) {
    return reinterpret_cast<uintptr_t>(at) % bytes == 0;
}

double rounded(double x, int32_t type) {
    uint64_t place = 0;
    store(&place, 0, type, x);
    return element(&place, 0, type);
}

} // namespace

int emulated_matmuls(void) {
    return matmuls;
}

int emulated_descriptors(void) {
    return descriptors;
}

int emulated_strict_loads(void) {
    return strict_loads;
}

void emulated_least_workspace(uint64_t bytes) {
    least_workspace = bytes;
}

void emulated_least_boundary(uint32_t bytes) {
    least_boundary = bytes;
}

void emulated_matmul_status(int status) {
    matmul_status = status;
}

uint64_t emulated_algorithm(void) {
    return algorithm;
}

void emulated_library_version(size_t version) {
    library_version = version;
}

size_t cublasLtGetVersion(void) {
    return library_version;
}

const char *cublasLtGetStatusString(int) {
    return "emulated";
}

int cublasLtCreate(void **handle) {
    *handle = const_cast<char *>(&handle_object);
    return OK;
}

int cublasLtDestroy(void *handle) {
    return handle == &handle_object ? OK : INVALID;
}

int cublasLtMatmulDescInit_internal(void *to, size_t bytes, int compute, int scale_type) {
    if (bytes != 256) {
        return INVALID;
    }
    operation *op = new (to) operation{};
    descriptors++;
    op->compute = compute;
    op->scale_type = scale_type;
    op->epilogue = 1;
    op->bias_type = -1;
    return OK;
}

int cublasLtMatmulDescSetAttribute(void *to, int name, const void *value, size_t bytes) {
    operation *op = static_cast<operation *>(to);
    switch (name) {
    case 2:
        return take(op->device_pointers, value, bytes) ? OK : INVALID;
    case 3:
        return take(op->op_a, value, bytes) ? OK : INVALID;
    case 4:
        return take(op->op_b, value, bytes) ? OK : INVALID;
    case 7:
        return take(op->epilogue, value, bytes) ? OK : INVALID;
    case 8:
        return take(op->bias, value, bytes) ? OK : INVALID;
    case 17:
        return take(op->scale_a, value, bytes) ? OK : INVALID;
    case 18:
        return take(op->scale_b, value, bytes) ? OK : INVALID;
    case 25:
        return take(op->fast, value, bytes) ? OK : INVALID;
    case 26:
        return take(op->bias_type, value, bytes) ? OK : INVALID;
    case 31:
        return take(op->mode_a, value, bytes) ? OK : INVALID;
    case 32:
        return take(op->mode_b, value, bytes) ? OK : INVALID;
    default:
        return INVALID;
    }
}

int cublasLtMatrixLayoutInit_internal(void *to, size_t bytes, int type, uint64_t rows,
                                      uint64_t cols, int64_t ld) {
    if (bytes != 64) {
        return INVALID;
    }
    new (to) layout{type, rows, cols, ld};
    descriptors++;
    return OK;
}

int cublasLtMatrixLayoutSetAttribute(void *, int, const void *, size_t) {
    return INVALID;
}

int cublasLtMatmulPreferenceInit_internal(void *to, size_t bytes) {
    if (bytes != 64) {
        return INVALID;
    }
    new (to) preference{0, {256, 256, 256, 256}, 7};
    return OK;
}

int cublasLtMatmulPreferenceSetAttribute(void *to, int name, const void *value, size_t bytes) {
    preference *p = static_cast<preference *>(to);
    if (name == 1) {
        return take(p->workspace, value, bytes) ? OK : INVALID;
    }
    if (name == 3) {
        return take(p->reductions, value, bytes) ? OK : INVALID;
    }
    bool align = name >= 5 && name <= 8;
    return align && take(p->align[name - 5], value, bytes) ? OK : INVALID;
}

/* Three candidates, told apart by their first word; the alignments that were promised are kept
 * in the next ones, and whether halves of a sum may be rounded to d's type. */
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *op, void *a, void *b, void *c, void *d,
                                   void *with, int wanted, void *out, int *count) {
    const preference *p = static_cast<const preference *>(with);
    matmul it = matmul_of(op, a, b, d);
    int status = c == d && handle == &handle_object ? it.check() : INVALID;
    bool narrow = it.a.type >= E4M3;
    if (!status && narrow && (p->align[0] < 16 || p->align[1] < 16 || p->align[3] < 16)) {
        status = NOT_SUPPORTED;
    }
    bool roomy = p->workspace >= least_workspace && p->align[1] >= least_boundary;
    *count = 0;
    for (; !status && roomy && *count < wanted && *count < 3; ++*count) {
        result *r = static_cast<result *>(out) + *count;
        *r = {};
        r->algo[0] = 0xa160 + static_cast<uint64_t>(*count);
        r->algo[1] = p->align[0];
        r->algo[2] = p->align[1];
        r->algo[3] = p->align[3];
        r->algo[4] = p->reductions != 2;
        r->workspace = static_cast<size_t>(p->workspace);
    }
    return status;
}

namespace {

/* A product, from where its operands are. */
struct product {
    matmul it;
    const float *alpha, *beta; /* in device memory; NULL: these */
    float by, old;
    const void *a, *b;
    void *d;
    uint64_t splits; /* the sum is rounded to d's type half way */
};

void multiply(const product &p) {
    const matmul &it = p.it;
    const operation &o = it.op;
    int64_t m = static_cast<int64_t>(it.d.rows), n = static_cast<int64_t>(it.d.cols);
    bool scaled = is_fp8(it.a.type) || it.a.type == E2M1;
    operand x = {p.a, o.scale_a, m, it.k(), it.a.ld, it.a.type, o.mode_a, o.op_a == 0, scaled};
    operand y = {p.b, o.scale_b, n, it.k(), it.b.ld, it.b.type, o.mode_b, o.op_b == 1, scaled};
    double by = p.alpha ? *p.alpha : p.by, old = p.beta ? *p.beta : p.old;
    for (int64_t j = 0; j < n; j++) {
        for (int64_t i = 0; i < m; i++) {
            double sum = 0.0;
            for (int64_t l = 0; l < x.k; l++) {
                sum += x.at(i, l) * y.at(j, l);
                sum = p.splits && l == x.k / 2 ? rounded(sum, it.d.type) : sum;
            }
            int64_t at = j * it.d.ld + i;
            sum *= by;
            sum += old != 0.0 ? old * element(p.d, at, it.d.type) : 0.0;
            sum += o.epilogue == 4 ? element(o.bias, i, o.bias_type) : 0.0;
            store(p.d, at, it.d.type, sum);
        }
    }
}

} // namespace

int cublasLtMatmul(void *handle, void *op, const void *alpha, const void *a, void *a_layout,
                   const void *b, void *b_layout, const void *beta, const void *c,
                   void *c_layout, void *d, void *d_layout, const void *algo, void *workspace,
                   size_t workspace_bytes, void *stream) {
    const uint64_t *kept = static_cast<const uint64_t *>(algo);
    matmul it = matmul_of(op, a_layout, b_layout, d_layout);
    int status = matmul_status ? matmul_status.load() : it.check();
    bool blocks = it.op.mode_a == VEC128 || it.op.mode_a == BLK128;
    uintptr_t scale = blocks ? 16 : 1;
    bool promised = kept[0] >> 4 == 0xa16 && on_boundary(a, kept[1]) &&
                    on_boundary(b, kept[2]) && on_boundary(d, kept[3]) &&
                    on_boundary(it.op.scale_a, scale) && on_boundary(it.op.scale_b, scale);
    if (status || handle != &handle_object || c != d || c_layout != d_layout || !promised ||
        (workspace_bytes && !on_boundary(workspace, 256))) {
        return status ? status : INVALID;
    }
    load_kernel(it, kept[0]);
    bool there = it.op.device_pointers;
    const float *by = static_cast<const float *>(alpha),
                *old = static_cast<const float *>(beta);
    const product todo = {it,
                          there ? by : nullptr,
                          there ? old : nullptr,
                          there ? 0 : *by,
                          there ? 0 : *old,
                          a,
                          b,
                          d,
                          kept[4]};
    const uint64_t word = kept[0];
    emulated_do(stream, OCT_CU_KERNEL_NODE, [=] {
        emulated_finish();
        spoil(workspace, workspace_bytes);
        matmuls++;
        algorithm = word;
        multiply(todo);
    });
    return OK;
}
