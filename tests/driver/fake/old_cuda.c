/* old_cuda.c - a driver from before most of its functions. */

__attribute__((visibility("default"))) int cuInit(unsigned flags);

int cuInit(unsigned flags) {
    return (int)flags;
}
