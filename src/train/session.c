/* session.c: the public face of a run: open, register, start, step, status, close. */
#include "train/session.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "train/session_words.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

struct neb_session_config neb_session_defaults(void)
{
    return (struct neb_session_config){
        .interval = 100, .drift_wait = true, .outer_lr = 0.7f, .outer_momentum = 0.9f, .rung = "int4"};
}

static neb_status check(neb_session *s)
{
    const struct neb_session_config *c = &s->config;
    if (c->interval < 1 || c->interval > 1 << 30)
        return neb__fail(NEB_ERR_CONFIG, "interval is %" PRId64 " steps; at least 1 is needed", c->interval);
    if (!(c->outer_lr > 0 && c->outer_lr <= 2) || !(c->outer_momentum >= 0 && c->outer_momentum < 1))
        return neb__fail(NEB_ERR_CONFIG, "outer_lr %g must be in (0, 2], outer_momentum %g in [0, 1)",
                         (double)c->outer_lr, (double)c->outer_momentum);
    s->rung = neb__rung_by_name(c->rung ? c->rung : "int4");
    s->exact = neb__rung_by_name("fp32");
    if (!s->rung || s->rung->kind == NEB_RUNG_EXTERN)
        return neb__fail(NEB_ERR_CONFIG, "rung '%s' is not on the ladder", c->rung);
    return NEB_OK;
}

