/* driver.c: the driver's thread: events from the links and from the training loop into the core, the core's
 * actions out of it; and what crosses between the threads.
 *
 * Every function of the links that sends must run on their own thread, so sending is posted there. Messages that arrive
 * are handed over whole; when too many wait, the links are told to hold back, and are resumed when there is room. */
#include "run/session.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "run/job_facts.h"
#include "run/site_status.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { QUEUE_MAX = 256 << 20 };

static int64_t now_ms(void)
{
    return neb__now_ns() / 1000000;
}

void neb__session_halt(neb_session *s, const char *why)
{
    pthread_mutex_lock(&s->lock);
    if (!s->halted) snprintf(s->why, sizeof s->why, "%s", why);
    s->halted = true;
    pthread_cond_broadcast(&s->changed);
    neb__streams_halted(s);
    pthread_mutex_unlock(&s->lock);
    neb__log(NEB_LOG_ERROR, "this site stops taking part in the run: %s", why);
}

/* ---- to the links ---------------------------------------------------------------------------------------------- */

struct neb_shared {
    int refs; /* under the lock */
    uint8_t bytes[];
};

struct outgoing {
    neb_session *s;
    struct neb_sending watch;
    uint16_t peer;
    enum neb_priority priority;
    uint32_t kind;
    struct neb_shared *shared; /* where the bytes are, if not here */
    size_t n;
    uint8_t bytes[];
};

static void release(struct neb_shared *b) /* the lock is held */
{
    if (b && --b->refs == 0) neb__free(b);
}

static void sent(void *arg, neb_status st)
{
    struct outgoing *o = arg; /* whatever is lost, the core asks for again */
    pthread_mutex_lock(&o->s->lock);
    if (o->watch.flight) o->s->flights[o->watch.flight - 1].used = false;
    release(o->shared);
    pthread_mutex_unlock(&o->s->lock);
    neb__session_acked(o->s, &o->watch, o->peer, st == NEB_OK);
    neb__free(o);
}

static void send_on_loop(void *arg)
{
    struct outgoing *o = arg;
    const uint8_t *bytes = o->shared ? o->shared->bytes : o->bytes;
    if (neb__net_send(o->s->net, o->peer, o->priority, o->kind, bytes, o->n, sent, o) != NEB_OK)
        sent(o, NEB_ERR_PEER);
}

static enum neb_traffic traffic_of(uint32_t kind, bool asked_for)
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

/* The lock is held. Without a free place it is simply not remembered. */
static int take_off(neb_session *s, uint16_t peer, const struct neb_hash *hash, struct neb_shared *shared)
{
    for (int i = 0; i < NEB_FLIGHTS; i++) {
        if (s->flights[i].used) continue;
        s->flights[i] = (struct neb_flight){true, peer, *hash, shared};
        return i + 1;
    }
    return 0;
}

/* The copy that is on its way to another peer, or a new one. */
static struct neb_shared *share(neb_session *s, const struct neb_hash *hash, const void *bytes, size_t n)
{
    struct neb_shared *b = NULL;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < NEB_FLIGHTS && !b; i++)
        if (s->flights[i].used && neb__hash_equal(&s->flights[i].hash, hash)) b = s->flights[i].shared;
    if (b) b->refs++;
    pthread_mutex_unlock(&s->lock);
    if (b || !(b = neb__malloc(sizeof *b + n))) return b;
    b->refs = 1;
    memcpy(b->bytes, bytes, n);
    return b;
}

