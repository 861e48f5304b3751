/* privacy.c: a session's noise and its privacy account.
 *
 * Unit site. The delta of a whole sweep over the model is at most `clip` long: each of the F fragments is cut to
 * clip / sqrt(F). All values get noise of the same deviation, noise * clip. So the F updates of a sweep cost as much as one release of
 * the whole vector, and an update counts as a release with sqrt(F) times the noise. Clipping, rounding and noise come before the
 * code. The code, its scales and positions are functions of the noisy vector, and tell no more than it does.
 *
 * An update is charged before it is signed. The account's file may be older than the log, after a backup was restored.
 * So before an update is charged, own updates that committed records name and the file does not know are admitted: all of them,
 * and as many more as may have been on their way.
 *
 * The rest of a delta that was cut off is dropped: a later update would tell it. */
#include "run/privacy.h"
#include "base/log.h"
#include "base/mem.h"
#include "outer/site.h"
#include "run/session.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

_Static_assert(NEB_PRIVACY_STATEMENT_SIZE == 8 * NEB_UPDATE_BEFORE_MAX,
               "a statement fills the room before a code");

/* ---- opening ------------------------------------------------------------------------------------------- */

neb_status neb__session_set_privacy(neb_session *s, const struct neb_privacy_rule *rule)
{
    if (s->mirror.outer) return neb__fail(NEB_ERR_STATE, "a rule of privacy belongs before the start");
    if (rule->unit != NEB_PRIVACY_NONE && !s->fixed && !s->secure)
        return neb__fail(NEB_ERR_CONFIG,
                         "privacy needs a fixed wan.rung (int8, …): `auto` would follow this site's losses");
    if (rule->unit != NEB_PRIVACY_NONE && (s->config.clip > 0 || s->config.noise > 0))
        return neb__fail(NEB_ERR_CONFIG,
                         "wan.clip and wan.noise are not counted; leave them out beside privacy.unit");
    s->privacy.rule = *rule;
    return NEB_OK;
}

static double fragments(const neb_session *s)
{
    return s->fragments > 0 ? s->fragments : 1;
}

/* The job's noise is that of a sweep; wan.noise is a deviation. */
static neb_status make_noise(neb_session *s)
{
    struct neb_session_privacy *p = &s->privacy;
    double units = NEB_PRIVACY_UNITS;
    if (p->rule.unit == NEB_PRIVACY_SAMPLE) return NEB_OK;
    if (p->rule.unit == NEB_PRIVACY_SITE)
        units *= p->rule.step.noise; /* that of an update */
    else if (!(s->config.noise > 0))
        return NEB_OK;
    return neb__noise_create(units, &p->noise);
}

neb_status neb__session_privacy_open(neb_session *s, const char *folder)
{
    struct neb_session_privacy *p = &s->privacy;
    char path[PATH_MAX];
    if (p->rule.unit == NEB_PRIVACY_SITE) p->rule.step.noise *= sqrt(fragments(s));
    NEB_TRY(make_noise(s));
    if (snprintf(path, sizeof path, "%s/privacy", folder) >= (int)sizeof path)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", folder);
    if (p->rule.unit == NEB_PRIVACY_NONE) return neb__privacy_ledger_absent(path);
    return neb__privacy_ledger_open(path, &p->rule, &p->ledger);
}

void neb__session_privacy_close(neb_session *s)
{
    neb__privacy_ledger_close(s->privacy.ledger);
    neb__noise_free(s->privacy.noise);
    s->privacy.ledger = NULL;
    s->privacy.noise = NULL;
}

struct neb_privacy_ledger *neb__session_privacy_ledger(neb_session *s)
{
    return s->privacy.ledger;
}

void neb__session_privacy_state(neb_session *s, struct neb_privacy_statement *out)
{
    *out = (struct neb_privacy_statement){0};
    if (s->privacy.ledger) neb__privacy_state(s->privacy.ledger, out);
}

/* ---- noise --------------------------------------------------------------------------------------------- */

bool neb__session_private(const neb_session *s)
{
    return s->privacy.rule.unit == NEB_PRIVACY_SITE || s->config.clip > 0 || s->config.noise > 0;
}

static double largest(const float *z, size_t n)
{
    float most = 0;
    for (size_t i = 0; i < n; i++) most = fmaxf(most, fabsf(z[i]));
    return (double)most;
}

/* wan.clip and wan.noise: the unit is a 2^-20th of the deviation. */
static neb_status blur(neb_session *s, float *z, size_t n, int64_t *v)
{
    const double unit = s->config.noise / NEB_PRIVACY_UNITS;
    if (!(largest(z, n) < unit * 0x1p58))
        return neb__fail(NEB_ERR_RANGE, "wan.noise %g is too little for values of %g", s->config.noise,
                         largest(z, n));
    for (size_t i = 0; i < n; i++) v[i] = (int64_t)nearbyint((double)z[i] / unit);
    NEB_TRY(neb__noise_add(s->privacy.noise, v, n));
    neb__privacy_values(v, n, unit, z);
    return NEB_OK;
}

static neb_status protect(neb_session *s, float *z, size_t n, int64_t *v)
{
    const double clip = s->privacy.rule.clip / sqrt(fragments(s));
    memset(v, 0, n * sizeof *v);
    neb__privacy_clip(z, n, 1, clip, v);
    NEB_TRY(neb__noise_add(s->privacy.noise, v, n));
    neb__privacy_values(v, n, clip / NEB_PRIVACY_UNITS, z);
    return NEB_OK;
}

