/* matmul.cu: matrix products through cuBLASLt, the algorithm chosen once for each shape.
 *
 * A plan holds the descriptors and the algorithm for one combination of sizes, leading dimensions, types,
 * epilogue and alignment. The first call of a combination asks the heuristics for candidates and, when the
 * product is large enough to matter, times them into a spare output. So timing changes nothing that the
 * caller can see. A candidate is rejected, however fast it is, when its result differs from the first one's
 * by more than rounding or has unwritten values. There is no timing while a graph is recorded, nor under
 * `deterministic`, where the choice must not depend on a clock: the heuristics' first candidate is taken. A
 * plan made while recording is chosen anew by the next eager call. A combination without any candidate is
 * remembered as unsupported, so that callers can ask before they fuse. */
#include "kernel.cuh"
#include "cublaslt.h"

#include <stdlib.h>
#include <string.h>

#define LT_WORKSPACE ((size_t)64 << 20)
#define CANDIDATES   12
#define TUNE_FLOPS   2e8
#define HASH_SLOTS   1024
#define SAME         1e-2f /* largest difference of two algorithms' results, as a share of the norm */

/* Compared and hashed as bytes: cleared before it is filled. */
struct key {
    int64_t m, n, k, lda, ldb, ldd, batch, stride_a, stride_b, stride_d, ld_aux;
    int ta, tb, ab_type, d_type, epilogue, beta, bias, align_a, align_b, align_d;
};

struct plan {
    struct key key;
    struct plan *next;
    int usable, provisional;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    float micros; /* measured, or 0 */
};

struct neb_lt {
    struct neb_lt_api api;
    cublasLtHandle_t handle;
    void *work;
    struct plan *slot[HASH_SLOTS];
    cudaEvent_t begin, end;
};

neb_status neb__lt_open(struct neb_cuda *dev)
{
    struct neb_lt *lt = (struct neb_lt *)calloc(1, sizeof *lt);
    if (!lt) return neb__cuda_fail(dev, NEB_ERR_NOMEM, "cuda: out of host memory");
    dev->lt = lt;
    NEB_TRY(neb__lt_load(dev, &lt->api));
    NEB_TRY(neb__cuda_alloc(dev, LT_WORKSPACE, &lt->work));
    CUDA_TRY(dev, cudaEventCreate(&lt->begin));
    CUDA_TRY(dev, cudaEventCreate(&lt->end));
    cublasStatus_t s = lt->api.cublasLtCreate(&lt->handle);
    if (s != CUBLAS_STATUS_SUCCESS)
        return neb__cuda_fail(dev, NEB_ERR_DEVICE, "cuda: cuBLASLt cannot be initialised: %s",
                              lt->api.cublasLtGetStatusString(s));
    return NEB_OK;
}

static void plan_free(struct neb_lt *lt, struct plan *p)
{
    if (p->a) lt->api.cublasLtMatrixLayoutDestroy(p->a);
    if (p->b) lt->api.cublasLtMatrixLayoutDestroy(p->b);
    if (p->d) lt->api.cublasLtMatrixLayoutDestroy(p->d);
    if (p->op) lt->api.cublasLtMatmulDescDestroy(p->op);
    free(p);
}

void neb__lt_close(struct neb_cuda *dev)
{
    struct neb_lt *lt = dev->lt;
    if (!lt) return;
    for (int i = 0; i < HASH_SLOTS; i++)
        while (lt->slot[i]) {
            struct plan *p = lt->slot[i];
            lt->slot[i] = p->next;
            plan_free(lt, p);
        }
    if (lt->begin) cudaEventDestroy(lt->begin);
    if (lt->end) cudaEventDestroy(lt->end);
    if (lt->handle) lt->api.cublasLtDestroy(lt->handle);
    neb__lt_unload(&lt->api);
    free(lt);
    dev->lt = NULL;
}

static int alignment(const void *p, int64_t ld, size_t size)
{
    int a = 16;
    while (a > 1 && (((uintptr_t)p | (uintptr_t)(ld * size)) & (a - 1))) a /= 2;
    return a;
}

static struct key make_key(const struct neb_matmul *p)
{
    struct key k;
    size_t ab = neb__type_size(p->ab_type), d = neb__type_size(p->d_type);
    memset(&k, 0, sizeof k);
    k.m = p->m, k.n = p->n, k.k = p->k, k.lda = p->lda, k.ldb = p->ldb, k.ldd = p->ldd;
    k.batch = p->batch;
    if (p->batch > 1) k.stride_a = p->stride_a, k.stride_b = p->stride_b, k.stride_d = p->stride_d;
    k.ld_aux = p->aux ? p->ld_aux : 0;
    k.ta = p->ta, k.tb = p->tb, k.ab_type = p->ab_type, k.d_type = p->d_type, k.epilogue = p->epilogue;
    k.beta = p->beta != 0.f, k.bias = p->bias != NULL;
    k.align_a = alignment(p->a, p->lda, ab), k.align_b = alignment(p->b, p->ldb, ab);
    k.align_d = alignment(p->d, p->ldd, d);
    return k;
}

