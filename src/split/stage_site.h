/* stage_site.h: one site's stage of a model whose layers live on several sites (strategy pipeline).
 *
 * The sites stand in a line, in the order of the job. Between two neighbours there are two streams: ahead, with the hidden
 * states of every micro-batch, and back, with their gradients. At the end of each step both carry the sums by which all
 * stages clip and skip alike. Where the output is tied to the token table, the first site has the first and the last layers,
 * and the line is a ring: two more streams join the last site to the first. Sites with the text draw the same batches; the sites between
 * the ends of the model hear what the batches look like, and may do without the text. So no text crosses. A successful open owes a close.
 *
 *     stage_site.c     opening, waiting, checkpoints, the end
 *     stage_message.c  what a message looks like as items of a stream: pure
 *     stage_item.c     messages over the streams
 *     stage_gather.c   the whole model at the first site
 *     stage_rate.c     bits and depth for a measured line: pure
 *     stage_control.c  measures, asks stage_rate.c and carries out the answer */
#ifndef NEB_SPLIT_STAGE_SITE_H
#define NEB_SPLIT_STAGE_SITE_H

#include "split/stage_message.h"
#include "split/stage_rate.h"
#include "store/checkpoint.h"
#include "task/data.h"
#include "task/folder.h"
#include "task/work.h"
#include "watch/meter.h"

#include <limits.h>
#include <nebula/nebula.h>
#include <signal.h>

enum neb_stage_way { NEB_AHEAD_IN, NEB_AHEAD_OUT, NEB_BACK_IN, NEB_BACK_OUT, NEB_STAGE_WAYS };

/* One end of a stream with a neighbour. */
struct neb_stage_end {
    neb_stream *stream;  /* NULL: there is no neighbour on that side */
    const char *other;   /* its site */
    uint64_t at;         /* items that the steps so far have taken, or given */
    uint64_t bytes;      /* of them since the last checkpoint, if they were taken, */
    uint64_t seen, most; /* … at the last look, and of a step at most */
    uint64_t allowed;    /* bytes that its journal was allowed, if they are given */
    size_t outline;      /* of the largest outline that was given */
    double all_bytes;    /* sent or received by this process */
};

/* Values [at, at + n) of one parameter. */
struct neb_stage_chunk {
    uint32_t param;
    uint64_t at, n;
    uint64_t model_bytes; /* of all parameters: room for the journal */
};

/* What a checkpoint must know: items of each stream up to its step, little-endian. */
struct neb_stage_marks {
    uint64_t at[NEB_STAGE_WAYS];
};

enum { NEB_STAGE_CUT = 1024 };

/* Which layers are here. */
struct neb_stage_place {
    bool ring;               /* the first site has both ends of the model, and the last one sends to it */
    char cut[NEB_STAGE_CUT]; /* of all sites, which must have the same: "1-6;3-4;hole 3-4" */
    struct neb_stage_range range, hole;
};

/* Parameters on their way to the first site: this stage's own go out, and in the end those of the stages behind it; or those of all
 * stages come in. They are carried by this process, or by the gateway of its site. */
struct neb_stage_carrier {
    void *arg;
    /* A chunk of a parameter. n 0: all own ones are out. `all`: bytes of the whole model */
    neb_status (*out)(void *arg, const struct neb_stage_chunk *c, const float *values);
    /* The next chunk; n 0: there is no more. The values are good until the next call. */
    neb_status (*in)(void *arg, struct neb_stage_chunk *c, const void **values);
    /* A bit for each parameter, from the first site to all others. */
    neb_status (*ask)(void *arg, uint8_t *bits, size_t n);
};

/* What the control must know of the work. */
struct neb_stage_facts {
    struct neb_site_stage_times times;
    int64_t slot_bytes, free_bytes; /* of the device; negative: not known */
    int depth;
};

struct neb_stage_site {
    const struct neb_job *job;
    int stage, stages;
    struct neb_stage_place place;
    struct neb_stage_carrier carrier;
    struct neb_stage_ways ways;
    struct neb_step_links links; /* for neb__work_open() */
    struct neb_stage_end end[NEB_STAGE_WAYS];
    struct {
        int64_t step;
        struct neb_stage_marks marks;
    } saved[2];                   /* checkpoints handed to the writer, newest last */
    struct neb_buf item, message; /* what goes out */
    struct neb_stage_inbox inbox; /* what comes in */
    uint32_t run;                 /* tag of the run; every item begins with it */
    bool run_known;
    bool outlined; /* some stage of the run hears what the batches look like */
    bool asks;     /* at the end the first site says which parameters it wants */
    bool third;    /* either: the items are of the third version, else of the first one */
    bool done;     /* an earlier start has concluded this run */
    bool tells;    /* … and it is known what it had got, so that the neighbours can be told once more */
    bool gathers;  /* parameters are on their way, and the journal has room for them */
    char run_path[PATH_MAX], done_path[PATH_MAX];
    int bits;
    struct neb_stage_rate rate;
    double line_s
        [NEB_JOB_SITES]; /* of the lines behind the next stage, as those stages said at the end of the last step */
    struct neb_site_stage_times seen; /* at the last decision */
    double item_bytes;                /* of the messages of a micro-batch at 8 bits, one way */
    int64_t looked_ns;
    double gathered[2]; /* bytes of parameters that were sent at the end, and received */
    double code_s;      /* spent in coding, and the part of it that is accounted */
    struct neb_meter_split readings;
    const volatile sig_atomic_t *stop;
    neb_status (*idle)(
        void *
            arg); /* called now and then while this site waits; its error ends the wait; NULL: nobody wants to know */
    void *idle_arg;
};

