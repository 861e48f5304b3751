/* gate.h (internal): a site's gateway and its ranks.
 *
 * The gateway is the process that the user started. It holds the keys, the links, the ledger, the outer state, the
 * metrics and the display, and decides on every step. The ranks hold the model; they know nothing of the other
 * sites. The gateway gives orders to the first rank, one at a time, and that rank leads the others.
 *
 * Parameters cross in a window: memory that both processes see, all trainable values by name, in the run's order.
 * When ranks are lost, the functions below start them again, have them repeat the journal, and then do what they
 * were called for. The driver's thread meanwhile votes and merges as ever.
 *
 *     gateway.c       the gateway's end: orders, and the ranks' return
 *     gate_serve.c    the first rank's end
 *     gate_stage.c    both ends of a stage's messages: the ranks compute them, the gateway has the streams
 *     gate_journal.c  what the ranks must repeat
 *     gate_private.c  the key of a private step, and what a repeated one costs
 *     gate_channel.c  the socket between them
 *     launch.c        mpirun or srun */
#ifndef NEB_TRAIN_GATE_H
#define NEB_TRAIN_GATE_H

#include "train/gate_channel.h"
#include "train/gate_journal.h"
#include "train/train_internal.h"

enum { NEB_GATE_TEXT = 400, NEB_GATE_NAME = 256, NEB_GATE_PARAMS = 1 << 20 };

/* What the first rank of a stage asks the gateway inside an order (gate_stage.c). */
enum neb_gate_ask_kind {
    NEB_GATE_ANSWERS, /* nothing: the answer to the order follows */
    NEB_GATE_ASKS_READY,
    NEB_GATE_ASKS_TAKE,
    NEB_GATE_ASKS_GIVE, /* the values follow; there is no reply, and an error comes with the next one */
    NEB_GATE_ASKS_SUMS,
    NEB_GATE_ASKS_SPREAD,
    NEB_GATE_ASKS_OUT, /* values of a parameter follow */
    NEB_GATE_ASKS_IN,
    NEB_GATE_ASKS_OUTLINE_IN,
    NEB_GATE_ASKS_OUTLINE_OUT, /* its bytes follow */
    NEB_GATE_ASKS_WANTED       /* the bits follow, and come back */
};

struct neb_gate_ask {
    uint32_t kind;
    bool back;
    double wait_s;
    struct neb_stage_message message;
    struct neb_stage_chunk chunk;
    uint64_t bytes; /* that follow */
};

struct neb_gate_reply {
    neb_status status;
    char why[NEB_GATE_TEXT];
    struct neb_stage_chunk chunk;
    uint64_t bytes; /* that follow */
};

enum neb_gate_op {
    NEB_GATE_STEP = 1,
    NEB_GATE_FETCH, /* the parameters into the window */
    NEB_GATE_SHARE, /* values [first, first + n) of the window to all ranks */
    NEB_GATE_EVAL,
    NEB_GATE_SAVE,  /* a checkpoint; the session's state comes along in a descriptor */
    NEB_GATE_SAVED, /* waits until it is on disk */
    NEB_GATE_CONCLUDE,
    NEB_GATE_END
};

struct neb_gate_order {
    uint32_t op;
    float lr;
    uint64_t first, n;
    uint64_t bytes; /* of the session's state; 0: none */
    int32_t depth;  /* of a stage: micro-batches in flight; 0: as they are */
    bool keyed;     /* of a private step: it has a key */
    struct neb_step_key key;
    struct neb_progress progress;
};

struct neb_gate_answer {
    neb_status status;
    bool lost; /* the ranks have lost each other: this one ends, too */
    bool stop; /* a signal asked a rank for the end */
    char why[NEB_GATE_TEXT];
    int64_t saved; /* step of the newest checkpoint that this start has on disk; -1: none */
    double waited; /* for data, seconds in all */
    struct neb_work_step step;
    struct neb_stage_facts stage;
    struct neb_conclusion conclusion; /* of an evaluation, too */
};

/* How the ranks begin, behind their checksums (struct neb_ranks_sums). The parameters follow, in the run's order. */
struct neb_gate_ready {
    neb_status status;
    bool lost;
    char why[NEB_GATE_TEXT];
    int64_t loaded; /* step of the checkpoint; -1: none */
    struct neb_progress progress;
    struct neb_hash tokenizer, frozen;
    struct neb_stage_place stage;
    bool has_frozen; /* weights in few bits, of which `frozen` is the hash */
    bool textless, has_tokenizer;
    struct neb_trainer_facts facts;
    int64_t samples; /* of a private training; else 0 */
    uint64_t values;
    uint32_t params;
};

struct neb_gate_param {
    char name[NEB_GATE_NAME];
    int32_t ndim;
    int64_t shape[4];
    uint64_t first, count; /* in the window */
};

/* gate_stage.c. The gateway: does what the first rank asks, and replies. `values` has room for what comes along. pending: the
 * error of an ask without a reply. NEB_ERR_PEER: the rank is gone */
neb_status neb__gate_stage_serve(struct neb_stage_site *s, struct neb_gate_channel *c,
                                 const struct neb_gate_ask *q, struct neb_buf *values, neb_status *pending,
                                 neb_status (*turn)(void *), void *arg);
/* The first rank: the stage's neighbours are reached through the gateway from now on. */
void neb__gate_stage_use(struct neb_stage_site *s, struct neb_gate_channel *c);

/* gate_private.c. The order of the journal's step. With a key it owes neb__step_key_wipe(). */
neb_status neb__gate_step_order(const struct neb_step_key *secret, const struct neb_gate_entry *step,
                                int depth, struct neb_gate_order *out);
/* The ranks have repeated the journal's step. NEB_ERR_STATE: it came out differently, and must not leave the site */
neb_status neb__gate_check_repeated(const struct neb_gate_entry *step, const struct neb_gate_answer *made);

#endif