bool neb__session_under_way(neb_session *s, uint16_t peer, const struct neb_hash *hash)
{
    bool found = false;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < NEB_FLIGHTS && !found; i++) {
        const struct neb_flight *f = &s->flights[i];
        found = f->used && f->peer == peer && neb__hash_equal(&f->hash, hash);
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

/* `hash`: of the update that the message is, or NULL. `unasked`: the rate controller watches how it gets through. */
static void send(neb_session *s, const struct outgoing *like, const void *bytes, bool unasked,
                 const struct neb_hash *hash)
{
    struct neb_shared *shared = hash ? share(s, hash, bytes, like->n) : NULL;
    struct outgoing *o = hash && !shared ? NULL : neb__malloc(sizeof *o + (shared ? 0 : like->n));
    pthread_mutex_lock(&s->lock);
    if (!o) {
        release(shared);
        pthread_mutex_unlock(&s->lock);
        return;
    }
    *o = *like;
    o->shared = shared;
    if (o->n && !shared) memcpy(o->bytes, bytes, o->n);
    s->status.bytes_out += (int64_t)o->n;
    s->status.out[traffic_of(o->kind, !unasked)] += (int64_t)o->n;
    if (hash) o->watch.flight = take_off(s, o->peer, hash, shared);
    if (unasked) neb__session_pushed(s, &o->watch);
    pthread_mutex_unlock(&s->lock);
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
    struct outgoing o = {.s = s, .peer = peer, .priority = NEB_ROUND, .kind = NEB_MSG_UPDATE, .n = n};
    bool current =
        !asked_for && s->lines.current && neb__hash_equal(hash, &s->lines.hash); /* both the driver's alone */
    o.watch = (struct neb_sending){
        .push = current ? s->lines.current : 0, .since = neb__now_ns(), .bytes = (double)n};
    send(s, &o, bytes, !asked_for, hash);
}

/* ---- from the links -------------------------------------------------------------------------------------------- */

/* What an item takes of QUEUE_MAX; an empty one takes memory, too. */
static size_t cost(const struct neb_item *item)
{
    return item->size + sizeof *item;
}

void neb__session_post(neb_session *s, struct neb_item *item)
{
    if (!item) return;
    item->next = NULL;
    pthread_mutex_lock(&s->lock);
    *s->tail = item;
    s->tail = &item->next;
    s->queued_bytes += cost(item);
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

static void post_peer(void *arg, enum neb_item_type type, uint16_t peer)
{
    struct neb_item *i = NEB_NEW(struct neb_item);
    if (!i) return;
    i->type = type;
    i->peer = peer;
    neb__session_post(arg, i);
}

static void note_link(neb_session *s, uint16_t peer, bool up)
{
    uint64_t bit = peer < 64 ? (uint64_t)1 << peer : 0;
    pthread_mutex_lock(&s->lock);
    s->linked = up ? s->linked | bit : s->linked & ~bit;
    if (up && peer < NEB_SITES_MAX) s->lines.up_since[peer] = neb__now_ns();
    pthread_mutex_unlock(&s->lock);
}

static void peer_up(void *arg, uint16_t peer, uint64_t incarnation)
{
    (void)incarnation;
    note_link(arg, peer, true);
    neb__session_keys(arg);
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
    (void)chain;
    neb__session_keys(arg);
}

static void roster_fork(void *arg, uint16_t peer, uint64_t epoch)
{
    (void)epoch;
    post_peer(arg, NEB_ITEM_FORK, peer);
}

/* Whatever is turned away, for the queue's length or for want of memory, is offered again when the driver asks for it. */
static neb_status message(void *arg, struct neb_message *m)
{
    neb_session *s = arg;
    struct neb_item *i = NEB_NEW(struct neb_item);
    pthread_mutex_lock(&s->lock);
    bool take = i && s->queued_bytes <= QUEUE_MAX;
    if (!take) s->stalled = true;
    if (take) {
        s->status.bytes_in += (int64_t)m->size;
        s->status.in[traffic_of(m->kind, false)] += (int64_t)m->size;
    }
    pthread_mutex_unlock(&s->lock);
    if (!take) {
        neb__free(i);
        return NEB_ERR_AGAIN;
    }
    i->type = NEB_ITEM_MESSAGE;
    i->peer = m->peer;
    i->kind = m->kind;
    i->size = m->size;
    i->bytes = neb__message_take(m);
    neb__session_post(s, i);
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
static void resume_links(neb_session *s)
{
    if (neb__net_post(s->net, resume_on_loop, s) == NEB_OK) return;
    pthread_mutex_lock(&s->lock);
    s->stalled = true;
    pthread_mutex_unlock(&s->lock);
}

/* ---- the core -------------------------------------------------------------------------------------------------- */

struct pending {
    struct pending *next;
    struct neb_event ev;
    struct neb_update_header update;
};

static void handle(neb_session *s, struct neb_event *ev)
{
    ev->now = now_ms();
    if (neb__round_event(s->core, ev) != NEB_OK) {
        neb__session_halt(s, "out of memory in the round protocol");
        return;
    }
    struct neb_action a;
    while (!s->halted && neb__round_next(s->core, &a)) neb__session_do(s, &a);
}

/* Carrying out an action often makes the next event (written, applied…). It waits until the actions before it are done. */
static void put_off(neb_session *s, const struct neb_event *ev)
{
    struct pending *p = NEB_NEW(struct pending);
    if (!p) {
        neb__session_halt(s, "out of memory in the round protocol");
        return;
    }
    p->ev = *ev;
    if (ev->update) {
        p->update = *ev->update;
        p->ev.update = &p->update;
    }
    *s->pending_last = p;
    s->pending_last = &p->next;
}

void neb__session_feed(neb_session *s, struct neb_event *ev)
{
    if (!s->core) return; /* no parameters: no rounds */
    if (s->feeding) {
        put_off(s, ev);
        return;
    }
    s->feeding = true;
    handle(s, ev);
    while (s->pending) {
        struct pending *p = s->pending;
        s->pending = p->next;
        if (!s->pending) s->pending_last = &s->pending;
        if (!s->halted) handle(s, &p->ev);
        neb__free(p);
    }
    s->feeding = false;
}

/* Which of the things that all sites must agree on differs, in words. A site that has committed with others since it started
 * is not the one to stop; the newcomer hears the same of it. */
static void compare_model(neb_session *s, const struct neb_item *i)
{
    static const char *const what[NEB_AGREED] = {
        "the parameters' names or shapes", "the initial values (seed or starting model)",
        "the settings of the run (wan: fragments, tokens, outer_lr, outer_momentum) or versions"};
    for (int k = 0; k < NEB_AGREED; k++) {
        if (i->size == NEB_AGREED * NEB_HASH_SIZE &&
            !memcmp(i->bytes + k * NEB_HASH_SIZE, s->model[k].b, NEB_HASH_SIZE))
            continue;
        char why[256], name[NEB_NAME_SIZE];
        neb__session_name(s, i->peer, name);
        snprintf(why, sizeof why,
                 "site '%s' trains another model: %s differ; use the same job file and base model at "
                 "every site",
                 name, what[k]);
        struct neb_round_status st = {0};
        if (s->core) neb__round_status(s->core, &st);
        if (st.commit > s->found) {
            neb__warn("%s; this site goes on without it", why);
            return;
        }
        pthread_mutex_lock(&s->lock);
        s->mismatch = NEB_ERR_CONFIG;
        pthread_mutex_unlock(&s->lock);
        neb__session_halt(s, why);
        return;
    }
}

static void agree(neb_session *s)
{
    pthread_mutex_lock(&s->lock);
    s->agreed = !s->halted;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void on_message(neb_session *s, struct neb_item *i)
{
    struct neb_hash hash;
    bool any = i->kind == NEB_MSG_MODEL || i->kind == NEB_MSG_STATUS || i->kind >= NEB_MSG_FACTS;
    if (!s->core && !any) return; /* of rounds */
    if (i->size >= NEB_HASH_SIZE) memcpy(hash.b, i->bytes, NEB_HASH_SIZE);
    switch (i->kind) {
    case NEB_MSG_FRAME:
        neb__session_feed(
            s,
            &(struct neb_event){.type = NEB_EV_FRAME, .site = i->peer, .bytes = i->bytes, .length = i->size});
        break;
    case NEB_MSG_UPDATE: neb__session_update(s, i->peer, i->bytes, i->size); break;
    case NEB_MSG_GET:
        if (i->size == NEB_HASH_SIZE) neb__session_push(s, i->peer, &hash, true);
        break;
    case NEB_MSG_NONE:
        if (i->size == NEB_HASH_SIZE)
            neb__session_feed(s,
                              &(struct neb_event){.type = NEB_EV_NO_UPDATE, .site = i->peer, .hash = hash});
        break;
    case NEB_MSG_COMING:
        if (i->size == NEB_HASH_SIZE)
            neb__session_feed(s, &(struct neb_event){.type = NEB_EV_COMING, .site = i->peer, .hash = hash});
        break;
    case NEB_MSG_GET_CELL:
        if (i->size == 4) neb__session_serve_cell(s, i->peer, neb__get32(i->bytes));
        break;
    case NEB_MSG_CELL: neb__session_cell(s, i->peer, i->bytes, i->size); break;
    case NEB_MSG_MODEL: compare_model(s, i); break;
    case NEB_MSG_FACTS:
    case NEB_MSG_REFUSAL:
        neb__facts_message(s, i->peer, i->kind, i->bytes, i->size);
        if (i->kind == NEB_MSG_FACTS) agree(s);
        break;
    case NEB_MSG_STATUS:
    case NEB_MSG_NOTE: neb__session_status_heard(s, i->peer, i->kind, i->bytes, i->size); break;
    default: break; /* of a newer version: not for us */
    }
}

static void on_item(neb_session *s, struct neb_item *i)
{
    switch (i->type) {
    case NEB_ITEM_MESSAGE: on_message(s, i); break;
    case NEB_ITEM_PEER_UP:
        neb__session_send(s, i->peer, NEB_CONTROL, NEB_MSG_MODEL, s->model, sizeof s->model);
        neb__facts_peer_up(s, i->peer);
        neb__session_tell_peer(s, i->peer);
        neb__session_feed(s, &(struct neb_event){.type = NEB_EV_PEER_UP, .site = i->peer});
        break;
    case NEB_ITEM_PEER_DOWN:
        neb__session_feed(s, &(struct neb_event){.type = NEB_EV_PEER_DOWN, .site = i->peer});
        break;
    case NEB_ITEM_SNAPSHOT: neb__session_snapshot_taken(s); break;
    case NEB_ITEM_OPERATOR:
        s->leaves |= i->op == NEB_OP_LEAVE;
        neb__session_feed(s, &(struct neb_event){.type = NEB_EV_OPERATOR, .op = i->op, .site = s->self});
        break;
    case NEB_ITEM_FORK:
        neb__session_halt(s, "two rosters are signed for one epoch: the operator must choose one; then give "
                             "this site the chosen file (nebula-i adopt) and start it again");
        break;
    case NEB_ITEM_LOSS:
        if (s->rate) neb__rate_loss(s->rate, i->value);
        break;
    }
}

static void publish(neb_session *s)
{
    struct neb_round_status st;
    if (!s->core) return;
    neb__round_status(s->core, &st);
    neb__session_follow_class(s, st.cls);
    pthread_mutex_lock(&s->lock);
    s->budget = st.budget;
    s->status.commits = (int64_t)st.commit;
    s->status.applied = (int64_t)st.applied;
    s->status.view = (int64_t)st.view;
    s->status.epoch = st.roster.epoch;
    s->status.leader = st.state == NEB_ROUND_LEAD;
    s->wake_steps = neb__round_steps_left(s->core);
    s->status.tokens = (int64_t)st.tokens;
    s->status.caught_up = st.caught_up;
    s->members = st.roster;
    s->leader = st.leader;
    s->ending = st.ending;
    s->status.stored = (int64_t)s->updates.bytes;
    s->status.root_at = (int64_t)st.root_at;
    memcpy(s->status.root, st.root.b, NEB_HASH_SIZE);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* Waits for something to do until `wake` (ms); takes one item and the steps made meanwhile. *stop: the session is being
 * closed and nothing is left to do. */
static struct neb_item *take(neb_session *s, int64_t wake, uint64_t *steps, bool *stop)
{
    struct timespec until;
    int64_t left = wake - now_ms();
    left = left < 1 ? 1 : left > 1000 ? 1000 : left;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += left / 1000;
    until.tv_nsec += left % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&s->lock);
    while (!s->head && s->steps_pending < s->wake_steps && !s->stopping)
        if (pthread_cond_timedwait(&s->wake, &s->lock, &until) == ETIMEDOUT) break;
    struct neb_item *i = s->head;
    if (i) {
        s->head = i->next;
        if (!s->head) s->tail = &s->head;
        s->queued_bytes -= cost(i);
    }
    bool resume = s->stalled && s->queued_bytes < QUEUE_MAX / 2;
    if (resume) s->stalled = false;
    *steps = s->steps_pending;
    s->steps_pending = 0;
    *stop = s->stopping && !i;
    pthread_mutex_unlock(&s->lock);
    if (resume) resume_links(s);
    return i;
}

void *neb__session_driver(void *arg)
{
    neb_session *s = arg;
    pthread_mutex_lock(&s->busy);
    if (s->core) {
        struct neb_round_status st;
        neb__round_status(s->core, &st);
        s->found = st.commit;
    }
    neb__session_feed(s, &(struct neb_event){.type = NEB_EV_TICK});
    pthread_mutex_unlock(&s->busy);
    for (;;) {
        uint64_t steps;
        bool rounds = s->core && !s->halted;
        bool stop;
        struct neb_item *i = take(s, rounds ? neb__round_wake(s->core) : now_ms() + 1000, &steps, &stop);
        int64_t since = neb__now_ns();
        pthread_mutex_lock(&s->busy);
        if (i && !s->halted) on_item(s, i);
        if (i) neb__free(i->bytes);
        neb__free(i);
        if (!s->halted && steps)
            neb__session_feed(s, &(struct neb_event){.type = NEB_EV_STEP, .count = steps});
        if (!s->halted && s->core && neb__round_wake(s->core) <= now_ms())
            neb__session_feed(s, &(struct neb_event){.type = NEB_EV_TICK});
        if (stop) s->orders_at = 0; /* a last look: the order that ended the run is carried out */
        if (!s->halted) neb__session_orders(s);
        if (!s->halted) publish(s);
        neb__session_tell(s, false);
        pthread_mutex_unlock(&s->busy);
        pthread_mutex_lock(&s->lock);
        s->status.busy_s += neb__seconds_since(since);
        pthread_mutex_unlock(&s->lock);
        if (stop) return NULL;
    }
}
