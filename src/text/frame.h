/* frame.h: the special tokens around the two texts of a translation.
 *
 *     [lead] source </s> [tail]      and      start [first] target   predicts   [first] target </s>
 *
 * Families of models differ in nothing else: which of these four there are, and how the token of a language is
 * written. A model folder names its frame. */
#ifndef NEB_TEXT_FRAME_H
#define NEB_TEXT_FRAME_H

#include "text/tokenizer.h"

struct neb_frame;

struct neb_frame_tokens {
    int32_t lead, tail, start, first; /* -1: none; start: <s> */
};
#define NEB_NO_FRAME ((struct neb_frame_tokens){-1, -1, -1, -1})

const struct neb_frame *neb__frame_named(const char *name); /* NULL: no such frame */
const char *neb__frame_name(const struct neb_frame *f);

/* Whether the language of the source, or of the target, has to be known. */
bool neb__frame_wants_from(const struct neb_frame *f);
bool neb__frame_wants_to(const struct neb_frame *f);
/* Whether the start token must not be chosen as a token of the target. */
bool neb__frame_bans_start(const struct neb_frame *f);

/* The tokens for a pair of languages; NULL or "": not known.
 *   NEB_ERR_CONFIG  a language is needed, or the tokenizer has no token for it */
neb_status neb__frame_find(const struct neb_frame *f, const struct neb_tok *tok, const char *from,
                           const char *to, struct neb_frame_tokens *out);

#endif
