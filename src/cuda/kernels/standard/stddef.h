/* stddef.h - sizes and offsets, for the run-time compiler, which has no system headers. */
#ifndef OCT_KERNELS_STDDEF_H
#define OCT_KERNELS_STDDEF_H

typedef decltype(sizeof(0)) size_t;
typedef signed long ptrdiff_t;

#ifndef NULL
#define NULL nullptr
#endif
#define offsetof(type, member) __builtin_offsetof(type, member)

#endif
