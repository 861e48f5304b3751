/* clip.c: the run's norm bound at one site. Own updates are scaled down to it, those of others are measured.
 *
 * The bound is part of the log (an operator's order); the leader rejects updates that exceed it. If one
 * update cannot carry all of a site's work, the site sends a shorter vector of the same direction, and the
 * rest stays in its live model. privacy.c cuts and blurs updates for a site's own sake. */
#include "run/session.h"
#include "base/mem.h"
#include "outer/site.h"

#include <math.h>
#include <string.h>

double neb__session_norm(neb_session *s, const struct neb_update_header *h, const uint8_t *bytes)
{
    if (h->kind == NEB_UPDATE_MASKED) return 0; /* nobody can tell; its sum is measured */
    struct neb_codec_view view;
    size_t first, last, n = neb__outer_cell(s->mirror.outer, h->c1 - 1, &last);
    neb__outer_cell(s->mirror.outer, h->c0, &first);
    if (neb__codec_open(bytes + neb__update_code_at(h), neb__update_code_size(h), NULL, last + n - first,
                        &view) != NEB_OK)
        return INFINITY;
    double sum = 0;
    for (uint32_t c = h->c0; c < h->c1 && isfinite(sum); c += 2) {
        size_t values[2] = {0};
        double square[2];
        bool ok = true;
        for (uint32_t k = 0; k < 2 && c + k < h->c1; k++) {
            values[k] = neb__outer_cell(s->mirror.outer, c + k, &first);
            ok = ok && neb__codec_cell(&view, c + k - h->c0, s->mirror.work[k]) == NEB_OK;
        }
        if (ok) neb__norms_squares(s->mirror.work[0], values[0], s->mirror.work[1], values[1], square);
        sum = ok ? sum + square[0] + square[1] : INFINITY;
    }
    neb__codec_close(&view);
    return sqrt(sum);
}

bool neb__session_clip(const struct neb_action *capture, float *z, size_t n)
{
    float bound;
    memcpy(&bound, &capture->bound, sizeof bound);
    /* The code's error may lengthen the vector a little: leave room for it. */
    return neb__site_clip(z, n, 0.98 * (double)bound) > 0.98 * (double)bound;
}
