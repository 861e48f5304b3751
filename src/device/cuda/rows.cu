/* rows.cu: picking rows by index: embeddings, gathers, scatters.
 *
 * The embedding's backward adds up all rows that had the same id, without atomics. (id, row) pairs are sorted
 * (stable, so rows of one id stay in order) and cut into chunks of CHUNK pairs. A block sums the runs of one
 * id inside its chunk. A run that lies in one chunk goes straight to the table. The piece of a run that began
 * earlier or continues later is left as the chunk's head or tail. A second kernel, with one block for each
 * run that crosses chunks, adds tail, head, head, … in order. So a table with two rows costs no more than one
 * with fifty thousand. */
#include "kernel.cuh"

#include <cub/device/device_radix_sort.cuh>

#define CHUNK 64

template <class T> static neb_status gather(struct neb_cuda *dev, const struct neb_rows &p)
{
    const T *x = (const T *)p.x;
    T *y = (T *)p.y;
    const int32_t *index = p.index;
    int64_t rows = p.rows, d = p.d;
    int wide = wide_rows(x, d) && wide_rows(y, d);
    return rows8(dev, p.n, d, "gather_rows", [=] __device__(int64_t r, int64_t c, int n) {
        float v[8] = {0};
        int64_t i = index[r];
        if (i >= 0 && i < rows) get8(x + i * d + c, v, n, wide);
        put8(y + r * d + c, v, n, wide);
    });
}

template <class T> static neb_status scatter(struct neb_cuda *dev, const struct neb_rows &p)
{
    const T *x = (const T *)p.x;
    T *y = (T *)p.y;
    const int32_t *index = p.index;
    int64_t rows = p.rows, d = p.d, ldx = p.ldx ? p.ldx : d;
    int wide = wide_rows(x, ldx) && wide_rows(y, d);
    return rows8(dev, p.n, d, "scatter_rows", [=] __device__(int64_t r, int64_t c, int n) {
        float u[8], v[8];
        int64_t i = index[r];
        if (i < 0 || i >= rows) return;
        get8(x + r * ldx + c, u, n, wide);
        get8(y + i * d + c, v, n, wide);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] += u[j];
        put8(y + i * d + c, v, n, wide);
    });
}

neb_status neb__cuda_gather_rows(void *ctx, const struct neb_rows *p)
{
    NEB_BY_TYPE(neb__cuda(ctx), p->type, "gather_rows", return gather<T>(neb__cuda(ctx), *p));
}

neb_status neb__cuda_scatter_rows(void *ctx, const struct neb_rows *p)
{
    NEB_BY_TYPE(neb__cuda(ctx), p->type, "scatter_rows", return scatter<T>(neb__cuda(ctx), *p));
}

template <class T> static neb_status embed(struct neb_cuda *dev, const struct neb_embed &p)
{
    struct neb_embed a = p;
    int wide = wide_rows((const T *)p.y, p.d);
    for (int t = 0; t < p.tables; t++) wide = wide && wide_rows((const T *)p.table[t], p.d);
    return rows8(dev, p.rows, p.d, "embed", [=] __device__(int64_t r, int64_t c, int n) {
        float sum[8] = {0};
#pragma unroll
        for (int t = 0; t < 3; t++) {
            if (t >= a.tables) break;
            int64_t id = a.ids[t][r] - a.first[t];
            if (id < 0 || id >= a.table_rows[t]) continue;
            float v[8];
            get8((const T *)a.table[t] + id * a.d + c, v, n, wide);
#pragma unroll
            for (int j = 0; j < 8; j++) sum[j] += v[j];
        }
#pragma unroll
        for (int j = 0; j < 8; j++) sum[j] *= a.scale;
        put8((T *)a.y + r * a.d + c, sum, n, wide);
    });
}

neb_status neb__cuda_embed(void *ctx, const struct neb_embed *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (p->tables < 1 || p->tables > 3)
        return neb__cuda_fail(dev, NEB_ERR_INVALID, "cuda embed: %d tables given; 1 to 3 are possible",
                              p->tables);
    NEB_BY_TYPE(dev, p->type, "embed", return embed<T>(dev, *p));
}

/* ---- backward ---- */

/* Ids outside the table become the largest key: they sort to the end and are skipped. */
static __global__ void keys_kernel(const int32_t *ids, int64_t rows, int64_t first, int64_t table_rows,
                                   uint32_t *key, int32_t *row)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows) return;
    int64_t id = ids[i] - first;
    key[i] = id < 0 || id >= table_rows ? (uint32_t)table_rows : (uint32_t)id;
    row[i] = (int32_t)i;
}

