/* history.c: see history.h.
 *
 * A value's past is a list of at most NEB_HISTORY_POINTS points, each the mean, least and greatest of the
 * same number of measurements. When the list is full, neighbours are joined and a point stands for twice as
 * many from then on. So a million measurements cost no more than two thousand, a new one costs a constant,
 * and a spike stays visible. Counters keep their last value instead of the mean. */
#include "watch/history.h"
#include "base/mem.h"
#include "base/printable.h"
#include "store/metrics.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct point {
    double t, v, low, high;
    int64_t step;
    int n; /* measurements in it */
};

struct series {
    struct point *list;
    int n, cap, per; /* per: measurements a point */
    int64_t next;    /* step from which the database is still to be read */
};

static const struct {
    const char *name;
    bool counts; /* a counter: the last value of a point, not the mean */
} values[] = {
    {"loss", false},        {"valid/loss", false}, {"tokens", true},           {"rate", false},
    {"wan/out", true},      {"wan/in", true},      {"wan/goodput_out", false}, {"wan/goodput_in", false},
    {"wan/interval", true}, {"wan/window", true},  {"wan/records", true},      {"wan/peers", true},
    {"time/compute", true}, {"time/encode", true}, {"time/wait", true},        {"time/recover", true}};
enum { VALUES = sizeof values / sizeof *values };

struct past {
    char name[64], folder[PATH_MAX];
    struct neb_metrics *db;
    dev_t device; /* with file: which one db is */
    ino_t file;
    double began; /* the run of that file */
    int64_t starts, event;
    double heard; /* unix seconds: when the status was last sampled */
    struct series value[VALUES];
};

struct event {
    int64_t n, step;
    double t;
    char site[64], kind[24], text[400];
};

struct neb_history {
    pthread_mutex_t lock;
    struct past site[NEB_STATUS_SITES];
    int n, cap;     /* cap: points of a series */
    int64_t budget; /* rows that the present update may still read */
    struct event *events;
    int64_t n_events;
    neb_status status;
};

neb_status neb__history_create(struct neb_history **out)
{
    struct neb_history *h = NEB_NEW(struct neb_history);
    if (h) h->events = neb__calloc(NEB_HISTORY_EVENTS, sizeof *h->events);
    if (!h || !h->events) {
        neb__free(h);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a run's past");
    }
    pthread_mutex_init(&h->lock, NULL);
    *out = h;
    return NEB_OK;
}

static void forget(struct past *p)
{
    for (int i = 0; i < VALUES; i++) {
        neb__free(p->value[i].list);
        p->value[i] = (struct series){0};
    }
}

void neb__history_free(struct neb_history *h)
{
    if (!h) return;
    for (int i = 0; i < h->n; i++) {
        forget(&h->site[i]);
        neb__metrics_close(h->site[i].db);
    }
    neb__free(h->events);
    pthread_mutex_destroy(&h->lock);
    neb__free(h);
}

/* ---- points -------------------------------------------------------------------------------------------- */

static void join(struct point *a, const struct point *b, bool counts)
{
    int n = a->n + b->n;
    a->v = counts ? b->v : (a->v * a->n + b->v * b->n) / n;
    a->low = fmin(a->low, b->low);
    a->high = fmax(a->high, b->high);
    a->t = counts ? b->t : (a->t * a->n + b->t * b->n) / n;
    a->step = b->step;
    a->n = n;
}

static void halve(struct series *s, bool counts)
{
    int k = 0;
    for (int i = 0; i < s->n; i += 2, k++) {
        s->list[k] = s->list[i];
        if (i + 1 < s->n) join(&s->list[k], &s->list[i + 1], counts);
    }
    s->n = k;
    s->per *= 2;
}

static neb_status grow(struct series *s, int most)
{
    int cap = s->cap ? 2 * s->cap : 64;
    if (cap > most) cap = most;
    struct point *list = neb__realloc(s->list, (size_t)cap * sizeof *list);
    if (!list) return neb__fail(NEB_ERR_NOMEM, "out of memory for a run's past");
    s->list = list;
    s->cap = cap;
    if (!s->per) s->per = 1;
    return NEB_OK;
}

