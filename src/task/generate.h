/* generate.h: a decoder continues a text, token by token, as people try what they trained. */
#ifndef NEB_TASK_GENERATE_H
#define NEB_TASK_GENERATE_H

#include "task/folder.h"

struct neb_generate_config {
    int64_t max_new, top_k, seed;
    double temperature, top_p, repetition;
    char *start; /* auto, yes, no */
    char *stop;
};

extern const struct neb_opt neb__generate_options[];

struct neb_generator;

/* The model stays the caller's. Owes a close. NEB_ERR_CONFIG: it is not a decoder with a tokenizer; NEB_ERR_NOMEM */
neb_status neb__generator_open(const struct neb_ready *model, const struct neb_generate_config *c,
                               struct neb_generator **out);
void neb__generator_close(struct neb_generator *g); /* NULL is fine */

/* A token that was chosen: the text that it completes (which may be empty), its number, its log-probability
 * before temperature and limits. At the end, once more with the number -1 if bytes of an unfinished character are
 * left. */
typedef neb_status (*neb_generate_fn)(void *arg, const char *text, size_t n, int32_t id, double logp);

/* Continues the prompt until the end token, max_new tokens or the model's longest text.
 *   NEB_ERR_RANGE: the prompt leaves no room; what `fn` returns; NEB_ERR_NOMEM … */
neb_status neb__generator_run(struct neb_generator *g, const char *prompt, size_t n, neb_generate_fn fn,
                              void *arg);
/* The same for a prompt of tokens, to which nothing is added. */
neb_status neb__generator_run_ids(struct neb_generator *g, const int32_t *prompt, size_t n,
                                  neb_generate_fn fn, void *arg);

/* One more token, or one more text, that ends what is generated; neither is part of it.
 * NEB_ERR_RANGE: there are too many; NEB_ERR_NOMEM */
void neb__generator_end_at(struct neb_generator *g, int32_t id);
neb_status neb__generator_stop_at(struct neb_generator *g, const char *text, size_t n);

#endif
