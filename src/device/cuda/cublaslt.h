/* cublaslt.h: cuBLASLt, found at run time. On a machine without it the plug-in must still load, so that it
 * can say what is missing. */
#ifndef NEB_DEVICE_CUDA_CUBLASLT_H
#define NEB_DEVICE_CUDA_CUBLASLT_H

#include "cuda.h"

#include <cublasLt.h>

/* clang-format off */
#define NEB_LT_FUNCTIONS(X) \
    X(cublasLtCreate) \
    X(cublasLtDestroy) \
    X(cublasLtMatmul) \
    X(cublasLtMatmulAlgoGetHeuristic) \
    X(cublasLtMatmulDescCreate) \
    X(cublasLtMatmulDescDestroy) \
    X(cublasLtMatmulDescSetAttribute) \
    X(cublasLtMatrixLayoutCreate) \
    X(cublasLtMatrixLayoutDestroy) \
    X(cublasLtMatrixLayoutSetAttribute) \
    X(cublasLtMatmulPreferenceCreate) \
    X(cublasLtMatmulPreferenceDestroy) \
    X(cublasLtMatmulPreferenceSetAttribute) \
    X(cublasLtGetStatusString)
/* clang-format on */

struct neb_lt_api {
    void *library;
#define NEB__X(name) decltype(&::name) name;
    NEB_LT_FUNCTIONS(NEB__X)
#undef NEB__X
};

neb_status neb__lt_load(struct neb_cuda *dev, struct neb_lt_api *out);
void neb__lt_unload(struct neb_lt_api *api);

#endif