static neb_status add(struct series *s, int most, bool counts, int64_t step, double t, double v)
{
    const struct point p = {t, v, v, v, step, 1};
    s->next = step < INT64_MAX ? step + 1 : step; /* a peer may say anything */
    if (!isfinite(v) || !isfinite(t)) return NEB_OK;
    if (s->n && s->list[s->n - 1].n < s->per) {
        join(&s->list[s->n - 1], &p, counts);
        return NEB_OK;
    }
    while (s->n >= most) halve(s, counts);
    if (s->n == s->cap) NEB_TRY(grow(s, most));
    s->list[s->n++] = p;
    return NEB_OK;
}

/* ---- what is new --------------------------------------------------------------------------------------- */

struct reading {
    struct neb_history *h;
    struct past *p;
    int value;
};

static int take(void *arg, int64_t step, double time, double v)
{
    struct reading *r = arg;
    r->h->budget--;
    neb_status s = add(&r->p->value[r->value], r->h->cap, values[r->value].counts, step, time, v);
    if (s != NEB_OK) r->h->status = s;
    return s == NEB_OK;
}

static int take_event(void *arg, int64_t id, int64_t step, double time, const char *kind, const char *text)
{
    struct reading *r = arg;
    struct neb_history *h = r->h;
    struct event *e = &h->events[h->n_events % NEB_HISTORY_EVENTS];
    *e = (struct event){.n = ++h->n_events, .step = step, .t = time};
    snprintf(e->site, sizeof e->site, "%s", r->p->name);
    snprintf(e->kind, sizeof e->kind, "%s", kind);
    snprintf(e->text, sizeof e->text, "%s", text);
    neb__text_clean(e->kind);
    neb__text_clean(e->text);
    r->p->event = id;
    return --h->budget > 0;
}

/* The file may be replaced: by a newer copy of a site elsewhere, or by a new run in the same folder. */
static bool open_database(struct past *p)
{
    char path[PATH_MAX + 16];
    struct stat st;
    snprintf(path, sizeof path, "%s/metrics.sqlite", p->folder);
    bool there = !stat(path, &st);
    if (p->db && (!there || st.st_dev != p->device || st.st_ino != p->file)) {
        neb__metrics_close(p->db);
        p->db = NULL;
    }
    if (p->db) return true;
    if (!there || neb__metrics_read(p->folder, &p->db) != NEB_OK) return false;
    p->device = st.st_dev;
    p->file = st.st_ino;
    double began = neb__metrics_began(p->db);
    if (began < p->began || began > p->began) forget(p), p->starts = p->event = 0;
    p->began = began;
    return true;
}

/* A run that was started again may have replaced values: all are read again. */
static void read_database(struct neb_history *h, struct past *p)
{
    if (!open_database(p)) return;
    int64_t starts = neb__metrics_starts(p->db);
    if (starts != p->starts) forget(p);
    p->starts = starts;
    for (int i = 0; i < VALUES; i++) {
        struct reading r = {h, p, i};
        int64_t after = p->value[i].next - 1;
        if (h->budget > 0)
            (void)neb__metrics_range(p->db, values[i].name, after, INT64_MAX, h->budget, take, &r);
    }
    struct reading r = {h, p, 0};
    if (h->budget > 0) (void)neb__metrics_events_after(p->db, p->event, take_event, &r);
}

