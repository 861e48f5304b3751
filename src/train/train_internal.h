/* train_internal.h: one site's training, shared by the files of this folder.
 *
 *     train.c         opens and closes it, catches signals, keeps a second process out of OUT
 *     train_loop.c    the steps and the checkpoints
 *     train_sites.c   the session with the other sites
 *     train_ranks.c   the other processes of this site
 *     ranks_same.c    what must be equal at all of them
 *     gateway.c …     this process without its ranks, which are started by it: gate.h
 *     train_result.c  evaluation, and everything that is written at the end
 *     next_commands.c the last lines: where the model is, and what can be done with it
 *
 * neb__train_job() opens a trainer and closes it again, whether opening succeeded or not. */
#ifndef NEB_TRAIN_TRAIN_INTERNAL_H
#define NEB_TRAIN_TRAIN_INTERNAL_H

#include "group/layout.h"
#include "privacy/step_noise.h"
#include "split/split_site.h"
#include "split/stage_site.h"
#include "train/resume.h"
#include "train/train.h"
#include "watch/meter.h"
#include "watch/progress.h"

#include <nebula/nebula.h>
#include <signal.h>

struct neb_gate;
struct neb_gate_end;

enum { NEB_TRAINER_SAMPLES = 6 << 10 }; /* bytes */

/* For the last lines of a training. */
struct neb_trainer_facts {
    bool model, generator; /* are here */
    bool from, to;         /* translations name the language of their source, of their target */
    bool exports;          /* other libraries know the model */
    int64_t trainable;     /* values of the whole model that are trained */
};

/* The result of a training, besides the model's folder. */
struct neb_conclusion {
    int averaged;         /* checkpoints */
    int64_t memory;       /* bytes of the first rank's device */
    neb_status evaluated; /* NEB_OK: eval is there */
    struct neb_work_eval eval;
    char samples[NEB_TRAINER_SAMPLES]; /* what the model makes of held-out text; "": not made this time */
};

/* Of the sample outputs, which may take only a small share of the time. */
struct neb_trainer_sampling {
    int64_t at;  /* ns: when they were last made; 0: not yet */
    double took; /* seconds */
    bool off;    /* it failed once */
};

struct neb_trainer {
    const struct neb_job *job;
    const volatile sig_atomic_t *stop; /* a signal asks for the end */
    struct neb_data data;
    struct neb_work *work;
    struct neb_group *ranks;            /* of this site; NULL: this process alone */
    struct neb_layout layout;           /* the same ranks by what they do */
    struct neb_gate *gate;              /* of a gateway: the ranks have the work; else NULL */
    struct neb_gate_end *gate_end;      /* of a gateway's first rank; else NULL */
    int64_t idle_ns;                    /* when the other ranks last heard that this one lives */
    bool joined;                        /* the other ranks wait for orders, or this one does */
    neb_session *session;               /* NULL: alone */
    struct neb_privacy_ledger *privacy; /* of a private training without a session; else NULL */
    struct neb_privacy_ledger
        *account; /* to which this process charges private steps: that one, or the session's; else NULL */
    struct neb_step_key key;          /* of the next private step … */
    bool keyed;                       /* … if there is one */
    struct neb_split_site *split;     /* relay, tutor; NULL: this site trains the whole model */
    struct neb_stage_site *stage;     /* pipeline; NULL: the layers are not on several sites */
    struct neb_stage_place place;     /* of a gateway: which layers its ranks have */
    int depth;                        /* of the stage's next step; 0: as it is */
    struct neb_site_stage_times told; /* of it, as far as the meter knows */
    double told_code;                 /* seconds of coding, likewise */
    struct neb_ckpt_writer *writer;
    struct neb_metrics *metrics;
    struct neb_trainer_facts facts;
    struct neb_schedule schedule;
    struct neb_progress progress;
    struct neb_progress_display show;
    struct neb_meter meter;
    char checkpoints[512];
    struct neb_progress began; /* as it was when this process began to train */
    struct neb_progress
        warm;       /* … and some steps later: the first ones plan, and record what a device then repeats */
    int64_t made;   /* steps of this rank's model, over all starts */
    int64_t loaded; /* step of the checkpoint with which this site began; -1: it had no checkpoint */
    neb_status unsaved; /* why the last checkpoint could not be written; NEB_OK: it is on disk */
    int skipped;        /* steps in a row that were not finite */
    int64_t empty;      /* steps with nothing to predict */
    bool spent;         /* the privacy budget allows no further step */
    bool met_links;     /* opening got as far as the session */
    int64_t decisions;  /* of the rate controller, as far as they are in the metrics */
    int64_t done_ns;    /* when this site had made its own steps; 0: not yet */
    int64_t step_ns;    /* when the present step began */
    double step_s;      /* what a step takes: the longest of the last ones; 0: not known yet */
    double save_s;      /* what a checkpoint takes before it is written */
    int64_t pace_ns;    /* with train.speed: when the steps so far should have ended */
    struct neb_trainer_sampling sampling;
};

