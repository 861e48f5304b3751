/* links.c: the session's side of the links: messages that go out, messages that come in, and measurements.
 *
 * Every function of the links that sends must run on their own thread, so sending is posted there. Messages
 * that arrive are handed over whole; when too many wait, the links are told to hold back, and are resumed
 * when there is room. */
#include "run/session.h"
#include "base/clock.h"
#include "base/mem.h"
#include "run/job_facts.h"

#include <string.h>

/* ---- sending ------------------------------------------------------------------------------------------- */

struct outgoing {
    neb_session *s;
    struct neb_sending watch;
    uint16_t peer;
    enum neb_priority priority;
    uint32_t kind, cell; /* cell: of a NEB_MSG_CELL */
    bool asked_for;
    struct neb_shared *shared; /* where the bytes are, if not here */
    size_t n;
    uint8_t bytes[];
};

/* The message says which model and job this site runs: neb_session_close() may wait until it has arrived. */
static bool introduces(uint32_t kind)
{
    return kind == NEB_MSG_MODEL || kind == NEB_MSG_FACTS;
}

static void sent(void *arg, neb_status status)
{
    struct outgoing *o = arg; /* whatever is lost, the core asks for again */
    struct neb_lines *lines = &o->s->lines;
    if (introduces(o->kind)) neb__members_told(&o->s->members, o->peer);
    neb__lines_land(lines, o->watch.flight);
    if (o->kind == NEB_MSG_CELL) neb__lines_cell_end(lines, o->peer, o->cell);
    neb__lines_unshare(lines, o->shared);
    neb__lines_acked(lines, &o->watch, o->peer, status == NEB_OK);
    neb__free(o);
}

static void send_on_loop(void *arg)
{
    struct outgoing *o = arg;
    const uint8_t *bytes = o->shared ? o->shared->bytes : o->bytes;
    neb_status status = neb__net_send(o->s->net, o->peer, o->priority, o->kind, bytes, o->n, sent, o);
    if (status == NEB_ERR_AGAIN) neb__session_refused(o->s, o->peer, NEB_QUOTA_QUEUE, 1);
    if (status != NEB_OK) sent(o, NEB_ERR_PEER);
}

enum neb_traffic neb__traffic_of(uint32_t kind, bool asked_for)
{
    switch (kind) {
    case NEB_MSG_UPDATE: return asked_for ? NEB_TRAFFIC_RECOVERY : NEB_TRAFFIC_UPDATES;
    case NEB_MSG_CELL:
    case NEB_MSG_GET_CELL: return NEB_TRAFFIC_RECOVERY;
    case NEB_MSG_STATUS:
    case NEB_MSG_NOTE: return NEB_TRAFFIC_STATUS;
    default: return NEB_TRAFFIC_CONTROL;
    }
}

/* `hash`: of the update that the message is, or NULL. `unasked`: the rate controller watches how it gets
 * through. */
static void send(neb_session *s, const struct outgoing *like, const void *bytes, bool unasked,
                 const struct neb_hash *hash)
{
    struct neb_shared *shared = hash ? neb__lines_share(&s->lines, hash, bytes, like->n) : NULL;
    struct outgoing *o = NULL;
    if (shared || !hash) o = neb__malloc(sizeof *o + (shared ? 0 : like->n));
    if (!o) {
        neb__lines_unshare(&s->lines, shared);
        if (like->kind == NEB_MSG_CELL) neb__lines_cell_end(&s->lines, like->peer, like->cell);
        return;
    }
    *o = *like;
    o->shared = shared;
    if (o->n && !shared) memcpy(o->bytes, bytes, o->n);
    pthread_mutex_lock(&s->lock);
    s->status.bytes_out += (int64_t)o->n;
    s->status.out[neb__traffic_of(o->kind, !unasked)] += (int64_t)o->n;
    pthread_mutex_unlock(&s->lock);
    if (hash)
        o->watch.flight = neb__lines_take_off(
            &s->lines,
            &(struct neb_flight){
                .peer = o->peer, .hash = *hash, .shared = shared, .size = o->n, .asked_for = o->asked_for});
    if (unasked) neb__lines_pushed(&s->lines, &o->watch);
    if (introduces(o->kind)) neb__members_tell(&s->members, o->peer);
    if (neb__net_post(s->net, send_on_loop, o) != NEB_OK) sent(o, NEB_ERR_PEER);
}

void neb__session_send(neb_session *s, uint16_t peer, enum neb_priority priority, uint32_t kind,
                       const void *bytes, size_t n)
{
    send(s, &(struct outgoing){.s = s, .peer = peer, .priority = priority, .kind = kind, .n = n}, bytes,
         false, NULL);
}

