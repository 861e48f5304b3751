/* topk.cu: the k largest values of a row, in order, and its log-sum-exp, in one pass over the row.
 *
 * A value and its column make one key (kernel.cuh). Keys are distinct, so equal values need no special
 * treatment. A block walks over a piece of a row, TILE columns at a time, and collects in shared memory the
 * keys that may be among the k best: those not below `floor`. The first floor is the k-th largest of the
 * threads' maxima of the first tile (k threads have a value as large); whenever there are more than `spare`
 * keys, all but the k best are discarded, and the k-th is the new floor, which later (higher) columns must
 * exceed. At the end the place of a key in the result is its rank among the keys left, counted by comparing
 * it with all of them.
 *
 * Few rows are cut into several pieces, so that all multiprocessors read; the pieces' results lie in the
 * workspace, and a second kernel merges them. Rows need not be aligned: groups of eight are counted from the
 * 16-byte boundary at or below the row's first value, and a group with columns outside the piece is read
 * value by value. */
#include "kernel.cuh"

#define THREADS 256
#define TILE    (THREADS * 8)
#define SPARE   1024 /* keys kept before they are narrowed down to k, at least */
#define MOST    4096

/* The sum of e^x as s * 2^m, m being the largest x in units of log 2. */
struct total {
    float m, s;
};
static __device__ __forceinline__ total add(total a, total b)
{
    float m = fmaxf(a.m, b.m), from = m == -CUDART_INF_F ? 0.f : m;
    return {m, a.s * pow2(a.m - from) + b.s * pow2(b.m - from)};
}
/* Adds up over the block; thread 0 gets the result. */
static __device__ total block_total(total t, total *shared)
{
#pragma unroll
    for (int i = 16; i; i >>= 1) t = add(t, {__shfl_xor_sync(~0u, t.m, i), __shfl_xor_sync(~0u, t.s, i)});
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = t;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 1; i < THREADS / 32; i++) t = add(t, shared[i]);
    return t;
}
static __device__ __forceinline__ float log_of(total t)
{
    return t.m * 0.69314718055994531f + logf(t.s);
}

/* The keys collected so far. */
struct heap {
    uint64_key *key; /* room for spare + TILE */
    int *n;
};

/* How many of the n keys are at least `bound`; every thread gets the number. */
static __device__ int count_from(const uint64_key *key, int n, uint64_key bound)
{
    int mine = 0;
    for (int i = threadIdx.x; i < n; i += THREADS) mine += key[i] >= bound;
    __shared__ int sum[THREADS / 32];
    mine = __reduce_add_sync(~0u, mine);
    if (threadIdx.x % 32 == 0) sum[threadIdx.x / 32] = mine;
    __syncthreads();
    int all = 0;
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) all += sum[i];
    __syncthreads();
    return all;
}

/* Leaves the k largest of n > k keys, in any order; returns the smallest of them. */
static __device__ uint64_key narrow(heap h, int n, int k)
{
    uint64_key bound = 0;
    for (int bit = 63; bit >= 0; bit--) {
        uint64_key next = bound | 1ull << bit;
        if (count_from(h.key, n, next) >= k) bound = next;
    }
    /* Works in rounds of THREADS keys: the places read in a round are never before the places written in
     * it. */
    __shared__ int kept;
    if (threadIdx.x == 0) kept = 0;
    __syncthreads();
    for (int first = 0; first < n; first += THREADS) {
        int i = first + (int)threadIdx.x;
        uint64_key mine = i < n ? h.key[i] : 0;
        __syncthreads();
        if (mine && mine >= bound) h.key[atomicAdd(&kept, 1)] = mine;
        __syncthreads();
    }
    if (threadIdx.x == 0) *h.n = kept;
    __syncthreads();
    return bound;
}

/* Puts key[0 … n - 1] in order: out(rank, key) for the k largest; keys are distinct. */
template <class F> static __device__ void rank(const uint64_key *key, int n, int k, F out)
{
    for (int i = threadIdx.x; i < n; i += THREADS) {
        uint64_key mine = key[i];
        int before = 0;
        for (int j = 0; j < n; j++) before += key[j] > mine;
        if (before < k) out(before, mine);
    }
}

/* The k-th largest of the threads' numbers, except for its low bits; 0 when fewer than k threads have one. */
static __device__ uint32_t kth_of_threads(uint32_t mine, int k)
{
    uint32_t bound = 0;
    if (k > THREADS) return 0;
    for (int bit = 31; bit >= 12; bit--) {
        uint32_t next = bound | 1u << bit;
        if (__syncthreads_count(mine >= next) >= k) bound = next;
    }
    return bound;
}

