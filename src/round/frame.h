/* frame.h: the messages of the round protocol. One struct serves all types;
 * frame.c knows which fields travel. */
#ifndef NEB_ROUND_FRAME_H
#define NEB_ROUND_FRAME_H

#include "base/buf.h"
#include "base/hash.h"
#include "round/certificate.h"

/* Each type with its fields. */
enum neb_round_frame_type {
    /* nonce, phase, number (the lapse asked for in phase 2), normal, head, start (the incarnation), signature
     * (of that lapse) */
    NEB_ROUND_FRAME_HELLO = 1,
    /* nonce, phase, flags (intact, you forgot), normal, head, hash, number (the
     * lapse of yours that I know), signature (yours, of that lapse), lapses, words */
    NEB_ROUND_FRAME_HELLO_OK,
    NEB_ROUND_FRAME_ASK,    /* number: would you join this view? */
    NEB_ROUND_FRAME_ASK_OK, /* number */
    NEB_ROUND_FRAME_ELECT,  /* number: join it */
    NEB_ROUND_FRAME_VOTE,   /* number, normal, head, hash, lapses, words, said (the vote), proof, prepared */
    /* normal, head, start, hash, applied (by all voters), flags (proof …), list of updates with holders,
     * trusted roots and their signatures, number (the budget in permille), lapses, words, proof, prepared, said
     * (the start of the view and the votes for it) */
    NEB_ROUND_FRAME_PING,
    /* normal, head, hash, applied, the newest root, its record (start) and signature,
     * flags, lapses, words, list of updates held, proof, said (acknowledgements) */
    NEB_ROUND_FRAME_REPORT,
    NEB_ROUND_FRAME_GETLOG, /* number: first index */
    NEB_ROUND_FRAME_LOG, /* number: first index; normal, head, start, hash; proof, said (leaders' signatures), records */
    NEB_ROUND_FRAME_REQUEST, /* order: for the leader to carry out */
    NEB_ROUND_FRAME_GOODBYE, /* the sender stops and may come back later */
    NEB_ROUND_FRAME_FORCE,   /* order: FORCE or ADOPT, for everybody */
    NEB_ROUND_FRAME_GUILT,   /* said, prepared: statements that convict their author */
};

#define NEB_ROUND_FRAME_MAX   (256 * 1024)
#define NEB_ROUND_FRAME_LIST  256
#define NEB_ROUND_FRAME_CERTS 32
#define NEB_ROUND_FRAME_SAID  56

struct neb_round_frame_root {
    uint64_t index;
    struct neb_hash root;
    uint64_t consent; /* voters that cannot report a root, because they are catching up */
};

/* One voter's signature of one of the frame's roots. */
struct neb_round_frame_cert {
    uint8_t root; /* its place in the list */
    uint16_t site;
    uint8_t signature[NEB_SEAL_SIZE];
};

struct neb_round_frame_item {
    struct neb_hash hash;
    uint64_t holders;
};

/* A site's signed word for its lapse. */
struct neb_round_frame_word {
    uint8_t site;
    uint32_t lapse;
    uint8_t signature[NEB_SEAL_SIZE];
};

struct neb_round_frame {
    /* in every frame */
    uint8_t type;
    uint16_t from;
    uint32_t epoch, lapse;
    uint64_t roster_id, view, commit;
    /* by type */
    uint64_t nonce, number, normal, head, start, applied;
    struct neb_hash hash, root;
    uint8_t phase, flags;
    struct neb_order order;
    uint32_t lapses[NEB_SITES_MAX];
    uint16_t items, roots, records;
    struct neb_round_frame_item *item; /* (NEB_ROUND_FRAME_LIST), the caller's */
    struct neb_round_frame_root trusted[16];
    struct neb_round_frame_cert *cert; /* (NEB_ROUND_FRAME_CERTS), the caller's */
    uint16_t certs;
    uint8_t signature[NEB_SEAL_SIZE]; /* REPORT: of index and root */
    struct neb_certificate proof;    /* of the newest record that the sender can prove committed; n 0: none */
    struct neb_certificate prepared; /* byzantine: of the first phase */
    uint16_t saids, words;
    struct neb_said said[NEB_ROUND_FRAME_SAID];
    struct neb_round_frame_word word[NEB_SITES_MAX];
    const uint8_t *blob; /* LOG: records, each u32 length and bytes */
    size_t blob_length;
};

enum { NEB_FLAG_INTACT = 1, NEB_FLAG_FORGOT = 2, NEB_FLAG_UNFORCED = 4 }; /* HELLO_OK */
enum {
    NEB_FLAG_CONTRIBUTES = 1,
    NEB_FLAG_CLEAN = 2,
    NEB_FLAG_WHOLE = 4,
    NEB_FLAG_NORMAL = 8,
    NEB_FLAG_DONE = 16
}; /* REPORT */
enum {
    NEB_FLAG_PROOF = 1,
    NEB_FLAG_DENSE = 2,
    NEB_FLAG_HAS_ALL = 4,
    NEB_FLAG_ROOTS = 8,
    NEB_FLAG_ALL_HAVE = 16,
    NEB_FLAG_BEGUN = 32
}; /* PING */

neb_status neb__round_frame_encode(const struct neb_round_frame *f, struct neb_buf *out);
/* NEB_ERR_PROTOCOL for anything that the encoder does not write. `blob` points into `bytes`; `items` has room
 * for NEB_ROUND_FRAME_LIST, `certs` for NEB_ROUND_FRAME_CERTS. */
neb_status neb__round_frame_decode(const uint8_t *bytes, size_t n, struct neb_round_frame_item *items,
                                   struct neb_round_frame_cert *certs, struct neb_round_frame *out);

#endif
