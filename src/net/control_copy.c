/* control_copy.c: sends small control messages twice.
 *
 * A control message is one packet. If the line loses it, TCP notices that only from the packets behind it, a
 * round trip later, and sends it again. The message is late by more than a round trip, and so are all behind
 * it. No retransmission can be faster than that. So on a line that loses packets a small control message also
 * leaves on a second connection, the control copy connection. It is late only if both packets are lost. The
 * receiver recognises a chunk that comes twice by its number, as after any broken connection.
 *
 * The control copy connection is the stripe with the highest number, between peers that speak version 2 or
 * later. It carries nothing else, and the outbox does not know of it: a copy is neither in flight nor
 * acknowledged, and nothing is lost when this connection breaks. */
#include "net/link.h"

static const double losing = 2e-4; /* a line loses packets if TCP sent a larger share of bytes again */

bool neb__control_copy_is(const struct neb_conn *c)
{
    return c->role == NEB_CONN_STRIPE && c->stripe == NEB_CONTROL_COPY && c->peer && c->peer->version >= 2;
}

bool neb__control_copy_is_wanted(const struct neb_peer *p)
{
    return p->version >= 2 && p->net->config.twice >= 0;
}

void neb__control_copy_send(struct neb_peer *p, const struct neb_chunk *chunk, const uint8_t *payload)
{
    struct neb_conn *c = p->stripe[NEB_CONTROL_COPY];
    bool twice = p->net->config.twice > 0 || (p->net->config.twice == 0 && p->measure.loss > losing);
    if (!twice || !c || c->state != NEB_CONN_READY || !neb__control_copy_is(c)) return;
    if (chunk->size > NEB_CONTROL_COPY_MESSAGE_MAX || neb__conn_waiting(c))
        return; /* the copy would be late itself */
    neb_status status = neb__link_write_chunk(c, chunk, payload);
    if (status != NEB_OK) {
        neb__link_detach(c, status);
        neb__conn_close(c);
        return;
    }
    p->copies++;
    p->copy_due = true;
    neb__link_touch(p);
}

void neb__control_copy_pump(struct neb_peer *p)
{
    struct neb_conn *c = p->stripe[NEB_CONTROL_COPY];
    if (!p->copy_due) return;
    p->copy_due = false;
    if (c && c->state == NEB_CONN_READY && !c->blocked) neb__conn_pump(c);
}
