/* view.c: see view.h.
 *
 * Looking takes two passes. The first reads every status.json, in the folder and one level below it. The
 * second puts them together: a site's own file wins over what others heard of it, and among those the
 * newest. Every file adds the lines of the site that wrote it.
 *
 * A process that is gone cannot say so. Three things show it: nobody holds the lock of its folder
 * (alive.h), the sites that live have lost their lines to it, or its file grows old. */
#include "watch/view.h"
#include "base/mem.h"
#include "watch/alive.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* Seconds. A site speaks every two, answers a heartbeat every second and writes its file every one or two. */
static const double silent_line = 2, silent_peer = 7, silent_file = 15;
/* A process that lives may be in a long step. One that writes nothing for this long hangs, or its disk is full. */
static const double silent_process = 600;

static const char *const names[] = {"unknown", "good", "done", "waiting", "late", "gone", "halted"};

const char *neb__health_name(enum neb_health h)
{
    return names[h];
}

neb_status neb__view_create(struct neb_view **out)
{
    struct neb_view *v = NEB_NEW(struct neb_view);
    if (v) v->line = neb__calloc(NEB_VIEW_LINES, sizeof *v->line);
    if (!v || !v->line) {
        neb__free(v);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a view of the run");
    }
    *out = v;
    return NEB_OK;
}

void neb__view_free(struct neb_view *v)
{
    if (v) neb__free(v->line);
    neb__free(v);
}

void neb__view_copy(struct neb_view *to, const struct neb_view *from)
{
    struct neb_view_line *room = to->line;
    *to = *from;
    to->line = room;
    memcpy(to->line, from->line, (size_t)from->n_lines * sizeof *to->line);
}

