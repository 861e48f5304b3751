/* nearest.c: Levenshtein distance, letters compared without case. */
#include "base/nearest.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static int edit_distance(const char *a, const char *b)
{
    int row[64], la = (int)strlen(a), lb = (int)strlen(b);
    if (la > 62 || lb > 62) return 99;
    for (int j = 0; j <= lb; j++) row[j] = j;
    for (int i = 1; i <= la; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= lb; j++) {
            int best = diagonal + (tolower((unsigned char)a[i - 1]) != tolower((unsigned char)b[j - 1]));
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[lb];
}

void neb__nearest_try(struct neb_nearest *n, const char *known)
{
    int d = edit_distance(known, n->word);
    if (d >= n->within) return;
    n->within = d;
    n->best = known;
}

void neb__nearest_hint(const struct neb_nearest *n, char out[NEB_HINT])
{
    out[0] = 0;
    if (n->best) snprintf(out, NEB_HINT, "; did you mean '%s'?", n->best);
}
