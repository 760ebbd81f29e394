/* stdbool.h - bool, which the run-time compiler's language has already. */
#ifndef OCT_KERNELS_STDBOOL_H
#define OCT_KERNELS_STDBOOL_H

#define __bool_true_false_are_defined 1

#endif