static unsigned hash(const struct key *k)
{
    const unsigned char *p = (const unsigned char *)k;
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < sizeof *k; i++) h = (h ^ p[i]) * 1099511628211u;
    return (unsigned)(h ^ h >> 32) % HASH_SLOTS;
}

static cudaDataType lt_type(int t)
{
    return t == NEB_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static cublasLtEpilogue_t lt_epilogue(int e, int bias)
{
    switch (e) {
    case NEB_EPI_BIAS: return CUBLASLT_EPILOGUE_BIAS;
    case NEB_EPI_GELU_AUX_BIAS: return bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case NEB_EPI_DGELU: return CUBLASLT_EPILOGUE_DGELU;
    case NEB_EPI_DGELU_BGRAD: return CUBLASLT_EPILOGUE_DGELU_BGRAD;
    case NEB_EPI_RELU_BIAS: return bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    }
    return CUBLASLT_EPILOGUE_DEFAULT;
}

#define LT_TRY(call)                                \
    do {                                            \
        cublasStatus_t s_ = (call);                 \
        if (s_ != CUBLAS_STATUS_SUCCESS) return s_; \
    } while (0)

static cublasStatus_t set_pointers(struct neb_lt *lt, struct plan *plan, const struct neb_matmul *p)
{
    if (p->bias)
        LT_TRY(lt->api.cublasLtMatmulDescSetAttribute(plan->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias,
                                                      sizeof p->bias));
    if (p->aux)
        LT_TRY(lt->api.cublasLtMatmulDescSetAttribute(plan->op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                                                      &p->aux, sizeof p->aux));
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t make_layout(struct neb_lt *lt, int type, int64_t rows, int64_t cols, int64_t ld,
                                  int64_t batch, int64_t stride, cublasLtMatrixLayout_t *out)
{
    LT_TRY(lt->api.cublasLtMatrixLayoutCreate(out, lt_type(type), (uint64_t)rows, (uint64_t)cols, ld));
    if (batch <= 1) return CUBLAS_STATUS_SUCCESS;
    int32_t count = (int32_t)batch;
    LT_TRY(lt->api.cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                    sizeof count));
    return lt->api.cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                    &stride, sizeof stride);
}

static cublasStatus_t describe(struct neb_cuda *dev, struct plan *plan, const struct neb_matmul *p)
{
    struct neb_lt *lt = dev->lt;
    const struct key *k = &plan->key;
    cublasComputeType_t compute =
        k->ab_type == NEB_F32 && dev->config.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasOperation_t ta = k->ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb = k->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = lt_epilogue(k->epilogue, k->bias);
    LT_TRY(lt->api.cublasLtMatmulDescCreate(&plan->op, compute, CUDA_R_32F));
    LT_TRY(lt->api.cublasLtMatmulDescSetAttribute(plan->op, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta));
    LT_TRY(lt->api.cublasLtMatmulDescSetAttribute(plan->op, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb));
    LT_TRY(lt->api.cublasLtMatmulDescSetAttribute(plan->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                                  sizeof epilogue));
    if (k->ld_aux)
        LT_TRY(lt->api.cublasLtMatmulDescSetAttribute(plan->op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
                                                      &k->ld_aux, sizeof k->ld_aux));
    LT_TRY(set_pointers(lt, plan, p));
    LT_TRY(make_layout(lt, k->ab_type, k->ta ? k->k : k->m, k->ta ? k->m : k->k, k->lda, k->batch,
                       k->stride_a, &plan->a));
    LT_TRY(make_layout(lt, k->ab_type, k->tb ? k->n : k->k, k->tb ? k->k : k->n, k->ldb, k->batch,
                       k->stride_b, &plan->b));
    return make_layout(lt, k->d_type, k->m, k->n, k->ldd, k->batch, k->stride_d, &plan->d);
}

