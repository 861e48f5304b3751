/* core.h: the state of the round core, shared by its files and by nobody else.
 *
 *     round.c       create, events, actions, timers
 *     log.c         the log: append, check, commit
 *     log_disk.c    the log on disk, and promises
 *     log_take.c    records from peers
 *     log_ask.c     records that are asked for and given
 *     greeting.c    greetings after a start
 *     view.c        elections, following a leader
 *     votes.c       votes that count
 *     idle.c        leaders that commit nothing
 *     certify.c     acknowledgements and certificates
 *     autograph.c   leaders sign the logs of their views
 *     guilt.c       statements that convict their author (by the rules of proof.c)
 *     secure.c      sums that nobody can take apart
 *     lead.c        the leader: acknowledgements, closing rounds, roster
 *     state_root.c  state roots and who signed them
 *     update_table.c updates known by their hash
 *     committed.c   applying, catching up, capturing
 *     operator.c    orders: which hold, how they become records
 *     waits.c       what the site waits for, to be shown
 */
#ifndef NEB_ROUND_CORE_H
#define NEB_ROUND_CORE_H

#include "base/mem.h"
#include "round/frame.h"
#include "round/round.h"

enum {
    ROOTS = 16 /* state roots remembered */,
    PAST = 1024 /* trusted ones, while catching up */,
    ORDERS = 8 /* waiting at the leader */,
    ACKS = 24 /* of one kind that are kept of a site: more than can be under way */,
    SAID_KEPT = 64 /* own statements that need not be signed again */,
    VOTES_KEPT = 32, /* bits of a number */
    AUTOGRAPHS = 32, /* views whose leader's signature is kept: bits of a number */
    NOTES = 24       /* texts that were said lately: as many as there are */
};

/* Nobody signs how high a view is. A frame from more than a leap above this site's view says only that its sender is up there.
 * A member that does not lead pushes a site by at most a push at a time. A leader follows by half a leap at a time, so it
 * outruns whoever pushes. No run reaches the greatest view: at one push a second that takes sixty years. */
#define NEB_VIEW_LEAP ((uint64_t)1 << 32)
#define NEB_VIEW_PUSH (NEB_VIEW_LEAP / 8)
#define NEB_VIEW_MAX  ((uint64_t)1 << 60)

struct neb_core_entry {
    uint8_t *bytes;
    size_t length;
    struct neb_hash hash;
    struct neb_record *record;
};

struct neb_core_cell {
    uint64_t v_log;  /* version by the committed log */
    uint64_t v_cur;  /* version by the log up to the cursor */
    uint64_t v_app;  /* version of theta and m here */
    uint64_t v_site; /* the site's own updates in records below this version are merged */
    bool fetching, away;
    int fetch_tries;
    int64_t fetch_at;     /* when to ask again */
    uint64_t asked;       /* peers that may be sending it */
    uint64_t refused;     /* … that have said, in this turn, that they cannot */
    int64_t asked_at;     /* when the first of them was asked */
    int64_t last_at;      /* when fetch_from was asked */
    int64_t replay_until; /* fetching failed: until then updates are tried instead */
    uint16_t fetch_from;
    struct neb_boot_update open; /* the site's own open update; k 0: none */
    int64_t base;                /* the work since this inner step is uncommitted */
    int64_t captured;            /* inner step of the open update's capture */
    int64_t since;               /* steps at the last capture */
    bool exact;                  /* the last capture was requested after END */
    bool clean;                  /* … and found nothing left to send; or was the last, and is committed */
    struct neb_hash cell_root;   /* of a fetched cell that waits until its root is trusted */
    uint64_t cell_index, cell_version;
};

struct neb_core_update {
    struct neb_hash hash;
    struct neb_update_header header; /* when held */
    bool held, needed, used;         /* used: named by a committed record */
    bool outdated;                   /* its site has had another key since: no record may name it */
    bool looked;                     /* this site's disk was searched: it is not there */
    bool vain;                       /* all peers were asked, and the last of them did not answer */
    bool unwanted;  /* its author has signed too many: it is fetched only if a record names it */
    int64_t errand; /* when a neighbour first asked for it that can get it from nobody else; 0: none did */
    uint8_t reject;
    double norm;
    uint64_t index; /* of the record that used it */
    uint64_t have;  /* leader: members that said HAVE in this view; others: holders that pings name */
    uint64_t lack;  /* peers that said they do not have it */
    uint16_t
        by; /* the site that named it first, or its author; NEB_NO_SITE: a record, or it came by itself */
    uint64_t seen_version;            /* of the fragment that was farthest on, when it was first named */
    int64_t seen, fetch_at, coming;   /* coming: since when a peer says that it is on its way … */
    uint16_t fetch_from, coming_from; /* … which one, plus 1 */
};