/* Reads group `g` of eight values of a row of `cols` values, whose first lies `shift` values after a 16-byte
 * boundary. Gives the values, and the range of the eight that lies in the row. */
template <class T>
static __device__ __forceinline__ void read_group(const T *row, int64_t cols, int shift, int64_t g,
                                                  float v[8], int *from, int *to)
{
    int64_t c = g * 8 - shift;
    *from = c < 0 ? (int)-c : 0;
    *to = c >= cols ? 0 : (int)min((int64_t)8, cols - c);
    if (*from == 0 && *to == 8) return load8(row + c, v);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = i >= *from && i < *to ? to_float(row[c + i]) : -CUDART_INF_F;
}

static __device__ __forceinline__ void add_group(const float v[8], int from, int to, total *t)
{
    const float log2e = 1.4426950408889634f;
    float m = t->m;
#pragma unroll
    for (int i = 0; i < 8; i++) m = fmaxf(m, v[i] * log2e); /* values outside the row are -inf */
    float base = m == -CUDART_INF_F ? 0.f : m, s = t->s * pow2(t->m - base);
#pragma unroll
    for (int i = 0; i < 8; i++) s += i >= from && i < to ? pow2(fmaf(v[i], log2e, -base)) : 0.f;
    *t = {m, s};
}

/* The result of a piece: k keys, largest first, 0 for missing ones. */
struct pieces {
    uint64_key *key; /* (rows, splits, k) */
    total *sum;      /* (rows, splits) */
};

static __device__ void put_result(const struct neb_best &a, int64_t r, int place, uint64_key key)
{
    a.value[r * a.k + place] = value_of(key);
    a.id[r * a.k + place] = (int32_t)column_of(key);
}
static __device__ void put_absent(const struct neb_best &a, int64_t r, int from)
{
    for (int i = from + (int)threadIdx.x; i < a.k; i += THREADS)
        a.value[r * a.k + i] = -CUDART_INF_F, a.id[r * a.k + i] = -1;
}

template <class T>
static __global__ void __launch_bounds__(THREADS)
    best_kernel(struct neb_best a, int splits, int64_t tiles, int spare, struct pieces out)
{
    extern __shared__ uint64_key keys[];
    __shared__ int n;
    __shared__ total sums[THREADS / 32];
    const heap h = {keys, &n};
    const int64_t r = blockIdx.x / splits;
    const int split = (int)(blockIdx.x % splits);
    const T *row = (const T *)a.x + r * a.cols;
    const int shift = (int)(((uintptr_t)row & 15) / sizeof(T));
    const int64_t all = (a.cols + shift + TILE - 1) / TILE, first = split * tiles,
                  last = min(all, first + tiles);
    if (threadIdx.x == 0) n = 0;
    __syncthreads();
    total sum = {-CUDART_INF_F, 0.f};
    uint32_t floor = 0;
    float v[8], next[8];
    int from, to, next_from = 0, next_to = 0;
    if (first < last)
        read_group(row, a.cols, shift, first * THREADS + threadIdx.x, next, &next_from, &next_to);
    for (int64_t tile = first; tile < last; tile++) {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = next[i];
        from = next_from, to = next_to;
        if (tile + 1 < last)
            read_group(row, a.cols, shift, (tile + 1) * THREADS + threadIdx.x, next, &next_from, &next_to);
        add_group(v, from, to, &sum);
        if (tile == first) {
            uint32_t top = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) top = i >= from && i < to ? max(top, ordered(v[i])) : top;
            floor = kth_of_threads(top, a.k);
        }
        int end = 0;
        const uint32_t column = (uint32_t)((tile * THREADS + threadIdx.x) * 8 - shift);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t o = ordered(v[i]);
            if (o < floor || i < from || i >= to) continue;
            end = atomicAdd(&n, 1);
            keys[end++] = key_of(o, column + (uint32_t)i);
        }
        /* This barrier also makes the keys of this tile visible. */
        if (__syncthreads_or(end > spare)) {
            uint32_t lowest = (uint32_t)(narrow(h, n, a.k) >> 32);
            floor = lowest == ~0u ? lowest : lowest + 1;
        }
    }
    __syncthreads();
    if (n > THREADS && n > a.k) narrow(h, n, a.k);
    const int found = min(n, a.k);
    sum = block_total(sum, sums);
    if (splits == 1) {
        rank(keys, n, a.k, [&](int place, uint64_key key) { put_result(a, r, place, key); });
        put_absent(a, r, found);
        if (threadIdx.x == 0 && a.lse) a.lse[r] = log_of(sum);
        return;
    }
    uint64_key *to_key = out.key + (int64_t)blockIdx.x * a.k;
    rank(keys, n, a.k, [&](int place, uint64_key key) { to_key[place] = key; });
    for (int i = found + (int)threadIdx.x; i < a.k; i += THREADS) to_key[i] = 0;
    if (threadIdx.x == 0) out.sum[blockIdx.x] = sum;
}