static double heard_value(const struct neb_site_status *s, const char *name)
{
    const struct {
        const char *name;
        double v;
    } list[] = {{"loss", s->loss > 0 ? s->loss : NAN},
                {"tokens", (double)s->trained_tokens},
                {"rate", s->tokens_per_second},
                {"wan/out", (double)s->sent},
                {"wan/in", (double)s->received},
                {"wan/goodput_out", s->link_out},
                {"wan/goodput_in", s->link_in},
                {"wan/interval", s->interval ? (double)s->interval : NAN},
                {"wan/records", (double)s->record},
                {"wan/peers", (double)s->peers_up},
                {"time/compute", s->compute_s},
                {"time/encode", s->merge_s},
                {"time/wait", s->wait_s},
                {"time/recover", s->recover_s}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (!strcmp(list[i].name, name)) return list[i].v;
    return NAN;
}

/* A site that is not there is not sampled, so its curves break. */
static void sample(struct neb_history *h, struct past *p, const struct neb_view_site *s, double now)
{
    if (s->health == NEB_HEALTH_UNKNOWN || s->health >= NEB_HEALTH_LATE || now - p->heard < 0.9) return;
    double t = now - s->silent;
    if (t <= p->heard) return;
    p->heard = t;
    for (int i = 0; i < VALUES; i++) {
        double v = heard_value(&s->st, values[i].name);
        if (isfinite(v) && add(&p->value[i], h->cap, values[i].counts, s->st.step, t, v) != NEB_OK)
            h->status = NEB_ERR_NOMEM;
    }
}

static struct past *past_of(struct neb_history *h, const struct neb_view_site *s)
{
    for (int i = 0; i < h->n; i++)
        if (!strcmp(h->site[i].name, s->st.name)) return &h->site[i];
    if (h->n == NEB_STATUS_SITES) return NULL;
    struct past *p = &h->site[h->n++];
    snprintf(p->name, sizeof p->name, "%s", s->st.name);
    return p;
}

neb_status neb__history_update(struct neb_history *h, const struct neb_view *v)
{
    pthread_mutex_lock(&h->lock);
    h->status = NEB_OK;
    if (!v->n) { /* nobody has written yet: how many points a value may have is not known */
        pthread_mutex_unlock(&h->lock);
        return NEB_OK;
    }
    h->budget = NEB_HISTORY_CATCH_UP;
    if (!h->cap) h->cap = v->n > 8 ? 2 * (NEB_HISTORY_POINTS * 4 / v->n) : NEB_HISTORY_POINTS;
    if (h->cap < 256) h->cap = 256;
    for (int i = 0; i < v->n; i++) {
        struct past *p = past_of(h, &v->site[i]);
        if (!p) continue;
        if (*v->site[i].folder && !*p->folder) snprintf(p->folder, sizeof p->folder, "%s", v->site[i].folder);
        if (*p->folder) read_database(h, p);
        if (!p->db) sample(h, p, &v->site[i], v->now);
    }
    neb_status status = h->status;
    bool more = h->budget <= 0;
    pthread_mutex_unlock(&h->lock);
    if (status == NEB_OK && more) return neb__quiet(NEB_ERR_AGAIN, "the past is still being read");
    return status;
}

/* ---- the question -------------------------------------------------------------------------------------- */

static neb_status read_number(const char *key, const char *value, double low, double high, double *out)
{
    char *end;
    double x = strtod(value, &end);
    if (!*value || *end || !isfinite(x) || x < low || x > high)
        return neb__quiet(NEB_ERR_INVALID, "%s must be a number from %g to %g", key, low, high);
    *out = x;
    return NEB_OK;
}

neb_status neb__history_query_read(const char *key, const char *value, struct neb_history_query *q)
{
    double x = 0;
    if (!strcmp(key, "site") && strlen(value) < sizeof q->site) {
        snprintf(q->site, sizeof q->site, "%s", value);
        return NEB_OK;
    }
    if (!strcmp(key, "name")) {
        for (int i = 0; i < VALUES; i++)
            if (!strcmp(values[i].name, value)) snprintf(q->name, sizeof q->name, "%s", value);
        return *q->name ? NEB_OK : neb__quiet(NEB_ERR_INVALID, "no such name; docs/watch.md lists them");
    }
    if (!strcmp(key, "from")) return read_number(key, value, 0, 1e12, &q->from);
    if (!strcmp(key, "to")) return read_number(key, value, 0, 1e12, &q->to);
    if (!strcmp(key, "points")) {
        NEB_TRY(read_number(key, value, 1, NEB_HISTORY_POINTS, &x));
        q->points = (int)x;
        return NEB_OK;
    }
    return neb__quiet(NEB_ERR_INVALID, "allowed are site, name, from, to and points");
}

/* ---- the answer ---------------------------------------------------------------------------------------- */

static neb_status put_column(const struct series *s, const char *key, size_t offset, int first, int last,
                             const char *format, struct neb_buf *out)
{
    NEB_TRY(neb__buf_printf(out, "\"%s\":[", key));
    for (int i = first; i < last; i++) {
        double x = *(const double *)(const void *)((const char *)&s->list[i] + offset);
        if (i > first) NEB_TRY(neb__buf_append(out, ",", 1));
        NEB_TRY(neb__buf_printf(out, format, x));
    }
    return neb__buf_append(out, "]", 1);
}

static neb_status put_series(const struct series *s, const struct neb_history_query *q, bool counts,
                             struct neb_buf *out)
{
    int first = 0, last = s->n;
    while (first < last && s->list[first].t < q->from) first++;
    while (q->to > 0 && last > first && s->list[last - 1].t > q->to) last--;
    if (first > 0) first--; /* one beyond each end, so that a line reaches the edge */
    if (last < s->n) last++;
    NEB_TRY(neb__buf_append(out, "{", 1));
    NEB_TRY(put_column(s, "t", offsetof(struct point, t), first, last, "%.2f", out));
    NEB_TRY(neb__buf_append(out, ",", 1));
    NEB_TRY(put_column(s, "v", offsetof(struct point, v), first, last, "%.7g", out));
    if (!counts && s->per > 1) {
        NEB_TRY(neb__buf_append(out, ",", 1));
        NEB_TRY(put_column(s, "low", offsetof(struct point, low), first, last, "%.5g", out));
        NEB_TRY(neb__buf_append(out, ",", 1));
        NEB_TRY(put_column(s, "high", offsetof(struct point, high), first, last, "%.5g", out));
    }
    return neb__buf_append(out, "}", 1);
}

/* The same points, at most q->points of them: joined by two until they fit. */
static neb_status put_thinned(const struct series *s, const struct neb_history_query *q, bool counts,
                              struct neb_buf *out)
{
    int within = 0;
    for (int i = 0; i < s->n; i++) within += s->list[i].t >= q->from && (q->to <= 0 || s->list[i].t <= q->to);
    if (within <= q->points) return put_series(s, q, counts, out);
    struct series copy = *s;
    copy.list = neb__calloc((size_t)s->n, sizeof *copy.list);
    if (!copy.list) return neb__fail(NEB_ERR_NOMEM, "out of memory for a run's past");
    memcpy(copy.list, s->list, (size_t)s->n * sizeof *copy.list);
    for (; within > q->points; within = (within + 1) / 2) halve(&copy, counts);
    neb_status status = put_series(&copy, q, counts, out);
    neb__free(copy.list);
    return status;
}

struct exact {
    struct series s;
    bool counts;
    neb_status status;
};

static int take_exact(void *arg, int64_t step, double time, double v)
{
    struct exact *e = arg;
    e->status = add(&e->s, NEB_HISTORY_POINTS, e->counts, step, time, v);
    return e->status == NEB_OK;
}

/* A narrow range whose points were joined is read again from the database, if that is not too long. */
static bool read_exactly(const struct past *p, int value, const struct neb_history_query *q, struct exact *e)
{
    const struct series *s = &p->value[value];
    int first = 0, last = s->n - 1;
    struct neb_metrics *db;
    *e = (struct exact){.counts = values[value].counts};
    if (s->per <= 1 || !*p->folder || q->to <= 0) return false;
    while (first < last && s->list[first + 1].t < q->from) first++;
    while (last > first && s->list[last - 1].t > q->to) last--;
    if ((int64_t)(last - first + 1) * s->per > NEB_HISTORY_ROWS) return false;
    if (neb__metrics_read(p->folder, &db) != NEB_OK) return false;
    neb_status status = neb__metrics_range(db, values[value].name, first ? s->list[first - 1].step : -1,
                                           s->list[last].step, NEB_HISTORY_ROWS, take_exact, e);
    neb__metrics_close(db);
    if (status == NEB_OK && e->status == NEB_OK) return true;
    neb__free(e->s.list);
    return false;
}

static neb_status put_value(const struct past *p, int value, const struct neb_history_query *q,
                            struct neb_buf *out)
{
    struct exact e;
    if (!read_exactly(p, value, q, &e)) return put_thinned(&p->value[value], q, values[value].counts, out);
    neb_status status = put_thinned(&e.s, q, values[value].counts, out);
    neb__free(e.s.list);
    return status;
}

/* A JSON string. Names are clean of control characters already. */
static neb_status put_text(struct neb_buf *out, const char *text)
{
    NEB_TRY(neb__buf_append(out, "\"", 1));
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') NEB_TRY(neb__buf_append(out, "\\", 1));
        NEB_TRY(neb__buf_append(out, (unsigned char)*text < 32 ? " " : text, 1));
    }
    return neb__buf_append(out, "\"", 1);
}

