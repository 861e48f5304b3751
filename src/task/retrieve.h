/* retrieve.h: sentences as vectors, and how often the nearest one in another language is the translation (the
 * Tatoeba test of Artetxe and Schwenk 2019: line i of one file translates line i of the other). */
#ifndef NEB_TASK_RETRIEVE_H
#define NEB_TASK_RETRIEVE_H

#include "task/folder.h"

struct neb_embedder;

/* The model stays the caller's; it needs an encoder and a tokenizer. Owes a close. */
neb_status neb__embedder_open(const struct neb_ready *model, struct neb_embedder **out);
void neb__embedder_close(struct neb_embedder *e); /* NULL is fine */
int64_t neb__embedder_width(const struct neb_embedder *e);

/* out (n, width): the mean of the last hidden states of each line, or what the folder says (sentence.h), scaled to length 1. */
neb_status neb__embedder_embed(struct neb_embedder *e, const char *const *lines, int n, float *out);

/* Subtracts the mean of all n vectors from each and scales it to length 1 again. Sentences of one language
 * have a part in common that says nothing about their content, and small encoders put much of it into every
 * vector. NEB_ERR_NOMEM */
neb_status neb__vectors_centre(float *x, int n, int64_t width);

struct neb_retrieval {
    int n;
    double forth, back; /* share of the lines whose nearest neighbour is the right one: a to b, b to a */
};

/* Over two lists of n vectors of length 1. NEB_ERR_NOMEM */
neb_status neb__retrieve_pairs(const float *a, const float *b, int n, int64_t width,
                               struct neb_retrieval *out);

#endif
