/* wait.c: operations of ranks on several machines, through the engine's requests.
 *
 * A long array goes in pieces, so that a slow network is not taken for a hang: the time limit holds for one
 * piece. Nobody can see the other ranks' beats here. So a rank that has waited for most of it calls the roll
 * (rollcall.c), and names the ranks that do not answer when it gives up. */
#include "group/group_internal.h"

#include <sched.h>
#include <stdio.h>
#include <time.h>

enum { PIECE = 16 << 20, GATHER = 512 << 20, SPINS = 2000 };
static const double asks_after = 0.6; /* of the time limit */

static neb_status stuck(struct neb_group *g, const char *what)
{
    const struct neb_group *site = neb__group_site(g);
    char names[64];
    const int missing = neb__roll_missing(site->roll, names, sizeof names);
    if (missing)
        snprintf(g->why, sizeof g->why, "rank%s %s of %d stuck or gone: no answer to rank %d in %.0f s",
                 missing > 1 ? "s" : "", names, site->size, site->rank, (1 - asks_after) * g->timeout_s);
    else
        snprintf(g->why, sizeof g->why, "rank %d of %d has waited %.0f s to %s", site->rank, site->size,
                 g->timeout_s, what);
    neb__group_break(g);
    if (missing) return neb__fail(NEB_ERR_PEER, "%s (it waited to %s)", g->why, what);
    return neb__fail(
        NEB_ERR_PEER,
        "%s: every rank answers, but one of them is at other work; if its steps take that long, raise "
        "parallel.timeout",
        g->why);
}

neb_status neb__wait_request(struct neb_group *g, void *request, const char *what)
{
    struct neb_roll *roll = neb__group_site(g)->roll;
    int64_t since = neb__group_clock();
    bool asked = false;
    int done = 0;
    for (int64_t looks = 0;; looks++) {
        neb_status status = g->engine->test(g->ctx, request, &done);
        if (status != NEB_OK) neb__group_break(g);
        if (status != NEB_OK || done) return status;
        if (looks < SPINS) continue;
        neb__group_beat(g);
        if (g->unhurried > 0) since = neb__group_clock(), asked = false;
        const double waited = neb__group_since(since);
        if (!asked && waited > asks_after * g->timeout_s) neb__roll_ask(roll), asked = true;
        if (asked && waited > g->timeout_s) return stuck(g, what);
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
}

neb_status neb__wait_reduce(struct neb_group *g, void *values, int64_t n, neb_group_type type,
                            neb_group_op op)
{
    const int64_t width = type == NEB_GROUP_F32 ? 4 : 8, most = PIECE / width;
    for (int64_t at = 0; at < n; at += most) {
        void *request;
        NEB_TRY(g->engine->reduce(g->ctx, (uint8_t *)values + at * width, n - at < most ? n - at : most, type,
                                  op, &request));
        NEB_TRY(neb__wait_request(g, request, "add up values with the others"));
    }
    return NEB_OK;
}

/* The engine's gather is one piece, and counts words of four bytes. */
bool neb__wait_gathers_at_once(const struct neb_group *g, const int64_t *edge)
{
    for (int r = 0; r <= g->size; r++)
        if (edge[r] % 4) return false;
    return edge[g->size] <= GATHER;
}

neb_status neb__wait_gather(struct neb_group *g, void *bytes, const int64_t *edge)
{
    void *request;
    if (!neb__wait_gathers_at_once(g, edge)) {
        for (int q = 0; q < g->size; q++)
            NEB_TRY(neb__wait_broadcast(g, (uint8_t *)bytes + edge[q], (size_t)(edge[q + 1] - edge[q]), q));
        return NEB_OK;
    }
    NEB_TRY(g->engine->gather(g->ctx, bytes, edge, &request));
    return neb__wait_request(g, request, "gather the others' values");
}

neb_status neb__wait_broadcast(struct neb_group *g, void *bytes, size_t n, int root)
{
    for (size_t at = 0; at < n; at += PIECE) {
        void *request;
        NEB_TRY(g->engine->broadcast(g->ctx, (uint8_t *)bytes + at,
                                     (int64_t)(n - at < PIECE ? n - at : PIECE), root, &request));
        NEB_TRY(neb__wait_request(g, request, "hear from the first rank"));
    }
    return NEB_OK;
}

neb_status neb__wait_send(struct neb_group *g, const void *bytes, size_t n, int to)
{
    for (size_t at = 0; at < n; at += PIECE) {
        void *request;
        NEB_TRY(g->engine->send(g->ctx, (const uint8_t *)bytes + at,
                                (int64_t)(n - at < PIECE ? n - at : PIECE), to, &request));
        NEB_TRY(neb__wait_request(g, request, "send to another rank"));
    }
    return NEB_OK;
}

neb_status neb__wait_receive(struct neb_group *g, void *bytes, size_t n, int from)
{
    for (size_t at = 0; at < n; at += PIECE) {
        void *request;
        NEB_TRY(g->engine->receive(g->ctx, (uint8_t *)bytes + at, (int64_t)(n - at < PIECE ? n - at : PIECE),
                                   from, &request));
        NEB_TRY(neb__wait_request(g, request, "receive from another rank"));
    }
    return NEB_OK;
}
