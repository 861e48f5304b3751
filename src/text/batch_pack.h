/* batch_pack.h: fills a batch with sequences that the caller has, in place of draws from token sets.
 *
 *     neb__batch_pack_begin(b);
 *     while (… neb__batch_pack_fits(b, n0, n1, predicted)) neb__batch_pack_add(b, &seq);
 *     neb__batch_pack_end(b, pad, max_len);
 *
 * The batch keeps every promise of batch.h. Its rows are rounded up to one of a few shares of its largest size, so that the
 * engine meets few shapes. */
#ifndef NEB_TEXT_BATCH_PACK_H
#define NEB_TEXT_BATCH_PACK_H

#include "text/batch.h"

#include <stdbool.h>

/* One sequence. A batch with one side has its rows in side 0. The last side's rows from `from` on predict `target`. */
struct neb_batch_seq {
    const int32_t *ids[2];
    int32_t n[2], lang[2];
    int32_t from;
    const int32_t *target; /* (n of the last side - from) */
    uint32_t sample;
};

void neb__batch_pack_begin(struct neb_batch *b);
bool neb__batch_pack_fits(const struct neb_batch *b, int32_t rows0, int32_t rows1, int32_t predicted,
                          int32_t max_len);
void neb__batch_pack_add(struct neb_batch *b, const struct neb_batch_seq *seq);
void neb__batch_pack_end(struct neb_batch *b, int32_t pad, int32_t max_len);

/* How many sequences a batch must have room for, if `seqs` are real and padding fills its `rows`. */
int32_t neb__batch_pack_seqs(int32_t seqs, int32_t rows, int32_t max_len);

#endif
