/* pace.c: reads TCP's figures about a link's stripes, and sets how much may wait in their sockets and how
 * fast they may send.
 *
 * A queue on the line makes nothing faster, and control messages wait in it. BBR takes bursts of
 * acknowledgements for a faster line and then keeps a queue as long as the round trip; other congestion
 * controls fill any queue there is. So a stripe watches its own round-trip time: the excess over the shortest
 * one is the queue. Once the queue is longer than a little, the socket is told (SO_MAX_PACING_RATE) to send
 * no faster than its acknowledgements come in, and slower by as much as empties the queue in about half a
 * second, or until the next look. While there is a queue the line is full, so braking costs nothing. When the
 * queue is nearly gone, the limit is lifted step by step, and TCP is free to find out whether the line has
 * become faster.
 *
 * The round trip may have become longer for another reason: another way through the network, or other senders
 * who fill the queue. Then sending less does not help, which shows within a few seconds. From then on the
 * remaining excess counts as the line's own, until the round trip gets shorter again. So braking is bounded,
 * and a link does not starve beside others. */
#include "net/link.h"
#include "base/clamp.h"
#include "base/clock.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

static const double look_min = 0.09;    /* seconds between two looks */
static const double brake_patience = 3; /* seconds in which braking must have helped */
static const double brake_most = 0.6;
static const double unsent_urgent = 0.04, unsent_mixed = 0.5,
                    unsent_calm = 0.8; /* seconds of data that may wait in a socket */
enum { UNSENT_MAX = 3 << 20, ROOM_MAX = 8 << 20 };

/* The kernel's struct is longer than libc's. The offsets below are those of struct tcp_info in
 * linux/tcp.h. */
struct tcp_view {
    struct neb_tcp_counts counts;
    uint32_t delivered;  /* packets, also those behind a missing one */
    uint32_t mss;        /* bytes of a packet */
    double rtt, rtt_min; /* seconds */
    uint32_t unsent;     /* bytes in the socket that TCP has not sent */
    uint32_t window;     /* packets that may be under way */
};

static bool tcp_view(int fd, struct tcp_view *out)
{
    enum {
        MSS = 16,
        RTT = 68,
        WINDOW = 80,
        DELIVERED = 192,
        UNSENT = 144,
        MIN_RTT = 148,
        BUSY_TIME = 168,
        BYTES_SENT = 200,
        NEED = 216
    };
    uint8_t info[512];
    uint32_t us;
    socklen_t n = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &n) || n < NEED) return false;
    memcpy(&out->counts.busy, info + BUSY_TIME, 24);
    memcpy(&out->counts.sent, info + BYTES_SENT, 16);
    memcpy(&out->mss, info + MSS, 4);
    memcpy(&out->delivered, info + DELIVERED, 4);
    memcpy(&out->unsent, info + UNSENT, 4);
    memcpy(&out->window, info + WINDOW, 4);
    memcpy(&us, info + RTT, 4);
    out->rtt = us * 1e-6;
    memcpy(&us, info + MIN_RTT, 4);
    out->rtt_min = us * 1e-6;
    return true;
}

/* ---- pacing -------------------------------------------------------------------------------------------- */

