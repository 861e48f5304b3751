/* score_pieces.c: a line becomes its pieces. They contain no space: SentencePiece writes U+2581 instead. */
#include "text/score_pieces.h"
#include "base/file.h"
#include "base/mem.h"
#include "text/sp_shim.h"

#include <string.h>

enum { MAX_MODEL = 256 << 20, MAX_LINE = 64 << 20 };

struct neb_score_pieces {
    struct neb_sp *sp;
};

neb_status neb__score_pieces_open(const char *path, struct neb_score_pieces **out)
{
    char error[NEB_SP_ERROR];
    struct neb_buf bytes;
    struct neb_score_pieces *p = NEB_NEW(struct neb_score_pieces);
    if (!p) return neb__fail(NEB_ERR_NOMEM, "out of memory for %s", path);
    neb__buf_init(&bytes, MAX_MODEL);
    neb_status status = neb__file_read(path, &bytes);
    if (status == NEB_OK && (status = neb__sp_load(bytes.data, bytes.len, &p->sp, error)) != NEB_OK)
        neb__fail(status, "%s is not a SentencePiece model: %s", path, error);
    neb__buf_free(&bytes);
    if (status != NEB_OK) {
        neb__free(p);
        return status;
    }
    *out = p;
    return NEB_OK;
}

void neb__score_pieces_close(struct neb_score_pieces *p)
{
    if (!p) return;
    neb__sp_free(p->sp);
    neb__free(p);
}

static neb_status append(void *arg, const char *piece, size_t n)
{
    struct neb_buf *out = arg;
    if (out->len) NEB_TRY(neb__buf_append(out, " ", 1));
    return neb__buf_append(out, piece, n);
}

neb_status neb__score_pieces_cut(const struct neb_score_pieces *p, const char *text, char **out)
{
    char error[NEB_SP_ERROR];
    struct neb_buf made;
    neb__buf_init(&made, MAX_LINE);
    neb_status status = neb__sp_pieces(p->sp, text, strlen(text), append, &made, error);
    if (status != NEB_OK)
        neb__fail(status, "a line cannot be cut: %s", error);
    else
        status = neb__buf_append(&made, "", 1);
    if (status != NEB_OK) {
        neb__buf_free(&made);
        return status;
    }
    *out = (char *)made.data;
    return NEB_OK;
}
