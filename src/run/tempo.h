/* tempo.h (internal): how many steps the sites make beside each other, as the log shows it. */
#ifndef NEB_RUN_TEMPO_H
#define NEB_RUN_TEMPO_H

#include "round/record.h"

#include <stdbool.h>

/* All zero at first. */
struct neb_tempo {
    uint64_t seen;                /* index of the last record that is counted */
    double recent[NEB_SITES_MAX]; /* steps of each site in the last rounds, older ones count less */
    double all[NEB_SITES_MAX];    /* since the beginning */
    double guess; /* before this site is in the log: its tempo by the first updates of others; 0: none */
    double said;  /* the tempo that was told; 0: none */
};

/* Counts a record that names updates. cells: of the whole model; fragments: how many records make a round. */
void neb__tempo_count(struct neb_tempo *t, const struct neb_record *rec, uint32_t cells, uint32_t fragments);

/* Steps of this site beside those of the fastest, of late: above 0 and at most 1; 1 if it is not known. */
double neb__tempo_of(const struct neb_tempo *t, uint16_t site);

/* Steps that the furthest site has in the log, over the whole model. own: what site `self` has made, in the log or not; by it a
 * site that is in the log alone is measured. */
double neb__tempo_furthest(const struct neb_tempo *t, uint16_t self, double own);

#endif