static neb_status put_past(const struct past *p, const struct neb_history_query *q, struct neb_buf *out)
{
    bool first = true;
    NEB_TRY(put_text(out, p->name));
    NEB_TRY(neb__buf_append(out, ":{", 2));
    for (int k = 0; k < VALUES; k++) {
        if ((*q->name && strcmp(q->name, values[k].name)) || !p->value[k].n) continue;
        NEB_TRY(neb__buf_printf(out, "%s\"%s\":", first ? "" : ",", values[k].name));
        NEB_TRY(put_value(p, k, q, out));
        first = false;
    }
    return neb__buf_append(out, "}", 1);
}

neb_status neb__history_json(struct neb_history *h, const struct neb_history_query *q, struct neb_buf *out)
{
    struct neb_history_query all = *q;
    bool first = true;
    if (all.points <= 0) all.points = 400;
    pthread_mutex_lock(&h->lock);
    neb_status status = neb__buf_printf(out, "{\"sites\":{");
    for (int i = 0; status == NEB_OK && i < h->n; i++) {
        if (*q->site && strcmp(q->site, h->site[i].name)) continue;
        if (!first) status = neb__buf_append(out, ",", 1);
        if (status == NEB_OK) status = put_past(&h->site[i], &all, out);
        first = false;
    }
    pthread_mutex_unlock(&h->lock);
    if (status == NEB_OK) status = neb__buf_printf(out, "}}");
    return status;
}

