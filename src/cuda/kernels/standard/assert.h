/* assert.h - static_assert, a word of the run-time compiler's language already. */
#ifndef OCT_KERNELS_ASSERT_H
#define OCT_KERNELS_ASSERT_H

#endif
