/* solo.h: cores of the round protocol that a test drives by hand: one alone (a survivor with two votes, which leads itself), or
 * two that get each other's frames. */
#ifndef NEB_TEST_SOLO_H
#define NEB_TEST_SOLO_H

#include "round/core.h"

struct solo {
    struct neb_round *r;
    struct neb_buf mark; /* on its disk */
    int64_t now;
    int notes, halts, cells_asked, captures, discards, ends;
    int looked;       /* for an update on its own disk */
    uint64_t sent;    /* bytes of frames */
    uint64_t refused; /* names of updates beyond a quota */
    uint16_t refused_site;
    unsigned self;
    struct solo *other;     /* who gets what it sends; NULL: nobody */
    bool applies;           /* at once, and its state roots are all alike */
    bool full;              /* its disk */
    struct neb_buf letters; /* for others: u32 length, u32 site, frame */
};

/* A signature that only a test accepts: a hash over signer and message. The arg is the signer. */
neb_status test_sign(void *arg, const char *purpose, const void *p, size_t n, uint8_t out[NEB_SEAL_SIZE]);
bool test_verify(void *arg, unsigned signer, const char *purpose, const void *p, size_t n,
                 const uint8_t signature[NEB_SEAL_SIZE]);

void solo_create(struct solo *s, unsigned self, struct neb_members roster);
void solo_create_by(struct solo *s, unsigned self, struct neb_members roster, enum neb_quorum_rule rule);
void solo_create_secure(struct solo *s, unsigned self, struct neb_members roster); /* with secure sums */
void solo_start(struct solo *s); /* site 0 of two, with two votes; it leads when this returns */
/* It starts again with the mark and the records on its disk, without certificates and statements. The checkpoint has this version and
 * this open update. */
void solo_restart(struct solo *s, uint64_t version, struct neb_boot_update open);
void solo_stop(struct solo *s);
void solo_event(struct solo *s, struct neb_event ev);
void solo_run(struct solo *s, int64_t ms);
struct neb_round_status solo_status(const struct solo *s);
/* `o` as worded at this site's commit and signed by `signer`. */
struct neb_order solo_order(const struct solo *s, struct neb_order o, unsigned signer);
void solo_give(struct solo *s, const struct neb_order *o);
/* A frame of f.from, which knows the roster and the view of this site unless it says otherwise. */
void solo_frame(struct solo *s, struct neb_round_frame f);

/* Two that lead and follow. */
void pair_start(struct solo s[2], struct neb_members roster);
void pair_run(struct solo s[2], int64_t ms);
void deliver(struct solo *from); /* what it has sent */
/* … to the core that `to` has for each destination; NULL: nobody. */
void deliver_to(struct solo *from, struct solo *const to[NEB_SITES_MAX]);

#endif
