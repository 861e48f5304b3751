/* tick.c: what happens by the clock, ten times a second: heartbeats, deadlines, redialling, measuring, stripes.
 *
 * A peer is dead when none of its answers to our pings came for `dead_after` seconds. Answers, not any bytes: over a line
 * that is cut one way the peer's data may go on arriving while it hears nothing of us.
 *
 * Goodput is counted only over ticks at whose beginning and end chunks were waiting to be sent: a line that is not asked for
 * more says nothing about what it could give. The time constant is two seconds or ten round trips, whichever is longer. */
#include "net/link.h"
#include "base/clock.h"
#include "base/log.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

double neb__net_jitter(struct neb_net *net)
{
    return neb__rng_uniform(&net->jitter);
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

static bool is_busy(const struct neb_peer *p)
{
    return p->up && p->resumed && neb__outbox_has(&p->out, 0);
}

static void measure_goodput(struct neb_peer *p, int64_t now)
{
    struct neb_measure *m = &p->measure;
    double seconds = (double)(now - m->then) * 1e-9;
    uint64_t acked = p->out.acked_bytes;
    bool busy = is_busy(p);
    if (busy && m->busy_then && seconds > 0 && seconds < 5) {
        double bytes = (double)(acked - m->acked_then);
        double tau = 10 * m->rtt > 2 ? 10 * m->rtt : 2, share = seconds / tau;
        if (share > 1 || m->goodput <= 0) share = 1;
        m->goodput += share * (8 * bytes / seconds - m->goodput);
        m->goodput_at = now;
        m->busy += seconds;
        neb__stripes_sample(&p->stripes, now, bytes, seconds, m->rtt);
    }
    m->busy_then = busy;
    m->acked_then = acked;
    m->then = now;
}

/* What TCP counted since the last look at this connection. The kernel's struct is longer than libc's; only the common
 * beginning and some later fields are used. */
struct tcp_counts {
    uint64_t busy, window,
        buffer; /* microseconds: with data to send; held back by the peer's window, by our send buffer */
    uint64_t sent, again;
};

static bool tcp_counts(int fd, struct tcp_counts *out)
{
    enum { BUSY_TIME = 168, BYTES_SENT = 200, NEED = 216 }; /* offsets in linux/tcp.h's struct tcp_info */
    uint8_t info[512];
    socklen_t n = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &n) || n < NEED) return false;
    memcpy(&out->busy, info + BUSY_TIME, 24);
    memcpy(&out->sent, info + BYTES_SENT, 16);
    return true;
}

static bool is_bbr(int fd)
{
    char name[16] = "";
    socklen_t n = sizeof name - 1;
    return !getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &n) && !strncmp(name, "bbr", 3);
}

/* More stripes are worth a try where flows are held back by something other than the line: buffers and windows, or a
 * congestion control that takes every loss for a full queue. */
static void measure_tcp(struct neb_peer *p)
{
    struct neb_measure *m = &p->measure;
    uint64_t busy = 0, held = 0;
    bool losing = false;
    m->sent_recent *= 0.8;
    m->again_recent *= 0.8;
    for (int i = 0; i < NEB_STRIPES_MAX; i++) {
        struct neb_conn *c = p->stripe[i];
        struct tcp_counts now;
        if (!c || c->state != NEB_CONN_READY || !tcp_counts(c->fd, &now)) continue;
        m->sent_recent += (double)(now.sent - c->tcp_sent);
        m->again_recent += (double)(now.again - c->tcp_again);
        busy += now.busy - c->tcp_busy;
        held += now.window + now.buffer - c->tcp_held;
        losing |= !is_bbr(c->fd);
        c->tcp_sent = now.sent;
        c->tcp_again = now.again;
        c->tcp_busy = now.busy;
        c->tcp_held = now.window + now.buffer;
    }
    m->loss = m->sent_recent > 0 ? m->again_recent / m->sent_recent : 0;
    p->stripes.try_more = losing || 10 * held > busy;
}

/* ---- stripes ----------------------------------------------------------------------------------------------------- */

/* Unsent bytes a socket may hold: what the line takes in 20 ms, shared by the stripes; enough that TCP never runs dry between
 * two turns of the loop, little enough that the choice of the next chunk stays late. */
static int unsent_limit(const struct neb_peer *p)
{
    double bytes = p->measure.goodput / 8 * 0.02 * 2 / p->stripes.target;
    return bytes < 64 << 10 ? 64 << 10 : bytes > 2 << 20 ? 2 << 20 : (int)bytes;
}