struct neb_core_peer {
    bool up, far;  /* far: it is reached through members */
    int64_t heard; /* when its last frame came */
    int64_t
        owed; /* when it was first asked for an update or a cell since it last said anything; 0: it owes none */
    int64_t chain;  /* when the newer roster was last sent */
    int64_t shown;  /* when the order behind this site's roster was */
    uint64_t acked; /* it holds the log up to this index durably in the present view */
    uint32_t ack_lapse;
    uint64_t view_seen, head_seen; /* the highest promise remembered of it */
    uint32_t lapse_seen;           /* … and the lapse of that promise */
    uint64_t life, greeted;        /* the highest incarnation that greeted; that of the last greeting */
    bool spoke;                    /* incarnation `life` has taken part since */
    bool greets;                   /* it has greeted, and taken part in nothing since */
    uint32_t epoch_seen;
    bool contributes, clean, done, gone, rootless, in_view; /* in_view: acked is of the present view */
    uint64_t hello_nonce;                                   /* an answer is owed once the lapse is durable */
    uint32_t hello_lapse;
    bool forgot; /* it remembers less than it has told others */
    bool odd;    /* its state root differs from a quorum's */
    uint64_t roots_for,
        roots_at;             /* records that were hashed for it, of late; up to which one that is counted */
    uint64_t applied, commit; /* as it says */
    uint16_t knows[NEB_SITES_MAX];    /* lapses on its disk, as it says */
    struct neb_said *acks;            /* (2 * ACKS) its acknowledgements; NULL: none yet */
    int64_t raise_at, unbacked_until; /* when its higher view counts again; its log was asked for in vain */
    int raises, doubts;               /* doubts: claims without a proof, of late */
    int unbacked;                     /* times in a row that its log was asked for in vain */
    int64_t doubted;
    int broken;                          /* times that an update did not come that it said was on its way */
    uint64_t log_first;                  /* it was asked for its records from here on; 0: it has answered */
    int64_t log_asked, log_wait, log_ms; /* when; how long the answer may take; how long one took */
    double log_room;                     /* bytes of records that it may be given now */
    int64_t log_room_at;
    int proofs; /* of guilt that it has shown, of late */
    int64_t proofs_at;
    uint64_t proved; /* the certificate that was sent to it last, and when */
    int64_t proved_at;
};

struct neb_core_root {
    uint64_t index;
    struct neb_hash root;
    uint64_t agree;   /* sites whose signature of this root is here */
    uint64_t consent; /* leader: voters that could not report a root when this one became trusted */
    bool trusted;
    uint8_t signature[NEB_SITES_MAX][NEB_SEAL_SIZE];
};

/* The content of the acked mark. */
struct neb_core_promise {
    uint64_t view, normal, head, commit;
    uint32_t incarnation, lapse[NEB_SITES_MAX];
};

/* What a site has offered for a sum. */
struct neb_core_offer {
    uint16_t attempt; /* 0: nothing */
    uint64_t version, shared;
    struct neb_contributor entry;
};

/* The sums of one fragment. */
struct neb_core_sum {
    uint64_t open, survivors; /* by the committed log: records of the attempt under way; 0: none */
    uint16_t attempt;         /* the last one that was opened */
    uint16_t offered;         /* this site was asked to offer for this attempt, … */
    uint64_t offered_version; /* … at this version */
    uint16_t captured;        /* its update for this attempt is made */
    uint16_t unable;          /* it cannot contribute to this one */
    uint64_t revealed;        /* its shares for this SURVIVORS are revealed */
    uint64_t seeds_for;       /* the seeds are of this one */
    bool broken;              /* … and there will be none */
    uint8_t seed[NEB_SITES_MAX][NEB_SEED_SIZE];
    int64_t since;                /* leader: since when it waits; 0: not yet */
    uint8_t voids[NEB_SITES_MAX]; /* since the last RESULT: attempts that ended in VOID under each leader */
    struct neb_core_offer offer[NEB_SITES_MAX];
};

struct neb_round {
    struct neb_round_config cfg;
    struct neb_round_config usual; /* its times, before a slow line made them longer */
    uint16_t self;
    int64_t now;
    enum neb_round_state state;
    bool empty;       /* the disk held no promise at the start */
    bool booted;      /* the ledger is read */
    bool leaves_view; /* what this site acknowledged in it was displaced */
    bool forgets;     /* a certificate shows that it forgot what it acknowledged */
    bool damaged, forgot, ended, ending, conflict, paused, paused_end;
    bool leader_left; /* the last leader said goodbye, and nobody has come since */
    char halt_text[160];
    struct {
        const char *text;
        int64_t at;
    } noted[NOTES];
    int noted_next;

