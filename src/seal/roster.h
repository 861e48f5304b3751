/* roster.h: who belongs to a run, from its genesis on.
 *
 * A run begins with a genesis: run id, operator key, facts about the job (each a name and a few bytes, given
 * by the layers above: job hash, parameter layout, arithmetic version…) and the first roster. Its hash names
 * the run. Every change of the roster is an epoch: a complete new roster, chained to the one before by hash,
 * and signed by the operator or by voters who held more than half of the votes in the roster before it. A
 * site that missed changes can therefore take them from anybody and check them itself.
 *
 * A successful create, read or decode owes a neb__chain_free(). docs/links.md has the byte layout. */
#ifndef NEB_SEAL_ROSTER_H
#define NEB_SEAL_ROSTER_H

#include "base/buf.h"
#include "base/hash.h"
#include "seal/key.h"
#include "seal/operators.h"

#include <sys/types.h>

enum {
    NEB_MEMBERS_MAX = 256,
    NEB_VOTERS_MAX = 7,
    NEB_ADDRESSES_MAX = 4,
    NEB_ADDRESS_SIZE = 128, /* with its terminating 0 */
    NEB_FACTS_MAX = 64,
    NEB_FACT_NAME_SIZE = 32,
    NEB_FACT_VALUE_MAX = 1024,
    NEB_EPOCH_BYTES_MAX = 256 << 10, /* an encoded genesis or epoch is never larger */
    NEB_RUN_ID_SIZE = 16,
    NEB_SIGNER_OPERATOR = 0xffff, /* of several operators the first; the next one is one less */
    NEB_SIGNER_LAST = NEB_SIGNER_OPERATOR - NEB_OPERATORS_MAX + 1,
};

enum neb_member_flag {
    NEB_MEMBER_WITNESS = 1, /* votes and stores, does not train */
    NEB_MEMBER_LEARNER = 2, /* follows; not yet a voter */
    NEB_MEMBER_OBSERVER =
        4, /* follows for ever: neither votes nor trains; it has the flag of a witness, too */
};

/* Both flags, so that whoever asks who trains need not know of observers. */
#define NEB_MEMBER_OBSERVES (NEB_MEMBER_OBSERVER | NEB_MEMBER_WITNESS)

struct neb_member {
    uint16_t id; /* stable; never given to another site */
    uint8_t votes;
    uint8_t flags;
    char name[NEB_NAME_SIZE];
    struct neb_public key;
    uint8_t addresses;
    char address[NEB_ADDRESSES_MAX]
                [NEB_ADDRESS_SIZE]; /* HOST:PORT or [V6]:PORT, or of a relay host (below) */
};

struct neb_roster {
    struct neb_member *members; /* ids strictly ascending */
    uint32_t count;
};

struct neb_fact {
    char name[NEB_FACT_NAME_SIZE];
    uint16_t size;
    uint8_t value[NEB_FACT_VALUE_MAX];
};

enum neb_epoch_kind {
    NEB_EPOCH_CHANGE = 1,    /* a record of the run's log made it; names that record's index and hash */
    NEB_EPOCH_EVICT = 2,     /* the operator made it; names the log's head as the operator saw it */
    NEB_EPOCH_OPERATORS = 3, /* from here on there are other operators */
};

struct neb_epoch {
    uint64_t number;
    enum neb_epoch_kind kind;
    uint64_t head_index;
    struct neb_hash head_hash;
    struct neb_hash previous; /* the epoch before; for epoch 1 the genesis */
    struct neb_hash hash;     /* hash of this epoch, without its signatures */
};

struct neb_chain {
    struct neb_buf genesis; /* encoded */
    struct neb_buf tail;    /* the epochs, encoded, each behind its u32 length */
    struct neb_hash genesis_hash;
    uint8_t run_id[NEB_RUN_ID_SIZE];
    struct neb_public operator_key; /* of the genesis: see neb__operators_name() */
    struct neb_operators operators; /* of `now` */
    uint64_t operators_epoch;       /* the epoch that made them so; 0: the genesis */
    struct neb_fact *facts;
    uint32_t fact_count;
    uint64_t epoch;       /* epoch of `now`; 0 is the genesis */
    struct neb_hash head; /* hash of the newest epoch; the genesis hash in epoch 0 */
    uint16_t last_id;     /* the largest id ever given */
    struct neb_roster now;
};

