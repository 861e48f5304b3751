/* group.c: opening, splitting and closing a group, and the way of each operation: nothing to do for one rank,
 * shared memory on one machine, the engine between machines. */
#include "group/group_internal.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "group/on_device.h"

#include <stdlib.h>
#include <string.h>

int64_t (*neb__group_clock)(void) = neb__now_ns;

double neb__group_since(int64_t ns)
{
    return (double)(neb__group_clock() - ns) * 1e-9;
}

/* ---- opening --------------------------------------------------------------------------------------------- */

static struct neb_group *group_new(double timeout_s)
{
    struct neb_group *g = NEB_NEW(struct neb_group);
    if (!g) return NULL;
    g->size = 1;
    g->timeout_s = timeout_s;
    return g;
}

static neb_status no_memory(void)
{
    return neb__fail(NEB_ERR_NOMEM, "out of memory for a group of ranks");
}

neb_status neb__group_self(struct neb_group **out)
{
    *out = group_new(0);
    return *out ? NEB_OK : no_memory();
}

bool neb__group_started(void)
{
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
    for (int i = 0; i < 3; i++) {
        const char *text = getenv(sizes[i]);
        if (text && atoi(text) > 1) return true;
    }
    return false;
}

static neb_status fail(neb_status status, const char *message)
{
    return neb__fail(status, "%s", message);
}

static const struct neb_group_host host = {fail};

/* The ranks of one machine share a window. */
static neb_status make_window(struct neb_group *g)
{
    void *memory = NULL;
    if (g->size < 2) return NEB_OK;
    NEB_TRY(g->engine->share(g->ctx, neb__window_bytes(g->size), &memory));
    return memory ? neb__window_open(g, memory) : NEB_OK;
}

neb_status neb__group_with(const struct neb_group_engine *engine, double timeout_s, struct neb_group **out)
{
    struct neb_group_place place;
    struct neb_group *g = group_new(timeout_s);
    if (!g) return no_memory();
    neb_status status = engine->open(&host, &g->ctx, &place);
    if (status == NEB_OK) {
        g->engine = engine;
        g->rank = place.rank;
        g->size = place.size;
        status = place.size > NEB_GROUP_RANKS
                     ? neb__fail(NEB_ERR_UNSUPPORTED, "%d ranks were started; a site has at most %d",
                                 place.size, NEB_GROUP_RANKS)
                     : make_window(g);
        if (status == NEB_OK && g->size > 1 && !g->window) status = neb__roll_open(g);
    }
    if (status != NEB_OK) {
        neb__group_close(g);
        return status;
    }
    *out = g;
    return NEB_OK;
}

neb_status neb__group_join(double timeout_s, struct neb_group **out)
{
    const struct neb_group_engine *engine;
    NEB_TRY(neb__group_load(&engine));
    return neb__group_with(engine, timeout_s, out);
}

static struct neb_group *all_ranks(struct neb_group *g)
{
    while (g->parent) g = g->parent;
    return g;
}

static void link_to_all(struct neb_group *part)
{
    struct neb_group *all = all_ranks(part);
    part->next = all->parts;
    all->parts = part;
}

static void unlink_from_all(struct neb_group *part)
{
    struct neb_group **at = &all_ranks(part)->parts;
    while (*at && *at != part) at = &(*at)->next;
    if (*at) *at = part->next;
}

int neb__group_site_rank(const struct neb_group *g)
{
    while (g && g->parent) g = g->parent;
    return neb__group_rank(g);
}

neb_status neb__group_split(struct neb_group *g, int color, struct neb_group **out)
{
    struct neb_group_place place = {0, 1};
    struct neb_group *part = group_new(g->timeout_s);
    if (!part) return no_memory();
    neb_status status = NEB_OK;
    if (g->engine) {
        status = g->engine->split(g->ctx, color, &part->ctx, &place);
        if (status == NEB_OK) part->engine = g->engine;
    }
    part->rank = place.rank;
    part->size = place.size;
    part->parent = g;
    link_to_all(part);
    if (status == NEB_OK) status = make_window(part);
    if (status != NEB_OK) {
        neb__group_close(part);
        return status;
    }
    *out = part;
    return NEB_OK;
}

