/* world.h: the simulated world, shared by the simulator's files.
 *
 *     world.c         time, events, lines
 *     cut_lines.c     lines that are cut for good, and the members that pass messages on
 *     node.c          one machine: disk, outer state, core
 *     node_life.c     how a machine starts, crashes and starts again
 *     toy_training.c  the toy trainer
 *     signatures.c    toy signatures, the operator's orders
 *     oracle.c        the invariants
 *     faults.c        the faults and their times
 *     liar.c          sites that lie
 *     secure_sums.c   sums that nobody can take apart
 */
#ifndef NEB_SIM_WORLD_H
#define NEB_SIM_WORLD_H

#include "base/buf.h"
#include "base/rng.h"
#include "outer/outer.h"
#include "round/round.h"
#include "round/routes.h"
#include "sim/sim.h"
#include "sim/simdisk.h"
#include "store/ledger.h"
#include "store/update_files.h"

enum { WIDTH = 3, CELLS_MAX = 4, SITES = 16 /* machines of one history */ };

enum neb_sim_rung {
    RUNG_COARSE = 0,
    RUNG_EXACT = 1,
    RUNG_SPARSE = 2, /* one value of a cell, exactly */
    RUNG_BOMB = 8 /* overflows when applied */,
    RUNG_BAD = 9 /* rejected */
};
/* The effect of such a rung on the values of a cell, and on an update that it codes. */
struct neb_toy_rung {
    int32_t unit;   /* values go out in multiples of it */
    bool largest;   /* only the largest value goes out */
    bool blurred;   /* a private site adds noise and keeps nothing of what it did not send */
    float scale;    /* decoded values are multiplied by it when they are applied */
    uint8_t reject; /* neb_reject: the leader's judgement */
};
const struct neb_toy_rung *neb__toy_rung(uint8_t id); /* an unknown one: RUNG_COARSE's */

enum neb_sim_event_kind {
    EV_FRAME,  /* a frame of the core arrives */
    EV_UPDATE, /* update bytes arrive */
    EV_GET,    /* a peer wants an update */
    EV_NONE,   /* … which the asked peer does not have */
    EV_COMING, /* … which it fetches itself */
    EV_GETCELL,
    EV_CELL,
    EV_SUM,    /* keys, an offer or shares of a secure sum */
    EV_STATES, /* link states of a neighbour */
    EV_RELAY,  /* a relayed message */
    EV_TICK,
    EV_WRITTEN,
    EV_STEP,
    EV_CAPTURED,
    EV_STORED, /* an update is durable here */
    EV_APPLIED,
    EV_ROOT,
    EV_START, /* a machine starts (again) */
    EV_FAULT,
    EV_LINE,   /* node looks whether its link to site `index` is up */
    EV_PEER,   /* likewise, of site `from`, without lasting cuts */
    EV_ROUTES, /* the routes' own time */
};

struct neb_sim_event {
    int64_t at;
    uint64_t order;
    enum neb_sim_event_kind kind;
    int node, from;
    uint64_t life; /* of the machine it belongs to; an event of another life is void */
    uint64_t id, index, version;
    uint32_t cell;
    neb_status status;
    struct neb_hash hash, root;
    struct neb_update_header update;
    bool empty;
    uint8_t *bytes;
    size_t length;
    struct neb_sim_event *next; /* among the spare ones */
};

/* One cell of a site's own state, relative to theta: u is the live model minus theta. The values are small
 * integers, so that the books balance exactly. */
struct neb_sim_own {
    float u[WIDTH];
    uint64_t version;
    struct neb_boot_update open;
    float d[WIDTH];     /* of the open update */
    uint64_t work;      /* inner steps in u */
    uint64_t work_open; /* … when the open update was captured */
};

/* An order that was really given. */
struct neb_sim_issued {
    struct neb_order order;
    bool done;
};

/* The oracle's books of one cell of one site: total = u + committed + dropped. */
struct neb_sim_books {
    int64_t total[WIDTH], committed[WIDTH], dropped[WIDTH];
};

