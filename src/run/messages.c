/* messages.c: messages of the peers, on the driver's thread: each goes to the file that handles it. */
#include "run/agreement.h"
#include "run/job_facts.h"
#include "run/peer_cells.h"
#include "run/relaying.h"
#include "run/secure.h"
#include "run/site_status.h"

#include <string.h>

static void agree(neb_session *s)
{
    pthread_mutex_lock(&s->lock);
    s->agreed = !s->halted;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void neb__session_message(neb_session *s, const struct neb_item *i)
{
    struct neb_hash hash;
    if (i->kind == NEB_MSG_LINK_STATES || i->kind == NEB_MSG_RELAYED) {
        neb__relaying_message(s, i);
        return;
    }
    bool any = i->kind == NEB_MSG_MODEL || i->kind == NEB_MSG_STATUS || i->kind >= NEB_MSG_FACTS;
    if ((!s->core || neb__agreement_mutes(s, i->peer)) && !any) return; /* of rounds */
    if (i->size >= NEB_HASH_SIZE) memcpy(hash.b, i->bytes, NEB_HASH_SIZE);
    switch (i->kind) {
    case NEB_MSG_FRAME:
        neb__session_feed(
            s,
            &(struct neb_event){.type = NEB_EV_FRAME, .site = i->peer, .bytes = i->bytes, .length = i->size});
        break;
    case NEB_MSG_UPDATE: neb__session_update(s, i->peer, i->bytes, i->size); break;
    case NEB_MSG_GET:
        if (i->size == NEB_HASH_SIZE) neb__session_push(s, i->peer, &hash, true);
        break;
    case NEB_MSG_NONE:
        if (i->size == NEB_HASH_SIZE)
            neb__session_feed(s,
                              &(struct neb_event){.type = NEB_EV_NO_UPDATE, .site = i->peer, .hash = hash});
        break;
    case NEB_MSG_COMING:
        if (i->size == NEB_HASH_SIZE)
            neb__session_feed(s, &(struct neb_event){.type = NEB_EV_COMING, .site = i->peer, .hash = hash});
        break;
    case NEB_MSG_GET_CELL:
        if (i->size == 4) neb__session_serve_cell(s, i->peer, neb__get32(i->bytes));
        break;
    case NEB_MSG_SUM_KEYS:
    case NEB_MSG_SUM_OFFER:
    case NEB_MSG_SUM_REVEAL: neb__sums_message(s, i->peer, i->kind, i->bytes, i->size); break;
    case NEB_MSG_CELL: neb__session_cell(s, i->peer, i->bytes, i->size); break;
    case NEB_MSG_MODEL: neb__agreement_model(s, i); break;
    case NEB_MSG_FACTS:
    case NEB_MSG_REFUSAL:
        neb__facts_message(s, i->peer, i->kind, i->bytes, i->size);
        if (i->kind == NEB_MSG_FACTS) agree(s);
        break;
    case NEB_MSG_STATUS:
    case NEB_MSG_NOTE: neb__session_status_heard(s, i->peer, i->kind, i->bytes, i->size); break;
    default: break; /* of a newer version: not for us */
    }
}
