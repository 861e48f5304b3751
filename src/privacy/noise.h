/* noise.h: noise that nobody can take off again: a discrete Gaussian on integers, drawn from a cipher's key stream.
 *
 * A successful create owes a free. One thread at a time uses a generator. */
#ifndef NEB_PRIVACY_NOISE_H
#define NEB_PRIVACY_NOISE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* ---- random bits --------------------------------------------------------------------------------------- */

enum { NEB_SECRET_BUFFER = 4096 };

struct neb_secret_bits {
    void *cipher;
    int64_t pid; /* a child of fork() makes a key of its own */
    unsigned forks;
    size_t at;
    uint8_t buffer[NEB_SECRET_BUFFER];
};

/* Bytes of the system's generator. NEB_ERR_IO: it gives none */
neb_status neb__secret_random(uint8_t *out, size_t n);

/* Begins with a new key of the system's generator, also when it has begun before. Owes a close.
 *   NEB_ERR_IO: the system gives no random bytes;  NEB_ERR_NOMEM */
neb_status neb__secret_bits_begin(struct neb_secret_bits *s);
/* The same with a key that is given: the same bits each time. A child of fork() goes on with a new key all the same. */
neb_status neb__secret_bits_under(struct neb_secret_bits *s, const uint8_t key[32]);
void neb__secret_bits_close(struct neb_secret_bits *s); /* wipes; a zeroed one is fine */
/* *status becomes the first error. The word is 0 then. */
uint64_t neb__secret_bits_next(struct neb_secret_bits *s, neb_status *status);
/* In [0, 1), 53 bits. */
double neb__secret_bits_uniform(struct neb_secret_bits *s, neb_status *status);

/* Poisson sampling: of the items from `at` on, each taken with probability `rate` by itself, the first one that is taken; `end`:
 * none of those before it. */
int64_t neb__secret_bits_taken(struct neb_secret_bits *s, double rate, int64_t at, int64_t end,
                               neb_status *status);

/* ---- the discrete Gaussian ------------------------------------------------------------------------------ */

struct neb_noise;

/* P(x) is proportional to exp(-x^2 / (2 sigma^2)) over all integers; 0.3 <= sigma <= 2^52.
 *   NEB_ERR_RANGE, NEB_ERR_NOMEM */
neb_status neb__noise_create(double sigma, struct neb_noise **out);
void neb__noise_free(struct neb_noise *n); /* NULL is fine */

/* Adds noise to n integers, drawn under a key that is made after the integers are settled. They must be below 2^60.
 * NEB_ERR_IO, NEB_ERR_NOMEM: v must not be used. */
neb_status neb__noise_add(struct neb_noise *noise, int64_t *v, size_t n);
/* The same under a key that is given. It must follow from the integers, too: see step_noise.h. */
neb_status neb__noise_add_under(struct neb_noise *noise, const uint8_t key[32], int64_t *v, size_t n);

/* ---- vectors as integers -------------------------------------------------------------------------------- */

/* A vector that is clipped to a norm is written in units of clip / NEB_PRIVACY_UNITS. */
#define NEB_PRIVACY_UNITS 1048576.0 /* 2^20 */

/* Adds x * scale, clipped to the norm `clip` and rounded to the unit, to `sum`. The rounded vector is never longer than
 * NEB_PRIVACY_UNITS. One with a value that is not finite counts as 0. Returns the norm before. n < 2^32 */
double neb__privacy_clip(const float *x, size_t n, double scale, double clip, int64_t *sum);
/* out = v * unit */
void neb__privacy_values(const int64_t *v, size_t n, double unit, float *out);

#endif
