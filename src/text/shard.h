/* shard.h: tokenised text on disk, memory-mapped, so several gigabytes need memory only for the pages in use.
 *
 * A set is a folder of shards. Samples are numbered through all shards in the order they were added. A sample
 * is one text (sides 1) or a pair (sides 2). Every successful open or create owes a close. */
#ifndef NEB_TEXT_SHARD_H
#define NEB_TEXT_SHARD_H

#include "base/hash.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NEB_LANG_SIZE = 16 };

struct neb_set_info {
    int sides;                   /* 1 or 2 */
    char lang[2][NEB_LANG_SIZE]; /* of each side; "" unknown */
    int32_t vocab;               /* ids are below it */
    struct neb_hash tokenizer;   /* neb__tok_hash(): ids mean the same words only with the same tokenizer */
};

/* ---- writing --- */

struct neb_set_writer;

/* Makes the folder where needed and writes shards of at most `shard_bytes` of tokens (0: 256 MiB) under
 * temporary names; only a successful finish makes them visible, replacing a set that was there.
 *   NEB_ERR_INVALID, NEB_ERR_IO, NEB_ERR_NOSPACE, NEB_ERR_NOMEM */
neb_status neb__set_create(const char *dir, const struct neb_set_info *info, int64_t shard_bytes,
                           struct neb_set_writer **out);

/* ids[s] has n[s] tokens, n[s] > 0. NEB_ERR_RANGE: an id outside the vocabulary. After an error, only abandon
 * may follow. */
neb_status neb__set_add(struct neb_set_writer *w, const int32_t *const ids[2], const int32_t n[2]);

/* Durable when it returns NEB_OK. Releases the writer in every case. */
neb_status neb__set_finish(struct neb_set_writer *w);
void neb__set_abandon(struct neb_set_writer *w); /* removes what was written; NULL is fine */

/* ---- reading --- */

struct neb_set;

/* Checks headers and indexes (not every token: neb__set_verify does).
 *   NEB_ERR_NOTFOUND: no set in `dir`; NEB_ERR_CORRUPT; NEB_ERR_VERSION; NEB_ERR_IO; NEB_ERR_NOMEM */
neb_status neb__set_open(const char *dir, struct neb_set **out);
void neb__set_close(struct neb_set *set); /* NULL is fine */
bool neb__set_finished(const char *dir);  /* a writer has finished a set there */

const struct neb_set_info *neb__set_info(const struct neb_set *set);
int64_t neb__set_count(const struct neb_set *set);            /* samples */
int64_t neb__set_tokens(const struct neb_set *set, int side); /* in all */

/* NEB_ERR_CORRUPT: a file of the set was shortened while the set was open, or can no longer be read. Then its lengths are 0. */
neb_status neb__set_check(const struct neb_set *set);

/* Number of tokens; 0 for a sample or side that is not there. */
int32_t neb__set_length(const struct neb_set *set, int64_t sample, int side);

/* Copies tokens [from, from + n) of one side, n at most its length. NEB_ERR_INVALID; NEB_ERR_CORRUPT: an id
 * beyond the vocabulary, or as neb__set_check(). */
neb_status neb__set_copy(const struct neb_set *set, int64_t sample, int side, int32_t from, int32_t n,
                         int32_t *out); // (n)

/* Reads everything once and compares the checksums. NEB_ERR_CORRUPT names the shard. */
neb_status neb__set_verify(const struct neb_set *set);

#endif
