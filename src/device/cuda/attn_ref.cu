/* attn_ref.cu: the pieces of the reference attention on a whole score matrix: softmax over the visible keys,
 * its backward, dropout of probabilities. One block a (head, query) row; for checking, not for speed. */
#include "attn.cuh"

/* [*first, *last): the key rows that query row q sees; position of the query in its sequence. */
static __device__ int visible(const int32_t *starts_q, const int32_t *starts_k, int sequences, int64_t q,
                              int causal, int64_t *first, int64_t *last)
{
    int s = sequence_of(starts_q, sequences, q);
    *first = *last = 0;
    if (s < 0) return s;
    int queries = starts_q[s + 1] - starts_q[s], keys = starts_k[s + 1] - starts_k[s],
        at = (int)q - starts_q[s];
    *first = starts_k[s];
    *last = *first + (causal ? max(0, min(keys, at + keys - queries + 1)) : keys);
    return s;
}

static __global__ void softmax_kernel(struct neb_attn_softmax p)
{
    __shared__ float shared[33];
    int64_t q = blockIdx.x, head = blockIdx.y, first, last;
    visible(p.starts_q, p.starts_k, (int)p.sequences, q, p.causal, &first, &last);
    float *s = p.score + (head * p.q_rows + q) * p.k_rows, max = -CUDART_INF_F, sum = 0.f;
    for (int64_t k = first + threadIdx.x; k < last; k += blockDim.x) max = fmaxf(max, s[k]);
    max = block_reduce<true>(max, shared);
    for (int64_t k = first + threadIdx.x; k < last; k += blockDim.x) sum += expf(s[k] - max);
    sum = block_reduce<false>(sum, shared);
    for (int64_t k = threadIdx.x; k < p.k_rows; k += blockDim.x)
        s[k] = k >= first && k < last ? expf(s[k] - max) / sum : 0.f;
    if (p.lse && threadIdx.x == 0)
        p.lse[head * p.q_rows + q] = last > first ? max + logf(sum) : -CUDART_INF_F;
}

static __global__ void softmax_bwd_kernel(struct neb_attn_softmax p)
{
    __shared__ float shared[33];
    int64_t at = (blockIdx.y * p.q_rows + blockIdx.x) * p.k_rows;
    const float *prob = p.prob + at;
    float *ds = p.dscore + at, sum = 0.f;
    for (int64_t k = threadIdx.x; k < p.k_rows; k += blockDim.x) /* hidden keys may hold anything */
        if (prob[k] != 0.f) sum += prob[k] * ds[k];
    sum = block_reduce<false>(sum, shared);
    for (int64_t k = threadIdx.x; k < p.k_rows; k += blockDim.x)
        ds[k] = prob[k] != 0.f ? prob[k] * (ds[k] - sum) : 0.f;
}

static __global__ void attn_dropout_kernel(struct neb_attn_dropout p)
{
    int64_t q = blockIdx.x, head = blockIdx.y, first, last;
    int s = visible(p.starts_q, p.starts_k, (int)p.sequences, q, 0, &first, &last);
    if (s < 0) return;
    float *prob = p.prob + (head * p.q_rows + q) * p.k_rows;
    neb_dropper d = make_dropper(p.drop);
    for (int64_t k = first + threadIdx.x; k < last; k += blockDim.x)
        prob[k] *= attn_mask(d, (int)head, (int)(q - p.starts_q[s]), (int)(k - first), p.drop.sample[s]);
}

static dim3 grid_of(int64_t q_rows, int64_t heads)
{
    return dim3((unsigned)q_rows, (unsigned)heads);
}

neb_status neb__cuda_attn_softmax(void *ctx, const struct neb_attn_softmax *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (p->q_rows <= 0 || p->heads <= 0) return NEB_OK;
    softmax_kernel<<<grid_of(p->q_rows, p->heads), 128, 0, dev->stream>>>(*p);
    CUDA_LAUNCHED(dev, "attn_softmax");
    return NEB_OK;
}

neb_status neb__cuda_attn_softmax_bwd(void *ctx, const struct neb_attn_softmax *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (p->q_rows <= 0 || p->heads <= 0) return NEB_OK;
    softmax_bwd_kernel<<<grid_of(p->q_rows, p->heads), 128, 0, dev->stream>>>(*p);
    CUDA_LAUNCHED(dev, "attn_softmax_bwd");
    return NEB_OK;
}

neb_status neb__cuda_attn_dropout(void *ctx, const struct neb_attn_dropout *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (p->q_rows <= 0 || p->heads <= 0 || !p->drop.threshold) return NEB_OK;
    attn_dropout_kernel<<<grid_of(p->q_rows, p->heads), 128, 0, dev->stream>>>(*p);
    CUDA_LAUNCHED(dev, "attn_dropout");
    return NEB_OK;
}
