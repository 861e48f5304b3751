/* session.c: the public face of a run: open, register, start, step, status, close. */
#include "run/session.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "run/job_facts.h"
#include "run/site_status.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

struct neb_session_config neb_session_defaults(void)
{
    return (struct neb_session_config){.interval = 100,
                                       .drift_wait = true,
                                       .outer_lr = 0.7f,
                                       .outer_momentum = 0.6f,
                                       .rung = "auto",
                                       .prefer = "cost"};
}

static neb_status check(neb_session *s)
{
    const struct neb_session_config *c = &s->config;
    if (c->interval < 1 || c->interval > 1 << 30)
        return neb__fail(NEB_ERR_CONFIG, "interval is %" PRId64 " steps; at least 1 is needed", c->interval);
    if (!(c->outer_lr > 0 && c->outer_lr <= 2) || !(c->outer_momentum >= 0 && c->outer_momentum < 1))
        return neb__fail(NEB_ERR_CONFIG, "outer_lr %g must be in (0, 2], outer_momentum %g in [0, 1)",
                         (double)c->outer_lr, (double)c->outer_momentum);
    bool by_itself = !c->rung || !strcmp(c->rung, "auto");
    s->fixed = by_itself ? NULL : neb__rung_by_name(c->rung);
    s->exact = neb__rung_exact();
    if (!by_itself && (!s->fixed || s->fixed->outside_scales))
        return neb__fail(NEB_ERR_CONFIG,
                         "rung '%s' is not on the ladder; `auto` leaves it to the rate controller", c->rung);
    if (c->prefer && strcmp(c->prefer, "cost") && strcmp(c->prefer, "quality"))
        return neb__fail(NEB_ERR_CONFIG, "prefer '%s' is neither cost nor quality", c->prefer);
    if (!(c->clip >= 0 && c->clip < 1e30) || !(c->noise >= 0 && c->noise < 1e30))
        return neb__fail(NEB_ERR_CONFIG, "clip %g and noise %g must not be negative", c->clip, c->noise);
    if (!(c->max_bytes_per_hour >= 0) || !(c->ledger_quota >= 0 && c->ledger_quota < 1e18))
        return neb__fail(NEB_ERR_CONFIG, "max_bytes_per_hour and ledger_quota must not be negative");
    return NEB_OK;
}

static neb_status open_all(neb_session *s, const char *folder)
{
    NEB_TRY(check(s));
    NEB_TRY(neb__site_open(folder, &s->site));
    struct neb_net_config cfg = NEB_NET_CONFIG;
    cfg.site = s->site;
    cfg.listen = s->config.listen;
    cfg.events = &neb__session_events;
    cfg.arg = s;
    cfg.max_rate = s->config.max_rate;
    NEB_TRY(neb__net_open(&cfg, &s->net));
    s->self = neb__net_self(s->net);
    neb__session_keys(s);
    s->config.rung = s->fixed ? s->fixed->name : "auto"; /* the caller's strings are not kept */
    const char *prefer = s->config.prefer;
    s->config.prefer = prefer && !strcmp(prefer, "quality") ? "quality" : "cost";
    s->config.listen = NULL;
    return NEB_OK;
}

static void init_locks(neb_session *s)
{
    pthread_condattr_t attr;
    pthread_mutex_init(&s->busy, NULL);
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &attr);
    pthread_cond_init(&s->changed, &attr);
    pthread_condattr_destroy(&attr);
}

neb_status neb_session_open(const char *folder, const struct neb_session_config *c, neb_session **out)
{
    neb_session *s = NEB_NEW(neb_session);
    if (!s) return neb__fail(NEB_ERR_NOMEM, "out of memory for a session");
    init_locks(s);
    s->config = c ? *c : neb_session_defaults();
    s->tail = &s->head;
    s->wake_steps = 1;
    s->leader = NEB_NO_SITE;
    s->pending_last = &s->pending;
    neb__buf_init(&s->loaded, (size_t)1 << 40);
    neb_status st = open_all(s, folder);
    if (st != NEB_OK) {
        neb_session_close(s);
        return st;
    }
    *out = s;
    return NEB_OK;
}