static int candidates(struct neb_lt *lt, struct plan *plan, cublasLtMatmulHeuristicResult_t *out)
{
    cublasLtMatmulPreference_t pref = NULL;
    size_t work = LT_WORKSPACE;
    uint32_t a = plan->key.align_a, b = plan->key.align_b, d = plan->key.align_d;
    int n = 0;
    if (lt->api.cublasLtMatmulPreferenceCreate(&pref) != CUBLAS_STATUS_SUCCESS) return 0;
    auto set = [&](cublasLtMatmulPreferenceAttributes_t what, const void *value, size_t size) {
        lt->api.cublasLtMatmulPreferenceSetAttribute(pref, what, value, size);
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &work, sizeof work);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &d, sizeof d);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &d, sizeof d);
    if (lt->api.cublasLtMatmulAlgoGetHeuristic(lt->handle, plan->op, plan->a, plan->b, plan->d, plan->d, pref,
                                               CANDIDATES, out, &n) != CUBLAS_STATUS_SUCCESS)
        n = 0;
    lt->api.cublasLtMatmulPreferenceDestroy(pref);
    int usable = 0; /* the list may hold entries that are marked as not working */
    for (int i = 0; i < n; i++)
        if (out[i].state == CUBLAS_STATUS_SUCCESS && out[i].workspaceSize <= LT_WORKSPACE)
            out[usable++] = out[i];
    return usable;
}

static cublasStatus_t launch(struct neb_cuda *dev, struct plan *plan, const struct neb_matmul *p, void *d,
                             const cublasLtMatmulAlgo_t *algo)
{
    struct neb_lt *lt = dev->lt;
    return lt->api.cublasLtMatmul(lt->handle, plan->op, &p->alpha, p->a, plan->a, p->b, plan->b, &p->beta,
                                  p->d, plan->d, d, plan->d, algo, lt->work, LT_WORKSPACE, dev->stream);
}

/* Microseconds of one launch, or a huge number when the algorithm fails. */
static float time_algo(struct neb_cuda *dev, struct plan *plan, const struct neb_matmul *p, void *spare,
                       const cublasLtMatmulAlgo_t *algo)
{
    const int runs = 4;
    float ms = 0.f;
    if (launch(dev, plan, p, spare, algo) != CUBLAS_STATUS_SUCCESS) return 1e30f;
    cudaEventRecord(dev->lt->begin, dev->stream);
    for (int i = 0; i < runs; i++) launch(dev, plan, p, spare, algo);
    cudaEventRecord(dev->lt->end, dev->stream);
    if (cudaEventSynchronize(dev->lt->end) != cudaSuccess) return 1e30f;
    cudaEventElapsedTime(&ms, dev->lt->begin, dev->lt->end);
    return ms * 1000.f / runs;
}

/* A digest of a result, for comparison with another: its squared norm and SIGNS sums under random signs. The
 * difference of two such sums is, on average, as large as the difference of the two matrices. */
#define SIGNS 8
struct digest {
    float norm2, sum[SIGNS];
};

template <class T>
static __global__ void digest_kernel(const T *x, int64_t rows, int64_t cols, int64_t ld, int64_t batch,
                                     int64_t stride, digest *out)
{
    digest d = {};
    int64_t n = rows * cols * batch, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += step) {
        float v = to_float(x[i / (rows * cols) * stride + i / rows % cols * ld + i % rows]);
        uint32_t h = (uint32_t)i * 0x9E3779B1u ^ (uint32_t)(i >> 32);
        h = (h ^ h >> 15) * 0x85EBCA6Bu;
        h = (h ^ h >> 13) * 0xC2B2AE35u;
        h ^= h >> 16;
        d.norm2 += v * v;
#pragma unroll
        for (int k = 0; k < SIGNS; k++) d.sum[k] += h >> k & 1 ? v : -v;
    }
    atomicAdd(&out->norm2, d.norm2);
#pragma unroll
    for (int k = 0; k < SIGNS; k++) atomicAdd(&out->sum[k], d.sum[k]);
}

/* It may use the workspace, which holds nothing between two products. */
static bool take_digest(struct neb_cuda *dev, const struct neb_matmul *p, const void *x, digest *out)
{
    digest *d = (digest *)dev->lt->work;
    if (cudaMemsetAsync(d, 0, sizeof *d, dev->stream) != cudaSuccess) return false;
    if (p->d_type == NEB_BF16)
        digest_kernel<<<1024, 256, 0, dev->stream>>>((const bf16 *)x, p->m, p->n, p->ldd, p->batch,
                                                     p->stride_d, d);
    else
        digest_kernel<<<1024, 256, 0, dev->stream>>>((const float *)x, p->m, p->n, p->ldd, p->batch,
                                                     p->stride_d, d);
    return cudaMemcpyAsync(out, d, sizeof *d, cudaMemcpyDeviceToHost, dev->stream) == cudaSuccess &&
           cudaStreamSynchronize(dev->stream) == cudaSuccess;
}

/* True as well when the first result is not finite: there is nothing to compare then. */
static bool same_result(const digest *a, const digest *b)
{
    float apart = 0.f;
    if (!(a->norm2 <= 3e38f)) return true;
    for (int k = 0; k < SIGNS; k++) apart += (a->sum[k] - b->sum[k]) * (a->sum[k] - b->sum[k]) / SIGNS;
    return apart <= SAME * SAME * a->norm2;
}