int neb__view_find(const struct neb_view *v, const char *name)
{
    for (int i = 0; i < v->n; i++)
        if (!strcmp(v->site[i].st.name, name)) return i;
    return -1;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static double modified(const char *path)
{
    struct stat st;
    if (stat(path, &st)) return 0;
    return (double)st.st_mtim.tv_sec + 1e-9 * (double)st.st_mtim.tv_nsec;
}

/* Calls fn(arg, folder of a status.json) for the folder itself, its run/, or all that lie one level below. */
static void each_folder(const char *folder, void (*fn)(void *arg, const char *folder), void *arg)
{
    char path[PATH_MAX];
    struct dirent **list;
    if (snprintf(path, sizeof path, "%s/status.json", folder) < (int)sizeof path && modified(path) > 0) {
        fn(arg, folder);
        return;
    }
    if (snprintf(path, sizeof path, "%s/run/status.json", folder) < (int)sizeof path && modified(path) > 0) {
        path[strlen(path) - strlen("/status.json")] = 0;
        fn(arg, path);
        return;
    }
    int n = scandir(folder, &list, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        int length = snprintf(path, sizeof path, "%s/%s/status.json", folder, list[i]->d_name);
        if (list[i]->d_name[0] != '.' && length < (int)sizeof path && modified(path) > 0) {
            path[length - (int)strlen("/status.json")] = 0;
            fn(arg, path);
        }
        free(list[i]);
    }
    if (n >= 0) free(list);
}

struct looking {
    struct neb_view *v;
    struct neb_status_file *file;
    struct neb_view_line *before; /* NULL: there was no view before */
    int n_before;
    const struct neb_view_site *site_before;
    double passed; /* seconds since the view before */
    int files;
    neb_status status;
    bool own[NEB_STATUS_SITES]; /* the site's own file was read */
    double late[NEB_STATUS_SITES];
};

static int place_of(struct neb_view *v, const char *name)
{
    int i = neb__view_find(v, name);
    if (i >= 0 || v->n == NEB_STATUS_SITES) return i;
    v->site[v->n] = (struct neb_view_site){0};
    snprintf(v->site[v->n].st.name, sizeof v->site[v->n].st.name, "%s", name);
    return v->n++;
}

/* What others have heard counts until the site's own file is found; of several the newest. */
static void take_site(struct looking *l, int at, const struct neb_site_status *st, double age, bool own)
{
    struct neb_view_site *s = &l->v->site[at];
    bool heard = *st->session || *st->state, had = *s->st.session || *s->st.state;
    if (l->own[at] && !own) return;
    if (!own && had && (!heard || age >= l->late[at])) {
        s->st.up |= st->up;
        return;
    }
    bool up = s->st.up || st->up;
    s->st = *st;
    s->st.up = up;
    l->own[at] = own;
    l->late[at] = age;
}

static void take_line(struct looking *l, int from, int to, const struct neb_site_status *st)
{
    struct neb_view *v = l->v;
    if (v->n_lines == NEB_VIEW_LINES || from == to) return;
    v->line[v->n_lines++] = (struct neb_view_line){.from = from,
                                                   .to = to,
                                                   .up = st->up,
                                                   .rtt_ms = st->rtt_ms,
                                                   .goodput_bps = st->goodput_bps,
                                                   .goodput_in_bps = st->goodput_in_bps,
                                                   .loss = st->line_loss,
                                                   .silent_s = st->silent_s,
                                                   .sent = st->line_sent,
                                                   .received = st->line_received,
                                                   .out_bps = -1,
                                                   .in_bps = -1};
    snprintf(v->line[v->n_lines - 1].via, sizeof v->line->via, "%s", st->via);
}

static void take_file(struct looking *l, const char *folder, double written)
{
    const struct neb_status_file *f = l->file;
    struct neb_view *v = l->v;
    double late = fmax(0, v->now - written);
    int self = -1;
    if (f->self >= 0) self = place_of(v, f->site[f->self].name);
    for (int i = 0; i < f->n; i++) {
        int at = place_of(v, f->site[i].name);
        if (at < 0) continue;
        take_site(l, at, &f->site[i], f->site[i].age + late, i == f->self);
        if (i == f->self) {
            snprintf(v->site[at].folder, sizeof v->site[at].folder, "%s", folder);
            if (*f->site[i].job) snprintf(v->job, sizeof v->job, "%s", f->site[i].job);
            if (*f->site[i].strategy) snprintf(v->strategy, sizeof v->strategy, "%s", f->site[i].strategy);
        } else if (self >= 0 && *f->site[i].name) {
            take_line(l, self, at, &f->site[i]);
        }
    }
    if (f->log.record >= v->log.record && *f->log.hash) v->log = f->log;
    v->written = f->written > v->written ? f->written : v->written;
    v->made = fmax(v->made, written);
}

/* A file that vanishes or is damaged does not hide the others. */
static void read_one(void *arg, const char *folder)
{
    struct looking *l = arg;
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/status.json", folder);
    double written = modified(path);
    neb_status status = neb__status_file_read(path, l->file);
    if (status == NEB_OK && l->file->self < 0 && l->file->n) l->file->self = 0;
    if (status != NEB_OK) l->status = status;
    if (status != NEB_OK || !l->file->n) return;
    l->files++;
    take_file(l, folder, written);
}

/* ---- rates --------------------------------------------------------------------------------------------- */

static void find_rates(struct looking *l)
{
    for (int i = 0; i < l->v->n_lines; i++) {
        struct neb_view_line *now = &l->v->line[i];
        const char *from = l->v->site[now->from].st.name, *to = l->v->site[now->to].st.name;
        for (int k = 0; k < l->n_before && l->passed > 0.2; k++) {
            const struct neb_view_line *b = &l->before[k];
            if (strcmp(l->site_before[b->from].st.name, from) || strcmp(l->site_before[b->to].st.name, to))
                continue;
            bool same = now->sent == b->sent && now->received == b->received && l->passed < 1.5;
            now->out_bps = same ? b->out_bps : 8 * fmax(0, (double)(now->sent - b->sent)) / l->passed;
            now->in_bps = same ? b->in_bps : 8 * fmax(0, (double)(now->received - b->received)) / l->passed;
        }
    }
}

neb_status neb__view_look(struct neb_view *v, const char *folder)
{
    struct timespec t;
    struct neb_view *before = NEB_NEW(struct neb_view);
    struct looking l = {.v = v, .file = NEB_NEW(struct neb_status_file)};
    struct neb_view_line *lines = neb__calloc((size_t)v->n_lines + 1, sizeof *lines);
    neb_status status = NEB_OK;
    if (!before || !l.file || !lines)
        status = neb__fail(NEB_ERR_NOMEM, "out of memory for a view of the run");
    if (status == NEB_OK) {
        clock_gettime(CLOCK_REALTIME, &t);
        memcpy(lines, v->line, (size_t)v->n_lines * sizeof *lines);
        *before = *v;
        struct neb_view_line *room = v->line;
        *v = (struct neb_view){.line = room, .now = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec};
        each_folder(folder, read_one, &l);
        l.before = lines, l.n_before = before->n_lines, l.site_before = before->site;
        l.passed = before->made > 0 ? v->made - before->made : 0;
        find_rates(&l);
        if (l.files == 1)
            for (int i = 0; i < v->n; i++)
                if (l.own[i]) snprintf(v->self, sizeof v->self, "%s", v->site[i].st.name);
        for (int i = 0; i < v->n; i++) v->site[i].silent = l.late[i];
        neb__view_judge(v, v->now);
        if (!l.files)
            status = l.status != NEB_OK
                         ? l.status
                         : neb__quiet(NEB_ERR_NOTFOUND, "%s: no site writes there; give the `out` of a job",
                                      folder);
    }
    neb__free(lines);
    neb__free(before);
    neb__free(l.file);
    return status;
}

static void note_newest(void *newest, const char *folder)
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/status.json", folder);
    *(double *)newest += fmod(modified(path), 1e6); /* any change changes the sum */
}

