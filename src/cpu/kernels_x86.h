/* kernels_x86.h - the kernels that exist for x86, named <op>__<isa>. */
#ifndef OCT_CPU_KERNELS_X86_H
#define OCT_CPU_KERNELS_X86_H

#include "cpu/kernels.h"

/* scan_avx2.c */
uint32_t oct_absmax__avx2(const oct_tile *x);
void oct_absmax_columns__avx2(uint32_t *out, const oct_tile *x);
void oct_absmax_blocks__avx2(uint32_t *out, const oct_tile *x, int64_t block);
void oct_sum_columns__avx2(float *out, const oct_tile *x);

/* encode_avx2.c */
void oct_encode__avx2(const oct_bytes *out, const oct_tile *x, const oct_factors *by,
                      octet_dtype format);
void oct_fp8_scales__avx2(float *inverses, float *factors, const uint32_t *amaxes,
                          int64_t count, const oct_scale_rule *rule);
void oct_mx_scales__avx2(uint8_t *codes, float *factors, const uint32_t *amaxes, int64_t count,
                         octet_dtype format);
void oct_nv_scales__avx2(uint8_t *codes, float *factors, const uint32_t *amaxes, int64_t count,
                         const oct_nv_global *global);

/* stochastic_avx2.c */
void oct_encode_stochastic__avx2(const oct_bytes *out, const oct_tile *x, const oct_factors *by,
                                 const oct_bytes *random);
void oct_random__avx2(uint8_t *out, const oct_random *which, int64_t count);

/* decode_avx2.c */
void oct_decode__avx2(const oct_tile *out, const oct_bytes *codes, const oct_factors *by,
                      octet_dtype format);
void oct_widen__avx2(float *out, const void *x, int64_t count, octet_dtype dtype);
void oct_narrow__avx2(void *out, const float *x, int64_t count, octet_dtype dtype);
void oct_hadamard__avx2(float *out, const oct_tile *x, uint32_t signs);

/* scan_avx512.c */
uint32_t oct_absmax__avx512(const oct_tile *x);
void oct_absmax_columns__avx512(uint32_t *out, const oct_tile *x);
void oct_absmax_blocks__avx512(uint32_t *out, const oct_tile *x, int64_t block);
void oct_sum_columns__avx512(float *out, const oct_tile *x);

/* encode_avx512.c */
void oct_encode__avx512(const oct_bytes *out, const oct_tile *x, const oct_factors *by,
                        octet_dtype format);
void oct_fp8_scales__avx512(float *inverses, float *factors, const uint32_t *amaxes,
                            int64_t count, const oct_scale_rule *rule);
void oct_mx_scales__avx512(uint8_t *codes, float *factors, const uint32_t *amaxes,
                           int64_t count, octet_dtype format);
void oct_nv_scales__avx512(uint8_t *codes, float *factors, const uint32_t *amaxes,
                           int64_t count, const oct_nv_global *global);

/* stochastic_avx512.c */
void oct_encode_stochastic__avx512(const oct_bytes *out, const oct_tile *x,
                                   const oct_factors *by, const oct_bytes *random);
void oct_random__avx512(uint8_t *out, const oct_random *which, int64_t count);

/* decode_avx512.c */
void oct_decode__avx512(const oct_tile *out, const oct_bytes *codes, const oct_factors *by,
                        octet_dtype format);
void oct_widen__avx512(float *out, const void *x, int64_t count, octet_dtype dtype);
void oct_narrow__avx512(void *out, const float *x, int64_t count, octet_dtype dtype);
void oct_hadamard__avx512(float *out, const oct_tile *x, uint32_t signs);

/* bytes_avx512.c */
void oct_transpose__avx512(const oct_bytes *out, const oct_bytes *x, int64_t rows,
                           int64_t cols);
void oct_transpose_away__avx512(const oct_bytes *out, const oct_bytes *x, int64_t rows,
                                int64_t cols);

/* bytes_avx2.c */
void oct_transpose__avx2(const oct_bytes *out, const oct_bytes *x, int64_t rows, int64_t cols);
void oct_pack__avx2(uint8_t *out, const uint8_t *x, int64_t count);
void oct_pack_rows__avx2(uint8_t *out, const uint8_t *low, const uint8_t *high, int64_t count);
void oct_unpack__avx2(uint8_t *out, const uint8_t *x, int64_t count);

#endif
