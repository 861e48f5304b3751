/* noise.c: random bits, the discrete Gaussian, and vectors as integers.
 *
 * Bits. ChaCha20 (OpenSSL) under a 256-bit key that the system's generator makes for every use. The key is made when the
 * integers that get the noise are settled, or follows from a key of the use and these integers (step_noise.h). So two copies of a machine that was frozen
 * in between never send two different vectors under one key stream. A child of fork() counts a fork more and begins with a key of its own.
 *
 * The Gaussian. An integer's magnitude is m = 2^k y + r with r < 2^k. y comes from a table of cumulated probabilities
 * proportional to exp(-y^2 / 2S^2), S = sigma / 2^k < 128, in units of 2^-128; r has k uniform bits. The pair is kept with
 * probability exp(-r (2^(k+1) y + r) / (2 sigma^2)), which is above 0.85 wherever y is likely. A random sign follows; a negative 0 is drawn
 * again. Every probability down to 2^-77 is right up to a factor of 1 +- 2^-50, so a release of d values costs at most d 2^-49 more
 * than its epsilon says: 10^-7 for 2^26 values. All that is less likely weighs 2^-75 together; it adds that much to delta.
 *
 * Floating-point noise is not safe: which values x + noise can reach depends on x, and low bits tell (Mironov 2012). So
 * clipped vectors become integers before noise is added. |round(v)| <= |v| + sqrt(n) / 2 by the triangle inequality, so a
 * vector that is clipped to sqrt(n) / 2 + 1 units less than the bound stays within it. The unit is clip / 2^20: the loss is 0.05 % of the
 * clip at a million values. */
#include "privacy/noise.h"
#include "base/mem.h"

#include <math.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* ---- random bits --------------------------------------------------------------------------------------- */

static atomic_uint forks;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void count_fork(void)
{
    atomic_fetch_add(&forks, 1);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, count_fork);
}

static bool forked(const struct neb_secret_bits *s)
{
    return s->forks != atomic_load_explicit(&forks, memory_order_relaxed);
}

static neb_status fill(struct neb_secret_bits *s)
{
    static const uint8_t zeros[NEB_SECRET_BUFFER];
    int n = 0;
    if (EVP_EncryptUpdate(s->cipher, s->buffer, &n, zeros, sizeof zeros) != 1 || n != (int)sizeof zeros)
        return neb__fail(NEB_ERR_INTERNAL, "the cipher gives no key stream: nothing is sent");
    s->at = 0;
    return NEB_OK;
}

neb_status neb__secret_random(uint8_t *key, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t got = getrandom(key + at, n - at, 0);
        if (got <= 0) return neb__fail(NEB_ERR_IO, "the system gives no random numbers: nothing is sent");
        at += (size_t)got;
    }
    return NEB_OK;
}

neb_status neb__secret_bits_under(struct neb_secret_bits *s, const uint8_t key[32])
{
    const uint8_t iv[16] = {0};
    if (!s->cipher && !(s->cipher = EVP_CIPHER_CTX_new()))
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a cipher");
    pthread_once(&once, watch_forks);
    if (EVP_EncryptInit_ex(s->cipher, EVP_chacha20(), NULL, key, iv) != 1)
        return neb__fail(NEB_ERR_INTERNAL, "this OpenSSL has no ChaCha20: nothing is sent");
    s->pid = getpid();
    s->forks = atomic_load(&forks);
    return fill(s);
}

neb_status neb__secret_bits_begin(struct neb_secret_bits *s)
{
    uint8_t key[32];
    NEB_TRY(neb__secret_random(key, sizeof key));
    neb_status status = neb__secret_bits_under(s, key);
    OPENSSL_cleanse(key, sizeof key);
    return status;
}

void neb__secret_bits_close(struct neb_secret_bits *s)
{
    EVP_CIPHER_CTX_free(s->cipher);
    OPENSSL_cleanse(s, sizeof *s);
}

uint64_t neb__secret_bits_next(struct neb_secret_bits *s, neb_status *status)
{
    uint64_t word;
    if (s->at + sizeof word > sizeof s->buffer || forked(s)) {
        neb_status now = forked(s) || s->pid != getpid() ? neb__secret_bits_begin(s) : fill(s);
        if (now != NEB_OK) {
            if (*status == NEB_OK) *status = now;
            s->at = sizeof s->buffer;
            return 0;
        }
    }
    memcpy(&word, s->buffer + s->at, sizeof word);
    memset(s->buffer + s->at, 0, sizeof word); /* whoever reads the memory later finds no past noise */
    s->at += sizeof word;
    return word;
}

double neb__secret_bits_uniform(struct neb_secret_bits *s, neb_status *status)
{
    return (double)(neb__secret_bits_next(s, status) >> 11) * 0x1p-53;
}

/* The number of items that are passed over is geometric. */
int64_t neb__secret_bits_taken(struct neb_secret_bits *s, double rate, int64_t at, int64_t end,
                               neb_status *status)
{
    double u = 1 - neb__secret_bits_uniform(s, status); /* in (0, 1] */
    double gap = rate < 1 ? floor(log(u) / log1p(-rate)) : 0;
    return gap < (double)(end - at) ? at + (int64_t)gap : end;
}

/* ---- the discrete Gaussian ------------------------------------------------------------------------------ */

typedef unsigned __int128 wide;

enum { GUIDE_BITS = 10, ROWS = 1760 /* 13.4 * 128, and some */ };

struct neb_noise {
    double sigma;
    int shift; /* k */
    int rows;
    wide end[ROWS];                  /* cumulated; the last one stands for 2^128 */
    uint16_t guide[1 << GUIDE_BITS]; /* by the first bits of a draw: the first row that it may be in */
    struct neb_secret_bits bits;
};