/* edge: (chunks, 2, d): the chunk's head and tail. */
template <class T>
static __global__ void chunk_kernel(const uint32_t *key, const int32_t *row, int64_t rows, const T *dy,
                                    int64_t d, float scale, uint32_t none, float *table, float *edge)
{
    __shared__ uint32_t keys[CHUNK + 2];
    __shared__ int32_t from[CHUNK];
    int64_t first = (int64_t)blockIdx.x * CHUNK, c = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    int n = (int)min((int64_t)CHUNK, rows - first);
    for (int i = threadIdx.x; i < n + 2; i += blockDim.x) { /* keys[i] is the key at first + i - 1 */
        int64_t at = first + i - 1;
        keys[i] = at < 0 || at >= rows ? 0xffffffffu : key[at];
        if (i < n) from[i] = row[first + i];
    }
    __syncthreads();
    if (c >= d) return;
    float *head = edge + (int64_t)blockIdx.x * 2 * d, *tail = head + d;
    for (int i = 0; i < n;) {
        uint32_t k = keys[i + 1];
        bool earlier = i == 0 && keys[0] == k;
        float sum = 0.f;
        int j = i;
        while (j < n && keys[j + 1] == k) {
            float v[4];
            int m = 0;
#pragma unroll
            for (; m < 4; m++)
                v[m] = j + m < n && keys[j + m + 1] == k ? to_float(dy[from[j + m] * d + c]) : 0.f;
#pragma unroll
            for (m = 0; m < 4; m++) sum += v[m];
            for (m = 0; m < 4 && j < n && keys[j + 1] == k; m++) j++;
        }
        bool later = j == n && keys[n + 1] == k;
        if (k != none) {
            if (earlier)
                head[c] = sum;
            else if (later)
                tail[c] = sum;
            else
                table[k * d + c] += scale * sum;
        }
        i = j;
    }
}

/* One block for each chunk in which a crossing run begins. */
static __global__ void edges_kernel(const uint32_t *key, int64_t rows, int64_t d, float scale, uint32_t none,
                                    float *table, const float *edge)
{
    int64_t chunk = blockIdx.x, next = (chunk + 1) * CHUNK,
            c = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (next >= rows || c >= d) return;
    uint32_t k = key[next - 1];
    if (k == none || key[next] != k) return;
    int64_t first = chunk * CHUNK;
    if (key[first] == k && first > 0 && key[first - 1] == k) return; /* it began earlier */
    float sum = edge[(chunk * 2 + 1) * d + c];
    for (int64_t i = chunk + 1; i * CHUNK < rows && key[i * CHUNK] == k; i++) sum += edge[i * 2 * d + c];
    table[k * d + c] += scale * sum;
}

static size_t sort_bytes(int64_t rows)
{
    size_t bytes = 0;
    cub::DeviceRadixSort::SortPairs(NULL, bytes, (uint32_t *)NULL, (uint32_t *)NULL, (int32_t *)NULL,
                                    (int32_t *)NULL, (int)rows);
    return (bytes + 255) / 256 * 256;
}

int64_t neb__embed_bwd_scratch(struct neb_cuda *dev, const struct neb_embed *p)
{
    (void)dev;
    int64_t list = neb__ceil_div(p->rows * 4, 256) * 256;
    return 4 * list + (int64_t)sort_bytes(p->rows) + neb__ceil_div(p->rows, CHUNK) * 2 * p->d * 4 + 256;
}

static neb_status embed_one(struct neb_cuda *dev, const struct neb_embed *p, int t)
{
    int64_t list = neb__ceil_div(p->rows * 4, 256) * 256, chunks = neb__ceil_div(p->rows, CHUNK);
    char *at = (char *)p->scratch;
    uint32_t *key = (uint32_t *)at, *sorted = (uint32_t *)(at + list), none = (uint32_t)p->table_rows[t];
    int32_t *row = (int32_t *)(at + 2 * list), *order = (int32_t *)(at + 3 * list);
    void *temp = at + 4 * list;
    size_t temp_bytes = sort_bytes(p->rows);
    float *edge = (float *)((char *)temp + temp_bytes);
    int bits = 1;
    while (bits < 32 && none >> bits) bits++;
    keys_kernel<<<(unsigned)neb__ceil_div(p->rows, 256), 256, 0, dev->stream>>>(
        p->ids[t], p->rows, p->first[t], p->table_rows[t], key, row);
    CUDA_LAUNCHED(dev, "embed_bwd keys");
    CUDA_TRY(dev, cub::DeviceRadixSort::SortPairs(temp, temp_bytes, key, sorted, row, order, (int)p->rows, 0,
                                                  bits, dev->stream));
    unsigned threads = p->d >= 256 ? 256 : (unsigned)neb__ceil_div(p->d, 32) * 32;
    dim3 grid((unsigned)chunks, (unsigned)neb__ceil_div(p->d, threads));
    NEB_BY_TYPE(dev, p->type, "embed_bwd",
                chunk_kernel<T><<<grid, threads, 0, dev->stream>>>(
                    sorted, order, p->rows, (const T *)p->dy, p->d, p->scale, none, p->d_table[t], edge));
    edges_kernel<<<grid, threads, 0, dev->stream>>>(sorted, p->rows, p->d, p->scale, none, p->d_table[t],
                                                    edge);
    CUDA_LAUNCHED(dev, "embed_bwd");
    return NEB_OK;
}

neb_status neb__cuda_embed_bwd(void *ctx, const struct neb_embed *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (p->rows <= 0 || p->d <= 0) return NEB_OK;
    if (p->rows > INT32_MAX)
        return neb__cuda_fail(dev, NEB_ERR_LIMIT, "cuda embed_bwd: more than 2^31 rows are not possible");
    for (int t = 0; t < p->tables; t++)
        if (p->d_table[t]) NEB_TRY(embed_one(dev, p, t));
    return NEB_OK;
}
