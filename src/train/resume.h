/* resume.h: a training's state to and from a checkpoint:
 * parameters, moments, position in the data, progress. */
#ifndef NEB_TRAIN_RESUME_H
#define NEB_TRAIN_RESUME_H

#include "store/checkpoint.h"
#include "task/work.h"

#include <nebula/nebula.h>

struct neb_progress {
    int64_t step, tokens;
    double seconds; /* of training, summed over all starts of the process */
};

/* This site's part of a run: the session, or its state as the gateway has saved it. */
struct neb_resume_member {
    neb_session *session;
    const void *bytes; /* without a session */
    size_t n;
};

/* Hands a copy of the state to the writer, which writes it in the background. member: NULL if this site takes part in no
 * run. before (or NULL) is called when there is memory for the copy, right before it is made; the other ranks then
 * call neb__resume_lend(). */
neb_status neb__resume_save(struct neb_work *w, const struct neb_resume_member *member,
                            struct neb_ckpt_writer *writer, const struct neb_progress *p,
                            neb_status (*before)(void *), void *arg);
neb_status neb__resume_lend(struct neb_work *w);

/* Loads the newest good checkpoint in `dir`.
 *   NEB_ERR_NOTFOUND (quiet): the folder has no checkpoint; NEB_ERR_CONFIG: it is of another model */
neb_status neb__resume_load(struct neb_work *w, neb_session *session, const char *dir,
                            struct neb_progress *p);

/* The session's part of the checkpoint of this step, whose other parts the ranks have loaded. */
neb_status neb__resume_session(neb_session *session, const char *dir, int64_t step);

/* What was given to neb__resume_save() as `member` without a session; it has n bytes. */
neb_status neb__resume_bytes(const char *dir, int64_t step, void *out, size_t n);

/* Writes the mean of the last `most` checkpoints' parameters into the model, and their number into *used. A
 * damaged one is left out with a warning, since it must not keep a finished run from its end. With fewer than
 * two of them *used is 0 and nothing changes. */
neb_status neb__resume_average(struct neb_work *w, const char *dir, int most, int *used);

/* How many values the parameters of a checkpoint have. */
int64_t neb__resume_values(struct neb_work *w);

#endif
