/* print.c - a GPU, its libraries and its cache in one line. */
#include "core/text.h"
#include "cuda/open.h"

static void write_version(oct_writer *out, const char *title, int major, int minor) {
    oct_write(out, title);
    oct_write_i64(out, major);
    oct_write(out, ".");
    oct_write_i64(out, minor);
}

static void write_compiler(oct_writer *out, octet_cuda *cuda) {
    const oct_compiler *compiler;
    octet_error err;
    if (oct_cuda_compiler(&compiler, cuda, &err)) {
        oct_write(out, "; ");
        oct_write(out, err.text);
    } else {
        write_version(out, ", NVRTC ", compiler->major, compiler->minor);
    }
}

static void write_cublaslt(oct_writer *out, octet_cuda *cuda) {
    const oct_cublaslt *cublaslt;
    octet_error err;
    if (oct_cuda_cublaslt(&cublaslt, cuda, &err)) {
        oct_write(out, "; ");
        oct_write(out, err.text);
        return;
    }
    int version = (int)cublaslt->cublasLtGetVersion(); /* 130002 is 13.0.2 */
    write_version(out, ", cuBLASLt ", version / 10000, version / 100 % 100);
    oct_write(out, ".");
    oct_write_i64(out, version % 100);
}

size_t octet_cuda_print(char *text, size_t size, octet_cuda *cuda) {
    oct_writer out = oct_writer_start(text, size);
    if (!cuda) {
        return 0;
    }
    const oct_cuda_facts *facts = &cuda->facts;
    oct_write(&out, facts->name);
    write_version(&out, ", compute capability ", facts->arch / 10, facts->arch % 10);
    oct_write(&out, ", ");
    oct_write_i64(&out, facts->processors);
    oct_write(&out, " processors");
    write_version(&out, ", driver for CUDA ", cuda->driver_version / 1000,
                  cuda->driver_version / 10 % 100);
    write_compiler(&out, cuda);
    write_cublaslt(&out, cuda);
    oct_write(&out, cuda->cache ? ", kernels cached in " : ", kernels not cached");
    oct_write(&out, cuda->cache ? cuda->cache : "");
    return out.length;
}