    /* the log; log[i] has index i + 1 */
    struct neb_core_entry *log;
    uint64_t head, log_cap, commit;
    struct neb_members roster; /* in effect: by the last committed change */
    uint64_t ever;             /* sites that were members at some time */
    uint64_t *lastk;           /* [cells][NEB_SITES_MAX], by the committed log */
    uint64_t *newest_b;        /* likewise: an update of the site must be made at this version or later */
    uint64_t rekeyed;          /* sites that have had another key */
    uint64_t observers;        /* members that never vote */
    uint64_t tokens;           /* committed: each counts once, whatever the number of fragments */
    uint64_t token_cells;      /* the same, times the cells that have learned of them */
    uint64_t final_index;      /* of the record that ends the run */
    uint32_t budget, bound;    /* by the log: permille of the line; fp32 bits of the norm bound, 0: none */
    uint8_t cls, want_class;

    /* promises: `view` is the newest view joined; `normal` the view whose log this is */
    uint64_t view, normal;
    /* After a greeting the log may be of the present view and yet not be its leader's: another site gave it, and may have lied.
     * Nothing of it is acknowledged before the leader has shown its own. fresh: under this lapse nothing was acknowledged. */
    bool foreign, fresh;
    uint64_t
        leader_head; /* what the leader had when it knew this lapse; UINT64_MAX: it has not said so yet */
    uint32_t incarnation, lapse[NEB_SITES_MAX];
    struct neb_core_promise durable, writing;
    /* sites' words for their lapses: the newest ones, those on their way to the disk, those on the disk */
    struct neb_round_frame_word word[NEB_SITES_MAX], word_writing[NEB_SITES_MAX], word_durable[NEB_SITES_MAX];
    uint64_t lapse_unsaved, lapse_writing; /* sites whose signature is not on disk */
    bool write_busy;
    uint32_t durable_epoch, writing_epoch;
    uint64_t write_id;
    uint64_t disk_head; /* records up to here are on disk as they are in memory */
    uint64_t cut_low;   /* lowest head since the write began */
    int64_t write_retry;

    /* certificates */
    struct neb_certificate newest, *kept; /* kept: those that stay in the ledger, ascending */
    size_t kepts, kept_cap, kept_saved, kept_writing;
    /* byzantine: the newest one of the first phase, in memory, on its way to the disk, on the disk */
    struct neb_certificate prepared, prepared_writing, prepared_durable;
    struct neb_certificate start_prepared; /* … of the log with which the present view began */
    struct neb_said
        heard_vote[VOTES_KEPT]; /* votes of late: one may contradict what its author acknowledged */
    unsigned heard_votes, heard_order[VOTES_KEPT]; /* ever kept; the number of each in that order */
    uint32_t vote_unsaved, vote_writing;
    struct neb_said autograph[AUTOGRAPHS],
        start_said;      /* leaders' signatures of their logs; start_said: of the
                                                          log with which the present view began */
    unsigned autographs; /* ever kept */
    uint32_t autograph_unsaved, autograph_writing;
    struct neb_said said[SAID_KEPT]; /* own ones */
    unsigned said_next;
    uint64_t guilty;               /* sites that their own statements convict */
    struct neb_round_extra *extra; /* of the write under way */
    size_t extras;

    /* following a leader */
    uint64_t leader_commit; /* as it says */
    bool leader_begun;      /* … a quorum holds the log with which its view began */
    uint16_t leader;        /* whose pings count, or NEB_NO_SITE */
    int64_t leader_heard, leader_proof;
    bool leader_has_all;  /* the leader says that it has applied everything */
    bool all_have;        /* … and that every member in reach has */
    bool between;         /* others may reach each other only through this site */
    uint64_t start_index; /* the log with which the view began */
    struct neb_hash start_hash;
    uint16_t sync_from; /* the site that is asked for its log during SYNC or ELECT */
    uint64_t sync_index;
    struct neb_hash sync_hash;
    uint64_t sync_normal;
    int64_t sync_at, elect_at;
    uint64_t log_first; /* some site was asked for the committed records from here on … */
    int64_t log_until;  /* … and nobody else is before this */

