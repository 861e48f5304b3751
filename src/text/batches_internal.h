/* batches_internal.h: what batches.c (the order) and batches_fill.c (the rows) share. */
#ifndef NEB_TEXT_BATCHES_INTERNAL_H
#define NEB_TEXT_BATCHES_INTERNAL_H

#include "text/source_mix.h"
#include "text/batches.h"

#include <stdbool.h>

struct neb_bucket {
    int32_t tokens[2];
};

/* A draw that waits for its place in a batch, or has found it. */
struct neb_pending {
    uint64_t draw;   /* of this part */
    uint64_t global; /* of all parts: the sample id */
    int64_t sample;  /* in its source */
    int32_t source;
    int32_t rows[2]; /* on each side */
    int32_t masks;
};

struct neb_batches {
    struct neb_batches_cfg cfg;
    struct neb_source *source;
    struct neb_mix *mix; /* NULL with `once` */
    enum neb_mix_rule rule;
    struct neb_bucket bucket[NEB_MAX_BUCKETS];
    int buckets;
    int32_t nseq, loss; /* fixed counts of every batch; loss: MLM only */
    struct neb_hash fingerprint;
    /* the position */
    int64_t step;
    uint64_t next; /* draw of this part */
    struct neb_pending *queue;
    int queued, queue_cap;
    struct neb_batches_stats stats;
    /* of the batch being made */
    struct neb_pending *chosen; /* (max_seqs) */
    int chosen_n;
    uint8_t *marks; /* (max_len) scratch of masking */
    int32_t *candidates;
};

/* Writes the chosen samples into b, whose bucket is `k`. */
neb_status neb__batches_fill(struct neb_batches *s, int k, struct neb_batch *b);

#endif