static neb_status open_all(neb_session *s, const char *folder)
{
    NEB_TRY(check(s));
    NEB_TRY(neb__hasher_init(&s->layout));
    NEB_TRY(neb__site_open(folder, &s->site));
    struct neb_net_config cfg = NEB_NET_CONFIG;
    cfg.site = s->site;
    cfg.listen = s->config.listen;
    cfg.events = &neb__session_events;
    cfg.arg = s;
    cfg.max_rate = s->config.max_rate;
    NEB_TRY(neb__net_open(&cfg, &s->net));
    s->self = neb__net_self(s->net);
    s->config.rung = s->rung->name; /* the caller's strings are not kept */
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
    char text[400];
    int at = snprintf(text, sizeof text, "%.200s", p->name);
    for (int i = 0; i < p->ndim; i++) {
        if (p->shape[i] < 1 || n > ((size_t)1 << 40) / (size_t)p->shape[i])
            return neb__fail(NEB_ERR_SHAPE, "parameter '%s': dimension %d is %" PRId64, p->name, i,
                             p->shape[i]);
        n *= (size_t)p->shape[i];
        at += snprintf(text + at, sizeof text - (size_t)at, " %" PRId64, p->shape[i]);
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
    return neb__hasher_update(&s->layout, text, (size_t)at + 1);
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
    neb_status st = s->mismatch;
    pthread_mutex_unlock(&s->lock);
    return st != NEB_OK ? neb__quiet(st, "%s", s->why) : NEB_OK;
}

/* Without parameters there are no rounds to wait for: until another site has told that it runs the same job. */
static neb_status wait_for_word(neb_session *s, double seconds)
{
    struct timespec until = seconds_from_now(seconds);
    pthread_mutex_lock(&s->lock);
    while (!s->halted && !s->agreed)
        if (pthread_cond_timedwait(&s->changed, &s->lock, &until)) break;
    neb_status st = s->mismatch;
    pthread_mutex_unlock(&s->lock);
    return st != NEB_OK ? neb__quiet(st, "%s", s->why) : NEB_OK;
}

neb_status neb_session_start(neb_session *s, double wait_s)
{
    if (s->driver_runs || s->outer) return neb__fail(NEB_ERR_STATE, "the session has started");
    NEB_TRY(neb__hasher_final(&s->layout, &s->model[NEB_AGREED_LAYOUT]));
    NEB_TRY(neb__session_settings_hash(s, &s->model[NEB_AGREED_SETTINGS]));
    if (s->values) NEB_TRY(neb__session_restore(s));
    NEB_TRY(neb__net_start(s->net));
    if (pthread_create(&s->driver, NULL, neb__session_driver, s))
        return neb__fail(NEB_ERR_NOMEM, "the system refused a thread");
    s->driver_runs = true;
    if (!(wait_s > 0)) return NEB_OK;
    return s->values ? wait_for_quorum(s, wait_s) : s->words ? wait_for_word(s, wait_s) : NEB_OK;
}

/* ---- step ------------------------------------------------------------------------------------------------------- */

/* Carries out the edits of one cell; the lock is held. */
static neb_status merge_cell(neb_session *s, uint32_t cell, float *scratch)
{
    size_t first, n = neb__outer_cell(s->outer, cell, &first);
    NEB_TRY(neb__session_read_x(s, first, n, scratch));
    neb__edits_apply(&s->own[cell], scratch, n);
    s->status.merges++;
    return neb__session_write_x(s, first, n, scratch);
}

static neb_status merge(neb_session *s, bool *changed)
{
    for (uint32_t c = 0; c < s->outer->cells; c++) {
        if (!s->own[c].edits || (s->capture_taken && c >= s->snap_c0 && c < s->snap_c1)) continue;
        NEB_TRY(merge_cell(s, c, s->work[2]));
        *changed = true;
    }
    return NEB_OK;
}

static neb_status take_snapshot(neb_session *s)
{
    size_t first, last, n = neb__outer_cell(s->outer, s->snap_c1 - 1, &last);
    neb__outer_cell(s->outer, s->snap_c0, &first);
    n += last - first;
    if (n > s->snap_room) {
        float *room = neb__realloc(s->snap, n * sizeof *room);
        if (!room) return neb__fail(NEB_ERR_NOMEM, "out of memory for a copy of %zu values", n);
        s->snap = room;
        s->snap_room = n;
    }
    NEB_TRY(neb__session_read_x(s, first, n, s->snap));
    s->capture_taken = true;
    return NEB_OK;
}

/* Merges, and takes the copy a capture waits for. The lock is held; *post: the driver is to be told. */
static neb_status exchange(neb_session *s, bool *changed, bool *post)
{
    NEB_TRY(merge(s, changed));
    *post = s->capture_wanted && !s->capture_taken;
    return *post ? take_snapshot(s) : NEB_OK;
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
        st = exchange(s, changed, &post);
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
    if (st == NEB_OK && s->ended) st = merge(s, changed);
    s->status.wait_s += neb__seconds_since(start);
    return st;
}

static void count_step(neb_session *s, int64_t tokens)
{
    s->steps_pending++;
    s->status.steps++;
    s->steps_now++;
    s->tokens_now += tokens;
    pthread_cond_signal(&s->wake);
}

neb_status neb_step_within(neb_session *s, int64_t tokens, double wait_s, bool *changed)
{
    if (!s->driver_runs) return neb__fail(NEB_ERR_STATE, "neb_step() before neb_session_start()");
    bool post = false, ended = false, halted = false, nonfinite = false;
    *changed = false;
    pthread_mutex_lock(&s->lock);
    if (tokens >= 0) count_step(s, tokens);
    neb_status st = s->outer ? exchange(s, changed, &post) : NEB_OK; /* without parameters it only counts */
    if (st == NEB_OK && s->paused && !post) st = wait_while_paused(s, wait_s, changed);
    ended = s->ended;
    halted = s->halted;
    nonfinite = s->nonfinite;
    s->nonfinite = false;
    pthread_mutex_unlock(&s->lock);
    if (post) tell_snapshot(s);
    if (st != NEB_OK) return st;
    if (halted) return neb__quiet(s->mismatch != NEB_OK ? s->mismatch : NEB_ERR_STATE, "%s", s->why);
    if (nonfinite) return neb__quiet(NEB_ERR_NONFINITE, "%s", s->why);
    return ended ? NEB_ERR_CANCELLED : NEB_OK;
}

neb_status neb_step(neb_session *s, int64_t tokens, bool *changed)
{
    return neb_step_within(s, tokens < 0 ? 0 : tokens, -1, changed);
}

/* ---- the rest --------------------------------------------------------------------------------------------------- */

void neb_session_get_status(neb_session *s, struct neb_session_status *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->status;
    out->paused = s->paused;
    out->ended = s->ended;
    out->halted = s->halted;
    snprintf(out->note, sizeof out->note, "%.150s", s->why);
    pthread_mutex_unlock(&s->lock);
}

neb_status neb_session_leave(neb_session *s)
{
    struct neb_item *i = NEB_NEW(struct neb_item);
    if (!i) return neb__fail(NEB_ERR_NOMEM, "out of memory");
    i->type = NEB_ITEM_OPERATOR;
    i->op = NEB_OP_LEAVE;
    neb__session_post(s, i);
    return NEB_OK;
}

void neb_session_close(neb_session *s)
{
    if (!s) return;
    while (s->streams) neb_stream_close(s->streams);
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
    neb__session_release(s);
    neb__words_free(s);
    neb__site_close(s->site);
    if (s->layout.state) neb__hasher_final(&s->layout, NULL);
    for (int i = 0; i < s->n_slices; i++) neb__free((char *)(uintptr_t)s->slices[i].param.name);
    neb__free(s->slices);
    neb__free(s->snap);
    neb__buf_free(&s->loaded);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->busy);
    neb__free(s);
}
