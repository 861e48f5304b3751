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
#include <unistd.h>

enum { TELL_S = 3, END_STAY_S = 20, END_STAY_BYTES = 1 << 18 };
static const double idle_every_s = 0.5;

struct neb_session_config neb_session_defaults(void)
{
    return (struct neb_session_config){.interval = 100,
                                       .drift_wait = true,
                                       .merge_after = -1,
                                       .outer_lr = 0.7f,
                                       .outer_momentum = 0.6f,
                                       .rung = "auto",
                                       .prefer = "cost",
                                       .end = "drop"};
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
    if (c->end && strcmp(c->end, "drop") && strcmp(c->end, "keep"))
        return neb__fail(NEB_ERR_CONFIG, "end '%s' is neither drop nor keep", c->end);
    if (!(c->end_seconds >= 0 && c->end_seconds < 1e9) || !(c->end_bytes >= 0 && c->end_bytes < 1e18))
        return neb__fail(NEB_ERR_CONFIG, "end_seconds and end_bytes must not be negative");
    if (!(c->clip >= 0 && c->clip < 1e30) || !(c->noise >= 0 && c->noise < 1e30))
        return neb__fail(NEB_ERR_CONFIG, "clip %g and noise %g must not be negative", c->clip, c->noise);
    if (!(c->max_bytes_per_hour >= 0) || !(c->ledger_quota >= 0 && c->ledger_quota < 1e18))
        return neb__fail(NEB_ERR_CONFIG, "max_bytes_per_hour and ledger_quota must not be negative");
    return NEB_OK;
}

/* A roster of an earlier version is that of one run, whatever its name. */
static neb_status name_run(neb_session *s)
{
    const struct neb_chain *chain = neb__net_roster(s->net);
    const char *name = s->config.name;
    if (name && strlen(name) >= sizeof s->run)
        return neb__fail(NEB_ERR_CONFIG,
                         "the run's name '%.20s…' is longer than %zu bytes; give the job a shorter name",
                         name, sizeof s->run - 1);
    if (name && neb__chain_names_runs(chain)) snprintf(s->run, sizeof s->run, "%s", name);
    s->config.name = NULL;
    return neb__chain_run_genesis(chain, s->run, &s->genesis);
}

static neb_status open_all(neb_session *s, const char *folder)
{
    NEB_TRY(check(s));
    NEB_TRY(neb__site_open(folder, &s->site));
    struct neb_net_config cfg = NEB_NET_CONFIG;
    cfg.site = s->site;
    cfg.listen = s->config.listen;
    cfg.proxy = s->config.proxy;
    cfg.dial = s->config.dial;
    cfg.environment = true;
    cfg.events = &neb__session_events;
    cfg.arg = s;
    cfg.max_rate = s->config.max_rate;
    cfg.window[NEB_BULK] = NEB_BULK_WINDOW;
    NEB_TRY(neb__net_open(&cfg, &s->net));
    NEB_TRY(name_run(s));
    s->self = neb__net_self(s->net);
    neb__members_learn(&s->members, neb__net_roster(s->net));
    s->config.rung = s->fixed ? s->fixed->name : "auto"; /* the caller's strings are not kept */
    const char *prefer = s->config.prefer;
    s->config.prefer = prefer && !strcmp(prefer, "quality") ? "quality" : "cost";
    s->config.end = s->config.end && !strcmp(s->config.end, "keep") ? "keep" : "drop";
    s->config.listen = s->config.proxy = s->config.dial = NULL;
    return NEB_OK;
}

static void init_locks(neb_session *s)
{
    pthread_condattr_t attr;
    pthread_mutex_init(&s->busy, NULL);
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &attr);
    pthread_condattr_destroy(&attr);
}