void neb__group_close(struct neb_group *g)
{
    if (!g) return;
    neb__group_detach(g);
    if (g->parent) unlink_from_all(g);
    neb__window_close(g->window);
    neb__roll_close(g->roll);
    neb__beside_free(g);
    if (g->engine) g->engine->close(g->ctx);
    neb__free(g);
}

int neb__group_rank(const struct neb_group *g)
{
    return g ? g->rank : 0;
}

int neb__group_size(const struct neb_group *g)
{
    return g ? g->size : 1;
}

bool neb__group_far(const struct neb_group *g)
{
    return g && g->size > 1 && !g->window;
}

int neb__group_near(const struct neb_group *g)
{
    const char *text = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    if (!g || g->window || g->size == 1) return neb__group_size(g);
    return text && atoi(text) > 0 ? atoi(text) : 1;
}

int neb__group_place_near(const struct neb_group *g)
{
    static const char *const places[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"};
    if (!g || g->size == 1) return 0;
    if (g->window) return g->rank;
    for (int i = 0; i < 2; i++) {
        const char *text = getenv(places[i]);
        if (text && atoi(text) >= 0) return atoi(text);
    }
    return 0;
}

void neb__group_beat(struct neb_group *g)
{
    if (!g) return;
    struct neb_group *all = all_ranks(g);
    if (all->window) neb__window_beat(all);
    neb__roll_beat(all->roll);
    neb__beside_advance(all);
    for (struct neb_group *p = all->parts; p; p = p->next) {
        if (p->window) neb__window_beat(p);
        neb__beside_advance(p);
    }
}

void neb__group_busy(struct neb_group *g, bool busy)
{
    for (; g; g = g->parent) {
        g->unhurried += busy ? 1 : -1;
        if (g->window) neb__window_busy(g, busy);
    }
}

void neb__group_unhurried(struct neb_group *g, bool on)
{
    for (; g; g = g->parent) g->unhurried += on ? 1 : -1;
}

void neb__group_give_up(struct neb_group *g)
{
    for (; g && g->size > 1; g = g->parent) {
        g->broken = true;
        if (g->window) neb__window_give_up(g);
    }
    neb__exchanges_abort();
}

bool neb__group_broken(const struct neb_group *g)
{
    return g && g->broken;
}

const char *neb__group_why(const struct neb_group *g)
{
    return g ? g->why : "";
}

void neb__group_break(struct neb_group *g)
{
    for (struct neb_group *p = g; p; p = p->parent) {
        if (p != g && !p->broken && !*p->why) memcpy(p->why, g->why, sizeof p->why);
        p->broken = true;
    }
    neb__exchanges_abort();
}

const struct neb_group *neb__group_site(const struct neb_group *g)
{
    while (g->parent) g = g->parent;
    return g;
}

void neb__group_abort(struct neb_group *g, int code)
{
    while (g && g->parent) g = g->parent;
    if (g && g->engine) g->engine->abort(g->ctx, code);
}

/* ---- operations ------------------------------------------------------------------------------------------ */

static bool alone(const struct neb_group *g)
{
    return !g || g->size == 1;
}

neb_status neb__group_usable(const struct neb_group *g)
{
    if (!g->broken) return NEB_OK;
    return neb__quiet(NEB_ERR_PEER, "%s", *g->why ? g->why : "the ranks of this site have lost each other");
}

static neb_status reduce(struct neb_group *g, void *values, int64_t n, neb_group_type type, neb_group_op op)
{
    if (alone(g) || n < 1) return NEB_OK;
    NEB_TRY(neb__group_usable(g));
    neb__group_beat(g);
    return g->window ? neb__window_reduce(g, values, n, type, op) : neb__wait_reduce(g, values, n, type, op);
}

neb_status neb__group_sum(struct neb_group *g, float *values, int64_t n)
{
    return reduce(g, values, n, NEB_GROUP_F32, NEB_GROUP_SUM);
}

neb_status neb__group_sum_doubles(struct neb_group *g, double *values, int64_t n)
{
    return reduce(g, values, n, NEB_GROUP_F64, NEB_GROUP_SUM);
}

neb_status neb__group_max(struct neb_group *g, int64_t *values, int64_t n)
{
    return reduce(g, values, n, NEB_GROUP_I64, NEB_GROUP_MAX);
}

neb_status neb__group_sum_scatter(struct neb_group *g, float *values, const int64_t *edge)
{
    if (alone(g)) return NEB_OK;
    NEB_TRY(neb__group_usable(g));
    neb__group_beat(g);
    if (g->window) return neb__window_sum_scatter(g, values, edge);
    if (neb__group_pretended(g)) return neb__pretend_scatter(g, edge[g->size]);
    return neb__wait_reduce(g, values, edge[g->size], NEB_GROUP_F32, NEB_GROUP_SUM);
}

neb_status neb__group_gather_bytes(struct neb_group *g, void *bytes, const int64_t *edge)
{
    if (alone(g)) return NEB_OK;
    NEB_TRY(neb__group_usable(g));
    neb__group_beat(g);
    return g->window ? neb__window_gather(g, bytes, edge) : neb__wait_gather(g, bytes, edge);
}

static neb_status gather(struct neb_group *g, void *values, const int64_t *edge, int64_t width)
{
    int64_t bytes[NEB_GROUP_RANKS + 1];
    if (alone(g)) return NEB_OK;
    for (int r = 0; r <= g->size; r++) bytes[r] = edge[r] * width;
    return neb__group_gather_bytes(g, values, bytes);
}

neb_status neb__group_gather(struct neb_group *g, float *values, const int64_t *edge)
{
    return gather(g, values, edge, sizeof *values);
}

neb_status neb__group_gather_doubles(struct neb_group *g, double *values, const int64_t *edge)
{
    return gather(g, values, edge, sizeof *values);
}

neb_status neb__group_broadcast(struct neb_group *g, void *bytes, size_t n, int root)
{
    if (alone(g) || !n) return NEB_OK;
    NEB_TRY(neb__group_usable(g));
    neb__group_beat(g);
    return g->window ? neb__window_broadcast(g, bytes, n, root) : neb__wait_broadcast(g, bytes, n, root);
}

neb_status neb__group_barrier(struct neb_group *g)
{
    int64_t nothing = 0;
    return neb__group_max(g, &nothing, 1);
}

neb_status neb__group_send(struct neb_group *g, const void *bytes, size_t n, int to)
{
    NEB_TRY(neb__group_usable(g));
    return g->window ? neb__window_send(g, bytes, n, to) : neb__wait_send(g, bytes, n, to);
}

neb_status neb__group_receive(struct neb_group *g, void *bytes, size_t n, int from)
{
    NEB_TRY(neb__group_usable(g));
    return g->window ? neb__window_receive(g, bytes, n, from) : neb__wait_receive(g, bytes, n, from);
}

neb_status neb__group_agree(struct neb_group *g, neb_status status)
{
    if (alone(g) || (status != NEB_OK && g->broken)) return status; /* what failed here says more */
    /* a status is not positive: its worst case is the largest magnitude; the rank rides along */
    int64_t worst = status == NEB_OK ? 0 : ((int64_t)-status << 16 | (int64_t)(g->rank + 1));
    NEB_TRY(neb__group_max(g, &worst, 1));
    if (!worst || status != NEB_OK) return status;
    return neb__fail((neb_status)(-(worst >> 16)), "rank %d of %d failed: %s (its log says more)",
                     (int)(worst & 0xffff) - 1, g->size, neb_status_text((neb_status)(-(worst >> 16))));
}
