/* kernels_choose.c: the kernels use the best instruction set that the machine has. They ask once. */
#include "codec/kernels.h"

#include <stdatomic.h>
#include <string.h>

static _Atomic(const struct neb__codec_kernels *) chosen;

static const struct neb__codec_kernels *find(const char *name)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512 && (!name || !strcmp(name, "avx512"))) return &neb__codec_kernels_avx512;
    if (avx2 && (!name || !strcmp(name, "avx2"))) return &neb__codec_kernels_avx2;
#endif
    return !name || !strcmp(name, "plain") ? &neb__codec_kernels_plain : NULL;
}

const struct neb__codec_kernels *neb__codec_kernels(void)
{
    const struct neb__codec_kernels *k = atomic_load_explicit(&chosen, memory_order_acquire);
    if (k) return k;
    k = find(NULL);
    atomic_store_explicit(&chosen, k, memory_order_release);
    return k;
}

const char *neb__codec_simd(void)
{
    return neb__codec_kernels()->name;
}

neb_status neb__codec_force(const char *name)
{
    const struct neb__codec_kernels *k = find(name);
    if (!k) return neb__quiet(NEB_ERR_UNSUPPORTED, "this machine has no %s", name);
    atomic_store_explicit(&chosen, k, memory_order_release);
    return NEB_OK;
}
