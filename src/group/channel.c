/* channel.c: messages between neighbours, in shared memory or by requests of the engine.
 *
 * In shared memory a channel has two counters: messages written and messages released. The sender alone
 * changes the first, the receiver the second. Message n lies at place n modulo places. A rank that fails sets
 * all counters at its ends to FAILED, which is never undone. */
#include "group/channel.h"
#include "base/mem.h"
#include "group/group_internal.h"

#include <stdatomic.h>
#include <limits.h>

enum { ALIGN = 4096 };
#define FAILED UINT64_MAX /* in place of a count */

struct counters {
    _Alignas(64) _Atomic uint64_t written;
    _Alignas(64) _Atomic uint64_t released;
};

struct neb_channel {
    struct neb_group *group;
    struct counters *shared; /* NULL: the ranks are on several machines */
    uint8_t *memory;
    size_t bytes, step;
    int places, peer;
    int64_t count, released;
    void **request; /* (places) of sends that may be under way */
};

static size_t rounded(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t channel_bytes(const struct neb_channel_size *s)
{
    return ALIGN + (size_t)s->places * rounded(s->bytes);
}

static struct neb_channel *channel_new(struct neb_group *g, uint8_t *memory, bool shared,
                                       const struct neb_channel_size *s, int peer)
{
    struct neb_channel *c = NEB_NEW(struct neb_channel);
    void **request = NEB_NEW_ARRAY(void *, (size_t)s->places);
    if (!c || !request) {
        neb__free(c);
        neb__free(request);
        return NULL;
    }
    *c = (struct neb_channel){.group = g,
                              .shared = shared ? (struct counters *)memory : NULL,
                              .memory = memory + ALIGN,
                              .bytes = s->bytes,
                              .step = rounded(s->bytes),
                              .places = s->places,
                              .peer = peer,
                              .request = request};
    return c;
}

/* The ends of this rank, laid over one piece of memory: for each pair of neighbours ahead, then back. */
static neb_status make_ends(struct neb_group *g, const struct neb_channel_size *size, uint8_t *memory,
                            bool shared, struct neb_channels *out)
{
    bool enough = true;
    for (int r = 0; r < g->size - 1; r++) {
        uint8_t *back = memory + channel_bytes(&size[r]);
        if (r == g->rank) {
            out->ahead_out = channel_new(g, memory, shared, &size[r], r + 1);
            out->back_in = channel_new(g, back, shared, &size[r], r + 1);
            enough = enough && out->ahead_out && out->back_in;
        }
        if (r == g->rank - 1) {
            out->ahead_in = channel_new(g, memory, shared, &size[r], r);
            out->back_out = channel_new(g, back, shared, &size[r], r);
            enough = enough && out->ahead_in && out->back_out;
        }
        memory = back + channel_bytes(&size[r]);
    }
    return enough ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for the channels between stages");
}

neb_status neb__channels_open(struct neb_group *g, const struct neb_channel_size *size,
                              struct neb_channels *out)
{
    size_t all = 0;
    void *memory = NULL;
    *out = (struct neb_channels){0};
    for (int r = 0; r < neb__group_size(g) - 1; r++) {
        if (size[r].bytes > INT_MAX)
            return neb__fail(NEB_ERR_LIMIT,
                             "a message of %zu bytes between stages is over 2 GiB: make "
                             "train.tokens smaller",
                             size[r].bytes);
        all += 2 * channel_bytes(&size[r]);
    }
    if (!all) return NEB_OK;
    if (g->window) NEB_TRY(g->engine->share(g->ctx, all, &memory));
    bool shared = memory != NULL;
    neb_status status = NEB_OK;
    if (!shared && !(memory = out->memory = neb__aligned(all)))
        status = neb__fail(NEB_ERR_NOMEM, "out of memory for %zu bytes between stages", all);
    if (status == NEB_OK) status = make_ends(g, size, memory, shared, out);
    if (status != NEB_OK) neb__channels_close(out);
    return neb__group_agree(g, status);
}

void neb__channels_close(struct neb_channels *c)
{
    struct neb_channel *all[] = {c->ahead_in, c->ahead_out, c->back_in, c->back_out};
    for (int i = 0; i < 4; i++) {
        if (all[i]) neb__free(all[i]->request);
        neb__free(all[i]);
    }
    neb__free(c->memory);
    *c = (struct neb_channels){0};
}

int neb__channel_places(const struct neb_channel *c)
{
    return c ? c->places : 0;
}

void *neb__channel_place(const struct neb_channel *c, int place)
{
    return c->memory + (size_t)place * c->step;
}

int64_t neb__channel_count(const struct neb_channel *c)
{
    return c ? c->count : 0;
}

static int next_place(const struct neb_channel *c)
{
    return (int)(c->count % c->places);
}

void neb__channels_fail(struct neb_channels *c)
{
    struct neb_channel *all[] = {c->ahead_in, c->ahead_out, c->back_in, c->back_out};
    for (int i = 0; i < 4; i++) {
        if (!all[i] || !all[i]->shared) continue;
        atomic_store(&all[i]->shared->written, FAILED);
        atomic_store(&all[i]->shared->released, FAILED);
    }
}

static neb_status await(struct neb_channel *c, const _Atomic uint64_t *count, uint64_t least)
{
    NEB_TRY(neb__window_await(c->group, c->peer, count, least));
    if (atomic_load(count) != FAILED) return NEB_OK;
    return neb__fail(NEB_ERR_PEER, "stage %d of %d has failed; the log of its rank says why", c->peer + 1,
                     c->group->size);
}

static neb_status usable(const struct neb_channel *c)
{
    if (!c->group->broken) return NEB_OK;
    return neb__quiet(NEB_ERR_PEER, "the ranks of this site have lost each other");
}

neb_status neb__channel_reserve(struct neb_channel *c)
{
    NEB_TRY(usable(c));
    if (c->shared) {
        uint64_t least = c->count < c->places ? 0 : (uint64_t)(c->count - c->places + 1);
        return await(c, &c->shared->released, least);
    }
    void *request = c->request[next_place(c)];
    c->request[next_place(c)] = NULL;
    return request ? neb__wait_request(c->group, request, "send to a neighbouring stage") : NEB_OK;
}

neb_status neb__channel_post(struct neb_channel *c)
{
    int place = next_place(c);
    NEB_TRY(usable(c));
    c->count++;
    if (!c->shared)
        return c->group->engine->send(c->group->ctx, neb__channel_place(c, place), (int64_t)c->bytes, c->peer,
                                      &c->request[place]);
    uint64_t before = (uint64_t)c->count - 1; /* a neighbour that has failed leaves its mark here */
    atomic_compare_exchange_strong(&c->shared->written, &before, (uint64_t)c->count);
    neb__group_beat(c->group);
    return NEB_OK;
}

neb_status neb__channel_await(struct neb_channel *c)
{
    int place = next_place(c);
    NEB_TRY(usable(c));
    if (c->count - c->released >= c->places)
        return neb__fail(NEB_ERR_STATE, "%d messages of a channel are still in use", c->places);
    c->count++;
    if (c->shared) return await(c, &c->shared->written, (uint64_t)c->count);
    void *request;
    NEB_TRY(c->group->engine->receive(c->group->ctx, neb__channel_place(c, place), (int64_t)c->bytes, c->peer,
                                      &request));
    return neb__wait_request(c->group, request, "receive from a neighbouring stage");
}

void neb__channel_release(struct neb_channel *c)
{
    uint64_t before = (uint64_t)c->released++;
    if (c->shared) atomic_compare_exchange_strong(&c->shared->released, &before, (uint64_t)c->released);
}
