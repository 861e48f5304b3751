/* world.h: the simulated world, shared by the simulator's files.
 *
 *     world.c   time, events, lines          node.c    one machine: disk, outer state, toy trainer, core
 *     oracle.c  the invariants                faults.c  what goes wrong, and when
 */
#ifndef NEB_SIM_WORLD_H
#define NEB_SIM_WORLD_H

#include "base/buf.h"
#include "base/rng.h"
#include "outer/outer.h"
#include "round/round.h"
#include "sim/sim.h"
#include "sim/simdisk.h"
#include "store/ledger.h"
#include "store/update_files.h"

enum { WIDTH = 3, CELLS_MAX = 4, SITES = 16 /* machines of one history */ };

enum rung {
    RUNG_COARSE = 0,
    RUNG_EXACT = 1,
    RUNG_SPARSE = 2, /* one value of a cell, exactly */
    RUNG_BOMB = 8 /* overflows when applied */,
    RUNG_BAD = 9 /* rejected */
};

enum kind {
    EV_FRAME,   /* a frame of the core arrives */
    EV_PAYLOAD, /* payload bytes arrive */
    EV_GET,     /* somebody wants a payload */
    EV_NONE,    /* … which that peer does not have */
    EV_GETCELL,
    EV_CELL,
    EV_TICK,
    EV_WRITTEN,
    EV_STEP,
    EV_CAPTURED,
    EV_STORED, /* a payload is durable here */
    EV_APPLIED,
    EV_ROOT,
    EV_START, /* a machine starts (again) */
    EV_FAULT,
};

struct event {
    int64_t at;
    uint64_t order;
    enum kind kind;
    int node, from;
    uint64_t life; /* of the machine it belongs to; others are void */
    uint64_t id, index, version;
    uint32_t cell;
    neb_status status;
    struct neb_hash hash, root;
    struct neb_parcel parcel;
    bool empty;
    uint8_t *bytes;
    size_t length;
    struct event *next; /* among the spare ones */
};

/* One cell of a site's own state, in coordinates relative to theta: x is the live model minus theta. The values are
 * small integers, so that the books balance exactly. */
struct own {
    float u[WIDTH];
    uint64_t version;
    struct neb_boot_parcel open;
    float d[WIDTH];     /* of the open parcel */
    uint64_t work;      /* inner steps in u */
    uint64_t work_open; /* … when the open parcel was captured */
};

/* An order that somebody really gave. */
struct issued {
    struct neb_order order;
    bool done;
};

/* The oracle's books of one cell of one site: total = u + e + committed + dropped. */
struct books {
    int64_t total[WIDTH], committed[WIDTH], dropped[WIDTH];
};

struct node {
    int id;
    uint64_t secret;             /* the toy signatures' key: of the whole world */
    bool exists, alive, stopped; /* stopped: left or evicted for good */
    bool going;                  /* somebody asked for its removal */
    bool leaving, departs;       /* it asked for that itself; its process ends now */
    int64_t started;
    uint64_t life;
    struct neb_simdisk disk, image; /* image: an old copy, for a roll-back */
    bool has_image;
    struct neb_ledger ledger;
    struct neb_payloads payloads;
    struct neb_outer *outer;
    struct neb_round *core;
    struct own own[CELLS_MAX];
    uint64_t checkpoint_k, last_k;
    bool paused, ended, halted, in_boot_check;
    int64_t step_ms, tick_at, clock_skew;
    int actions_left; /* crash within this many actions; < 0: never */
    struct {
        uint64_t version, index;
        float theta[WIDTH], m[WIDTH];
    } fetched[CELLS_MAX];
    /* the oracle's knowledge */
    struct books books[CELLS_MAX];
    struct books (*saved)[CELLS_MAX]; /* by checkpoint id */
    uint64_t saved_cap, checkpoint_id, seen_commit, seen_epoch, lapse_base;
    struct {
        uint32_t lapse;
        uint64_t view, ack_view, ack_head;
    } promised;
    uint64_t captured_k;
    bool damaged, was_member, was_away[CELLS_MAX];
    int away_steps[CELLS_MAX]; /* inner steps made since then */
    int64_t damage_clear;
};

struct parcel_fact { /* what the oracle knows of every parcel ever captured */
    struct neb_hash hash;
    struct neb_parcel header;
    struct books before[CELLS_MAX];
    float z[CELLS_MAX][WIDTH], r[CELLS_MAX][WIDTH], decoded[CELLS_MAX][WIDTH], scale;
    double norm;
    uint64_t durable; /* sites that ever had it on disk */
};

struct world {
    struct neb_sim_fault opt;
    struct neb_rng rng, disk_rng;
    int64_t now, fault_end, end;
    struct event **heap, *spare;
    size_t events, event_cap;
    uint64_t order;
    struct node node[SITES];
    int sites;
    struct neb_round_config cfg;
    struct neb_hash genesis;
    float theta0[CELLS_MAX * WIDTH];

