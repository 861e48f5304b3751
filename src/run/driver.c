/* driver.c: the driver's thread: events from the links and from the training loop go into the core, the
 * core's actions come out of it. */
#include "run/end.h"
#include "base/clamp.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "run/relaying.h"
#include "run/secure.h"
#include "run/site_status.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>

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

/* ---- the core ------------------------------------------------------------------------------------------ */

struct neb_pending_event {
    struct neb_pending_event *next;
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

/* Carrying out an action often makes the next event (written, applied…). It waits until the actions before it
 * are done. */
static void put_off(neb_session *s, const struct neb_event *ev)
{
    struct neb_pending_event *p = NEB_NEW(struct neb_pending_event);
    if (!p) {
        neb__session_halt(s, "out of memory in the round protocol");
        return;
    }
    p->ev = *ev;
    if (ev->update) {
        p->update = *ev->update;
        p->ev.update = &p->update;
    }
    *s->driver.pending_last = p;
    s->driver.pending_last = &p->next;
}

void neb__session_feed(neb_session *s, struct neb_event *ev)
{
    if (!s->core) return; /* no parameters: no rounds */
    if (s->driver.feeding) {
        put_off(s, ev);
        return;
    }
    s->driver.feeding = true;
    handle(s, ev);
    while (s->driver.pending) {
        struct neb_pending_event *p = s->driver.pending;
        s->driver.pending = p->next;
        if (!s->driver.pending) s->driver.pending_last = &s->driver.pending;
        if (!s->halted) handle(s, &p->ev);
        neb__free(p);
    }
    s->driver.feeding = false;
}

static void on_item(neb_session *s, struct neb_item *i)
{
    switch (i->type) {
    case NEB_ITEM_MESSAGE: neb__session_message(s, i); break;
    case NEB_ITEM_PEER_UP:
    case NEB_ITEM_PEER_DOWN: neb__relaying_link(s, i->peer, i->type == NEB_ITEM_PEER_UP); break;
    case NEB_ITEM_SNAPSHOT: neb__session_snapshot_taken(s); break;
    case NEB_ITEM_OPERATOR:
        s->driver.leaves |= i->op == NEB_OP_LEAVE;
        neb__session_feed(s, &(struct neb_event){.type = NEB_EV_OPERATOR, .op = i->op, .site = s->self});
        break;
    case NEB_ITEM_FORK:
        neb__session_halt(s, "two rosters are signed for one epoch: the operator must choose one; then give "
                             "this site the chosen file (nebula-i adopt) and start it again");
        break;
    case NEB_ITEM_FINISHED: break; /* finish.c looks at every turn */
    case NEB_ITEM_LOSS: neb__session_hear_loss(s, i->value); break;
    }
}

static void publish(neb_session *s)
{
    struct neb_round_status st;
    if (!s->core) return;
    neb__round_status(s->core, &st);
    neb__agreement_note(s);
    neb__session_follow_class(s, st.cls);
    neb__session_follow_budget(s, st.budget);
    neb__news_follow(s, &st);
    neb__session_tempo_follow(
        s, st.commit); /* not when one is applied: a site that starts again has its log already */
    if (st.ending && !st.ended) neb__end_begin(s);
    if (st.ended && st.applied >= st.commit) neb__end_report(s);
    struct neb_end_state end;
    neb__end_get(s, &end);
    neb__queue_wake_at(&s->driver.queue, neb__round_steps_left(s->core));
    pthread_mutex_lock(&s->lock);
    neb__members_set_roster(&s->members, &st.roster, st.leader); /* its readers hold the lock, too */
    s->status.commits = (int64_t)st.commit;
    s->status.applied = (int64_t)st.applied;
    s->status.view = (int64_t)st.view;
    s->status.epoch = st.roster.epoch;
    s->status.leader = st.state == NEB_ROUND_LEAD;
    s->status.tokens = (int64_t)st.tokens;
    s->status.caught_up = st.caught_up;
    s->ending = st.ending;
    s->status.dropped = end.dropped;
    s->status.stored = (int64_t)s->updates.files.bytes;
    s->status.root_at = (int64_t)st.root_at;
    memcpy(s->status.root, st.root.b, NEB_HASH_SIZE);
    s->ended = s->ended || s->driver.ends;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* When the core wants to be woken, in ms; `busy` is held. */
static int64_t wake_time(const neb_session *s)
{
    return s->core && !s->halted ? neb__round_wake(s->core) : INT64_MAX;
}

/* At most a second: files of orders and of the status are looked at in between. */
static struct neb_turn take(neb_session *s, int64_t wake)
{
    int64_t wait = neb__clamp_int(wake - now_ms(), 1, 1000);
    struct neb_turn turn = neb__queue_take(&s->driver.queue, wait);
    if (turn.resume) neb__session_resume_links(s);
    return turn;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Tells the core once a second how slow the lines are. The time within which a majority answers counts, so that one member
 * that answers late, on purpose or not, slows down nobody; nor do those that do not vote, of whom there may be many. */
static void heed_lines(neb_session *s)
{
    double rtt[NEB_SITES_MAX];
    size_t n = 0;
    if (!s->core || neb__seconds_since(s->driver.lines_at) < 1) return;
    s->driver.lines_at = neb__now_ns();
    struct neb_round_status st;
    neb__round_status(s->core, &st);
    for (uint16_t i = 0; i < NEB_SITES_MAX; i++) {
        struct neb_line line = neb__lines_get(&s->lines, i);
        if (i != s->self && (st.roster.voters & neb__bit(i)) && line.up && line.rtt > 0) rtt[n++] = line.rtt;
    }
    if (!n) return;
    qsort(rtt, n, sizeof *rtt, by_size);
    neb__round_set_line(s->core, (int64_t)(1000 * rtt[(n - 1) / 2]));
}

/* One turn, between two of which everything fits together. */
static void handle_turn(neb_session *s, const struct neb_turn *turn)
{
    if (!s->halted) neb__session_heed_chain(s);
    if (!s->halted) heed_lines(s);
    if (turn->item && !s->halted) on_item(s, turn->item);
    if (!s->halted) neb__relaying_turn(s);
    if (!s->halted && turn->steps)
        neb__session_feed(s, &(struct neb_event){.type = NEB_EV_STEP, .count = turn->steps});
    if (!s->halted && s->core && neb__round_wake(s->core) <= now_ms())
        neb__session_feed(s, &(struct neb_event){.type = NEB_EV_TICK});
    if (turn->stop) s->driver.orders_at = 0; /* a last look: the order that ended the run is carried out */
    if (!s->halted) neb__sums_turn(s);
    if (!s->halted) neb__session_orders(s);
    if (!s->halted) neb__session_finish_turn(s);
    if (!s->halted) publish(s);
    neb__waiting_look(s);
    neb__session_tell(s, false);
}

void *neb__session_driver(void *arg)
{
    neb_session *s = arg;
    pthread_mutex_lock(&s->busy);
    if (s->core) {
        struct neb_round_status st;
        neb__round_status(s->core, &st);
        s->driver.found = st.commit;
        pthread_mutex_lock(&s->lock);
        s->driver.found_end = st.ended;
        pthread_mutex_unlock(&s->lock);
    }
    neb__session_feed(s, &(struct neb_event){.type = NEB_EV_TICK});
    if (!s->halted) publish(s); /* the run may have ended before this start */
    int64_t wake = wake_time(s);
    pthread_mutex_unlock(&s->busy);
    for (;;) {
        struct neb_turn turn = take(s, wake);
        int64_t since = neb__now_ns();
        pthread_mutex_lock(&s->busy);
        handle_turn(s, &turn);
        wake = wake_time(s);
        pthread_mutex_unlock(&s->busy);
        neb__item_free(turn.item);
        pthread_mutex_lock(&s->lock);
        s->status.busy_s += neb__seconds_since(since);
        pthread_mutex_unlock(&s->lock);
        if (turn.stop) return NULL;
    }
}
