/* stated_gpu.c: a GPU that is not here, for a rehearsal (rehearse.c) on a machine without one.
 *
 * The CPU's device gets the name, the allocator's units, the work memory and the scratch sizes of the CUDA device (cuda/memory.cu,
 * device.cu, attn_bwd.cu, linear.cu, linear_xent.cu, muon.cu, norm.cu, rows.cu). So the training goes the way that it goes on a GPU, and
 * asks for what it asks for there. One number is not known without the library: what its sort needs for the rows of an embedding. It is
 * taken to be their keys once more and a histogram. tests/test_plan_device.c has the numbers beside those of the CUDA sources. */
#include "base/mem.h"
#include "device/device.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum {
    SMALL = 512,
    LARGE = 2 << 20,
    FROM = 1 << 20,  /* bytes from which LARGE is the unit */
    HELD = 96 << 20, /* work memory: 32 MiB of kernels, 64 MiB of products */
    NORM_BLOCKS = 396,
    EMBED_CHUNK = 64, /* rows */
    MUON_SUMS = 128,
    SORT = 64 << 10
};
static const int64_t logits_most = (int64_t)1 << 30; /* of a chunk of rows */

struct stated {
    void *cpu;
    const struct neb_device_ops *ops; /* of the CPU */
    bool deterministic;
    int64_t used;
};

static int64_t up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* ---- memory: a rehearsal takes a few blocks to learn the units, and gives them back ----------------------------- */

static neb_status alloc(void *dev, size_t bytes, void **out)
{
    struct stated *s = dev;
    const int64_t takes = up(bytes ? (int64_t)bytes : 1, bytes >= FROM ? LARGE : SMALL);
    int64_t *p = neb__malloc(sizeof *p);
    if (!p) return neb__fail(NEB_ERR_NOMEM, "out of memory for a stated GPU");
    *p = takes;
    s->used += takes;
    *out = p;
    return NEB_OK;
}

static void release(void *dev, void *p)
{
    struct stated *s = dev;
    if (p) s->used -= *(int64_t *)p;
    neb__free(p);
}

static void info(void *dev, struct neb_device_info *out)
{
    const struct stated *s = dev;
    *out = (struct neb_device_info){.memory_used = s->used, .memory_peak = s->used, .asynchronous = 1};
    snprintf(out->description, sizeof out->description, "a GPU from stated constants");
}

static void close_stated(void *dev)
{
    struct stated *s = dev;
    s->ops->close(s->cpu);
    neb__free(s);
}

/* ---- what kernels need for a moment ----------------------------------------------------------------------------- */

static int64_t embed_bwd(const struct neb_embed *p)
{
    return 4 * up(p->rows * 4, 256) + up(2 * p->rows * 4 + SORT, 256) +
           up(p->rows, EMBED_CHUNK) / EMBED_CHUNK * 2 * p->d * 4 + 256;
}

static int64_t linear_bwd(const struct neb_linear_bwd *p)
{
    const bool product = p->acc_dx && p->x_act != NEB_ACT_NONE;
    return (product ? up(p->rows * p->in * (int64_t)neb__dtype_size(p->type), 256) : 0) + up(p->in * 4, 256) +
           up(p->out * 4, 256);
}

static int64_t attn_bwd(const struct stated *s, const struct neb_attn_bwd *b)
{
    const struct neb_attn *p = &b->f;
    const int64_t delta = up(p->heads * p->q_rows * 4, 256), sum = p->q_rows * p->heads * p->head_dim * 4,
                  keys = p->max_k <= 64 ? 64 : 128;
    if (p->type != NEB_BF16 || p->max_k <= keys) return delta;
    return delta + (s->deterministic ? up(p->max_k, keys) / keys * sum : sum);
}

static int64_t linear_xent(const struct neb_linear_xent *p)
{
    const int64_t size = (int64_t)neb__dtype_size(p->type);
    if (p->rows <= 0) return 0;
    const int64_t classes = p->share ? (p->share->total + p->share->ranks - 1) / p->share->ranks : p->classes;
    const int64_t chunks = up(p->rows * up(classes, 64) * size, logits_most) / logits_most;
    int64_t rows = up((p->rows + chunks - 1) / chunks, 128);
    if (rows > p->rows) rows = p->rows;
    const int64_t sums = p->share ? rows * p->share->ranks * (int64_t)sizeof(struct neb_class_sums) : 0;
    return up(rows * up(p->classes, 64) * size, 256) + up(p->rows * 5, 256) + up(sums, 256);
}

static int64_t muon(const struct neb_muon_args *a)
{
    const int64_t side = a->rows < a->cols ? a->rows : a->cols, size = (int64_t)neb__dtype_size(a->type);
    return up(a->batch * MUON_SUMS * (int64_t)sizeof(float), 256) +
           2 * up(a->batch * a->rows * a->cols * size, 256) + 2 * up(a->batch * side * side * size, 256);
}

static int64_t scratch(void *dev, enum neb_slot slot, const void *args)
{
    switch (slot) {
    case NEB_SLOT_EMBED_BWD: return embed_bwd(args);
    case NEB_SLOT_NORM_BWD: return (int64_t)NORM_BLOCKS * 2 * ((const struct neb_norm_bwd *)args)->d * 4;
    case NEB_SLOT_LINEAR_BWD: return linear_bwd(args);
    case NEB_SLOT_ATTN_BWD: return attn_bwd(dev, args);
    case NEB_SLOT_LINEAR_XENT: return linear_xent(args);
    case NEB_SLOT_MUON: return muon(args);
    default: return 0;
    }
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

/* They only say that there are such slots: a rehearsal puts its own in their place. */
static neb_status side(void *dev, void *dst, const void *src, size_t bytes, uint64_t *fence)
{
    (void)dev, (void)dst, (void)src, (void)bytes, (void)fence;
    return NEB_ERR_UNSUPPORTED;
}

neb_status neb__device_state_gpu(struct neb_device *d)
{
    static struct neb_device_ops table;
    struct stated *s = NEB_NEW(struct stated);
    if (!s) return neb__fail(NEB_ERR_NOMEM, "out of memory for a stated GPU");
    *s = (struct stated){
        .cpu = d->ctx, .ops = d->ops, .deterministic = d->config.deterministic != 0, .used = HELD};
    table = *d->ops;
    table.name = "cuda";
    table.alloc = alloc, table.free = release, table.info = info, table.close = close_stated;
    table.scratch_bytes = scratch;
    table.side_upload = table.side_download = side;
    table.packed_bytes = NULL, table.pack_linear = NULL;
    d->ctx = s;
    d->ops = &table;
    return NEB_OK;
}