    /* lines: cut[a][b]: a's messages do not reach b */
    bool cut[SITES][SITES];
    int64_t busy[SITES][SITES], bulk[SITES][SITES]; /* bulk: with cells */
    int cell_ms;                                    /* that one cell takes; may be far more than fetch_ms */
    int delay_ms, loss_permille, bytes_per_ms;
    /* which faults this history has, in permille of choices */
    bool quiet;
    int64_t protect_until; /* nobody else may fail before: a roll-back is being noticed */
    struct node *rolled;
    bool hurt, settled; /* hurt: a disk lost something, and not everybody has made up for it since */

    /* the oracle */
    struct neb_hash *record; /* committed, by index - 1 */
    uint64_t records, record_cap;
    struct neb_members roster; /* by the committed records */
    struct neb_outer *reference;
    struct neb_hash *leaf; /* [version][cell] */
    uint64_t leaf_cap;
    uint64_t *nonfinite; /* bit c: cell c of record i stayed */
    uint64_t lastk[CELLS_MAX][SITES];
    struct parcel_fact *fact;
    size_t facts, fact_cap;
    uint64_t rounds_healed, rounds;
    int64_t last_round;
    bool end_seen, final_seen, healed, forced;
    int64_t end_at, final_at, disaster; /* disaster: when it was; 0: none yet */
    struct neb_order force;
    float bound;  /* by the log; 0: none */
    bool private; /* sites add noise to what they send */
    struct issued issued[64];
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
void neb__sim_trace(struct world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static inline uint64_t draw(struct world *w, uint64_t n)
{
    return neb__rng_below(&w->rng, n);
}

/* world.c */
struct event *neb__sim_later(struct world *w, int64_t delay, enum kind kind,
                             int node); /* NULL: out of memory */
void neb__sim_send(struct world *w, int from, int to, enum kind kind, const struct event *what,
                   const uint8_t *bytes, size_t n);

/* node.c */
void neb__node_create(struct world *w, struct node *n);
void neb__node_format(struct world *w, struct node *n); /* a fresh ledger, as in an empty folder */
void neb__node_start(struct world *w, struct node *n);
void neb__node_crash(struct world *w, struct node *n);
void neb__node_event(struct world *w, struct node *n, const struct event *ev);
void neb__node_order(struct world *w, struct node *n, const struct neb_order *o);
void neb__node_ask(struct world *w, struct node *n, uint32_t op, uint64_t count); /* LEAVE, GOODBYE, CLASS */
void neb__node_checkpoint(struct world *w, struct node *n);
void neb__node_free(struct node *n);
void neb__node_booted(struct world *w, struct node *n);
void neb__node_peer(struct world *w, struct node *n, unsigned site, bool up);

/* toy_training.c */
bool neb__node_load(struct node *n, const struct neb_hash *hash, struct neb_buf *b, struct neb_parcel *h);
void neb__toy_close(struct own *o); /* its parcel is no longer open */
void neb__toy_capture(struct world *w, struct node *n, const struct neb_action *a);
void neb__toy_apply(struct world *w, struct node *n, const struct neb_action *a);
void neb__toy_root(struct world *w, struct node *n, const struct neb_action *a);
void neb__toy_settle(struct world *w, struct node *n, const struct neb_action *a);
void neb__toy_install(struct world *w, struct node *n, const struct neb_action *a);
double neb__toy_norm(const uint8_t *bytes, size_t n, const struct neb_parcel *h);
float neb__toy_decode(const uint8_t *bytes, size_t n, const struct neb_parcel *h, uint32_t cell,
                      float out[WIDTH]);

/* signatures.c */
struct neb_seal neb__sim_seal(struct node *n);
void neb__sim_sign(struct world *w, struct neb_order *o); /* as o->signer */
/* Words an order as the operator does who looks at `n`, signs it, and lets the oracle know. NULL: no more of them. */
const struct neb_order *neb__sim_order(struct world *w, struct node *n, struct neb_order what);

/* oracle.c */
void neb__violated(struct world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void neb__oracle_captured(struct world *w, struct node *n, const struct neb_parcel *h,
                          const struct neb_hash *hash, const uint8_t *bytes, const float (*r)[WIDTH]);
void neb__oracle_durable(struct world *w, struct node *n, const struct neb_hash *hash);
void neb__oracle_prepared(struct world *w, struct node *n, uint64_t index);
void neb__oracle_sends(struct world *w, struct node *n, const uint8_t *bytes, size_t length);
/* parcel NULL: from the checkpoint of this id, 0: from nothing. */
void neb__oracle_restored(struct world *w, struct node *n, uint32_t cell, const struct neb_hash *parcel,
                          uint64_t checkpoint, bool residual);
void neb__oracle_merged(struct world *w, struct node *n, const struct neb_record *rec, uint32_t cell,
                        bool known);
void neb__oracle_checkpoint(struct world *w, struct node *n);
struct parcel_fact *neb__fact(struct world *w, const struct neb_hash *hash);
void neb__oracle_check(struct world *w, struct node *n);
void neb__oracle_end(struct world *w);

/* faults.c */
void neb__faults_plan(struct world *w);
void neb__fault(struct world *w);
void neb__faults_heal(struct world *w);

#endif
