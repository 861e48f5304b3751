/* muon.cu: Muon over many matrices of one shape: every product is one batched call.
 *
 * The momentum is read twice instead of keeping g + momentum m: the first pass updates it and adds up squares, one sum for
 * each block; the second one divides by the norm and writes x in the products' type. A block adds up the sums of its matrix
 * in one order, so the bits are the same every time. The identity's share of the polynomial a I + b G + c G^2 saves a pass
 * over x. A step that is not finite writes zeros into x and changes neither momentum nor parameters. */
#include "kernel.cuh"

#define THREADS 256
#define SUMS    128 /* of one matrix */

struct parts {
    float *sums;
    char *x[2], *gram, *polynomial;
    int64_t bytes;
};

static int64_t round_up(int64_t bytes)
{
    return neb__ceil_div(bytes, 256) * 256;
}

static struct parts parts_of(const struct neb_muon_args *a)
{
    const int64_t side = a->rows < a->cols ? a->rows : a->cols, size = (int64_t)neb__type_size(a->type);
    const int64_t values = round_up(a->batch * a->rows * a->cols * size);
    const int64_t square = round_up(a->batch * side * side * size);
    char *at = (char *)a->scratch;
    struct parts p;
    p.sums = (float *)at;
    p.x[0] = at + round_up(a->batch * SUMS * (int64_t)sizeof(float));
    p.x[1] = p.x[0] + values;
    p.gram = p.x[1] + values;
    p.polynomial = p.gram + square;
    p.bytes = p.polynomial + square - at;
    return p;
}

int64_t neb__muon_scratch(struct neb_cuda *dev, const struct neb_muon_args *a)
{
    (void)dev;
    struct neb_muon_args at_zero = *a;
    at_zero.scratch = NULL;
    return parts_of(&at_zero).bytes;
}

/* blockIdx.y: the matrix. */
static __global__ void momentum_kernel(struct neb_muon_args a, float *sums)
{
    __shared__ float shared[33];
    const int64_t n = a.rows * a.cols, at = a.at[blockIdx.y], step = (int64_t)gridDim.x * blockDim.x;
    const float clip = a.ctl->clip;
    float sum = 0.f;
    if (!a.ctl->nonfinite)
        for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
            float g = clip * a.grad[at + i], m = a.momentum * a.m[at + i] + g, u = g + a.momentum * m;
            a.m[at + i] = m;
            sum += u * u;
        }
    sum = block_reduce<false>(sum, shared);
    if (threadIdx.x == 0) sums[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

template <class T> static __global__ void unit_kernel(struct neb_muon_args a, const float *sums, T *x)
{
    __shared__ float shared[33];
    const int64_t n = a.rows * a.cols, at = a.at[blockIdx.y], step = (int64_t)gridDim.x * blockDim.x;
    float sum = threadIdx.x < gridDim.x ? sums[blockIdx.y * gridDim.x + threadIdx.x] : 0.f;
    sum = block_reduce<false>(sum, shared);
    const bool good = sum > 0.f && sum <= 3e38f && !a.ctl->nonfinite;
    const float inverse = good ? 1.f / sqrtf(sum) : 0.f, clip = a.ctl->clip;
    x += blockIdx.y * n;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        x[i] = from_float<T>(good ? (clip * a.grad[at + i] + a.momentum * a.m[at + i]) * inverse : 0.f);
}

template <class T>
static __global__ void polynomial_kernel(const T *gram, T *polynomial, int64_t side, int64_t all, float c0,
                                         float c1)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= all) return;
    const int64_t in = i % (side * side);
    polynomial[i] = from_float<T>(c1 * to_float(gram[i]) + (in / side == in % side ? c0 : 0.f));
}

template <class T> static __global__ void step_kernel(struct neb_muon_args a, const T *x)
{
    const int64_t n = a.rows * a.cols, at = a.at[blockIdx.y], step = (int64_t)gridDim.x * blockDim.x;
    const float lr = a.ctl->lr;
    if (a.ctl->nonfinite) return;
    x += blockIdx.y * n;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        float p = a.param[at + i];
        p -= lr * (a.scale * to_float(x[i]) + a.decay * p);
        a.param[at + i] = p;
        if (a.shadow) ((bf16 *)a.shadow)[at + i] = __float2bfloat16_rn(p);
    }
}

