/* kernels_avx512.c: kernels_body.h compiled for machines with AVX512. kernels_choose.c decides at run
 * time. */
#if defined(__x86_64__)
#define NEB__KERNELS      neb__codec_kernels_avx512
#define NEB__KERNELS_NAME "avx512"
#include "codec/kernels_body.h"
#else
typedef int neb__no_avx512; /* a translation unit must declare something */
#endif
