/* session.h (internal): one site of a run: the round core driven by real links, disk and parameters.
 *
 * Three threads. The caller's runs the training loop and enters neb_step(). The links' loop (src/net) only
 * moves messages. The driver's owns everything else: the core, the ledger, the outer state; it takes events
 * from a queue and carries out the core's actions in order.
 *
 * A session owns six parts, each with a header:
 *
 *     mirror    live parameters, cells, edits and captures        caller and driver; the session's `lock`
 *     updates   updates in memory and on disk                     the driver alone
 *     lines     lines as they are measured, updates on their way  all threads; a lock of its own
 *     members   names, keys and connections of the others         all threads; a lock of its own
 *     driver    the queue of items, events that wait              all threads post; the queue has a lock
 *     quotas    what was refused to whom                          all threads; a lock of its own
 *
 * Order of the locks: `busy`, then `lock`, then one of those of a part or of a stream, which are leaves:
 * nothing is locked while one of them is held. The driver holds `busy` while it handles an event; another
 * thread that takes it finds the driver's state between two events, where everything fits together. */
#ifndef NEB_RUN_SESSION_H
#define NEB_RUN_SESSION_H

#include "run/agreement.h"
#include "run/driver.h"
#include "run/lines.h"
#include "run/members_view.h"
#include "run/run_folder.h"
#include "run/mirror.h"
#include "run/news.h"
#include "run/privacy.h"
#include "run/quorum_fact.h"
#include "run/quota.h"
#include "run/updates.h"
#include "run/waiting.h"
#include "run/tempo.h"
#include "round/routes.h"
#include "store/ledger.h"

#include <sys/types.h>

enum neb_session_message {
    NEB_MSG_FRAME = 1,   /* the core's */
    NEB_MSG_UPDATE,      /* an update, header and code */
    NEB_MSG_GET,         /* hash of an update that is wanted */
    NEB_MSG_NONE,        /* hash: not here */
    NEB_MSG_GET_CELL,    /* u32 cell */
    NEB_MSG_CELL,        /* u32 cell, u64 version, u64 index, u32 values, u32 proof hashes, theta, m, proof */
    NEB_MSG_MODEL,       /* hashes of what all sites must agree on */
    NEB_MSG_STATUS,      /* how the sender is: watch/status.h */
    NEB_MSG_COMING,      /* hash of a wanted update that is on its way already */
    NEB_MSG_LINK_STATES, /* who is linked to whom: round/routes.c */
    NEB_MSG_RELAYED,     /* passed on for a member: round/relay.c */
    NEB_MSG_SUM_KEYS,    /* of a secure sum: privacy/offer.h */
    NEB_MSG_SUM_OFFER,
    NEB_MSG_SUM_REVEAL,
};

/* All sites must agree on these, one hash each. */
enum neb_agreed { NEB_AGREED_LAYOUT, NEB_AGREED_VALUES, NEB_AGREED_SETTINGS, NEB_AGREED };

struct neb_job_facts;
struct neb_status_board;
struct neb_rate_control;
struct neb_end;
struct neb_applying;
struct neb_fetched_cell;
struct neb_sums;

/* fixed_pace.c: how far a run of fixed pace is. */
struct neb_fixed_pace {
    int64_t copies, merged; /* taken, and rounds merged, since the first step */
    bool settling;          /* no step follows: every round that is under way is due now */
};

struct neb_session {
    /* settled before the driver runs */
    struct neb_session_config config;
    struct neb_site *site;
    struct neb_net *net;
    uint16_t self;
    const struct neb_rung *fixed, *exact; /* fixed: by the job; NULL: the controller's choice */
    uint32_t fragments;
    int64_t started;                   /* ns */
    pid_t pid;                         /* of the process whose threads run it */
    struct neb_hash model[NEB_AGREED]; /* see enum neb_agreed */
    struct neb_hash genesis;           /* of this run */
    char run[NEB_RUN_NAME_SIZE];       /* its name; "": the folder holds one run */
    struct neb_influence influence;    /* the rule of the genesis */
    enum neb_quorum_rule quorum;       /* likewise */
    bool secure;                       /* updates are masked: secure.h */
    struct neb_buf loaded;             /* state of the caller's checkpoint */

