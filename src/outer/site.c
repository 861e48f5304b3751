/* site.c: the site's side of a round, on the host.
 *
 * Conservation: the sum of all inner updates equals (x - theta) + own committed updates + logged drops. A
 * capture changes nothing. A merge of the own update subtracts the decoded update from x, and nothing else.
 * The part that the code left out stays in the live parameters. The optimizer goes on from there, and the
 * next capture finds it. The usual method keeps that part in a residual beside the model. Then the site
 * learns again what it has learned but not yet sent. With sparse codes that is most of its work. */
#include "outer/site.h"
#include "base/mutant.h"

#include <math.h>
#include <string.h>

/* Eight sums side by side: one alone would wait for the last addition at every value. */
double neb__site_norm(const float *z, size_t n)
{
    double lane[8] = {0}, sum = 0;
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) lane[k] += (double)z[i + k] * z[i + k];
    for (; i < n; i++) sum += (double)z[i] * z[i];
    for (int k = 0; k < 8; k++) sum += lane[k];
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

bool neb__site_delta(float *restrict d, const float *restrict theta, size_t n)
{
    uint32_t any = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        d[i] = d[i] - theta[i];
        memcpy(&bits, &d[i], sizeof bits);
        any |= bits & 0x7fffffffu; /* -0 is 0 */
    }
    return any;
}

void neb__site_take(float *restrict d, const float *restrict moved, const float *restrict decoded, size_t n)
{
    if (!decoded || NEB_MUTANT(subtract_captured)) {
        for (size_t i = 0; i < n; i++) d[i] = moved[i] - d[i];
        return;
    }
    for (size_t i = 0; i < n; i++) d[i] = moved[i] - decoded[i];
}
