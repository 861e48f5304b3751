/* cpu.c: the CPU device: context, memory, the table of slots.
 *
 * Host and device memory are the same, calls are finished when they return, and there is one thread pool. All
 * memory counts against memory_limit, including the device's own work memory. Large blocks ask the kernel for
 * huge pages, because a product walks over so many rows that the TLB cannot hold their 4 KiB pages. Every
 * block has its size in front of it. */
#define _GNU_SOURCE
#include "device/cpu/cpu.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALIGN = 256, HUGE = 2 << 20 };

struct block {
    void *raw;
    size_t bytes;
};

static struct block *block_of(void *p)
{
    return (struct block *)((char *)p - sizeof(struct block));
}

/* Addresses without memory behind them: pages come when they are written. */
static void *reserve(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void neb__cpu_rehearse(void *dev)
{
    struct neb_cpu *c = dev;
    c->rehearses = true;
    c->limit = 0;
    neb__pool_rehearse(c->pool);
}

neb_status neb__cpu_alloc(void *dev, size_t bytes, void **out)
{
    struct neb_cpu *c = dev;
    const size_t align = bytes >= HUGE ? HUGE : ALIGN, total = bytes + align + ALIGN;
    if (total < bytes || (c->limit > 0 && (total > INT64_MAX || (int64_t)bytes > c->limit - c->used)))
        return neb__fail(NEB_ERR_NOMEM,
                         "cpu: cannot allocate %zu bytes: %" PRId64
                         " bytes are held and the limit is %" PRId64,
                         bytes, c->used, c->limit);
    void *raw = c->rehearses ? reserve(total) : neb__malloc(total);
    if (!raw)
        return neb__fail(NEB_ERR_NOMEM,
                         "cpu: the system has no %.2f GiB more; this process holds %.2f GiB of tensors",
                         (double)bytes / 0x1p30, (double)c->used / 0x1p30);
    uintptr_t at = ((uintptr_t)raw + sizeof(struct block) + align - 1) & ~(uintptr_t)(align - 1);
    if (bytes >= HUGE && !c->rehearses) madvise((void *)at, bytes, MADV_HUGEPAGE); /* advice only */
    *block_of((void *)at) = (struct block){raw, bytes};
    c->used += (int64_t)bytes;
    if (c->used > c->peak) c->peak = c->used;
    *out = (void *)at;
    return NEB_OK;
}

void neb__cpu_free(void *dev, void *p)
{
    struct neb_cpu *c = dev;
    if (!p) return;
    const struct block b = *block_of(p);
    c->used -= (int64_t)b.bytes;
    if (c->rehearses)
        munmap(b.raw, b.bytes + (b.bytes >= HUGE ? HUGE : ALIGN) + ALIGN);
    else
        neb__free(b.raw);
}

neb_status neb__cpu_work(struct neb_cpu *c, enum neb_cpu_work use, size_t bytes, void **out)
{
    if (c->work[use].bytes < bytes) {
        neb__cpu_free(c, c->work[use].p);
        c->work[use].p = NULL;
        c->work[use].bytes = 0;
        NEB_TRY(neb__cpu_alloc(c, bytes, &c->work[use].p));
        c->work[use].bytes = bytes;
    }
    *out = c->work[use].p;
    return NEB_OK;
}

struct range_job {
    neb_kernel fn;
    const void *args;
    int64_t n, grain;
    void *aux;
};

static void range_task(void *arg, int task, int worker)
{
    const struct range_job *j = arg;
    int64_t lo = task * j->grain, hi = lo + j->grain;
    j->fn(j->args, &(struct neb_span){lo, hi < j->n ? hi : j->n, task, worker, j->aux});
}

void neb__cpu_range(struct neb_cpu *c, neb_kernel fn, const void *args, int64_t n, int64_t grain, void *aux)
{
    struct range_job job = {fn, args, n, grain, aux};
    if (n > 0) neb__pool_run(c->pool, range_task, &job, (int)((n + grain - 1) / grain));
}

neb_status neb__cpu_check_type(const char *op, neb_dtype type)
{
    if (type == NEB_F32 || type == NEB_BF16) return NEB_OK;
    return neb__fail(NEB_ERR_DTYPE, "cpu: %s works on f32 and bf16, not on type %d", op, (int)type);
}

neb_status neb__cpu_check_drop(const char *op, const struct neb_dropout *d)
{
    if (d->threshold < 65536) return NEB_OK;
    return neb__fail(NEB_ERR_INVALID, "cpu: %s: dropout threshold %u is not below 65536", op, d->threshold);
}

/* ---- opening ---- */

static const struct neb_cpu_kernels *const sets[] = {
#if defined(__x86_64__)
    &neb__cpu_kernels_avx512,
    &neb__cpu_kernels_avx2,
#endif
    &neb__cpu_kernels_plain,
};

static int runs_here(const struct neb_cpu_kernels *k)
{
#if defined(__x86_64__)
    if (!strcmp(k->name, "avx512"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("fma");
    if (!strcmp(k->name, "avx2")) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return 1;
}

static neb_status choose(const char *isa, const struct neb_cpu_kernels **out)
{
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        if (isa && strcmp(isa, sets[i]->name)) continue;
        if (!runs_here(sets[i])) {
            if (!isa) continue;
            return neb__fail(NEB_ERR_UNSUPPORTED, "cpu: this processor does not support %s", isa);
        }
        *out = sets[i];
        return NEB_OK;
    }
    return neb__fail(NEB_ERR_CONFIG, "cpu: instruction set '%s' is not one of avx512, avx2, plain", isa);
}

static neb_status cpu_open(const struct neb_device_config *config, void **dev)
{
    if (config->index != 0 && !config->spread)
        return neb__fail(NEB_ERR_NOTFOUND, "cpu: device %d does not exist; the only one is 0", config->index);
    if (config->memory_limit < 0)
        return neb__fail(NEB_ERR_INVALID, "cpu: memory limit %" PRId64 " is negative", config->memory_limit);
    NEB_TRY(neb__cpu_check_type("the device", config->compute));
    const struct neb_cpu_kernels *k = NULL;
    NEB_TRY(choose(config->isa, &k));
    struct neb_cpu *c = NEB_NEW(struct neb_cpu);
    if (!c) return neb__fail(NEB_ERR_NOMEM, "out of memory for the CPU device");
    c->k = k;
    c->compute = config->compute;
    c->limit = config->memory_limit;
    neb_status status = neb__pool_create(config->threads, &c->pool);
    if (status != NEB_OK) {
        neb__free(c);
        return status;
    }
    *dev = c;
    return NEB_OK;
}

static void cpu_close(void *dev)
{
    struct neb_cpu *c = dev;
    for (int i = 0; i < NEB_WORK_COUNT; i++) neb__cpu_free(c, c->work[i].p);
    neb__cpu_free(c, c->rope.cosine);
    neb__pool_destroy(c->pool);
    neb__free(c);
}

static void cpu_info(void *dev, struct neb_device_info *out)
{
    const struct neb_cpu *c = dev;
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    *out = (struct neb_device_info){0};
    snprintf(out->description, sizeof out->description, "CPU, %d thread%s, %s", neb__pool_threads(c->pool),
             neb__pool_threads(c->pool) == 1 ? "" : "s", c->k->name);
    if (pages > 0 && size > 0) out->memory_total = (int64_t)pages * size;
    if (c->limit > 0) out->memory_total = c->limit;
    out->memory_used = c->used;
    out->memory_peak = c->peak;
}

static neb_status cpu_transfer(void *dev, void *dst, const void *src, size_t bytes)
{
    (void)dev;
    if (bytes) memmove(dst, src, bytes);
    return NEB_OK;
}

static neb_status cpu_fill(void *dev, void *dst, uint8_t byte, size_t bytes)
{
    (void)dev;
    if (bytes) memset(dst, byte, bytes);
    return NEB_OK;
}

static neb_status cpu_sync(void *dev)
{
    (void)dev;
    return NEB_OK;
}

const struct neb_device_ops neb__cpu_ops = {
    .abi = NEB_DEVICE_ABI,
    .flags = NEB_DEVICE_JUDGED,
    .size = sizeof(struct neb_device_ops),
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .info = cpu_info,
    .alloc = neb__cpu_alloc,
    .free = neb__cpu_free,
    .upload = cpu_transfer,
    .download = cpu_transfer,
    .copy = cpu_transfer,
    .fill = cpu_fill,
    .sync = cpu_sync,
#define NEB__X(slot, args) .slot = neb__cpu_##slot,
    NEB_CPU_SLOTS(NEB__X)
#undef NEB__X
        .norm_residual = neb__cpu_norm,
    .norm_residual_bwd = neb__cpu_norm_bwd,
    .packed_bytes = neb__cpu_packed_bytes,
};
