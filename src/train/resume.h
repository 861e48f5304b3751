/* resume.h: a job's state to and from a checkpoint: parameters, moments, data position, progress. */
#ifndef NEB_TRAIN_RESUME_H
#define NEB_TRAIN_RESUME_H

#include "store/checkpoint.h"
#include "task/work.h"

#include <nebula/nebula.h>

struct neb_progress {
    int64_t step, tokens;
    double seconds; /* of training, over all starts */
};

/* Hands a copy to the writer, which writes it in the background. session: this site's part of a run, or NULL. */
neb_status neb__resume_save(struct neb_work *w, neb_session *session, struct neb_ckpt_writer *writer,
                            const struct neb_progress *p);

/* From the newest good checkpoint in `dir`. NEB_ERR_NOTFOUND (quiet): none. NEB_ERR_CONFIG: of another model. */
neb_status neb__resume_load(struct neb_work *w, neb_session *session, const char *dir,
                            struct neb_progress *p);

/* Writes the mean of the last `most` checkpoints' parameters into the model, and how many they are into *used. One that is
 * damaged since is left out with a warning: it must not keep a finished run from its end. Fewer than two: *used is 0 and nothing
 * changes. */
neb_status neb__resume_average(struct neb_work *w, const char *dir, int most, int *used);

/* All parameters' values in the order they were added. */
int64_t neb__resume_values(struct neb_work *w);
neb_status neb__resume_read_params(struct neb_work *w, float *out);
neb_status neb__resume_write_params(struct neb_work *w, const float *values);

#endif
