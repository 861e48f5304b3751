/* stage_ranks.c: a stage that several ranks of a site hold: see site_stage.h.
 *
 * The first rank of the site alone talks to the neighbours. Ranks that share the layers (tensor) get each message from the
 * first of them, and work on it together. Copies of the stage (data) each have every copies-th micro-batch. They work in
 * rounds. The first rank decides: it takes messages as long as they are there, at most one for each copy, and hands each to
 * its copy. Then all copies compute, and the first rank collects what they have made, in the order of the micro-batches. So a
 * neighbour sees the messages of one process, in their order. How many micro-batches a round has follows from what has come,
 * never from a wait for a full round: a neighbour that may have few in flight is not waited for. It changes no bit, because each
 * copy adds up its gradients in the order of its own micro-batches.
 *
 * A rank that fails gives up the groups in which the others wait. What the first rank alone finds, an error of a stream or a request
 * to stop, it tells the others: then all of them return it, and none is lost. */
#include "optim/site_stage_internal.h"
#include "base/clock.h"

#include <string.h>

enum order_op { ORDER_AHEAD = 1, ORDER_BACK, ORDER_GO, ORDER_OVER };

struct order {
    int64_t op, micro, status;
};

struct round { /* what this rank has of the present one */
    bool back;
    int first, count; /* at the first rank: all of it */
    int own;          /* micro-batch of this copy; -1: none */
};

/* ---- who talks ---------------------------------------------------------------------------------------------- */

bool neb__stage_leads(const struct neb_site_stage *s)
{
    return !neb__group_rank(neb__layout_tensor(s->c.layout));
}

void neb__stage_patience(const struct neb_site_stage *s, bool on)
{
    neb__group_busy(neb__layout_world(s->c.layout), on);
}

/* The others may wait as long as the first rank waits for another site. */
static neb_status hear(struct neb_site_stage *s, struct neb_group *g, void *bytes, size_t n)
{
    if (neb__group_size(g) == 1) return NEB_OK;
    const bool waits = neb__group_rank(g) > 0;
    struct neb_group *world = neb__layout_world(s->c.layout);
    if (waits) neb__group_unhurried(world, true);
    neb_status status = neb__group_broadcast(g, bytes, n, 0);
    if (waits) neb__group_unhurried(world, false);
    return status;
}

bool neb__site_stage_told(const struct neb_site_stage *s)
{
    return s->told;
}

/* What the first rank has said of its own status, at each rank. */
static neb_status said_by_first(struct neb_site_stage *s, neb_status status, bool own)
{
    s->told = status != NEB_OK;
    return status == NEB_OK || own ? status
                                   : neb__quiet(status, "the first rank of the stage has ended the step");
}

neb_status neb__stage_first(struct neb_site_stage *s, neb_status status)
{
    struct neb_group *team = neb__layout_tensor(s->c.layout);
    int64_t said = status;
    NEB_TRY(hear(s, team, &said, sizeof said));
    return said_by_first(s, (neb_status)said, !neb__group_rank(team));
}

/* ---- a message to its copy, and back ------------------------------------------------------------------------- */

/* The floats of a message at the first rank of its copy go to all ranks of the copy, and into their buffers. */
static neb_status into_buffers(struct neb_site_stage *s, float *host, size_t n, const neb_buffer *to)
{
    NEB_TRY(neb__group_broadcast(neb__layout_tensor(s->c.layout), host, n * sizeof *host, 0));
    return neb__stage_upload(s, host, n, to);
}

static const neb_buffer *entrance(const struct neb_stage_slot *k, bool back)
{
    return back ? k->ports.out_grad : k->ports.in;
}

static const neb_buffer *way_out(const struct neb_stage_slot *k, bool back)
{
    return back ? k->ports.in_grad : k->ports.out;
}

/* A rank of the micro-batch's copy: what the first rank of the site has taken comes here. */
static neb_status accept(struct neb_site_stage *s, const struct neb_micro *micros, int micro, bool back)
{
    struct neb_stage_slot *k = neb__stage_slot_of(s, micro);
    if (!back) NEB_TRY(neb__stage_begin(s, &micros[micro], micro));
    k->before.back = k->behind.back = back;
    if (!(back ? s->c.gradients_in : s->c.ways->before)) return NEB_OK;
    const size_t n = neb__stage_values(back ? &k->behind : &k->before);
    float *host = neb__stage_host(s, entrance(k, back));
    if (s->copy && neb__stage_leads(s))
        NEB_TRY(neb__group_receive(neb__layout_data(s->c.layout), host, n * sizeof *host, 0));
    return into_buffers(s, host, n, entrance(k, back));
}