    /* the parts */
    struct neb_mirror mirror;
    struct neb_updates updates;
    struct neb_lines lines;
    struct neb_members_view members;
    struct neb_driver driver;
    struct neb_quotas quotas;
    struct neb_news news;

    /* the driver's alone */
    struct neb_round *core;
    struct neb_disk disk;
    struct neb_ledger ledger;
    struct neb_rate_control *control;   /* rate_control.c */
    struct neb_end *end;                /* end.h */
    struct neb_session_privacy privacy; /* privacy.h */
    struct neb_applying *applying;      /* apply.c */
    struct neb_tempo tempo;             /* tempo.h */
    struct neb_sums *sums;              /* secure.h; NULL: updates are not masked */
    struct neb_fetched_cell *fetched;   /* peer_cells.h */
    struct neb_agreement agreement;     /* agreement.h */
    struct neb_routes *routes;          /* relaying.h; NULL: streams alone */
    uint64_t said_far;                  /* bits of members that the log says are reached through others */
    uint64_t routed;                    /* … whose keys the routes go by: */
    struct neb_public routed_key[NEB_SITES_MAX];

    /* the caller's alone */
    int64_t left_step; /* ns: when neb_step() was left */
    bool step_is_open; /* neb_step_counted() has counted a step whose copies and edits are still due */
    struct neb_fixed_pace pace;

    pthread_mutex_t busy; /* held by the driver while it handles an event */

    /* how the run stands, under `lock`, and what the mirror says is under it */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool paused, ended, halted, ending;
    bool keeps_outer;    /* the log's outer step counts, not the job's */
    int64_t run_steps;   /* of the furthest site, by the log */
    neb_status mismatch; /* a peer trains another model */
    bool stopped;        /* its threads are joined, its links closed (session.c) */
    bool finished;       /* this site makes no more steps (finish.c) */
    bool nonfinite; /* a copy of x was not finite: `why` names the parameter; until neb_step() has said so */
    bool agreed;    /* another site has told that it runs the same job */
    char why[256];
    struct neb_session_status status;
    struct neb_waiting waiting;     /* for whom and for what this site waits */
    int64_t greetings_dropped;      /* by the links */
    uint64_t scaled[NEB_SITES_MAX]; /* updates of each site that were made shorter or left out */
    uint64_t capped;                /* this site's updates that counted with fewer tokens than they had */
    neb_stream *streams;            /* open ones to other sites */
    struct neb_job_facts *facts;    /* job_facts.h; NULL: the caller gave none */
    struct neb_status_board *board; /* site_status.c: statuses of the loop and of the peers; NULL: none yet */
    struct neb_session *next_open;  /* at_exit.c */
};

/* ---- start and end ------------------------------------------------------------------------------------- */

/* restore.c */
neb_status neb__session_restore(neb_session *s);
void neb__session_release(neb_session *s); /* what restore made, and the mirror */

/* own_state.c: the site's own state of the cells, from a checkpoint and the updates on disk */
neb_status neb__own_state_restore(neb_session *s, const struct neb_hash *updates, int n);

/* genesis.c: the initial values, kept beside the ledger for later starts */
neb_status neb__genesis_keep(neb_session *s);
/* root: of the values when they were kept. NEB_ERR_NOTFOUND: none are; NEB_ERR_CORRUPT, NEB_ERR_CONFIG */
neb_status neb__genesis_load(neb_session *s, float *theta, struct neb_hash *root);
neb_status neb__genesis_damaged(const neb_session *s); /* NEB_ERR_CORRUPT, and what to do */

/* step.c: for a caller whose parameters are not always up to date where they were registered. With on_request the
 * session reads and changes them only in the call of neb_step() that follows an answer of true: there is a copy to
 * take or a change to make, or there may be. The caller then brings the parameters up to date first. */
