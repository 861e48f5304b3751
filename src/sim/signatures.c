/* signatures.c: the signatures of the simulated world, and the orders of its operator.
 *
 * A toy signature is a hash over a secret, the signer and the message. Only the functions here have
 * access to the secret, so nobody else can make one. It costs a fraction of a real signature, and the
 * core cannot tell the difference. */
#include "sim/world.h"
#include "base/bytes.h"

#include <string.h>

static bool seal(uint64_t secret, unsigned signer, const char *purpose, const void *p, size_t n,
                 uint8_t out[NEB_SEAL_SIZE])
{
    uint8_t head[12];
    struct neb_hasher h;
    struct neb_hash hash;
    neb__put64(head, secret);
    neb__put32(head + 8, signer);
    if (neb__hasher_init(&h) != NEB_OK) return false;
    bool ok = neb__hasher_update(&h, head, sizeof head) == NEB_OK &&
              neb__hasher_update(&h, purpose, strlen(purpose) + 1) == NEB_OK &&
              neb__hasher_update(&h, p, n) == NEB_OK;
    if (neb__hasher_final(&h, &hash) != NEB_OK || !ok) return false;
    memcpy(out, hash.b, NEB_HASH_SIZE);
    memset(out + NEB_HASH_SIZE, 0, NEB_SEAL_SIZE - NEB_HASH_SIZE);
    return true;
}

static neb_status sign(void *arg, const char *purpose, const void *p, size_t n, uint8_t out[NEB_SEAL_SIZE])
{
    const struct neb_sim_node *node = arg;
    return seal(node->secret, (unsigned)node->id, purpose, p, n, out) ? NEB_OK : NEB_ERR_NOMEM;
}

static bool verify(void *arg, unsigned signer, const char *purpose, const void *p, size_t n,
                   const uint8_t signature[NEB_SEAL_SIZE])
{
    const struct neb_sim_node *node = arg;
    uint8_t want[NEB_SEAL_SIZE];
    return seal(node->secret, signer, purpose, p, n, want) && !memcmp(want, signature, sizeof want);
}

struct neb_seal neb__sim_seal(struct neb_sim_node *n)
{
    return (struct neb_seal){.arg = n, .sign = sign, .verify = verify};
}

void neb__sim_sign(struct neb_sim_world *w, struct neb_order *o)
{
    struct neb_sim_node as = {.id = (int)o->signer, .secret = w->node[0].secret};
    struct neb_seal s = neb__sim_seal(&as);
    if (neb__order_sign(o, &w->cfg.genesis, &s) != NEB_OK) w->failed = NEB_ERR_NOMEM;
}

const struct neb_order *neb__sim_order(struct neb_sim_world *w, struct neb_sim_node *n, struct neb_order what)
{
    struct neb_round_status st;
    if (w->orders == 64) return NULL;
    neb__round_status(n->core, &st);
    what.signer = NEB_BY_OPERATOR;
    if (what.op != NEB_OP_FORCE) what.epoch = st.roster.epoch;
    what.index = st.commit;
    what.head = st.commit_hash;
    neb__sim_sign(w, &what);
    w->issued[w->orders].order = what;
    if (what.op == NEB_OP_FORCE && w->rosters < 64) w->known[w->rosters++] = what.roster;
    return &w->issued[w->orders++].order;
}
