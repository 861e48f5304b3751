/* tempo.c: the tempo of a site, and how far the run is.
 *
 * A record says how many steps each of its updates holds. Nobody waits for a round, so these numbers are the speeds of the
 * sites. A site with a tenth of the steps of the fastest one sends its update after a tenth of the interval, so that all
 * updates of a round come at one time. If every site sent after the same number of steps instead, the slowest would set the time
 * of all rounds, and the others would drift apart meanwhile. (nebula-i bench unequal-sites compares the two.)
 *
 * The learning rate follows the furthest site for the same reason. By its own steps a slow site would be in the middle of the
 * schedule when the run ends, and its last updates would be as loud as the first ones.
 *
 * Steps are claims. One site counts at most sixteen times the middle one, the lower of two. A site counts itself among them before
 * it is in the log, or the first claim of a run would have no bound. Where updates are combined coordinate by coordinate
 * (round/influence.h) every site goes by its own steps. */
#include "run/tempo.h"
#include "base/clamp.h"
#include "run/session.h"
#include "base/log.h"

#include <math.h>

enum { ROUNDS = 3, STEPS_TIMES = 16 };
static const double least_tempo = 1.0 / 256, news = 1.25;

void neb__tempo_count(struct neb_tempo *t, const struct neb_record *rec, uint32_t cells, uint32_t fragments)
{
    const double keep = 1 - 1 / (double)(ROUNDS * fragments);
    const double part = (double)(rec->c1 - rec->c0) / (double)cells;
    for (int i = 0; i < NEB_SITES_MAX; i++) t->recent[i] *= keep;
    for (uint32_t i = 0; i < rec->updates; i++) {
        const struct neb_named *p = &rec->update[i];
        if (p->site >= NEB_SITES_MAX || p->reject) continue;
        t->recent[p->site] += part * (double)p->tau;
        t->all[p->site] += part * (double)p->tau;
    }
}

enum { NOBODY = -1 };

/* The most of all, at most sixteen times the middle one of those that have any, and of site `self`, which has `own` or more. 0:
 * nobody has. */
static double most_of(const double *steps, int self, double own)
{
    double v[NEB_SITES_MAX];
    int n = 0;
    for (int i = 0; i < NEB_SITES_MAX; i++) {
        const double x = i == self ? fmax(own, steps[i]) : steps[i];
        if (!(x > 0) && i != self) continue;
        int j = n++;
        for (; j && v[j - 1] > x; j--) v[j] = v[j - 1];
        v[j] = x;
    }
    return n ? fmin(v[n - 1], STEPS_TIMES * v[(n - 1) / 2]) : 0;
}

double neb__tempo_of(const struct neb_tempo *t, uint16_t site)
{
    const double most = most_of(t->recent, NOBODY, 0), own = t->recent[site];
    return most > 0 && own > 0 ? neb__clamp(own / most, least_tempo, 1) : 1;
}

double neb__tempo_furthest(const struct neb_tempo *t, uint16_t self, double own)
{
    return most_of(t->all, self, own);
}

/* ---- of a session -------------------------------------------------------------------------------------- */

/* Runs of fixed pace repeat exactly, robust ones believe nobody, and where updates cost privacy, their number was planned. */
static bool counts(const neb_session *s)
{
    return s->config.merge_after < 0 && !neb__session_robust(s) && !neb__session_private(s);
}

static void say(neb_session *s, double tempo)
{
    struct neb_tempo *t = &s->tempo;
    if (t->said > 0 ? tempo < t->said * news && t->said < tempo * news : tempo > 0.8) return;
    t->said = tempo;
    neb__info("this site makes %.2g of the steps of the fastest one, and sends its updates after as much of "
              "an interval",
              tempo);
}

void neb__session_tempo_follow(neb_session *s, uint64_t record)
{
    struct neb_tempo *t = &s->tempo;
    for (; t->seen < record; t->seen++) {
        const struct neb_record *rec = neb__round_record(s->core, t->seen + 1);
        if (rec && rec->type == NEB_RECORD_ROUND)
            neb__tempo_count(t, rec, s->mirror.outer->cells, s->fragments);
    }
    pthread_mutex_lock(&s->lock);
    s->run_steps = (int64_t)neb__tempo_furthest(t, s->self, (double)s->status.steps);
    pthread_mutex_unlock(&s->lock);
}

double neb__session_tempo(neb_session *s)
{
    const struct neb_tempo *t = &s->tempo;
    if (!counts(s) || s->secure) return 1; /* a sum's rounds are opened for all */
    const double tempo = t->guess > 0 && !(t->recent[s->self] > 0) ? t->guess : neb__tempo_of(t, s->self);
    say(s, tempo);
    return tempo;
}

/* The first round would otherwise wait until the slowest site has made all steps of an interval. */
void neb__session_tempo_hear(neb_session *s, const struct neb_update_header *h)
{
    struct neb_tempo *t = &s->tempo;
    if (!counts(s) || s->secure || t->recent[s->self] > 0 || h->site == s->self || !h->tau) return;
    pthread_mutex_lock(&s->lock);
    const double own = fmax(1, (double)s->status.steps), guess = own / (double)h->tau;
    pthread_mutex_unlock(&s->lock);
    if (guess > 0.8 || (t->guess > 0 && guess > t->guess)) return;
    t->guess = fmax(guess, 1.0 / STEPS_TIMES); /* one claim, and no record yet */
    neb__round_set_interval(s->core, (uint32_t)fmin(own, (double)s->config.interval));
}

int64_t neb__session_run_steps(neb_session *s)
{
    pthread_mutex_lock(&s->lock);
    int64_t steps = counts(s) ? s->run_steps : 0;
    pthread_mutex_unlock(&s->lock);
    return steps;
}
