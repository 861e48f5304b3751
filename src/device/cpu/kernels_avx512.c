/* kernels_avx512.c: the kernels for one instruction set; cmake/simd.cmake gives the flags by the file's
 * name. */
#define KERNELS_NAME "avx512"
#define KERNELS      neb__cpu_kernels_avx512
#include "device/cpu/kernels_body.h"
