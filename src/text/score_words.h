/* score_words.h: text as code points, lower-cased and split the way sacreBLEU does it. */
#ifndef NEB_TEXT_SCORE_WORDS_H
#define NEB_TEXT_SCORE_WORDS_H

#include "text/score.h"

struct neb_chars {
    int32_t *c; /* owned */
    size_t n, cap;
};

void neb__chars_free(struct neb_chars *t);

/* Decodes (replacing what is in t), lower-cases as Python's str.lower() does. NEB_ERR_NOMEM */
neb_status neb__chars_decode(struct neb_chars *t, const char *text, bool lower);

/* Puts spaces around what the tokenizer separates. */
neb_status neb__chars_split(struct neb_chars *t, enum neb_word_split split);

bool neb__chars_is_space(int32_t c); /* as Python's str.isspace() */

#endif
