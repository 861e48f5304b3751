/* tiles.c: which tile serves a product.
 *
 * Which one is the fastest depends on the device, so it is measured at the first large product and remembered on disk.
 * With `deterministic` nothing is measured: two processes might choose differently, and another tile adds in another
 * order.
 *
 * Some tiles multiply in fp16 (kernels/gemm.cl). They are for devices that compute in it, for runs in bf16, and for
 * products with a factor in bf16, whose own rounding is the coarser one. They must be faster than the best of the
 * others, with packing counted. NEBULA_OPENCL_FP16 forbids them or takes them always. */
#include "opencl.h"
#include "sources.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The tiles in fp16 come last. */
static const struct neb_ocl_tile cpu_tiles[] = {{8, 32, 16, 8, 2, 1, false}, {12, 32, 16, 12, 2, 1, false},
                                                {6, 16, 8, 6, 2, 1, false},  {8, 24, 8, 8, 3, 1, false},
                                                {6, 64, 16, 6, 4, 1, false}, {8, 32, 16, 8, 2, 16, true},
                                                {6, 64, 16, 6, 4, 16, true}};
static const struct neb_ocl_tile gpu_tiles[] = {{128, 128, 0, 0, 0, 8, false}, {128, 128, 0, 0, 0, 16, false},
                                                {64, 64, 0, 0, 0, 16, false},  {128, 64, 0, 0, 0, 16, false},
                                                {128, 128, 0, 0, 0, 16, true}, {64, 64, 0, 0, 0, 16, true},
                                                {128, 64, 0, 0, 0, 16, true}};
enum { CPU_TILES = 7, CPU_HALF = 5, GPU_TILES = 7, GPU_HALF = 4, GPU_SMALL = 2, GPU_HALF_SMALL = 5 };
enum { LARGE, SMALL }; /* the second index of neb_ocl_tuning.tile */

const struct neb_ocl_tile *neb__ocl_tile(const struct neb_ocl *dev, int tile)
{
    return dev->cpu ? &cpu_tiles[tile] : &gpu_tiles[tile];
}

/* Bits of a variant: 0 type, 1 to 5 tile + 1 (0: packing alone), 6 to 9 activation, 10 to 13 slope (GPU), 14 fp16. */
uint32_t neb__ocl_tile_variant(const struct neb_ocl *dev, neb_dtype type, int tile, bool half, neb_act act,
                               neb_act slope)
{
    uint32_t v = (type == NEB_BF16) | (uint32_t)(tile + 1) << 1 | (uint32_t)half << 14;
    return dev->cpu ? v : v | (uint32_t)act << 6 | (uint32_t)slope << 10;
}

void neb__ocl_tile_options(const struct neb_ocl *dev, uint32_t variant, char *out, size_t size)
{
    const int tile = (int)(variant >> 1 & 31) - 1, half = (int)(variant >> 14 & 1);
    int n = snprintf(out, size, " -DHALF=%d -DKC=%d", half, NEB_OCL_CHUNK);
    if (tile < 0) return;
    const struct neb_ocl_tile *t = neb__ocl_tile(dev, tile);
    out += n, size -= (size_t)n;
    if (dev->cpu)
        snprintf(out, size, " -DPA=%d -DPB=%d -DGV=%d -DMR=%d -DNV=%d", t->a, t->b, t->lanes, t->mr, t->nv);
    else
        snprintf(out, size, " -DPA=%d -DPB=%d -DKT=%d -DACT=%d -DSLOPE=%d", t->a, t->b, t->kt,
                 (int)(variant >> 6 & 15), (int)(variant >> 10 & 15));
}

/* ---- measuring ---- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of the product with this tile, the best of three; negative when it does not run. */
static double time_tile(struct neb_ocl *dev, int tile, const struct neb_ocl_product *p)
{
    double best = -1;
    for (int i = 0; i < 4; i++) {
        if (clFinish(dev->queue) != CL_SUCCESS) return -1;
        double start = now();
        if (neb__ocl_product_by(dev, p, tile) != NEB_OK || clFinish(dev->queue) != CL_SUCCESS) return -1;
        double taken = now() - start;
        if (i > 0 && (best < 0 || taken < best)) best = taken; /* the first time compiles */
    }
    return best;
}

