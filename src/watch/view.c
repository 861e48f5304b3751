/* view.c: see view.h.
 *
 * Looking takes two passes. The first reads every status.json, in the folder and one level below it. The
 * second puts them together: a site's own file wins over what others heard of it, and among those the
 * newest. Every file adds the lines of the site that wrote it. view_judge.c then says how they are. */
#include "watch/view.h"
#include "base/mem.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

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
                                                   .relayed = st->relayed,
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
