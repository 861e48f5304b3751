/* relay_joint.c: two sockets whose bytes are passed on, each way through a pipe.
 *
 * splice(2) moves pages from one socket to the pipe and from the pipe to the other socket, so that bytes are not copied
 * through this process. The pipe is the only buffer: when the receiver's socket is full the pipe fills, reading stops, and TCP
 * tells the sender. A pair that stalls holds nothing but its pipe, and a turn passes on at most NEB_JOINT_TURN bytes, so no
 * pair waits for another.
 *
 * On a fast line waking up costs more than the bytes: packets come one by one. So a way on which much was passed on is read by
 * the clock, about every 768 KiB, until nothing has come for two turns; then events are awaited again. What comes waits for half a round
 * trip of the pair's two lines at most (10 ms if they are short): bytes between near members come soon, those between far ones cost less. Short messages
 * are passed on at once; the clock's turn is taken with them if it is almost due. A turn ends with the first read that leaves little
 * behind: chasing the packets that come meanwhile costs a call and a short segment each.
 *
 * Two buckets bound the rate: that of the sender and that of the run. A way whose bucket is empty is not read until the clock
 * finds the bucket filled again.
 *
 * When one side has closed, what it sent before is passed on for up to five seconds; then both are closed. */
#define _GNU_SOURCE /* splice, pipe2 */
#include "net/relay/relay_host_internal.h"
#include "base/clamp.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    UNSENT_LEAST = 512 << 10, /* bytes that may wait unsent in a socket: those of a tenth of a second */
    UNSENT_MOST = 2 << 20,
    PIPE_LEAST = 256 << 10, /* a large pipe, */
    PIPE_USUAL = 64 << 10,  /* … and the system's own size */
    PER_TURN = 768 << 10,   /* bytes that come between two turns of the clock */
    MUCH = 64 << 10,        /* bytes that are read in this turn rather than in the next */
    FAST = 128 << 10,       /* bytes within LOOK_NS that make a way one that is read by the clock */
    LOOK_NS = 100 * 1000 * 1000,
    LINGER_SECONDS = 5,
    QUANTUM = 16 << 10, /* an emptier bucket counts as empty */
};

static void close_pipes(struct neb_joint *j)
{
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++)
            if (j->way[i].pipe[k] >= 0) close(j->way[i].pipe[k]);
}

/* A user's pipes share 64 MiB (fs.pipe-user-pages-soft). Beyond that each gets two pages, and fast pairs suffer; so only a way that is
 * fast has a large pipe, and while it is. */
static void widen(struct neb_joint_way *w)
{
    if (w->wide) return;
    w->wide = fcntl(w->pipe[1], F_SETPIPE_SZ, NEB_JOINT_PIPE) > 0 ||
              fcntl(w->pipe[1], F_SETPIPE_SZ, PIPE_LEAST) > 0; /* else the system's own size does */
}

static void narrow(struct neb_joint_way *w)
{
    if (w->wide && !w->by_clock && !w->held && fcntl(w->pipe[1], F_SETPIPE_SZ, PIPE_USUAL) > 0)
        w->wide = false;
}

static void note_size(struct neb_relay_host *h, const struct neb_joint_way *w)
{
    if (h->told_pipes || fcntl(w->pipe[1], F_GETPIPE_SZ) >= PIPE_USUAL) return;
    h->told_pipes = true;
    neb__warn("the system gives this user no more memory for pipes: pairs cost more processor time; raise "
              "fs.pipe-user-pages-soft");
}

