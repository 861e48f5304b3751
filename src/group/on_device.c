/* on_device.c: attaching a group to its ranks' devices, and the way of each exchange: host memory, the devices' own
 * library, or through the host (on_device.h). */
#include "group/on_device.h"
#include "base/log.h"
#include "base/mem.h"
#include "group/group_internal.h"

#include <stdio.h>
#include <string.h>

/* ---- attaching --------------------------------------------------------------------------------------------- */

/* What each rank tells the others before they join: doubles hold 32 bits exactly. */
enum { KIND, LIBRARY, SHARES, DEVICE, DEVICE2, WORDS };
enum { ON_HOST = 1, WITHOUT_LIBRARY, WITH_LIBRARY };

static double low32(uint64_t v)
{
    return (double)(uint32_t)v;
}

static neb_status own_facts(const struct neb_device_ops *ops, void *dev, struct neb_comm_facts *f,
                            double *out)
{
    memset(f, 0, sizeof *f);
    out[KIND] = strcmp(ops->name, "cpu") ? WITHOUT_LIBRARY : ON_HOST;
    if (out[KIND] == ON_HOST || !ops->exchange) return NEB_OK;
    neb_status status = ops->comm_facts(dev, f);
    if (status == NEB_ERR_NOTFOUND) return NEB_OK;
    NEB_TRY(status);
    out[KIND] = WITH_LIBRARY;
    out[LIBRARY] = (double)f->version;
    out[SHARES] = f->shares;
    out[DEVICE] = low32(f->device);
    out[DEVICE2] = low32(f->device >> 32);
    return NEB_OK;
}

static neb_status refuse_shared(const struct neb_group *g, const struct neb_comm_facts *f, int a, int b)
{
    return neb__fail(
        NEB_ERR_CONFIG,
        "ranks %d and %d of this group of %d compute on the same GPU, which %s as it is set up here does not "
        "allow: start one rank for each GPU, or %s",
        a, b, g->size, f->library, f->sharing);
}

/* All ranks see the same numbers and come to the same result. */
static neb_status compare(struct neb_group *g, const double *all, const struct neb_comm_facts *own,
                          bool *library)
{
    *library = true;
    for (int r = 0; r < g->size; r++) {
        const double *v = all + r * WORDS;
        if ((v[KIND] == ON_HOST) != (all[KIND] == ON_HOST))
            return neb__fail(
                NEB_ERR_CONFIG,
                "the ranks compute on different devices: rank 0 of the group on %s, rank %d on %s; set "
                "train.device to cpu, or give every rank a GPU",
                all[KIND] == ON_HOST ? "the CPU" : "a GPU", r, v[KIND] == ON_HOST ? "the CPU" : "a GPU");
        *library &= v[KIND] == WITH_LIBRARY;
    }
    for (int r = 0; *library && r < g->size; r++) {
        const double *v = all + r * WORDS;
        if (v[LIBRARY] != all[LIBRARY])
            return neb__fail(
                NEB_ERR_VERSION,
                "the ranks have different versions of NCCL (%.0f and %.0f): every machine must have the same",
                all[LIBRARY], v[LIBRARY]);
        for (int q = 0; q < r; q++) {
            const double *u = all + q * WORDS;
            bool same = v[DEVICE] == u[DEVICE] && v[DEVICE2] == u[DEVICE2];
            if (same && !(v[SHARES] && u[SHARES])) return refuse_shared(g, own, q, r);
            g->device.shared |= same;
        }
    }
    return NEB_OK;
}

static neb_status open_comm(struct neb_group *g, const struct neb_device_ops *ops, void *dev)
{
    struct neb_comm_place place = {.rank = g->rank, .size = g->size, .timeout_s = g->timeout_s};
    neb_status status = g->rank ? NEB_OK : ops->comm_id(dev, &place.id);
    NEB_TRY(neb__group_agree(g, status));
    NEB_TRY(neb__group_broadcast(g, &place.id, sizeof place.id, 0));
    void *comm = NULL;
    status = neb__group_agree(g, ops->comm_open(dev, &place, &comm));
    if (status != NEB_OK) {
        if (comm) ops->comm_close(dev, comm);
        return status;
    }
    g->device.comm = comm;
    return neb__exchange_watch(g);
}

