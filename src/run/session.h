/* session.h (internal): one site of a run: the round core driven by real links, disk and parameters.
 *
 * Three threads. The caller's runs the training loop and enters neb_step(). The links' loop (src/net) only moves messages.
 * The driver's owns everything else: the core, the ledger, the outer state; it takes events from
 * a queue and carries out the core's actions in order.
 *
 * The live parameters x belong to the caller's thread. So the driver never touches them: what a round does to a cell is
 * left as an edit (add a vector, shrink towards theta, set), and neb_step() carries the edits out in order. A capture is
 * a copy of x that neb_step() makes; while the driver has not turned it into an update, edits of those cells wait.
 *
 * A cell's part of d has four uses in turn, so that a round needs no other memory of that size: the copy of x, the delta of
 * the open update, the edit that its record leaves, nothing. Edits of cells without an open update have memory of their own. */
#ifndef NEB_RUN_SESSION_H
#define NEB_RUN_SESSION_H

#include "net/net.h"

#include "codec/codec.h"
#include "outer/outer.h"
#include "round/rate.h"
#include "round/round.h"
#include "store/ledger.h"
#include "store/update_files.h"

#include <nebula/nebula.h>
#include <pthread.h>

enum neb_session_message {
    NEB_MSG_FRAME = 1, /* the core's */
    NEB_MSG_UPDATE,    /* an update, header and code */
    NEB_MSG_GET,       /* hash of an update that is wanted */
    NEB_MSG_NONE,      /* hash: not here */
    NEB_MSG_GET_CELL,  /* u32 cell */
    NEB_MSG_CELL,      /* u32 cell, u64 version, u64 index, u32 values, u32 proof hashes, theta, m, proof */
    NEB_MSG_MODEL,     /* hashes of what all sites must agree on */
    NEB_MSG_STATUS,    /* how the sender is: watch/status.h */
    NEB_MSG_COMING,    /* hash of a wanted update that is on its way already */
};

enum neb_item_type {
    NEB_ITEM_MESSAGE,
    NEB_ITEM_PEER_UP,
    NEB_ITEM_PEER_DOWN,
    NEB_ITEM_SNAPSHOT, /* neb_step() has copied the cells that a capture wants */
    NEB_ITEM_OPERATOR,
    NEB_ITEM_LOSS, /* held-out loss of the outer state */
    NEB_ITEM_FORK, /* two rosters are signed for one epoch */
};

struct neb_item {
    struct neb_item *next;
    enum neb_item_type type;
    uint16_t peer;
    uint32_t kind, op;
    double value;
    uint8_t *bytes;
    size_t size;
};

/* What all sites must agree on, one hash each. */
enum neb_agreed { NEB_AGREED_LAYOUT, NEB_AGREED_VALUES, NEB_AGREED_SETTINGS, NEB_AGREED };

enum { NEB_CAPTURES = 256 };

enum neb_edit_type { NEB_EDIT_ADD, NEB_EDIT_SHRINK, NEB_EDIT_SET };

struct neb_edit {
    struct neb_edit *next;
    enum neb_edit_type type;
    float gamma;        /* SHRINK: x <- v + gamma * (x - v) */
    const float *value; /* (values of the cell); in d, or behind this struct */
    size_t done;        /* so many of the cell's values have it: a later parameter refused to be written */
};

/* What this site has of one cell besides theta. */
struct neb_own_cell {
    uint64_t version;            /* merged up to here */
    struct neb_boot_update open; /* k 0: none */
    uint64_t work;               /* when the site began: inner steps in x - theta */
    uint64_t work_open;          /* inner steps in the open update */
    struct neb_edit *edits, **last;
};

struct neb_session_slice {
    struct neb_session_param param; /* its name is owned */
    size_t first, count;            /* in the flat vector of all parameters */
};

struct neb_fetched_cell {
    uint64_t version, index;
    float *theta, *m; /* one block */
};

/* One own update on its way: when it was pushed to the first peer, to how many it still goes. */
struct neb_update_push {
    uint64_t id;
    int64_t since; /* ns */
    double bytes;
    int left;
    bool waited; /* for a line that was down */
};

enum { NEB_PUSHES = 8 };