/* train_loop.c */

/* Trains until the run is over. NEB_ERR_CANCELLED: a signal ended it, and a checkpoint is on disk */
neb_status neb__trainer_loop(struct neb_trainer *t);
/* Hands the meter a sample. It takes one a second, or at once if `now`. */
void neb__trainer_sample(struct neb_trainer *t, const char *state, bool now);

/* train_sites.c */

/* Opens the session and, with strategy replica, registers the trainable parameters with it. */
neb_status neb__trainer_open_session(struct neb_trainer *t);
/* The rule of `privacy`, before the start; and after it the account of a private training: the session's, or one in OUT. */
neb_status neb__trainer_set_privacy(struct neb_trainer *t);
neb_status neb__trainer_open_account(struct neb_trainer *t);
/* Every step of this training is charged (privacy.unit: sample). */
bool neb__trainer_costs(const struct neb_trainer *t);
/* Before a step: charges it, on disk. Where the ranks are not a gateway's, it gets its key, too. NEB_ERR_LIMIT: the budget is spent */
neb_status neb__trainer_charge(struct neb_trainer *t);
/* Waits for the other sites. first: this site has no checkpoint, so all sites must be there. */
neb_status neb__trainer_start_session(struct neb_trainer *t, bool first);
/* Tells the other sites why this site could not begin. */
void neb__trainer_refuse(const struct neb_job *job);
/* The session in which sites exchange updates; NULL: this site is alone, or one of a split job. */
neb_session *neb__trainer_rounds(const struct neb_trainer *t);
/* Tells the model that its parameters have changed, if `changed`. */
neb_status neb__trainer_refresh(struct neb_trainer *t, bool changed);
/* Merges what the other sites did, and waits while the session asks for it. tokens: of the step just made, or
 * NEB_NO_STEP. *ended: the run is over, and the parameters are its result. */
neb_status neb__trainer_meet(struct neb_trainer *t, int64_t tokens, bool *ended);
/* Without a step: merges what comes within half a second. */
neb_status neb__trainer_await_round(struct neb_trainer *t, bool *ended);
/* The same before the first step. */
neb_status neb__trainer_meet_first(struct neb_trainer *t, bool *ended);
/* Takes a sample and shows what this site waits for. */
void neb__trainer_waits(struct neb_trainer *t);
bool neb__trainer_is_witness(const struct neb_trainer *t);
/* Follows the run without training until it ends. NEB_ERR_CANCELLED: a signal came first */
neb_status neb__trainer_attend(struct neb_trainer *t);

/* train_ranks.c. `ranks` is NULL, and these do nothing, where the site is one process. */

/* Joins the processes that were started together. NEB_ERR_CONFIG: their number is not the job's, or the layout
 * does not fit. *out NULL: this process is alone. */
neb_status neb__ranks_join(const struct neb_job *job, struct neb_group **out);
/* Before a rank ends all others: says in the site's log which one it has lost. */
void neb__ranks_say_lost(struct neb_group *ranks);
/* Checks that all ranks begin with the same step of the same model. */
neb_status neb__ranks_compare(struct neb_trainer *t);
bool neb__trainer_leads(const struct neb_trainer *t); /* the first rank, or the only one */
/* The first rank: one step of all ranks; its parameters for all ranks; where they share a model, all their
 * parameters, if it lacks them, and a loss on held-out text; parameters and moments of all ranks come (the argument
 * is the trainer); the end. */
neb_status neb__ranks_step(struct neb_trainer *t, float lr, struct neb_work_step *out);
neb_status neb__ranks_share(struct neb_trainer *t);
neb_status neb__ranks_fetch(struct neb_trainer *t);
neb_status neb__ranks_eval(struct neb_trainer *t, const char *use, int64_t batches,
                           struct neb_work_eval *out);
neb_status neb__ranks_save(void *trainer);
void neb__ranks_end(struct neb_trainer *t);
/* The first rank: it lives, and has nothing to do for the others; it begins, or has ended, something that may take any
 * time. */
neb_status neb__ranks_idle(struct neb_trainer *t);
void neb__ranks_busy(struct neb_trainer *t, bool busy);
/* The other ranks: do what the first one says, until it says that the training is over. */
neb_status neb__ranks_follow(struct neb_trainer *t);

/* ranks_same.c */

/* Checks that all ranks run the same program with the same job. NEB_ERR_VERSION, NEB_ERR_CONFIG: at every rank */
neb_status neb__ranks_same(const struct neb_job *job, struct neb_group *ranks);
struct neb_ranks_sums {
    uint32_t program, job; /* checksums of what this process runs */
};
struct neb_ranks_sums neb__ranks_sums(const struct neb_job *job);
/* Compares the parameters of ranks that must hold the same: every parallel.check_every steps, or `now`.
 *   NEB_ERR_PEER  they differ; the message names the rank, and the group is broken */