static void set_limit(struct neb_conn *c, double limit, double most)
{
    if (most > 0 && (limit <= 0 || limit > most)) limit = most;
    double was = c->pace.limit;
    if (limit == was || (limit > 0 && was > 0 && limit < 1.005 * was && was < 1.005 * limit)) return;
    uint64_t rate = limit > 0 ? (uint64_t)limit + 1 : UINT64_MAX;
    setsockopt(c->fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
    c->pace.limit = limit;
}

/* Returns the queue in seconds: the excess of the round trip over the line's own. */
static double queue_of(struct neb_pace *a, const struct tcp_view *v)
{
    if (a->rtt_floor < v->rtt_min || v->rtt < 0.9 * a->rtt_floor) a->rtt_floor = v->rtt_min;
    return v->rtt - a->rtt_floor;
}

/* Returns true when braking has not helped. */
static bool in_vain(struct neb_pace *a, double excess, int64_t now)
{
    if (!a->braking || excess < 0.6 * a->excess) {
        a->braking = now;
        a->excess = excess;
    }
    return (double)(now - a->braking) * 1e-9 > brake_patience;
}

/* Raises the limit step by step, since TCP may have a window far larger than the line holds and would send it
 * all at once. */
static double release(const struct neb_pace *a)
{
    double next = 1.25 * (a->limit > a->rate ? a->limit : a->rate);
    return a->limit <= 0 || next > 4 * a->rate ? 0 : next;
}

/* Returns bytes per second; 0: no limit. */
static double limit_for(struct neb_pace *a, const struct tcp_view *v, int64_t now)
{
    double queue = queue_of(a, v), enough = 0.01 + 0.1 * a->rtt_floor;
    if (queue < 0.5 * enough || a->rate <= 0) {
        a->braking = 0;
        return release(a);
    }
    if (queue < enough) {
        a->braking = 0;
        return a->rate * 1.02;
    }
    if (in_vain(a, queue, now)) {
        a->rtt_floor = v->rtt;
        a->braking = 0;
        return 0;
    }
    double less = 1 - (queue - enough) / (a->every > 0.5 ? a->every : 0.5);
    return a->rate * (less < brake_most ? brake_most : less);
}

/* The rate rises at once and falls slowly. It also falls because of our own braking and when BBR pauses to
 * see the shortest round trip, and neither says anything about the line. */
static void follow(struct neb_pace *a, double rate, double seconds)
{
    double share = seconds / (rate > a->rate ? 0.3 : 5);
    a->rate += (share < 1 ? share : 1) * (rate - a->rate);
}

/* A changed value means that BBR has just measured its shortest round trip anew (struct tcp_bbr_info:
 * bandwidth, 8 bytes; min_rtt). */
static void look_at_round_trip(struct neb_conn *c, int64_t now)
{
    uint32_t info[5] = {0};
    socklen_t n = sizeof info;
    if (getsockopt(c->fd, IPPROTO_TCP, TCP_CC_INFO, info, &n) || n < 12 || info[2] == c->round_trip) return;
    c->round_trip = info[2];
    c->round_trip_at = now;
}

static void pace_stripe(struct neb_conn *c, double most, int64_t now)
{
    struct neb_pace *a = &c->pace;
    struct tcp_view v;
    double seconds = (double)(now - a->at) * 1e-9;
    if ((a->at && seconds < look_min) || !tcp_view(c->fd, &v)) return;
    bool fresh = !a->at || seconds > 2;
    a->every = fresh ? 0 : seconds;
    if (!fresh && v.unsent) follow(a, (double)(v.delivered - a->delivered) * v.mss / seconds, seconds);
    look_at_round_trip(c, now);
    a->at = now;
    a->delivered = v.delivered;
    a->in_flight = (double)v.window * v.mss;
    set_limit(c, v.unsent ? limit_for(a, &v, now) : 0, most);
}

/* ---- unsent bytes -------------------------------------------------------------------------------------- */

/* Returns true when both round data and bulk state were sent lately, so that round data would wait behind
 * bulk state. */
static bool is_mixed(const struct neb_peer *p)
{
    return p->sent_at[NEB_ROUND] && p->sent_at[NEB_BULK] && neb__seconds_since(p->sent_at[NEB_ROUND]) < 10 &&
           neb__seconds_since(p->sent_at[NEB_BULK]) < 10;
}

/* Sets how much may wait unsent in a socket: enough that TCP never runs dry between two turns of the loop,
 * little enough that the choice of the next chunk stays late. While no stream item can come, "late" may be
 * most of a second. Then wake-ups are few: the peer's acknowledgements arrive, and bring the next data,
 * before the socket asks for it. */
static void set_unsent(struct neb_peer *p, struct neb_conn *c, double in_flight)
{
    bool calm = neb__link_is_calm(p);
    double rate = p->measure.goodput / 8 / p->stripes.target;
    double seconds = unsent_urgent;
    if (calm) seconds = is_mixed(p) ? unsent_mixed : unsent_calm;
    double most = neb__clamp(rate * seconds, 64 << 10, UNSENT_MAX);
    double low = calm ? neb__clamp(rate * unsent_urgent, most / 4, most / 2) : most / 2;
    double room = 1.2 * (in_flight + most);
    if (calm && room <= ROOM_MAX) neb__conn_room(c, (int)room);
    neb__conn_unsent(c, (int)most, (int)low);
}

void neb__link_pace(struct neb_peer *p, int64_t now)
{
    double most = p->net->config.max_rate / 8 / p->stripes.target;
    for (int i = 0; i < NEB_CONTROL_COPY; i++) {
        struct neb_conn *c = p->stripe[i];
        if (!c || c->state != NEB_CONN_READY || !neb__bbr_turns_is_in_use(c)) continue;
        pace_stripe(c, most, now);
        set_unsent(p, c, c->pace.in_flight);
    }
}

/* ---- measuring ----------------------------------------------------------------------------------------- */

double neb__pace_unsent(const struct neb_conn *c)
{
    struct tcp_view v;
    return tcp_view(c->fd, &v) ? v.unsent : 0;
}

double neb__pace_rtt(const struct neb_conn *c)
{
    struct tcp_view v;
    return tcp_view(c->fd, &v) ? v.rtt : 0;
}

bool neb__pace_is_bbr(const struct neb_conn *c)
{
    char name[16] = "";
    socklen_t n = sizeof name - 1;
    return !getsockopt(c->fd, IPPROTO_TCP, TCP_CONGESTION, name, &n) && !strncmp(name, "bbr", 3);
}

/* More stripes are worth a try when something other than the line holds flows back: buffers and windows, or a
 * congestion control that takes every loss for a full queue. */
void neb__pace_look(struct neb_peer *p)
{
    struct neb_measure *m = &p->measure;
    double most = p->net->config.max_rate / 8 / p->stripes.target;
    uint64_t busy = 0, held = 0;
    bool losing = false;
    m->sent_recent *= 0.8;
    m->again_recent *= 0.8;
    for (int i = 0; i < NEB_CONTROL_COPY; i++) {
        struct neb_conn *c = p->stripe[i];
        struct tcp_view v;
        if (!c || c->state != NEB_CONN_READY || !tcp_view(c->fd, &v)) continue;
        struct neb_tcp_counts now = v.counts;
        m->sent_recent += (double)(now.sent - c->tcp.sent);
        m->again_recent += (double)(now.again - c->tcp.again);
        busy += now.busy - c->tcp.busy;
        held += now.window + now.buffer - c->tcp.window - c->tcp.buffer;
        losing |= !neb__pace_is_bbr(c);
        c->tcp = now;
        if (!v.unsent) set_limit(c, 0, most); /* idle: the next message starts without braking */
    }
    m->loss = m->sent_recent > 0 ? m->again_recent / m->sent_recent : 0;
    p->stripes.try_more = losing || 10 * held > busy;
}
