/* step.c: the training loop meets the run: neb_step() and its relatives, on the caller's thread. */
#include "run/session.h"
#include "base/clock.h"
#include "base/mem.h"

#include <math.h>

struct timespec neb__step_until(double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)seconds;
    until.tv_nsec += (long)(fmod(seconds, 1) * 1e9);
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    return until;
}

static void count_merges(neb_session *s, const struct neb_exchange *e, bool *changed)
{
    s->status.merges += e->merges;
    *changed |= e->merges > 0;
}

/* Merges, and takes the copy a capture waits for. The lock is held; *post: the driver is to be told that it
 * is there. */
static neb_status exchange(neb_session *s, bool wait, bool *changed, bool *post)
{
    struct neb_exchange e = {0};
    *post = false;
    if (neb__mirror_idle(&s->mirror) || neb__mirror_held(&s->mirror)) return NEB_OK;
    double cpu = neb__thread_cpu();
    neb_status status = neb__mirror_exchange(&s->mirror, wait, &e);
    count_merges(s, &e, changed);
    *post = e.copy_taken;
    s->pace.copies += e.copy_taken;
    s->status.merge_cpu_s += neb__thread_cpu() - cpu;
    return status;
}

static void tell_snapshot(neb_session *s)
{
    struct neb_item *i = NEB_NEW(struct neb_item);
    if (!i) return;
    i->type = NEB_ITEM_SNAPSHOT;
    neb__queue_post(&s->driver.queue, i);
}

/* At the drift limit, and at the end of the run until everything is in: still merges and captures, takes no
 * steps. limit < 0: as long as it takes; else NEB_ERR_AGAIN after so many seconds. */
static neb_status wait_while_paused(neb_session *s, double limit, bool *changed)
{
    struct timespec until = neb__step_until(limit > 0 ? limit : 0);
    int64_t start = neb__now_ns();
    neb_status status = NEB_OK;
    neb__waiting_begin(s, NEB_WAITER_STEP);
    while (status == NEB_OK && s->paused && !s->ended && !s->halted) {
        bool post = false;
        status = exchange(s, true, changed, &post);
        if (post) {
            pthread_mutex_unlock(&s->lock);
            tell_snapshot(s);
            pthread_mutex_lock(&s->lock);
            continue;
        }
        if (status != NEB_OK) break;
        if (limit < 0)
            pthread_cond_wait(&s->changed, &s->lock);
        else if (pthread_cond_timedwait(&s->changed, &s->lock, &until))
            status = NEB_ERR_AGAIN;
    }
    neb__waiting_end(s, status == NEB_ERR_AGAIN);
    if (status == NEB_OK && s->ended) {
        struct neb_exchange e = {0};
        status = neb__mirror_merge(&s->mirror, true, &e);
        count_merges(s, &e, changed);
    }
    bool recovers = s->status.view && !s->status.caught_up; /* it would not wait if it had not been away */
    *(recovers ? &s->status.recover_s : &s->status.wait_s) += neb__seconds_since(start);
    return status;
}

/* The driver waits for a copy, and does not have it yet. */
static bool copy_wanted(const neb_session *s)
{
    const struct neb_mirror *m = &s->mirror;
    return m->capture_wanted && !(m->capture_taken && m->capture_told);
}

/* A run of fixed pace: takes the copy or merges the round that is due after this step, and waits for it. limit:
 * as above. */
static neb_status keep_pace(neb_session *s, double limit, bool *changed)
{
    struct timespec until = neb__step_until(limit > 0 ? limit : 0);
    int64_t start = neb__now_ns();
    neb_status status = NEB_OK;
    while (status == NEB_OK && !s->paused && !s->ended && !s->halted) {
        bool copy = neb__fixed_pace_copy_due(s), post = false;
        if (!copy && !neb__fixed_pace_merge_due(s)) break;
        if (copy ? copy_wanted(s) : neb__fixed_pace_may_merge(s)) {
            status = exchange(s, true, changed, &post);
            s->pace.merged += !copy;
        } else if (limit < 0) {
            pthread_cond_wait(&s->changed, &s->lock);
        } else if (pthread_cond_timedwait(&s->changed, &s->lock, &until)) {
            status = NEB_ERR_AGAIN;
        }
        if (!post) continue;
        pthread_mutex_unlock(&s->lock);
        tell_snapshot(s);
        pthread_mutex_lock(&s->lock);
    }
    s->status.wait_s += neb__seconds_since(start);
    return status;
}

