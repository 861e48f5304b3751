/* round.h: the round protocol as a state machine. Events go in, actions come out; it reads no clock, socket,
 * file or random device, and updates are names to it, never bytes. docs/rounds.md explains the protocol.
 *
 *     neb__round_event(r, &ev);
 *     while (neb__round_next(r, &act)) carry_out(&act);     in this order
 *     set a timer for neb__round_wake(r)
 *
 * A successful create owes a destroy. An action's pointers are valid until the next call of
 * neb__round_next() or neb__round_event(). */
#ifndef NEB_ROUND_ROUND_H
#define NEB_ROUND_ROUND_H

#include "round/certificate.h"
#include "round/influence.h"
#include "round/record.h"

struct neb_round;

#define NEB_MARK_MAX       512 /* bytes of the acked mark's content */
#define NEB_ROUND_PIPELINE 4   /* records that may be prepared at a time, unless configured */
#define NEB_FRAGMENTS_MAX  256 /* parts of the model that have rounds of their own */

struct neb_round_config {
    uint16_t self;
    struct neb_hash genesis; /* the record before the first one */
    struct neb_members roster;
    uint32_t cells, fragments; /* fragment f: cells [f * cells / fragments, (f + 1) * cells / fragments) */
    uint32_t staleness;        /* S */
    uint32_t pipeline;         /* records that may be prepared at a time */
    uint32_t nominal;          /* inner steps between two captures of one fragment */
    uint32_t drift_steps;      /* inner steps without a commit before a pause */
    bool drift_pause;          /* false: go on and be discounted */
    uint32_t root_every;       /* records between two state roots when nobody needs one */
    uint64_t token_target;     /* 0: none */
    uint32_t eta, mu;          /* bits of fp32 */
    uint64_t cell_bytes;       /* of theta and momentum of one cell */
    bool promote;              /* members that have caught up become voters while there are fewer than 7 */
    bool end_drop;             /* the end is bounded: see neb__round_set_end() */
    bool secure;               /* updates are masked, and records name sums of them: secure.c */
    bool owners;               /* updates of a fragment go to its owner, which sends one mean */
    int64_t ping_ms, elect_ms, contact_ms, round_ms, grace_ms, fetch_ms, greet_ms, idle_ms;
    uint8_t cls;    /* neb_rung_class to begin with */
    uint32_t bound; /* fp32 bits: updates of a greater norm are rejected; 0: none. An order may change it */
    uint64_t seed;  /* spreads the election timers */
    struct neb_influence influence; /* by the genesis */
    enum neb_quorum_rule quorum;    /* likewise */
    struct neb_seal seal;
    uint64_t operators; /* the set of operators with which the log begins; an order may change it */
};

/* Fills in the times and limits that a job file does not name. */
void neb__round_defaults(struct neb_round_config *c);

/* The contents of the disk at the start. */
struct neb_boot_update {
    struct neb_hash hash;
    uint64_t k, b;
    uint16_t attempt; /* of a masked one */
    bool former;      /* it was signed with a key that the site has no longer */
};
/* Besides records and the mark the ledger holds certificates and the signed words of sites for their lapses. */
enum neb_round_extra_kind {
    NEB_EXTRA_CERTIFICATE = 3,
    NEB_EXTRA_LAPSE = 4,
    NEB_EXTRA_PREPARED = 5,
    NEB_EXTRA_AUTOGRAPH = 6,
    NEB_EXTRA_VOTE = 7,
    NEB_EXTRA_NOTE = 8 /* the autograph of the newest view; the ledger keeps that of the last write only */
};
struct neb_round_extra {
    uint8_t kind;
    uint64_t index;
    uint8_t *bytes;
    size_t length;
};
struct neb_round_boot {
    bool damaged;        /* something at or below the acked mark is lost */
    const uint8_t *mark; /* NULL: a fresh folder */
    size_t mark_length;
    const uint8_t *const *record; /* of index 1, 2, … */
    const size_t *record_length;
    uint64_t records;
    const struct neb_round_extra *extra; /* in the order of the ledger */
    size_t extras;
    const uint8_t *certificate; /* the newest one, as NEB_ACT_CERTIFICATE gave it; NULL: none */
    size_t certificate_length;
    const uint64_t *applied;            /* per cell: version of theta and m */
    const uint64_t *merged;             /* per cell: version up to which the site's own state is merged */
    const struct neb_boot_update *open; /* per cell; k 0: none */
    const uint64_t *work;               /* per cell: inner steps in the restored delta */
    const uint64_t *work_after;         /* per cell: those made after the open update's capture; NULL: none */
};

