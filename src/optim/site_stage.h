/* site_stage.h (internal): one stage of a model whose neighbours are at other sites.
 *
 * As in a pipeline of ranks (optim/pipeline.h) a micro-batch goes forwards through all stages and then backwards, and
 * gradients are added up in the order of the micro-batches, as one process does it. The rest differs, because the way is
 * long: a stage has `depth` micro-batches in flight instead of as many as stages follow, and it does what it has the
 * input for. A backward comes first, since it frees a slot here and feeds the stage before. In which order forwards and
 * backwards take turns changes no bit: the parameters stay as they are until all backwards are over.
 *
 * A site may have both ends of the model (`twice`): a micro-batch makes two visits, with one slot more for the second,
 * which ends with the loss. Both visits may add to one gradient, that of a tied token table. So their order follows from
 * the depth alone, and the bits from the job.
 *
 * Several ranks of the site may hold the stage: copies of it, and ranks that share its layers (stage_ranks.c).
 *
 * The messages are on the host, as float, whatever the device computes with. Who carries them is not known here: `ways`
 * does, and it may code them. After the backwards the stages tell each other the square of their gradient's norm, losses
 * and counts (neb__site_stage_sums()), so that all of them clip by the same norm and skip the same steps. */
#ifndef NEB_OPTIM_SITE_STAGE_H
#define NEB_OPTIM_SITE_STAGE_H

#include "base/buf.h"
#include "group/layout.h"
#include "optim/pipeline.h"

enum neb_stage_run { NEB_STAGE_TRAINS, NEB_STAGE_EVALUATES };

enum { NEB_STAGE_OUTLINE_MAX = 64 << 20 }; /* bytes of what the batches of a step look like */

/* What crosses a cut in one run: one or two parts of rows, one behind the other. The rows behind the first `used` of a
 * part are padding: they need not cross, and are zeros then. */
struct neb_stage_message {
    enum neb_stage_run run;
    bool back;       /* gradients, to the stage before; else hidden states, to the stage behind */
    uint32_t number; /* of the run, in its step or evaluation */
    uint32_t check;  /* check value of the batch: both ends must have drawn the same */
    int parts;
    struct {
        int64_t rows, used;
    } part[2];
    int64_t width;
};

enum { NEB_STAGE_LOSSES = 8, NEB_STAGE_COUNTS = 4 };

/* What a stage knows of a step; the stages' are added up. The bytes of a message: nothing but doubles. */
struct neb_stage_sums {
    double loss[NEB_STAGE_LOSSES], counts[NEB_STAGE_COUNTS];
    double norm2;     /* the square of the gradient's norm */
    double nonfinite; /* more than 0: something was not finite */
};

/* NEB_ERR_AGAIN (quiet): this site was asked to stop while it waited. Other errors end the step. */
struct neb_stage_ways {
    void *arg;
    bool before, behind; /* there is a stage on that side */
    /* Whether the next message of that kind is here; waits at most so long. NEB_ERR_TIMEOUT (quiet): it is not */
    neb_status (*ready)(void *arg, bool back, double wait_s);
    neb_status (*take)(void *arg, const struct neb_stage_message *m, float *values);
    neb_status (*give)(void *arg, const struct neb_stage_message *m, const float *values);
    /* `own` of every stage, added up in the order of the stages. NEB_ERR_CORRUPT: another stage's cannot be */
    neb_status (*add_up)(void *arg, struct neb_stage_sums *own);
    /* Every stage gets what the last one has. */
    neb_status (*spread)(void *arg, void *bytes, size_t n);
    /* What the batches of a step, or of an evaluation, look like, in bytes that are the caller's: from the stage before; to the
     * stage behind. */
    bool outlines_in, outlines_out;
    neb_status (*take_outline)(void *arg, struct neb_buf *out);
    neb_status (*give_outline)(void *arg, const void *bytes, size_t n);
};

/* What crosses the cut before a stage, and the one behind it, in the run of `micro`; parts and rows are filled in. */
typedef neb_status (*neb_stage_shape_fn)(void *arg, void *run, struct neb_stage_message *before,
                                         struct neb_stage_message *behind);

struct neb_site_stage_config {
    const struct neb_stage_ways *ways; /* asked by the first rank of the site alone */
    const struct neb_layout *layout;   /* ranks that hold the stage together; NULL: this process alone */
    size_t before_bytes, behind_bytes; /* of the largest message, in the compute type */
    int64_t width;
    bool gradients_in, gradients_out; /* gradients come from behind; they go to the stage before */
    bool forward_only;                /* nothing is trained here or before: there is no backward */
    bool
        twice; /* a micro-batch comes twice: first it goes to the stage behind, at last it comes from the stage before */
    double speed; /* most rows a second of a turn; 0: no limit */
    neb_enter_stage_fn enter;
    neb_stage_shape_fn shape;
    void *arg; /* of both */
};

/* Since the stage was opened. */
struct neb_site_stage_times {
    double all, idle;         /* seconds of steps, and those of them spent waiting for a neighbour */
    double forward, backward; /* of all micro-batches */
    int64_t micros;
};

struct neb_site_stage;

/* depth: micro-batches in flight; the tape gets a slot for each, divided by the copies of the stage. NEB_ERR_NOMEM */
neb_status neb__site_stage_open(neb_device *d, neb_tape *t, const struct neb_site_stage_config *c, int depth,
                                struct neb_site_stage **out);
void neb__site_stage_close(struct neb_site_stage *s); /* NULL is fine */
/* Between steps. The slots get the memory that a run has needed so far. NEB_ERR_NOMEM: the depth is the one before;
 * NEB_ERR_STATE: nor is there memory for that one, and no step can follow */
neb_status neb__site_stage_set_depth(struct neb_site_stage *s, int depth);
int neb__site_stage_depth(const struct neb_site_stage *s);
/* The same for the bytes of the largest message. After an error the stage can only be closed. */
neb_status neb__site_stage_resize(struct neb_site_stage *s, size_t before_bytes, size_t behind_bytes);
void neb__site_stage_times(const struct neb_site_stage *s, struct neb_site_stage_times *out);

/* Forwards and backwards of a step's micro-batches; one run forwards only, in slot 0. */
neb_status neb__site_stage_run(struct neb_site_stage *s, const struct neb_micro *micros, int n);
/* The last error is known to all ranks of the site: none of them waits for another. */
bool neb__site_stage_told(const struct neb_site_stage *s);
neb_status neb__site_stage_forward(struct neb_site_stage *s, const struct neb_run *run);
void neb__site_stage_begin_eval(struct neb_site_stage *s); /* its runs are numbered from 0 */

/* Turns losses, counts, norm² and the non-finite flag of this stage into those of all. own: the square of its
 * norm, or negative: as in the step's numbers. */
neb_status neb__site_stage_sums(struct neb_site_stage *s, double own, struct neb_ctl *device_ctl);

/* Every stage, and every rank of its first copy, gets what the last stage has. */
neb_status neb__site_stage_spread(struct neb_site_stage *s, void *bytes, size_t n);

/* The next outline from the stage before, at every rank of the site, or (not `all`) of its first copy; one goes to the stage
 * behind. All of these ranks make the calls and get the status. Without a stage there that wants them, nothing is done. */
neb_status neb__site_stage_take_outline(struct neb_site_stage *s, bool all, struct neb_buf *out);
neb_status neb__site_stage_give_outline(struct neb_site_stage *s, bool all, const void *bytes, size_t n);

#endif
