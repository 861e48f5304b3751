/* corpus.h: turns text files into a set of token shards, on all cores; and gives lines for training a
 * tokenizer. */
#ifndef NEB_TEXT_CORPUS_H
#define NEB_TEXT_CORPUS_H

#include "base/pool.h"
#include "text/shard.h"
#include "text/tokenizer.h"

struct neb_corpus_cfg {
    const char *const *paths;  /* NULL-terminated: a text a line; pairs: tab-separated, or the first side */
    const char *const *paths2; /* pairs in two files, line by line: the second side; NULL: tab-separated */
    int sides;                 /* 1 or 2 */
    int flip;                  /* pairs: the second side is the source (neb__tok_encode_side) */
    const char *lang[2];
    int32_t max_tokens;  /* longer texts are divided evenly, longer pairs left out; 0: 510 */
    int32_t max_both;    /* pairs: of both sides together; longer ones are left out; 0: no such limit */
    double max_ratio;    /* pairs whose token counts differ by more are left out; 0: no such limit */
    int64_t shard_bytes; /* 0: 256 MiB */
    int64_t copies; /* copies of the text; all after the first are cut differently (bpe_dropout.h); 0: one */
    double vary;    /* share of merges left out in these copies */
};

struct neb_corpus_stats {
    int64_t lines, samples, tokens[2];
    int64_t empty, too_long, too_uneven, no_tab, cut; /* left out; cut: lines longer than a megabyte */
};

/* Writes the set to `dir`, replacing one that is there, atomically. The result does not depend on the pool.
 *   NEB_ERR_NOTFOUND, NEB_ERR_IO, NEB_ERR_CORRUPT: a file cannot be read
 *   NEB_ERR_CONFIG: files with different numbers of lines, or without any usable line
 *   NEB_ERR_NOSPACE, NEB_ERR_NOMEM */
neb_status neb__corpus_tokenise(const struct neb_corpus_cfg *cfg, const struct neb_tok *tok,
                                struct neb_pool *pool, const char *dir, struct neb_corpus_stats *stats);

/* Gives up to `limit` lines of the files (NULL-terminated), the same share of each file, for
 * neb__tok_train(). Tabs become line ends, so a pair is two texts. Owes a free. */
struct neb_line_feed;
neb_status neb__line_feed_create(const char *const *paths, int64_t limit, struct neb_line_feed **out);
int neb__line_feed_next(void *feed, const char **text, size_t *n);
neb_status neb__line_feed_status(const struct neb_line_feed *f); /* why it ended early */
void neb__line_feed_free(struct neb_line_feed *f);

#endif
