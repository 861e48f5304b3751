/* model_yaml.h: model.yaml, the description in a model folder: the task, the model's options, the parameters
 * that were added to train it, the tokenizer's file. A job that starts from a folder takes its sizes from
 * there. */
#ifndef NEB_JOB_MODEL_YAML_H
#define NEB_JOB_MODEL_YAML_H

#include "nn/config.h"

enum { NEB_MODEL_PATH = 512 };

/* A successful read or init owes a free. */
struct neb_model_yaml {
    char path[NEB_MODEL_PATH]; /* of the folder */
    char *task, *tokenizer, *numbering, *frame, *starts;
    bool tagged, cased;
    struct neb_model_config model;
    struct neb_peft_config peft;
};

neb_status neb__model_yaml_init(struct neb_model_yaml *out);
void neb__model_yaml_free(struct neb_model_yaml *f);
/* path: the folder. NEB_ERR_NOTFOUND, NEB_ERR_CONFIG … */
neb_status neb__model_yaml_read(const char *path, struct neb_model_yaml *out);
neb_status neb__model_yaml_write(const struct neb_model_yaml *f, const char *path);

neb_status neb__model_yaml_set_task(struct neb_model_yaml *f, const char *task);
neb_status neb__model_yaml_set_frame(struct neb_model_yaml *f, const char *frame);
neb_status neb__model_yaml_set_numbering(struct neb_model_yaml *f, const char *numbering);
neb_status neb__model_yaml_set_starts(struct neb_model_yaml *f, const char *starts);
neb_status neb__model_yaml_set_tokenizer(struct neb_model_yaml *f, const char *tokenizer);

#endif