neb_status neb__group_attach(struct neb_group *g, const struct neb_device_ops *ops, void *dev)
{
    struct neb_comm_facts facts;
    int64_t edge[NEB_GROUP_RANKS + 1];
    bool library;
    if (!g || g->size == 1 || neb__group_pretended(g)) return NEB_OK;
    double *all = NEB_NEW_ARRAY(double, (size_t)g->size *WORDS);
    neb_status status = all ? own_facts(ops, dev, &facts, all + g->rank * WORDS)
                            : neb__fail(NEB_ERR_NOMEM, "out of memory for the facts of %d ranks", g->size);
    status = neb__group_agree(g, status);
    for (int r = 0; r <= g->size; r++) edge[r] = (int64_t)r * WORDS;
    if (status == NEB_OK) status = neb__group_gather_doubles(g, all, edge);
    if (status == NEB_OK) status = compare(g, all, &facts, &library);
    const bool host = all && all[KIND] == ON_HOST;
    neb__free(all);
    NEB_TRY(status);
    if (host) return NEB_OK;
    g->device.ops = ops;
    g->device.ctx = dev;
    if (library) return open_comm(g, ops, dev);
    if (!neb__group_site_rank(g))
        neb__info("the ranks' devices exchange values through the host's memory, because NCCL was not found "
                  "at every "
                  "rank (libnccl.so.2; NEBULA_NCCL_LIB names its folder)");
    return NEB_OK;
}

void neb__group_detach(struct neb_group *g)
{
    if (!g || !g->device.ops) return;
    const struct neb_device_ops *ops = g->device.ops;
    neb__exchange_unwatch(g);
    if (g->device.comm) ops->comm_close(g->device.ctx, g->device.comm);
    if (g->device.stage && ops->host_alloc)
        ops->host_free(g->device.ctx, g->device.stage);
    else
        neb__free(g->device.stage);
    memset(&g->device, 0, sizeof g->device);
}

bool neb__group_staged(const struct neb_group *g)
{
    return g && g->device.ops && !g->device.comm;
}

/* ---- through the host -------------------------------------------------------------------------------------- */

static neb_status need_stage(struct neb_group *g, size_t bytes)
{
    const struct neb_device_ops *ops = g->device.ops;
    if (bytes <= g->device.stage_bytes) return NEB_OK;
    if (g->device.stage && ops->host_alloc)
        ops->host_free(g->device.ctx, g->device.stage);
    else
        neb__free(g->device.stage);
    g->device.stage = NULL;
    g->device.stage_bytes = 0;
    if (ops->host_alloc)
        NEB_TRY(ops->host_alloc(g->device.ctx, bytes, &g->device.stage));
    else if (!(g->device.stage = neb__malloc(bytes)))
        return neb__fail(NEB_ERR_NOMEM, "out of memory for %zu bytes that ranks exchange", bytes);
    g->device.stage_bytes = bytes;
    return NEB_OK;
}

static size_t width(neb_dtype type)
{
    if (type == NEB_F32 || type == NEB_I32) return 4;
    return type == NEB_BF16 ? 2 : 1;
}

/* Values [first, end) of the array between the device and the stage. */
static neb_status fetch(struct neb_group *g, const struct neb_comm_exchange *x, int64_t first, int64_t end)
{
    const size_t w = width(x->type), at = (size_t)first * w;
    if (first >= end) return NEB_OK;
    return g->device.ops->download(g->device.ctx, (char *)g->device.stage + at, (char *)x->values + at,
                                   (size_t)(end - first) * w);
}

static neb_status put(struct neb_group *g, const struct neb_comm_exchange *x, int64_t first, int64_t end)
{
    const size_t w = width(x->type), at = (size_t)first * w;
    if (first >= end) return NEB_OK;
    return g->device.ops->upload(g->device.ctx, (char *)x->values + at, (char *)g->device.stage + at,
                                 (size_t)(end - first) * w);
}

