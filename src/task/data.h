/* data.h: a job's text, ready to be drawn from: tokenizer, tokenised sets, streams. A successful prepare owes
 * a free.
 *
 * Everything is made once and kept under OUT/data (or the job's `cache`). The tokenizer is tokenizer.model;
 * one that lies there already is taken, unless it was trained here with other options. A corpus has a name
 * that changes when its text, the tokenizer or the limits change. */
#ifndef NEB_TASK_DATA_H
#define NEB_TASK_DATA_H

#include "task/settle.h"
#include "text/shard.h"
#include "text/batches.h"
#include "text/tokenizer.h"

struct neb_data {
    const struct neb_job *job;
    struct neb_tok *tok;
    struct neb_tok_cfg tok_cfg;
    const struct neb_frame
        *frame; /* of the folder that the job starts or learns from; NULL: tags where needed */
    struct neb_settled_models models;
    char dir[512], tok_path[560];
    struct neb_set *set[NEB_JOB_DATA]; /* as job->data */
    /* This site has no text and needs none (task/site_cut.h): there are no sets and no streams. Without a tokenizer `tok` is NULL,
     * and its size is taken to be tokenizer.vocab. */
    bool textless;
    char langs[2 * NEB_JOB_DATA][NEB_LANG_SIZE];
    int n_langs;
};

/* Trains the tokenizer and tokenises where that was not done yet. NEB_ERR_NOTFOUND and NEB_ERR_CONFIG name
 * the file. */
neb_status neb__data_prepare(const struct neb_job *job, struct neb_data *out);
/* The same for a plan: the model need not fit into this machine. */
neb_status neb__data_prepare_plan(const struct neb_job *job, struct neb_data *out);
void neb__data_free(struct neb_data *d);

/* Whether sources begin with the token of the target language: the job translates into several. */
bool neb__data_tagged(const struct neb_data *d);

/* Whether a translation has to name the language of its source, or of its target. */
void neb__data_wants(const struct neb_data *d, bool *from, bool *to);

/* The language into which a corpus of pairs is translated; "": the job does not say. */
void neb__data_target_lang(const struct neb_job_data *c, char out[NEB_LANG_SIZE]);
void neb__data_source_lang(const struct neb_job_data *c, char out[NEB_LANG_SIZE]);

/* The name of a language (index into langs) for a teacher: as distill.langs says. */
void neb__data_teachers_lang(const struct neb_data *d, int32_t index, char out[NEB_LANG_SIZE]);

/* For what cannot be done without text. NEB_ERR_UNSUPPORTED at a site that has none: `what` cannot be done, and `instead` may help */
neb_status neb__data_wanted(const struct neb_data *d, const char *what, const char *instead);

/* The stream over the corpora with this use. NEB_ERR_NOTFOUND (quiet): there are none. */
neb_status neb__data_stream(const struct neb_data *d, const char *use, int64_t part, int64_t parts,
                            struct neb_batches **out);

/* All samples of the corpora to train on, each alone: neb__batches_one(). */
neb_status neb__data_samples(const struct neb_data *d, struct neb_batches **out);

#endif