void neb__session_on_request(neb_session *s, bool on);
bool neb__session_asks(neb_session *s);
/* The values that rounds have changed since the last call, in the run's order; *n 0: none. */
void neb__session_touched(neb_session *s, size_t *first, size_t *n);

/* session.c: neb_session_start() that calls idle(arg) now and then while it waits. */
neb_status neb__session_start(neb_session *s, double wait_s, void (*idle)(void *arg), void *arg);

/* session.c: this site has made its steps or had its time: once the leading site says so, the run ends as at
 * the token target. */
neb_status neb__session_done(neb_session *s);

/* fixed_pace.c: wan.merge_after. The lock is held. */
bool neb__fixed_pace_is_on(const neb_session *s);
void neb__fixed_pace_began(neb_session *s);           /* at the first step */
bool neb__fixed_pace_copy_due(const neb_session *s);  /* the next copy must be taken before the next step */
bool neb__fixed_pace_merge_due(const neb_session *s); /* the next round must be merged before the next step */
bool neb__fixed_pace_may_merge(const neb_session *s); /* and it is there */
/* This site has made its last step: true once every round under way is merged. Takes the lock. */
bool neb__session_settled(neb_session *s);

/* finish.c: on the driver's thread, at every turn */
void neb__session_finish_turn(neb_session *s);

/* session.c: leaves the run and joins the session's threads. The memory stays. */
void neb__session_stop(neb_session *s);

/* at_exit.c */
neb_status neb__exit_watch(neb_session *s); /* before its threads run */
/* Around the closing of any session. False: leave it alone, since the process is exiting, or is a child that
 * has the session's memory and none of its threads. True owes an end. */
bool neb__exit_close_begin(neb_session *s);
void neb__exit_close_end(void);

/* step.c: so many seconds from now by the clock that `changed` waits by */
struct timespec neb__step_until(double seconds);

/* session_job.c */
struct neb_job;
/* Tells which job, tokenizer and frozen weights all sites must have in common. frozen NULL: none in few bits. textless: this site
 * has no text, and its corpora are not compared; tokenizer NULL: nor its tokenizer. cut: which layers are at which site of a pipeline;
 * NULL: it is none. Before start. */
neb_status neb__session_tell_job(neb_session *s, const struct neb_job *job, const struct neb_hash *tokenizer,
                                 const struct neb_hash *frozen, bool textless, const char *cut);
/* The folder is this site's and its roster knows every site of the job; NEB_ERR_CONFIG says what does not
 * fit. */
neb_status neb__session_check_roster(const neb_session *s, const struct neb_job *job, int site);
/* The same before anything is opened, so that a site without a folder or a roster hears at once what to run. */
neb_status neb__session_check_folder(const struct neb_job *job, int site);
/* What the job leaves to the program, by the rules of the roster in the site's folder. */
neb_status neb__session_settings(struct neb_job *job, int site);
const char *neb__session_folder(const struct neb_job *job, int site);
/* Before the start: the job leaves the outer step to the program. What it means follows from the job, which may have grown since;
 * a log goes on with the outer step that it has. */
void neb__session_keep_outer(neb_session *s);
struct neb_session_config neb__session_config(const struct neb_job *job, int site);
neb_status neb__session_settings_hash(const neb_session *s, struct neb_hash *out);

/* ---- on the driver's thread ---------------------------------------------------------------------------- */

/* actions.c */
void neb__session_do(neb_session *s, const struct neb_action *a);
/* Stops this site if the newest signed roster lacks it, even when no peer sends it the record that says so. */
void neb__session_heed_chain(neb_session *s);

/* apply.c */
neb_status neb__applying_open(neb_session *s);
void neb__applying_close(neb_session *s);
void neb__session_apply(neb_session *s, const struct neb_action *a);

/* influence.c: the rule of the genesis, and the updates that it makes shorter */
neb_status neb__session_influence_load(
    neb_session *s);                            /* NEB_ERR_CONFIG: a rule that this version does not know */
