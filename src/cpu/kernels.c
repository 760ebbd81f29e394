/* kernels.c - the table of kernels for each instruction set: the reference, overridden. */
#include "cpu/kernels.h"

#include "cpu/isa.h"
#include "cpu/kernels_x86.h"

#if OCT_X86
const oct_kernels oct_kernels_avx2 = {
    .absmax = oct_absmax__avx2,
    .absmax_columns = oct_absmax_columns__avx2,
    .absmax_blocks = oct_absmax_blocks__avx2,
    .encode = oct_encode__avx2,
    .encode_stochastic = oct_encode_stochastic__avx2,
    .random = oct_random__avx2,
    .decode = oct_decode__avx2,
    .fp8_scales = oct_fp8_scales__avx2,
    .mx_scales = oct_mx_scales__avx2,
    .nv_scales = oct_nv_scales__avx2,
    .transpose = oct_transpose__avx2,
    .transpose_away = oct_transpose__avx2,
    .pack = oct_pack__avx2,
    .pack_rows = oct_pack_rows__avx2,
    .unpack = oct_unpack__avx2,
    .sum_columns = oct_sum_columns__avx2,
    .hadamard = oct_hadamard__avx2,
    .widen = oct_widen__avx2,
    .narrow = oct_narrow__avx2,
};

const oct_kernels oct_kernels_avx512 = {
    .absmax = oct_absmax__avx512,
    .absmax_columns = oct_absmax_columns__avx512,
    .absmax_blocks = oct_absmax_blocks__avx512,
    .encode = oct_encode__avx512,
    .encode_stochastic = oct_encode_stochastic__avx512,
    .random = oct_random__avx512,
    .decode = oct_decode__avx512,
    .fp8_scales = oct_fp8_scales__avx512,
    .mx_scales = oct_mx_scales__avx512,
    .nv_scales = oct_nv_scales__avx512,
    .transpose = oct_transpose__avx512,
    .transpose_away = oct_transpose_away__avx512,
    .pack = oct_pack__avx2,
    .pack_rows = oct_pack_rows__avx2,
    .unpack = oct_unpack__avx2,
    .sum_columns = oct_sum_columns__avx512,
    .hadamard = oct_hadamard__avx512,
    .widen = oct_widen__avx512,
    .narrow = oct_narrow__avx512,
};
#endif

const oct_kernels *oct_cpu_kernels(void) {
    switch (oct_cpu_isa()) {
#if OCT_X86
    case OCT_ISA_AVX2:
        return &oct_kernels_avx2;
    case OCT_ISA_AVX512:
    case OCT_ISA_AVX512BF16:
        return &oct_kernels_avx512;
#endif
    default:
        return &oct_kernels_reference;
    }
}