/* The time since the last call was the caller's; a step's own time is smoothed for the rate controller. */
static int64_t enter(neb_session *s, bool step)
{
    int64_t now = neb__now_ns();
    double took = (double)(now - s->left_step) * 1e-9;
    s->status.compute_s += took;
    if (step) neb__lines_stepped(&s->lines, took);
    return now;
}

static void leave(neb_session *s, int64_t entered, double waited)
{
    s->left_step = neb__now_ns();
    double merging = (double)(s->left_step - entered) * 1e-9 - waited;
    s->status.merge_s += merging > 0 ? merging : 0;
}

static void count_step(neb_session *s, int64_t tokens)
{
    if (!s->status.steps++) neb__fixed_pace_began(s);
    s->status.own_tokens += tokens;
    s->mirror.steps_now++;
    s->mirror.tokens_now += tokens;
    neb__queue_step(&s->driver.queue);
}

/* The training loop hears this; the lock is held. */
static neb_status standing(neb_session *s)
{
    bool nonfinite = s->nonfinite;
    s->nonfinite = false;
    if (s->halted) return neb__quiet(s->mismatch != NEB_OK ? s->mismatch : NEB_ERR_STATE, "%s", s->why);
    if (nonfinite) return neb__quiet(NEB_ERR_NONFINITE, "%s", s->why);
    return s->ended ? NEB_ERR_CANCELLED : NEB_OK;
}

/* The run is over: x becomes its result, without the work that this site did beyond it. A site that left
 * keeps its x. */
static neb_status take_result(neb_session *s, bool *changed)
{
    pthread_mutex_lock(&s->busy);
    neb_status status = s->driver.leaves
                            ? NEB_OK
                            : neb__mirror_write(&s->mirror, 0, s->mirror.values, s->mirror.outer->theta);
    pthread_mutex_unlock(&s->busy);
    *changed = true;
    return status == NEB_OK ? NEB_ERR_CANCELLED : status;
}

void neb__session_on_request(neb_session *s, bool on)
{
    s->mirror.on_request = on;
}

bool neb__session_asks(neb_session *s)
{
    pthread_mutex_lock(&s->lock);
    bool pace = neb__fixed_pace_is_on(s);
    s->mirror.asked = !neb__mirror_idle(&s->mirror) || s->paused || s->ended || pace;
    bool asked = s->mirror.asked;
    pthread_mutex_unlock(&s->lock);
    return asked;
}

void neb__session_touched(neb_session *s, size_t *first, size_t *n)
{
    pthread_mutex_lock(&s->lock);
    *first = s->mirror.touched_first;
    *n = s->mirror.touched_end - s->mirror.touched_first;
    s->mirror.touched_first = s->mirror.touched_end = 0;
    pthread_mutex_unlock(&s->lock);
}

/* Steps and attendance have this in common. The lock is held on entry and released. */
static neb_status meet(neb_session *s, int64_t entered, double wait_s, bool *changed)
{
    bool post = false;
    double waited = s->status.wait_s + s->status.recover_s;
    neb_status status = NEB_OK; /* without parameters it only counts */
    if (s->mirror.outer && s->paused)
        status =
            wait_while_paused(s, wait_s, changed); /* no step may follow a copy that was taken while paused */
    else if (s->mirror.outer && neb__fixed_pace_is_on(s) && s->status.steps && !s->ended)
        status = keep_pace(s, wait_s, changed);
    else if (s->mirror.outer)
        status = exchange(s, s->ended, changed, &post);
    if (status == NEB_OK) status = standing(s);
    leave(s, entered, s->status.wait_s + s->status.recover_s - waited);
    pthread_mutex_unlock(&s->lock);
    if (post) tell_snapshot(s);
    return status == NEB_ERR_CANCELLED && s->mirror.outer ? take_result(s, changed) : status;
}

