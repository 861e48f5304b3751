/* kernels_plain.c: the kernels for any machine: vectors of four floats, which every 64-bit processor has. */
#define KERNELS_NAME "plain"
#define KERNELS      neb__cpu_kernels_plain
#include "device/cpu/kernels_body.h"