/* What waits unsent here has been chosen by its sender already, and delays what it would choose now. */
static void let_wait(struct neb_joint *j, int i, size_t bytes)
{
    int unsent = (int)neb__clamp_size(bytes, UNSENT_LEAST, UNSENT_MOST);
    if (unsent <= 2 * j->way[i].unsent && 2 * unsent >= j->way[i].unsent && j->way[i].unsent) return;
    j->way[i].unsent = unsent;
    setsockopt(j->side[!i]->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
}

neb_status neb__joint_create(struct neb_guest *caller, struct neb_guest *answerer)
{
    struct neb_relay_host *h = caller->host;
    struct neb_joint *j = NEB_NEW(struct neb_joint);
    if (!j) return neb__quiet(NEB_ERR_NOMEM, "out of memory for a pair");
    for (int i = 0; i < 2; i++) j->way[i].pipe[0] = j->way[i].pipe[1] = -1;
    for (int i = 0; i < 2; i++)
        if (pipe2(j->way[i].pipe, O_NONBLOCK | O_CLOEXEC)) {
            neb_status status = neb__quiet(NEB_ERR_LIMIT, "no pipe for a pair: %s", strerror(errno));
            close_pipes(j);
            neb__free(j);
            return status;
        }
    j->side[0] = caller;
    j->side[1] = answerer;
    j->run = caller->run;
    j->run->joints++;
    j->moved_at = j->looked_at = neb__now_ns();
    j->wait_ms = NEB_JOINT_CLOCK_LEAST_MS;
    for (int i = 0; i < 2; i++) {
        note_size(h, &j->way[i]);
        let_wait(j, i, UNSENT_LEAST);
        j->side[i]->joint = j;
        j->side[i]->side = i;
    }
    j->next = h->joints;
    if (j->next) j->next->prev = j;
    h->joints = j;
    h->counts.joined++;
    return NEB_OK;
}

void neb__joint_close(struct neb_joint *j, const char *why)
{
    struct neb_relay_host *h = j->side[0]->host;
    struct neb_guest *side[2] = {j->side[0], j->side[1]};
    neb__debug("members %u and %u of run %.8s…: %s", side[0]->member ? side[0]->member->id : 0,
               side[1]->member ? side[1]->member->id : 0, j->run->name, why);
    if (j->prev)
        j->prev->next = j->next;
    else
        h->joints = j->next;
    if (j->next) j->next->prev = j->prev;
    j->run->joints--;
    side[0]->joint = side[1]->joint = NULL;
    close_pipes(j);
    neb__free(j);
    for (int i = 0; i < 2; i++) neb__guest_close(side[i]);
}

/* ---- rates --------------------------------------------------------------------------------------------- */

/* How many bytes may leave now; `rate` in bits per second, 0: any. A quarter of a second's bytes may leave at once. */
static size_t level(struct neb_relay_bucket *b, double rate, int64_t now)
{
    if (rate <= 0) return NEB_JOINT_TURN;
    double most = rate / 8 / 4;
    b->level = b->at ? b->level + rate / 8 * (double)(now - b->at) * 1e-9 : most;
    b->at = now;
    b->level = neb__clamp(b->level, 0, most);
    return (size_t)b->level;
}

static size_t may_pass(struct neb_joint *j, int i, int64_t now)
{
    const struct neb_relay_limits *l = &j->side[i]->host->limits;
    struct neb_relay_member *m = j->side[i]->member;
    size_t own = level(&m->bucket, l->member_rate, now), run = level(&j->run->bucket, l->run_rate, now);
    if (own < QUANTUM && l->member_rate > 0 && !m->told_rate) {
        neb__warn("member %u of run %.8s… sends more than %.0f Mbit/s: it is slowed down", m->id,
                  j->run->name, l->member_rate * 1e-6);
        m->told_rate = true;
    }
    if (run < QUANTUM && l->run_rate > 0 && !j->run->told_rate) {
        neb__warn("run %.8s… sends more than %.0f Mbit/s: it is slowed down", j->run->name,
                  l->run_rate * 1e-6);
        j->run->told_rate = true;
    }
    size_t both = own < run ? own : run;
    return both < QUANTUM ? 0 : both;
}

/* ---- passing on ---------------------------------------------------------------------------------------- */

/* Returns bytes; 0: nothing now; -1: the pair must end. */
static ssize_t take_in(struct neb_joint *j, int i, size_t most)
{
    struct neb_joint_way *w = &j->way[i];
    ssize_t n;
    if (w->ended || w->held >= NEB_JOINT_PIPE || !most) return 0;
    if (most > NEB_JOINT_PIPE - w->held) most = NEB_JOINT_PIPE - w->held;
    do n = splice(j->side[i]->fd, NULL, w->pipe[1], NULL, most, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
    while (n < 0 && errno == EINTR);
    if (n == 0) w->ended = true;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
    w->held += (size_t)n;
    return n;
}

static ssize_t give_out(struct neb_joint *j, int i)
{
    struct neb_joint_way *w = &j->way[i];
    ssize_t n;
    w->full = false;
    if (!w->held) return 0;
    do n = splice(w->pipe[0], NULL, j->side[!i]->fd, NULL, w->held, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        w->full = true;
        return 0;
    }
    if (n <= 0) return -1;
    w->held -= (size_t)n;
    return n;
}

/* A pipe is full also when it holds many small pieces, so what a read leaves behind is asked for. */
static bool has_much(const struct neb_guest *g)
{
    int unread = 0;
    return !ioctl(g->fd, FIONREAD, &unread) && unread >= MUCH;
}

/* Passes on what is there, one way, within a turn. What is left in the socket makes an event, or waits for the clock. False: the
 * pair must end. */
static bool pass(struct neb_joint *j, int i, int64_t now)
{
    struct neb_joint_way *w = &j->way[i];
    struct neb_relay_member *m = j->side[i]->member;
    const struct neb_relay_limits *l = &j->side[i]->host->limits;
    size_t allowed = may_pass(j, i, now), passed = 0;
    w->throttled = !allowed;
    for (;;) {
        ssize_t in = take_in(j, i, allowed), out = in < 0 ? -1 : give_out(j, i);
        if (in < 0 || out < 0) return false;
        allowed -= (size_t)in < allowed ? (size_t)in : allowed;
        passed += (size_t)out;
        if (l->member_rate > 0) m->bucket.level -= (double)in;
        if (l->run_rate > 0) j->run->bucket.level -= (double)in;
        if ((!in && !out) || w->full || passed >= NEB_JOINT_TURN) break;
        if (!w->held && !has_much(j->side[i])) break;
    }
    j->side[i]->host->counts.bytes += passed;
    w->recent += passed;
    w->still = passed ? 0 : w->still + 1;
    if (passed) j->moved_at = now;
    return true;
}

static bool is_over(const struct neb_joint *j)
{
    return (j->way[0].ended && !j->way[0].held) || (j->way[1].ended && !j->way[1].held);
}

/* Asks for the events that can lead on. */
static void watch(struct neb_joint *j)
{
    for (int i = 0; i < 2; i++) {
        const struct neb_joint_way *from = &j->way[i], *to = &j->way[!i]; /* `to` is written to this side */
        bool read = !from->ended && !from->full && !from->throttled && !from->by_clock;
        neb__guest_watch(j->side[i], (read ? UV_READABLE : 0) | (to->full ? UV_WRITABLE : 0));
    }
}

/* ---- the clock ----------------------------------------------------------------------------------------- */

double neb__joint_wait_ms(double rate, double round_trip_ms)
{
    double full = rate > 0 ? 1e3 * PER_TURN / rate : NEB_JOINT_CLOCK_MS;
    double most = neb__clamp(round_trip_ms / 2, NEB_JOINT_CLOCK_NEAR_MS, NEB_JOINT_CLOCK_MS);
    return neb__clamp(full, NEB_JOINT_CLOCK_LEAST_MS, most);
}

static double line_ms(const struct neb_guest *g)
{
    struct tcp_info info = {0};
    socklen_t n = sizeof info;
    return getsockopt(g->fd, IPPROTO_TCP, TCP_INFO, &info, &n) ? 0 : info.tcpi_rtt * 1e-3;
}

static bool is_clocked(const struct neb_joint_way *w)
{
    return w->by_clock || w->throttled;
}

static void on_clock(uv_timer_t *timer)
{
    neb__joint_clock(timer->data);
}

static void need_clock(struct neb_relay_host *h, int64_t due_at, int64_t now)
{
    uint64_t ms = due_at > now ? (uint64_t)(due_at - now + 999999) / 1000000 : 0;
    if (uv_is_active((uv_handle_t *)&h->clock) && uv_timer_get_due_in(&h->clock) <= ms) return;
    h->clock_ms = ms;
    uv_timer_start(&h->clock, on_clock, ms, 0);
}

/* `first`, `second`: the ways that this turn has read. */
static void schedule(struct neb_joint *j, bool first, bool second, int64_t now)
{
    bool read = (first && is_clocked(&j->way[0])) || (second && is_clocked(&j->way[1]));
    if (!is_clocked(&j->way[0]) && !is_clocked(&j->way[1])) {
        j->due_at = 0;
        return;
    }
    if (read || !j->due_at) j->due_at = now + (int64_t)(j->wait_ms * 1e6);
    need_clock(j->side[0]->host, j->due_at, now);
}

/* Decides who is read by the clock from now on. */
static void plan(struct neb_joint *j, int64_t now)
{
    bool look = now - j->looked_at > LOOK_NS;
    for (int i = 0; i < 2; i++) {
        struct neb_joint_way *w = &j->way[i];
        if (w->recent >= FAST) {
            w->by_clock = true;
            widen(w);
        }
        if (w->by_clock && w->still >= 2) w->by_clock = false;
        if (look) {
            w->rate = (double)w->recent / ((double)(now - j->looked_at) * 1e-9);
            let_wait(j, i, (size_t)(w->rate / 10));
            w->recent = 0;
        }
    }
    if (!look) return;
    double rate = j->way[0].rate > j->way[1].rate ? j->way[0].rate : j->way[1].rate;
    bool by_clock = j->way[0].by_clock || j->way[1].by_clock;
    if (by_clock) j->wait_ms = neb__joint_wait_ms(rate, line_ms(j->side[0]) + line_ms(j->side[1]));
    j->looked_at = now;
}

static void turn(struct neb_joint *j, bool first, bool second)
{
    int64_t now = neb__now_ns();
    if ((first && !pass(j, 0, now)) || (second && !pass(j, 1, now))) {
        neb__joint_close(j, "a connection broke");
        return;
    }
    if (is_over(j)) {
        neb__joint_close(j, "one of the two has closed");
        return;
    }
    plan(j, now);
    watch(j);
    schedule(j, first, second, now);
}

void neb__joint_begin(struct neb_joint *j)
{
    if (j && j->side[0]->state == NEB_GUEST_JOINED && j->side[1]->state == NEB_GUEST_JOINED)
        turn(j, true, true);
}

void neb__joint_event(struct neb_guest *g, int events)
{
    struct neb_joint *j = g->joint;
    if (!j || j->side[!g->side]->state != NEB_GUEST_JOINED) return; /* the other has not been told yet */
    bool own = events & UV_READABLE, to_us = events & UV_WRITABLE;
    struct neb_relay_host *h = g->host;
    turn(j, g->side == 0 ? own : to_us, g->side == 1 ? own : to_us);
    if (uv_is_active((uv_handle_t *)&h->clock) && uv_timer_get_due_in(&h->clock) <= h->clock_ms / 3)
        neb__joint_clock(h);
}

/* Pairs that are almost due have their turn, too: so the connections of one link share their wake-ups. */
void neb__joint_clock(struct neb_relay_host *h)
{
    int64_t now = neb__now_ns();
    uv_timer_stop(&h->clock);
    for (struct neb_joint *j = h->joints, *next; j; j = next) {
        next = j->next;
        bool first = is_clocked(&j->way[0]), second = is_clocked(&j->way[1]);
        if (!first && !second) continue;
        if (j->due_at - now > (int64_t)(j->wait_ms * 1e6 / 3))
            need_clock(h, j->due_at, now);
        else
            turn(j, first, second);
    }
}

void neb__joint_tick(struct neb_relay_host *h, int64_t now)
{
    for (struct neb_joint *j = h->joints, *next; j; j = next) {
        double still = (double)(now - j->moved_at) * 1e-9;
        next = j->next;
        for (int i = 0; i < 2; i++) narrow(&j->way[i]);
        if ((j->way[0].ended || j->way[1].ended) && still > LINGER_SECONDS)
            neb__joint_close(j, "one of the two has closed, and the other does not take the rest");
        else if (still > h->limits.idle)
            neb__joint_close(j, "idle for too long");
    }
}