static uint16_t to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* bf16 values are added in fp32. */
static neb_status add_up(struct neb_group *g, void *values, int64_t n, neb_dtype type)
{
    if (type == NEB_F32 || neb__group_pretended(g)) return neb__group_sum(g, values, n);
    uint16_t *half = values;
    float *wide = NEB_NEW_ARRAY(float, (size_t)n);
    if (!wide) return neb__fail(NEB_ERR_NOMEM, "out of memory for a sum of %" PRId64 " values", n);
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = (uint32_t)half[i] << 16;
        memcpy(&wide[i], &u, sizeof u);
    }
    neb_status status = neb__group_sum(g, wide, n);
    for (int64_t i = 0; status == NEB_OK && i < n; i++) half[i] = to_bf16(wide[i]);
    neb__free(wide);
    return status;
}

static neb_status gather_stage(struct neb_group *g, const struct neb_comm_exchange *x)
{
    int64_t bytes[NEB_GROUP_RANKS + 1];
    for (int r = 0; r <= g->size; r++) bytes[r] = x->edge[r] * (int64_t)width(x->type);
    return neb__group_gather_bytes(g, g->device.stage, bytes);
}

static neb_status through_host(struct neb_group *g, const struct neb_comm_exchange *x)
{
    const int64_t *e = x->edge, own = e ? e[g->rank] : 0, end = e ? e[g->rank + 1] : 0;
    NEB_TRY(need_stage(g, (size_t)x->n * width(x->type)));
    switch (x->op) {
    case NEB_EXCHANGE_SUM:
        NEB_TRY(fetch(g, x, 0, x->n));
        NEB_TRY(add_up(g, g->device.stage, x->n, x->type));
        return put(g, x, 0, x->n);
    case NEB_EXCHANGE_SUM_SCATTER:
        NEB_TRY(fetch(g, x, 0, x->n));
        NEB_TRY(x->type == NEB_F32 ? neb__group_sum_scatter(g, g->device.stage, e)
                                   : add_up(g, g->device.stage, x->n, x->type));
        return put(g, x, own, end);
    case NEB_EXCHANGE_GATHER:
        NEB_TRY(fetch(g, x, own, end));
        NEB_TRY(gather_stage(g, x));
        NEB_TRY(put(g, x, 0, own));
        return put(g, x, end, x->n);
    case NEB_EXCHANGE_BROADCAST:
        if (g->rank == x->peer) NEB_TRY(fetch(g, x, 0, x->n));
        NEB_TRY(neb__group_broadcast(g, g->device.stage, (size_t)x->n * width(x->type), x->peer));
        return g->rank == x->peer ? NEB_OK : put(g, x, 0, x->n);
    case NEB_EXCHANGE_SEND:
    case NEB_EXCHANGE_RECEIVE: break;
    }
    return neb__fail(NEB_ERR_INTERNAL, "unknown exchange %d", (int)x->op);
}

/* ---- exchanges --------------------------------------------------------------------------------------------- */

static bool alone(const struct neb_group *g)
{
    return !g || g->size == 1;
}

static neb_status exchange(struct neb_group *g, const struct neb_comm_exchange *x)
{
    if (x->n < 1) return NEB_OK;
    if (!g->device.comm) return through_host(g, x);
    NEB_TRY(neb__group_usable(g));
    neb__group_beat(g);
    return g->device.ops->exchange(g->device.ctx, g->device.comm, x);
}

neb_status neb__device_sum(struct neb_group *g, void *values, int64_t n, neb_dtype type)
{
    if (alone(g)) return NEB_OK;
    if (!g->device.ops) return add_up(g, values, n, type);
    return exchange(
        g, &(struct neb_comm_exchange){.op = NEB_EXCHANGE_SUM, .values = values, .n = n, .type = type});
}

neb_status neb__device_sum_scatter(struct neb_group *g, void *values, const int64_t *edge, neb_dtype type)
{
    if (alone(g)) return NEB_OK;
    if (!g->device.ops && type == NEB_F32) return neb__group_sum_scatter(g, values, edge);
    if (!g->device.ops) return add_up(g, values, edge[g->size], type);
    return exchange(g, &(struct neb_comm_exchange){.op = NEB_EXCHANGE_SUM_SCATTER,
                                                   .values = values,
                                                   .n = edge[g->size],
                                                   .edge = edge,
                                                   .type = type});
}

