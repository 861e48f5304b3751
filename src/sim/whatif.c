/* whatif.c: an estimate of how long rounds take with given lines, for up to 10,000 sites.
 *
 * A fluid model: nothing is sent, only amounts flow. Every site trains without pause and captures every H
 * steps unless its last update is still open. Its update then flows out over its whole-site line: N - 1
 * copies with direct exchange, 2 (N - 1) / N with owners. A receiver's line likewise limits what comes in:
 * when the senders together offer more than it can take, all of them are slowed down towards it in the same
 * proportion. Fragments follow each other, so the work of a site's thread for a round runs beside the
 * sending; it only limits how fast updates can follow. Sites with equal lines are equal, so receivers are
 * kept as two kinds (ordinary and slow). Time advances in steps of a 400th of the nominal round. So 10,000
 * sites take seconds. An update counts as complete when a quorum of the voters has it; a record is closed as
 * the protocol closes it, and committed one and a half round trips later. */
#include "sim/sim.h"
#include "base/mem.h"
#include "base/rng.h"

#include <math.h>

enum { KINDS = 2 };

struct site {
    double step, up;    /* seconds, bits/s */
    double next;        /* when the next capture is due */
    double left[KINDS]; /* bits of the open update still to reach one receiver of each kind */
    double done;        /* when a quorum had it; < 0: not yet */
    double out;         /* bits sent since the beginning */
    int64_t base;       /* version it was taken against; < 0: none open */
    int kind;
};

struct model {
    const struct neb_sim_whatif *o;
    struct site *site;
    double now, dt, update, copies, down[KINDS], in, quorum_kind;
    double first, commit_at, lag_sum;
    int64_t version, named, late, discarded;
    bool committing;
};

static neb_status check(const struct neb_sim_whatif *o)
{
    if (o->sites < 2 || o->sites > 10000) return neb__fail(NEB_ERR_INVALID, "--sites must be 2 to 10000");
    if (o->rounds < 1 || o->steps < 1)
        return neb__fail(NEB_ERR_INVALID, "--rounds and --steps must be at least 1");
    if (!(o->params > 0) || !(o->bits > 0))
        return neb__fail(NEB_ERR_INVALID, "--params and --bits must be positive");
    if (!(o->up > 0) || !(o->down > 0) || !(o->step > 0) || !(o->rtt >= 0))
        return neb__fail(NEB_ERR_INVALID, "--up, --down and --step must be positive, --rtt not negative");
    if (!(o->work >= 0)) return neb__fail(NEB_ERR_INVALID, "--work must not be negative");
    if (!(o->slow >= 1) || !(o->slow_share >= 0 && o->slow_share <= 1))
        return neb__fail(NEB_ERR_INVALID, "--slow must be at least 1, --slow-share between 0 and 1");
    return NEB_OK;
}

static void capture(struct model *m, struct site *s)
{
    if (s->base >= 0 || m->now < s->next) return;
    s->base = m->version;
    s->done = -1;
    for (int k = 0; k < KINDS; k++) s->left[k] = m->update;
    s->next = m->now + (double)m->o->steps * s->step;
}

/* Bits a second of one copy of an update, by the site's line and by its thread. */
static double outward(const struct model *m, const struct site *s)
{
    double line = s->up / m->copies;
    return m->o->work > 0 ? fmin(line, m->update / m->o->work) : line;
}

/* Moves all open updates for one time step. Each kind of receiver slows its senders down in common: the
 * offered traffic against the capacity of its line. */
static void flow(struct model *m)
{
    double sites = (double)m->o->sites, offered = 0, share[KINDS];
    for (int64_t i = 0; i < m->o->sites; i++) {
        struct site *s = &m->site[i];
        if (s->base >= 0 && (s->left[0] > 0 || s->left[1] > 0)) offered += outward(m, s);
    }
    /* The traffic of all sites together arrives at them in equal parts. */
    for (int k = 0; k < KINDS; k++) {
        double comes = offered * m->copies / sites;
        share[k] = comes > m->down[k] ? m->down[k] / comes : 1;
    }
    for (int64_t i = 0; i < m->o->sites; i++) {
        struct site *s = &m->site[i];
        if (s->base < 0) continue;
        double rate = outward(m, s), sent = 0;
        for (int k = 0; k < KINDS; k++) {
            double part = fmin(s->left[k], rate * share[k] * m->dt);
            s->left[k] -= part;
            sent += part * (k ? m->o->slow_share : 1 - m->o->slow_share);
        }
        s->out += sent * m->copies;
        m->in += sent * m->copies / sites;
        if (s->done < 0 && s->left[(int)m->quorum_kind] <= 0) s->done = m->now + m->o->rtt / 2;
    }
}

