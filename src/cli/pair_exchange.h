/* pair_exchange.h: two sites that meet at a relay host with one code, from the first message to the roster at both. */
#ifndef NEB_CLI_PAIR_EXCHANGE_H
#define NEB_CLI_PAIR_EXCHANGE_H

#include "net/relay/meeting.h"
#include "seal/pairing.h"

struct neb_pair_talk {
    struct neb_meeting *meeting;
    struct neb_pairing pairing;
    struct neb_member self, other; /* as the cards say; the relay host is one of the addresses */
    bool guessed; /* somebody has had a guess at the code: its proof came, or ours has left */
};

/* Proves that the codes are the same; the joiner proves it first. Unless t->guessed, a failure leaves the code as good as new: a share
 * says nothing of the words, and every attempt has shares of its own. NEB_ERR_AUTH: they are not (or somebody changes messages); the code is worth nothing
 * any more. NEB_ERR_STATE, NEB_ERR_VERSION, NEB_ERR_PROTOCOL, NEB_ERR_PEER, NEB_ERR_TIMEOUT. None is logged. */
neb_status neb__pair_prove(struct neb_pair_talk *t, bool creator, const struct neb_pair_code *code);
/* Tells who this site is, and learns who the other is. */
neb_status neb__pair_cards(struct neb_pair_talk *t, const struct neb_key *key);
/* The creator sends the chain and waits until the other has it on disk. */
neb_status neb__pair_send_roster(struct neb_pair_talk *t, const struct neb_chain *chain);
/* The other receives it, unchecked but for its signatures; owes a neb__chain_free(). */
neb_status neb__pair_receive_roster(struct neb_pair_talk *t, struct neb_chain **out);
neb_status neb__pair_confirm(struct neb_pair_talk *t,
                             const struct neb_chain *chain);     /* … and says that it has it */
void neb__pair_refuse(struct neb_pair_talk *t, const char *why); /* tells the other why not */

#endif
