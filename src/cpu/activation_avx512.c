/* activation_avx512.c - activations, 16 elements at a time. */
#include "cpu/isa.h"

#if OCT_X86

#include "cpu/activation_loop.h"
#include "cpu/avx512.h"

OCT_AVX512 static void activate__avx512(const oct_act_call *call) {
    oct_activate_loop(call);
}

OCT_AVX512 static void activate_grad__avx512(const oct_act_call *call) {
    oct_activate_grad_loop(call);
}

void oct_activation__avx512(oct_table *table) {
    table->kernels.activate = activate__avx512;
    table->kernels.activate_grad = activate_grad__avx512;
}

#endif
