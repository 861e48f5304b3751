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
 *     gate_journal.c  what the ranks must repeat
 *     gate_channel.c  the socket between them
 *     launch.c        mpirun or srun */
#ifndef NEB_TRAIN_GATE_H
#define NEB_TRAIN_GATE_H

#include "train/gate_channel.h"
#include "train/train_internal.h"

enum { NEB_GATE_TEXT = 400, NEB_GATE_NAME = 256, NEB_GATE_PARAMS = 1 << 20 };

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
    bool has_frozen; /* weights in few bits, of which `frozen` is the hash */
    struct neb_trainer_facts facts;
    uint64_t values;
    uint32_t params;
};

struct neb_gate_param {
    char name[NEB_GATE_NAME];
    int32_t ndim;
    int64_t shape[4];
    uint64_t first, count; /* in the window */
};

#endif
