/* timers.c: everything that the clock drives: heartbeats, deadlines, redialling, measuring, stripes.
 *
 * Ticks come ten times a second while something is being made (a connection, a stripe, or a link that is down
 * and that we must dial), and every second otherwise. They come earlier if the process is awake anyway. On a
 * slow line wake-ups cost more than the data.
 *
 * A peer is dead when it has not answered our pings for `dead_after` seconds. Only answers count, not any
 * bytes: over a line that is cut one way the peer's data may go on arriving while it hears nothing from us.
 *
 * Goodput is counted from acknowledgement to acknowledgement, over periods in which chunks were always
 * waiting to be sent: a line that is not asked for more says nothing about what it could give. The time
 * constant is two seconds or ten round trips, whichever is longer. */
#include "net/link.h"
#include "base/clamp.h"
#include "base/clock.h"
#include "base/log.h"

double neb__net_jitter(struct neb_net *net)
{
    return neb__rng_uniform(&net->jitter);
}

#define DIAL_ANYWAY_NS INT64_C(5000000000)
#define HEAD_START_NS  INT64_C(1000000000)
#define PARKED_NS      INT64_C(3000000000)
static const double doubt = 2.5; /* heartbeats without an answer */

/* ---- measuring ----------------------------------------------------------------------------------------- */

static bool is_busy(const struct neb_peer *p)
{
    return p->up && p->resumed && neb__outbox_has(&p->out, 0);
}

static const double period_min = 0.08, period_max = 5;

static void count(struct neb_measure *m, double bytes, double seconds, int64_t now)
{
    double tau = 10 * m->rtt > 2 ? 10 * m->rtt : 2, share = seconds / tau;
    if (share > 1 || m->goodput <= 0) share = 1;
    m->goodput += share * (8 * bytes / seconds - m->goodput);
    m->goodput_at = now;
}

void neb__measure_acked(struct neb_peer *p, int64_t now)
{
    struct neb_measure *m = &p->measure;
    double seconds = (double)(now - m->then) * 1e-9, bytes = (double)(p->out.acked_bytes - m->acked_then);
    bool whole = m->then && !m->dry && is_busy(p);
    m->acked_at = now;
    if (whole && seconds < period_min) return;
    if (whole && seconds < period_max) {
        int before = p->stripes.target;
        count(m, bytes, seconds, now);
        neb__stripes_sample(&p->stripes, now, bytes, seconds, m->rtt);
        if (p->stripes.target != before) neb__net_hurry(p->net);
        neb__link_pace(p, now);
        neb__bbr_turns_acked(p, seconds, now);
    }
    if (!whole) neb__bbr_turns_acked(p, 0, now);
    m->then = now;
    m->acked_then = p->out.acked_bytes;
    m->dry = false;
}

/* ---- stripes ------------------------------------------------------------------------------------------- */

static int stripes_wanted(const struct neb_peer *p)
{
    int own = neb__bbr_turns_stripes(p), theirs = (int)p->their_stripes;
    return own > theirs ? own : theirs;
}

/* The dialler makes as many stripes as either side wants. A stripe beyond that is closed once nothing is in
 * flight on it. */
static void keep_stripes(struct neb_peer *p, int64_t now)
{
    const struct neb_member *me = neb__roster_by_id(&p->net->chain->now, p->net->self);
    const struct neb_member *m = neb__roster_by_id(&p->net->chain->now, p->id);
    int want = stripes_wanted(p);
    if (!p->control->dialled || !me || !m) return;
    if (neb__control_copy_is_wanted(p) && !p->stripe[NEB_CONTROL_COPY] && now >= p->stripes.retry_at)
        neb__net_dial(p, NEB_CONN_STRIPE, NEB_CONTROL_COPY);
    for (int i = 0; i < NEB_CONTROL_COPY; i++) {
        struct neb_conn *c = p->stripe[i];
        if (i < want && !c && now >= p->stripes.retry_at) neb__net_dial(p, NEB_CONN_STRIPE, i);
        if (i >= want + 2 && c && !p->out.in_flight[i]) {
            p->stripe[i] = NULL;
            neb__inbox_drop_slot(&p->in, i);
            neb__conn_close(c);
        }
    }
}

