/* words.h: made-up text for tests: sentences over a small lexicon, in as many "languages" as wanted. */
#ifndef NEB_TEST_WORDS_H
#define NEB_TEST_WORDS_H

#include <stddef.h>
#include <stdint.h>

/* Sentence `number` of language `lang` (its words end differently), `words` long (0: 3 to 24). Returns the length. */
size_t words_sentence(int lang, uint64_t number, int words, char *out, size_t size);

/* A file of `lines` sentences; lang2 >= 0: tab-separated pairs. */
void words_file(const char *path, int lang, int lang2, int lines);

struct neb_tok;
/* A small SentencePiece model over that text, with <2aa>, <2bb>, <2cc>. */
struct neb_tok *words_tokenizer(const char *type);

#endif