/* A machine's part in the secure sums of one fragment. Numbers stand for secrets; 0: none. */
struct neb_sim_sum {
    uint32_t c0;
    uint16_t attempt, asked;
    uint64_t version, asked_version, number, keys[SITES];
    bool used, joined;
    uint64_t dealt;
    struct neb_sim_offer {
        uint64_t number, shared,
            numbers[SITES]; /* shared: sites with shares; numbers: for which secrets of theirs */
        bool bad;
        uint64_t bad_for; /* these sites cannot use their shares */
        struct neb_contributor entry;
    } offer[SITES][2]; /* the two newest of each site */
    uint64_t revealed, revealed_set;
    int64_t avoided[SITES]; /* until then these sites get no shares */
    struct {
        uint64_t index, mask, token[SITES];
    } reveal[SITES];
    uint8_t seed[SITES][NEB_SEED_SIZE];
    int64_t keyed_at, turn_at, missed_at;
};
/* The oracle's knowledge of one pair of secrets, and of one attempt. */
struct neb_sim_secret {
    uint16_t site;
    uint64_t number, dealt, revealed[2]; /* whose shares of the own mask, of the pair key are out */
    int threshold;
    bool used;
};
struct neb_sim_attempt {
    uint32_t c0;
    uint16_t attempt, site[SITES];
    uint64_t number[SITES], open, survivors, end, set;
};

struct neb_sim_node {
    int id;
    uint64_t secret;             /* the key of the toy signatures, one for the whole world */
    bool exists, alive, stopped; /* stopped: left or evicted for good */
    bool going;                  /* its removal was ordered */
    bool began;                  /* it has got through a greeting, in some life */
    bool leaving, departs;       /* leaving: it asked for that itself; departs: its process ends now */
    int64_t started;
    uint64_t life;
    struct neb_simdisk disk, image; /* image: an old copy, for a roll-back */
    bool has_image;
    struct neb_ledger ledger;
    struct neb_update_files updates;
    struct neb_outer *outer;
    struct neb_round *core;
    struct neb_sim_own own[CELLS_MAX];
    uint64_t checkpoint_k, last_k;
    bool paused, ended, halted, in_boot_check;
    bool sync_failed; /* a write of this life fails, or will */
    int64_t step_ms, tick_at, clock_skew;
    struct neb_routes *routes; /* with lasting cuts */
    int64_t routes_at;
    uint64_t linked;                              /* this machine's links */
    uint64_t linked_life[SITES];                  /* the lives of the machines at their other ends */
    uint64_t state_life[SITES], state_seq[SITES]; /* the newest link states that it has had */
    bool looks[SITES], drops; /* looks: EV_LINE is under way; drops: it passes nothing on */
    int actions_left;         /* crash within this many actions; < 0: never */
    struct {
        uint64_t version, index;
        float theta[WIDTH], m[WIDTH];
    } fetched[CELLS_MAX];
    /* the oracle's knowledge */
    struct neb_sim_books books[CELLS_MAX];
    struct neb_sim_books (*saved)[CELLS_MAX]; /* by checkpoint id */
    uint64_t saved_cap, checkpoint_id, seen_commit, seen_epoch, lapse_base;
    struct {
        uint32_t lapse;
        uint64_t view, ack_view, ack_head;
    } promised;
    uint64_t captured_k;
    bool damaged, was_member, was_away[CELLS_MAX];
    int away_steps[CELLS_MAX]; /* inner steps made since then */
    int64_t damage_clear;
    struct neb_sim_sum sum[2]; /* fragments */
    uint8_t lie[8192];         /* a liar: a frame that it may send again, changed */
    size_t lie_length;
};

struct neb_sim_update_fact { /* the oracle's knowledge of every update ever captured */
    struct neb_hash hash;
    struct neb_update_header header;
    struct neb_sim_books before[CELLS_MAX];
    float z[CELLS_MAX][WIDTH], r[CELLS_MAX][WIDTH], decoded[CELLS_MAX][WIDTH], scale;
    double norm;
    uint64_t durable; /* sites that ever had it on disk */
};

