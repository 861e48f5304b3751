/* pretend.c: see pretend.h. The engine of a pretended group answers each call with a request that is over. */
#include "group/pretend.h"
#include "base/mem.h"
#include "group/group_internal.h"

struct pretended {
    struct pretended *parent; /* it counts what its parts exchange, too; or NULL */
    struct neb_group_place place;
    struct neb_rank_traffic traffic;
};

static void count(void *ctx, enum neb_traffic_kind kind, double bytes)
{
    for (struct pretended *p = ctx; p; p = p->parent) {
        p->traffic.calls[kind]++;
        p->traffic.bytes[kind] += bytes;
    }
}

static neb_status over(void **request)
{
    *request = NULL;
    return NEB_OK;
}

static neb_status open_none(const struct neb_group_host *host, void **ctx, struct neb_group_place *out)
{
    (void)host, (void)ctx, (void)out;
    return NEB_ERR_UNSUPPORTED;
}

static neb_status split(void *ctx, int color, void **out, struct neb_group_place *place)
{
    (void)color;
    struct pretended *p = NEB_NEW(struct pretended);
    if (!p) return neb__fail(NEB_ERR_NOMEM, "out of memory for a group of ranks");
    *place = p->place = (struct neb_group_place){0, 2}; /* stages that hold the token table */
    p->parent = ctx;
    *out = p;
    return NEB_OK;
}

static neb_status share(void *ctx, size_t bytes, void **out)
{
    (void)ctx, (void)bytes;
    *out = NULL;
    return NEB_OK;
}

static neb_status reduce(void *ctx, void *values, int64_t n, neb_group_type type, neb_group_op op,
                         void **request)
{
    (void)values, (void)op;
    count(ctx, NEB_TRAFFIC_SUM, (double)n * (type == NEB_GROUP_F32 ? 4 : 8));
    return over(request);
}

static neb_status gather(void *ctx, void *bytes, const int64_t *edge, void **request)
{
    (void)bytes;
    const struct pretended *p = ctx;
    count(ctx, NEB_TRAFFIC_GATHER, (double)edge[p->place.size]);
    return over(request);
}

static neb_status broadcast(void *ctx, void *bytes, int64_t n, int root, void **request)
{
    (void)bytes, (void)root;
    count(ctx, NEB_TRAFFIC_GATHER, (double)n);
    return over(request);
}

static neb_status send(void *ctx, const void *bytes, int64_t n, int to, void **request)
{
    (void)bytes, (void)to;
    count(ctx, NEB_TRAFFIC_MESSAGE, (double)n);
    return over(request);
}

static neb_status receive(void *ctx, void *bytes, int64_t n, int from, void **request)
{
    (void)ctx, (void)bytes, (void)n, (void)from;
    return over(request);
}

static neb_status test(void *ctx, void *request, int *done)
{
    (void)ctx, (void)request;
    *done = 1;
    return NEB_OK;
}

static void abort_none(void *ctx, int code)
{
    (void)ctx, (void)code;
}

static void close_group(void *ctx)
{
    neb__free(ctx);
}

static const struct neb_group_engine engine = {
    .abi = NEB_GROUP_ABI,
    .size = sizeof(struct neb_group_engine),
    .name = "pretended",
    .open = open_none,
    .split = split,
    .share = share,
    .reduce = reduce,
    .gather = gather,
    .broadcast = broadcast,
    .send = send,
    .receive = receive,
    .test = test,
    .abort = abort_none,
    .close = close_group,
};

/* ---- groups --------------------------------------------------------------------------------------------------- */

neb_status neb__group_pretend(int rank, int size, struct neb_group **out)
{
    struct neb_group *g;
    struct pretended *p = NEB_NEW(struct pretended);
    neb_status status =
        p ? neb__group_self(&g) : neb__fail(NEB_ERR_NOMEM, "out of memory for a group of ranks");
    if (status != NEB_OK) {
        neb__free(p);
        return status;
    }
    p->place = (struct neb_group_place){rank, size};
    g->engine = &engine;
    g->ctx = p;
    g->rank = rank;
    g->size = size;
    g->timeout_s = 1;
    *out = g;
    return NEB_OK;
}

bool neb__group_pretended(const struct neb_group *g)
{
    return g && g->engine == &engine;
}

struct neb_rank_traffic neb__group_traffic(const struct neb_group *g)
{
    return neb__group_pretended(g) ? ((struct pretended *)g->ctx)->traffic : (struct neb_rank_traffic){0};
}

neb_status neb__pretend_scatter(struct neb_group *g, int64_t n)
{
    count(g->ctx, NEB_TRAFFIC_SCATTER, (double)n * 4);
    return NEB_OK;
}

neb_status neb__layout_pretend(const struct neb_layout_sizes *sizes, const struct neb_layout_place *place,
                               bool dry, struct neb_layout *out)
{
    const int d = place->data, p = place->pipeline, t = place->tensor, copy = sizes->pipeline * sizes->tensor;
    struct neb_layout l = {.dry = dry, .several = place->several, .gpu = place->gpu};
    const struct {
        int rank, size;
        struct neb_group **group;
    } parts[] = {{d * copy + p * sizes->tensor + t, sizes->data * copy, &l.world},
                 {d, sizes->data, &l.data},
                 {p, sizes->pipeline, &l.pipeline},
                 {t, sizes->tensor, &l.tensor},
                 {p * sizes->tensor + t, copy, &l.model}};
    neb_status status = NEB_OK;
    for (int i = 0; status == NEB_OK && i < 5; i++)
        if (parts[i].size > 1 || !i)
            status = neb__group_pretend(parts[i].rank, parts[i].size, parts[i].group);
    if (status != NEB_OK) {
        neb__layout_unpretend(&l);
        return status;
    }
    *out = l;
    return NEB_OK;
}

void neb__layout_unpretend(struct neb_layout *l)
{
    neb__layout_close(l);
    neb__group_close(l->world);
    l->world = NULL;
}
