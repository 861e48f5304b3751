/* rng.c: normal deviates by Box and Muller, one per call: the state stays a single word. */
#include "base/rng.h"

#include <math.h>

double neb__rng_normal(struct neb_rng *r)
{
    double u = 1.0 - neb__rng_uniform(r), v = neb__rng_uniform(r);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}
