/* ledger.c: the file of a site's privacy spending.
 *
 * An expense is on disk before the update that causes it leaves, or before the step that causes it is made. So a process
 * that is killed anywhere has spent at most what the file says. Steps are charged in blocks, to sync once a block; what is
 * left of a block at a crash counts as spent.
 *
 * A folder that was restored from a backup says too little. The log knows better: it names the site's updates, and run/privacy.c
 * admits those that the file lacks.
 *
 *     "NEBPRIV\n" | version 1 u16 | unit u16 | orders u32 | count u64 | k u64 | divergences f64 … | SHA-256 of all that
 *
 * The divergences are summed, so noise, rate and delta may change between two starts. The unit may not: what was sent under one
 * says nothing of the other. */
#include "privacy/ledger.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAGIC "NEBPRIV\n"
enum { VERSION = 1, HEAD = 32, BODY = HEAD + 8 * NEB_RDP_ORDERS, SIZE = BODY + NEB_HASH_SIZE };

struct account {
    enum neb_privacy_unit unit; /* NONE: a file that does not say it */
    uint64_t count, k;
    struct neb_rdp spent;
};

struct neb_privacy_ledger {
    pthread_mutex_t lock;
    char path[PATH_MAX];
    struct neb_privacy_rule rule;
    struct neb_rdp one; /* of a release by the rule */
    struct account now;
    uint64_t left; /* steps that are charged and not made */
};

/* ---- the file ------------------------------------------------------------------------------------------ */

static neb_status encode(const struct account *a, uint8_t out[SIZE])
{
    struct neb_hash h;
    memcpy(out, MAGIC, 8);
    neb__put32(out + 8, VERSION | (uint32_t)a->unit << 16);
    neb__put32(out + 12, NEB_RDP_ORDERS);
    neb__put64(out + 16, a->count);
    neb__put64(out + 24, a->k);
    for (int i = 0; i < NEB_RDP_ORDERS; i++) {
        uint64_t bits;
        memcpy(&bits, &a->spent.at[i], sizeof bits);
        neb__put64(out + HEAD + 8 * i, bits);
    }
    NEB_TRY(neb__hash(out, BODY, &h));
    memcpy(out + BODY, h.b, sizeof h.b);
    return NEB_OK;
}

static bool decode(const uint8_t *in, size_t n, struct account *out)
{
    struct neb_hash h;
    if (n != SIZE || memcmp(in, MAGIC, 8) || (neb__get32(in + 8) & 0xffff) != VERSION ||
        neb__get32(in + 8) >> 16 > NEB_PRIVACY_SAMPLE || neb__get32(in + 12) != NEB_RDP_ORDERS ||
        neb__hash(in, BODY, &h) != NEB_OK || memcmp(h.b, in + BODY, sizeof h.b))
        return false;
    out->unit = neb__get32(in + 8) >> 16;
    out->count = neb__get64(in + 16);
    out->k = neb__get64(in + 24);
    for (int i = 0; i < NEB_RDP_ORDERS; i++) {
        uint64_t bits = neb__get64(in + HEAD + 8 * i);
        memcpy(&out->spent.at[i], &bits, sizeof bits);
        if (!(out->spent.at[i] >= 0)) return false;
    }
    return true;
}

static neb_status same_unit(struct neb_privacy_ledger *l)
{
    const enum neb_privacy_unit was = l->now.unit;
    l->now.unit = l->rule.unit;
    if (was == NEB_PRIVACY_NONE || was == l->rule.unit) return NEB_OK;
    return neb__fail(NEB_ERR_CONFIG,
                     "%s is an account of privacy.unit: %s, and the job says %s: what was sent under the one "
                     "is not protected under the other. Put the unit back, or train under a new run name",
                     l->path, neb__privacy_unit_name(was), neb__privacy_unit_name(l->rule.unit));
}

static neb_status load(struct neb_privacy_ledger *l)
{
    struct neb_buf b;
    if (access(l->path, F_OK) && errno == ENOENT) return same_unit(l);
    neb__buf_init(&b, 2 * SIZE);
    neb_status status = neb__file_read(l->path, &b);
    bool whole = status == NEB_OK && decode(b.data, b.len, &l->now);
    neb__buf_free(&b);
    if (status != NEB_OK && status != NEB_ERR_NOSPACE) return status;
    if (whole) return same_unit(l);
    return neb__fail(
        NEB_ERR_CORRUPT,
        "%s is damaged, so nobody knows what this site has spent of its privacy budget. Restore the file "
        "from a "
        "backup (what the log names since then is added), or train on under a new run name with a new budget",
        l->path);
}

