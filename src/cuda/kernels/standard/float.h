/* float.h - the limits of float, for the run-time compiler, which has no system headers. */
#ifndef OCT_KERNELS_FLOAT_H
#define OCT_KERNELS_FLOAT_H

#define FLT_MAX 3.402823466385288598e+38f
#define FLT_MIN 1.175494350822287508e-38f
#define FLT_TRUE_MIN 1.401298464324817071e-45f
#define FLT_EPSILON 1.1920928955078125e-07f
#define FLT_MANT_DIG 24

#endif
