/* sp_shim.h: SentencePiece through C. No exception and no C++ type crosses this header. A successful load
 * owes a free. An error's message goes into `error` (NEB_SP_ERROR bytes) and the function returns NEB_ERR_*;
 * the caller reports it. */
#ifndef NEB_TEXT_SP_SHIM_H
#define NEB_TEXT_SP_SHIM_H

#include "base/buf.h"

enum { NEB_SP_ERROR = 300 };
struct neb_sp;

/* From the bytes of a .model file. */
neb_status neb__sp_load(const void *bytes, size_t n, struct neb_sp **out, char *error);
void neb__sp_free(struct neb_sp *sp);

/* Safe from several threads at once on one model. The ids lie in `*ids` until the same thread's next call. */
neb_status neb__sp_encode(const struct neb_sp *sp, const char *text, size_t n, const int **ids, size_t *count,
                          char *error);
neb_status neb__sp_decode(const struct neb_sp *sp, const int32_t *ids, size_t n, struct neb_buf *out,
                          char *error);

/* The same with pieces as texts: `fn` gets one after the other, also the text of an unknown one. Joining is the inverse;
 * a piece that the model does not know stands for itself. */
typedef neb_status (*neb_sp_piece_fn)(void *arg, const char *piece, size_t n);
neb_status neb__sp_pieces(const struct neb_sp *sp, const char *text, size_t n, neb_sp_piece_fn fn, void *arg,
                          char *error);
neb_status neb__sp_join(const struct neb_sp *sp, const char *const *pieces, size_t n, struct neb_buf *out,
                        char *error);

int32_t neb__sp_size(const struct neb_sp *sp);
int32_t neb__sp_id(const struct neb_sp *sp, const char *piece); /* -1: no such piece */
const char *neb__sp_piece(const struct neb_sp *sp, int32_t id); /* NULL: no such id */
int neb__sp_is_special(const struct neb_sp *sp, int32_t id);    /* control, unknown, unused */
int neb__sp_is_byte(const struct neb_sp *sp,
                    int32_t id); /* stands for one byte of a character without a piece */
int neb__sp_merges_in_order(
    const struct neb_sp *sp); /* BPE, and the pieces are numbered in the order of their merges */
int32_t neb__sp_pad(const struct neb_sp *sp); /* these four: -1 when the model lacks the token */
int32_t neb__sp_unk(const struct neb_sp *sp);
int32_t neb__sp_bos(const struct neb_sp *sp);
int32_t neb__sp_eos(const struct neb_sp *sp);

/* Gives the next sentence (not null-terminated); returns 0 at the end. */
typedef int (*neb_sp_next)(void *arg, const char **text, size_t *n);

/* keys and values: SentencePiece's own training options, ended by NULL. The model's bytes are appended to
 * `out`. */
neb_status neb__sp_train(const char *const *keys_and_values, neb_sp_next next, void *arg, struct neb_buf *out,
                         char *error);

#endif