double neb__view_changed(const struct neb_view *v, const char *folder)
{
    double sum = 0;
    (void)v;
    each_folder(folder, note_newest, &sum);
    return sum;
}

/* ---- judging ------------------------------------------------------------------------------------------- */

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

/* The roots of sites can be compared where they were taken after the same record. */
static void compare_roots(struct neb_view *v)
{
    v->roots_agree = true;
    v->roots = 0;
    for (int i = 0; i < v->n; i++) {
        const struct neb_site_status *a = &v->site[i].st;
        if (!a->root_record || !*a->root) continue;
        v->roots++;
        for (int k = 0; k < i; k++) {
            const struct neb_site_status *b = &v->site[k].st;
            if (a->root_record == b->root_record && *b->root && strcmp(a->root, b->root))
                v->roots_agree = false;
        }
    }
}

/* The least time among the ends that the job has: tokens of all sites, steps, minutes. */
static void forecast(struct neb_view *v)
{
    double left = INFINITY, share = -1;
    if (v->target > 0) {
        share = fmin(1, (double)v->tokens / (double)v->target);
        if (v->tokens_per_second > 0) left = fmax(0, (double)(v->target - v->tokens)) / v->tokens_per_second;
    }
    for (int i = 0; i < v->n; i++) {
        const struct neb_site_status *s = &v->site[i].st;
        double done = s->steps_planned > 0 ? (double)s->step / (double)s->steps_planned : 0;
        if (s->planned_s > 0) {
            done = fmax(done, s->trained_s / s->planned_s);
            left = fmin(left, fmax(0, s->planned_s - s->trained_s));
        }
        if (s->step > 0 && s->steps_planned > s->step && s->tokens_per_second > 0)
            left = fmin(left, (double)(s->steps_planned - s->step) * (double)s->trained_tokens /
                                  (double)s->step / s->tokens_per_second);
        if (done > 0) share = fmax(share, fmin(1, done));
    }
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

static void sum_up(struct neb_view *v)
{
    double loss = 0, weight = 0, trained = 0;
    int over = 0;
    v->tokens = v->target = v->record = 0;
    v->tokens_per_second = v->sent = v->fp32 = 0;
    take_shared(v, true);
    take_shared(v, false);
    for (int i = 0; i < v->n; i++) {
        const struct neb_view_site *s = &v->site[i];
        bool lives = s->health == NEB_HEALTH_GOOD || s->health == NEB_HEALTH_WAITING;
        trained += (double)s->st.trained_tokens;
        if (lives) v->tokens_per_second += s->st.tokens_per_second;
        v->sent += (double)s->st.sent;
        v->fp32 += 4 * (double)s->st.trainable * (double)s->st.own_steps;
        if (s->st.loss > 0) loss += s->st.loss * (double)s->st.trained_tokens;
        if (s->st.loss > 0) weight += (double)s->st.trained_tokens;
        over += s->health == NEB_HEALTH_DONE || s->st.ended;
    }
    if (!v->tokens) v->tokens = (int64_t)fmin(trained, 9e18);
    v->loss = weight > 0 ? loss / weight : 0;
    v->ended = v->n && over == v->n;
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
