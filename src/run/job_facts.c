/* job_facts.c: facts and refusals: see job_facts.h.
 *
 * Facts travel right behind the handshake, in the same order as everything else of their priority, so they are compared
 * before the first vote is counted and before the first step is made. Once a site has trained, a peer that comes with other
 * facts or refuses is its own affair: it is named in the log and the run goes on without it. */
#include "run/job_facts.h"
#include "base/log.h"
#include "base/mem.h"
#include "run/session.h"
#include "watch/status.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

struct neb_job_facts {
    char *facts;
    size_t facts_size;
};

static struct neb_job_facts *words_of(neb_session *s)
{
    if (!s->words) s->words = NEB_NEW(struct neb_job_facts);
    return s->words;
}

void neb__facts_free(neb_session *s)
{
    if (!s->words) return;
    neb__free(s->words->facts);
    neb__free(s->words);
    s->words = NULL;
}

/* ---- facts ----------------------------------------------------------------------------------------------------- */

struct line {
    const char *key, *value;
    int key_size, value_size;
};

/* The line at *at, which moves behind it; false at the end. A line without '=' has an empty value. */
static bool next_line(const char *text, size_t n, size_t *at, struct line *out)
{
    if (*at >= n) return false;
    const char *p = text + *at, *end = memchr(p, '\n', n - *at);
    size_t len = end ? (size_t)(end - p) : n - *at;
    const char *eq = memchr(p, '=', len);
    size_t key = eq ? (size_t)(eq - p) : len;
    *out = (struct line){p, eq ? eq + 1 : p + len, (int)key, (int)(eq ? len - key - 1 : 0)};
    *at += len + 1;
    return true;
}

static bool find(const char *text, size_t n, const struct line *want, struct line *out)
{
    for (size_t at = 0; next_line(text, n, &at, out);)
        if (out->key_size == want->key_size && !memcmp(out->key, want->key, (size_t)want->key_size))
            return true;
    return false;
}

/* A site that joined later stands in its own job file and not in those of the sites that were there before. */
static bool may_lack(const struct line *l)
{
    return l->key_size > 6 && !memcmp(l->key, "sites[", 6);
}

bool neb__facts_differ(const char *mine, size_t n, const char *theirs, size_t k, const char *other, char *why,
                       size_t size)
{
    struct line a, b;
    const char *advice = "use the same job file and the same base files at every site";
    for (size_t at = 0; next_line(mine, n, &at, &a);) {
        bool there = find(theirs, k, &a, &b);
        if (there ? a.value_size == b.value_size && !memcmp(a.value, b.value, (size_t)a.value_size)
                  : may_lack(&a))
            continue;
        if (there)
            snprintf(why, size, "site '%s' runs another job: %.*s is '%.*s' there and '%.*s' here; %s", other,
                     a.key_size > 60 ? 60 : a.key_size, a.key, b.value_size > 60 ? 60 : b.value_size, b.value,
                     a.value_size > 60 ? 60 : a.value_size, a.value, advice);
        else
            snprintf(why, size, "site '%s' runs another job: %.*s is '%.*s' here and not given there; %s",
                     other, a.key_size > 60 ? 60 : a.key_size, a.key, a.value_size > 60 ? 60 : a.value_size,
                     a.value, advice);
        neb__status_clean(why);
        return true;
    }
    for (size_t at = 0; next_line(theirs, k, &at, &b);) {
        if (find(mine, n, &b, &a) || may_lack(&b)) continue;
        snprintf(why, size, "site '%s' runs another job: %.*s is '%.*s' there and not given here; %s", other,
                 b.key_size > 60 ? 60 : b.key_size, b.key, b.value_size > 60 ? 60 : b.value_size, b.value,
                 advice);
        neb__status_clean(why);
        return true;
    }
    return false;
}

neb_status neb__session_facts(neb_session *s, const char *text, size_t n)
{
    struct neb_job_facts *w = words_of(s);
    if (n > NEB_FACTS_TEXT_MAX)
        return neb__fail(NEB_ERR_LIMIT, "the job's facts are larger than %d bytes", NEB_FACTS_TEXT_MAX);
    char *copy = w ? neb__malloc(n + 1) : NULL;
    if (!copy) return neb__fail(NEB_ERR_NOMEM, "out of memory for the job's facts");
    memcpy(copy, text, n);
    neb__free(w->facts);
    w->facts = copy;
    w->facts_size = n;
    return NEB_OK;
}

neb_status neb__facts_identity(const neb_session *s, struct neb_buf *out)
{
    static const char *const keys[] = {"name", "seed", "task"};
    const struct neb_job_facts *w = s->words;
    struct line l;
    for (size_t k = 0; w && k < sizeof keys / sizeof *keys; k++) {
        struct line want = {.key = keys[k], .key_size = (int)strlen(keys[k])};
        if (find(w->facts, w->facts_size, &want, &l))
            NEB_TRY(neb__buf_printf(out, "%s%s %.*s", out->len ? ", " : "", keys[k], l.value_size, l.value));
    }
    return NEB_OK;
}

/* Before the first step it ends the start with a message; later it is the other's affair. */
static void differ(neb_session *s, const char *why)
{
    pthread_mutex_lock(&s->lock);
    bool begun = s->status.steps > 0;
    if (!begun) s->mismatch = NEB_ERR_CONFIG;
    pthread_mutex_unlock(&s->lock);
    if (begun)
        neb__warn("%s; this site goes on without it", why);
    else
        neb__session_halt(s, why);
}

static void compare(neb_session *s, uint16_t peer, const uint8_t *bytes, size_t n)
{
    char why[sizeof s->why], name[NEB_NAME_SIZE];
    struct neb_job_facts *w = s->words;
    if (!w || !w->facts || n > NEB_FACTS_TEXT_MAX) return;
    neb__members_name(&s->members, peer, name);
    if (neb__facts_differ(w->facts, w->facts_size, (const char *)bytes, n, name, why, sizeof why))
        differ(s, why);
}

/* ---- for the driver -------------------------------------------------------------------------------------------- */

void neb__facts_peer_up(neb_session *s, uint16_t peer)
{
    const struct neb_job_facts *w = s->words;
    if (w && w->facts) neb__session_send(s, peer, NEB_CONTROL, NEB_MSG_FACTS, w->facts, w->facts_size);
}

void neb__facts_message(neb_session *s, uint16_t peer, uint32_t kind, const uint8_t *bytes, size_t n)
{
    if (kind == NEB_MSG_FACTS) compare(s, peer, bytes, n);
    if (kind != NEB_MSG_REFUSAL) return;
    char why[sizeof s->why], text[200], name[NEB_NAME_SIZE];
    neb__members_name(&s->members, peer, name);
    snprintf(text, sizeof text, "%.*s", (int)(n < sizeof text ? n : sizeof text - 1), (const char *)bytes);
    neb__status_clean(text);
    snprintf(why, sizeof why, "site '%.31s' cannot start: %s", name, text);
    differ(s, why);
}