static void choose(struct neb_cuda *dev, struct plan *plan, const struct neb_matmul *p)
{
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int n = candidates(dev->lt, plan, found);
    double flops = 2.0 * p->m * p->n * p->k * p->batch;
    void *spare = NULL;
    digest first, other;
    plan->usable = n > 0;
    plan->provisional = dev->capturing;
    if (n == 0) return;
    plan->algo = found[0].algo;
    if (dev->capturing || dev->config.deterministic || n == 1 || flops < TUNE_FLOPS) return;
    size_t values = p->batch > 1 ? (size_t)(p->stride_d * p->batch) : (size_t)(p->ldd * p->n);
    size_t bytes = values * neb__type_size(p->d_type);
    if (neb__cuda_try_alloc(dev, bytes, &spare) != NEB_OK) return;
    plan->micros = time_algo(dev, plan, p, spare, &found[0].algo);
    if (!take_digest(dev, p, spare, &first)) n = 1;
    for (int i = 1; i < n; i++) {
        cudaMemsetAsync(spare, 0xff, bytes, dev->stream); /* NaN, so that unwritten values are noticed */
        float t = time_algo(dev, plan, p, spare, &found[i].algo);
        if (t >= plan->micros) continue;
        if (take_digest(dev, p, spare, &other) && same_result(&first, &other))
            plan->micros = t, plan->algo = found[i].algo;
        else
            neb__cuda_log(dev, NEB_LOG_WARN,
                          "cuda matmul m %lld n %lld k %lld: algorithm %d gives a different result; not used",
                          (long long)p->m, (long long)p->n, (long long)p->k, i);
    }
    cudaGetLastError();
    neb__cuda_free(dev, spare);
    neb__cuda_log(dev, NEB_LOG_DEBUG,
                  "cuda matmul m %lld n %lld k %lld %c%c epilogue %d beta %d: %.1f us, %.0f TFLOP/s",
                  (long long)p->m, (long long)p->n, (long long)p->k, p->ta ? 'T' : 'N', p->tb ? 'T' : 'N',
                  p->epilogue, p->beta != 0.f, plan->micros, flops / plan->micros * 1e-6);
}

/* The plan for p, made when it is new; NULL: out of host memory. */
static struct plan *find_plan(struct neb_cuda *dev, const struct neb_matmul *p)
{
    struct neb_lt *lt = dev->lt;
    struct key key = make_key(p);
    unsigned h = hash(&key);
    struct plan *plan;
    for (plan = lt->slot[h]; plan; plan = plan->next)
        if (!memcmp(&plan->key, &key, sizeof key)) break;
    if (plan && (!plan->provisional || dev->capturing)) return plan;
    if (!plan) {
        plan = (struct plan *)calloc(1, sizeof *plan);
        if (!plan) return NULL;
        plan->key = key;
        plan->next = lt->slot[h];
        lt->slot[h] = plan;
        if (describe(dev, plan, p) != CUBLAS_STATUS_SUCCESS) return plan; /* not usable */
    }
    if (set_pointers(lt, plan, p) == CUBLAS_STATUS_SUCCESS) choose(dev, plan, p);
    return plan;
}

int neb__matmul_supported(struct neb_cuda *dev, const struct neb_matmul *p)
{
    struct plan *plan = find_plan(dev, p);
    return plan && plan->usable;
}

float neb__matmul_micros(struct neb_cuda *dev, const struct neb_matmul *p)
{
    struct plan *plan = find_plan(dev, p);
    return plan && plan->usable ? plan->micros : -1.f;
}

neb_status neb__cuda_product(struct neb_cuda *dev, const struct neb_matmul *p)
{
    struct plan *plan = find_plan(dev, p);
    cublasStatus_t s = CUBLAS_STATUS_NOT_SUPPORTED;
    if (!plan) return neb__cuda_fail(dev, NEB_ERR_NOMEM, "cuda: out of host memory");
    if (plan->usable) s = set_pointers(dev->lt, plan, p);
    if (plan->usable && s == CUBLAS_STATUS_SUCCESS) s = launch(dev, plan, p, p->d, &plan->algo);
    if (s == CUBLAS_STATUS_SUCCESS) return NEB_OK;
    return neb__cuda_fail(
        dev, NEB_ERR_DEVICE,
        "cuda: matrix product m %lld n %lld k %lld (ld %lld %lld %lld, epilogue %d) failed: %s",
        (long long)p->m, (long long)p->n, (long long)p->k, (long long)p->lda, (long long)p->ldb,
        (long long)p->ldd, p->epilogue, dev->lt->api.cublasLtGetStatusString(s));
}