enum neb_event_type {
    NEB_EV_TICK = 1,
    NEB_EV_PEER_UP,   /* site; far: through members, which pass on frames, but neither updates nor cells */
    NEB_EV_PEER_DOWN, /* site */
    NEB_EV_FRAME,     /* site, bytes, length */
    NEB_EV_WRITTEN,   /* id; or status: NOSPACE is tried again, anything else stops the site */
    NEB_EV_STEP,      /* count: inner steps made since the last one */
    NEB_EV_CAPTURED,  /* update, hash: durable; empty: there was nothing to send; AGAIN: not this time */
    NEB_EV_UPDATE,    /* update, hash, reject, norm: complete, verified and durable here */
    NEB_EV_NO_UPDATE, /* site, hash: this peer does not have it */
    NEB_EV_COMING,    /* site, hash: this peer is sending it already */
    NEB_EV_UNWANTED,  /* site, hash: this author signed it, and it is not kept here */
    NEB_EV_APPLIED,   /* index */
    NEB_EV_ROOT,      /* index, root: of the state at this record */
    NEB_EV_CELL,      /* cell, version, index, root, site: a fetched cell's proof leads to this root */
    NEB_EV_INSTALLED, /* cell, version: what the cell holds now */
    NEB_EV_OPERATOR,  /* order: signed; or op LEAVE, GOODBYE, CLASS (count) without one */
    NEB_EV_RESULT,    /* an owner's mean: update, hash, durable */
    NEB_EV_OFFER, /* site, cell (the first), version, attempt, offer; count: bits of the sites that have its shares */
    NEB_EV_SEEDS, /* index of SURVIVORS; bytes: a seed of each contributor; or status: there will be none */
};

struct neb_event {
    enum neb_event_type type;
    int64_t now; /* ms of a monotonic clock */
    uint16_t site;
    const uint8_t *bytes;
    size_t length;
    uint64_t id, index, count, version;
    uint32_t cell, op;
    neb_status status;
    const struct neb_update_header *update;
    struct neb_hash hash, root;
    uint8_t reject;
    uint16_t attempt;
    const struct neb_contributor *offer;
    double norm; /* of the decoded update; needed while there is a bound or a robust rule of influence */
    bool empty, far;
    const struct neb_order *order; /* or NULL */
};

enum neb_action_type {
    NEB_ACT_SEND = 1, /* site, bytes, length */
    NEB_ACT_WRITE, /* id; records [index, index + count) of the log, neb__round_extras(), then the mark in bytes; answer
                      WRITTEN */
    NEB_ACT_CAPTURE, /* c0, c1, k, version, tau; dense; the update keeps to cls and bound; answer CAPTURED. With attempt: a
                        masked one for the OPEN record `index`; NEB_ERR_STATE: this site cannot, in this attempt */
    NEB_ACT_PUSH,    /* site, hash: send this update */
    NEB_ACT_FETCH,   /* site (NEB_NO_SITE: only look on the disk), hash: answer UPDATE or NO_UPDATE */
    NEB_ACT_APPLY,   /* index: apply it to theta of the cells at its version; likewise the site's own state */
    NEB_ACT_ROOT,    /* index: the state stands at this record; answer ROOT */
    NEB_ACT_DISCARD, /* c0, c1, k: the open update is given up, its work stays in the live model */
    NEB_ACT_SETTLE,  /* c0, c1, num / den: discount the delta, log what is dropped */
    NEB_ACT_FETCH_CELL, /* site, cell: answer CELL, or NO_UPDATE with the cell's name */
    NEB_ACT_INSTALL,    /* cell, version, index: the fetched cell is trusted */
    NEB_ACT_COMBINE,    /* c0, c1, version; hashes of the updates in bytes: form the mean, answer RESULT */
    NEB_ACT_PAUSE,      /* stop stepping: drift limit, or the end */
    NEB_ACT_RESUME,
    NEB_ACT_ROSTER, /* the roster changed */
    NEB_ACT_HALT, /* text: why this site cannot go on; bytes: a certificate that shows it, to be kept, or none */
    NEB_ACT_ENDED, /* theta is final, and everybody in reach has it (count: or this site has waited long enough):
                        this site may stop */
    NEB_ACT_BUDGET,  /* count: permille of the line that rounds may use from now on */
    NEB_ACT_NOTE,    /* text: something a person should know */
    NEB_ACT_REFUSED, /* site, count: it named so many updates beyond its quota */
    NEB_ACT_GUILTY,  /* site, bytes: statements that convict it, to be kept */
    NEB_ACT_DOUBT,   /* site, count: it made so many claims that it does not prove */
    NEB_ACT_OFFER, /* c0, c1, version, attempt: offer to contribute to this sum; answer OFFER, for each site that does */
    NEB_ACT_REVEAL,      /* index of SURVIVORS, committed: reveal the shares that it asks for; answer SEEDS */
    NEB_ACT_CERTIFICATE, /* bytes: the newest certificate, to be found at the next start; it may be lost */
};

