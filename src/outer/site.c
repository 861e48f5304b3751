/* site.c: the site's side of a round, on the host.
 *
 * Conservation: the sum of all inner updates equals (x - theta) + e + own committed payloads + logged drops. Capture
 * changes nothing; a merge of the own parcel takes the captured delta d out of x and replaces e by r, which together
 * is exactly what the payload said: d + e - r. Subtracting what was decoded instead of what was captured would leave
 * the coding error in the model twice. r is not kept while the parcel is open, but computed again from its bytes. */
#include "outer/site.h"
#include "base/mutant.h"

#include <math.h>
#include <string.h>

double neb__site_norm(const float *z, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)z[i] * z[i];
    return sqrt(sum);
}

double neb__site_clip(float *z, size_t n, double bound)
{
    double norm = neb__site_norm(z, n);
    if (bound <= 0 || norm <= bound) return norm;
    double scale = bound / norm;
    for (size_t i = 0; i < n; i++) z[i] = (float)(scale * z[i]);
    return norm;
}

void neb__site_noise(float *z, size_t n, double sigma, struct neb_rng *rng)
{
    const double unit = 1.0 / 9007199254740992.0; /* 2^-53 */
    for (size_t i = 0; i < n; i++) {              /* Box and Muller; the second deviate is not used */
        double a = (double)((neb__rng_next(rng) >> 11) + 1) * unit,
               b = (double)(neb__rng_next(rng) >> 11) * unit;
        z[i] += (float)(sigma * sqrt(-2 * log(a)) * cos(6.283185307179586 * b));
    }
}

static inline float wide(uint16_t e)
{
    uint32_t bits = (uint32_t)e << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Ties to even; residuals are finite, and below 2^126 nothing rounds up to infinity. */
static inline uint16_t narrow(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

bool neb__site_delta(float *restrict d, const float *restrict theta, const uint16_t *restrict e, size_t n)
{
    uint32_t any = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        d[i] = d[i] - theta[i];
        memcpy(&bits, &d[i], sizeof bits);
        any |= (bits & 0x7fffffffu) | (e[i] & 0x7fffu); /* -0 is 0 */
    }
    return any;
}

void neb__site_widen(const uint16_t *restrict e, size_t n, float *restrict out)
{
    for (size_t i = 0; i < n; i++) out[i] = wide(e[i]);
}

void neb__site_narrow(const float *restrict in, size_t n, uint16_t *restrict e)
{
    for (size_t i = 0; i < n; i++) e[i] = narrow(in[i]);
}

void neb__site_take(float *restrict d, uint16_t *restrict e, const float *restrict moved,
                    const float *restrict decoded, float feedback, size_t n)
{
    if (!decoded) {
        for (size_t i = 0; i < n; i++) d[i] = moved[i] - d[i];
        memset(e, 0, n * sizeof *e);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        float z = d[i] + feedback * wide(e[i]), r = z - decoded[i];
        float sent = NEB_MUTANT(subtract_decoded) ? decoded[i] : d[i];
        e[i] = narrow(r);
        d[i] = (moved[i] - sent) + (r - wide(e[i]));
    }
}

double neb__site_fade(uint16_t *e, float gamma, size_t n)
{
    double dropped = 0;
    for (size_t i = 0; i < n; i++) {
        float was = wide(e[i]);
        e[i] = narrow(gamma * was);
        double lost = (double)was - (double)wide(e[i]);
        dropped += lost * lost;
    }
    return sqrt(dropped);
}
