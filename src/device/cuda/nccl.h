/* nccl.h: the part of NCCL's interface that is used here, written out so that building needs no header of it.
 * NCCL keeps these stable; a config says by its size and version which fields it has. */
#ifndef NEB_CUDA_NCCL_H
#define NEB_CUDA_NCCL_H

#include "cuda.h"

#include <limits.h>

typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[128];
} ncclUniqueId;
typedef int ncclResult_t;

enum { ncclSuccess = 0, ncclInvalidUsage = 5, ncclRemoteError = 6, ncclInProgress = 7 };
enum { ncclInt8 = 0, ncclInt32 = 2, ncclFloat32 = 7, ncclBfloat16 = 9 };
enum { ncclSum = 0 };

/* The fields of version 2.18. */
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
    int splitShare;
} ncclConfig_t;

#define NEB_NCCL_FUNCTIONS(X)                                                                \
    X(ncclGetVersion, (int *))                                                               \
    X(ncclGetUniqueId, (ncclUniqueId *))                                                     \
    X(ncclCommInitRankConfig, (ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *))        \
    X(ncclCommGetAsyncError, (ncclComm_t, ncclResult_t *))                                   \
    X(ncclCommFinalize, (ncclComm_t))                                                        \
    X(ncclCommDestroy, (ncclComm_t))                                                         \
    X(ncclCommAbort, (ncclComm_t))                                                           \
    X(ncclGroupStart, (void))                                                                \
    X(ncclGroupEnd, (void))                                                                  \
    X(ncclAllReduce, (const void *, void *, size_t, int, int, ncclComm_t, cudaStream_t))     \
    X(ncclReduce, (const void *, void *, size_t, int, int, int, ncclComm_t, cudaStream_t))   \
    X(ncclReduceScatter, (const void *, void *, size_t, int, int, ncclComm_t, cudaStream_t)) \
    X(ncclAllGather, (const void *, void *, size_t, int, ncclComm_t, cudaStream_t))          \
    X(ncclBroadcast, (const void *, void *, size_t, int, int, ncclComm_t, cudaStream_t))     \
    X(ncclSend, (const void *, size_t, int, int, ncclComm_t, cudaStream_t))                  \
    X(ncclRecv, (void *, size_t, int, int, ncclComm_t, cudaStream_t))

struct neb_nccl_api {
    void *library;
    int version; /* 23007 is 2.30.7 */
    const char *(*ncclGetErrorString)(ncclResult_t);
    const char *(*ncclGetLastError)(ncclComm_t);
#define NEB__X(name, args) ncclResult_t(*name) args;
    NEB_NCCL_FUNCTIONS(NEB__X)
#undef NEB__X
};

/* Opens the library once a process. NEB_ERR_NOTFOUND, without a message: there is none. */
neb_status neb__nccl_load(struct neb_cuda *dev, const struct neb_nccl_api **out);

#endif