    /* a leader that commits nothing: how long this one could have, the longest time that a commit took, until when it stays
     * judged, which one it is */
    int64_t busy_ms, idle_at, commit_gap, idle_until;
    uint64_t idle_commit;
    uint16_t idle_leader;
    bool idle;
    int64_t void_until[NEB_SITES_MAX]; /* likewise, for void sums: until then each site stays judged */

    /* greeting after a start */
    uint64_t greet_nonce, greeted, greet_any, greetings;
    bool proven;    /* it forgot a vote or a record that it signed: nobody's word alone */
    bool begins;    /* its disk seems to have been lost, but nobody has begun */
    uint64_t blank; /* sites that show that they have promised nothing */
    uint64_t boot_view, boot_normal, boot_head; /* the promises on the disk when this process began */
    bool spoke;                                 /* this process has greeted and may have promised something */
    int greet_phase;
    int64_t greet_at, greet_end;
    uint32_t greet_lapse, greet_known; /* the lapse asked for; the highest one heard of */
    uint8_t greet_signature[NEB_SEAL_SIZE];
    struct {
        uint64_t view, normal, head;
        struct neb_hash hash;
        uint16_t site;
        uint32_t forced; /* of the vote */
        bool unforced;   /* greeting: its log lacks the newest forced roster */
    } best;

    /* electing */
    uint64_t want_view, asked, voted;
    struct neb_said vote[NEB_ROUND_VOTERS_MAX]; /* for this site in `view` */
    int votes;
    struct neb_certificate vote_prepared[NEB_ROUND_VOTERS_MAX],
        best_prepared; /* byzantine: of each, of the best */
    int ask_phase;     /* 1: asking, 2: collecting votes, 3: fetching the best log */
    int64_t ask_end;
    uint64_t ask_above; /* the next election must be for a view above this one; 0: above this site's own */

    /* leading */
    struct neb_said start; /* the signed beginning of this view; kind 0: none */
    bool established;      /* a quorum holds the log with which this view began */
    uint64_t told;         /* the others were sent the log up to here: it is on this disk */
    int64_t contact, next_ping, end_since;
    int64_t *close_at;              /* per fragment: when its first update was complete; 0: none */
    struct neb_order order[ORDERS]; /* op 0: none */
    int64_t final_since;
    uint64_t final_waited; /* members that came back since, and are waited for anew */

    /* the end: when this site knew of END; how long it may take, 0: no limit */
    int64_t ending_since, end_ms;

    struct neb_core_peer peer[NEB_SITES_MAX];
    struct neb_core_update *update;
    size_t updates, update_cap;
    struct neb_core_root root[ROOTS];
    size_t roots;
    struct {
        uint64_t index;
        struct neb_hash root;
    } past[PAST]; /* trusted roots that are not among the newest: a cell that took long may need one */
    size_t pasts;

    /* following the log */
    uint64_t cursor; /* records up to here are walked */
    bool applying, installing, rooting;
    struct neb_core_cell *cell;
    int64_t cell_ms; /* how long a cell takes to arrive, as far as seen */
    int untrusted;   /* times that cells came since one was installed, and too few sites signed their roots */
    int64_t untrusted_at, replay_all; /* the last of them; so until then updates are tried for all cells */
    int64_t steps, last_commit_step, capture_retry;
    uint32_t interval; /* inner steps between two captures here */
    uint64_t next_k, floor;
    uint64_t first_k; /* the first number of this life; 0: not known yet */
    uint64_t own_k;   /* the highest number that this site itself gave, as far as it knows */
    uint64_t
        rekey_index; /* the record that gave this site another key; 0: none. Open updates under the old one */
    bool rekey_all;  /* … are void: all, or (it came before this start) those that the disk says are */
    bool *capturing; /* per fragment */
    struct neb_core_sum *sum; /* likewise; NULL: updates are not masked */
    bool whole;               /* theta and m of every cell stand at the cursor */
    bool roots_wanted;        /* the leader says that somebody catches up */
    bool report_due;
    uint64_t root_at;                /* cur_root is the root of this record; 0: none yet */
    bool forced, leaving, done;      /* forced: an operator's roster is in effect and not in the log yet */
    struct neb_order force, awaited; /* force: that order; awaited: one whose record is not here yet */
    uint32_t forced_epoch;   /* of the newest roster that an operator forced, as accepted here; 0: none */
    uint64_t forced_index;   /* the last forced roster in the log; 0: none */
    int64_t leave_at, hurry; /* hurry: until then elections are tried at short intervals */
    uint32_t budget_now;     /* as the leader says */
    struct neb_hash cur_root;

