/* alerts.c: see alerts.h.
 *
 * Every check names what is wrong now. An alert begins when the same thing has been wrong for its time of
 * grace, so a line that blinks wakes nobody. It ends when a check does not name it any more. */
#include "watch/alerts.h"
#include "base/printable.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const double grace_gone = 3, grace_late = 30, grace_loss = 60, rise = 1.2;

static struct neb_alert *find(struct neb_alerts *a, const char *kind, const char *site)
{
    for (int i = 0; i < a->n; i++)
        if (!strcmp(a->list[i].kind, kind) && !strcmp(a->list[i].site, site)) return &a->list[i];
    if (a->n == NEB_ALERTS) return NULL;
    struct neb_alert *x = &a->list[a->n++];
    *x = (struct neb_alert){0};
    snprintf(x->kind, sizeof x->kind, "%s", kind);
    snprintf(x->site, sizeof x->site, "%s", site);
    return x;
}

static void wrong(struct neb_alerts *a, double now, const char *kind, const char *site, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
static void wrong(struct neb_alerts *a, double now, const char *kind, const char *site, const char *fmt, ...)
{
    struct neb_alert *x = find(a, kind, site);
    va_list ap;
    if (!x) return;
    if (!(x->since > 0)) x->since = now;
    x->seen = true;
    va_start(ap, fmt);
    vsnprintf(x->text, sizeof x->text, fmt, ap);
    va_end(ap);
    neb__text_clean(x->text); /* it may be cut within a character, and JSON is UTF-8 */
}

static double grace_of(const char *kind)
{
    if (!strcmp(kind, "site-gone")) return grace_gone;
    if (!strcmp(kind, "site-late")) return grace_late;
    return !strcmp(kind, "loss-rising") ? grace_loss : 0;
}

/* A place belongs to a site as long as the view has it. */
static double *best_of(struct neb_alerts *a, const struct neb_view *v, const char *name)
{
    int free_at = -1;
    for (int i = 0; i < NEB_STATUS_SITES; i++) {
        if (!strcmp(a->best_of[i], name)) return &a->best[i];
        if (free_at < 0 && (!*a->best_of[i] || neb__view_find(v, a->best_of[i]) < 0)) free_at = i;
    }
    if (free_at < 0) return NULL;
    snprintf(a->best_of[free_at], sizeof a->best_of[free_at], "%s", name);
    a->best[free_at] = 0;
    return &a->best[free_at];
}

/* It is told when a tenth is left, so that there is time to decide. */
static void check_privacy(struct neb_alerts *a, const struct neb_view *v, const struct neb_site_status *s)
{
    bool over = s->epsilon_limit > 0 && s->epsilon_spent >= s->epsilon_limit;
    if (s->epsilon_limit > 0 && s->epsilon_spent >= 0.9 * s->epsilon_limit)
        wrong(a, v->now, "privacy", s->name, "site %s has spent epsilon %.3g of its privacy budget %.3g%s",
              s->name, s->epsilon_spent, s->epsilon_limit, over ? ": nothing is left" : "");
}

static void check_site(struct neb_alerts *a, const struct neb_view *v, const struct neb_view_site *s)
{
    const char *name = s->st.name;
    double *best = best_of(a, v, name);
    if (s->health == NEB_HEALTH_GONE) wrong(a, v->now, "site-gone", name, "site %s is gone", name);
    if (s->health == NEB_HEALTH_HALTED)
        wrong(a, v->now, "site-halted", name, "site %s has halted: %.150s", name, s->st.note);
    if (s->health == NEB_HEALTH_LATE) wrong(a, v->now, "site-late", name, "site %s: %s", name, s->shown);
    if (s->st.nonfinite > 0)
        wrong(a, v->now, "loss-not-finite", name, "site %s: the loss of %lld steps in a row was not finite",
              name, (long long)s->st.nonfinite);
    if (best && s->st.loss > 0 && (!(*best > 0) || s->st.loss < *best)) *best = s->st.loss;
    if (best && *best > 0 && s->st.loss > rise * *best && s->health != NEB_HEALTH_DONE)
        wrong(a, v->now, "loss-rising", name, "site %s: the loss rose to %.4f from %.4f", name, s->st.loss,
              *best);
    if (s->root_differs)
        wrong(a, v->now, "root-differs", name,
              "site %s says another state root than a site here after record %lld", name,
              (long long)s->st.root_record);
    check_privacy(a, v, &s->st);
    bool low = s->st.disk_free > 0 && s->st.disk_free < a->rules.disk;
    if (s->st.disk_full || (low && s->health != NEB_HEALTH_DONE))
        wrong(a, v->now, "disk", name, "site %s: %.1f GB of room are left%s", name, s->st.disk_free / 1e9,
              s->st.disk_full ? "; commits wait for it" : "");
}

/* Without rounds there are no commits to wait for. */
static void check_commits(struct neb_alerts *a, const struct neb_view *v)
{
    if (v->record != a->record || !(a->committed > 0)) a->record = v->record, a->committed = v->now;
    double since = v->now - a->committed;
    if (a->rules.stalled > 0 && since > a->rules.stalled && !v->ended && !strcmp(v->strategy, "replica"))
        wrong(a, v->now, "no-commit", "", "no record was committed for %.0f minutes", since / 60);
}

void neb__alerts_check(struct neb_alerts *a, const struct neb_view *v,
                       void (*tell)(void *arg, const struct neb_alert *alert, bool begins), void *arg)
{
    int kept = 0;
    for (int i = 0; i < a->n; i++) a->list[i].seen = false;
    for (int i = 0; i < v->n; i++) check_site(a, v, &v->site[i]);
    check_commits(a, v);
    if (!v->roots_agree)
        wrong(a, v->now, "roots-differ", "",
              "two sites that write here have different states after one record");
    for (int i = 0; i < a->n; i++) {
        struct neb_alert *x = &a->list[i];
        if (x->seen && !x->told && v->now - x->since >= grace_of(x->kind)) {
            x->told = true;
            tell(arg, x, true);
        }
        if (!x->seen && x->told) tell(arg, x, false);
        if (x->seen) a->list[kept++] = *x;
    }
    a->n = kept;
}