neb_status neb_session_open(const char *folder, const struct neb_session_config *c, neb_session **out)
{
    neb_session *s = NEB_NEW(neb_session);
    if (!s) return neb__fail(NEB_ERR_NOMEM, "out of memory for a session");
    init_locks(s);
    s->config = c ? *c : neb_session_defaults();
    s->pid = getpid();
    neb__queue_init(&s->driver.queue);
    s->mirror.lock = &s->lock;
    neb__members_init(&s->members);
    neb__lines_init(&s->lines);
    neb__quotas_init(&s->quotas);
    neb__news_init(&s->news);
    s->driver.pending_last = &s->driver.pending;
    neb__buf_init(&s->loaded, (size_t)1 << 40);
    neb_status status = open_all(s, folder);
    if (status != NEB_OK) {
        neb_session_close(s);
        return status;
    }
    *out = s;
    return NEB_OK;
}

neb_status neb_session_register(neb_session *s, const struct neb_session_param *p)
{
    if (s->mirror.outer) return neb__fail(NEB_ERR_STATE, "parameter '%s': the session has started", p->name);
    return neb__mirror_register(&s->mirror, p);
}

neb_status neb_session_load(neb_session *s, const void *bytes, size_t n)
{
    if (s->mirror.outer) return neb__fail(NEB_ERR_STATE, "a checkpoint's state belongs before the start");
    neb__buf_clear(&s->loaded);
    return neb__buf_append(&s->loaded, bytes, n);
}

/* ---- start --------------------------------------------------------------------------------------------- */

/* The lock is held. Without parameters there are no rounds to wait for: another site must have told that it
 * runs the same job. */
static bool met(const neb_session *s)
{
    if (s->halted || s->ended) return true;
    return s->mirror.values ? s->status.view > 0 : s->agreed || !s->facts;
}

/* NEB_ERR_AGAIN: not in so many seconds. NEB_ERR_CONFIG */
static neb_status await_others(neb_session *s, double seconds)
{
    struct timespec until = neb__step_until(seconds);
    pthread_mutex_lock(&s->lock);
    neb__waiting_begin(s, NEB_WAITER_START);
    while (!met(s))
        if (pthread_cond_timedwait(&s->changed, &s->lock, &until)) break;
    neb_status status = met(s) ? NEB_OK : NEB_ERR_AGAIN;
    if (s->halted && s->mismatch != NEB_OK) status = neb__quiet(s->mismatch, "%s", s->why);
    neb__waiting_end(s, status == NEB_ERR_AGAIN);
    s->status.recover_s = neb__seconds_since(s->started);
    pthread_mutex_unlock(&s->lock);
    s->left_step = neb__now_ns();
    return status;
}

static neb_status start(neb_session *s)
{
    if (s->driver.runs || s->mirror.outer) return neb__fail(NEB_ERR_STATE, "the session has started");
    NEB_TRY(neb__mirror_arrange(&s->mirror, &s->model[NEB_AGREED_LAYOUT]));
    s->started = neb__now_ns();
    if (s->mirror.values) NEB_TRY(neb__session_restore(s));
    NEB_TRY(neb__session_settings_hash(s, &s->model[NEB_AGREED_SETTINGS])); /* the log has a say in them */
    if (s->mirror.values) neb__agreement_load(s);
    NEB_TRY(neb__session_watch_lines(s));
    NEB_TRY(neb__exit_watch(s));
    NEB_TRY(neb__net_start(s->net));
    pthread_mutex_lock(&s->lock); /* the driver reads the session's state for its status */
    s->driver.runs = pthread_create(&s->driver.thread, NULL, neb__session_driver, s) == 0;
    pthread_mutex_unlock(&s->lock);
    if (!s->driver.runs) return neb__fail(NEB_ERR_NOMEM, "the system refused a thread");
    return NEB_OK;
}

neb_status neb__session_start(neb_session *s, double wait_s, void (*idle)(void *arg), void *arg)
{
    NEB_TRY(start(s));
    neb_status status;
    int64_t since = neb__now_ns();
    do {
        double left = wait_s - neb__seconds_since(since);
        status = await_others(s, fmax(0, idle ? fmin(left, idle_every_s) : left));
        if (status == NEB_ERR_AGAIN && idle) idle(arg);
    } while (status == NEB_ERR_AGAIN && neb__seconds_since(since) < wait_s);
    return status == NEB_ERR_AGAIN ? NEB_OK : status; /* this site goes on alone */
}

