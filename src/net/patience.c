/* patience.c: how long a peer may take, by what was measured.
 *
 * A fixed time is wrong for some line: too long where a lost peer should be noticed, too short where every answer takes
 * seconds. So the times of the configuration hold for usual lines, and grow with the round trip.
 *
 *     a greeting   a connection that comes in has `greet` and ten of TCP's round trips. One that we dial has `greet`, twice as
 *                  long after each attempt that was too slow, and once there was a link, at least twice as long as that took
 *     an answer    `dead_after`, or twelve round trips of the heartbeat; before the first answer, three times the greeting, which
 *                  takes four round trips or more
 *     TCP          gives up (TCP_USER_TIMEOUT) a little after we would
 *
 * Everything has an upper bound: a stranger must not occupy a slot, nor a member its link, for ever by answering slowly.
 *
 * A process that stood still (a stopped machine, a full one) finds its own clock late. That time is not held against its
 * peers, whose answers wait in the sockets. */
#include "net/link.h"
#include "base/clamp.h"
#include "base/clock.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

static const double stranger_round_trips = 10, answer_round_trips = 12, answer_greetings = 3;
static const double greet_most = 8, answer_most = 20; /* times the configured value */
static const double tcp_more = 4.0 / 3, tcp_least = 8;

double neb__patience_greet(const struct neb_conn *c)
{
    double greet = c->net->config.greet;
    if (c->dialled) return c->peer ? c->peer->patience : greet;
    return neb__clamp(greet + stranger_round_trips * neb__pace_rtt(c), greet, greet_most * greet);
}

double neb__patience_answer(const struct neb_peer *p)
{
    double usual = p->net->config.dead_after, rtt = p->measure.rtt;
    double measured = rtt > 0 ? answer_round_trips * rtt : answer_greetings * p->greeted_in;
    return neb__clamp(measured, usual, answer_most * usual);
}

static void set_tcp(const struct neb_conn *c, double seconds)
{
    int ms = (int)(1000 * (seconds > tcp_least ? seconds : tcp_least));
    setsockopt(c->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}

void neb__patience_dialled(struct neb_conn *c)
{
    set_tcp(c, neb__patience_greet(c));
}

void neb__patience_late(struct neb_conn *c)
{
    struct neb_peer *p = c->peer;
    double greet = c->net->config.greet;
    if (c->dialled && p && p->making == c)
        p->patience = neb__clamp(2 * p->patience, greet, greet_most * greet);
}

void neb__patience_linked(struct neb_conn *c)
{
    struct neb_peer *p = c->peer;
    double greet = c->net->config.greet;
    p->greeted_in = neb__seconds_since(c->opened_at);
    p->patience = neb__clamp(2 * p->greeted_in, greet, greet_most * greet);
    set_tcp(c, tcp_more * neb__patience_answer(p));
}

void neb__patience_slept(struct neb_net *net, double late)
{
    int64_t now = neb__now_ns(), more = (int64_t)(late * 1e9);
    for (struct neb_peer *p = net->peers; p; p = p->next)
        if (p->up) p->pong_at = neb__clamp_int(p->pong_at + more, p->pong_at, now);
    for (struct neb_conn *c = net->conns; c; c = c->next)
        if (c->state != NEB_CONN_READY) c->opened_at = neb__clamp_int(c->opened_at + more, c->opened_at, now);
}
