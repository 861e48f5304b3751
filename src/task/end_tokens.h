/* end_tokens.h: the tokens that end a text of a model folder, beside its tokenizer's end token. */
#ifndef NEB_TASK_END_TOKENS_H
#define NEB_TASK_END_TOKENS_H

#include "base/status.h"

#include <stdint.h>

enum { NEB_END_TOKENS = 32 };

struct neb_end_tokens {
    int32_t id[NEB_END_TOKENS];
    int n;
};

/* What generation_config.json of the folder lists (`eos_token_id`), as far as the vocabulary has it; without the file: none.
 *   NEB_ERR_CORRUPT: the file is damaged, or a number is not that of a token */
neb_status neb__end_tokens_read(const char *folder, int32_t vocab, struct neb_end_tokens *out);

/* Brings the list of a Hugging Face folder into a model folder: generation_config.json, which is copied, or else the numbers of
 * config.json, from which transformers makes that file. NEB_ERR_CORRUPT … */
neb_status neb__end_tokens_bring(const char *from, const char *to);

#endif
