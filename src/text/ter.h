/* ter.h: translation edit rate (Snover et al. 2006), equal to sacreBLEU's: edits of words and shifts of phrases, divided by
 * the words of the reference. Lower is better. There is nothing to free. */
#ifndef NEB_TEXT_TER_H
#define NEB_TEXT_TER_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct neb_ter {
    bool cased;       /* false: upper and lower case are the same, as usual */
    double ref_words; /* mean over the references, summed over sentences */
    int64_t edits;    /* against the best reference */
};

void neb__ter_init(struct neb_ter *t, bool cased);
/* NEB_ERR_INVALID: no reference; NEB_ERR_NOMEM. On an error t is unchanged. */
neb_status neb__ter_add(struct neb_ter *t, const char *hyp, const char *const *refs, int n);
double neb__ter_score(const struct neb_ter *t); /* in percent; may exceed 100 */

#endif