static neb_status compute(struct neb_site_stage *s, const struct neb_micro *micros, int n, struct round *r)
{
    const int micro = r->own;
    r->own = -1;
    if (micro < 0) return NEB_OK;
    NEB_TRY(r->back ? neb__stage_backward(s, micro) : neb__stage_forward(s, &micros[micro], micro, n));
    if (!(r->back ? s->c.gradients_out : s->c.ways->behind) || !s->copy || !neb__stage_leads(s))
        return NEB_OK;
    const struct neb_stage_slot *k = neb__stage_slot_of(s, micro);
    const size_t values = neb__stage_values(r->back ? &k->before : &k->behind);
    float *host = neb__stage_host(s, way_out(k, r->back));
    NEB_TRY(neb__stage_download(s, way_out(k, r->back), values, host));
    return neb__group_send(neb__layout_data(s->c.layout), host, values * sizeof *host, 0);
}

/* ---- the first rank ------------------------------------------------------------------------------------------ */

static neb_status announce(struct neb_site_stage *s, int64_t op, int64_t micro, neb_status status)
{
    struct order o = {op, micro, status};
    return neb__group_broadcast(neb__layout_world(s->c.layout), &o, sizeof o, 0);
}

/* Takes the next message and hands it to the copy of its micro-batch. *heard: the others know of it. */
static neb_status hand_out(struct neb_site_stage *s, const struct neb_micro *micros, int micro, bool back,
                           struct round *r, bool *heard)
{
    const struct neb_stage_ways *w = s->c.ways;
    struct neb_stage_message before, behind;
    const int copy = micro % s->copies;
    const bool comes = back ? s->c.gradients_in : w->before;
    *heard = false;
    NEB_TRY(neb__stage_describe(s, micros[micro].arg, NEB_STAGE_TRAINS, (uint32_t)micro, &before, &behind));
    struct neb_stage_message *m = back ? &behind : &before;
    float *host = s->host;
    if (!copy && comes) host = neb__stage_host(s, entrance(neb__stage_slot_of(s, micro), back));
    m->back = back;
    if (comes) {
        neb__stage_patience(s, true);
        neb_status taken = w->take(w->arg, m, host);
        neb__stage_patience(s, false);
        NEB_TRY(taken);
    }
    *heard = true;
    NEB_TRY(announce(s, back ? ORDER_BACK : ORDER_AHEAD, micro, NEB_OK));
    r->count++;
    if (!copy) {
        r->own = micro;
        return accept(s, micros, micro, back);
    }
    if (!comes) return NEB_OK;
    return neb__group_send(neb__layout_data(s->c.layout), host, neb__stage_values(m) * sizeof *host, copy);
}

/* What the copies have made goes to the neighbour, in its order. *failed: of the neighbour's stream; the copies' messages are
 * received all the same. */
static neb_status hand_on(struct neb_site_stage *s, const struct neb_micro *micros, const struct round *r,
                          neb_status *failed)
{
    const struct neb_stage_ways *w = s->c.ways;
    if (!(r->back ? s->c.gradients_out : w->behind)) return NEB_OK;
    for (int micro = r->first; micro < r->first + r->count; micro++) {
        struct neb_stage_message before, behind;
        NEB_TRY(
            neb__stage_describe(s, micros[micro].arg, NEB_STAGE_TRAINS, (uint32_t)micro, &before, &behind));
        struct neb_stage_message *m = r->back ? &before : &behind;
        const size_t n = neb__stage_values(m);
        float *host = s->host;
        m->back = r->back;
        if (micro % s->copies) {
            NEB_TRY(
                neb__group_receive(neb__layout_data(s->c.layout), host, n * sizeof *host, micro % s->copies));
        } else {
            const neb_buffer *from = way_out(neb__stage_slot_of(s, micro), r->back);
            host = neb__stage_host(s, from);
            NEB_TRY(neb__stage_download(s, from, n, host));
        }
        neb__stage_patience(s, true);
        if (*failed == NEB_OK) *failed = w->give(w->arg, m, host);
        neb__stage_patience(s, false);
    }
    return NEB_OK;
}

/* Whether the next message of the round is there. */
static bool goes_on(struct neb_site_stage *s, const struct round *r, int gone, int back, int n)
{
    const struct neb_stage_ways *w = s->c.ways;
    const int next = r->first + r->count;
    if (r->count >= s->copies || next >= (r->back ? gone : n) || (!r->back && next - back >= s->depth))
        return false;
    return !(r->back ? s->c.gradients_in : w->before) || w->ready(w->arg, r->back, 0) == NEB_OK;
}

/* *failed: what the first rank alone knows. The status returned is of all ranks. */
static neb_status one_round(struct neb_site_stage *s, const struct neb_micro *micros, int gone, int back,
                            int n, struct round *r, neb_status *failed)
{
    bool heard = false;
    int64_t since = neb__now_ns();
    *r = (struct round){.own = -1};
    neb__stage_patience(s, true);
    *failed = neb__stage_next_turn(s, gone, back, n, &r->back);
    neb__stage_patience(s, false);
    s->times.idle += neb__seconds_since(since);
    if (*failed != NEB_OK) return NEB_OK;
    r->first = r->back ? back : gone;
    do {
        neb_status status = hand_out(s, micros, r->first + r->count, r->back, r, &heard);
        if (heard) NEB_TRY(status);
        if (!heard) *failed = status;
    } while (*failed == NEB_OK && goes_on(s, r, gone, back, n));
    if (!r->count) return NEB_OK;
    NEB_TRY(announce(s, ORDER_GO, r->back, NEB_OK));
    NEB_TRY(compute(s, micros, n, r));
    return hand_on(s, micros, r, failed);
}

