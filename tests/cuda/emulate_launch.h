/* emulate_launch.h - runs an emulated kernel over a grid. */
#ifndef OCTET_TEST_CUDA_EMULATE_LAUNCH_H
#define OCTET_TEST_CUDA_EMULATE_LAUNCH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct emulated_launch {
    void *kernel; /* void (params) */
    uint32_t grid[3];
    uint32_t threads;
    uint32_t shared_bytes;
    const void *params;
    size_t params_bytes; /* a struct of at most 16 bytes has no floats */
    int overtakes;       /* it may begin before the launch in front of it has ended */
} emulated_launch;

/* The kernel of a module by name; NULL where there is none. */
void *emulated_kernel(const char *module, const char *name);
/* Returns when the last block has ended. One launch at a time; others wait. */
void emulated_run(const emulated_launch *launch);
/* From now on every second launch that may overtake does: it begins first, and the one in front
 * of it is done as a whole when a thread calls oct_after. 1: the second, the fourth and so on;
 * 2: the third, the fifth. 0, as at first: all is in order, and done when the call returns. */
void emulated_overtake(int on);
/* What has been overtaken is done; fills, copies and products come after it. */
void emulated_finish(void);
/* How many launches have begun before the one in front. */
int emulated_overtaken(void);
/* Accesses of threads to memory that nothing orders (emulate_watch.h): 1: the first
 * one ends the process; 2: they are counted; 0, as at first: nobody looks, which is faster.
 * False where kernels are compiled with a sanitizer: then nobody ever does. */
int emulated_watch(int how);
/* How many were found so far. */
int emulated_found(void);
/* How many kernels and fills have been launched so far. */
int emulated_launches(void);
int emulated_fills(void);
/* How many products cuBLASLt has done, and the first word of the last one's algorithm. */
int emulated_matmuls(void);
uint64_t emulated_algorithm(void);
/* How many of its descriptors have been made. */
int emulated_descriptors(void);
/* How many of its kernels were launched for the first time, and so loaded, while the thread's
 * captures were not relaxed; and whether they are. */
int emulated_strict_loads(void);
int emulated_is_relaxed(void);
/* From now on cuBLASLt proposes nothing to who has less; 0, as at first: to everyone. */
void emulated_least_workspace(uint64_t bytes);
/* The same for a B that does not lie on a boundary of so many bytes. */
void emulated_least_boundary(uint32_t bytes);
/* From now on cuBLASLt launches nothing and returns this; 0, as at first: it works. */
void emulated_matmul_status(int status);
/* What the library says it is: 130002 is 13.0.2, as from the beginning. */
void emulated_library_version(size_t version);

#ifdef __cplusplus
}

#include <functional>
/* Does the work, or keeps it where the stream is being captured; by CUgraphNodeType. */
void emulated_do(void *stream, int type, std::function<void()> work);
#endif

#endif