bool neb__session_robust(const neb_session *s); /* only dense rungs can be combined */
/* An update of the site entered with this factor. */
void neb__session_scaled(neb_session *s, uint64_t record, uint16_t site, double norm, float scale);
/* A record names an update of the site and does not use it, for its length. */
void neb__session_rejected(neb_session *s, uint64_t record, uint16_t site);
/* Says it if this site's update in the record counts with fewer tokens a step than it had. */
void neb__session_capped(neb_session *s, const struct neb_record *rec);
/* How many in all; `text` says whose: `c: 412`. */
uint64_t neb__session_scaled_text(neb_session *s, char *text, size_t size);

/* keys.c */
struct neb_seal neb__session_seal(neb_session *s);
bool neb__session_observes(neb_session *s); /* by the roster this site neither votes nor trains, ever */
uint64_t neb__session_first_operators(neb_session *s); /* the set with which the log begins */

/* relaying.c: a control message to a member in reach: over its link, or through members if there is none */
void neb__session_reach(neb_session *s, uint16_t peer, uint32_t kind, const void *bytes, size_t n);

/* orders.c: what an operator has put into the folder's run/orders */
void neb__session_orders(neb_session *s);

/* tempo.c: the records up to this one are counted; this site's steps beside those of the fastest, at most 1; and, from any
 * thread, the steps of the furthest site, this one included (0: not known, or of no account in a run of fixed pace). */
void neb__session_tempo_follow(neb_session *s, uint64_t record);
double neb__session_tempo(neb_session *s);
void neb__session_tempo_hear(neb_session *s,
                             const struct neb_update_header *h); /* an update of another site came */
int64_t neb__session_run_steps(neb_session *s);

/* rate_control.c */
neb_status neb__session_rate_open(neb_session *s);
void neb__session_rate_close(neb_session *s);
/* Before an update is coded: the rung, or NULL: nothing is sent this time. */
const struct neb_rung *neb__session_choose(neb_session *s, uint64_t tau, bool must);
void neb__session_coded(neb_session *s, const struct neb_rung *rung, const struct neb_hash *hash,
                        double bytes, const struct neb_codec_stats *stats);
void neb__session_want_class(neb_session *s, enum neb_rung_class cls);
void neb__session_follow_class(neb_session *s, uint8_t cls);        /* of the run, by the log */
void neb__session_follow_budget(neb_session *s, uint32_t permille); /* likewise */
/* Making an update, applying a record took so long. */
void neb__session_encode_took(neb_session *s, double seconds);
void neb__session_apply_took(neb_session *s, double seconds);
void neb__session_hear_loss(neb_session *s, double loss);

/* clip.c */
/* The norm of the values that an update decodes to; infinite if it does not decode, or not to finite values.
 * bytes: header and code. Uses work[0] and work[1]. */
double neb__session_norm(neb_session *s, const struct neb_update_header *h, const uint8_t *bytes);
/* Makes z (n values) shorter if it exceeds the run's bound; true: it did. */
bool neb__session_clip(const struct neb_action *capture, float *z, size_t n);

/* ---- on any thread ------------------------------------------------------------------------------------- */

/* links.c */
void neb__session_send(neb_session *s, uint16_t peer, enum neb_priority priority, uint32_t kind,
                       const void *bytes, size_t n);
/* A coded update of ours or of another site; of unasked ones the rate controller watches how the newest gets
 * through. */
void neb__session_send_update(neb_session *s, uint16_t peer, const struct neb_hash *hash, bool asked_for,
                              const void *bytes, size_t n);
/* A cell that neb__lines_cell_begin() allows. */
void neb__session_send_cell(neb_session *s, uint16_t peer, uint32_t cell, const void *bytes, size_t n);
enum neb_traffic neb__traffic_of(uint32_t kind, bool asked_for);
void neb__session_resume_links(neb_session *s); /* there is room for messages again */
/* The line to a peer as the links measured it, at most a quarter of a second ago. */
void neb__session_line(neb_session *s, uint16_t peer, struct neb_line *out);
neb_status neb__session_watch_lines(neb_session *s);
extern const struct neb_net_events neb__session_events;

/* stream.c */
void neb__streams_halted(neb_session *s); /* the lock is held: nobody waits for a stream any more */

#endif
