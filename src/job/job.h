/* job.h: a job: what is trained on which data, and how. It comes from one YAML file and `key=value` words.
 *
 * Every section is an option table, so defaults, help and messages come from one place. A successful read
 * owes a neb__job_free(). */
#ifndef NEB_JOB_JOB_H
#define NEB_JOB_JOB_H

#include "base/buf.h"
#include "base/doc.h"
#include "job/objective.h"

enum { NEB_JOB_DATA = 256, NEB_JOB_SITES = 64 };

/* How the sites share the work, and what one site does. */
enum neb_strategy { NEB_STRATEGY_REPLICA, NEB_STRATEGY_RELAY, NEB_STRATEGY_TUTOR, NEB_STRATEGY_PIPELINE };
enum neb_site_role {
    NEB_ROLE_TRAIN, /* replica: trains all of the model; pipeline: its layers */
    NEB_ROLE_GENERATOR,
    NEB_ROLE_DISCRIMINATOR, /* relay */
    NEB_ROLE_TEACHER,
    NEB_ROLE_STUDENT,  /* tutor */
    NEB_ROLE_WITNESS,  /* replica: votes and stores, makes no step */
    NEB_ROLE_OBSERVER, /* replica: follows and gets the model, neither votes nor makes steps */
};

/* One corpus. */
struct neb_job_data {
    char *file, *second; /* second: the other side of pairs, line by line */
    char *lang;          /* "de"; pairs: "en-de" */
    double weight;
    char *use; /* train, valid or test */
    bool flip; /* pairs: the second side is the source */
    int64_t copies;
    char *site; /* only this site has the corpus; NULL: all sites */
};

struct neb_job_tokenizer {
    char *file;      /* an existing .model, vocab.txt or vocab.json; NULL: the job trains a tokenizer */
    char *numbering; /* of that file's ids; NULL: as its model folder says, else plain */
    char *
        frame; /* special tokens around translations; NULL: as the folder says that the job starts or learns from */
    char *type;
    int64_t vocab, lines;
    bool cased, own;
    double coverage, dropout;
};

struct neb_job_train {
    int64_t steps, tokens, max_len, micro, warmup, eval_every, save_every, keep, log_every, threads, average,
        memory;
    double minutes, speed, notice;
    double lr, floor, decay_share, weight_decay, clip, beta1, beta2, mask, temperature, rtd_weight;
    char *schedule, *device, *dtype, *rtd_embeddings;
    char *optimizer, *muon_dtype, *muon_also; /* patterns; NULL: none */
    double muon_momentum;
    bool fallback, deterministic;
};

/* Initial parameters, when they are not random. */
struct neb_job_init {
    char *from;  /* a model folder; several, separated by commas: their mean */
    char *match; /* only these names */
};

/* Teachers: models whose answers are learned beside the targets. */
struct neb_job_distill {
    char *teacher; /* a model folder, or several, separated by commas */
    char *weights; /* one for each of them; NULL: all count the same */
    char *encoder, *hidden_loss;
    char *prompt, *langs; /* for a teacher with another tokenizer */
    char *sequence;       /* "beam5": its translations are learned; NULL: not */
    int64_t n;            /* of each sentence */
    double gold;          /* share of visits with the text's own target */
    double on_policy;     /* share of batches whose targets are the student's own samples */
    int64_t lag;          /* steps from a sample to the step that learns from it */
    double beta;          /* of the divergence there */
    int64_t top_k, width;
    double weight, temperature, hidden_weight;
};

/* One member of a run on several sites. */
struct neb_job_site {
    char *name;     /* as given with --site */
    char *role;     /* as in enum neb_site_role; NULL: train */
    char *folder;   /* made by `nebula-i site init`, with the run's roster in it; NULL: the name */
    char *listen;   /* HOST:PORT; NULL: as the roster says */
    char *proxy;    /* through which this site dials; NULL: as the environment says */
    char *dial;     /* the command that dials for this site; NULL: none */
    int64_t layers; /* pipeline: of the model, behind those of the sites before; 0: as the work divides */
    int64_t last_layers; /* pipeline, the first site: it has the last ones, too; 0: the last site has them */
    char *teacher;       /* tutor: the models of this teacher's site; NULL: distill.teacher */
    double weight;       /* tutor: of this teacher's site among several */
    enum neb_site_role does;
};

