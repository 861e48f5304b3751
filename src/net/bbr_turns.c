/* bbr_turns.c: two stripes take turns on a line that one stripe could fill.
 *
 * A BBR flow that has seen no shorter round trip for ten seconds almost stops for 0.2 s and a round trip, to
 * let the queue that it made run empty and to measure again. That loses 2 to 3 % of a line. A flow that
 * begins again after a pause need not stop: its first packets see the round trip as it is. So a link that one
 * stripe fills gets a second stripe. Each sends until its ten seconds are nearly over; then the other sends,
 * whose ten seconds have passed in silence. The line stays full, since a flow that begins again knows its
 * rate.
 *
 * Handing over: the stripe that has the turn is given no more chunks. The other begins when the bytes in the
 * first one's socket have left, since both at once would overflow the line's queue. The kernel does not tell
 * when the ten seconds began, but it tells the shortest round trip (TCP_CC_INFO): a new value marks a new
 * beginning.
 *
 * Invariant: while stripes take turns, only the stripe `now` is given chunks, unless it is gone. */
#include "net/link.h"
#include "base/clock.h"

static const double busy_first = 2;     /* seconds of a full queue before a second stripe is worth it */
static const double turn_least = 8.5;   /* seconds of the ten for which a stripe keeps its turn */
static const double pause_least = 10.1; /* seconds after which a flow that begins again need not stop */
static const double overlap = 0.008;

static struct neb_conn *ready(const struct neb_peer *p, int stripe)
{
    struct neb_conn *c = p->stripe[stripe];
    return c && c->state == NEB_CONN_READY ? c : NULL;
}

static double age(const struct neb_conn *c, int64_t now)
{
    return (double)(now - c->round_trip_at) * 1e-9;
}

int neb__bbr_turns_stripes(const struct neb_peer *p)
{
    return p->turns.on && p->stripes.target == 1 ? 2 : p->stripes.target;
}

bool neb__bbr_turns_may_send(const struct neb_conn *c)
{
    const struct neb_peer *p = c->peer;
    if (neb__bbr_turns_stripes(p) == p->stripes.target) return c->stripe < p->stripes.target;
    if (!ready(p, p->turns.now)) return c->stripe < 2;
    return c->stripe == p->turns.now && !p->turns.closing;
}

bool neb__bbr_turns_is_in_use(const struct neb_conn *c)
{
    return neb__bbr_turns_may_send(c) || (c->peer->turns.closing && c->stripe == c->peer->turns.now);
}

static void begin(struct neb_peer *p, struct neb_conn *next, int64_t now)
{
    p->turns.now = next->stripe;
    p->turns.closing = false;
    next->round_trip_at = now;
    next->had_turn = true;
    neb__link_touch(p);
}

/* Returns how long the bytes in the socket take to leave, in seconds. A socket that does not tell counts as
 * empty. */
static double waiting(const struct neb_peer *p, const struct neb_conn *c)
{
    double rate = p->measure.goodput / 8;
    return rate > 0 ? neb__pace_unsent(c) / rate : 0;
}

static void on_turn_timer(uv_timer_t *timer)
{
    neb__bbr_turns_hand_over(timer->data, neb__now_ns());
}

static void look_again(struct neb_net *net, double wait)
{
    uint64_t ms = wait > overlap ? (uint64_t)(1e3 * (wait - overlap)) + 1 : 1;
    if (!uv_is_active((uv_handle_t *)&net->turn_timer) || uv_timer_get_due_in(&net->turn_timer) > ms)
        uv_timer_start(&net->turn_timer, on_turn_timer, ms, 0);
}

void neb__bbr_turns_hand_over(struct neb_net *net, int64_t now)
{
    for (struct neb_peer *p = net->peers; p; p = p->next) {
        if (!p->turns.closing) continue;
        struct neb_conn *c = ready(p, p->turns.now), *next = ready(p, !p->turns.now);
        double wait = c && p->up ? waiting(p, c) : 0;
        if (!next)
            p->turns.closing = false;
        else if (wait > 1.5 * overlap)
            look_again(net, wait);
        else
            begin(p, next, now);
        neb__link_touch(p);
    }
}

static void maybe_second(struct neb_peer *p, double seconds)
{
    struct neb_conn *c = ready(p, 0);
    p->turns.busy = seconds > 0 ? p->turns.busy + seconds : 0;
    if (p->turns.busy < busy_first || p->stripes.fixed || p->stripes.target != 1 || p->stripes.max < 2 ||
        !c || !neb__pace_is_bbr(c))
        return;
    p->turns.on = true;
    p->turns.now = 0;
    c->had_turn = true;
    p->ping_due = true; /* if the peer dials, the ping tells it how many stripes we want */
    neb__net_hurry(p->net);
}

void neb__bbr_turns_acked(struct neb_peer *p, double seconds, int64_t now)
{
    if (!p->turns.on) {
        maybe_second(p, seconds);
        return;
    }
    struct neb_conn *c = ready(p, p->turns.now), *next = ready(p, !p->turns.now);
    if (neb__bbr_turns_stripes(p) != 2 || p->turns.closing || !c || !next) return;
    if (next->had_turn && (age(c, now) < turn_least || age(next, now) < pause_least)) return;
    p->turns.closing = true;
    look_again(p->net, waiting(p, c));
}