/* A queue on the line makes nothing faster, and BBR may fill one as long as the round trip. Once the goodput is known, no
 * more is under way than that and a quarter fills, with what waits in sockets and for acknowledgements. Small lines are
 * left alone: TCP does well there, and a wrong estimate would cost more than the queue. */
static uint32_t flight_limit(const struct neb_peer *p)
{
    const struct neb_measure *m = &p->measure;
    double rtt = m->rtt_low[0] < m->rtt_low[1] ? m->rtt_low[0] : m->rtt_low[1];
    double bytes = m->goodput / 8 * (1.25 * rtt + 0.08);
    if (m->busy < 5 || rtt <= 0) return 0;
    return (uint32_t)((bytes < 4 << 20 ? 4 << 20 : bytes > 1 << 30 ? 1 << 30 : bytes) / NEB_CHUNK) + 1;
}

static void limit_stripes(struct neb_peer *p)
{
    p->flight_max = flight_limit(p);
    double pace = p->net->config.max_rate / 8 / p->stripes.target;
    for (int i = 0; i < NEB_STRIPES_MAX; i++)
        if (p->stripe[i] && p->stripe[i]->state == NEB_CONN_READY)
            neb__conn_limits(p->stripe[i], pace, unsent_limit(p));
}

/* The dialler makes as many as either side wants; a stripe beyond that goes once nothing is in flight on it. */
static void keep_stripes(struct neb_peer *p, int64_t now)
{
    const struct neb_member *me = neb__roster_by_id(&p->net->chain->now, p->net->self);
    const struct neb_member *m = neb__roster_by_id(&p->net->chain->now, p->id);
    int want = p->stripes.target > (int)p->their_stripes ? p->stripes.target : (int)p->their_stripes;
    if (!p->control->dialled || !me || !m) return;
    for (int i = 0; i < NEB_STRIPES_MAX; i++) {
        struct neb_conn *c = p->stripe[i];
        if (i < want && !c && now >= p->stripes.retry_at) neb__net_dial(p, NEB_ROLE_STRIPE, i);
        if (i >= want + 2 && c && !p->out.in_flight[i]) {
            p->stripe[i] = NULL;
            neb__inbox_drop_slot(&p->in, i);
            neb__conn_close(c);
        }
    }
}

/* ---- heartbeats and deadlines ------------------------------------------------------------------------------------ */

static void heartbeat(struct neb_peer *p, int64_t now)
{
    const struct neb_net_config *cfg = &p->net->config;
    if ((double)(now - p->pong_at) * 1e-9 > cfg->dead_after) {
        neb__warn("%s did not answer for %.1f s", p->name, (double)(now - p->pong_at) * 1e-9);
        neb__link_down(p, NEB_ERR_TIMEOUT);
        return;
    }
    if ((double)(now - p->ping_at) * 1e-9 >= cfg->heartbeat - 0.05) {
        p->ping_due = true;
        measure_tcp(p);
        limit_stripes(p);
        neb__link_touch(p);
    }
    keep_stripes(p, now);
}

static void maybe_dial(struct neb_peer *p, int64_t now)
{
    const struct neb_chain *chain = p->net->chain;
    const struct neb_member *me = neb__roster_by_id(&chain->now, p->net->self);
    const struct neb_member *m = neb__roster_by_id(&chain->now, p->id);
    if (!me || !m || p->making || p->resolving || now < p->dial_at) return;
    if (neb__roster_dialler(me, m) == me->id) neb__net_dial(p, NEB_ROLE_CONTROL, 0);
}

static void drop_late(struct neb_net *net, int64_t now)
{
    struct neb_conn *c, *next;
    for (c = net->conns; c; c = next) {
        next = c->next;
        if (c->state == NEB_CONN_READY || now - c->opened_at < (int64_t)NEB_GREET_SECONDS * 1000000000)
            continue;
        if (!c->dialled)
            neb__net_stranger_log(net, "dropped %s: no proper greeting within %d s", c->remote,
                                  NEB_GREET_SECONDS);
        neb__quiet(NEB_ERR_TIMEOUT, "no greeting within %d s", NEB_GREET_SECONDS);
        neb__link_detach(c, NEB_ERR_TIMEOUT);
        neb__conn_close(c);
    }
}

void neb__net_tick(struct neb_net *net)
{
    int64_t now = neb__now_ns();
    struct neb_peer *p, *next;
    drop_late(net, now);
    neb__conn_read_waiting(net);
    for (p = net->peers; p; p = next) {
        next = p->next;
        measure_goodput(p, now);
        if (p->up)
            heartbeat(p, now);
        else
            maybe_dial(p, now);
    }
}
