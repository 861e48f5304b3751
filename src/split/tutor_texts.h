/* tutor_texts.h: a teacher's translations of a batch's sources, at both ends of a stream.
 *
 * Teacher and student keep the same texts, under the hash of the source, in files of the same content. So the teacher's site
 * knows which texts the student lacks, and neither asks. After a successful init a free is owed. */
#ifndef NEB_SPLIT_TUTOR_TEXTS_H
#define NEB_SPLIT_TUTOR_TEXTS_H

#include "base/bytes.h"
#include "store/keyed_file.h"
#include "task/data.h"

struct neb_tutor_text {
    struct neb_keyset_key key;
    size_t at, n; /* its entry in `bytes` */
    bool here;    /* the other end lacks it: it is in the item */
};

struct neb_tutor_texts {
    const struct neb_data *data;
    struct neb_keyed_file *file; /* NULL: the job keeps none */
    struct neb_tutor_text *seq;  /* (room) of the present batch */
    int32_t seqs, room;
    struct neb_buf bytes;
    int64_t taken, gold,
        unfit; /* visits: with a translation; with the own target by choice; because it did not fit */
};

neb_status neb__tutor_texts_init(struct neb_tutor_texts *t, const struct neb_data *data, int32_t seqs);
void neb__tutor_texts_free(struct neb_tutor_texts *t);
/* The file in the folder `out`, with the texts of the first `mark` batches. */
neb_status neb__tutor_texts_open(struct neb_tutor_texts *t, const char *out, const struct neb_hash *of,
                                 uint64_t mark);

/* Finds the texts of a batch in the file; those that are missing are `here`. */
neb_status neb__tutor_texts_plan(struct neb_tutor_texts *t, const struct neb_batch *b);
/* The texts of sequence q; NULL behind the last. NEB_ERR_NOMEM */
neb_status neb__tutor_texts_set(struct neb_tutor_texts *t, int32_t q, char *const *texts, int64_t n);
/* Files those that are `here`, while there is room for them. */
neb_status neb__tutor_texts_keep(struct neb_tutor_texts *t, uint64_t batch);

/* Appends those that are `here` to an item; reads them from one.
 *   NEB_ERR_CORRUPT; NEB_ERR_NOTFOUND: a text is neither in the item nor in the file */
neb_status neb__tutor_texts_encode(const struct neb_tutor_texts *t, struct neb_buf *out);
neb_status neb__tutor_texts_decode(struct neb_tutor_texts *t, struct neb_reader *r);

/* Puts a text, or the sequence's own target, into each sequence of the batch: a function of seed and draw. */
neb_status neb__tutor_texts_apply(struct neb_tutor_texts *t, struct neb_batch *b);

#endif
