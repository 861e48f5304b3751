/* memory_check.h: whether a job's model can be trained in the memory that is there, before it is taken. */
#ifndef NEB_TASK_MEMORY_CHECK_H
#define NEB_TASK_MEMORY_CHECK_H

#include "job/job.h"

#include <nebula/engine.h>

/* Before any text is read, so with the vocabulary that the job asks for. Looks only at jobs on the CPU. Nothing is allocated
 * but names and shapes.
 *   NEB_ERR_CONFIG  names both sizes, and what would fit */
neb_status neb__memory_foresee(const struct neb_job *job);
/* The same on any device, whatever else uses it now. A device that cannot be opened refuses nothing: opening it says why.
 *   NEB_OK          *fits is set; where it is false, neb_last_error() is the message of neb__memory_foresee()
 *   NEB_ERR_CONFIG  the model or its peft is refused, whatever the memory; NEB_ERR_NOMEM */
neb_status neb__memory_foresee_here(const struct neb_job *job, bool *fits);

/* Bytes of this machine that are free for a training, swap included and within the container's limit; infinite: not known. */
double neb__memory_of_host(void);

/* The same for the parameters as they are, on the device that is to hold them. */
neb_status neb__memory_check(const struct neb_job *job, const neb_params *ps, neb_device *device,
                             bool on_host);

#endif