neb_status neb_session_register(neb_session *s, const struct neb_session_param *p)
{
    if (s->outer) return neb__fail(NEB_ERR_STATE, "parameter '%s': the session has started", p->name);
    if (!p->name || (!p->values && (!p->read || !p->write)) || p->ndim < 1 || p->ndim > 4)
        return neb__fail(NEB_ERR_SHAPE, "a parameter needs a name, values and 1 to 4 dimensions");
    size_t n = 1;
    for (int i = 0; i < p->ndim; i++) {
        if (p->shape[i] < 1 || n > ((size_t)1 << 40) / (size_t)p->shape[i])
            return neb__fail(NEB_ERR_SHAPE, "parameter '%s': dimension %d is %" PRId64, p->name, i,
                             p->shape[i]);
        n *= (size_t)p->shape[i];
    }
    if (p->first || (p->count && (size_t)p->count != n))
        return neb__fail(NEB_ERR_UNSUPPORTED, "parameter '%s': a site of one process holds all of it",
                         p->name);
    for (int i = 0; i < s->n_slices; i++)
        if (!strcmp(s->slices[i].param.name, p->name))
            return neb__fail(NEB_ERR_EXISTS, "two parameters '%s'", p->name);
    struct neb_session_slice *list = neb__realloc(s->slices, (size_t)(s->n_slices + 1) * sizeof *list);
    if (list) s->slices = list;
    char *name = list ? neb__strdup(p->name) : NULL;
    if (!name) return neb__fail(NEB_ERR_NOMEM, "out of memory for parameter '%s'", p->name);
    s->slices[s->n_slices] = (struct neb_session_slice){*p, s->values, n};
    s->slices[s->n_slices++].param.name = name;
    s->values += n;
    return NEB_OK;
}

neb_status neb_session_load(neb_session *s, const void *bytes, size_t n)
{
    if (s->outer) return neb__fail(NEB_ERR_STATE, "a checkpoint's state belongs before the start");
    neb__buf_clear(&s->loaded);
    return neb__buf_append(&s->loaded, bytes, n);
}

/* ---- start ------------------------------------------------------------------------------------------------------ */

static struct timespec seconds_from_now(double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)seconds;
    until.tv_nsec += (long)(fmod(seconds, 1) * 1e9);
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    return until;
}

