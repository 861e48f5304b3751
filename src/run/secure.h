/* secure.h (internal): a session's part in sums that nobody can take apart (docs/privacy.md, round/secure.c).
 *
 *     secure.c        keys, offers and shares: what is said before a sum
 *     secure_unmask.c shares that are revealed: what is said after it
 *     secure_keep.c   what a start needs of an attempt under way, on disk
 *     secure_codes.c  masked codes, their sum, and the sum without its masks */
#ifndef NEB_RUN_SECURE_H
#define NEB_RUN_SECURE_H

#include "outer/scales.h"
#include "privacy/offer.h"
#include "run/session.h"

enum { NEB_RUNG_SUM = 9 };    /* int8x: the codes of a sum are of this rung */
enum { NEB_SUM_BAD_S = 300 }; /* seconds for which a dealer of bad shares is avoided */

/* The attempt of one fragment that is prepared, or under way. */
struct neb_sum_attempt {
    uint32_t c0, c1;
    uint16_t attempt; /* 0: none yet */
    uint64_t version;
    struct neb_hash id;                      /* of the run, the cells, the version and the attempt */
    bool keyed, used;                        /* used: the update is made */
    struct neb_mask_pair seal, mask;         /* this site's */
    uint8_t own[NEB_MASK_KEY];               /* the seed of its own mask */
    struct neb_sum_keys keys[NEB_SITES_MAX]; /* attempt 0: not here */
    uint8_t keys_id[NEB_SITES_MAX][NEB_KEYS_ID];
    uint64_t dealt; /* bits of the sites that the last offer of this site has shares for */
    struct neb_buf offer[NEB_SITES_MAX]
                        [2]; /* the two newest of each site, signatures and all; the newest first */
    struct neb_contributor entry[NEB_SITES_MAX];
    uint64_t revealed;     /* for this SURVIVORS record this site has revealed its shares … */
    uint64_t revealed_set; /* … which named these sites: own seeds of them, mask keys of the others */
    int threshold;         /* of the roster that its secrets are dealt to; 0: not keyed */
    int64_t avoided[NEB_SITES_MAX]; /* ns: until then these sites get no shares (neb__sums_avoid) */
    int64_t rekeyed[NEB_SITES_MAX]; /* ns: when other keys of it than before were taken last; 0: never */
    struct neb_reveal *reveal[NEB_SITES_MAX]; /* what the members have revealed for it; NULL: nothing yet */
    bool joined;
    uint8_t seed[NEB_SITES_MAX][NEB_SEED_SIZE];
    uint16_t asked; /* the core asked for an offer for this attempt */
    uint64_t asked_version;
    uint64_t
        said_for; /* the OPEN, or the sites, for which the offer was said last: when, and how long it is not said again */
    int64_t said_at, said_gap; /* ns */
    int64_t keyed_at,
        missed_at; /* ns; missed_at: since when an offer that OPEN names is not here; 0: none is missing */
};

struct neb_sums {
    struct neb_sum_attempt *fragment; /* one each */
    uint32_t fragments;
    int64_t looked_at; /* ns */
};

/* ---- secure.c ------------------------------------------------------------------------------------------ */

neb_status neb__sums_open(
    neb_session *s); /* when the core is there; nothing to do if the run is not secure */
void neb__sums_close(neb_session *s);
struct neb_sum_attempt *neb__sums_of(neb_session *s, uint32_t c0); /* NULL: no such fragment */
void neb__sum_attempt_forget(struct neb_sum_attempt *a); /* all but its cells and what the core asked for */
void neb__sums_offer(neb_session *s, const struct neb_action *a);
void neb__sums_message(neb_session *s, uint16_t peer, uint32_t kind, const uint8_t *bytes, size_t n);
void neb__sums_turn(neb_session *s); /* at every turn of the driver */
/* The bytes of the offer that OPEN names of this contributor; NULL: not here. */
const struct neb_buf *neb__sums_offer_of(const struct neb_sum_attempt *a, const struct neb_contributor *c);
/* The offer that OPEN names of this contributor, checked. False: it is not here. */
bool neb__sums_named_offer(const struct neb_sum_attempt *a, const struct neb_contributor *c,
                           struct neb_sum_offer *out);
