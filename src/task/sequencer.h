/* sequencer.h: a teacher on this site that translates: whole sentences in place of its likeliest tokens. */
#ifndef NEB_TASK_SEQUENCER_H
#define NEB_TASK_SEQUENCER_H

#include "task/data.h"

#include <nebula/engine.h>

struct neb_sequencer;

/* Opens the first folder of distill.teacher; it may have another tokenizer than `data`. Owes a close.
 *   NEB_ERR_CONFIG: the model does not translate */
neb_status neb__sequencer_open(neb_device *device, const struct neb_data *data, struct neb_sequencer **out);
void neb__sequencer_close(struct neb_sequencer *s); /* NULL is fine */

/* Translates n lines from one language of the job into another (indexes into data->langs). out (n, distill.n): owned texts, set
 * only on success; NULL: there are fewer. */
neb_status neb__sequencer_translate(struct neb_sequencer *s, int32_t from, int32_t to,
                                    const char *const *lines, int n, char **out);

#endif