neb_status neb__session_privatize(neb_session *s, float *z, size_t n)
{
    if (s->privacy.rule.unit != NEB_PRIVACY_SITE) neb__site_clip(z, n, s->config.clip);
    if (!s->privacy.noise) return NEB_OK;
    int64_t *v = neb__malloc(n * sizeof *v);
    if (!v) return neb__fail(NEB_ERR_NOMEM, "out of memory for noise");
    neb_status status = s->privacy.rule.unit == NEB_PRIVACY_SITE ? protect(s, z, n, v) : blur(s, z, n, v);
    neb__free(v);
    return status;
}

/* ---- the account --------------------------------------------------------------------------------------- */

/* Own updates in the committed log that the account does not know. */
struct unknown {
    uint64_t updates, newest;
    struct {
        uint32_t c0;
        uint64_t steps;
    } of[NEB_CAPTURES]; /* by fragment */
    int fragments;
    bool bare; /* one of them left without noise: it is here, and has no statement */
};

static void add_unknown(struct unknown *u, uint32_t c0, const struct neb_named *own)
{
    int i = 0;
    while (i < u->fragments && u->of[i].c0 != c0) i++;
    if (i == NEB_CAPTURES) i--;
    if (i == u->fragments) u->fragments++;
    u->of[i].c0 = c0;
    u->of[i].steps += own->tau;
    u->updates++;
    if (own->k > u->newest) u->newest = own->k;
}

/* Sequence numbers grow with the log in each fragment, and not in the whole log: every record is looked at once. */
static void find_unknown(neb_session *s, uint64_t commit, struct unknown *out)
{
    const uint64_t known = neb__privacy_charged_k(s->privacy.ledger);
    if (s->privacy.looked > commit) s->privacy.looked = 0;
    for (uint64_t i = s->privacy.looked + 1; i <= commit; i++) {
        const struct neb_record *rec = neb__round_record(s->core, i);
        const struct neb_named *own =
            rec && rec->type == NEB_RECORD_ROUND ? neb__record_of(rec, s->self) : NULL;
        struct neb_update_header h;
        if (!own || own->k <= known) continue;
        add_unknown(out, rec->c0, own);
        out->bare = out->bare || (neb__updates_header(&s->updates, &own->hash, &h) && !h.before);
    }
}

/* Steps: every step is in one update of each fragment. Besides, a site may have gone on up to its drift limit. */
static neb_status admit_unknown(neb_session *s, uint64_t commit)
{
    struct unknown u = {0};
    uint64_t lost, steps = 0;
    find_unknown(s, commit, &u);
    if (!u.updates) {
        s->privacy.looked = commit;
        return NEB_OK;
    }
    if (u.bare)
        return neb__quiet(NEB_ERR_LIMIT,
                          "this site has sent updates of this run without privacy, and no noise that comes "
                          "later hides what they told: nothing more leaves it. Begin a new run");
    for (int i = 0; i < u.fragments; i++)
        if (u.of[i].steps > steps) steps = u.of[i].steps;
    uint64_t drift = s->config.drift_steps > 0 ? (uint64_t)s->config.drift_steps
                                               : (uint64_t)fmax(2000, 8 * (double)s->config.interval);
    if (s->privacy.rule.unit == NEB_PRIVACY_SITE)
        lost = u.updates + (uint64_t)fragments(s);
    else
        lost = steps + drift;
    neb__warn("the log has %" PRIu64
              " updates of this site that its privacy account does not know (a restored "
              "backup?): %" PRIu64 " %s are charged for them and for what may have been on its way",
              u.updates, lost, s->privacy.rule.unit == NEB_PRIVACY_SITE ? "updates" : "steps");
    NEB_TRY(neb__privacy_admit(s->privacy.ledger, lost, u.newest));
    s->privacy.looked = commit;
    return NEB_OK;
}

uint8_t neb__session_privacy_before(const neb_session *s)
{
    return s->privacy.ledger ? NEB_UPDATE_BEFORE_MAX : 0;
}

static neb_status spent(neb_session *s)
{
    if (!s->privacy.said) neb__warn("%s", neb_last_error());
    s->privacy.said = true;
    return NEB_ERR_LIMIT;
}

neb_status neb__session_privacy_release(neb_session *s, const struct neb_update_header *h, uint8_t *statement)
{
    struct neb_round_status st;
    struct neb_privacy_statement now;
    if (!s->privacy.ledger) return NEB_OK;
    neb__round_status(s->core, &st);
    if (!st.caught_up) return NEB_ERR_AGAIN;
    neb_status status = admit_unknown(s, st.commit);
    if (status == NEB_ERR_LIMIT) return spent(s);
    NEB_TRY(status);
    bool site = s->privacy.rule.unit == NEB_PRIVACY_SITE;
    status = neb__privacy_charge(s->privacy.ledger, site ? 1 : 0, h->k);
    if (status == NEB_ERR_LIMIT) return spent(s);
    NEB_TRY(status);
    neb__privacy_state(s->privacy.ledger, &now);
    /* Steps may have been admitted beyond the budget; no step was made then, but old work could still leave. */
    if (!site && now.limit > 0 && now.epsilon > now.limit) {
        neb__quiet(NEB_ERR_LIMIT,
                   "the privacy budget is spent: epsilon %.4g of %.4g; nothing more leaves this site",
                   now.epsilon, now.limit);
        return spent(s);
    }
    neb__privacy_statement_put(&now, statement);
    return NEB_OK;
}