static neb_status wait_for_quorum(neb_session *s, double seconds)
{
    struct timespec until = seconds_from_now(seconds);
    pthread_mutex_lock(&s->lock);
    while (!s->halted && s->status.view == 0)
        if (pthread_cond_timedwait(&s->changed, &s->lock, &until)) break;
    neb_status st = s->halted && s->mismatch != NEB_OK ? neb__quiet(s->mismatch, "%s", s->why) : NEB_OK;
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* Without parameters there are no rounds to wait for: until another site has told that it runs the same job. */
static neb_status wait_for_word(neb_session *s, double seconds)
{
    struct timespec until = seconds_from_now(seconds);
    pthread_mutex_lock(&s->lock);
    while (!s->halted && !s->agreed)
        if (pthread_cond_timedwait(&s->changed, &s->lock, &until)) break;
    neb_status st = s->halted && s->mismatch != NEB_OK ? neb__quiet(s->mismatch, "%s", s->why) : NEB_OK;
    pthread_mutex_unlock(&s->lock);
    return st;
}

neb_status neb_session_start(neb_session *s, double wait_s)
{
    if (s->driver_runs || s->outer) return neb__fail(NEB_ERR_STATE, "the session has started");
    NEB_TRY(neb__session_arrange(s, &s->model[NEB_AGREED_LAYOUT]));
    NEB_TRY(neb__session_settings_hash(s, &s->model[NEB_AGREED_SETTINGS]));
    s->started = neb__now_ns();
    if (s->values) NEB_TRY(neb__session_restore(s));
    NEB_TRY(neb__session_watch_lines(s));
    NEB_TRY(neb__net_start(s->net));
    pthread_mutex_lock(&s->lock); /* the driver reads the session's state for its status */
    s->driver_runs = pthread_create(&s->driver, NULL, neb__session_driver, s) == 0;
    pthread_mutex_unlock(&s->lock);
    if (!s->driver_runs) return neb__fail(NEB_ERR_NOMEM, "the system refused a thread");
    neb_status st = NEB_OK;
    if (wait_s > 0 && s->values)
        st = wait_for_quorum(s, wait_s);
    else if (wait_s > 0 && s->words)
        st = wait_for_word(s, wait_s);
    pthread_mutex_lock(&s->lock);
    s->status.recover_s = neb__seconds_since(s->started);
    pthread_mutex_unlock(&s->lock);
    s->left_step = neb__now_ns();
    return st;
}

/* ---- step ------------------------------------------------------------------------------------------------------- */

/* Carries out edits of one cell; the lock is held. Beside the training not all may have arrived yet, unless it is to wait. */
static neb_status merge_cell(neb_session *s, uint32_t cell, bool wait, bool *changed)
{
    uint32_t n;
    NEB_TRY(s->side ? neb__device_copies_merge(s, cell, wait, &n)
                    : neb__edits_apply(s, cell, s->work[2], &n));
    s->edits -= n;
    if (!n) return NEB_OK;
    s->status.merges++;
    *changed = true;
    return NEB_OK;
}

static neb_status merge(neb_session *s, bool wait, bool *changed)
{
    for (uint32_t c = 0; s->edits && c < s->outer->cells; c++)
        if (s->own[c].edits && !(s->capture_taken && c >= s->snap_c0 && c < s->snap_c1))
            NEB_TRY(merge_cell(s, c, wait, changed));
    return NEB_OK;
}

/* Into d, which is free: the cells have no open update, and their edits were carried out. */
static neb_status take_snapshot(neb_session *s)
{
    size_t first, last, n = neb__outer_cell(s->outer, s->snap_c1 - 1, &last);
    neb__outer_cell(s->outer, s->snap_c0, &first);
    n += last - first;
    NEB_TRY(s->side ? neb__device_copies_capture(s, first, n)
                    : neb__session_read_x(s, first, n, s->d + first));
    s->capture_taken = true;
    s->capture_told = false;
    return NEB_OK;
}

/* Merges, and takes the copy a capture waits for. The lock is held; *post: the driver is to be told that it is there. */
static neb_status exchange(neb_session *s, bool wait, bool *changed, bool *post)
{
    bool under_way = s->capture_taken && !s->capture_told;
    *post = false;
    if (!s->edits && !under_way && (!s->capture_wanted || s->capture_taken)) return NEB_OK;
    double cpu = neb__thread_cpu();
    neb_status st = merge(s, wait, changed);
    if (st == NEB_OK && s->capture_wanted && !s->capture_taken && neb__device_copies_may_capture(s)) {
        st = take_snapshot(s);
        under_way = st == NEB_OK;
    }
    if (st == NEB_OK && under_way) st = neb__device_copies_captured(s, wait, post);
    if (*post) s->capture_told = true;
    s->status.merge_cpu_s += neb__thread_cpu() - cpu;
    return st;
}

static void tell_snapshot(neb_session *s)
{
    struct neb_item *i = NEB_NEW(struct neb_item);
    if (!i) return;
    i->type = NEB_ITEM_SNAPSHOT;
    neb__session_post(s, i);
}

/* At the drift limit, and at the end of the run until everything is in: still merges and captures, takes no steps.
 * limit < 0: as long as it takes; else NEB_ERR_AGAIN after so many seconds. */
static neb_status wait_while_paused(neb_session *s, double limit, bool *changed)
{
    struct timespec until = seconds_from_now(limit > 0 ? limit : 0);
    int64_t start = neb__now_ns();
    neb_status st = NEB_OK;
    while (st == NEB_OK && s->paused && !s->ended && !s->halted) {
        bool post = false;
        st = exchange(s, true, changed, &post);
        if (post) {
            pthread_mutex_unlock(&s->lock);
            tell_snapshot(s);
            pthread_mutex_lock(&s->lock);
            continue;
        }
        if (st != NEB_OK) break;
        if (limit < 0)
            pthread_cond_wait(&s->changed, &s->lock);
        else if (pthread_cond_timedwait(&s->changed, &s->lock, &until))
            st = NEB_ERR_AGAIN;
    }
    if (st == NEB_OK && s->ended) st = merge(s, true, changed);
    bool recovers = s->status.view && !s->status.caught_up; /* it would not wait if it had not been away */
    *(recovers ? &s->status.recover_s : &s->status.wait_s) += neb__seconds_since(start);
    return st;
}

/* The time since the last call was the caller's; a step's own time is smoothed for the rate controller. */
static int64_t enter(neb_session *s, bool step)
{
    int64_t now = neb__now_ns();
    double took = (double)(now - s->left_step) * 1e-9;
    s->status.compute_s += took;
    if (step) neb__session_took(&s->lines.step_s, took);
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
    s->steps_pending++;
    s->status.steps++;
    s->status.own_tokens += tokens;
    s->steps_now++;
    s->tokens_now += tokens;
    if (s->steps_pending >= s->wake_steps) pthread_cond_signal(&s->wake);
}

/* What the training loop has to hear; under the lock. */
static neb_status standing(neb_session *s)
{
    bool nonfinite = s->nonfinite;
    s->nonfinite = false;
    if (s->halted) return neb__quiet(s->mismatch != NEB_OK ? s->mismatch : NEB_ERR_STATE, "%s", s->why);
    if (nonfinite) return neb__quiet(NEB_ERR_NONFINITE, "%s", s->why);
    return s->ended ? NEB_ERR_CANCELLED : NEB_OK;
}

/* The run is over: x becomes its result, without what this site did beyond it. One that left keeps what it has. */
static neb_status take_result(neb_session *s, bool *changed)
{
    pthread_mutex_lock(&s->busy);
    neb_status st = s->leaves ? NEB_OK : neb__session_write_x(s, 0, s->values, s->outer->theta);
    pthread_mutex_unlock(&s->busy);
    *changed = true;
    return st == NEB_OK ? NEB_ERR_CANCELLED : st;
}

/* What steps and attendance have in common; the lock is held on entry and released. */
static neb_status meet(neb_session *s, int64_t entered, double wait_s, bool *changed)
{
    bool post = false;
    double waited = s->status.wait_s + s->status.recover_s;
    neb_status st = NEB_OK; /* without parameters it only counts */
    if (s->outer && s->paused)
        st =
            wait_while_paused(s, wait_s, changed); /* no step may follow a copy that was taken while paused */
    else if (s->outer)
        st = exchange(s, s->ended, changed, &post);
    if (st == NEB_OK) st = standing(s);
    leave(s, entered, s->status.wait_s + s->status.recover_s - waited);
    pthread_mutex_unlock(&s->lock);
    if (post) tell_snapshot(s);
    return st == NEB_ERR_CANCELLED && s->outer ? take_result(s, changed) : st;
}

neb_status neb_step_within(neb_session *s, int64_t tokens, double wait_s, bool *changed)
{
    if (!s->driver_runs) return neb__fail(NEB_ERR_STATE, "neb_step() before neb_session_start()");
    if (s->shown) return neb__fail(NEB_ERR_STATE, "neb_step() while the parameters show the outer state");
    *changed = false;
    pthread_mutex_lock(&s->lock);
    int64_t entered = enter(s, tokens >= 0);
    if (tokens >= 0) count_step(s, tokens);
    return meet(s, entered, wait_s, changed);
}

neb_status neb_step(neb_session *s, int64_t tokens, bool *changed)
{
    return neb_step_within(s, tokens < 0 ? 0 : tokens, -1, changed);
}

neb_status neb_session_attend(neb_session *s, double seconds)
{
    if (!s->driver_runs) return neb__fail(NEB_ERR_STATE, "neb_session_attend() before neb_session_start()");
    struct timespec until = seconds_from_now(seconds);
    bool changed = false;
    pthread_mutex_lock(&s->lock);
    int64_t entered = enter(s, false);
    while (!s->ended && !s->halted && !s->edits)
        if (pthread_cond_timedwait(&s->changed, &s->lock, &until)) break;
    s->status.wait_s += neb__seconds_since(entered);
    return meet(s, neb__now_ns(), -1, &changed);
}

/* ---- the rest --------------------------------------------------------------------------------------------------- */

neb_status neb_session_show_outer(neb_session *s, bool outer)
{
    if (!s->outer || outer == (s->shown != NULL))
        return neb__fail(NEB_ERR_STATE, "the parameters %s",
                         s->outer ? "show that already" : "are not shared yet");
    neb_status st = NEB_OK;
    if (outer) {
        s->shown = neb__malloc(s->values * sizeof *s->shown);
        if (!s->shown) return neb__fail(NEB_ERR_NOMEM, "out of memory for a copy of %zu values", s->values);
        st = neb__session_read_x(s, 0, s->values, s->shown);
        pthread_mutex_lock(&s->busy);
        if (st == NEB_OK) st = neb__session_write_x(s, 0, s->values, s->outer->theta);
        pthread_mutex_unlock(&s->busy);
        if (st == NEB_OK) return NEB_OK;
    }
    neb_status back = neb__session_write_x(s, 0, s->values, s->shown);
    neb__free(s->shown);
    s->shown = NULL;
    return st != NEB_OK ? st : back;
}

static neb_status operate(neb_session *s, uint32_t op)
{
    struct neb_item *i = NEB_NEW(struct neb_item);
    if (!i) return neb__fail(NEB_ERR_NOMEM, "out of memory");
    i->type = NEB_ITEM_OPERATOR;
    i->op = op;
    neb__session_post(s, i);
    return NEB_OK;
}

neb_status neb_session_leave(neb_session *s)
{
    return operate(s, NEB_OP_LEAVE);
}

neb_status neb__session_done(neb_session *s)
{
    return operate(s, NEB_OP_DONE);
}

void neb_session_close(neb_session *s)
{
    if (!s) return;
    while (s->streams) neb_stream_close(s->streams);
    pthread_mutex_lock(&s->lock);
    bool goodbye = s->driver_runs && s->core && !s->ended && !s->halted;
    pthread_mutex_unlock(&s->lock);
    if (goodbye) operate(s, NEB_OP_GOODBYE);
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
    if (s->driver_runs) pthread_join(s->driver, NULL);
    neb__net_close(s->net);
    while (s->head) {
        struct neb_item *i = s->head;
        s->head = i->next;
        neb__free(i->bytes);
        neb__free(i);
    }
    if (s->outer && s->driver_runs) neb__session_tell(s, true);
    neb__session_rate_close(s);
    neb__session_release(s);
    neb__facts_free(s);
    neb__session_status_free(s);
    neb__free(s->shown);
    neb__site_close(s->site);
    for (int i = 0; i < s->n_slices; i++) neb__free((char *)(uintptr_t)s->slices[i].param.name);
    neb__free(s->slices);
    neb__buf_free(&s->loaded);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->busy);
    neb__free(s);
}
