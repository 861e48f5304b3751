/* view_judge.c: how the sites of a view are, and what follows for the run.
 *
 * A process that is gone cannot say so. Three things show it: nobody holds the lock of its folder
 * (alive.h), the sites that live have lost their lines to it, or its file grows old.
 *
 * What concerns the run is decided by the sites that write here, whose words are facts of this machine and of the log that it
 * holds. A site elsewhere may say anything of itself. */
#include "watch/alive.h"
#include "watch/view.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Seconds. A site speaks every two, answers a heartbeat every second and writes its file every one or two. */
static const double silent_line = NEB_STATUS_SILENT_S, silent_peer = 7, silent_file = 15;
/* A process that lives may be in a long step. One that writes nothing for this long hangs, or its disk is full. */
static const double silent_process = 600;

static bool is_last(const char *state)
{
    static const char *const last[] = {"done", "ended", "stopped"};
    for (size_t i = 0; i < sizeof last / sizeof *last; i++)
        if (!strcmp(state, last[i])) return true;
    return false;
}

/* Whether the sites that look at it have lost their lines, or wait for an answer. */
static void lines_to(const struct neb_view *v, int to, bool *seen, bool *up, double *quiet)
{
    *seen = *up = false;
    *quiet = INFINITY;
    for (int i = 0; i < v->n_lines; i++) {
        const struct neb_view_line *l = &v->line[i];
        if (l->to != to || v->site[l->from].health == NEB_HEALTH_GONE) continue;
        *seen = true;
        *up |= l->up;
        if (l->up) *quiet = fmin(*quiet, l->silent_s);
    }
}

/* Seconds after which a site that has said nothing new is late. The last evaluation takes as long as it takes. */
static double patience_with(const char *state, bool own, enum neb_alive alive)
{
    if (alive == NEB_ALIVE_YES) return strcmp(state, "evaluating") ? silent_process : INFINITY;
    return own ? silent_file : silent_peer;
}

static void judge_site(struct neb_view *v, int at)
{
    struct neb_view_site *s = &v->site[at];
    const char *state = neb__status_state(&s->st);
    bool own = *s->folder, seen, up;
    double quiet, late = s->silent;
    enum neb_alive alive = own ? neb__alive_look(s->folder) : NEB_ALIVE_UNKNOWN;
    lines_to(v, at, &seen, &up, &quiet);
    if (own && alive == NEB_ALIVE_NO) seen = true, up = false;
    if (own && alive == NEB_ALIVE_YES) seen = false; /* it lives; a line that is down is shown as that */
    snprintf(s->shown, sizeof s->shown, "%s", state);
    s->health = NEB_HEALTH_GOOD;
    if (s->st.halted || !strcmp(state, "halted"))
        s->health = NEB_HEALTH_HALTED;
    else if (!*state)
        s->health = NEB_HEALTH_UNKNOWN, snprintf(s->shown, sizeof s->shown, "not heard of");
    else if (is_last(state) || is_last(s->st.session))
        s->health = NEB_HEALTH_DONE;
    else if (seen && !up)
        s->health = NEB_HEALTH_GONE, snprintf(s->shown, sizeof s->shown, "gone");
    else if (late > patience_with(state, own, alive))
        s->health = NEB_HEALTH_LATE, snprintf(s->shown, sizeof s->shown, "silent for %.0f s", late);
    else if (seen && isfinite(quiet) && quiet > silent_line)
        s->health = NEB_HEALTH_LATE, snprintf(s->shown, sizeof s->shown, "no answer for %.0f s", quiet);
    else if (s->st.waiting_s > 0 || !strcmp(state, "waiting"))
        s->health = NEB_HEALTH_WAITING;
}

static bool is_here(const struct neb_view_site *s)
{
    return *s->folder;
}

/* Roots can be compared where they were taken after the same record. */
static bool comparable(const struct neb_site_status *a, const struct neb_site_status *b)
{
    return a->root_record && a->root_record == b->root_record && *a->root && *b->root;
}

/* Two sites that write here and differ: something computes or stores wrongly. A site elsewhere that says another root may be
 * wrong or lie; the log's own rules deal with signed roots. */
static void compare_roots(struct neb_view *v)
{
    v->roots_agree = true;
    v->roots = 0;
    for (int i = 0; i < v->n; i++) {
        struct neb_view_site *a = &v->site[i];
        a->root_differs = false;
        for (int k = 0; k < v->n; k++) {
            const struct neb_view_site *b = &v->site[k];
            if (i == k || !is_here(b) || !comparable(&a->st, &b->st) || !strcmp(a->st.root, b->st.root))
                continue;
            a->root_differs = true;
            if (is_here(a)) v->roots_agree = false;
        }
        v->roots += a->st.root_record && *a->st.root && !a->root_differs;
    }
}

/* Tokens that the run commits in a second, over its whole life, by the log and the clock of a site here. 0: not known */
static double committed_rate(const struct neb_view *v)
{
    double rate = 0;
    for (int i = 0; i < v->n; i++) {
        const struct neb_site_status *s = &v->site[i].st;
        if (is_here(&v->site[i]) && s->trained_s > 1 && s->run_tokens > 0)
            rate = fmax(rate, (double)s->run_tokens / s->trained_s);
    }
    return rate;
}

