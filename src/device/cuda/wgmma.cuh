/* wgmma.cuh: Hopper's warpgroup matrix instructions, as the attention kernels use them.
 *
 * A warpgroup (four warps) multiplies a 64 x 16 piece by a 16 x N piece; the right operand, and the left one
 * unless it is in registers, is read from shared memory through a descriptor. Tiles are rows of 64 bf16 (128
 * bytes) in the 128-byte swizzle, which is tile_at<64>()'s; a tile begins at a multiple of 1024 bytes. In a
 * tile stored [row][k], sixteen steps of k are 32 bytes apart; in one stored [k][column] ("transposed") they
 * are sixteen rows, 2048 bytes, apart. Accumulators and left operands in registers have the layout of
 * mma.m16n8k16; a warp holds 16 of the 64 rows. */
#ifndef NEB_CUDA_WGMMA_CUH
#define NEB_CUDA_WGMMA_CUH

#include "attn.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define NEB_WGMMA 1
#else
#define NEB_WGMMA 0
#endif

#define K_STEP (32 >> 4) /* a descriptor counts in 16 bytes */
#define T_STEP (2048 >> 4)

#if NEB_WGMMA
static __device__ __forceinline__ uint64_t wg_tile(uint32_t address)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}
static __device__ __forceinline__ void wg_fence()
{
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
static __device__ __forceinline__ void wg_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
template <int N> static __device__ __forceinline__ void wg_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(N) : "memory");
}
/* Marks results that a wait has made ready. The compiler considers a product finished when it is issued, and
 * this stops it from reading them earlier. */
template <int N> static __device__ __forceinline__ void wg_ready(float (&d)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) asm volatile("" : "+f"(d[n][i])::"memory");
}
/* Shared memory written by ordinary stores or cp.async becomes visible to the matrix units. */
static __device__ __forceinline__ void wg_publish()
{
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

/* d (64 x 64) = or += a b, both in shared memory; TA, TB: stored transposed. */
template <int TA, int TB>
static __device__ __forceinline__ void wg_product(float d[8][4], uint64_t a, uint64_t b, int add)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, %35, %36;\n}\n"
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
          "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
          "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
          "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
          "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
          "+f"(d[7][2]), "+f"(d[7][3])
        : "l"(a), "l"(b), "r"(add), "n"(TA), "n"(TB));
}
/* The same for 32 columns. */
template <int TA, int TB>
static __device__ __forceinline__ void wg_product32(float d[4][4], uint64_t a, uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, p, 1, 1, "
                 "%19, %20;\n}\n"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
                   "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
                   "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3])
                 : "l"(a), "l"(b), "r"(add), "n"(TA), "n"(TB));
}
/* d (64 x 64) = or += a b, a in registers; TB: b is stored transposed. */
template <int TB>
static __device__ __forceinline__ void wg_product_registers(float d[8][4], const uint32_t a[4], uint64_t b,
                                                            int add)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1, "
        "%38;\n}\n"
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
          "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
          "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
          "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
          "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
          "+f"(d[7][2]), "+f"(d[7][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TB));
}
#endif

#endif
