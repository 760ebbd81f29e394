/* activation_avx2.c - activations, 8 elements at a time. */
#include "cpu/isa.h"

#if OCT_X86

#include "cpu/activation_loop.h"
#include "cpu/avx2.h"

OCT_AVX2 static void activate__avx2(const oct_act_call *call) {
    oct_activate_loop(call);
}

OCT_AVX2 static void activate_grad__avx2(const oct_act_call *call) {
    oct_activate_grad_loop(call);
}

void oct_activation__avx2(oct_table *table) {
    table->kernels.activate = activate__avx2;
    table->kernels.activate_grad = activate_grad__avx2;
}

#endif