static struct neb_gemm product(const struct neb_muon_args *a)
{
    struct neb_gemm g = {};
    g.batch = a->batch;
    g.alpha = 1.f;
    g.type = g.c_type = a->type;
    return g;
}

/* polynomial = c0 I + c1 A + c2 A^2 of A = x x^T, or x^T x if x is tall. */
template <class T>
static neb_status make_polynomial(struct neb_cuda *dev, const struct neb_muon_args *a, const struct parts *p,
                                  const char *x)
{
    const int tall = a->rows > a->cols;
    const int64_t side = tall ? a->cols : a->rows, square = side * side, all = a->batch * square;
    struct neb_gemm g = product(a);
    g.a = g.b = x, g.c = p->gram;
    g.m = g.n = side, g.k = tall ? a->rows : a->cols;
    g.lda = g.ldb = a->cols, g.ldc = side;
    g.stride_a = g.stride_b = a->rows * a->cols, g.stride_c = square;
    g.trans_a = tall, g.trans_b = !tall;
    NEB_TRY(neb__cuda_gemm(dev, &g));
    polynomial_kernel<T><<<(unsigned)neb__ceil_div(all, THREADS), THREADS, 0, dev->stream>>>(
        (const T *)p->gram, (T *)p->polynomial, side, all, a->coefficient[0], a->coefficient[1]);
    CUDA_LAUNCHED(dev, "muon polynomial");
    g = product(a);
    g.a = g.b = p->gram, g.c = p->polynomial;
    g.m = g.n = g.k = g.lda = g.ldb = g.ldc = side;
    g.stride_a = g.stride_b = g.stride_c = square;
    g.alpha = a->coefficient[2], g.beta = 1.f;
    return neb__cuda_gemm(dev, &g);
}

static neb_status apply(struct neb_cuda *dev, const struct neb_muon_args *a, const struct parts *p,
                        const char *x, char *to)
{
    const int tall = a->rows > a->cols;
    const int64_t side = tall ? a->cols : a->rows, n = a->rows * a->cols;
    struct neb_gemm g = product(a);
    g.a = tall ? x : p->polynomial, g.b = tall ? p->polynomial : x, g.c = to;
    g.m = a->rows, g.n = a->cols, g.k = side;
    g.lda = side, g.ldb = a->cols, g.ldc = a->cols;
    g.stride_a = tall ? n : side * side, g.stride_b = tall ? side * side : n, g.stride_c = n;
    return neb__cuda_gemm(dev, &g);
}

template <class T> static neb_status run(struct neb_cuda *dev, const struct neb_muon_args *a)
{
    const struct parts p = parts_of(a);
    const int64_t n = a->rows * a->cols, most = neb__ceil_div(n, THREADS);
    const dim3 grid((unsigned)(most < SUMS ? most : SUMS), (unsigned)a->batch);
    momentum_kernel<<<grid, THREADS, 0, dev->stream>>>(*a, p.sums);
    CUDA_LAUNCHED(dev, "muon momentum");
    unit_kernel<T><<<grid, THREADS, 0, dev->stream>>>(*a, p.sums, (T *)p.x[0]);
    CUDA_LAUNCHED(dev, "muon unit");
    for (int i = 0; i < a->steps; i++) {
        NEB_TRY(make_polynomial<T>(dev, a, &p, p.x[i % 2]));
        NEB_TRY(apply(dev, a, &p, p.x[i % 2], p.x[(i + 1) % 2]));
    }
    step_kernel<T><<<grid, THREADS, 0, dev->stream>>>(*a, (const T *)p.x[a->steps % 2]);
    CUDA_LAUNCHED(dev, "muon step");
    return NEB_OK;
}

neb_status neb__cuda_muon(void *ctx, const struct neb_muon_args *a)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (a->batch <= 0 || a->rows <= 0 || a->cols <= 0) return NEB_OK;
    if (a->batch > 65535)
        return neb__cuda_fail(dev, NEB_ERR_LIMIT, "cuda muon: %lld matrices in one call; 65535 are possible",
                              (long long)a->batch);
    return a->type == NEB_BF16 ? run<bf16>(dev, a) : run<float>(dev, a);
}