struct neb_sim_world {
    struct neb_sim_fault opt;
    struct neb_rng rng, disk_rng;
    int64_t now, fault_end, healed_at, end;
    uint64_t observers;        /* sites that neither vote nor train */
    uint64_t liars, roster_id; /* liars: sites that lie; roster_id: as the last frame named it */
    bool idlers;               /* the liars stay when the faults end, and give nobody any record … */
    bool botchers;             /* … or stay, and sign what they say wrongly */
    bool voiders;              /* … or stay, and end every secure sum that they lead in VOID, … */
    bool false_opens;          /* … since they open it with offers that nobody has */
    uint64_t convicted;        /* liars that an honest site has proven guilty */
    bool forked; /* two honest sites hold two histories, or one of them has a certificate of another */
    uint64_t claim_index; /* … whose record is this one; 0: none */
    struct neb_hash claim;
    struct neb_sim_event **heap, *spare;
    size_t events, event_cap;
    uint64_t order;
    struct neb_sim_node node[SITES];
    int sites;
    struct neb_round_config cfg;
    struct neb_hash genesis;
    float theta0[CELLS_MAX * WIDTH];

    /* lines: cut[a][b]: a's messages do not reach b */
    bool cut[SITES][SITES];
    bool never[SITES][SITES]; /* cut for good */
    bool lines_changed;       /* machines must look at their links */
    int flap[2];              /* the line that is down for a while after the faults; equal: none */
    struct neb_buf tape;      /* a relayed message that was delivered, to be sent again */
    int tape_to;
    uint64_t named; /* sites with an update in a record since the faults ended */
    int64_t busy[SITES][SITES], bulk[SITES][SITES]; /* bulk: with cells */
    int cell_ms; /* time that one cell takes; may be far more than fetch_ms */
    int delay_ms, loss_permille, bytes_per_ms;
    /* which faults this history has, in permille of choices */
    bool quiet;
    bool noticed;          /* links tell when a machine crashes or starts */
    int64_t protect_until; /* until then no other site may fail: a roll-back is being noticed */
    struct neb_sim_node *rolled;
    bool hurt, settled; /* hurt: a disk lost something, and not every site has made up for it yet */

    /* the oracle */
    struct neb_hash *record; /* committed, by index - 1 */
    uint64_t records, record_cap;
    struct neb_members roster; /* by the committed records */
    struct neb_outer *reference;
    struct neb_hash *leaf; /* [version][cell] */
    uint64_t leaf_cap;
    uint64_t *nonfinite; /* bit c: cell c of record i stayed as it was */
    uint64_t lastk[CELLS_MAX][SITES];
    struct neb_sim_update_fact *fact;
    size_t facts, fact_cap;
    struct neb_sim_secret *secret;
    struct neb_sim_attempt *attempt;
    size_t secrets, secret_cap, attempts, attempt_cap;
    uint64_t rounds_healed, rounds, sums_healed;
    int64_t last_round;
    bool end_seen, final_seen, healed, forced;
    int waited;                         /* seconds for sites that catch up at the end */
    int64_t end_at, final_at, disaster; /* disaster: when it was; 0: none yet */
    struct neb_order force;
    float bound;  /* by the log; 0: none */
    bool private; /* sites add noise to what they send */
    struct neb_sim_issued issued[64];
    int orders;
    struct neb_members known[64]; /* rosters that may be in effect somewhere */
    int rosters;
    struct neb_sim_result *out;
    neb_status failed;
};

#define TRACE(w, ...)                                         \
    do {                                                      \
        if ((w)->opt.trace) neb__sim_trace((w), __VA_ARGS__); \
    } while (0)
