/* nli.h: whether one sentence follows from another: fine-tuning on pairs with three labels, and accuracy on
 * other pairs.
 *
 * Files are tab-separated with a header that names the columns premise, hypothesis (or hypo) and label;
 * labels are 0, 1, 2 or entailment, neutral, contradiction (contradictory). Training in one language and
 * testing in others measures how much carries over (XNLI, Conneau et al. 2018). */
#ifndef NEB_TASK_NLI_H
#define NEB_TASK_NLI_H

#include "task/folder.h"

struct neb_nli_config {
    int64_t epochs, tokens, pair_len, seed;
    double lr, weight_decay, dropout;
    char *pooling, *method;
};

extern const struct neb_opt neb__nli_options[];

struct neb_nli;

/* The encoder of a model folder with a new head of three classes. Owes a close. */
neb_status neb__nli_open(const char *folder, const struct neb_nli_config *c, neb_device *device,
                         struct neb_nli **out);
void neb__nli_close(struct neb_nli *n);

/* After every step. */
typedef void (*neb_nli_fn)(void *arg, int64_t step, int64_t steps, double loss);

/* NEB_ERR_CORRUPT names file and line; NEB_ERR_NOTFOUND … */
neb_status neb__nli_train(struct neb_nli *n, const char *const *files, int count, neb_nli_fn show, void *arg);

struct neb_nli_result {
    int64_t pairs, right;
    double loss;
};
neb_status neb__nli_test(struct neb_nli *n, const char *file, struct neb_nli_result *out);

#endif
