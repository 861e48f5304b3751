/* fixed_pace.c: a run of fixed pace (wan.merge_after), which has the same result at any speed.
 *
 * Copy k of the live parameters is taken after exactly k * H steps of this process, and its round is merged after exactly
 * k * H + D steps, D < H. neb_step() waits at either place for the driver or for the other sites. A round names the
 * update of every site, so the bytes that it merges do not depend on who was faster. D is the time that the line has: if a
 * round takes no longer than D steps, nobody waits.
 *
 * A site that starts again counts from there. Rounds that time out (wan.round_seconds) may lack a site's update; the run
 * goes on, and its result is then one of those that such delays allow. */
#include "run/session.h"

bool neb__fixed_pace_is_on(const neb_session *s)
{
    return s->config.merge_after >= 0;
}

/* Rounds that were merged before, while this site came back, do not count. */
void neb__fixed_pace_began(neb_session *s)
{
    s->pace.copies = 0;
    s->pace.merged = s->mirror.rounds = 0;
}

bool neb__fixed_pace_copy_due(const neb_session *s)
{
    return s->status.steps / s->config.interval > s->pace.copies;
}

bool neb__fixed_pace_merge_due(const neb_session *s)
{
    int64_t since_merge = s->status.steps - s->config.merge_after;
    if (s->pace.settling) return s->pace.copies > s->pace.merged;
    return since_merge >= 0 && since_merge / s->config.interval > s->pace.merged;
}

bool neb__fixed_pace_may_merge(const neb_session *s)
{
    return s->mirror.rounds > s->pace.merged;
}

bool neb__session_settled(neb_session *s)
{
    pthread_mutex_lock(&s->lock);
    s->pace.settling = true;
    bool settled = !neb__fixed_pace_copy_due(s) && !neb__fixed_pace_merge_due(s);
    pthread_mutex_unlock(&s->lock);
    return settled;
}