/* `known`, or the one of [first, end) that is the fastest for a product of zeros and faster than `known` (-1: none).
 * Negative when there is too little memory to measure, which is no error. */
static int fastest(struct neb_ocl *dev, int known, int first, int end, neb_dtype type, const int64_t dims[3])
{
    const int64_t m = dims[0], n = dims[1], k = dims[2];
    const size_t size = neb__ocl_size(type);
    const size_t bytes[3] = {(size_t)(m * k) * size, (size_t)(k * n) * size, (size_t)(m * n) * size};
    const size_t panels = (size_t)(m * k + k * n) * 8, all = bytes[0] + bytes[1] + bytes[2] + panels;
    void *mem[3] = {NULL, NULL, NULL};
    int best = known;
    double least = -1;
    bool ok = dev->memory.limit - dev->memory.used >= all;
    for (int i = 0; i < 3 && ok; i++)
        ok = neb__ocl_alloc(dev, bytes[i], &mem[i]) == NEB_OK &&
             neb__ocl_fill(dev, mem[i], 0, bytes[i]) == NEB_OK;
    struct neb_ocl_product p = {.a = mem[0],
                                .b = mem[1],
                                .c = mem[2],
                                .m = m,
                                .n = n,
                                .k = k,
                                .lda = k,
                                .ldb = k,
                                .ldc = n,
                                .trans_b = 1,
                                .alpha = 1,
                                .a_type = type,
                                .b_type = type,
                                .c_type = type};
    if (ok && known >= 0) least = time_tile(dev, known, &p);
    for (int i = first; i < end && ok; i++) {
        double taken = time_tile(dev, i, &p);
        if (taken > 0 && (least < 0 || taken < least)) least = taken, best = i;
    }
    for (int i = 0; i < 3; i++) neb__ocl_free(dev, mem[i]);
    return ok ? best : -1;
}

static const int64_t cpu_dims[3] = {256, 768, 512}, large_dims[3] = {4096, 4096, 1024},
                     small_dims[3] = {512, 512, 1024};

/* False when something could not be measured; then tile[][] is not to be used. */
static bool measure(struct neb_ocl *dev, int tile[2][2])
{
    const bool always = dev->fp16 == NEB_OCL_FP16_ALWAYS;
    if (dev->cpu) {
        tile[0][LARGE] = tile[0][SMALL] = fastest(dev, -1, 0, CPU_HALF, NEB_F32, cpu_dims);
    } else {
        tile[0][LARGE] = fastest(dev, -1, 0, GPU_HALF, NEB_F32, large_dims);
        tile[0][SMALL] = fastest(dev, -1, GPU_SMALL, GPU_HALF, NEB_F32, small_dims);
    }
    const int large = always ? -1 : tile[0][LARGE], small = always ? -1 : tile[0][SMALL];
    if (tile[0][LARGE] < 0 || tile[0][SMALL] < 0) return false;
    if (dev->fp16 == NEB_OCL_FP16_NEVER) {
        memcpy(tile[1], tile[0], sizeof tile[1]);
    } else if (dev->cpu) {
        tile[1][LARGE] = tile[1][SMALL] = fastest(dev, large, CPU_HALF, CPU_TILES, NEB_BF16, cpu_dims);
    } else {
        tile[1][LARGE] = fastest(dev, large, GPU_HALF, GPU_TILES, NEB_BF16, large_dims);
        tile[1][SMALL] = fastest(dev, small, GPU_HALF_SMALL, GPU_TILES, NEB_BF16, small_dims);
    }
    return tile[1][LARGE] >= 0 && tile[1][SMALL] >= 0;
}

/* ---- remembering ---- */