static void fill_table(struct neb_noise *n)
{
    const long double S = ldexpl((long double)n->sigma, -n->shift);
    long double weight[ROWS], sum = 0;
    n->rows = 0;
    for (int y = 0; y < ROWS; y++) {
        weight[y] = expl(-(long double)y * y / (2 * S * S));
        if (weight[y] < 0x1p-128L) break;
        n->rows = y + 1;
    }
    for (int y = n->rows; y-- > 0;) sum += weight[y];
    wide above = 0; /* from the tail on, so that the error of the sum falls on the likeliest row */
    for (int y = n->rows; y-- > 1;) {
        n->end[y] = (wide)0 - above;
        above += (wide)(ldexpl(weight[y] / sum, 127)) * 2;
    }
    n->end[0] = (wide)0 - above;
    for (int g = 0, y = 0; g < 1 << GUIDE_BITS; g++) {
        wide first = (wide)g << (128 - GUIDE_BITS);
        while (y < n->rows - 1 && n->end[y] <= first) y++;
        n->guide[g] = (uint16_t)y;
    }
}

neb_status neb__noise_create(double sigma, struct neb_noise **out)
{
    if (!(sigma >= 0.3 && sigma <= 0x1p52))
        return neb__fail(NEB_ERR_RANGE, "noise of deviation %g units: between 0.3 and 2^52 is possible",
                         sigma);
    struct neb_noise *n = NEB_NEW(struct neb_noise);
    if (!n) return neb__fail(NEB_ERR_NOMEM, "out of memory for a table of noise");
    n->sigma = sigma;
    while (ldexp(sigma, -n->shift) >= 128) n->shift++;
    fill_table(n);
    *out = n;
    return NEB_OK;
}

void neb__noise_free(struct neb_noise *n)
{
    if (!n) return;
    neb__secret_bits_close(&n->bits);
    neb__free(n);
}

/* A draw of 128 bits, of which the second half is made only if the first leaves it open. */
static int row(struct neb_noise *n, neb_status *status)
{
    const int last = n->rows - 1;
    uint64_t high = neb__secret_bits_next(&n->bits, status);
    int y = n->guide[high >> (64 - GUIDE_BITS)];
    while (y < last && high > (uint64_t)(n->end[y] >> 64)) y++;
    if (y == last || high < (uint64_t)(n->end[y] >> 64)) return y;
    wide u = (wide)high << 64 | neb__secret_bits_next(&n->bits, status);
    while (y < last && u >= n->end[y]) y++;
    return y;
}

static int64_t draw(struct neb_noise *n, neb_status *status)
{
    const double step = ldexp(1, n->shift);
    for (;;) {
        int y = row(n, status);
        uint64_t word = neb__secret_bits_next(&n->bits, status);
        int64_t r = n->shift ? (int64_t)(word >> (64 - n->shift)) : 0;
        int64_t m = (int64_t)((uint64_t)y << n->shift) + r;
        bool negative = word & 1;
        if (*status != NEB_OK) return 0;
        if (!m && negative) continue;
        if (n->shift) {
            double t = (double)r * (2 * step * y + (double)r) / (2 * n->sigma * n->sigma);
            double u = neb__secret_bits_uniform(&n->bits, status);
            if (!(u < 1 - t) && !(u < exp(-t))) continue;
        }
        return negative ? -m : m;
    }
}

static neb_status add_draws(struct neb_noise *noise, int64_t *v, size_t n)
{
    neb_status status = NEB_OK;
    for (size_t i = 0; i < n && status == NEB_OK; i++) v[i] += draw(noise, &status);
    return status;
}

neb_status neb__noise_add(struct neb_noise *noise, int64_t *v, size_t n)
{
    NEB_TRY(neb__secret_bits_begin(&noise->bits));
    return add_draws(noise, v, n);
}

neb_status neb__noise_add_under(struct neb_noise *noise, const uint8_t key[32], int64_t *v, size_t n)
{
    NEB_TRY(neb__secret_bits_under(&noise->bits, key));
    return add_draws(noise, v, n);
}

/* ---- vectors as integers -------------------------------------------------------------------------------- */

/* Eight sums side by side: one alone would wait for the last addition at every value. */
static double length(const float *x, size_t n)
{
    double lane[8] = {0}, sum = 0;
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) lane[k] += (double)x[i + k] * (double)x[i + k];
    for (; i < n; i++) sum += (double)x[i] * (double)x[i];
    for (int k = 0; k < 8; k++) sum += lane[k];
    return sqrt(sum);
}

/* To the nearest integer, for magnitudes below 2^51: adding 1.5 * 2^52 leaves it in the low bits of the sum. Unlike a call of
 * the library it can be done for several values at once. */
static inline int64_t nearest(double v)
{
    const double magic = 0x1.8p52;
    int64_t bits, zero;
    v += magic;
    memcpy(&bits, &v, sizeof bits);
    memcpy(&zero, &magic, sizeof zero);
    return bits - zero;
}

double neb__privacy_clip(const float *x, size_t n, double scale, double clip, int64_t *sum)
{
    const double norm = length(x, n) * fabs(scale), room = NEB_PRIVACY_UNITS - sqrt((double)n) / 2 - 1;
    if (!(norm > 0 && isfinite(norm)) || room <= 0)
        return norm; /* 0 times the units of a tiny clip is no number */
    double units = NEB_PRIVACY_UNITS / clip;
    if (norm * units > room) units = room / norm;
    units *= scale;
    for (size_t i = 0; i < n; i++) sum[i] += nearest(units * (double)x[i]);
    return norm;
}

void neb__privacy_values(const int64_t *v, size_t n, double unit, float *out)
{
    for (size_t i = 0; i < n; i++) out[i] = (float)((double)v[i] * unit);
}
