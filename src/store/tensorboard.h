/* tensorboard.h: TensorBoard event files, written without TensorFlow. A successful open owes a close. */
#ifndef NEB_STORE_TENSORBOARD_H
#define NEB_STORE_TENSORBOARD_H

#include "base/status.h"

struct neb_tensorboard;

/* Makes DIR/events.out.tfevents.TIME.HOST.PID. resumed_at >= 0: the file says that training goes on
 * from that step, so that TensorBoard hides later values of an interrupted run. NEB_ERR_IO,
 * NEB_ERR_NOSPACE, NEB_ERR_NOMEM */
neb_status neb__tensorboard_open(const char *dir, int64_t resumed_at, struct neb_tensorboard **out);

/* One number under a tag ("loss", "wan/bytes"). Buffered. */
neb_status neb__tensorboard_scalar(struct neb_tensorboard *e, int64_t step, double wall_time, const char *tag,
                                   double value);
/* Quiet, like all functions here: the owner of the metrics warns. NEB_ERR_NOSPACE,
 * NEB_ERR_IO: buffered records are dropped. */
neb_status neb__tensorboard_flush(struct neb_tensorboard *e);
neb_status neb__tensorboard_close(struct neb_tensorboard *e); /* NULL is fine */

#endif