neb_status neb__device_gather_begin(struct neb_group *g, void *values, const int64_t *edge, neb_dtype type,
                                    int *ticket)
{
    *ticket = 0;
    if (alone(g)) return NEB_OK;
    if (!g->device.ops) {
        int64_t bytes[NEB_GROUP_RANKS + 1];
        for (int r = 0; r <= g->size; r++) bytes[r] = edge[r] * (int64_t)width(type);
        return neb__group_gather_begin(g, values, bytes, ticket);
    }
    return exchange(
        g, &(struct neb_comm_exchange){
               .op = NEB_EXCHANGE_GATHER, .values = values, .n = edge[g->size], .edge = edge, .type = type});
}

neb_status neb__device_gather(struct neb_group *g, void *values, const int64_t *edge, neb_dtype type)
{
    int ticket;
    NEB_TRY(neb__device_gather_begin(g, values, edge, type, &ticket));
    return neb__group_gather_join(g, ticket);
}

neb_status neb__device_broadcast(struct neb_group *g, void *values, int64_t n, neb_dtype type, int root)
{
    if (alone(g)) return NEB_OK;
    if (!g->device.ops) return neb__group_broadcast(g, values, (size_t)n * width(type), root);
    return exchange(g,
                    &(struct neb_comm_exchange){
                        .op = NEB_EXCHANGE_BROADCAST, .values = values, .n = n, .peer = root, .type = type});
}

/* ---- beside the device's stream ------------------------------------------------------------------------------ */

bool neb__device_sums_beside(const struct neb_group *g)
{
    if (alone(g)) return false;
    if (!g->device.ops) return neb__group_sums_beside(g);
    return g->device.comm && g->device.ops->exchange_beside;
}

bool neb__device_shared(const struct neb_group *g)
{
    return !alone(g) && g->device.shared;
}

static neb_status begin_beside(struct neb_group *g, const struct neb_comm_exchange *x)
{
    NEB_TRY(neb__group_usable(g));
    neb__group_beat(g);
    return g->device.ops->exchange_beside(g->device.ctx, g->device.comm, x);
}

neb_status neb__device_sum_begin(struct neb_group *g, float *values, int64_t n, const int64_t *edge)
{
    if (alone(g) || n < 1) return NEB_OK;
    if (!g->device.ops) return neb__group_sum_begin(g, values, n);
    const struct neb_comm_exchange x = {.op = edge ? NEB_EXCHANGE_SUM_SCATTER : NEB_EXCHANGE_SUM,
                                        .values = values,
                                        .n = n,
                                        .edge = edge,
                                        .type = NEB_F32};
    return neb__device_sums_beside(g) ? begin_beside(g, &x) : exchange(g, &x);
}

neb_status neb__device_sum_join(struct neb_group *g)
{
    if (alone(g)) return NEB_OK;
    if (!g->device.ops) return neb__group_sum_join(g);
    return neb__device_sums_beside(g) ? g->device.ops->exchange_join(g->device.ctx, g->device.comm) : NEB_OK;
}

bool neb__device_sends(const struct neb_group *g)
{
    return !alone(g) && g->device.comm && g->device.ops->exchange_beside;
}

neb_status neb__device_send_begin(struct neb_group *g, void *bytes, size_t n, int to)
{
    return begin_beside(
        g, &(struct neb_comm_exchange){
               .op = NEB_EXCHANGE_SEND, .values = bytes, .n = (int64_t)n, .peer = to, .type = NEB_I8});
}

neb_status neb__device_send_join(struct neb_group *g)
{
    return g->device.ops->exchange_join(g->device.ctx, g->device.comm);
}

neb_status neb__device_receive(struct neb_group *g, void *bytes, size_t n, int from)
{
    return exchange(
        g, &(struct neb_comm_exchange){
               .op = NEB_EXCHANGE_RECEIVE, .values = bytes, .n = (int64_t)n, .peer = from, .type = NEB_I8});
}
