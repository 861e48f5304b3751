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

/* The parameters of the checkpoint of this step alone, added to `sum` (all values, in order). On an error sum is untouched. */
neb_status neb__resume_add_params(const char *dir, int64_t step, double *sum, int64_t n);

/* All parameters' values in the order they were added. */
int64_t neb__resume_values(struct neb_work *w);
neb_status neb__resume_read_params(struct neb_work *w, float *out);
neb_status neb__resume_write_params(struct neb_work *w, const float *values);

#endif
