/* folder.h: a model as a folder. Training writes one, every other command reads one.
 *
 *     model.yaml          what it is: the task, the model's options, what was added to train it
 *     model.safetensors   its parameters, under the names of docs/models.md
 *     tokenizer.model     or vocab.txt, or vocab.json with merges.txt, as model.yaml says
 *
 * Nothing in a folder is believed: options are checked as a job's are, tensors must have the shapes that
 * follow from them. */
#ifndef NEB_TASK_FOLDER_H
#define NEB_TASK_FOLDER_H

#include "job/model_yaml.h"
#include "nn/model.h"
#include "text/frame.h"
#include "text/tokenizer.h"

/* Fills `f` with the description of a trained model. */
neb_status neb__folder_describe(struct neb_model_yaml *f, const char *task,
                                const struct neb_model_config *model, const struct neb_peft_config *peft,
                                const struct neb_tok_cfg *tok);

/* How the folder's tokenizer numbers and cuts. */
struct neb_tok_cfg neb__folder_tok_cfg(const struct neb_model_yaml *f);

/* The same for a tokenizer's file, where it is a model folder's; *out is untouched where it is not.
 * NEB_ERR_CONFIG … */
neb_status neb__folder_tok_cfg_of(const char *file, struct neb_tok_cfg *out, bool *found);

/* The frame of its translations. NEB_ERR_CONFIG: there is no such frame. */
neb_status neb__folder_frame(const struct neb_model_yaml *f, const struct neb_frame **out);

/* NEB_ERR_CONFIG: the folder has no tokenizer. */
neb_status neb__folder_tokenizer(const struct neb_model_yaml *f, struct neb_tok **out);

/* Makes the folder, with a copy of the tokenizer's files (NULL: none). f->tokenizer is set to the copy's name. */
neb_status neb__folder_begin(struct neb_model_yaml *f, const char *path, const char *tokenizer_file);

/* Writes the folder: the parameters of `m` (of several models in one set: its own), and a copy of the
 * tokenizer's file (NULL: none). f->tokenizer is set to the copy's name. */
neb_status neb__folder_write(struct neb_model_yaml *f, const char *path, const struct neb_model *m,
                             const char *tokenizer_file);

/* The values alone, as one file, one parameter in memory at a time. here: only parameters of which this process has a part; meta: as
 * neb__st_write(). */
neb_status neb__folder_write_values(const char *file, const struct neb_model *m, bool here,
                                    const char *const *meta);

/* ---- a model in parts: the stages of a pipeline, each in the folder of its site ------------------------------ */

struct neb_folder_part {
    int number, parts; /* from 1 on */
    char run[24];      /* the same in all parts */
    int64_t step;
};

/* PATH/model-00001-of-00003.safetensors */
void neb__folder_part_name(const char *path, int number, int parts, char *out, size_t size);
/* Names the parts in a folder that are not this one, as another cut leaves them. */
void neb__folder_other_parts(const char *path, int number, int parts);
/* As neb__folder_write(), of what is here. */
neb_status neb__folder_write_part(struct neb_model_yaml *f, const char *path, const struct neb_model *m,
                                  const char *tokenizer_file, const struct neb_folder_part *part);
/* The parts in `from` become the model folder `to`. They are mapped: no more than a parameter of them is in memory at a time.
 *   NEB_ERR_NOTFOUND  a part, or a parameter, is missing
 *   NEB_ERR_CONFIG    parts of two runs or steps, or of an unknown one, one twice; a folder with no part
 *   NEB_ERR_SHAPE     a parameter is not as model.yaml says
 *   NEB_ERR_DTYPE     … nor a float of 32 or 16 bits */
neb_status neb__folder_join(const char *const *from, int n, const char *to);

/* Copies values from the folder into the parameters of `m` that it has; `match`: only names that match one of
 * these comma-separated patterns, NULL: all. *loaded: how many.
 *   NEB_ERR_SHAPE names the parameter and both shapes
 *   NEB_ERR_CONFIG the folder has adapters or prefixes (that match), `m` has none
 *   NEB_ERR_NOTFOUND, when `all`: a parameter of the model (that matches) is not in the folder */
neb_status neb__folder_load(const struct neb_model_yaml *f, struct neb_model *m, const char *match, bool all,
                            int *loaded);

/* Frozen parameters of which nothing is here (the other stages' of a pipeline), out of the folder into the whole slab (whole_values);
 * have[i]: parameter i is there now. Those that a load would put together from several tensors are left out. */
neb_status neb__folder_read_frozen(const struct neb_model_yaml *f, const struct neb_model *m,
                                   const char *match, float *whole, bool *have);

/* The name that a folder gives a parameter of the set that `m` is in; NULL: it is not of this model. */
const char *neb__folder_name(const struct neb_model *m, const neb_param *p);

/* ---- a model ready for use, nothing of it trained ------------------------------------------------------ */

struct neb_ready {
    struct neb_model_yaml folder;
    neb_device *device; /* not owned */
    neb_params *params;
    struct neb_model *model;
    struct neb_tok *tok; /* NULL: the folder has none */
    bool cut;            /* only its first layers are here */
};

/* head: instead of the folder's ("none": hidden states only), or NULL. Owes a close. */
neb_status neb__ready_open(const char *path, const char *head, neb_device *device, struct neb_ready *out);
/* The same with the first `layers` layers of the encoder only; 0: all. */
neb_status neb__ready_open_layers(const char *path, const char *head, int64_t layers, neb_device *device,
                                  struct neb_ready *out);
void neb__ready_close(struct neb_ready *r);

#endif