/* How the sites exchange what they learn. */
struct neb_job_wan {
    int64_t interval, fragments, merge_after, drift_steps, round_seconds;
    int64_t window, snapshot, bits, cache; /* relay, tutor */
    int64_t depth, journal;                /* pipeline; bits, too */
    char *recorded;
    double outer_lr, outer_momentum, tokens, max_rate, clip, noise;
    int64_t max_bytes_per_hour, ledger_quota, end_seconds, end_bytes;
    char *rung, *prefer, *end, *influence, *quorum;
    bool wait, archive, gather;
};

/* What must not be learned from what this site sends (docs/privacy.md). */
struct neb_job_privacy {
    char *unit, *aggregate;
    double epsilon, delta, clip, noise;
    int64_t samples;
};

/* Whom to tell what, when the run is watched (train --watch). */
struct neb_job_watch {
    char *alert;
    double stalled, egress;
    int64_t disk;
    bool samples;
};

/* The processes of this site (its ranks), and what each of them does. */
struct neb_job_parallel {
    int64_t data, tensor, pipeline, zero, check_every, bucket;
    bool automatic; /* `auto`: the planner chooses all of these but check_every */
    bool chosen;    /* it has */
    bool sequence;
    double timeout;
    char *hosts, *launcher, *offload, *network;
};

/* Settings that the job leaves to the program (job_auto.c). */
enum neb_settings_rules { /* as a roster's genesis numbers them */
                          NEB_SETTINGS_OLD,
                          NEB_SETTINGS_EACH, /* each site chooses its optimizer by its own batch */
                          NEB_SETTINGS_NOW
};
struct neb_job_auto {
    enum neb_settings_rules rules;
    bool optimizer, beta2, interval, outer_lr; /* left to the program; the fields hold its choice */
    bool replica;                              /* several sites train one model */
    bool apart;                                /* a corpus belongs to one of them */
    double steps;                              /* of a site; 0: the job does not say */
    double batch;                              /* tokens of a step: the mean of the sites that train */
    bool offload;                              /* one of them keeps its optimizer's state on the host */
};

struct neb_job {
    struct neb_doc doc;
    char *name, *task, *strategy, *out, *cache;
    int64_t seed;
    const struct neb_objective *objective; /* the one that `task` names */
    enum neb_strategy plan;                /* the strategy; `auto` is resolved */
    struct neb_model_config model, generator;
    struct neb_peft_config peft;
    struct neb_job_tokenizer tokenizer;
    struct neb_job_train train;
    struct neb_job_auto settings;
    struct neb_job_init init;
    struct neb_job_distill distill;
    struct neb_job_data data[NEB_JOB_DATA];
    int n_data;
    struct neb_job_wan wan;
    struct neb_job_parallel parallel;
    struct neb_job_privacy privacy;
    struct neb_job_watch watch;
    struct neb_job_site site[NEB_JOB_SITES];
    int n_sites;
    int at; /* place of this process's site in `site`; -1: it trains alone */
};

/* Reads a job file; `words` are n overrides of the form `section.key=value`.
 *   NEB_ERR_CONFIG with file and line; NEB_ERR_NOTFOUND, NEB_ERR_NOMEM */
neb_status neb__job_read(const char *file, char *const *words, int n, struct neb_job *out);
void neb__job_free(struct neb_job *j);

/* For a process that is one site (job_environment.c). The first fills in names that are NULL from NEBULA_JOB and NEBULA_SITE;
 * NEB_ERR_CONFIG: they are not set either. The second reads the job with the words and then, if `site` is NEBULA_SITE, with
 * the lines of NEBULA_SETTINGS. */
neb_status neb__job_names(const char **file, const char **site);
neb_status neb__job_read_as(const char *file, const char *site, char *const *words, int n,
                            struct neb_job *out);

/* Makes the job that of one site: the values of its `sites[].train` and `sites[].parallel` replace those of
 * `train` and `parallel`, and corpora of other sites are left out. NEB_ERR_CONFIG: the job has no such site, or the site lacks a corpus or a
 * tokenizer */
neb_status neb__job_at(struct neb_job *j, const char *site);

/* After neb__job_at(): makes the site train without the others. Its settings and corpora stay. */
void neb__job_alone(struct neb_job *j);
bool neb__job_has(const struct neb_job *j,
                  const struct neb_job_data *d); /* a corpus of this process's site */