/* Merges one row's pieces into its result. */
static __global__ void __launch_bounds__(THREADS)
    merge_kernel(struct neb_best a, int splits, struct pieces in)
{
    extern __shared__ uint64_key keys[];
    __shared__ int n;
    const heap h = {keys, &n};
    const int64_t r = blockIdx.x;
    if (threadIdx.x == 0) n = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < splits * a.k; i += THREADS) {
        uint64_key key = in.key[r * splits * a.k + i];
        if (key) keys[atomicAdd(&n, 1)] = key;
    }
    __syncthreads();
    if (n > THREADS && n > a.k) narrow(h, n, a.k);
    rank(keys, n, a.k, [&](int place, uint64_key key) { put_result(a, r, place, key); });
    put_absent(a, r, min(n, a.k));
    if (threadIdx.x == 0 && a.lse) {
        total sum = in.sum[r * splits];
        for (int i = 1; i < splits; i++) sum = add(sum, in.sum[r * splits + i]);
        a.lse[r] = log_of(sum);
    }
}

/* Number of pieces of a row: enough blocks for the GPU, each with at least one tile, few enough keys for one
 * block to merge. */
static int splits_of(const struct neb_cuda *dev, const struct neb_best *p, int64_t tiles)
{
    int64_t n = neb__ceil_div(4 * (int64_t)dev->sms, p->rows);
    if (n > tiles) n = tiles;
    if (n > TILE / p->k) n = TILE / p->k;
    if (p->rows * n * (p->k + 1) * 8 > (int64_t)NEB_CUDA_WORK_BYTES) n = 1;
    return n < 1 ? 1 : (int)n;
}

template <class T> static neb_status launch(struct neb_cuda *dev, const struct neb_best *p)
{
    /* Every row may begin up to 15 bytes after a boundary. */
    const int64_t all = neb__ceil_div(p->cols + 16 / (int64_t)sizeof(T) - 1, TILE);
    int splits = splits_of(dev, p, all);
    const int64_t tiles = neb__ceil_div(all, splits);
    splits = (int)neb__ceil_div(all, tiles);
    const int spare = p->k > SPARE ? p->k : SPARE;
    const size_t shared = (size_t)(spare + TILE) * sizeof(uint64_key);
    struct pieces out = {(uint64_key *)dev->work, NULL};
    out.sum = (total *)(out.key + p->rows * splits * p->k);
    if (shared > 40 << 10)
        CUDA_TRY(dev, cudaFuncSetAttribute(best_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)shared));
    best_kernel<T>
        <<<(unsigned)(p->rows * splits), THREADS, shared, dev->stream>>>(*p, splits, tiles, spare, out);
    CUDA_LAUNCHED(dev, "best");
    if (splits == 1) return NEB_OK;
    merge_kernel<<<(unsigned)p->rows, THREADS, (size_t)(splits * p->k) * sizeof(uint64_key), dev->stream>>>(
        *p, splits, out);
    CUDA_LAUNCHED(dev, "best");
    return NEB_OK;
}

neb_status neb__cuda_best(void *ctx, const struct neb_best *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (p->k < 1 || p->k > MOST)
        return neb__cuda_fail(dev, NEB_ERR_LIMIT, "cuda best: k is %d; it must be between 1 and %d", p->k,
                              MOST);
    if (p->cols < 1 || p->cols > INT32_MAX || p->rows > INT32_MAX / 1024)
        return neb__cuda_fail(dev, NEB_ERR_LIMIT, "cuda best: %lld rows of %lld columns are not possible",
                              (long long)p->rows, (long long)p->cols);
    if (p->rows < 1) return NEB_OK;
    NEB_BY_TYPE(dev, p->type, "best", return launch<T>(dev, p));
}