/* This site's shares of the contributor's secrets, unsealed and checked. */
bool neb__sums_shares(const neb_session *s, const struct neb_sum_attempt *a, const struct neb_sum_offer *o,
                      uint8_t own[NEB_SHARE_SIZE], uint8_t pair[NEB_SHARE_SIZE]);

/* What this contributor dealt was of no use: for a while it gets no shares, so that the two are not in one attempt again. */
void neb__sums_avoid(neb_session *s, struct neb_sum_attempt *a, unsigned site, int seconds, const char *why);
/* The mask key that members revealed of a site is the one whose public half stands in OPEN. */
bool neb__sums_key_fits(const struct neb_contributor *c, const uint8_t secret[NEB_SEED_SIZE]);

/* To every member. */
void neb__sums_say(neb_session *s, uint32_t kind, const void *bytes, size_t n);

/* ---- secure_unmask.c ----------------------------------------------------------------------------------- */

void neb__sums_reveal(neb_session *s, uint64_t index);
void neb__sums_say_reveal(neb_session *s, const struct neb_reveal *r); /* again */
void neb__sums_heard_reveal(neb_session *s, uint16_t peer, const uint8_t *bytes, size_t n);
/* Puts the seeds together as soon as enough members have revealed their shares, and tells the core. */
void neb__sums_join(neb_session *s, struct neb_sum_attempt *a, uint64_t index);

/* ---- secure_keep.c ------------------------------------------------------------------------------------- */

/* Secrets and the offers that OPEN names; on disk before anything that depends on them leaves. */
neb_status neb__sums_keep(neb_session *s, const struct neb_sum_attempt *a, const struct neb_record *open);
/* What was kept of this attempt. False: nothing. */
bool neb__sums_load(neb_session *s, struct neb_sum_attempt *a, uint16_t attempt);
void neb__sums_remove(neb_session *s, const struct neb_sum_attempt *a);

/* ---- secure_codes.c ------------------------------------------------------------------------------------ */

/* d of the update's cells as masked codes for the OPEN record, behind a header's room.
 *   NEB_ERR_STATE: this site cannot contribute to that attempt;  NEB_ERR_NOTFOUND: an offer is still on its way;  NEB_ERR_RANGE: a value is not finite */
neb_status neb__sums_mask(neb_session *s, struct neb_update_header *h, uint64_t open, struct neb_buf *out);
/* A masked code has the right size for these cells. sites: that train now; 0: any number */
bool neb__sums_fits(const neb_session *s, const struct neb_update_header *h, const uint8_t *code, size_t n,
                    int sites);

/* The sum of a RESULT. A successful open owes a close. */
struct neb_unmasked {
    uint16_t *sum; /* codes of all its cells */
    size_t first;  /* value of the first one */
    int bits;
    float factor; /* a sum of codes times scale times this is the weighted mean */
    float *scale; /* (NEB_SCALES) for each of its cells */
    uint32_t c0;
    double norm;
};
/* `bytes`: finds the update (header and code) of a hash; NULL: it is not there. */
typedef const struct neb_buf *neb_find_update(void *arg, const struct neb_hash *hash);
neb_status neb__unmask_open(const struct neb_outer *outer, const struct neb_influence *rule,
                            const struct neb_hash *genesis, const struct neb_record *open,
                            const struct neb_record *rec, neb_find_update *find, void *arg,
                            struct neb_unmasked *out);
void neb__unmask_close(struct neb_unmasked *u);
/* The mean of one cell, before the outer step. */
void neb__unmask_cell(const struct neb_unmasked *u, const struct neb_outer *outer, uint32_t cell, float *out);
/* What the own codes of d, of this cell, stand for. */
void neb__unmask_own(const neb_session *s, const struct neb_unmasked *u, const struct neb_record *open,
                     uint32_t cell, const float *d, size_t n, uint16_t *codes, float *out);
/* OPEN of the attempt that this record ends; NULL: it is not in the log. */
const struct neb_record *neb__sums_open_record(const neb_session *s, const struct neb_record *rec);
/* The mean as the rule of influence sees it: its length beside that of past means. */
struct neb_mean_length {
    uint16_t site;
    uint8_t cls;
    double norm;
    float scale;
    struct neb_norm_step step;
};
void neb__mean_length(const struct neb_record *rec, double norm, struct neb_mean_length *out);

#endif