void neb__sim_trace(struct neb_sim_world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static inline uint64_t draw(struct neb_sim_world *w, uint64_t n)
{
    return neb__rng_below(&w->rng, n);
}

/* world.c */
struct neb_sim_event *neb__sim_later(struct neb_sim_world *w, int64_t delay, enum neb_sim_event_kind kind,
                                     int node); /* NULL: out of memory */
void neb__sim_send(struct neb_sim_world *w, int from, int to, enum neb_sim_event_kind kind,
                   const struct neb_sim_event *what, const uint8_t *bytes, size_t n);

/* node.c */
void neb__node_create(struct neb_sim_world *w, struct neb_sim_node *n);
void neb__node_format(struct neb_sim_world *w,
                      struct neb_sim_node *n); /* a fresh ledger, as in an empty folder */
void neb__node_start(struct neb_sim_world *w, struct neb_sim_node *n);
void neb__node_crash(struct neb_sim_world *w, struct neb_sim_node *n);
void neb__node_event(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_sim_event *ev);
void neb__node_order(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_order *o);
void neb__node_ask(struct neb_sim_world *w, struct neb_sim_node *n, uint32_t op,
                   uint64_t count); /* LEAVE, GOODBYE, CLASS */
void neb__node_checkpoint(struct neb_sim_world *w, struct neb_sim_node *n);
void neb__node_free(struct neb_sim_node *n);
void neb__node_booted(struct neb_sim_world *w, struct neb_sim_node *n);
void neb__node_peer(struct neb_sim_world *w, struct neb_sim_node *n, unsigned site, bool up);
void neb__node_noticed(struct neb_sim_world *w, struct neb_sim_node *n); /* it has crashed or started */

/* With lasting cuts: a site is reached in another way; a frame came through members. */
void neb__node_reach(struct neb_sim_world *w, struct neb_sim_node *n, unsigned site, enum neb_reach how);
void neb__node_push(struct neb_sim_world *w, struct neb_sim_node *n, unsigned to,
                    const struct neb_hash *hash);
void neb__node_frame(struct neb_sim_world *w, struct neb_sim_node *n, unsigned from, const uint8_t *bytes,
                     size_t length);

void neb__node_feed(struct neb_sim_world *w, struct neb_sim_node *n, struct neb_event *ev);

/* secure_sums.c */
void neb__toy_sums_offer(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_action *a);
/* NEB_ERR_STATE: this site cannot contribute; NEB_ERR_NOTFOUND: an offer is still on its way. */
neb_status neb__toy_sums_use(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_action *a);
void neb__toy_sums_reveal(struct neb_sim_world *w, struct neb_sim_node *n, uint64_t index);
void neb__toy_sums_message(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_sim_event *ev);
void neb__toy_sums_turn(struct neb_sim_world *w, struct neb_sim_node *n);
void neb__toy_sums_committed(struct neb_sim_world *w, const struct neb_record *rec);
void neb__toy_sums_end(struct neb_sim_world *w);

/* cut_lines.c */
void neb__cuts_plan(struct neb_sim_world *w);           /* draws the lines that are cut for good */
void neb__cuts_join(struct neb_sim_world *w, int node); /* … of a site that is new */
void neb__cuts_only(struct neb_sim_world *w);           /* mends all others */
void neb__cuts_fault(struct neb_sim_world *w); /* during the faults: other cuts, lies, a member that drops */
void neb__cuts_heal(struct neb_sim_world *w);
void neb__cuts_watch(struct neb_sim_world *w); /* after them: a line comes and goes */
void neb__cuts_look(struct neb_sim_world *w);  /* machines notice what changed */
void neb__cuts_event(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_sim_event *ev);
void neb__cuts_start(struct neb_sim_world *w, struct neb_sim_node *n);
void neb__cuts_stop(struct neb_sim_node *n);
void neb__cuts_send(struct neb_sim_world *w, struct neb_sim_node *n, unsigned to, const uint8_t *bytes,
                    size_t length);
void neb__cuts_pass_on(struct neb_sim_world *w, struct neb_sim_node *n, int from, unsigned author,
                       const struct neb_hash *hash);

/* toy_training.c */
bool neb__node_load(struct neb_sim_node *n, const struct neb_hash *hash, struct neb_buf *b,
                    struct neb_update_header *h);
void neb__toy_close(struct neb_sim_own *o); /* its update is no longer open */
void neb__toy_capture(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_action *a);
void neb__toy_apply(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_action *a);
void neb__toy_root(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_action *a);
void neb__toy_settle(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_action *a);
void neb__toy_install(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_action *a);
double neb__toy_norm(const uint8_t *bytes, size_t n, const struct neb_update_header *h);
float neb__toy_decode(const uint8_t *bytes, size_t n, const struct neb_update_header *h, uint32_t cell,
                      float out[WIDTH]);

/* signatures.c */
struct neb_seal neb__sim_seal(struct neb_sim_node *n);
void neb__sim_sign(struct neb_sim_world *w, struct neb_order *o); /* as o->signer */
/* Makes an order as an operator does who looks at `n`, signs it, and tells the oracle. NULL:
 * there is no room for more orders. */
const struct neb_order *neb__sim_order(struct neb_sim_world *w, struct neb_sim_node *n,
                                       struct neb_order what);

/* oracle.c */
void neb__oracle_violated(struct neb_sim_world *w, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void neb__oracle_captured(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_update_header *h,
                          const struct neb_hash *hash, const uint8_t *bytes, const float (*r)[WIDTH]);
void neb__oracle_durable(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_hash *hash);
void neb__oracle_prepared(struct neb_sim_world *w, struct neb_sim_node *n, uint64_t index);
void neb__oracle_sends(struct neb_sim_world *w, struct neb_sim_node *n, const uint8_t *bytes, size_t length);
/* update NULL: from the checkpoint of this id, 0: from nothing. */
void neb__oracle_restored(struct neb_sim_world *w, struct neb_sim_node *n, uint32_t cell,
                          const struct neb_hash *update, uint64_t checkpoint, bool residual);
void neb__oracle_merged(struct neb_sim_world *w, struct neb_sim_node *n, const struct neb_record *rec,
                        uint32_t cell, bool known);
void neb__oracle_checkpoint(struct neb_sim_world *w, struct neb_sim_node *n);
struct neb_sim_update_fact *neb__oracle_fact(struct neb_sim_world *w, const struct neb_hash *hash);
void neb__oracle_check(struct neb_sim_world *w, struct neb_sim_node *n);
void neb__oracle_see(struct neb_sim_world *w, struct neb_sim_node *n); /* what it has committed */
/* With lasting cuts: sites that train, as bits, and of which no record has named an update since the faults ended. */
uint64_t neb__oracle_shut_out(const struct neb_sim_world *w);
bool neb__oracle_gets_on(
    const struct neb_sim_world *w); /* work has come into the model since the faults ended */
void neb__oracle_end(struct neb_sim_world *w);
bool neb__oracle_waits(struct neb_sim_world *w); /* at the end of the time: a site needs more */
/* An honest site stops because of this certificate: it must be valid, and of another history. */
void neb__oracle_contradicted(struct neb_sim_world *w, struct neb_sim_node *n, const uint8_t *bytes,
                              size_t length);
void neb__oracle_convicted(struct neb_sim_world *w, struct neb_sim_node *n, unsigned guilty);

/* liar.c */
bool neb__sim_lies(const struct neb_sim_world *w, int site);
bool neb__liar_botches(struct neb_sim_world *w, struct neb_sim_node *n, int to, const uint8_t *bytes,
                       size_t length);
void neb__liar_sends(struct neb_sim_world *w, struct neb_sim_node *n, int to, const uint8_t *bytes,
                     size_t length);
void neb__liar_strikes(struct neb_sim_world *w); /* unasked */

/* faults.c */
void neb__faults_plan(struct neb_sim_world *w);
void neb__faults_strike(struct neb_sim_world *w);
void neb__faults_heal(struct neb_sim_world *w);

#endif
