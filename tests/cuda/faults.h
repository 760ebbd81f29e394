/* faults.h - calls of CUDA's libraries and allocations that fail once, by count.
 *
 * A program that is linked with this finds every function of the driver, NVRTC and cuBLASLt
 * behind one that counts, and so are the allocations of the library and of its tests. */
#ifndef OCTET_TEST_CUDA_FAULTS_H
#define OCTET_TEST_CUDA_FAULTS_H

#ifdef __cplusplus
extern "C" {
#endif

enum { FAULT_CALLS = 1, FAULT_MEMORY = 2 };

/* From now on calls of these kinds are counted, and number `at` fails; 0: none does. */
void faults_begin(int kinds, long at);
/* No longer; gives how many there were. */
long faults_end(void);
/* What failed: "cuModuleLoadData", "malloc"; NULL: nothing did. */
const char *faults_hit(void);
/* Contexts, modules, streams, graphs, programs, handles and memory that were made and are
 * there yet. Memory counts while calls are counted. */
long faults_alive(void);

#ifdef __cplusplus
}
#endif

#endif
