/* finish.c: the end of a run by steps.
 *
 * A site that makes no more steps says so in its status, which the others hear at once. When every site that trains
 * and is in reach has said so, each site tells its core. The leading one ends the run then, as at the token target;
 * before a token target is reached the others agree to the end only if they have seen the same. A witness does as
 * the others do. A site that is away holds the end for a while, since its line may only be broken for a moment; after
 * the end it comes back to the result. Without the status of a site (it came up just now) it counts as training. */
#include "run/session.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "run/site_status.h"

#include <stdio.h>

static const double away_s = 30, silent_s = 3, say_every_s = 30;

neb_status neb_session_finish(neb_session *s)
{
    if (!s->driver.runs) return neb__fail(NEB_ERR_STATE, "neb_session_finish() before neb_session_start()");
    struct neb_item *i = NEB_NEW(struct neb_item);
    if (!i) return neb__fail(NEB_ERR_NOMEM, "out of memory");
    pthread_mutex_lock(&s->lock);
    s->finished = true;
    pthread_mutex_unlock(&s->lock);
    i->type = NEB_ITEM_FINISHED;
    neb__queue_post(&s->driver.queue, i); /* wakes the driver */
    return NEB_OK;
}

/* How the sites that train stand, as bits. */
struct standing {
    uint64_t training, done; /* in reach: still making steps, or not */
    uint64_t away;
    bool over, finished; /* of this site; over: the end has begun */
};

static struct standing standing(neb_session *s)
{
    struct neb_round_status st;
    neb__round_status(s->core, &st);
    uint64_t self = neb__bit(s->self), linked = neb__members_reached(&s->members) | self;
    pthread_mutex_lock(&s->lock);
    bool finished = s->finished;
    pthread_mutex_unlock(&s->lock);
    uint64_t done = neb__session_finished_peers(s) | (finished ? self : 0);
    return (struct standing){.training = st.roster.trains & linked & ~done,
                             .done = st.roster.trains & linked & done,
                             .away = st.roster.trains & ~linked,
                             .over = st.ending || st.ended,
                             .finished = finished};
}

/* "b (step 120), c (away)" */
static void list(neb_session *s, uint64_t sites, uint64_t away, char *out, size_t size)
{
    size_t at = 0;
    out[0] = 0;
    for (uint16_t i = 0; i < NEB_SITES_MAX; i++) {
        if (!(sites & neb__bit(i)) || at + 1 >= size) continue;
        char name[NEB_NAME_SIZE], how[40] = "connected just now";
        int64_t steps = neb__session_steps_of(s, i);
        neb__members_name(&s->members, i, name);
        if (steps >= 0) snprintf(how, sizeof how, "step %" PRId64, steps);
        if (away & neb__bit(i)) snprintf(how, sizeof how, "away");
        at += (size_t)snprintf(out + at, size - at, "%s%s (%s)", at ? ", " : "", name, how);
    }
}

/* Nobody waits in silence. */
static void say(neb_session *s, const struct standing *now)
{
    struct neb_finishing *f = &s->driver.finishing;
    uint64_t others = (now->training | now->away) & ~neb__bit(s->self);
    if (!now->finished || !others || neb__seconds_since(f->since) < silent_s) return;
    if (f->said_at && neb__seconds_since(f->said_at) < say_every_s) return;
    char names[400];
    list(s, others, now->away, names, sizeof names);
    neb__info("this site has made its steps; the run ends when the others have made theirs: %s", names);
    f->said_at = neb__now_ns();
}

static bool all_have_finished(struct neb_finishing *f, const struct standing *now)
{
    bool in_reach = now->done && !now->training;
    if (!in_reach || !now->away) f->alone_since = 0;
    if (!in_reach || !now->away) return in_reach;
    if (!f->alone_since) f->alone_since = neb__now_ns();
    return neb__seconds_since(f->alone_since) >= away_s;
}

void neb__session_finish_turn(neb_session *s)
{
    struct neb_finishing *f = &s->driver.finishing;
    if (!s->core) return;
    const struct standing now = standing(s);
    if (now.over) return;
    if (now.finished && !f->since) {
        f->since = neb__now_ns();
        neb__session_tell_soon(s);
    }
    say(s, &now);
    bool end = all_have_finished(f, &now);
    if (end && !f->told)
        neb__session_feed(s,
                          &(struct neb_event){.type = NEB_EV_OPERATOR, .op = NEB_OP_DONE, .site = s->self});
    f->told = end;
}
