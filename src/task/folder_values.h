/* folder_values.h: what a folder says of one parameter after the other, without the model in memory. The model is only described:
 * its parameters are never ready. */
#ifndef NEB_TASK_FOLDER_VALUES_H
#define NEB_TASK_FOLDER_VALUES_H

#include "store/safetensors.h"
#include "task/folder.h"

struct neb_folder_values {
    struct neb_st *st;
    struct neb_peft peft;
    const struct neb_model *model;
};

/* Refuses what neb__folder_load() refuses. Owes a close, also after an error. */
neb_status neb__folder_values_open(const struct neb_model_yaml *f, const struct neb_model *m,
                                   struct neb_folder_values *out);
void neb__folder_values_close(struct neb_folder_values *v);
/* The tensor whose values are the parameter's; *out NULL: something is merged with it.
 *   NEB_ERR_NOTFOUND, NEB_ERR_SHAPE */
neb_status neb__folder_values_plain(const struct neb_folder_values *v, const neb_param *p,
                                    const struct neb_st_tensor **out);
/* All values, merged, as fp32. */
neb_status neb__folder_values_make(const struct neb_folder_values *v, const neb_param *p, float *values);

#endif
