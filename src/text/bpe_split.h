/* bpe_split.h: where GPT-2 cuts a text before byte pairs are joined. */
#ifndef NEB_TEXT_BPE_SPLIT_H
#define NEB_TEXT_BPE_SPLIT_H

#include <stddef.h>

/* Length in bytes of the part that starts at text[0]; n >= 1, the result is from 1 to n. */
size_t neb__bpe_part(const char *text, size_t n);

#endif
