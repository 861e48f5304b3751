/* sentence.h: how a model folder makes one vector of a sentence, where it is not the mean of the last hidden states: LaBSE's first
 * token and dense layer, and others of the sentence-transformers library.
 *
 *     sentence.safetensors   beside model.safetensors. Metadata: pooling (first, mean), activation (tanh, none), length
 *                            (1: a module makes them that long; any).
 *                            weight (out, hidden), bias (out): the dense layer; without them there is none */
#ifndef NEB_TASK_SENTENCE_H
#define NEB_TASK_SENTENCE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct neb_sentence;

/* *out NULL: the folder has none. Else owes a close. NEB_ERR_SHAPE, NEB_ERR_CORRUPT: the file does not fit the model */
neb_status neb__sentence_open(const char *folder, int64_t hidden, struct neb_sentence **out);
void neb__sentence_close(struct neb_sentence *s); /* NULL is fine */

bool neb__sentence_reads_first(const struct neb_sentence *s); /* else the mean */
int64_t neb__sentence_width(const struct neb_sentence *s);
/* pooled (hidden) → out (width), not scaled. */
void neb__sentence_apply(const struct neb_sentence *s, const float *pooled, float *out);

/* What a folder of sentence-transformers (modules.json) says. *out NULL: it has none, or says what every folder without the file
 * has. Else owes a close.
 *   NEB_ERR_UNSUPPORTED: a module or setting that would change the vectors, by its name */
neb_status neb__sentence_read(const char *from, int64_t hidden, struct neb_sentence **out);
/* Whether such a folder has texts in small letters only, so that its tokenizer has to see to it. */
neb_status neb__sentence_lowers(const char *from, bool *out);
/* Into a folder of ours; NULL: a file that is there goes. */
neb_status neb__sentence_write(const struct neb_sentence *s, const char *to);
/* From a folder of ours to one of sentence-transformers. Nothing happens where there is no such file. */
neb_status neb__sentence_export(const char *from, const char *to, int64_t hidden);

#endif
