/* end.h (internal): the bounded end of a run at one site (wan.end: drop).
 *
 * All of it is the driver's alone, or read between two of its events (see session.h): there is no lock. */
#ifndef NEB_RUN_END_H
#define NEB_RUN_END_H

#include "run/session.h"

/* How the end stands at this site. */
struct neb_end_state {
    bool bounded;   /* the job does not keep everything */
    double seconds; /* that the end may take; 0: the run does not end yet */
    double bytes;   /* that this site may send for it, all peers together; 0: as above */
    double sent;    /* of those; an update made before the end does not count */
    double dropped; /* share of the last work, as a norm, that is not in the model; 0: none */
};

neb_status neb__end_open(neb_session *s);
void neb__end_close(neb_session *s);
void neb__end_get(const neb_session *s, struct neb_end_state *out);

/* A record of the fragment that begins at this cell was applied; an own update was made. Both tell what a round
 * is. */
void neb__end_round_seen(neb_session *s, uint32_t c0);
void neb__end_update_made(neb_session *s, const struct neb_update_header *h,
                          const struct neb_codec_stats *stats, bool last);

/* The END record is committed here. Does nothing the second time. */
void neb__end_begin(neb_session *s);
/* The rung of the next last update. `tried`: a rung whose code turned out too large, or NULL. NULL: no rung fits
 * into what is left. */
const struct neb_rung *neb__end_rung(neb_session *s, const struct neb_rung *tried);
/* Whether a code of so many bytes is larger than the end has room for. */
bool neb__end_exceeds(const neb_session *s, size_t values, size_t bytes);
/* No last update is made of the fragment that begins at this cell: there is nothing to send, or it is dropped. */
void neb__end_nothing_sent(neb_session *s, uint32_t c0, bool dropped);
/* The run has ended: says what the end took and what was dropped. */
void neb__end_report(neb_session *s);

#endif