static neb_status may_step(const neb_session *s)
{
    if (!s->driver.runs) return neb__fail(NEB_ERR_STATE, "neb_step() before neb_session_start()");
    if (s->mirror.shown)
        return neb__fail(NEB_ERR_STATE, "neb_step() while the parameters show the outer state");
    return NEB_OK;
}

/* Whether something waits for the training loop: copies, edits, an end, an error. The lock is held. */
static bool is_due(const neb_session *s)
{
    return !neb__mirror_idle(&s->mirror) || s->paused || s->ended || s->halted || s->nonfinite ||
           neb__fixed_pace_is_on(s);
}

neb_status neb_step_counted(neb_session *s, int64_t tokens, bool *due)
{
    NEB_TRY(may_step(s));
    pthread_mutex_lock(&s->lock);
    int64_t entered = enter(s, true);
    count_step(s, tokens < 0 ? 0 : tokens);
    s->step_is_open = *due = is_due(s);
    neb__waiting_begin(s, NEB_WAITER_NONE);
    neb__waiting_end(s, true);
    leave(s, entered, 0);
    pthread_mutex_unlock(&s->lock);
    return NEB_OK;
}

neb_status neb_step_within(neb_session *s, int64_t tokens, double wait_s, bool *changed)
{
    NEB_TRY(may_step(s));
    *changed = false;
    pthread_mutex_lock(&s->lock);
    int64_t entered = enter(s, tokens >= 0);
    if (tokens >= 0) count_step(s, tokens);
    /* Without a step the caller only asks whether the run has ended. */
    bool idle = tokens < 0 && !s->step_is_open && !s->paused && s->status.steps;
    s->step_is_open = false;
    neb__waiting_begin(s, idle ? NEB_WAITER_IDLE : NEB_WAITER_NONE);
    neb__waiting_end(s, true);
    return meet(s, entered, wait_s, changed);
}

neb_status neb_step(neb_session *s, int64_t tokens, bool *changed)
{
    return neb_step_within(s, tokens < 0 ? 0 : tokens, -1, changed);
}

neb_status neb_session_attend(neb_session *s, double seconds)
{
    if (!s->driver.runs) return neb__fail(NEB_ERR_STATE, "neb_session_attend() before neb_session_start()");
    struct timespec until = neb__step_until(seconds);
    bool changed = false;
    pthread_mutex_lock(&s->lock);
    int64_t entered = enter(s, false);
    while (!s->ended && !s->halted && !s->mirror.edits)
        if (pthread_cond_timedwait(&s->changed, &s->lock, &until)) break;
    s->status.wait_s += neb__seconds_since(entered);
    return meet(s, neb__now_ns(), -1, &changed);
}

/* ---- the outer state shown ----------------------------------------------------------------------------- */

neb_status neb_session_show_outer(neb_session *s, bool outer)
{
    if (!s->mirror.outer || outer == (s->mirror.shown != NULL))
        return neb__fail(NEB_ERR_STATE, "the parameters %s",
                         s->mirror.outer ? "show that already" : "are not shared yet");
    neb_status status = NEB_OK;
    if (outer) {
        s->mirror.shown = neb__malloc(s->mirror.values * sizeof *s->mirror.shown);
        if (!s->mirror.shown)
            return neb__fail(NEB_ERR_NOMEM, "out of memory for a copy of %zu values", s->mirror.values);
        status = neb__mirror_read(&s->mirror, 0, s->mirror.values, s->mirror.shown);
        pthread_mutex_lock(&s->busy);
        if (status == NEB_OK)
            status = neb__mirror_write(&s->mirror, 0, s->mirror.values, s->mirror.outer->theta);
        pthread_mutex_unlock(&s->busy);
        if (status == NEB_OK) return NEB_OK;
    }
    neb_status back = neb__mirror_write(&s->mirror, 0, s->mirror.values, s->mirror.shown);
    neb__free(s->mirror.shown);
    s->mirror.shown = NULL;
    return status != NEB_OK ? status : back;
}
