/* pairing.h: two sites that share a code become acquainted over messages that anybody may read and change. No I/O.
 *
 *     neb__pairing_begin(&p, creator, &code, relay, hello)     hello goes to the other
 *     neb__pairing_hello(&p, theirs, n, proof)                 the joiner's proof goes to the other; the creator keeps its own
 *     neb__pairing_proof(&p, theirs, n)                        NEB_ERR_AUTH: the codes differ. This was their one guess. Else the
 *                                                              creator's proof goes to the joiner
 *     neb__pairing_seal(), neb__pairing_open()                 from now on everything is secret and authentic
 *
 * The creator made the code and is the run's operator. A card says who a site is and proves that it holds its key. */
#ifndef NEB_SEAL_PAIRING_H
#define NEB_SEAL_PAIRING_H

#include "base/buf.h"
#include "seal/cpace.h"
#include "seal/pair_code.h"
#include "seal/roster.h"

enum {
    NEB_PAIRING_VERSION = 1,
    NEB_PAIRING_HELLO = 18 + NEB_CPACE_SHARE,
    NEB_PAIRING_PROOF = 1 + NEB_CPACE_TAG,
    NEB_PAIRING_NO = 'n',      /* the creator's answer, one byte, to a proof that is wrong */
    NEB_PAIRING_OVERHEAD = 17, /* of a sealed message */
    NEB_PAIRING_SESSION = 32,
    NEB_PAIRING_CARD_MAX = 1024,
};

struct neb_pairing {
    struct neb_cpace cpace;
    bool creator, proved;
    uint8_t send_key[32], take_key[32];
    uint64_t sent, taken;
    uint8_t session[NEB_PAIRING_SESSION]; /* names this exchange; no secret */
};

/* relay: the key of the relay host that each of the two sees. If it is not the same, somebody stands between one of them
 * and the relay host, and the exchange fails. */
neb_status neb__pairing_begin(struct neb_pairing *p, bool creator, const struct neb_pair_code *code,
                              const struct neb_public *relay, uint8_t hello[NEB_PAIRING_HELLO]);
/* NEB_ERR_STATE: both have made a code, or both were given one; NEB_ERR_VERSION; NEB_ERR_PROTOCOL, NEB_ERR_AUTH: hostile bytes.
 * None is logged. */
neb_status neb__pairing_hello(struct neb_pairing *p, const uint8_t *theirs, size_t n,
                              uint8_t proof[NEB_PAIRING_PROOF]);
neb_status neb__pairing_proof(struct neb_pairing *p, const uint8_t *theirs, size_t n);

/* `out` gets n + NEB_PAIRING_OVERHEAD bytes. */
neb_status neb__pairing_seal(struct neb_pairing *p, const void *text, size_t n, uint8_t *out);
/* `out` gets n - NEB_PAIRING_OVERHEAD bytes. NEB_ERR_AUTH: not the other's next message. */
neb_status neb__pairing_open(struct neb_pairing *p, const uint8_t *bytes, size_t n, uint8_t *out);
void neb__pairing_wipe(struct neb_pairing *p);

/* A member's name, key, addresses and whether it is a witness, signed for this exchange. */
neb_status neb__pair_card_make(const struct neb_pairing *p, const struct neb_member *m,
                               const struct neb_key *key, struct neb_buf *out);
/* The bytes are the other's. NEB_ERR_PROTOCOL, NEB_ERR_AUTH: it does not hold the key. */
neb_status neb__pair_card_read(const struct neb_pairing *p, const uint8_t *bytes, size_t n,
                               struct neb_member *out);

#endif