static void tune_key(const struct neb_ocl *dev, char *key, size_t size)
{
    unsigned char digest[32];
    char hex[65];
    neb__ocl_sha256(neb__ocl_sources[NEB_OCL_GEMM].text, neb__ocl_sources[NEB_OCL_GEMM].size, digest);
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    snprintf(key, size, "tiles\n%s\n%s\nfp16 %d\n%s\n", dev->kernels.key, dev->cpu ? "cpu" : "gpu",
             (int)dev->fp16, hex);
}

static bool remembered(struct neb_ocl *dev, const char *key)
{
    unsigned char *bytes;
    size_t n;
    const int end = dev->cpu ? CPU_TILES : GPU_TILES, half = dev->cpu ? CPU_HALF : GPU_HALF;
    if (!neb__ocl_cache_read(dev, key, &bytes, &n)) return false;
    bool ok = n == 4;
    for (int i = 0; i < 4 && ok; i++) ok = bytes[i] < (i < 2 || dev->fp16 == NEB_OCL_FP16_NEVER ? half : end);
    for (int i = 0; i < 4 && ok; i++) dev->tuning.tile[i / 2][i % 2] = bytes[i];
    free(bytes);
    return ok;
}

static void say(const struct neb_ocl *dev)
{
    char text[2][80];
    for (int i = 0; i < 2; i++) {
        const struct neb_ocl_tile *large = neb__ocl_tile(dev, dev->tuning.tile[i][LARGE]),
                                  *small = neb__ocl_tile(dev, dev->tuning.tile[i][SMALL]);
        snprintf(text[i], sizeof text[i], "%d x %d%s, small ones %d x %d%s", large->a, large->b,
                 large->half ? " in fp16" : "", small->a, small->b, small->half ? " in fp16" : "");
    }
    neb__ocl_log(dev, 1, "opencl %d: measured: products use tiles of %s%s%s", dev->config.index, text[0],
                 dev->fp16 ? "; with factors in bf16 " : "", dev->fp16 ? text[1] : "");
}

/* What serves until something was measured. */
static void start(struct neb_ocl *dev)
{
    struct neb_ocl_tuning *t = &dev->tuning;
    const bool half = dev->fp16 == NEB_OCL_FP16_ALWAYS;
    t->ready = true;
    t->tile[0][LARGE] = 0;
    t->tile[0][SMALL] = dev->cpu ? 0 : GPU_SMALL;
    memcpy(t->tile[1], t->tile[0], sizeof t->tile[1]);
    if (!half) return;
    t->tile[1][LARGE] = dev->cpu ? CPU_HALF : GPU_HALF;
    t->tile[1][SMALL] = dev->cpu ? CPU_HALF : GPU_HALF_SMALL;
}

void neb__ocl_tune(struct neb_ocl *dev)
{
    char key[1000];
    struct neb_ocl_tuning *t = &dev->tuning;
    if (t->done || dev->recording) return;
    if (!t->ready) start(dev);
    t->done = true;
    if (dev->config.deterministic) return;
    tune_key(dev, key, sizeof key);
    if (remembered(dev, key)) return;
    int tile[2][2];
    if (!measure(dev, tile)) return;
    memcpy(t->tile, tile, sizeof tile);
    unsigned char chosen[4];
    for (int i = 0; i < 4; i++) chosen[i] = (unsigned char)t->tile[i / 2][i % 2];
    neb__ocl_cache_write(dev, key, chosen, 4);
    say(dev);
}

int neb__ocl_tile_of(struct neb_ocl *dev, const struct neb_ocl_product *p)
{
    struct neb_ocl_tuning *t = &dev->tuning;
    if (!t->ready) start(dev);
    if (!t->done && p->m * p->n * p->k >= (int64_t)1 << 25) neb__ocl_tune(dev);
    const int narrow = p->a_type == NEB_BF16 || p->b_type == NEB_BF16;
    const struct neb_ocl_tile *large = neb__ocl_tile(dev, t->tile[narrow][LARGE]);
    const int64_t tiles = neb__ocl_ceil(p->m, large->a) * neb__ocl_ceil(p->n, large->b);
    return t->tile[narrow][t->done && tiles >= (int64_t)dev->units ? LARGE : SMALL];
}