    /* of the frame in hand */
    struct neb_round_frame_item items[NEB_ROUND_FRAME_LIST], items_out[NEB_ROUND_FRAME_LIST];
    struct neb_round_frame_cert certs[NEB_ROUND_FRAME_CERTS], certs_out[NEB_ROUND_FRAME_CERTS];
    struct neb_action *act;
    size_t acts, act_next, act_cap;
    uint8_t *act_bytes; /* of the action handed out last */
    neb_status failed;
};

static inline bool neb__core_byzantine(const struct neb_round *r)
{
    return r->cfg.quorum == NEB_QUORUM_BYZANTINE;
}

/* round.c */
struct neb_action *neb__core_act(struct neb_round *r,
                                 enum neb_action_type type); /* never NULL; see r->failed */
void neb__core_send(struct neb_round *r, unsigned to, const struct neb_round_frame *f);
void neb__core_note(struct neb_round *r, const char *text);
void neb__core_doubt(struct neb_round *r, unsigned site); /* it claims what it does not prove */
void neb__core_halt(struct neb_round *r, const char *text);
void neb__core_halt_by(struct neb_round *r, const char *text, const struct neb_certificate *why);
uint32_t neb__core_fragment_first(const struct neb_round *r, uint32_t f);
bool neb__core_leads(const struct neb_round *r);
bool neb__core_gives(const struct neb_round *r,
                     unsigned site); /* updates and cells: a member, directly linked */
void neb__core_conflict(struct neb_round *r);
uint64_t neb__core_roster_id(const struct neb_members *m);

/* receive.c */
void neb__core_frame(struct neb_round *r, unsigned from, const uint8_t *bytes, size_t n);

/* log.c */
const struct neb_hash *neb__log_hash(const struct neb_round *r, uint64_t index);
bool neb__log_append(struct neb_round *r, const uint8_t *bytes, size_t n);
void neb__log_cut(struct neb_round *r, uint64_t head);
bool neb__log_acceptable(struct neb_round *r, const struct neb_record *rec);
bool neb__log_of_view(const struct neb_round *r, const struct neb_record *rec);
bool neb__log_comes_next(struct neb_round *r,
                         const struct neb_record *rec); /* a committed record, behind the last one */
/* As far as its updates are here. */
bool neb__log_names_as_signed(const struct neb_round *r, const struct neb_record *rec,
                              const struct neb_named *p);
void neb__log_commit_to(struct neb_round *r, uint64_t index);
struct neb_members neb__log_roster(const struct neb_round *r);              /* by the committed records */
bool neb__log_touched(const struct neb_round *r, uint32_t c0, uint32_t c1); /* by an uncommitted record */
/* The epoch of the last forced roster in the log up to `head`; 0: none. */
uint32_t neb__log_forced(const struct neb_round *r, uint64_t head);
/* … in a log whose records behind the committed ones are the frame's. */
uint32_t neb__log_frame_forced(const struct neb_round *r, const struct neb_round_frame *f, uint64_t index);
/* Whether the frame's records continue the committed ones and have `hash` at `index`. */
bool neb__log_leads_to(const struct neb_round *r, const struct neb_round_frame *f, uint64_t index,
                       const struct neb_hash *hash);
/* Whether the log up to `head` lacks the newest forced roster. */
bool neb__log_before_force(const struct neb_round *r, uint64_t head);
/* The last forced roster up to `epoch`, as far as this site knows; 0: none. */
uint32_t neb__order_forced_until(const struct neb_round *r, uint32_t epoch);

/* log_disk.c */
void neb__log_write(struct neb_round *r);
void neb__log_written(struct neb_round *r, uint64_t id, neb_status s);
neb_status neb__log_boot(struct neb_round *r, const struct neb_round_boot *boot);
bool neb__log_acked(const struct neb_round *r,
                    struct neb_core_promise *out); /* false: a write is under way */

/* log_take.c */
void neb__log_frame(struct neb_round *r, unsigned from, const struct neb_round_frame *f);
/* beyond: also the records behind `index`. */
bool neb__log_install(struct neb_round *r, const struct neb_round_frame *f, uint64_t index,
                      const struct neb_hash *hash, bool beyond);
/* The leader's log of the present view, for a site whose log of that view is another's. True: now it is the leader's. */
bool neb__log_reconcile(struct neb_round *r, const struct neb_round_frame *f);
bool neb__log_take_ordered(struct neb_round *r, const struct neb_round_frame *f, const struct neb_order *o);