static neb_status lead(struct neb_site_stage *s, const struct neb_micro *micros, int n)
{
    neb_status failed = NEB_OK;
    int gone = 0, back = 0;
    while (back < n && failed == NEB_OK) {
        struct round r;
        NEB_TRY(one_round(s, micros, gone, back, n, &r, &failed));
        gone += r.back ? 0 : r.count;
        back += r.back || s->c.forward_only ? r.count : 0;
        s->times.micros += r.back || s->c.forward_only ? r.count : 0;
    }
    NEB_TRY(announce(s, ORDER_OVER, 0, failed));
    return said_by_first(s, failed, true);
}

/* ---- the other ranks ----------------------------------------------------------------------------------------- */

static neb_status follow(struct neb_site_stage *s, const struct neb_micro *micros, int n)
{
    struct round r = {.own = -1};
    for (;;) {
        struct order o = {0};
        NEB_TRY(hear(s, neb__layout_world(s->c.layout), &o, sizeof o));
        if (o.op == ORDER_OVER) return said_by_first(s, (neb_status)o.status, false);
        if (o.op == ORDER_GO) {
            NEB_TRY(compute(s, micros, n, &r));
            continue;
        }
        if (o.micro < 0 || o.micro >= n)
            return neb__fail(NEB_ERR_INTERNAL, "the first rank names micro-batch %" PRId64 " of %d", o.micro,
                             n);
        if ((int)o.micro % s->copies != s->copy) continue;
        r = (struct round){.back = o.op == ORDER_BACK, .own = (int)o.micro};
        NEB_TRY(accept(s, micros, r.own, r.back));
    }
}

/* ---- a step -------------------------------------------------------------------------------------------------- */

neb_status neb__stage_rounds(struct neb_site_stage *s, const struct neb_micro *micros, int n)
{
    return neb__group_rank(neb__layout_world(s->c.layout)) ? follow(s, micros, n) : lead(s, micros, n);
}

neb_status neb__stage_add_up_all(struct neb_site_stage *s, struct neb_stage_sums *v)
{
    const struct neb_stage_ways *w = s->c.ways;
    struct neb_group *world = neb__layout_world(s->c.layout);
    struct {
        int64_t status;
        struct neb_stage_sums v;
    } said = {0};
    if (!neb__group_rank(world)) {
        neb__stage_patience(s, true);
        said.status = w->add_up(w->arg, v);
        neb__stage_patience(s, false);
        said.v = *v;
    }
    NEB_TRY(hear(s, world, &said, sizeof said));
    *v = said.v;
    return said_by_first(s, (neb_status)said.status, !neb__group_rank(world));
}

/* ---- outlines ------------------------------------------------------------------------------------------------ */

static struct neb_group *hearers(const struct neb_site_stage *s, bool all)
{
    return all ? neb__layout_world(s->c.layout) : neb__layout_tensor(s->c.layout);
}

/* Waiting for the stage before is idle time, as it is in a step. */
static neb_status take_first(struct neb_site_stage *s, struct neb_buf *out)
{
    const struct neb_stage_ways *w = s->c.ways;
    const int64_t since = neb__now_ns();
    neb__stage_patience(s, true);
    neb_status status = w->take_outline(w->arg, out);
    neb__stage_patience(s, false);
    s->times.idle += neb__seconds_since(since);
    s->times.all += neb__seconds_since(since);
    return status;
}

neb_status neb__site_stage_take_outline(struct neb_site_stage *s, bool all, struct neb_buf *out)
{
    struct neb_group *g = hearers(s, all);
    const bool first = !neb__group_rank(g);
    int64_t said[2] = {NEB_OK, 0};
    neb__buf_clear(out);
    if (!s->c.ways->outlines_in) return NEB_OK;
    if (first) {
        said[0] = take_first(s, out);
        said[1] = (int64_t)out->len;
    }
    NEB_TRY(hear(s, g, said, sizeof said));
    NEB_TRY(said_by_first(s, (neb_status)said[0], first));
    if (!first) NEB_TRY(neb__buf_reserve(out, (size_t)said[1]));
    out->len = (size_t)said[1];
    return hear(s, g, out->data, out->len);
}

neb_status neb__site_stage_give_outline(struct neb_site_stage *s, bool all, const void *bytes, size_t n)
{
    const struct neb_stage_ways *w = s->c.ways;
    struct neb_group *g = hearers(s, all);
    const bool first = !neb__group_rank(g);
    int64_t said = NEB_OK;
    if (!w->outlines_out) return NEB_OK;
    if (first) {
        neb__stage_patience(s, true);
        said = w->give_outline(w->arg, bytes, n);
        neb__stage_patience(s, false);
    }
    NEB_TRY(hear(s, g, &said, sizeof said));
    return said_by_first(s, (neb_status)said, first);
}
