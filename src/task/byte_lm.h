/* byte_lm.h: a small language model over bytes learns a text held in memory: the demonstration job of one machine. */
#ifndef NEB_TASK_BYTE_LM_H
#define NEB_TASK_BYTE_LM_H

#include "base/opts.h"

struct neb_byte_lm_config {
    int64_t steps, sequences, context, hidden, layers, heads, sample, seed, threads;
    double lr, temperature;
    char *prompt, *device;
};

extern const struct neb_opt neb__byte_lm_options[];

struct neb_byte_lm_progress {
    int64_t step, steps, parameters;
    double bits;             /* per byte, running mean over the last steps */
    double bytes_per_second; /* trained on */
    double seconds_left;
};

/* After every step. Returning false ends the training early; what was learned is kept. */
typedef bool (*neb_byte_lm_fn)(void *arg, const struct neb_byte_lm_progress *p);

struct neb_byte_lm_result {
    double unigram;       /* bits per byte of the held-out part when only byte counts are known */
    double before, after; /* bits per byte of the held-out part, untrained and trained */
    double seconds;
    int64_t steps;
    char *sample; /* owned; the prompt and what the model wrote behind it, three times */
};

/* Trains on the first nine tenths of the text, measures on the rest. The result owes a neb__free() of its sample.
 *   NEB_ERR_CONFIG a number is impossible, or the text too short; and those of the engine */
neb_status neb__byte_lm_train(const struct neb_byte_lm_config *config, const uint8_t *text, size_t n,
                              neb_byte_lm_fn progress, void *arg, struct neb_byte_lm_result *out);

#endif