void neb__session_send_update(neb_session *s, uint16_t peer, const struct neb_hash *hash, bool asked_for,
                              const void *bytes, size_t n)
{
    struct outgoing o = {
        .s = s, .peer = peer, .priority = NEB_ROUND, .kind = NEB_MSG_UPDATE, .asked_for = asked_for, .n = n};
    o.watch = (struct neb_sending){.push = asked_for ? 0 : neb__lines_watched(&s->lines, hash),
                                   .since = neb__now_ns(),
                                   .bytes = (double)n};
    send(s, &o, bytes, !asked_for, hash);
}

void neb__session_send_cell(neb_session *s, uint16_t peer, uint32_t cell, const void *bytes, size_t n)
{
    send(s,
         &(struct outgoing){
             .s = s, .peer = peer, .priority = NEB_BULK, .kind = NEB_MSG_CELL, .cell = cell, .n = n},
         bytes, false, NULL);
}

/* ---- from the links ------------------------------------------------------------------------------------ */

static void post_peer(void *arg, enum neb_item_type type, uint16_t peer)
{
    neb_session *s = arg;
    struct neb_item *i = NEB_NEW(struct neb_item);
    if (!i) return;
    i->type = type;
    i->peer = peer;
    neb__queue_post(&s->driver.queue, i);
}

static void note_link(neb_session *s, uint16_t peer, bool up)
{
    neb__members_link(&s->members, peer, up);
    if (up) neb__lines_came_up(&s->lines, peer);
}

static void peer_up(void *arg, uint16_t peer, uint64_t incarnation)
{
    neb_session *s = arg;
    (void)incarnation;
    note_link(s, peer, true);
    neb__members_learn(&s->members, neb__net_roster(s->net));
    post_peer(arg, NEB_ITEM_PEER_UP, peer);
}

static void peer_down(void *arg, uint16_t peer, neb_status why)
{
    (void)why;
    note_link(arg, peer, false);
    post_peer(arg, NEB_ITEM_PEER_DOWN, peer);
}

static void roster_changed(void *arg, const struct neb_chain *chain)
{
    neb_session *s = arg;
    neb__members_learn(&s->members, chain);
}

static void roster_fork(void *arg, uint16_t peer, uint64_t epoch)
{
    (void)epoch;
    post_peer(arg, NEB_ITEM_FORK, peer);
}

/* A message that is turned away, for the queue's length or for want of memory, is offered again when the
 * driver asks. */
static neb_status message(void *arg, struct neb_message *m)
{
    neb_session *s = arg;
    struct neb_item *i = NEB_NEW(struct neb_item);
    if (!neb__queue_admits(&s->driver.queue, m->peer, i != NULL)) {
        neb__free(i);
        return NEB_ERR_AGAIN;
    }
    pthread_mutex_lock(&s->lock);
    s->status.bytes_in += (int64_t)m->size;
    s->status.in[neb__traffic_of(m->kind, false)] += (int64_t)m->size;
    pthread_mutex_unlock(&s->lock);
    i->type = NEB_ITEM_MESSAGE;
    i->peer = m->peer;
    i->kind = m->kind;
    i->size = m->size;
    i->bytes = neb__message_take(m);
    neb__queue_post(&s->driver.queue, i);
    return NEB_OK;
}

const struct neb_net_events neb__session_events = {
    .peer_up = peer_up,
    .peer_down = peer_down,
    .message = message,
    .roster = roster_changed,
    .roster_fork = roster_fork,
};

static void resume_on_loop(void *arg)
{
    neb_session *s = arg;
    const struct neb_chain *chain = neb__net_roster(s->net);
    for (uint32_t i = 0; i < chain->now.count; i++)
        for (int p = 0; p < NEB_PRIORITIES; p++)
            if (chain->now.members[i].id != s->self)
                neb__net_resume(s->net, chain->now.members[i].id, (enum neb_priority)p);
}

/* If that cannot be told now, it is at the driver's next turn. */
void neb__session_resume_links(neb_session *s)
{
    if (neb__net_post(s->net, resume_on_loop, s) != NEB_OK) neb__queue_stall(&s->driver.queue);
}

/* ---- measuring ----------------------------------------------------------------------------------------- */

/* On the links' thread, now and then: what they measured, for the other threads. */
static void copy_lines(void *arg)
{
    neb_session *s = arg;
    pthread_mutex_lock(&s->lock);
    s->status.links_cpu_s = neb__thread_cpu();
    s->greetings_dropped = (int64_t)neb__net_dropped(s->net);
    pthread_mutex_unlock(&s->lock);
    for (uint16_t i = 0; i < NEB_SITES_MAX; i++) {
        struct neb_line line = {0};
        if (i == s->self || neb__net_line(s->net, i, &line) != NEB_OK) memset(&line, 0, sizeof line);
        neb__lines_measured(&s->lines, i, &line);
    }
}

void neb__session_line(neb_session *s, uint16_t peer, struct neb_line *out)
{
    *out = neb__lines_get(&s->lines, peer);
}

neb_status neb__session_watch_lines(neb_session *s)
{
    struct neb_net_timer *timer; /* ends with the links */
    return neb__net_timer_start(s->net, 0.05, 0.25, copy_lines, s, &timer);
}
