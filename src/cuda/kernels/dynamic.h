/* dynamic.h - the dynamic shared memory of a block. */
#ifndef OCT_CUDA_KERNELS_DYNAMIC_H
#define OCT_CUDA_KERNELS_DYNAMIC_H

/* As `name`, aligned for the copy engine. Where kernels are emulated, that defines it. */
#ifndef OCTET_EMULATED
#define OCT_DYNAMIC_SHARED(type, name)                                                         \
    extern __shared__ __align__(1024) unsigned char oct_dynamic_shared[];                      \
    type *const name = reinterpret_cast<type *>(oct_dynamic_shared)
#endif

#endif
