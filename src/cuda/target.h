/* target.h - GPUs as planners see them, and what differs between their architectures.
 *
 * An architecture is 10 * major + minor of the compute capability; 0 is one that nobody knows.
 * All rules about such numbers are in target.c. */
#ifndef OCT_CUDA_TARGET_H
#define OCT_CUDA_TARGET_H

#include "core/target.h"

extern const oct_target oct_cuda_target;

/* Whether tensor cores take the scheme's bytes and scales as they are. */
bool oct_arch_multiplies(int arch, octet_scheme scheme);
/* Whether FP8 tensor cores read operands that lie across the product, too. */
bool oct_arch_reads_across(int arch);
/* Whether cuBLASLt is slower without a workspace, where neither operand has scales. */
bool oct_arch_wants_workspace(int arch);
/* The nearest lower architecture that multiplies the same but for 128-blocks; itself where it
 * does not multiply them. */
int oct_arch_without_blocks(int arch);

#define OCT_ARCH_LEAST 80 /* that the kernels are made for */
/* Whether a kernel may start before the one in front of it has ended. */
bool oct_arch_overtakes(int arch);
/* Whether NVRTC knows instructions that this architecture alone has: "sm_90a". */
bool oct_arch_has_own(int arch);

#endif
