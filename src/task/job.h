/* job.h: a job: what is trained on what, and how; from one YAML file and `key=value` words.
 *
 * Every section is an option table, so defaults, help and messages come from one place. A successful read owes a
 * neb__job_free(). */
#ifndef NEB_TASK_JOB_H
#define NEB_TASK_JOB_H

#include "base/doc.h"
#include "nn/config.h"

enum { NEB_JOB_DATA = 64, NEB_JOB_SITES = 64 };

enum neb_task_kind { NEB_TASK_MLM, NEB_TASK_CAUSAL, NEB_TASK_RTD, NEB_TASK_TRANSLATE };

/* One corpus. */
struct neb_job_data {
    char *file, *second; /* second: the other side of pairs, line by line */
    char *lang;          /* "de"; pairs: "en-de" */
    double weight;
    char *use; /* train, valid or test */
    bool flip; /* pairs: the second side is the source */
};

struct neb_job_tokenizer {
    char *file; /* an existing .model or vocab.txt; NULL: one is trained */
    char *type;
    int64_t vocab, lines;
    bool cased;
};

struct neb_job_train {
    int64_t steps, tokens, max_len, micro, warmup, eval_every, save_every, keep, log_every, threads, average;
    double minutes;
    double lr, floor, decay_share, weight_decay, clip, beta1, beta2, mask, temperature, rtd_weight;
    char *schedule, *device, *dtype;
    bool fallback, deterministic;
};

/* One member of a run on several sites. */
struct neb_job_site {
    char *name; /* as given with --site */
    char *
        folder; /* made by `nebula-i site init`, with the run's roster in it; relative to where the command runs */
    char *listen; /* HOST:PORT; NULL: as the roster says */
};

/* How the sites exchange what they learn. */
struct neb_job_wan {
    int64_t interval, fragments, drift_steps, round_seconds;
    double outer_lr, outer_momentum, tokens, max_rate;
    char *rung;
    bool wait;
};

struct neb_job {
    struct neb_doc doc;
    char *name, *task, *out;
    int64_t seed;
    enum neb_task_kind kind;
    struct neb_model_config model, generator;
    struct neb_peft_config peft;
    struct neb_job_tokenizer tokenizer;
    struct neb_job_train train;
    struct neb_job_data data[NEB_JOB_DATA];
    int n_data;
    struct neb_job_wan wan;
    struct neb_job_site site[NEB_JOB_SITES];
    int n_sites;
};

/* words: `section.key=value`, n of them. NEB_ERR_CONFIG with file and line; NEB_ERR_NOTFOUND, NEB_ERR_NOMEM */
neb_status neb__job_read(const char *file, char *const *words, int n, struct neb_job *out);
void neb__job_free(struct neb_job *j);

/* Every key with its default and meaning. */
void neb__job_help(FILE *to);

#endif