static neb_status save(struct neb_privacy_ledger *l, const struct account *a)
{
    uint8_t bytes[SIZE];
    NEB_TRY(encode(a, bytes));
    NEB_TRY(neb__file_replace(l->path, bytes, sizeof bytes, 0600));
    l->now = *a;
    return NEB_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

neb_status neb__privacy_ledger_open(const char *path, const struct neb_privacy_rule *rule,
                                    struct neb_privacy_ledger **out)
{
    struct neb_privacy_ledger *l = NEB_NEW(struct neb_privacy_ledger);
    if (!l) return neb__fail(NEB_ERR_NOMEM, "out of memory for a privacy budget");
    l->rule = *rule;
    if (!l->rule.block) l->rule.block = 1;
    neb_status status = NEB_OK;
    if ((size_t)snprintf(l->path, sizeof l->path, "%s", path) >= sizeof l->path)
        status = neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", path);
    if (status == NEB_OK) status = neb__rdp_of(&rule->step, &l->one);
    if (status == NEB_OK) status = load(l);
    if (status != NEB_OK || pthread_mutex_init(&l->lock, NULL)) {
        neb__free(l);
        return status != NEB_OK ? status : neb__fail(NEB_ERR_NOMEM, "no lock for a privacy budget");
    }
    *out = l;
    return NEB_OK;
}

neb_status neb__privacy_ledger_absent(const char *path)
{
    if (access(path, F_OK)) {
        if (errno == ENOENT || errno == ENOTDIR) return NEB_OK;
        return neb__fail(NEB_ERR_IO, "cannot look for %s: %s", path, strerror(errno));
    }
    return neb__fail(NEB_ERR_CONFIG,
                     "%s is a privacy account, and the job has no privacy.unit any more: its next update "
                     "would lay open what the ones before protected. Put `privacy` back, or train under "
                     "another name and folder",
                     path);
}

void neb__privacy_ledger_close(struct neb_privacy_ledger *l)
{
    if (!l) return;
    pthread_mutex_destroy(&l->lock);
    neb__free(l);
}

/* ---- spending ------------------------------------------------------------------------------------------ */

static struct account charged(const struct neb_privacy_ledger *l, uint64_t n, uint64_t k)
{
    struct account a = l->now;
    a.count += n;
    if (k > a.k) a.k = k;
    neb__rdp_add(&a.spent, &l->one, (double)n);
    return a;
}

static bool allowed(const struct neb_privacy_ledger *l, const struct account *a)
{
    return !(l->rule.limit > 0) || neb__rdp_epsilon(&a->spent, l->rule.delta) <= l->rule.limit;
}

static neb_status refuse(const struct neb_privacy_ledger *l)
{
    return neb__quiet(NEB_ERR_LIMIT,
                      "the privacy budget is spent: epsilon %.4g of %.4g at delta %.3g after %" PRIu64
                      " %s; nothing more of this site's data may leave",
                      neb__rdp_epsilon(&l->now.spent, l->rule.delta), l->rule.limit, l->rule.delta,
                      l->now.count, l->rule.unit == NEB_PRIVACY_SITE ? "updates" : "steps");
}

neb_status neb__privacy_charge(struct neb_privacy_ledger *l, uint64_t n, uint64_t k)
{
    pthread_mutex_lock(&l->lock);
    struct account next = charged(l, n, k);
    neb_status status = !n || allowed(l, &next) ? save(l, &next) : refuse(l);
    pthread_mutex_unlock(&l->lock);
    return status;
}

neb_status neb__privacy_take_step(struct neb_privacy_ledger *l)
{
    neb_status status = NEB_OK;
    pthread_mutex_lock(&l->lock);
    for (uint64_t n = l->rule.block; !l->left; n /= 2) {
        struct account next = charged(l, n ? n : 1, 0);
        if (!allowed(l, &next) && n > 1) continue; /* a shorter block may still be allowed */
        status = allowed(l, &next) ? save(l, &next) : refuse(l);
        if (status == NEB_OK) l->left = n ? n : 1;
        break;
    }
    if (status == NEB_OK) l->left--;
    pthread_mutex_unlock(&l->lock);
    return status;
}

neb_status neb__privacy_admit(struct neb_privacy_ledger *l, uint64_t n, uint64_t k)
{
    pthread_mutex_lock(&l->lock);
    struct account next = charged(l, n, k);
    neb_status status = save(l, &next);
    pthread_mutex_unlock(&l->lock);
    return status;
}

uint64_t neb__privacy_charged_k(struct neb_privacy_ledger *l)
{
    pthread_mutex_lock(&l->lock);
    uint64_t k = l->now.k;
    pthread_mutex_unlock(&l->lock);
    return k;
}

void neb__privacy_state(struct neb_privacy_ledger *l, struct neb_privacy_statement *out)
{
    pthread_mutex_lock(&l->lock);
    *out = (struct neb_privacy_statement){.unit = l->rule.unit,
                                          .step = l->rule.step,
                                          .clip = l->rule.clip,
                                          .epsilon = neb__rdp_epsilon(&l->now.spent, l->rule.delta),
                                          .delta = l->rule.delta,
                                          .limit = l->rule.limit,
                                          .count = l->now.count};
    pthread_mutex_unlock(&l->lock);
}
