/* score_pieces.h: lines cut by a SentencePiece model, for spBLEU (Goyal et al. 2022): BLEU over pieces with one vocabulary for
 * all languages. A successful open owes a close. */
#ifndef NEB_TEXT_SCORE_PIECES_H
#define NEB_TEXT_SCORE_PIECES_H

#include "base/buf.h"

struct neb_score_pieces;

neb_status neb__score_pieces_open(const char *path, struct neb_score_pieces **out);
void neb__score_pieces_close(struct neb_score_pieces *p); /* NULL is fine */

/* The pieces of the text with a space between them, as an owned text. */
neb_status neb__score_pieces_cut(const struct neb_score_pieces *p, const char *text, char **out);

#endif