/* ---- heartbeats and deadlines -------------------------------------------------------------------------- */

/* Somebody who has connected and is not greeted yet may be the peer, over a slow line: two links at once would cost one of
 * them. A stranger cannot delay us by more than that for long. */
static bool is_overdue(const struct neb_peer *p, int64_t now)
{
    int64_t down = now - p->down_at;
    if (down <= DIAL_ANYWAY_NS || down > 3 * DIAL_ANYWAY_NS) return down > DIAL_ANYWAY_NS;
    for (const struct neb_conn *c = p->net->conns; c; c = c->next)
        if (!c->dialled && (c->state == NEB_CONN_TLS || c->state == NEB_CONN_GREETING)) return false;
    return true;
}

/* One of two members dials. If that has led to no link for a while, the other one dials, too: perhaps the
 * first cannot reach it, or has been told that this site is not a member any more, which the refusal of a
 * call then shows. */
static bool is_ours_to_dial(const struct neb_peer *p, int64_t now)
{
    const struct neb_chain *chain = p->net->chain;
    const struct neb_member *me = neb__roster_by_id(&chain->now, p->net->self);
    const struct neb_member *m = neb__roster_by_id(&chain->now, p->id);
    if (!me || !m) return false;
    return neb__roster_dialler(me, m) == me->id || is_overdue(p, now);
}

/* The same through a relay host. A direct link is better, so dialling gets a head start where it may succeed for the first
 * time. */
static bool is_ours_to_call(const struct neb_peer *p, int64_t now)
{
    const struct neb_chain *chain = p->net->chain;
    const struct neb_member *me = neb__roster_by_id(&chain->now, p->net->self);
    const struct neb_member *m = neb__roster_by_id(&chain->now, p->id);
    if (!me || !m || !neb__member_has_relay(m)) return false;
    bool direct_may_be = !p->boot && (neb__member_directs(me) || neb__member_directs(m));
    if (direct_may_be && now - p->down_at < HEAD_START_NS) return false;
    return neb__roster_caller(me, m) == me->id || (!p->up && now - p->down_at > DIAL_ANYWAY_NS);
}

static void heartbeat(struct neb_peer *p, int64_t now)
{
    const struct neb_net_config *cfg = &p->net->config;
    /* A direct path that has fallen silent may be lost: a connection through a relay host takes its place before anybody
     * notices, if there is one. */
    if (!p->control->stand && (double)(now - p->pong_at) * 1e-9 > doubt * cfg->heartbeat && !p->calling &&
        now >= p->call_at && is_ours_to_call(p, now))
        neb__stand_call(p, NEB_CONN_CONTROL, 0);
    if ((double)(now - p->pong_at) * 1e-9 > neb__patience_answer(p)) {
        neb__warn("%s has not answered for %.1f s", p->name, (double)(now - p->pong_at) * 1e-9);
        neb__link_down(p, NEB_ERR_TIMEOUT);
        return;
    }
    if ((double)(now - p->ping_at) * 1e-9 >=
        (p->net->hurried ? cfg->heartbeat - 0.05 : 0.5 * cfg->heartbeat)) {
        p->ping_due = true;
        neb__link_touch(p);
    }
    if (now - p->looked_at > (int64_t)1e9) {
        p->looked_at = now;
        neb__pace_look(p);
    }
    keep_stripes(p, now);
}

static void maybe_dial(struct neb_peer *p, int64_t now)
{
    if (!p->making && !p->resolving && now >= p->dial_at && is_ours_to_dial(p, now))
        neb__net_dial(p, NEB_CONN_CONTROL, 0);
    if (!p->up && !p->calling && now >= p->call_at && is_ours_to_call(p, now))
        neb__stand_call(p, NEB_CONN_CONTROL, 0);
}

/* A link through a relay host: both sides go on dialling, and a direct connection takes over. */
static void seek_direct(struct neb_peer *p, int64_t now)
{
    const struct neb_member *m = neb__roster_by_id(&p->net->chain->now, p->id);
    if (!p->making && !p->resolving && now >= p->dial_at && m && neb__member_directs(m))
        neb__net_dial(p, NEB_CONN_CONTROL, 0);
}