/* ---- events -------------------------------------------------------------------------------------------- */

const char *neb__event_mood(const char *kind, const char *text)
{
    static const struct {
        const char *kind, *mood;
    } list[] = {{"link down", "bad"}, {"halt", "bad"},     {"dropped", "bad"},  {"wait", "slow"},
                {"restart", "good"},  {"link up", "good"}, {"start", "good"},   {"goes on", "good"},
                {"refused", "slow"},  {"shorter", "slow"}, {"late", "slow"},    {"goodbye", "plain"},
                {"answers", "good"},  {"named", "bad"},    {"evicted", "bad"},  {"forced", "bad"},
                {"scaled", "slow"},   {"missed", "slow"},  {"admitted", "good"}};
    if (!strcmp(kind, "dropped") && strstr(text, "last work"))
        return "slow"; /* the end of a run is bounded: normal */
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (!strcmp(kind, list[i].kind)) return list[i].mood;
    return "plain";
}

char *neb__history_note(struct neb_history *h, const char *key)
{
    enum { ROOM = 64 << 10 };
    char *text = neb__malloc(ROOM);
    bool found = false;
    pthread_mutex_lock(&h->lock);
    for (int i = 0; text && !found && i < h->n; i++)
        found = h->site[i].db && neb__metrics_get_note(h->site[i].db, key, text, ROOM) == NEB_OK;
    pthread_mutex_unlock(&h->lock);
    if (found) return text;
    neb__free(text);
    return NULL;
}

int64_t neb__history_events(struct neb_history *h)
{
    pthread_mutex_lock(&h->lock);
    int64_t n = h->n_events;
    pthread_mutex_unlock(&h->lock);
    return n;
}

static neb_status put_event(const struct event *e, struct neb_buf *out)
{
    NEB_TRY(neb__buf_printf(out, "{\"n\":%lld,\"site\":", (long long)e->n));
    NEB_TRY(put_text(out, e->site));
    NEB_TRY(neb__buf_printf(out, ",\"time\":%.2f,\"step\":%lld,\"kind\":", e->t, (long long)e->step));
    NEB_TRY(put_text(out, e->kind));
    NEB_TRY(neb__buf_printf(out, ",\"mood\":\"%s\",\"text\":", neb__event_mood(e->kind, e->text)));
    NEB_TRY(put_text(out, e->text));
    return neb__buf_append(out, "}", 1);
}

neb_status neb__history_events_json(struct neb_history *h, int64_t after, struct neb_buf *out)
{
    pthread_mutex_lock(&h->lock);
    int64_t oldest = h->n_events > NEB_HISTORY_EVENTS ? h->n_events - NEB_HISTORY_EVENTS : 0;
    neb_status status = neb__buf_printf(out, "{\"next\":%lld,\"events\":[", (long long)h->n_events);
    int64_t first = after > oldest ? after : oldest;
    for (int64_t i = first; status == NEB_OK && i < h->n_events; i++) {
        if (i > first) status = neb__buf_append(out, ",", 1);
        if (status == NEB_OK) status = put_event(&h->events[i % NEB_HISTORY_EVENTS], out);
    }
    pthread_mutex_unlock(&h->lock);
    if (status == NEB_OK) status = neb__buf_printf(out, "]}");
    return status;
}