/* Cuts the model. After it `links` is ready. NEB_ERR_CONFIG */
neb_status neb__stage_site_open(const struct neb_job *job, const struct neb_data *data,
                                const volatile sig_atomic_t *stop, struct neb_stage_site **out);
/* The same where the cut is known: the gateway of a site whose ranks have made it. */
neb_status neb__stage_site_open_at(const struct neb_job *job, const struct neb_stage_place *place,
                                   const volatile sig_atomic_t *stop, struct neb_stage_site **out);
void neb__stage_site_close(struct neb_stage_site *s); /* NULL is fine */

/* Opens the streams. The session has started. marks: of the checkpoint of `step`, from which this site goes on; NULL: there is none.
 * older: of the one before it; NULL: it is not known, and the neighbours keep everything. */
neb_status neb__stage_site_start(struct neb_stage_site *s, neb_session *session,
                                 const struct neb_stage_marks *marks, const struct neb_stage_marks *older,
                                 int64_t step, const char *out);

/* Before and after a checkpoint is handed to the writer. durable: the step of the newest that is on disk. */
neb_status neb__stage_site_saving(struct neb_stage_site *s, struct neb_stage_marks *out);
void neb__stage_site_saved(struct neb_stage_site *s, int64_t durable, int64_t step,
                           const struct neb_stage_marks *marks);
/* The neighbours keep so much for this site that a checkpoint is due. */
bool neb__stage_site_wants_save(struct neb_stage_site *s);

/* stage_gather.c: the first site gets the parameters of all. Every site makes this call. */
neb_status neb__stage_site_gather(struct neb_stage_site *s, struct neb_work *w);
bool neb__stage_site_has_model(const struct neb_stage_site *s); /* the first one, with wan.gather */
/* What tells this site's part of the model from those of other sites and runs. NEB_ERR_STATE: the run has not begun here */
neb_status neb__stage_site_part(struct neb_stage_site *s, int64_t step, struct neb_folder_part *out);
/* The bytes of messages so far, for the meter. */
void neb__stage_site_count(struct neb_stage_site *s);

/* The whole model on its way to the first site. */
struct neb_stage_whole {
    neb_params *params;
    uint64_t *got; /* of each parameter: values that are here */
    float *values; /* of the whole slab */
};
/* The values of a parameter come from its first to its last. NEB_ERR_CORRUPT: of no parameter, of this site's own, twice, or in
 * another order */
neb_status neb__stage_whole_put(struct neb_stage_whole *w, const struct neb_stage_chunk *c,
                                const void *values);
/* NEB_ERR_CORRUPT: values are missing */
neb_status neb__stage_whole_check(const struct neb_stage_whole *w);

/* The last checkpoint is on disk, and the model where it belongs. Stays until the neighbours need nothing more. */
neb_status neb__stage_site_finish(struct neb_stage_site *s);

/* One line: stage, bytes, time. */
void neb__stage_site_describe(const struct neb_stage_site *s, const struct neb_site_stage_times *t, char *out,
                              size_t size);

/* stage_control.c: between steps: bits and depth follow the line, unless the job fixes them. Returns the depth of the next
 * step. */
void neb__stage_control_begin(struct neb_stage_site *s);
int neb__stage_control(struct neb_stage_site *s, const struct neb_stage_facts *f);
void neb__stage_facts_of(struct neb_work *w, struct neb_stage_facts *out);

/* ---- between the files ---------------------------------------------------------------------------------- */

/* A message, cut into items where it is longer than one. get: the bytes are good until the next call. NEB_ERR_AGAIN (quiet): stopped;
 * NEB_ERR_CORRUPT, NEB_ERR_CONFIG: not the message that is due */
neb_status neb__stage_put(struct neb_stage_site *s, enum neb_stage_way way, const struct neb_stage_head *head,
                          const void *bytes, size_t n);
neb_status neb__stage_get(struct neb_stage_site *s, enum neb_stage_way way, const struct neb_stage_due *due,
                          struct neb_stage_head *head, const uint8_t **bytes, size_t *n);
/* There is a stream, and the other site is the next one in the line: in a ring the streams between last and first site carry runs
 * alone. */
bool neb__stage_in_line(const struct neb_stage_site *s, enum neb_stage_way way);
/* The functions of `ways`. */
neb_status neb__stage_take(void *site, const struct neb_stage_message *m, float *values);
neb_status neb__stage_give(void *site, const struct neb_stage_message *m, const float *values);
neb_status neb__stage_add_up(void *site, struct neb_stage_sums *own);
neb_status neb__stage_spread(void *site, void *bytes, size_t n);
neb_status neb__stage_take_outline(void *site, struct neb_buf *out);
neb_status neb__stage_give_outline(void *site, const void *bytes, size_t n);
/* Writes the tag of the run, when it is known, with the version of its items and the layers that are here. */
neb_status neb__stage_write_run(const struct neb_stage_site *s);
/* The functions of `carrier`. */
neb_status neb__stage_carry_values(void *site, const struct neb_stage_chunk *c, const float *values);
neb_status neb__stage_fetch_values(void *site, struct neb_stage_chunk *c, const void **values);
neb_status neb__stage_tell_wanted(void *site, uint8_t *bits, size_t n);
/* Called while it waits. NEB_ERR_AGAIN (quiet): asked to stop */
neb_status neb__stage_waits(struct neb_stage_site *s);

#endif