static void drop_late(struct neb_net *net, int64_t now)
{
    struct neb_conn *c, *next;
    for (c = net->conns; c; c = next) {
        next = c->next;
        if (c->state == NEB_CONN_PARKED && now - c->opened_at > PARKED_NS) neb__conn_close(c);
        if (c->state == NEB_CONN_PARKED || c->state == NEB_CONN_CLOSED || neb__stand_is_quiet(c)) continue;
        double patience = neb__patience_greet(c);
        if (c->state == NEB_CONN_READY || (double)(now - c->opened_at) * 1e-9 < patience) continue;
        if (c->tunnel)
            neb__net_dial_trouble(c->peer, "the proxy %s:%u did not connect within %.0f s",
                                  net->way.proxy.host, net->way.proxy.port, patience);
        if (!c->dialled)
            neb__net_stranger_log(net, "dropped %s: it sent no valid greeting within %.0f s", c->remote,
                                  patience);
        neb__quiet(NEB_ERR_TIMEOUT, "no greeting within %.0f s", patience);
        neb__patience_late(c);
        neb__link_detach(c, NEB_ERR_TIMEOUT);
        neb__conn_close(c);
    }
}

static bool is_hurried(const struct neb_net *net, int64_t now)
{
    for (const struct neb_conn *c = net->conns; c; c = c->next) {
        bool seeking = c->peer && c->peer->up && c == c->peer->making; /* it may take for ever */
        if (c->state != NEB_CONN_READY && c->state != NEB_CONN_PARKED && !neb__stand_is_quiet(c) && !seeking)
            return true;
    }
    for (const struct neb_peer *p = net->peers; p; p = p->next) {
        int want = stripes_wanted(p);
        if (p->up ? want > 2 : is_ours_to_dial(p, now) || is_ours_to_call(p, now))
            return true; /* with several stripes, one may bring the data that was expected on another */
        for (int i = 0; p->up && p->control->dialled && i < want; i++)
            if (!p->stripe[i]) return true;
    }
    return false;
}

static void on_tick(uv_timer_t *timer)
{
    neb__net_tick(timer->data);
}

static uint64_t calm_ms(const struct neb_net *net)
{
    double ms = 1000 * net->config.heartbeat;
    return (uint64_t)neb__clamp(ms, NEB_TICK_MS, NEB_TICK_CALM_MS);
}

void neb__net_hurry(struct neb_net *net)
{
    net->hurried = true;
    if (net->loop_ready && uv_timer_get_due_in(&net->tick) > NEB_TICK_MS)
        uv_timer_start(&net->tick, on_tick, NEB_TICK_MS, 0);
}

void neb__net_tick(struct neb_net *net)
{
    int64_t now = neb__now_ns();
    struct neb_peer *p, *next;
    double since = net->ticked_at ? (double)(now - net->ticked_at) * 1e-9 : 0,
           period = 1e-3 * (double)calm_ms(net);
    if (since > 2 * period) neb__patience_slept(net, since - period);
    net->ticked_at = now;
    drop_late(net, now);
    if (net->dial_commands) neb__dial_commands_reap(net);
    neb__conn_read_waiting(net, false);
    for (p = net->peers; p; p = next) {
        next = p->next;
        if (!p->up)
            maybe_dial(p, now);
        else if (p->control->stand)
            seek_direct(p, now);
        if (p->up) heartbeat(p, now);
    }
    neb__stand_tick(net, now);
    net->hurried = is_hurried(net, now);
    uv_timer_start(&net->tick, on_tick, net->hurried ? NEB_TICK_MS : calm_ms(net), 0);
}

void neb__net_tick_early(struct neb_net *net)
{
    uint64_t period = calm_ms(net);
    if (!net->hurried && uv_is_active((uv_handle_t *)&net->tick) &&
        uv_timer_get_due_in(&net->tick) < period * 2 / 5)
        neb__net_tick(net);
}