neb_status neb_session_start(neb_session *s, double wait_s)
{
    return neb__session_start(s, wait_s, NULL, NULL);
}

/* ---- the rest ------------------------------------------------------------------------------------------ */

static neb_status operate(neb_session *s, uint32_t op)
{
    struct neb_item *i = NEB_NEW(struct neb_item);
    if (!i) return neb__fail(NEB_ERR_NOMEM, "out of memory");
    i->type = NEB_ITEM_OPERATOR;
    i->op = op;
    neb__queue_post(&s->driver.queue, i);
    return NEB_OK;
}

neb_status neb_session_leave(neb_session *s)
{
    return operate(s, NEB_OP_LEAVE);
}

neb_status neb__session_done(neb_session *s)
{
    NEB_TRY(neb_session_finish(s));
    return operate(s, NEB_OP_DONE);
}

/* Two sites whose jobs differ must both hear of it. A site that leaves before the other has its message would
 * let that one wait without a reason. */
static void wait_until_told(neb_session *s)
{
    int64_t since = neb__now_ns();
    while (neb__members_untold(&s->members) && neb__seconds_since(since) < TELL_S)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

/* A site that finds the run ended on its own disk is done at once. If another site is connected that lacks the
 * end, it has come to learn of it: this site may be the only one that can tell. It stays as long as it gives that
 * one something, and END_STAY_S more. */
static void stay_for_the_end(neb_session *s)
{
    int64_t since = neb__now_ns(), sent = 0;
    pthread_mutex_lock(&s->lock);
    neb__waiting_begin(s, NEB_WAITER_CLOSE);
    pthread_mutex_unlock(&s->lock);
    while (neb__session_peer_lacks_end(s) && neb__seconds_since(since) < END_STAY_S) {
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        pthread_mutex_lock(&s->lock);
        bool gives = s->status.bytes_out > sent + END_STAY_BYTES; /* more than words about itself */
        if (gives) sent = s->status.bytes_out;
        pthread_mutex_unlock(&s->lock);
        if (gives) since = neb__now_ns();
    }
}

void neb__session_stop(neb_session *s)
{
    if (s->stopped) return;
    pthread_mutex_lock(&s->lock);
    bool runs = s->driver.runs && s->core && !s->halted;
    bool goodbye = runs && !s->ended, found = runs && s->ended && s->driver.found_end;
    pthread_mutex_unlock(&s->lock);
    if (found) stay_for_the_end(s);
    if (goodbye) operate(s, NEB_OP_GOODBYE);
    neb__queue_close(&s->driver.queue);
    if (s->driver.runs) pthread_join(s->driver.thread, NULL);
    if (s->mismatch != NEB_OK) wait_until_told(s);
    if (s->net) neb__net_end(s->net);
    if (s->mirror.outer && s->driver.runs) neb__session_tell(s, true);
    s->stopped = true;
}

static void release(neb_session *s)
{
    neb__net_close(s->net);
    neb__session_rate_close(s);
    neb__session_release(s);
    neb__facts_free(s);
    neb__session_status_free(s);
    neb__queue_free(&s->driver.queue);
    neb__members_free(&s->members);
    neb__lines_free(&s->lines);
    neb__quotas_free(&s->quotas);
    neb__news_free(&s->news);
    neb__site_close(s->site);
    neb__buf_free(&s->loaded);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->busy);
    neb__free(s);
}

void neb_session_close(neb_session *s)
{
    if (!s || !neb__exit_close_begin(s)) return;
    while (s->streams) neb_stream_close(s->streams);
    neb__session_stop(s);
    release(s);
    neb__exit_close_end();
}
