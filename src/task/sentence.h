/* sentence.h: how a model folder makes one vector of a sentence, where it is not the mean of the last hidden states: LaBSE's first
 * token and dense layer, and others of the sentence-transformers library.
 *
 *     sentence.safetensors   beside model.safetensors. Metadata: pooling (first, mean), activation (tanh, none).
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

/* From a folder of sentence-transformers (modules.json) to one of ours, and back. Nothing happens where there is none.
 *   NEB_ERR_UNSUPPORTED: a module or setting that would change the vectors, by its name */
neb_status neb__sentence_import(const char *from, const char *to, int64_t hidden);
neb_status neb__sentence_export(const char *from, const char *to, int64_t hidden);

#endif