/* How far a site is, and how long it still takes by its own steps and minutes. */
static void forecast_site(const struct neb_site_status *s, double *left, double *share)
{
    double done = s->steps_planned > 0 ? (double)s->step / (double)s->steps_planned : 0;
    if (s->planned_s > 0) {
        done = fmax(done, s->trained_s / s->planned_s);
        *left = fmin(*left, fmax(0, s->planned_s - s->trained_s));
    }
    if (s->step > 0 && s->steps_planned > s->step && s->tokens_per_second > 0)
        *left = fmin(*left, (double)(s->steps_planned - s->step) * (double)s->trained_tokens /
                                (double)s->step / s->tokens_per_second);
    if (done > 0) *share = fmax(*share, fmin(1, done));
}

/* The least time among the ends that the job has: tokens of all sites, steps, minutes. */
static void forecast(struct neb_view *v)
{
    double left = INFINITY, share = -1, rate = committed_rate(v);
    if (v->target > 0) {
        share = fmin(1, (double)v->tokens / (double)v->target);
        if (rate > 0) left = fmax(0, (double)(v->target - v->tokens)) / rate;
    }
    for (int i = 0; i < v->n; i++)
        if (is_here(&v->site[i])) forecast_site(&v->site[i].st, &left, &share);
    if (v->ended) left = 0, share = 1;
    v->seconds_left = isfinite(left) ? left : -1;
    v->progress = share;
}

/* What all sites share: the record, the committed tokens, the target. It is taken from the sites that write here, if one of
 * them knows it, since what another site says of it may be a lie. */
static void take_shared(struct neb_view *v, bool here)
{
    int64_t tokens = 0, target = 0, record = 0;
    for (int i = 0; i < v->n; i++) {
        const struct neb_site_status *s = &v->site[i].st;
        if (here && !*v->site[i].folder) continue;
        tokens = s->run_tokens > tokens ? s->run_tokens : tokens;
        target = s->token_target > target ? s->token_target : target;
        record = s->record > record ? s->record : record;
    }
    v->tokens = v->tokens ? v->tokens : tokens;
    v->target = v->target ? v->target : target;
    v->record = v->record ? v->record : record;
}

/* The mean of the sites that write here; of all, where none of them has a loss. */
static double mean_loss(const struct neb_view *v, bool here)
{
    double loss = 0, weight = 0;
    for (int i = 0; i < v->n; i++) {
        const struct neb_site_status *s = &v->site[i].st;
        if (!(s->loss > 0) || (here && !is_here(&v->site[i]))) continue;
        loss += s->loss * (double)s->trained_tokens;
        weight += (double)s->trained_tokens;
    }
    return weight > 0 ? loss / weight : 0;
}

/* Every site that writes here has ended in order, or says that the log has. */
static bool has_ended(const struct neb_view *v)
{
    int here = 0, over = 0;
    for (int i = 0; i < v->n; i++) {
        const struct neb_view_site *s = &v->site[i];
        if (!is_here(s)) continue;
        here++;
        over += s->health == NEB_HEALTH_DONE || s->st.ended;
    }
    return here && over == here;
}

/* Speed and bytes are sums of what the sites say. */
static void sum_up(struct neb_view *v)
{
    double trained = 0;
    v->tokens = v->target = v->record = 0;
    v->tokens_per_second = v->sent = v->fp32 = 0;
    take_shared(v, true);
    if (strcmp(v->strategy, "replica")) take_shared(v, false); /* without rounds nobody here counts for all */
    for (int i = 0; i < v->n; i++) {
        const struct neb_view_site *s = &v->site[i];
        bool lives = s->health == NEB_HEALTH_GOOD || s->health == NEB_HEALTH_WAITING;
        trained += (double)s->st.trained_tokens;
        if (lives) v->tokens_per_second += s->st.tokens_per_second;
        v->sent += (double)s->st.sent;
        v->fp32 += 4 * (double)s->st.trainable * (double)s->st.own_steps;
    }
    if (!v->tokens) v->tokens = (int64_t)fmin(trained, 9e18);
    v->loss = mean_loss(v, true);
    if (!(v->loss > 0)) v->loss = mean_loss(v, false);
    v->ended = has_ended(v);
}

void neb__view_judge(struct neb_view *v, double now)
{
    for (int i = 0; i < v->n; i++) v->site[i].silent += fmax(0, now - v->now);
    v->now = now;
    for (int i = 0; i < v->n; i++) v->site[i].health = NEB_HEALTH_UNKNOWN;
    for (int i = 0; i < v->n; i++)
        if (*v->site[i].folder) judge_site(v, i);
    for (int i = 0; i < v->n; i++) /* now it is known whose words count */
        if (!*v->site[i].folder) judge_site(v, i);
    sum_up(v);
    compare_roots(v);
    forecast(v);
}
