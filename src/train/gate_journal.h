/* gate_journal.h: the steps and the changes of the parameters since the ranks' checkpoint.
 *
 * The gateway writes an entry for each step (its learning rate) and for each change that a round made (the values
 * afterwards). Ranks that begin again at a checkpoint repeat what comes behind its mark. They make the same steps
 * with the same values, so they end with the same bits. The file is the gateway's alone and means nothing after
 * its end: a site that starts anew goes on from checkpoint and ledger. Whoever read it would not know the noise of private steps:
 * their keys follow from the salts and a secret that the gateway has in its memory alone. */
#ifndef NEB_TRAIN_GATE_JOURNAL_H
#define NEB_TRAIN_GATE_JOURNAL_H

#include "privacy/step_noise.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NEB_GATE_JOURNAL_MARKS = 64 };
enum neb_gate_entry_type { NEB_GATE_JOURNAL_STEP = 1, NEB_GATE_JOURNAL_VALUES };

struct neb_gate_entry {
    uint32_t type;
    float lr;                 /* of a step */
    bool keyed;               /* of a private step: */
    struct neb_step_key salt; /* with the gateway's secret it gives the step's key */
    struct neb_hash mark;     /* of its result */
    uint64_t first, n;        /* of values, which follow */
};

struct neb_gate_journal {
    int fd; /* -1: not open */
    int64_t end, at;
    struct {
        int64_t step, at;
    } mark[NEB_GATE_JOURNAL_MARKS];
    int marks;
    neb_status broken; /* a write failed: nothing can be repeated before the next checkpoint */
};

/* OUT/ranks/journal. Owes a close. */
neb_status neb__gate_journal_open(struct neb_gate_journal *j, const char *out);
void neb__gate_journal_close(struct neb_gate_journal *j);

/* A failed write is logged, and kept in `broken`. */
void neb__gate_journal_step(struct neb_gate_journal *j, const struct neb_gate_entry *step);
void neb__gate_journal_values(struct neb_gate_journal *j, const float *values, size_t first, size_t n);
/* A checkpoint of this step was ordered now. */
void neb__gate_journal_mark(struct neb_gate_journal *j, int64_t step);
bool neb__gate_journal_marked(const struct neb_gate_journal *j, int64_t step);
/* It is on disk: entries before it are not needed any more. */
void neb__gate_journal_durable(struct neb_gate_journal *j, int64_t step);

/* Goes to the mark of a step. NEB_ERR_STATE: what came behind it cannot be repeated */
neb_status neb__gate_journal_seek(struct neb_gate_journal *j, int64_t step);
/* The next entry; its values go to `values` + first, which has room for `room`. *more false: there is none. */
neb_status neb__gate_journal_next(struct neb_gate_journal *j, float *values, size_t room,
                                  struct neb_gate_entry *out, bool *more);

#endif
