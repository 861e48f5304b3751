/* kernels_avx2.c: the kernels for one instruction set; cmake/simd.cmake gives the flags by the file's
 * name. */
#define KERNELS_NAME "avx2"
#define KERNELS      neb__cpu_kernels_avx2
#include "device/cpu/kernels_body.h"