/* log_ask.c */
/* Asks a site for its records. must: this site has to be asked, whoever else was. */
void neb__log_ask(struct neb_round *r, unsigned to, uint64_t first, bool must);
void neb__log_answered(struct neb_round *r, unsigned from, uint64_t first);
void neb__log_slept(struct neb_round *r);
void neb__log_send(struct neb_round *r, unsigned to, uint64_t first, uint64_t last);
void neb__log_give(struct neb_round *r, unsigned to, uint64_t first, uint64_t last); /* … within its quota */

/* view.c */
bool neb__view_joined(const struct neb_round *r); /* this log is that of the present view's leader */
void neb__view_tick(struct neb_round *r);
void neb__view_frame(struct neb_round *r, unsigned from, const struct neb_round_frame *f);
/* A member's frame from a view more than a leap above this site's. */
void neb__view_far_above(struct neb_round *r, unsigned from, const struct neb_round_frame *f);
void neb__view_tail(struct neb_round *r, unsigned from, const struct neb_round_frame *f);
unsigned neb__view_leader_of(uint64_t view);
void neb__view_durable(struct neb_round *r);
void neb__view_follow(struct neb_round *r, uint64_t view);
void neb__view_campaign(struct neb_round *r);
void neb__core_report(struct neb_round *r, unsigned to);

/* greeting.c */
void neb__view_greet(struct neb_round *r);
void neb__view_greet_asked(struct neb_round *r, unsigned from, const struct neb_round_frame *f);
void neb__view_greet_answered(struct neb_round *r, unsigned from, const struct neb_round_frame *f);
void neb__view_greet_tail(struct neb_round *r, unsigned from, const struct neb_round_frame *f);
void neb__view_greet_tick(struct neb_round *r);
void neb__view_greet_begun(struct neb_round *r);
void neb__view_greet_durable(struct neb_round *r);
void neb__view_greet_not_backed(struct neb_round *r, unsigned site);
void neb__view_greet_remember(struct neb_core_peer *p, const struct neb_round_frame *f);
void neb__view_greet_blank(struct neb_round *r, unsigned from, const struct neb_round_frame *f);

/* votes.c */
void neb__votes_count(struct neb_round *r, unsigned from, const struct neb_round_frame *f);
void neb__votes_choose(struct neb_round *r); /* the best */
bool neb__votes_for_leader(struct neb_round *r, unsigned from,
                           const struct neb_round_frame *ping); /* they made it so */

/* idle.c */
void neb__idle_tick(struct neb_round *r);
int64_t neb__idle_patience(const struct neb_round *r); /* longer than a record usually takes */
bool neb__idle_leader(const struct neb_round *r, unsigned site);

/* certify.c */
uint8_t neb__cert_kind(const struct neb_round *r); /* of the statements that commit */
bool neb__core_quorum(const struct neb_round *r, uint64_t sites);
bool neb__cert_say(struct neb_round *r, struct neb_said *s); /* false: this site has no key */
void neb__acks_report(struct neb_round *r, struct neb_round_frame *f);
void neb__acks_heard(struct neb_round *r, unsigned from, const struct neb_round_frame *f);
uint64_t neb__acks_reach(const struct neb_round *r); /* the last record that this site holds in the view */
bool neb__acks_own(struct neb_round *r, uint64_t index, struct neb_said *out);
uint64_t neb__acks_of(struct neb_round *r, uint8_t kind, uint64_t index);
bool neb__acks_certificate(struct neb_round *r, uint64_t index, struct neb_certificate *out);
bool neb__acks_prepared(struct neb_round *r, uint64_t index, struct neb_certificate *out);
void neb__acks_prepare(struct neb_round *r);
bool neb__cert_store(struct neb_round *r, const struct neb_certificate *c);
void neb__cert_keep(struct neb_round *r, const struct neb_certificate *c);
void neb__cert_found(struct neb_round *r);
const struct neb_certificate *neb__cert_for(const struct neb_round *r, uint64_t first, uint64_t last);
const struct neb_certificate *neb__cert_at(const struct neb_round *r, uint64_t index);
bool neb__roster_of(const struct neb_round *r, uint32_t epoch, struct neb_members *out);
bool neb__cert_valid_under(const struct neb_round *r, const struct neb_certificate *c,
                           const struct neb_members *m);
