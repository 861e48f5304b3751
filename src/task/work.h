/* work.h: one site's share of a job: model, optimizer and data on a device, a step at a time. A successful
 * open owes a close. */
#ifndef NEB_TASK_WORK_H
#define NEB_TASK_WORK_H

#include "base/hash.h"
#include "group/layout.h"
#include "nn/model.h"
#include "task/data.h"
#include "task/step_links.h"
#include "text/prefetch.h"

struct neb_work_step {
    int64_t step;
    double loss;     /* all parts */
    double parts[3]; /* those of the objective (job/objective.h: losses), then the hidden states' */
    double grad_norm;
    int64_t tokens; /* real rows that went in, both sides */
    bool skipped;   /* not finite, or nothing to predict: nothing changed */
    bool empty;     /* nothing to predict; of the step made now, though the others may be of the one before */
    struct neb_hash mark; /* of a private step: repeated with another one, it is another release */
};

enum { NEB_EVAL_LANGUAGES = 32 };

struct neb_work_eval {
    double loss, accuracy;              /* per counted row */
    double more[NEB_OBJECTIVE_METRICS]; /* as the objective's `metrics` name them */
    int64_t rows, batches;
    /* The same loss of each language, if there are several; pairs: of the second text. */
    int languages;
    struct neb_language_loss {
        char name[16];
        double loss;
        int64_t rows;
    } language[NEB_EVAL_LANGUAGES];
};

struct neb_work;

/* Opens data->job over its data. part of parts: this process's share of the data. links: to other sites;
 * NULL: there are none.
 *   NEB_ERR_CONFIG; NEB_ERR_NOMEM; NEB_ERR_DEVICE… */
neb_status neb__work_open(const struct neb_data *data, int64_t part, int64_t parts,
                          const struct neb_step_links *links, struct neb_work **out);
/* The same at one of several ranks. All of them make each call of neb__work_step(), _eval(), _collect() and
 * _distribute() together. The layout must outlive the work. */
neb_status neb__work_open_ranks(const struct neb_data *data, int64_t part, int64_t parts,
                                const struct neb_step_links *links, const struct neb_layout *layout,
                                struct neb_work **out);
void neb__work_close(struct neb_work *w);

/* The next micro-batches, forward, backward, update. NEB_ERR_NONFINITE: skipped, may go on. */
neb_status neb__work_step(struct neb_work *w, float lr, struct neb_work_step *out);

/* privacy.unit: sample. Opening, before the first step (without unit sample it does nothing); whether its steps hide samples, and by what
 * rule (`out` may be NULL); how many samples this site has. */
struct neb_privacy_rule;
struct neb_step_key;
neb_status neb__work_open_private(struct neb_work *w);
bool neb__work_privacy(const struct neb_work *w, struct neb_privacy_rule *out);
int64_t neb__work_private_samples(const struct neb_work *w);
/* The rule of a job at a site with so many samples. NEB_ERR_CONFIG: it costs more than the job allows */
neb_status neb__work_sample_rule(const struct neb_job *job, int64_t samples, struct neb_privacy_rule *out);
/* Before each private step: its key, the same at all ranks. The step has been charged to an account. */
void neb__work_set_key(struct neb_work *w, const struct neb_step_key *key);

/* Over the corpora with this use, at most `batches` batches (0: all), evenly from the beginning to the end of
 * the text. NEB_ERR_NOTFOUND (quiet): none; NEB_ERR_RANGE: they have nothing to predict. */
neb_status neb__work_eval(struct neb_work *w, const char *use, int64_t batches, struct neb_work_eval *out);

/* Several ranks may share the parameters of one model (tensor, pipeline): whether they do; the first rank gets all
 * values, so that it can read whole parameters; every rank gets its part of what the first one has in
 * neb__work_slab(). */
bool neb__work_is_split(const struct neb_work *w);
/* So much so that every rank takes part in every run of the model (parallel.zero: 3). */
bool neb__work_gathers(const struct neb_work *w);
/* Each rank holds the masters of a part of the parameters alone. */
bool neb__work_shares_masters(const struct neb_work *w);
/* One stage of the model is here, and the others are at other sites. */
bool neb__work_has_stage(const struct neb_work *w);
bool neb__work_param_here(const neb_param *p); /* it is one of the stage's */
/* Seconds and micro-batches of it; micro-batches in flight, between steps. NEB_ERR_NOMEM: as many as before are in flight;
 * NEB_ERR_STATE: nor is there memory for those, and no step can follow */
void neb__work_site_times(const struct neb_work *w, struct neb_site_stage_times *out);
neb_status neb__work_set_depth(struct neb_work *w, int depth);
int neb__work_depth(const struct neb_work *w);
/* Bytes that a micro-batch in flight takes of the device, measured; 0: not known yet. */
int64_t neb__work_slot_bytes(const struct neb_work *w);
/* Bytes that this rank's device can still give, within train.memory; negative: not known. */
int64_t neb__work_free_bytes(const struct neb_work *w);
/* Host memory for all values of the whole model, those that are here filled in. When the rest is there, too,
 * neb__work_have_whole() makes whole parameters readable. NULL: no memory. */
