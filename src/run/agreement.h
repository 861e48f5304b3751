/* agreement.h (internal): whether the sites of a run train the same model by the same job, and who is not the one to stop
 * when they do not. The driver's alone. */
#ifndef NEB_RUN_AGREEMENT_H
#define NEB_RUN_AGREEMENT_H

#include <nebula/nebula.h>

struct neb_item;

struct neb_agreement {
    uint64_t others; /* sites whose model or job differs, since their link came up */
    uint64_t muted;  /* … whose model does: they take no part */
    bool confirmed;  /* this site's model and job are those with which it last committed */
    bool saved;      /* … and so they are on disk */
};

void neb__agreement_load(neb_session *s); /* before the driver runs */
void neb__agreement_note(neb_session *s); /* after each event: records were committed with the others */
void neb__agreement_peer_up(neb_session *s, uint16_t peer);
bool neb__agreement_mutes(const neb_session *s, uint16_t peer);

/* The hashes that a peer sent (NEB_MSG_MODEL). */
void neb__agreement_model(neb_session *s, const struct neb_item *i);
/* A peer runs another job, or cannot start: `why` says so. */
void neb__agreement_job(neb_session *s, uint16_t peer, const char *why);

#endif