bool neb__prepared_valid(const struct neb_round *r, const struct neb_certificate *c);
bool neb__forced_genuine(const struct neb_round *r, const struct neb_record *rec);
void neb__cert_two_histories(struct neb_round *r, const struct neb_certificate *c);
bool neb__cert_take(struct neb_round *r, const struct neb_certificate *c); /* true: it committed something */
void neb__cert_remembers(struct neb_round *r, const struct neb_certificate *c); /* a valid one */
void neb__prepared_take(struct neb_round *r, const struct neb_certificate *c);
/* If its record is not in the log any more: */
void neb__prepared_forget(struct neb_round *r);
void neb__prepared_replace(struct neb_round *r, const struct neb_certificate *c);
bool neb__start_may_cut(const struct neb_round *r, const struct neb_said *start, uint32_t forced);
void neb__lapses_tell(const struct neb_round *r, unsigned to, struct neb_round_frame *f);
bool neb__lapse_take(struct neb_round *r, unsigned site, uint32_t lapse,
                     const uint8_t signature[NEB_SEAL_SIZE]);
void neb__lapses_learn(struct neb_round *r, unsigned from, const struct neb_round_frame *f);

/* autograph.c */
bool neb__autograph_needed(const struct neb_round *r);
const struct neb_said *neb__autograph_of(const struct neb_round *r, const struct neb_round_frame *f,
                                         uint64_t last, const struct neb_hash *hash);
void neb__autograph_keep(struct neb_round *r, const struct neb_said *s);
void neb__autograph_vote(const struct neb_round *r, uint64_t normal, struct neb_round_frame *vote);
void neb__autograph_log(const struct neb_round *r, struct neb_round_frame *log);
bool neb__autograph_backs(struct neb_round *r, const struct neb_round_frame *f, uint64_t normal);
void neb__autograph_heard(struct neb_round *r, const struct neb_said *s, bool shown);
void neb__autograph_show(const struct neb_round *r, struct neb_round_frame *f);
void neb__autograph_shown(struct neb_round *r, const struct neb_round_frame *f);

/* guilt.c: of statements that came together, of one that came, of two certificates */
void neb__guilt_look(struct neb_round *r, const struct neb_said *said, int n);
bool neb__guilt_compare(struct neb_round *r, const struct neb_said *s); /* false: it is not signed */
/* Keeps a vote, or a start, that was checked. */
void neb__guilt_vote(struct neb_round *r, const struct neb_said *vote, bool shown);
/* Shows a site that greets what it has said and does not know any more; is shown it. */
void neb__guilt_remind(struct neb_round *r, unsigned to, const struct neb_round_frame *hello);
void neb__guilt_reminded(struct neb_round *r, const struct neb_said *own);
void neb__guilt_vote_shown(struct neb_round *r, const struct neb_said *vote);
bool neb__guilt_may_look(struct neb_round *r, unsigned from);
/* Shows everybody a certificate that another one contradicts; is shown one. */
void neb__guilt_show(struct neb_round *r, const struct neb_certificate *c);
void neb__guilt_shown(struct neb_round *r, const struct neb_certificate *c);
void neb__guilt_certificates(struct neb_round *r, const struct neb_certificate *a,
                             const struct neb_certificate *b);

/* lead.c */
void neb__lead_start(struct neb_round *r);
void neb__lead_tick(struct neb_round *r);
void neb__lead_report(struct neb_round *r, unsigned from, const struct neb_round_frame *f);
void neb__lead_progress(struct neb_round *r);
bool neb__end_over(const struct neb_round *r);          /* the end has had its time */
int neb__lead_enough(const struct neb_round *r);        /* updates that a record must name */
bool neb__lead_acknowledged(const struct neb_round *r); /* every member in reach has applied FINAL */
void neb__lead_propose(struct neb_round *r, struct neb_record *rec);
void neb__lead_ping(struct neb_round *r);
void neb__lead_budget(struct neb_round *r, uint32_t permille);
uint8_t neb__lead_judged(const struct neb_round *r, const struct neb_core_update *p); /* neb_reject */
uint32_t neb__lead_median_tau(const struct neb_record *rec);
/* Whether this site would reject the same updates. True as well if some of them are not here. */
bool neb__lead_rejects_rightly(const struct neb_round *r, const struct neb_record *rec);

/* Proposes a record that names these updates: a ROUND or, with an attempt, SURVIVORS. */
void neb__lead_name(struct neb_round *r, uint32_t c0, uint32_t c1,
                    struct neb_core_update *const by_site[NEB_SITES_MAX], int n, uint16_t attempt);