struct neb_action {
    enum neb_action_type type;
    uint16_t site;
    uint8_t *bytes;
    size_t length;
    uint64_t id, index, count, k, version;
    uint32_t c0, c1, cell, tau;
    uint16_t attempt;
    uint64_t num, den;
    bool exact;     /* send everything exactly: the run ends */
    bool last;      /* the run ends, and this is the site's last update of these cells: the rest is dropped */
    uint8_t cls;    /* neb_rung_class */
    uint32_t bound; /* fp32 bits of the greatest norm, 0: none */
    struct neb_hash hash;
    const char *text;
};

neb_status neb__round_create(const struct neb_round_config *c, const struct neb_round_boot *boot,
                             struct neb_round **out);
void neb__round_destroy(struct neb_round *r); /* NULL is fine */

/* NEB_ERR_NOMEM is the only failure; the site must be restarted then. */
neb_status neb__round_event(struct neb_round *r, const struct neb_event *ev);
bool neb__round_next(struct neb_round *r, struct neb_action *out);
int64_t neb__round_wake(const struct neb_round *r); /* the latest time for the next TICK */

/* Sets how many inner steps this site makes between two captures of a fragment from now on; 0: nominal.
 * Discounts and averaging, on which all sites agree, go by the nominal number. */
void neb__round_set_interval(struct neb_round *r, uint32_t steps);
/* Others may reach each other only through this site: at the end it stays until they have everything. */
void neb__round_set_between(struct neb_round *r, bool between);
/* Members that never vote, whatever they have caught up with: the signed roster says so. */
void neb__round_set_observers(struct neb_round *r, uint64_t sites);
/* With cfg.end_drop: how long the end may take, from the END record on; 0: not known yet. Each site makes one
 * last update of each fragment. The leader waits no longer for those that are missing. */
void neb__round_set_end(struct neb_round *r, int64_t ms);
/* The round trip, in ms, within which a majority of the members answers: what waits for an answer of others waits longer on a
 * slow line. Smaller than before or 0 is fine. */
void neb__round_set_line(struct neb_round *r, int64_t rtt_ms);
/* After this many more inner steps a STEP event may have an effect at once. Fewer
 * steps can wait for the next event. */
uint64_t neb__round_steps_left(const struct neb_round *r);

/* Looking inside: for the driver, for status displays and for the simulator's checks. */
enum neb_round_state {
    NEB_ROUND_BOOT,
    NEB_ROUND_FOLLOW,
    NEB_ROUND_SYNC,
    NEB_ROUND_ELECT,
    NEB_ROUND_LEAD,
    NEB_ROUND_HALTED
};
struct neb_round_status {
    enum neb_round_state state;
    uint64_t view, normal_view, head, durable, commit, applied, tokens;
    uint32_t incarnation, lapse, durable_epoch;
    bool paused, ending, ended, may_vote, caught_up;
    bool whole;                        /* every cell is at `applied` */
    uint64_t root_at;                  /* the record whose root this is; 0: none yet */
    struct neb_hash root, commit_hash; /* commit_hash: of the last committed record; orders name it */
    struct neb_members roster;
    uint32_t budget, bound; /* permille; fp32 bits */
    uint8_t cls;            /* neb_rung_class */
    uint16_t leader;        /* or NEB_NO_SITE */
    uint64_t certified;     /* the last record with a certificate here */
};
void neb__round_status(const struct neb_round *r, struct neb_round_status *out);

