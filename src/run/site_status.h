/* site_status.h: the status of this site and of its peers: gathered, told to the peers, written to FOLDER/run/status.json. */
#ifndef NEB_RUN_SITE_STATUS_H
#define NEB_RUN_SITE_STATUS_H

#include "watch/meter.h"
#include "watch/status.h"

/* How the meter of a training loop reaches the session: what the loop says goes to the peers with the session's own. */
extern const struct neb_meter_run neb__session_meter;

/* What site `name` last said of itself; `age` is set. False: nothing yet, or it is not in the roster. Any thread. */
bool neb__session_heard(neb_session *s, const char *name, struct neb_site_status *out);

/* This site itself, as the peers hear of it. */
void neb__session_own_status(neb_session *s, struct neb_site_status *out);

/* --- for the driver --------------------------------------------------------------------------------------------- */
void neb__session_tell(neb_session *s, bool last);          /* the file, and the peers: when it is time */
void neb__session_tell_peer(neb_session *s, uint16_t peer); /* one that has just come up */
/* kind: NEB_MSG_STATUS, or NEB_MSG_NOTE of the version before. */
void neb__session_status_heard(neb_session *s, uint16_t peer, uint32_t kind, const uint8_t *bytes, size_t n);
void neb__session_status_free(neb_session *s);

#endif
