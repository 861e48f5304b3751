/* nearest.h: the known word that is nearest to an unknown one, for "did you mean". */
#ifndef NEB_BASE_NEAREST_H
#define NEB_BASE_NEAREST_H

/*     struct neb_nearest n = {.word = name, .within = 3};
 *     for (…) neb__nearest_try(&n, known[i]);
 *     neb__nearest_hint(&n, hint);          "; did you mean 'bench'?", or "" */
struct neb_nearest {
    const char *word; /* the unknown one */
    int within;       /* edits: a word that needs fewer is taken, and only nearer ones from then on */
    const char *best; /* NULL: none is near */
};

enum { NEB_HINT = 100 };

void neb__nearest_try(struct neb_nearest *n, const char *known);
void neb__nearest_hint(const struct neb_nearest *n, char out[NEB_HINT]);

#endif