/* Which share of the text the site `at` draws, among how many: the sites that train divide it. */
void neb__job_share(const struct neb_job *j, int64_t *share, int64_t *shares);
/* A site has train.steps of its own, so the steps of one site say nothing of where another is. */
bool neb__job_has_own_steps(const struct neb_job *j);
/* Beams that distill.sequence asks for; 0: none, or it is no such word. */
int64_t neb__job_beams(const struct neb_job *j);
const char *neb__strategy_name(enum neb_strategy s);
const char *neb__role_name(enum neb_site_role r);

/* Appends everything that must be the same at all sites, one `key=value` in a line, in a fixed order. This is
 * the whole job except each site's own settings (folders, addresses, proxies, `sites[].train`, threads, display). */
neb_status neb__job_facts(const struct neb_job *j, struct neb_buf *out);

/* The rules of this run (NEB_SETTINGS_NOW when a job has been read): fills in again what the job leaves to the program. */
neb_status neb__job_set_rules(struct neb_job *j, enum neb_settings_rules rules);

/* A site by itself, for which there is nothing to choose. */
neb_status neb__job_settle_alone(struct neb_job *j);

/* What was filled in, and why. Returns how many; 0 for a job that is no replica run. */
enum { NEB_SETTLED_MAX = 4 };
struct neb_settled {
    char key[24], value[24], why[120];
};
int neb__job_settled(const struct neb_job *j, struct neb_settled out[NEB_SETTLED_MAX]);

enum { NEB_JOB_RANKS = 1024 };

/* How many processes this site has; and whether its layout fits the job. NEB_ERR_CONFIG with the numbers. */
int neb__job_ranks(const struct neb_job *j);
neb_status neb__job_check_parallel(const struct neb_job *j);

/* --- between job.c, job_check.c and job_sites.c --------------------------------------------------------- */
extern const struct neb_opt neb__job_site_options[], neb__job_train_options[], neb__job_data_options[],
    neb__job_parallel_options[];
neb_status neb__job_bind_sites(struct neb_job *j);
neb_status neb__job_check(const struct neb_job *j);
neb_status neb__job_check_privacy(const struct neb_job *j); /* job_privacy.c; when the sites are bound */
neb_status neb__job_check_train(const struct neb_job *j, const char *section, const struct neb_job_train *t);

/* job_auto.c: fills in what the job leaves to the program. At one site: unsettle, bind its own values, settle_own. */
neb_status neb__job_settle(struct neb_job *j);
neb_status neb__job_unsettle(struct neb_job *j);
neb_status neb__job_settle_own(struct neb_job *j);

/* job_data.c: `data: {temperature: …, corpora: […]}` becomes a list and train.temperature. */
neb_status neb__job_gather_data(struct neb_job *j);

/* job_parallel.c: `parallel: auto` becomes `parallel: {auto: yes}`, also at a site. */
neb_status neb__job_gather_parallel(struct neb_job *j);
/* The layout that the planner has chosen, as words of a command line: for the ranks, and for this job. */
enum { NEB_JOB_LAYOUT_WORDS = 7, NEB_JOB_WORD = 64 };
void neb__job_layout_words(const struct neb_job *j, const struct neb_job_parallel *p,
                           char word[NEB_JOB_LAYOUT_WORDS][NEB_JOB_WORD]);
neb_status neb__job_take_layout(struct neb_job *j, const struct neb_job_parallel *p);
/* What the job leaves to the program and this site has settled, as such words (job_auto.c): how many there are; and into
 * the job's document, so that it is the one that the ranks read. */
enum { NEB_JOB_SETTINGS_WORDS = 2 };
int neb__job_settings_words(const struct neb_job *j, char word[NEB_JOB_SETTINGS_WORDS][NEB_JOB_WORD]);
neb_status neb__job_take_settings(struct neb_job *j);
/* Appends the optimizer that `auto` means in this run, as a line of neb__job_facts(): one at all sites. */
neb_status neb__job_settings_fact(const struct neb_job *j, struct neb_buf *out);
/* A site's own layout counts, though the job's is automatic. */
void neb__job_prefer_own_layout(struct neb_job *j);

/* Every key with its default and meaning. */
void neb__job_help(FILE *to);

/* The same as tables, ended by a section without a name. */
enum { NEB_JOB_TABLES = 2 };
struct neb_job_section {
    const char *name;                            /* "": the top level; NAME[]: a list */
    const char *title;                           /* for people */
    const struct neb_opt *table[NEB_JOB_TABLES]; /* ended by NULL, unless all are there */
};
extern const struct neb_job_section neb__job_sections[];

#endif
