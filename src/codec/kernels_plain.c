/* kernels_plain.c: kernels_body.h compiled without flags. It runs anywhere. */
#define NEB__KERNELS      neb__codec_kernels_plain
#define NEB__KERNELS_NAME "plain"
#include "codec/kernels_body.h"
