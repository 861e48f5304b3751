/* relaying.h (internal): the members that this site reaches, directly or through others: the routes (round/routes.h)
 * driven by real links. All of it is the driver's alone. */
#ifndef NEB_RUN_RELAYING_H
#define NEB_RUN_RELAYING_H

#include "run/session.h"

neb_status neb__relaying_open(neb_session *s);
void neb__relaying_close(neb_session *s);

/* A link came up or went down: the members that are reached may change, and the core hears of it. */
void neb__relaying_link(neb_session *s, uint16_t peer, bool up);
void neb__relaying_turn(neb_session *s); /* at every turn of the driver */

/* NEB_MSG_LINK_STATES and NEB_MSG_RELAYED of a neighbour */
void neb__relaying_message(neb_session *s, const struct neb_item *i);

/* An update that no record names yet has come and is stored: neighbours that get its author's updates from here. */
void neb__relaying_pass_on(neb_session *s, uint16_t from, uint16_t author, const struct neb_hash *hash,
                           const uint8_t *bytes, size_t n);

#endif