/* Seals a genesis with a fresh run id. The roster's ids are set to 1, 2, 3… in the order given. Several operators need the fact
 * that neb__fact_operators() makes, and their name (neb__operators_name()) as operator key.
 *   NEB_ERR_INVALID  no voter, too many voters, a name or key twice, a malformed address;  NEB_ERR_NOMEM */
neb_status neb__chain_create(const struct neb_public *operator_key, const struct neb_fact *facts,
                             uint32_t fact_count, const struct neb_roster *roster, struct neb_chain **out);
void neb__chain_free(struct neb_chain *chain); /* NULL is fine */

neb_status neb__fact_operators(const struct neb_operators *set, struct neb_fact *out);

/* Runs that follow each other under one roster. A genesis with this fact serves any number of them, each with a name and a
 * genesis of its own, so that a signature of one is worth nothing in another. A genesis without it, as earlier versions
 * sealed it, is that of one run. */
void neb__fact_runs(struct neb_fact *out);
bool neb__chain_names_runs(const struct neb_chain *chain);
/* The genesis hash of the run `name`; of a run without a name ("") it is the chain's own. */
neb_status neb__chain_run_genesis(const struct neb_chain *chain, const char *name, struct neb_hash *out);

/* A whole chain to bytes and back. The bytes are hostile: every signature is checked.
 *   NEB_ERR_CORRUPT, NEB_ERR_AUTH (a signature), NEB_ERR_VERSION, NEB_ERR_NOMEM */
neb_status neb__chain_encode(const struct neb_chain *chain, struct neb_buf *out);
neb_status neb__chain_decode(const uint8_t *p, size_t n, struct neb_chain **out);
neb_status neb__chain_read(const char *path, struct neb_chain **out);
neb_status neb__chain_write(const struct neb_chain *chain, const char *path, mode_t mode);

/* Finds the encoded epochs that a peer of epoch `after` lacks: whole epochs, at most `max` bytes of them, but
 * at least one if there is one. Returns how many. */
uint64_t neb__chain_tail(const struct neb_chain *chain, uint64_t after, size_t max, const uint8_t **p,
                         size_t *n);

/* Finds the encoded epochs behind `after` up to the first in which `key` is no member's any more: whole epochs,
 * at most `max` bytes of them, but at least one. *n is 0 if the key was no member's in epoch `after`, or still
 * is. NEB_ERR_NOMEM. */
neb_status neb__chain_removal(const struct neb_chain *chain, uint64_t after, const struct neb_public *key,
                              size_t max, const uint8_t **p, size_t *n);

/* Gives the hash of one epoch of the chain, 0 (the genesis) to chain->epoch. */
void neb__chain_hash_of(const struct neb_chain *chain, uint64_t epoch, struct neb_hash *out);

/* Adds epochs that a peer sent. Epochs that the chain already holds are compared and skipped. All or none are
 * added.
 *   NEB_ERR_STATE    a gap: they begin above our epoch + 1
 *   NEB_ERR_EXISTS   a fork: a properly signed epoch differs from ours of that number (two histories)
 *   NEB_ERR_CORRUPT, NEB_ERR_AUTH, NEB_ERR_NOMEM */
neb_status neb__chain_extend(struct neb_chain *chain, const uint8_t *p, size_t n);

/* Calls fn for every roster of the chain, beginning with that of the genesis (epoch 0). `head` is the index
 * of the log record that the epoch names, or 0 if the epoch was signed before the log had a record.
 * NEB_ERR_NOMEM. */
typedef void (*neb_roster_fn)(void *arg, uint64_t epoch, uint64_t head, const struct neb_roster *r);
neb_status neb__chain_walk(const struct neb_chain *chain, neb_roster_fn fn, void *arg);

/* Calls fn for every set of operators of the chain, beginning with that of the genesis. NEB_ERR_NOMEM. */
typedef void (*neb_operators_fn)(void *arg, uint64_t epoch, uint64_t head, const struct neb_operators *set);
neb_status neb__chain_walk_operators(const struct neb_chain *chain, neb_operators_fn fn, void *arg);

/* Writes the epoch that follows `chain`, with the given roster (new members have id 0 and get the next free
 * id), and signs it with each key of `signers`. A key that belongs to neither an operator nor a voter is
 * refused. `out` gets the epoch behind its length, as neb__chain_extend() takes it. */
