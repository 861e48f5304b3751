/* sample.cu: drawing a column of each row from softmax(x / temperature), by the race of nebula/device.h:
 * every column adds its own random number to its logit, and the largest sum wins. So one pass is enough,
 * nothing is summed over the row, and the result does not depend on how the row is divided. A block is a row;
 * a thread takes eight columns, two Philox calls, at a time. Arithmetic (two logarithms per column) limits
 * the speed, not memory, so rows of odd length need no better loads. */
#include "kernel.cuh"

#define THREADS 256

/* -log(-log(1 - d)) for d = (word + 1/2) / 2^32. For small d, where the winners lie, a series replaces the
 * inner logarithm. */
static __device__ __forceinline__ float race_noise(uint32_t word)
{
    float d = fminf((__uint2float_rn(word) + 0.5f) * 0x1p-32f, 0x1.fffffep-1f), p = 1.f / 6;
    p = fmaf(p, d, 1.f / 5);
    p = fmaf(p, d, 1.f / 4);
    p = fmaf(p, d, 1.f / 3);
    p = fmaf(p, d, 1.f / 2);
    p = fmaf(p, d, 1.f);
    return -__logf(d < 1.f / 16 ? p * d : -__logf(1.f - d));
}

template <class T>
static __global__ void __launch_bounds__(THREADS) sample_kernel(struct neb_sample a, int wide)
{
    const int64_t r = blockIdx.x;
    const T *row = (const T *)a.x + r * a.cols;
    const uint32_t position = (uint32_t)a.position[r], sample = a.sample[r];
    const uint2 key = make_uint2(a.seed, a.op);
    const float inverse = 1.f / a.temperature;
    float best = -CUDART_INF_F;
    uint32_t id = 0;
    for (int64_t c = threadIdx.x * 8; c < a.cols; c += THREADS * 8) {
        const int n = (int)min((int64_t)8, a.cols - c);
        float v[8];
        get8(row + c, v, n, wide);
        const uint4 w0 = philox(make_uint4((uint32_t)(c / 4), position, sample, a.step), key),
                    w1 = philox(make_uint4((uint32_t)(c / 4 + 1), position, sample, a.step), key);
        const uint32_t word[8] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float score = fmaf(v[i], inverse, race_noise(word[i]));
            if (i < n && score > best) best = score, id = (uint32_t)c + i;
        }
    }
    uint64_key mine = key_of(ordered(best), id);
#pragma unroll
    for (int i = 16; i; i >>= 1) mine = max(mine, __shfl_xor_sync(~0u, mine, i));
    __shared__ uint64_key warps[THREADS / 32];
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 1; i < THREADS / 32; i++) mine = max(mine, warps[i]);
    a.id[r] = (int32_t)column_of(mine);
}

template <class T> static neb_status launch(struct neb_cuda *dev, const struct neb_sample *p)
{
    const int wide = wide_rows((const T *)p->x, p->cols);
    sample_kernel<T><<<(unsigned)p->rows, THREADS, 0, dev->stream>>>(*p, wide);
    CUDA_LAUNCHED(dev, "sample");
    return NEB_OK;
}

neb_status neb__cuda_sample(void *ctx, const struct neb_sample *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (!(p->temperature > 0))
        return neb__cuda_fail(dev, NEB_ERR_INVALID, "cuda sample: temperature %g is not above 0",
                              (double)p->temperature);
    if (p->cols < 1 || p->cols > INT32_MAX || p->rows > INT32_MAX)
        return neb__cuda_fail(dev, NEB_ERR_LIMIT, "cuda sample: cannot draw from %lld rows of %lld columns",
                              (long long)p->rows, (long long)p->cols);
    if (p->rows < 1) return NEB_OK;
    NEB_BY_TYPE(dev, p->type, "sample", return launch<T>(dev, p));
}