/* What the links measured, copied out of their thread; and the updates on their way. Under the session's lock. */
struct neb_line_stats {
    struct neb_line line[NEB_SITES_MAX];
    int64_t up_since[NEB_SITES_MAX];   /* ns: what was pushed before waited for the line, not on it */
    int64_t busy_until[NEB_SITES_MAX]; /* ns: the last acknowledgement of an update to this peer */
    double sum_bytes[NEB_SITES_MAX], sum_s[NEB_SITES_MAX]; /* updates acknowledged since the last decision */
    double goodput[NEB_SITES_MAX];                         /* bytes/s, of the newest update; 0: none yet */
    double sampled[NEB_SITES_MAX], sampled_out;            /* bytes/s told to the controller; 0: none yet */
    struct neb_update_push push[NEB_PUSHES];
    uint64_t next_push, current;
    struct neb_hash hash;          /* of the update `current` */
    uint64_t moved[NEB_SITES_MAX]; /* bytes_out at the last decision */
    int64_t all_until;             /* ns: when an update last reached everybody */
    double late_bytes,
        late_s; /* the newest that did, and how long it kept the lines busy; s 0: none since the last decision */
    double step_s; /* of one inner step, smoothed */
    double sent;   /* bytes of updates, for the hourly limit */
};

/* An update that a peer has not acknowledged yet. Its bytes are there once for all peers that it goes to. */
struct neb_flight {
    bool used;
    uint16_t peer;
    struct neb_hash hash;
    struct neb_shared *shared;
};
enum { NEB_FLIGHTS = 128 };

/* An update that was made or checked here not long ago, and waits for its record. */
struct neb_recent {
    struct neb_hash hash;
    struct neb_buf bytes; /* empty: none */
};
enum { NEB_RECENT = 32, NEB_RECENT_BYTES = 64 << 20 };

struct pending;
struct neb_device_copies;
struct neb_job_facts;
struct neb_status_board;

struct neb_session {
    struct neb_session_config config;
    struct neb_site *site;
    struct neb_net *net;
    uint16_t self;
    const struct neb_rung *fixed, *exact; /* fixed: by the job; NULL: the controller's choice */
    uint32_t fragments;
    struct neb_rate *rate;
    struct neb_rate_rung *ladder;
    struct neb_rate_decision decision; /* the newest */
    uint8_t cls;                       /* neb_rung_class, by the log */
    uint32_t budget;                   /* permille of the line; under the lock */
    double encode_took, apply_took;    /* seconds, smoothed */
    int64_t started;                   /* ns */

    struct neb_session_slice *slices;
    int n_slices;
    size_t values;
    struct neb_hash model[NEB_AGREED]; /* see enum neb_agreed */
    struct neb_hash genesis;
    struct neb_buf loaded;          /* state of the caller's checkpoint */
    struct neb_job_facts *words;    /* job_facts.h */
    struct neb_status_board *board; /* site_status.c: what the loop and the peers say; NULL: nothing yet */

    /* the driver's */
    struct neb_round *core;
    struct neb_outer *outer;
    struct neb_disk disk;
    struct neb_ledger ledger;
    struct neb_update_files updates;
    struct neb_own_cell *own;
    float *d; /* (values) see above */
    struct neb_device_copies
        *side;      /* device_copies.c; NULL: the parameters are not on a device with a side stream */
    float *work[3]; /* (NEB_CELL) each; the last one is the training loop's */
    float *decoded[NEB_SITES_MAX]; /* (NEB_CELL) each, made when needed */
    struct neb_buf made;           /* the newest own update, header and code */
    struct neb_hash made_hash;
    struct neb_buf residuals; /* the coded residual that goes with it to disk */
    uint32_t residuals_crc;
    struct neb_recent recent[NEB_RECENT];
    uint32_t next_recent;
    uint64_t last_k, checkpoint_k;
    uint32_t weight;           /* tokens per inner step, when steps were last made; 0: none since the start */
    struct neb_action capture; /* the one under way, if capturing */
    struct neb_action captures[NEB_CAPTURES]; /* those behind it */
    int n_captures;
    bool capturing;
    struct neb_fetched_cell *fetched;
    uint64_t (*covered)[2]; /* per cell: versions of its two snapshots, by slot */
    uint64_t swept;         /* updates of the records up to here are gone */
    uint64_t orphans_at;    /* at this record those that no record names were looked for */
    uint64_t
        saved_k[2]; /* own updates up to here are settled in the caller's last checkpoint, the one before */
    int64_t full_since, orders_at, removed_at;
    float *shown; /* live values while the parameters show the outer state */
    bool driver_runs;
    bool feeding;
    bool leaves;                             /* asked to be removed from the run */
    struct pending *pending, **pending_last; /* events that wait for the actions before them */

