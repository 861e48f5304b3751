/* beside.c: sums and gathers of ranks on several machines that go on while the ranks compute.
 *
 * The engine moves bytes only inside its calls. So every beat of a rank, which comes after each call of its device, asks the oldest
 * exchanges whether they are over; that gets on all of them. A few sums are under way at a time: the engine takes memory of its own for each,
 * and one sum alone would leave the line idle whenever a rank is late to answer.
 *
 * Ranks on one machine, or a rank alone, make these sums in the join.
 *
 * A sum that fails under way is told by the join. Ranks that do not come are named there, as in every other wait (wait.c). */
#include "base/mem.h"
#include "group/group_internal.h"

enum { UNDER_WAY = 4 };

struct neb_rank_sum {
    float *values;
    int64_t n;
    void *request;
};

bool neb__group_sums_beside(const struct neb_group *g)
{
    return neb__group_far(g) && !neb__group_pretended(g);
}

void neb__beside_free(struct neb_group *g)
{
    neb__free(g->sums.list);
}

/* Begins those whose turn it is. */
static neb_status begin_more(struct neb_group *g)
{
    struct neb_rank_sums *s = &g->sums;
    for (; s->begun < s->n && s->begun - s->first < UNDER_WAY; s->begun++) {
        struct neb_rank_sum *x = &s->list[s->begun];
        NEB_TRY(g->engine->reduce(g->ctx, x->values, x->n, NEB_GROUP_F32, NEB_GROUP_SUM, &x->request));
    }
    return NEB_OK;
}

static neb_status look(struct neb_group *g)
{
    struct neb_rank_sums *s = &g->sums;
    while (s->first < s->begun) {
        int done = 0;
        NEB_TRY(g->engine->test(g->ctx, s->list[s->first].request, &done));
        if (!done) break;
        s->first++;
    }
    return begin_more(g);
}

static neb_status look_at_gathers(struct neb_group *g)
{
    for (int i = 0; i < NEB_GATHERS; i++) {
        int done = 0;
        if (!g->gathers[i]) continue;
        NEB_TRY(g->engine->test(g->ctx, g->gathers[i], &done));
        if (done) g->gathers[i] = NULL;
    }
    return NEB_OK;
}

void neb__beside_advance(struct neb_group *g)
{
    struct neb_rank_sums *s = &g->sums;
    if (g->broken || s->status != NEB_OK || !neb__group_far(g)) return;
    s->status = look_at_gathers(g);
    if (s->status == NEB_OK && s->first < s->n) s->status = look(g);
    if (s->status != NEB_OK) neb__group_break(g);
}

neb_status neb__group_sum_begin(struct neb_group *g, float *values, int64_t n)
{
    struct neb_rank_sums *s = &g->sums;
    NEB_TRY(neb__group_usable(g));
    if (s->n == s->room) {
        const int room = s->room ? 2 * s->room : 64;
        struct neb_rank_sum *list = neb__realloc(s->list, (size_t)room * sizeof *list);
        if (!list) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d sums of ranks", room);
        s->list = list;
        s->room = room;
    }
    s->list[s->n++] = (struct neb_rank_sum){.values = values, .n = n};
    if (neb__group_sums_beside(g)) neb__beside_advance(g);
    return NEB_OK;
}

/* The oldest sum. It leaves the list first: beats go on looking at the others. */
static neb_status finish_oldest(struct neb_group *g)
{
    struct neb_rank_sums *s = &g->sums;
    const struct neb_rank_sum x = s->list[s->first];
    if (!neb__group_sums_beside(g)) {
        s->begun = ++s->first;
        return neb__group_sum(g, x.values, x.n);
    }
    NEB_TRY(s->status);
    NEB_TRY(neb__group_usable(g));
    NEB_TRY(begin_more(g));
    void *request = s->list[s->first++].request;
    return neb__wait_request(g, request, "add up gradients with the others");
}

neb_status neb__group_sum_join(struct neb_group *g)
{
    struct neb_rank_sums *s = &g->sums;
    neb_status status = NEB_OK;
    while (status == NEB_OK && s->first < s->n) status = finish_oldest(g);
    if (status == NEB_OK) s->first = s->begun = s->n = 0;
    return status;
}

/* ---- gathers ------------------------------------------------------------------------------------------------- */

neb_status neb__group_gather_begin(struct neb_group *g, void *bytes, const int64_t *edge, int *ticket)
{
    int i = 0;
    *ticket = 0;
    while (i < NEB_GATHERS && g && g->gathers[i]) i++;
    const bool beside = neb__group_sums_beside(g) && i < NEB_GATHERS && neb__wait_gathers_at_once(g, edge);
    if (!beside) return neb__group_gather_bytes(g, bytes, edge);
    NEB_TRY(neb__group_usable(g));
    neb__group_beat(g);
    NEB_TRY(g->engine->gather(g->ctx, bytes, edge, &g->gathers[i]));
    *ticket = i + 1;
    return NEB_OK;
}

neb_status neb__group_gather_join(struct neb_group *g, int ticket)
{
    if (!ticket) return NEB_OK;
    NEB_TRY(neb__group_usable(g));
    void *request = g->gathers[ticket - 1];
    g->gathers[ticket - 1] = NULL; /* no beat looks at it any more */
    return request ? neb__wait_request(g, request, "gather the others' values") : NEB_OK;
}