neb_status neb__chain_propose(const struct neb_chain *chain, enum neb_epoch_kind kind, uint64_t head_index,
                              const struct neb_hash *head_hash, const struct neb_roster *roster,
                              const struct neb_key *const *signers, uint32_t signer_count,
                              struct neb_buf *out);
/* The same, of kind NEB_EPOCH_OPERATORS: the roster stays as it is, `set` are the operators from then on. */
neb_status neb__chain_propose_operators(const struct neb_chain *chain, const struct neb_operators *set,
                                        uint64_t head_index, const struct neb_hash *head_hash,
                                        const struct neb_key *const *signers, uint32_t signer_count,
                                        struct neb_buf *out);
/* Adds the signature of one more operator to the epoch that follows `chain` (behind its length, as propose writes it); `key` NULL
 * adds none. *signed_by: how many operators have signed it. The bytes are hostile: NEB_ERR_CORRUPT, NEB_ERR_AUTH. */
neb_status neb__chain_cosign(const struct neb_chain *chain, const struct neb_key *key, struct neb_buf *epoch,
                             unsigned *signed_by);

/* Reads what an epoch (behind its length) says, without checking who signed it. `roster` owes a free; `set` is left alone unless the
 * epoch changes the operators. NEB_ERR_CORRUPT, NEB_ERR_NOMEM. */
neb_status neb__epoch_peek(const uint8_t *epoch, size_t n, struct neb_roster *roster,
                           struct neb_operators *set);

/* These return NULL when nothing matches. */
const struct neb_member *neb__roster_by_key(const struct neb_roster *r, const struct neb_public *key);
const struct neb_member *neb__roster_by_id(const struct neb_roster *r, uint16_t id);
const struct neb_member *neb__roster_by_name(const struct neb_roster *r, const char *name);
uint32_t neb__roster_votes(const struct neb_roster *r); /* the sum over all members */

/* Whether every two members have a path of lines: a line needs an address at one of its ends, its own or a relay host's, and
 * members pass messages on for each other. NEB_ERR_CONFIG names the sites that cannot meet. */
neb_status neb__roster_meets(const struct neb_roster *r);
/* Returns the id of the member that dials: the lower id if both can be dialled, else the member that cannot
 * be dialled. 0: neither can be dialled. */
uint16_t neb__roster_dialler(const struct neb_member *a, const struct neb_member *b);
/* The same for calls through a relay host: who calls the other one there. */
uint16_t neb__roster_caller(const struct neb_member *a, const struct neb_member *b);

/* Checks the rules that hold for every roster. NEB_ERR_INVALID: neb_last_error() names the fault (not
 * logged). */
neb_status neb__roster_check(const struct neb_roster *r);

/* Splits "host:port" or "[v6]:port", port 1 to 65535. `host` gets the part without brackets. */
bool neb__address_split(const char *address, char host[NEB_ADDRESS_SIZE], uint16_t *port);

/* A relay host (net/relay/relay_host.h) at which a member can be called: relay://HOST:PORT#KEY, the key in 64 hex digits.
 * Versions before relay hosts refuse a roster with such an address. */
struct neb_relay_address {
    char host[NEB_ADDRESS_SIZE]; /* without brackets */
    uint16_t port;
    struct neb_public key;
};
bool neb__address_is_relay(const char *address);
bool neb__address_relay(const char *address,
                        struct neb_relay_address *out); /* false: not one, or malformed */
/* NEB_ERR_INVALID: `place` does not read HOST:PORT, or is too long. */
neb_status neb__relay_address_format(const char *place, const struct neb_public *key,
                                     char out[NEB_ADDRESS_SIZE]);
/* Returns the n-th address at which the member itself can be dialled; NULL: it has fewer. */
const char *neb__member_direct(const struct neb_member *m, int n);
int neb__member_directs(const struct neb_member *m); /* how many there are */
bool neb__member_has_relay(const struct neb_member *m);

/* --- for roster.c and chain.c alone: the byte layout ---------------------------------------------------- */
struct neb_reader;
neb_status neb__roster_encode(const struct neb_roster *r, struct neb_buf *out);
neb_status neb__roster_decode(struct neb_reader *r, struct neb_roster *out); /* owes neb__roster_free */
neb_status neb__roster_copy(const struct neb_roster *r, struct neb_roster *out);
void neb__roster_free(struct neb_roster *r);

#endif