    /* shared, under lock */
    pthread_mutex_t busy; /* held by the driver while it handles an event; taken before `lock` */
    pthread_mutex_t lock;
    pthread_cond_t wake, changed;
    pthread_t driver;
    struct neb_item *head, **tail;
    size_t queued_bytes;
    bool stalled;                  /* a message was turned away: the links wait to be resumed */
    uint64_t steps_pending;        /* inner steps that the core has not heard of */
    uint64_t wake_steps;           /* so many of them wake the driver at once; fewer wait for its next turn */
    int64_t tokens_now, steps_now; /* of the present interval: for the weight */
    int64_t left_step;             /* ns: when neb_step() was left */
    struct neb_line_stats lines;
    struct neb_flight flights[NEB_FLIGHTS];
    struct neb_members members; /* as the core sees them */
    uint16_t leader;            /* or NEB_NO_SITE */
    bool ending;
    char names[NEB_SITES_MAX][NEB_NAME_SIZE];
    uint32_t edits;                                   /* that wait for neb_step() */
    bool capture_wanted, capture_taken, capture_told; /* told: the copy is there, and the driver knows */
    uint32_t snap_c0, snap_c1;
    bool paused, ended, halted, stopping;
    neb_status mismatch; /* a peer trains another model */
    uint64_t found;      /* committed when this process began */
    bool nonfinite; /* a copy of x was not finite: `why` names the parameter; until neb_step() has said so */
    bool agreed;    /* another site has told that it runs the same job */
    neb_stream *streams;                                /* open ones to other sites */
    uint64_t linked;                                    /* bit of each member (below 64) that is connected */
    struct neb_public operator_key, key[NEB_SITES_MAX]; /* of the roster */
    bool has_key[NEB_SITES_MAX];                        /* of every site that ever was a member */
    uint64_t present, witnesses;                        /* bits of the newest roster's members */
    char why[256];
    struct neb_session_status status;
};

/* A message of ours on its way: whether it is an update that the rate controller watches. */
struct neb_sending {
    int flight;    /* its place among the flights + 1; 0: none */
    uint64_t push; /* 0: no */
    int64_t since; /* ns */
    double bytes;
};

/* restore.c */
neb_status neb__session_restore(neb_session *s);
void neb__session_release(neb_session *s); /* what restore made */

/* genesis.c: the initial values, kept beside the ledger for later starts */
neb_status neb__genesis_keep(neb_session *s);
/* root: of the values when they were kept. NEB_ERR_NOTFOUND: none are; NEB_ERR_CORRUPT, NEB_ERR_CONFIG */
neb_status neb__genesis_load(neb_session *s, float *theta, struct neb_hash *root);
neb_status neb__genesis_damaged(const neb_session *s); /* NEB_ERR_CORRUPT, and what to do */

/* session_job.c */
struct neb_job;
/* This site has made its steps or had its time: once the leading site says so, the run ends as at the token target. */
neb_status neb__session_done(neb_session *s);

/* The folder is this site's and its roster knows every site of the job; NEB_ERR_CONFIG says what does not fit. */
/* What all sites must have in common: the job, the tokenizer. Before start. */
neb_status neb__session_tell_job(neb_session *s, const struct neb_job *job, const struct neb_hash *tokenizer);
neb_status neb__session_check_roster(const neb_session *s, const struct neb_job *job, int site);
const char *neb__session_folder(const struct neb_job *job, int site);
struct neb_session_config neb__session_config(const struct neb_job *job, int site);
neb_status neb__session_settings_hash(const neb_session *s, struct neb_hash *out);

/* left_out.c: the residual that an update leaves, on disk under the update's number */
void neb__left_out_begin(neb_session *s, uint64_t k);
void neb__left_out_add(neb_session *s, const float *r, size_t n); /* of the next cell */
void neb__left_out_end(neb_session *s, uint32_t c0);
/* `out`: (values of the cells [c0, c1)) zeros if none was kept under k. */
void neb__left_out_restore(neb_session *s, uint32_t c0, uint32_t c1, uint64_t k, float *out);

/* actions.c */
void neb__session_do(neb_session *s, const struct neb_action *a);
void neb__session_want_capture(neb_session *s, const struct neb_action *a); /* capture.c */
void neb__session_snapshot_taken(neb_session *s);
/* First value of cell c0, and how many there are up to c1. */
size_t neb__session_range(const neb_session *s, uint32_t c0, uint32_t c1, size_t *first);
size_t neb__session_update_max(const neb_session *s);
void neb__session_update(neb_session *s, uint16_t peer, const uint8_t *bytes, size_t n);
void neb__session_push(neb_session *s, uint16_t peer, const struct neb_hash *hash, bool asked_for);
void neb__session_serve_cell(neb_session *s, uint16_t peer, uint32_t cell);
void neb__session_cell(neb_session *s, uint16_t peer, const uint8_t *bytes, size_t n);

/* driver.c */
void neb__session_feed(neb_session *s, struct neb_event *ev);
void neb__session_send(neb_session *s, uint16_t peer, enum neb_priority priority, uint32_t kind,
                       const void *bytes, size_t n);
/* A coded update of ours or of another site; of unasked ones the rate controller watches how the newest gets through. */
void neb__session_send_update(neb_session *s, uint16_t peer, const struct neb_hash *hash, bool asked_for,
                              const void *bytes, size_t n);