float *neb__work_whole(struct neb_work *w, int64_t *n);
void neb__work_have_whole(struct neb_work *w);
/* Frozen parameters of the other stages, as init.from has them here, into that memory; have[i]: of parameter i. */
neb_status neb__work_frozen_elsewhere(struct neb_work *w, float *whole, bool *have);
neb_status neb__work_collect(struct neb_work *w);
neb_status neb__work_distribute(struct neb_work *w);
/* The trainable slab of the whole model, n values, at the first rank: the device's memory, or a host copy where several
 * ranks share the model. It is the model's as long as no step follows a collection. */
float *neb__work_slab(struct neb_work *w, int64_t *n);
int64_t neb__work_slab_values(const struct neb_work *w); /* the same n, at every rank */

/* The optimizer's moments in the layout of that slab, at the first rank; the other ranks lend theirs with NULL. Every rank loads all
 * of them. */
neb_status neb__work_save_moments(struct neb_work *w, float *m, float *v);
neb_status neb__work_load_moments(struct neb_work *w, int64_t step, const float *m, const float *v);

/* The names of the matrices that Muon steps, one a line (work_matrices.c). */
neb_status neb__work_list_matrices(const struct neb_work *w, struct neb_buf *out);
/* They are those of a list, or those that these moments are of.  NEB_ERR_CONFIG: not, and the message says what to do */
neb_status neb__work_same_matrices(const struct neb_work *w, const char *list, size_t n);
neb_status neb__work_same_moments(const struct neb_work *w, const float *m, const float *v);
/* Second moments without those of these matrices. Packs v, which has the layout of the slab, in its own memory (NULL: nowhere);
 * returns how many values there are then. Without such matrices nothing changes. */
int64_t neb__work_pack_second(const struct neb_work *w, float *v);
void neb__work_unpack_second(const struct neb_work *w, const float *packed, float *v);

/* The first rank lacks values of the others: a step was made since the last collection. */
bool neb__work_lacks_whole(const struct neb_work *w);
/* All parameters in the order in which they were added, without frozen ones in few bits and without those of other sites'
 * stages. A rank writes its part of them; the first rank can read all of them after a collection. */
int64_t neb__work_kept_values(const struct neb_work *w); /* how many values that is */
neb_status neb__work_read_params(struct neb_work *w, float *out);
neb_status neb__work_write_params(struct neb_work *w, const float *values);

neb_params *neb__work_params(struct neb_work *w);
neb_device *neb__work_device(struct neb_work *w);
/* The trainable parameters lie in the host's memory: on such a device, or offloaded. neb__work_settle() waits
 * until the last step has put them there. */
bool neb__work_slab_on_host(const struct neb_work *w);
neb_status neb__work_settle(struct neb_work *w);
/* Values [at, at + n) of this process's slab, to and from the host, wherever they lie. After a put the copies that
 * ops read are old: neb_params_refresh(). */
neb_status neb__work_values(struct neb_work *w, int64_t at, float *host, int64_t n);
neb_status neb__work_put_values(struct neb_work *w, int64_t at, const float *host, int64_t n);
/* What this rank holds by its device's allocator: the state of the training, without the memory of its runs
 * (activations, buckets, gathered layers). values: of the trained parameters of the whole model. */
struct neb_work_memory {
    int64_t state, runs, values;
};
void neb__work_memory(struct neb_work *w, struct neb_work_memory *out);
bool neb__work_on_host(const struct neb_work *w); /* its device computes in the host's memory */
neb_optimizer *neb__work_optimizer(struct neb_work *w);
const char *neb__work_optimizer_name(const struct neb_work *w); /* as the job has it */
struct neb_model *neb__work_model(struct neb_work *w);          /* NULL: only the generator is here */
struct neb_model *neb__work_generator(struct neb_work *w); /* of an objective with two; NULL: none here */
/* Relay, disentangled embeddings: the generator's token table, or the discriminator's copy of it. NULL:
 * neither. */
neb_param *neb__work_table(struct neb_work *w);
/* Seconds of all steps' forwards and backwards so far, and those of them in which this stage of a pipeline
 * waited for another one. */
void neb__work_stage_times(const struct neb_work *w, double *all_s, double *idle_s);
double neb__work_waited(const struct neb_work *w);   /* seconds spent waiting for data */
int64_t neb__work_batches(const struct neb_work *w); /* micro-batches that went into steps, ever */
/* Asks `asks` before each micro-batch whether to give the step up; NULL: nobody. A step that was given up has returned
 * NEB_ERR_CANCELLED and has changed nothing. False: such steps cannot be given up, because other processes take part in them, or
 * because they cost privacy. */
bool neb__work_may_give_up(struct neb_work *w, bool (*asks)(void *arg), void *arg);
bool neb__work_gave_up(const struct neb_work *w);
/* The last step failed because its text cannot be read, and has changed nothing: parameters, moments and position are those
 * before it. */
bool neb__work_text_failed(const struct neb_work *w);

/* A hash of the code of all frozen weights in few bits, equal at all ranks. false: there are none. */
neb_status neb__work_frozen_hash(struct neb_work *w, bool *any, struct neb_hash *out);

/* A hash of the names and shapes of all parameters, and of frozen weights in few bits. A checkpoint is only loaded where it is the same. */
neb_status neb__work_identity(struct neb_work *w, struct neb_hash *out);

/* The position in the data behind the last step, for a checkpoint; and a return to it. */
neb_status neb__work_save_position(struct neb_work *w, struct neb_buf *out);
neb_status neb__work_load_position(struct neb_work *w, const void *bytes, size_t n);

#endif
