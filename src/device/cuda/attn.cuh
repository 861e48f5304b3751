/* attn.cuh: code that the attention kernels share: the keys that a query sees, tiles in shared memory,
 * tensor-core pieces. */
#ifndef NEB_CUDA_ATTN_CUH
#define NEB_CUDA_ATTN_CUH

#include "kernel.cuh"

neb_status neb__attn_simple(struct neb_cuda *dev, const struct neb_attn *p);
neb_status neb__attn_simple_bwd(struct neb_cuda *dev, const struct neb_attn_bwd *p);
/* The tensor-core kernels: bf16, head sizes 32, 64 and 128, rows aligned to 16 bytes. */
neb_status neb__attn_mma(struct neb_cuda *dev, const struct neb_attn *p);
neb_status neb__attn_mma_bwd(struct neb_cuda *dev, const struct neb_attn_bwd *p);
/* delta (heads, q_rows) = sum over the head of o * d_o. */
neb_status neb__attn_delta(struct neb_cuda *dev, const struct neb_attn_bwd *p, float *delta);

/* The sequence that holds `row`, or -1. */
static __device__ __forceinline__ int sequence_of(const int32_t *starts, int sequences, int64_t row)
{
    int lo = 0, hi = sequences;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (starts[mid + 1] <= row)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < sequences && starts[lo] <= row ? lo : -1;
}

/* 0, or the factor of a kept probability. */
static __device__ __forceinline__ float attn_mask(const neb_dropper &d, int head, int query, int key,
                                                  uint32_t sample)
{
    uint4 r = philox(
        make_uint4((d.first + (uint32_t)head) << 20 | (uint32_t)key / 8, (uint32_t)query, sample, d.step),
        make_uint2(d.seed, d.op));
    int j = key % 8;
    uint32_t word = j < 2 ? r.x : j < 4 ? r.y : j < 6 ? r.z : r.w;
    return ((word >> 16 * (j % 2)) & 0xffff) >= d.threshold ? d.scale : 0.f;
}

/* ---- tiles of bf16 rows in shared memory, 16-byte chunks swizzled so that eight rows of one column of
 * chunks lie in eight different bank groups ---- */

template <int HD> static __device__ __forceinline__ uint32_t tile_at(int row, int chunk)
{
    constexpr int CHUNKS = HD / 8;
    int s = HD >= 64 ? chunk ^ (row & 7) : chunk ^ ((row >> 1) & 3);
    return (uint32_t)(row * CHUNKS + s) * 16;
}

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void copy16(uint32_t dst, const void *src, bool valid)
{
    int bytes = valid ? 16 : 0; /* 0: the destination is filled with zeros */
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(dst), "l"(src), "r"(bytes));
}
/* One float, or 0. */
static __device__ __forceinline__ void copy4(const float *dst, const float *src, bool valid)
{
    int bytes = valid ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(shared_address(dst)), "l"(src),
                 "r"(bytes));
}
static __device__ __forceinline__ void copy_commit()
{
    asm volatile("cp.async.commit_group;\n" ::);
}
template <int N> static __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N));
}

/* Rows [first, first + ROWS) of a head, those at or beyond n as zeros. */
template <int HD, int ROWS, int THREADS>
static __device__ __forceinline__ void load_tile(uint32_t tile, const bf16 *base, int64_t ld, int first,
                                                 int n)
{
    constexpr int CHUNKS = HD / 8;
#pragma unroll
    for (int i = 0; i < ROWS * CHUNKS / THREADS; i++) {
        int at = i * THREADS + threadIdx.x, row = at / CHUNKS, chunk = at % CHUNKS;
        bool valid = first + row < n;
        copy16(tile + tile_at<HD>(row, chunk), base + (int64_t)(valid ? first + row : 0) * ld + chunk * 8,
               valid);
    }
}

static __device__ __forceinline__ void ldmatrix4(uint32_t r[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
static __device__ __forceinline__ void ldmatrix4_trans(uint32_t r[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
static __device__ __forceinline__ void mma16816(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
static __device__ __forceinline__ uint32_t pack2(float lo, float hi)
{
    __nv_bfloat162 h = __floats2bfloat162_rn(lo, hi);
    return *(uint32_t *)&h;
}

/* The fragment of a 16 x 16 piece as left operand: rows row…, columns 8 * chunk…, of a tile stored
 * [row][column]. */
template <int HD>
static __device__ __forceinline__ void left_fragment(uint32_t a[4], uint32_t tile, int row, int chunk)
{
    int lane = threadIdx.x % 32;
    ldmatrix4(a, tile + tile_at<HD>(row + lane % 16, chunk + lane / 16));
}
/* Right operands for two neighbouring groups of eight columns n, n + 8: from a tile stored [n][k] … */
template <int HD>
static __device__ __forceinline__ void right_fragments(uint32_t b[4], uint32_t tile, int n, int chunk)
{
    int lane = threadIdx.x % 32;
    ldmatrix4(b, tile + tile_at<HD>(n + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2));
}
/* … and from a tile stored [k][n]. */
template <int HD>
static __device__ __forceinline__ void right_fragments_trans(uint32_t b[4], uint32_t tile, int k, int chunk)
{
    int lane = threadIdx.x % 32;
    ldmatrix4_trans(b, tile + tile_at<HD>(k + lane % 16, chunk + lane / 16));
}
/* The left operand whose transpose is stored: a tile [k][m]. */
template <int HD>
static __device__ __forceinline__ void left_fragment_trans(uint32_t a[4], uint32_t tile, int k, int chunk)
{
    int lane = threadIdx.x % 32;
    ldmatrix4_trans(a, tile + tile_at<HD>(k + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2));
}

#endif
