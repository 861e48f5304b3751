/* line_turns.c: how long a step of a pipeline between sites takes.
 *
 * The turns are followed one by one. A site makes what it has the input for, a backward first, with at most `depth` micro-batches in flight
 * (optim/site_stage.c). A message waits for the one before it on its line, and then for the way. The first site of a ring makes its turns in the
 * order that follows from its depth. A step is over for a site when its last turn and what is behind it are; the next one begins
 * there when the first site has sent again. */
#include "base/mem.h"
#include "plan/line.h"

#include <math.h>

struct step {
    const struct neb_line_visit *visit;
    const struct neb_line_turns *site;
    int sites, visits, m;
    bool ring;
    double way;
    double *came[2]; /* (visits, m) when the input of a forward, of a backward is there; infinite: not yet */
    double *line[2]; /* (visits) when the line behind a visit, the one before it, is free */
    int *next[2];    /* (visits) the next micro-batch, forwards and backwards */
    double *free;    /* (sites, most copies) */
    double *began, *end;  /* (sites) */
    int copies;           /* most of a site */
    int gone, seen, back; /* of the first site of a ring */
};

static double *came(const struct step *t, bool back, int v, int micro)
{
    return &t->came[back][(size_t)v * (size_t)t->m + (size_t)micro];
}

static bool ends_here(const struct step *t, int v)
{
    return v == t->visits - 1;
}

/* A backward is due at this visit: the next one returns gradients, or the loss is here. */
static bool has_backward(const struct step *t, int v)
{
    return ends_here(t, v) || t->visit[v + 1].returns;
}

static double *first_free(const struct step *t, int s)
{
    double *best = &t->free[s * t->copies];
    for (int c = 1; c < t->site[s].copies; c++)
        if (t->free[s * t->copies + c] < *best) best = &t->free[s * t->copies + c];
    return best;
}

static void send(struct step *t, bool back, int v, int micro, double at, double takes)
{
    double *line = &t->line[back][v];
    const int to = back ? v - 1 : v + 1;
    *line = fmax(*line, at) + takes;
    *came(t, back, to, micro) = *line + t->way;
}

/* The first site of a ring: which visit is next, and whether it is a backward of the first one. */
static bool in_order(const struct step *t, bool back, int v)
{
    const int depth = t->site[0].depth, lag = (depth + 1) / 2;
    if (t->gone < t->m && t->gone - t->back < depth) return !back && v == 0;
    if (t->seen < t->m && t->seen - t->back < lag) return v == t->visits - 1;
    return back && v == 0;
}

static bool may(const struct step *t, bool back, int v)
{
    const int s = v % t->sites;
    if (t->next[back][v] == t->m || (back && ends_here(t, v)) || (back && !has_backward(t, v))) return false;
    if (t->ring && !s) return in_order(t, back, v) || (back && t->back < t->seen && t->gone == t->m);
    if (back || ends_here(t, v)) return true;
    return !has_backward(t, v) || t->next[0][v] - t->next[1][v] < t->site[s].depth;
}

static void make(struct step *t, bool back, int v, double at)
{
    const struct neb_line_visit *x = &t->visit[v];
    const int s = v % t->sites, micro = t->next[back][v]++;
    const bool both = !back && ends_here(t, v);
    double *server = first_free(t, s);
    const double over = at + (both ? x->forward + x->backward : back ? x->backward : x->forward);
    *server = over;
    t->began[s] = fmin(t->began[s], at);
    t->end[s] = fmax(t->end[s], over);
    if (t->ring && !s) *(both ? &t->seen : back ? &t->back : &t->gone) += 1;
    if (t->ring && !s && !back && !both && !has_backward(t, v)) t->back++;
    if (!back && !both) send(t, false, v, micro, over, x->ahead);
    if ((back || both) && v && x->returns) send(t, true, v, micro, over, x->back);
}

/* The turn that can begin first; of several at that time a backward, then the one that is furthest. */
static bool next_turn(struct step *t)
{
    int best = -1;
    bool best_back = false;
    double first = HUGE_VAL;
    for (int pass = 0; pass < 2; pass++)
        for (int v = t->visits - 1; v >= 0; v--) {
            const bool back = !pass;
            if (!may(t, back, v)) continue;
            const double at = fmax(*first_free(t, v % t->sites), *came(t, back, v, t->next[back][v]));
            if (at < first) first = at, best = v, best_back = back;
        }
    if (best >= 0 && isfinite(first)) make(t, best_back, best, first);
    return best >= 0 && isfinite(first);
}

static neb_status begin(struct step *t)
{
    const size_t v = (size_t)t->visits, m = (size_t)t->m, n = (size_t)t->sites;
    for (int s = 0; s < t->sites; s++)
        t->copies = t->site[s].copies > t->copies ? t->site[s].copies : t->copies;
    const size_t all = 2 * v * m + 2 * v + n * (size_t)t->copies + 2 * n;
    double *p = NEB_NEW_ARRAY(double, all);
    t->next[0] = NEB_NEW_ARRAY(int, 2 * v);
    t->came[0] = p;
    if (!p || !t->next[0])
        return neb__fail(NEB_ERR_NOMEM, "out of memory for the turns of %d sites", t->sites);
    t->came[1] = p + v * m;
    t->line[0] = t->came[1] + v * m;
    t->line[1] = t->line[0] + v;
    t->free = t->line[1] + v;
    t->began = t->free + n * (size_t)t->copies;
    t->end = t->began + n;
    t->next[1] = t->next[0] + v;
    for (size_t i = 0; i < 2 * v * m; i++) p[i] = i < m ? 0 : HUGE_VAL; /* the text is there */
    for (size_t s = 0; s < n; s++) t->began[s] = HUGE_VAL;
    return NEB_OK;
}

neb_status neb__planner_line_turns(const struct neb_line_visit *visit, const struct neb_line_turns *site,
                                   int sites, bool ring, int m, double way, double *seconds)
{
    struct step t = {.visit = visit,
                     .site = site,
                     .sites = sites,
                     .visits = sites + ring,
                     .m = m,
                     .ring = ring,
                     .way = way,
                     .copies = 1};
    neb_status status = begin(&t);
    while (status == NEB_OK && next_turn(&t)) continue;
    double step = 0;
    for (int s = 0; status == NEB_OK && s < sites; s++)
        step = fmax(step, t.end[s] + site[s].end - (isfinite(t.began[s]) ? t.began[s] : 0));
    neb__free(t.came[0]);
    neb__free(t.next[0]);
    if (status == NEB_OK) *seconds = step;
    return status;
}