bool neb__session_under_way(neb_session *s, uint16_t peer, const struct neb_hash *hash);
void neb__session_post(neb_session *s, struct neb_item *item); /* any thread; NULL is ignored */
void *neb__session_driver(void *session);
void neb__session_halt(neb_session *s, const char *why);
extern const struct neb_net_events neb__session_events;

/* stream.c */
void neb__streams_halted(neb_session *s); /* the lock is held: nobody waits for a stream any more */

/* keys.c */
void neb__session_keys(neb_session *s); /* copies the roster's; on the links' thread, or before it runs */
void neb__session_name(neb_session *s, uint16_t site, char out[NEB_NAME_SIZE]);
struct neb_seal neb__session_seal(neb_session *s);
/* orders.c: what an operator has put into the folder's run/orders; on the driver's thread */
void neb__session_orders(neb_session *s);

/* rate_control.c */
neb_status neb__session_rate_open(neb_session *s);
void neb__session_rate_close(neb_session *s);
/* Before an update is coded: the rung, or NULL: nothing is sent this time. */
const struct neb_rung *neb__session_choose(neb_session *s, uint64_t tau, bool must);
void neb__session_coded(neb_session *s, const struct neb_rung *rung, const struct neb_hash *hash,
                        double bytes, const struct neb_codec_stats *stats);
void neb__session_want_class(neb_session *s, enum neb_rung_class cls);
void neb__session_follow_class(neb_session *s, uint8_t cls); /* of the run, by the log */
double neb__session_goodput(neb_session *s); /* bytes/s of the slowest line that is up; 0: not known */
void neb__session_took(double *smoothed, double seconds);
neb_status neb__session_watch_lines(neb_session *s);
void neb__session_pushed(neb_session *s, struct neb_sending *to); /* under the lock */
void neb__session_acked(neb_session *s, const struct neb_sending *to, uint16_t peer, bool ok);

/* What the links measured of the line to a peer, at most a quarter of a second old. Any thread. */
void neb__session_line(neb_session *s, uint16_t peer, struct neb_line *out);

/* retention.c */
neb_status neb__session_keep(neb_session *s, const struct neb_hash *hash, const void *bytes, size_t n);
/* What was kept and not forgotten since, if it is still in memory; valid until the next keep. */
const struct neb_buf *neb__session_recent(neb_session *s, const struct neb_hash *hash);
void neb__session_forget(neb_session *s, const struct neb_hash *hash);
void neb__session_sweep(neb_session *s);
void neb__session_full(neb_session *s, bool full, const char *what);
neb_status neb__session_snapshot(neb_session *s, const struct neb_snapshot *snap);

/* clip.c */
/* Of what an update decodes to; infinite where it does not, or not to finite values. Uses work[1]. */
double neb__session_norm(neb_session *s, const struct neb_update_header *h, const uint8_t *code);
/* What is to be coded (z, n values) exceeds the bound: it is made shorter. */
bool neb__session_private(
    const neb_session *s); /* this site cuts or blurs what it sends, and drops the rest */
neb_status neb__session_privatize(const neb_session *s, float *z, size_t n);
bool neb__session_clip(const struct neb_action *capture, float *z, size_t n);

/* edits.c */
neb_status neb__edit_add(neb_session *s, uint32_t cell, enum neb_edit_type type, float gamma,
                         const float *value);
neb_status neb__edit_d(neb_session *s,
                       uint32_t cell); /* adds what the cell's part of d holds; d is busy until then */
/* Carries out what waits for a cell, releases it, counts it in *n. `scratch` holds NEB_CELL values. */
neb_status neb__edits_apply(neb_session *s, uint32_t cell, float *scratch, uint32_t *n);
void neb__edits_on_copy(const struct neb_own_cell *own, float *x, size_t n);
void neb__edits_free(struct neb_own_cell *own);
/* device_copies.c: the same beside the training, where the parameters lie on a device that can. `wait`: do not come back before
 * it is done. On the caller's thread, the lock held. */
neb_status neb__device_copies_open(neb_session *s); /* makes d, and s->side if it can */
void neb__device_copies_close(neb_session *s);
bool neb__device_copies_may_capture(const neb_session *s); /* no edit of the wanted cells is left */
neb_status neb__device_copies_capture(neb_session *s, size_t first, size_t n); /* begins */
neb_status neb__device_copies_captured(neb_session *s, bool wait, bool *done);
neb_status neb__device_copies_merge(neb_session *s, uint32_t cell, bool wait, uint32_t *n);

/* Puts the parameters into the run's order and hashes their names and shapes. */
neb_status neb__session_arrange(neb_session *s, struct neb_hash *layout);
/* x of a flat range to and from the parameters, wherever they are. */
neb_status neb__session_read_x(neb_session *s, size_t first, size_t n, float *out);
neb_status neb__session_write_x(neb_session *s, size_t first, size_t n, const float *in);

#endif