static void close_round(struct model *m)
{
    int64_t open = 0, ready = 0;
    for (int64_t i = 0; i < m->o->sites; i++) {
        struct site *s = &m->site[i];
        if (s->base >= 0 && s->base + 1 < m->version)
            s->base = -1, m->discarded++; /* its work goes into the next update */
        open += s->base < 0 || s->done < 0 || s->done > m->now;
        ready += s->base >= 0 && s->done >= 0 && s->done <= m->now;
    }
    if (!ready) return;
    if (m->first < 0) m->first = m->now;
    double nominal = (double)m->o->steps * m->o->step;
    double deadline = m->o->deadline > 0 ? m->o->deadline : 1.5 * nominal;
    bool late = m->now >= m->first + deadline && ready > m->o->sites / 2;
    if (open && !late) return;
    m->committing = true;
    m->commit_at = m->now + 1.5 * m->o->rtt;
    m->first = -1;
}

static void commit(struct model *m)
{
    double rest = 0;
    for (int64_t i = 0; i < m->o->sites; i++) {
        struct site *s = &m->site[i];
        if (s->base < 0 || s->done < 0 || s->done > m->now) continue;
        m->named++;
        m->late += s->base < m->version;
        rest = fmax(rest, s->left[0] * m->copies / s->up);
        s->base = -1;
    }
    m->lag_sum += rest + m->o->rtt / 2;
    m->version++;
    m->committing = false;
}

static void prepare(struct model *m, const struct neb_sim_whatif *o)
{
    struct neb_rng g = {neb__mix64(o->seed)};
    double n = (double)o->sites;
    m->o = o;
    m->update = o->params * o->bits;
    m->copies = o->owners ? 2 * (n - 1) / n : n - 1;
    m->down[0] = o->down;
    m->down[1] = o->down / o->slow;
    /* Slow sites come last in a quorum of the voters, so a quorum is complete
     * without them while they are few. */
    m->quorum_kind = o->slow_share > 0.5;
    m->first = -1;
    int64_t slow = (int64_t)llround(o->slow_share * n);
    for (int64_t i = 0; i < o->sites; i++) {
        struct site *s = &m->site[i];
        s->kind = i < slow;
        double by = s->kind ? o->slow : 1;
        s->step = o->step * by * (0.95 + 0.1 * neb__rng_uniform(&g));
        s->up = o->up / by;
        s->base = -1;
        s->next = (double)o->steps * s->step;
    }
}

neb_status neb__sim_whatif(const struct neb_sim_whatif *o, struct neb_sim_forecast *out)
{
    NEB_TRY(check(o));
    struct model m = {0};
    m.site = NEB_NEW_ARRAY(struct site, (size_t)o->sites);
    if (!m.site) return neb__fail(NEB_ERR_NOMEM, "out of memory for %lld sites", (long long)o->sites);
    prepare(&m, o);
    double nominal = (double)o->steps * o->step;
    double limit = m.update * m.copies / fmin(o->up, o->down);
    m.dt = fmax(nominal, fmax(limit, o->work)) / 400;
    double stop =
        (nominal + fmax(limit, o->work) * o->slow + 10 * o->rtt + m.dt) * 4 * (double)(o->rounds + 2);
    while (m.version < o->rounds && m.now < stop) {
        for (int64_t i = 0; i < o->sites; i++) capture(&m, &m.site[i]);
        flow(&m);
        m.now += m.dt;
        if (!m.committing) close_round(&m);
        if (m.committing && m.now >= m.commit_at) commit(&m);
    }
    double rounds = (double)(m.version ? m.version : 1);
    const struct site *median = &m.site[o->sites - 1];
    *out = (struct neb_sim_forecast){
        .seconds = m.now,
        .round_s = m.now / rounds,
        .limit_s = limit,
        .up_use = median->out / (m.now * median->up),
        .down_use = m.in / (m.now * o->down),
        .bytes_out = median->out / 8 / rounds,
        .bytes_in = m.in / 8 / rounds,
        .updates = (double)m.named / rounds,
        .late = m.named ? (double)m.late / (double)m.named : 0,
        .discarded = m.named + m.discarded ? (double)m.discarded / (double)(m.named + m.discarded) : 0,
        .lag = m.lag_sum / rounds,
    };
    neb__free(m.site);
    return NEB_OK;
}
