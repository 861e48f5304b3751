/* statement.c: a site's word about its privacy, and the sum of all of them.
 *
 *     'N' 'P' | version 1 | unit u8 | 0 u32 | noise f64 | rate f64 | clip f64 | epsilon f64 | delta f64 | limit f64 | count u64
 *
 * Little-endian. A statement charges the releases since the one before it at its own noise and rate, just as the site's
 * ledger does, so anybody who has all updates of a site computes the site's account to the last digit. Only where the noise
 * changes the sum is a lower bound. */
#include "privacy/statement.h"
#include "base/bytes.h"

#include <math.h>

enum { VERSION = 1 };

const char *neb__privacy_unit_name(enum neb_privacy_unit unit)
{
    static const char *const names[] = {"none", "site", "sample"};
    return unit <= NEB_PRIVACY_SAMPLE ? names[unit] : "?";
}

static void put_real(uint8_t *p, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    neb__put64(p, bits);
}

static double get_real(const uint8_t *p)
{
    uint64_t bits = neb__get64(p);
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

void neb__privacy_statement_put(const struct neb_privacy_statement *s,
                                uint8_t out[NEB_PRIVACY_STATEMENT_SIZE])
{
    const double reals[] = {s->step.noise, s->step.rate, s->clip, s->epsilon, s->delta, s->limit};
    memset(out, 0, NEB_PRIVACY_STATEMENT_SIZE);
    out[0] = 'N';
    out[1] = 'P';
    out[2] = VERSION;
    out[3] = (uint8_t)s->unit;
    for (int i = 0; i < 6; i++) put_real(out + 8 + 8 * i, reals[i]);
    neb__put64(out + 56, s->count);
}

neb_status neb__privacy_statement_get(const uint8_t *in, size_t n, struct neb_privacy_statement *out)
{
    if (n < NEB_PRIVACY_STATEMENT_SIZE || in[0] != 'N' || in[1] != 'P' || in[2] != VERSION ||
        neb__get32(in + 4))
        return neb__quiet(NEB_ERR_CORRUPT, "not a statement of privacy");
    struct neb_privacy_statement s = {.unit = in[3],
                                      .step = {get_real(in + 8), get_real(in + 16)},
                                      .clip = get_real(in + 24),
                                      .epsilon = get_real(in + 32),
                                      .delta = get_real(in + 40),
                                      .limit = get_real(in + 48),
                                      .count = neb__get64(in + 56)};
    bool known = s.unit == NEB_PRIVACY_SITE || s.unit == NEB_PRIVACY_SAMPLE;
    bool step = s.step.noise >= 0.01 && s.step.noise <= 1e9 && s.step.rate > 0 && s.step.rate <= 1;
    bool rest = s.clip > 0 && isfinite(s.clip) && s.epsilon >= 0 && isfinite(s.epsilon) && s.delta > 0 &&
                s.delta < 1 && s.limit >= 0 && isfinite(s.limit) && s.count < (uint64_t)1 << 50;
    if (!known || !step || !rest)
        return neb__quiet(NEB_ERR_CORRUPT, "the numbers of a statement of privacy contradict each other");
    *out = s;
    return NEB_OK;
}

/* Releases between two statements of different noise: nobody knows where it changed. They count as the cheaper kind, so that
 * an honest site is never said to state too little. */
static neb_status one_of(struct neb_privacy_sum *sum, const struct neb_privacy_step *step,
                         struct neb_rdp *out)
{
    const struct neb_rdp before = sum->one;
    const bool first = !(sum->last.noise > 0);
    if (step->noise != sum->last.noise || step->rate != sum->last.rate) {
        NEB_TRY(neb__rdp_of(step, &sum->one));
        sum->last = *step;
    }
    for (int i = 0; i < NEB_RDP_ORDERS; i++)
        out->at[i] = first ? sum->one.at[i] : fmin(before.at[i], sum->one.at[i]);
    return NEB_OK;
}

/* With unit site an update is a release, so a count that stands still is too low. */
neb_status neb__privacy_sum_add(struct neb_privacy_sum *sum, const struct neb_privacy_statement *s)
{
    const uint64_t least = sum->count + (s->unit == NEB_PRIVACY_SITE);
    const uint64_t count = s->count < least ? least : s->count;
    struct neb_rdp one;
    NEB_TRY(one_of(sum, &s->step, &one));
    sum->updates++;
    sum->fell |= s->count < least;
    neb__rdp_add(&sum->spent, &one, (double)(count - sum->count));
    sum->count = count;
    sum->delta = s->delta;
    sum->epsilon = neb__rdp_epsilon(&sum->spent, s->delta);
    sum->limit = s->limit;
    sum->said = fmax(sum->said, s->epsilon);
    if (s->epsilon < sum->epsilon * (1 - 1e-9)) sum->understated = true;
    if (s->limit > 0 && s->epsilon > s->limit * (1 + 1e-9)) sum->beyond = true;
    return NEB_OK;
}