/* secure.c: the attempt at a sum of the fragment that begins with cell c0, by the committed log. False: not a secure run. */
struct neb_round_attempt {
    uint64_t open, survivors; /* its records; 0: not there */
    uint16_t attempt;         /* the last one that was opened */
};
bool neb__round_attempt(const struct neb_round *r, uint32_t c0, struct neb_round_attempt *out);
/* Of n sites that train: members that must reveal their shares; updates that a sum has at least. */
int neb__sum_threshold(int sites);
int neb__sum_least(int sites);
/* The hash of the seed of this contributor that SURVIVORS allows to reveal. */
const struct neb_hash *neb__sum_seed_hash(const struct neb_record *survivors,
                                          const struct neb_contributor *c);
bool neb__sum_seeds_right(const struct neb_record *open, const struct neb_record *survivors,
                          const uint8_t (*seed)[NEB_SEED_SIZE], uint32_t seeds);
/* Whether `end` names the updates of SURVIVORS, all of them as they stand there, and counts them as its kind does. */
bool neb__sum_repeats(const struct neb_record *survivors, const struct neb_record *end);
/* The attempt behind this one. */
uint16_t neb__sum_next(uint16_t attempt);
/* A masked update of an attempt that has ended, or that was overtaken. */
bool neb__sum_is_over(const struct neb_round *r, const struct neb_update_header *h);

/* waits.c: what a site waits for, if it waits at all. Nothing changes. */
enum neb_wait {
    NEB_WAIT_NOTHING,
    NEB_WAIT_BEGIN,   /* a start needs answers of voters */
    NEB_WAIT_CELLS,   /* cells of the outer state */
    NEB_WAIT_UPDATES, /* updates that committed records name */
    NEB_WAIT_LEADER,  /* voters must agree on a leader */
    NEB_WAIT_ROUND,   /* at the drift limit: the next record */
    NEB_WAIT_LAST,    /* the end: the last updates */
    NEB_WAIT_TOLD,    /* after the end: others that do not have everything yet */
};
struct neb_round_wait {
    enum neb_wait what;
    uint64_t sites; /* bits of those that it waits for */
    uint64_t bytes; /* that have to come here, as far as the log tells */
    int64_t ms;     /* it waits no longer than this; below 0: there is no limit */
};
void neb__round_waits(struct neb_round *r, struct neb_round_wait *out);
const struct neb_record *neb__round_record(const struct neb_round *r,
                                           uint64_t index); /* NULL: not in the log */
/* What the WRITE in hand stores besides. Valid until its answer. */
const struct neb_round_extra *neb__round_extras(const struct neb_round *r, size_t *count);
const uint8_t *neb__round_record_bytes(const struct neb_round *r, uint64_t index, size_t *length);
/* During an APPLY of this index: whether it changes the cell's theta, or the site's own state of the cell. */
bool neb__round_applies(const struct neb_round *r, uint64_t index, uint32_t cell);
bool neb__round_merges(const struct neb_round *r, uint64_t index, uint32_t cell);
/* The hash of the votes that a leader signs with its start. */
bool neb__votes_hash(const struct neb_said *vote, int n, struct neb_hash *out);
bool neb__round_is_fragment(const struct neb_round *r, uint32_t c0, uint32_t c1);
bool neb__round_needs(const struct neb_round *r,
                      const struct neb_hash *hash); /* a record names this update */
/* A neighbour asks for an update that is not on this site's disk. True: a record names it, and this site now fetches it from
 * others, which the neighbour may not be linked to. */
bool neb__round_asked(struct neb_round *r, unsigned site, const struct neb_hash *hash);
uint64_t neb__round_version(const struct neb_round *r, uint32_t cell); /* by the committed log */
/* The work since this inner step is in no record. Steps count from the start (negative: before it). */
int64_t neb__round_base(const struct neb_round *r, uint32_t cell);
uint64_t neb__round_all_applied(
    const struct neb_round *r); /* every voter has applied this index, as far as known */
/* The name of a cell in place of an update's hash: a peer that cannot give the
 * cell answers NO_UPDATE with it. */
void neb__round_cell_name(uint32_t cell, struct neb_hash *out);
/* The mark of a new site, for neb__ledger_create(). */
neb_status neb__round_first_mark(struct neb_buf *out);

#endif