/* secure.c */
struct neb_core_sum *neb__sum_of(const struct neb_round *r, uint32_t c0); /* NULL: none */
bool neb__sum_follows(const struct neb_round *r, const struct neb_record *rec);
void neb__sum_committed(struct neb_round *r, const struct neb_record *rec);
void neb__sum_tick(struct neb_round *r);
bool neb__sum_captures(const struct neb_round *r, uint32_t f);
bool neb__sum_idles(struct neb_round *r, uint32_t c0, uint32_t c1); /* it has nothing to contribute */
bool neb__sum_too_few_left(const struct neb_round *r);
void neb__sum_captured(struct neb_round *r, uint32_t f, neb_status status);
void neb__sum_event(struct neb_round *r, const struct neb_event *ev);
void neb__sum_lead(struct neb_round *r, uint32_t f);
void neb__sum_lead_start(struct neb_round *r);
bool neb__sum_under_way(const struct neb_round *r); /* records that are not committed count, too */
void neb__sum_goes_on(const struct neb_record *rec, bool *open); /* a record on the fragment's cells */
bool neb__sum_waits(const struct neb_round *r);

/* state_root.c */
struct neb_core_root *neb__root_find(struct neb_round *r, uint64_t index,
                                     const struct neb_hash *root); /* or NULL */
/* Sets *wrong when another root is trusted at this index. */
bool neb__root_trusted(struct neb_round *r, uint64_t index, const struct neb_hash *root, bool *wrong);
void neb__root_own(struct neb_round *r, uint64_t index, const struct neb_hash *root);
void neb__root_reported(struct neb_round *r, unsigned from, const struct neb_round_frame *f);
void neb__root_certify(struct neb_round *r, struct neb_round_frame *f, bool signatures); /* into a PING */
void neb__roots_pinged(struct neb_round *r, const struct neb_round_frame *f);
bool neb__root_wanted(const struct neb_round *r);
bool neb__root_signed(const struct neb_round *r, uint64_t index);
void neb__root_lacks(struct neb_round *r, unsigned site, bool lacks); /* leader: the site says so */
bool neb__root_needed(const struct neb_round *r); /* by a member that catches up; the leader knows */
void neb__root_computed(struct neb_round *r, const struct neb_event *ev);
bool neb__lead_live(const struct neb_round *r, unsigned site);

/* operator.c */
bool neb__log_counted(const struct neb_round *r, uint32_t cell, unsigned site, uint64_t k,
                      uint64_t b); /* log.c */
bool neb__order_holds(const struct neb_round *r, const struct neb_order *o);
/* The set of operators in force behind record `head`. */
uint64_t neb__order_operators(const struct neb_round *r, uint64_t head);
bool neb__order_in_time(const struct neb_round *r, const struct neb_record *rec); /* FORCED */
bool neb__order_superseded(const struct neb_round *r, const struct neb_record *rec);
bool neb__order_explains(const struct neb_round *r, const struct neb_record *rec, bool past);
void neb__order_committed(struct neb_round *r, const struct neb_record *rec);
void neb__order_pass_on(struct neb_round *r, unsigned to, const struct neb_round_frame *hears);
void neb__order_show(struct neb_round *r, unsigned to);
void neb__order_force(struct neb_round *r, const struct neb_order *o, unsigned from);
void neb__order_log(struct neb_round *r, const struct neb_round_frame *f);
void neb__order_event(struct neb_round *r, const struct neb_event *ev);
void neb__lead_request(struct neb_round *r, const struct neb_order *o);
bool neb__lead_orders(struct neb_round *r);
void neb__order_leave_tick(struct neb_round *r);

/* committed.c */
struct neb_core_update *neb__core_update(struct neb_round *r, const struct neb_hash *h, bool make);
/* The update exists, and its author has signed too many: the name counts against the author. */
void neb__core_unwanted(struct neb_round *r, const struct neb_hash *h, unsigned author);
/* The update that site `from` mentioned. NULL also when it was applied long ago: the mention is then out of
 * date. NULL and one more in *refused: the site names too many. */
struct neb_core_update *neb__core_update_heard(struct neb_round *r, unsigned from, const struct neb_hash *h,
                                               uint64_t *refused);
void neb__core_refused(struct neb_round *r, unsigned site, uint64_t names); /* tells the driver; 0: nothing */
void neb__core_updates_prune(struct neb_round *r);
void neb__core_look_for(struct neb_round *r, struct neb_core_update *p); /* here first, then at others */
void neb__core_apply_progress(struct neb_round *r);
void neb__core_applied(struct neb_round *r, const struct neb_event *ev);
void neb__core_capture_due(struct neb_round *r);
void neb__core_captured(struct neb_round *r, const struct neb_event *ev);
void neb__core_update_event(struct neb_round *r, const struct neb_event *ev);
void neb__core_fetch_tick(struct neb_round *r);
void neb__core_cell_event(struct neb_round *r, const struct neb_event *ev);
void neb__core_installed(struct neb_round *r, const struct neb_event *ev);
bool neb__core_caught_up(const struct neb_round *r);

#endif
