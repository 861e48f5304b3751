/* site_status.h: the status of this site and of its peers. It is gathered, told to the peers, and written to
 * FOLDER/run/status.json. */
#ifndef NEB_RUN_SITE_STATUS_H
#define NEB_RUN_SITE_STATUS_H

#include "watch/meter.h"
#include "watch/status.h"

/* The meter of a training loop reaches the session by this: the loop's part goes to the peers with the
 * session's own. */
extern const struct neb_meter_run neb__session_meter;

/* Gives the last status that site `name` sent, with its `age`. False: it has sent nothing yet, or is not in
 * the roster. Any thread. */
bool neb__session_heard(neb_session *s, const char *name, struct neb_site_status *out);

/* True if a site is connected that has not applied the run's last record yet, by its own words. The run has
 * ended here. Any thread. */
bool neb__session_peer_lacks_end(neb_session *s);

/* This site itself, as the peers hear of it. */
void neb__session_own_status(neb_session *s, struct neb_site_status *out);

/* ---- for the driver ------------------------------------------------------------------------------------ */
/* Writes the file and tells the peers, when it is time. `last`: the session ends, only the file is
 * written. */
void neb__session_tell(neb_session *s, bool last);
void neb__session_tell_soon(neb_session *s); /* the next neb__session_tell() finds that it is time */
/* Those that have said that they make no more steps, as bits; of site `id`, how many it has made (-1: not
 * known). */
uint64_t neb__session_finished_peers(neb_session *s);
int64_t neb__session_steps_of(neb_session *s, uint16_t id);
void neb__session_tell_peer(neb_session *s, uint16_t peer); /* which has just come up */
/* kind: NEB_MSG_STATUS, or NEB_MSG_NOTE of the version before. */
void neb__session_status_heard(neb_session *s, uint16_t peer, uint32_t kind, const uint8_t *bytes, size_t n);
void neb__session_status_free(neb_session *s);

#endif
