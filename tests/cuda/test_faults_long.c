/* test_faults_long.c - as test_faults.c, every one of the calls. */
#define STRIDE 1
#include "test_faults.c"