neb_status neb__ranks_check(struct neb_trainer *t, bool now);

/* train_result.c */

/* Measures the model on held-out text, if the job has any.
 * outer: on the outer state, not on the live parameters. */
neb_status neb__trainer_evaluate(struct neb_trainer *t, bool outer);
/* The same on the values that the model has now, without a word. */
neb_status neb__trainer_held_out(struct neb_trainer *t, struct neb_conclusion *out);
/* Averages the last checkpoints if the job says so, evaluates the model and writes it. */
neb_status neb__trainer_conclude(struct neb_trainer *t, struct neb_conclusion *out);
/* The same, with what there is to say about it. */
neb_status neb__trainer_finish(struct neb_trainer *t);
/* Prints what crossed the line. */
void neb__trainer_report(struct neb_trainer *t);

/* gateway.c: the ranks of a gateway, which is this process. All but the first wait until the ranks are there, also if they
 * were lost meanwhile. */

/* Starts the ranks; sets t->gate, loaded, progress and facts. t->gate owes a close, whatever this returns. */
neb_status neb__gate_open(struct neb_trainer *t);
void neb__gate_begin(struct neb_gate *g); /* the meter runs */
void neb__gate_close(struct neb_gate *g); /* ends the ranks; NULL is fine */
neb_status neb__gate_register(struct neb_gate *g, neb_session *s);
const struct neb_hash *neb__gate_tokenizer(const struct neb_gate *g); /* NULL: this site has none */
bool neb__gate_textless(const struct neb_gate *g);                    /* nor any text */
const struct neb_hash *neb__gate_frozen(
    const struct neb_gate *g);                        /* of weights in few bits; NULL: there are none */
int64_t neb__gate_samples(const struct neb_gate *g);  /* of this site, where samples are private */
double neb__gate_waited(const struct neb_gate *g);    /* for data, seconds */
double neb__gate_recovered(const struct neb_gate *g); /* seconds without ranks; NULL: 0 */
neb_status neb__gate_step(struct neb_gate *g, float lr, struct neb_work_step *out);
/* The parameters come to where the session has them; values that it has changed go to the ranks. */
neb_status neb__gate_fetch(struct neb_gate *g);
neb_status neb__gate_share(struct neb_gate *g, size_t first, size_t n);
neb_status neb__gate_share_all(struct neb_gate *g);
neb_status neb__gate_eval(struct neb_gate *g, bool outer, struct neb_conclusion *out);
neb_status neb__gate_conclude(struct neb_gate *g, struct neb_conclusion *out);
/* A checkpoint; waiting for it; the newest that is on disk. */
neb_status neb__gate_save(struct neb_gate *g, const struct neb_resume_member *member,
                          const struct neb_progress *progress);
neb_status neb__gate_saved(struct neb_gate *g, const struct neb_resume_member *member,
                           const struct neb_progress *progress);
int64_t neb__gate_saved_step(const struct neb_gate *g);
bool neb__gate_wants_save(const struct neb_gate *g); /* a checkpoint is due to make room; NULL: false */

/* A stage: the ranks are lost, and the site starts again; why; the ranks live, as far as one can see (NEB_ERR_PEER, quiet: they do
 * not); what the last step says; the depth of the next one. */
bool neb__gate_lost(const struct neb_gate *g);
const char *neb__gate_why(const struct neb_gate *g);
neb_status neb__gate_alive(struct neb_gate *g);
void neb__gate_facts(const struct neb_gate *g, struct neb_stage_facts *out);
void neb__gate_set_depth(struct neb_gate *g, int depth);

/* gate_serve.c: the first rank of a gateway */

void neb__gate_lend_stage(struct neb_trainer *t); /* its stage reaches its neighbours through the gateway */

neb_status neb__gate_connect(struct neb_trainer *t);
/* Tells the gateway how this rank has opened, and does what it orders until the end. */
neb_status neb__gate_serve(struct neb_trainer *t, neb_status opened);
void neb__gate_leave(struct neb_trainer *t);
void neb__trainer_find_facts(struct neb_trainer *t);

/* train.c */

double neb__trainer_data_wait(const struct neb_trainer *t); /* seconds spent waiting for data */
void neb__train_ask(void);                                  /* a rank was asked for the end */
/* Seconds until the machine ends this process (train.notice), after a request to stop; infinite: nobody says. */
double neb__train_left(const struct neb_job *job);

/* next_commands.c */

/* Prints where the model is, and commands that use it. The second is for a teacher's site, which has no model. */
void neb__trainer_say_next(const struct neb_trainer *t);
void neb__trainer_say_taught(const struct neb_job *job);

#endif
