/* quota.c: refusals by a quota: see quota.h. The places that refuse are
 *
 *     names        src/round/committed.c, where hashes that another site mentions become wishes
 *     cells        peer_cells.c
 *     updates      unnamed.c, peer_updates.c
 *     signatures   peer_updates.c
 *     messages     links.c, queue.c
 *     models       agreement.c
 *     relays       relaying.c
 *     claims       src/round: commits, views, rosters and lapses without the signatures that they need
 *     proofs       src/round/guilt.c */
#include "run/quota.h"
#include "base/log.h"
#include "run/session.h"

#include <stdio.h>

static const struct {
    const char *what, *sentence;
} kinds[NEB_QUOTAS] = {
#define NEB__X(name, what, sentence) {what, sentence},
    NEB_QUOTA_KINDS(NEB__X)
#undef NEB__X
};

void neb__quotas_init(struct neb_quotas *q)
{
    pthread_mutex_init(&q->lock, NULL);
}

void neb__quotas_free(struct neb_quotas *q)
{
    pthread_mutex_destroy(&q->lock);
}

bool neb__quota_count(neb_session *s, uint16_t site, enum neb_quota_kind kind, uint64_t n)
{
    if (site >= NEB_SITES_MAX || !n) return false;
    pthread_mutex_lock(&s->quotas.lock);
    bool first = !s->quotas.refused[site][kind];
    s->quotas.refused[site][kind] += n;
    pthread_mutex_unlock(&s->quotas.lock);
    return first;
}

void neb__session_refused(neb_session *s, uint16_t site, enum neb_quota_kind kind, uint64_t n)
{
    if (!neb__quota_count(s, site, kind, n)) return;
    char name[NEB_NAME_SIZE];
    neb__members_name(&s->members, site, name);
    neb__warn("refusing what site '%s' sends: %s. This is said once; the status counts it", name,
              kinds[kind].sentence);
}

/* The quotas' lock is held. */
static size_t describe(const uint64_t refused[NEB_QUOTAS], const char *name, char *text, size_t size)
{
    size_t n = 0;
    for (int k = 0; k < NEB_QUOTAS; k++) {
        if (!refused[k] || n >= size) continue;
        int more = snprintf(text + n, size - n, "%s%s %llu %s", n ? "" : name, n ? "," : ":",
                            (unsigned long long)refused[k], kinds[k].what);
        n += more > 0 ? (size_t)more : 0;
    }
    return n < size ? n : size - 1;
}

uint64_t neb__session_refusals(neb_session *s, char *text, size_t size)
{
    uint64_t all = 0;
    size_t n = 0;
    *text = 0;
    for (uint16_t i = 0; i < NEB_SITES_MAX; i++) {
        char name[NEB_NAME_SIZE];
        uint64_t sum = 0;
        neb__members_name(&s->members, i, name);
        pthread_mutex_lock(&s->quotas.lock);
        for (int k = 0; k < NEB_QUOTAS; k++) sum += s->quotas.refused[i][k];
        if (sum && n && n + 2 < size) n += (size_t)snprintf(text + n, size - n, "; ");
        if (sum) n += describe(s->quotas.refused[i], name, text + n, size - n);
        pthread_mutex_unlock(&s->quotas.lock);
        all += sum;
    }
    return all;
}
