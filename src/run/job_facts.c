/* job_facts.c: facts and refusals: see job_facts.h.
 *
 * Facts travel right behind the handshake. Messages of one priority arrive in order, so facts are compared
 * before the first vote is counted and before the first step is made. Both sites must hear of a difference:
 * neb_session_close() waits until a peer has taken in this site's facts. A site that has no text (a stage in the middle of a
 * pipeline) says so, and need not agree on what it does not read. Once a site has trained, it goes on
 * without a peer that comes with other facts or refuses, and names that peer in the log. */
#include "run/job_facts.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/printable.h"
#include "run/agreement.h"
#include "run/session.h"

#include <stdio.h>
#include <string.h>

struct neb_job_facts {
    size_t size;
    char text[]; /* `key=value` lines, no 0 at the end */
};

enum { SHOWN = 60 }; /* bytes of a key or a value in a message */

void neb__facts_free(neb_session *s)
{
    neb__free(s->facts);
    s->facts = NULL;
}

/* ---- facts --------------------------------------------------------------------------------------------- */

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
    *out = (struct line){.key = p, .key_size = (int)len, .value = p + len};
    if (eq) {
        out->key_size = (int)(eq - p);
        out->value = eq + 1;
        out->value_size = (int)len - out->key_size - 1;
    }
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

/* A site that joined later is in its own job file, but not in those of the sites that were there before. */
static bool may_lack(const struct line *l)
{
    return l->key_size > 6 && !memcmp(l->key, "sites[", 6);
}

static bool begins(const struct line *l, const char *with)
{
    const size_t n = strlen(with);
    return (size_t)l->key_size >= n && !memcmp(l->key, with, n);
}

static bool is_textless(const char *text, size_t n)
{
    static const char fact[] = NEB_FACT_TEXTLESS;
    const size_t key = strcspn(fact, "=");
    const struct line want = {.key = fact, .key_size = (int)key, .value = fact + key + 1};
    struct line l;
    return find(text, n, &want, &l) && l.value_size == (int)strlen(want.value) &&
           !memcmp(l.value, want.value, (size_t)l.value_size);
}

/* Facts about text that one of the sites has not got. there: the other one has the key, too. */
static bool about_text(const struct line *l, bool there)
{
    if (begins(l, "data[") || begins(l, "(the text)")) return true;
    return !there && (begins(l, "(the tokenizer)") || begins(l, "train.temperature")); /* data.temperature */
}

static bool same_value(const struct line *a, const struct line *b)
{
    return a->value_size == b->value_size && !memcmp(a->value, b->value, (size_t)a->value_size);
}

static int shown(int size)
{
    return size > SHOWN ? SHOWN : size;
}

static bool is_text(const char *p, int size, const char *text)
{
    return (size_t)size == strlen(text) && !memcmp(p, text, (size_t)size);
}

/* Not given, or given so. */
static bool is_auto(const struct line *l)
{
    return !l || is_text(l->value, l->value_size, "auto");
}

/* What may bring the two sites together. */
static const char *advice_on(const struct line *here, const struct line *there)
{
    const struct line *l = here ? here : there;
    if (begins(l, NEB_FACT_CUT))
        return "use one release and the same sites[].train and tokenizer.vocab everywhere";
    if (is_text(l->key, l->key_size, "strategy") && (is_auto(here) || is_auto(there)))
        return "strategy: auto decided otherwise there: say strategy, or sites[].train.memory";
    return "use the same job file and the same base files at every site";
}

/* One of `here` and `there` may be NULL: that site was not given the key. */
static void say(const char *other, const struct line *here, const struct line *there, char *why, size_t size)
{
    const struct line *l = here ? here : there;
    const char *advice = advice_on(here, there);
    int n = snprintf(why, size, "site '%s' runs another job: %.*s is ", other, shown(l->key_size), l->key);
    if (n < 0 || (size_t)n >= size) return;
    why += n;
    size -= (size_t)n;
    if (!here)
        snprintf(why, size, "'%.*s' there and not given here; %s", shown(l->value_size), l->value, advice);
    else if (!there)
        snprintf(why, size, "'%.*s' here and not given there; %s", shown(l->value_size), l->value, advice);
    else
        snprintf(why, size, "'%.*s' there and '%.*s' here; %s", shown(there->value_size), there->value,
                 shown(here->value_size), here->value, advice);
}

bool neb__facts_differ(const char *mine, size_t n, const char *theirs, size_t k, const char *other, char *why,
                       size_t size)
{
    struct line a, b;
    const bool without = is_textless(mine, n) || is_textless(theirs, k);
    for (size_t at = 0; next_line(mine, n, &at, &a);) {
        bool there = find(theirs, k, &a, &b);
        if (without && about_text(&a, there)) continue;
        if (there ? same_value(&a, &b) : may_lack(&a)) continue;
        say(other, &a, there ? &b : NULL, why, size);
        neb__text_clean(why);
        return true;
    }
    for (size_t at = 0; next_line(theirs, k, &at, &b);) {
        if (find(mine, n, &b, &a) || may_lack(&b) || (without && about_text(&b, false))) continue;
        say(other, NULL, &b, why, size);
        neb__text_clean(why);
        return true;
    }
    return false;
}

neb_status neb__session_facts(neb_session *s, const char *text, size_t n)
{
    if (n > NEB_FACTS_TEXT_MAX)
        return neb__fail(NEB_ERR_LIMIT, "the job's facts take %zu bytes; at most %d are allowed", n,
                         NEB_FACTS_TEXT_MAX);
    struct neb_job_facts *f = neb__malloc(sizeof *f + n);
    if (!f) return neb__fail(NEB_ERR_NOMEM, "out of memory for the job's facts");
    f->size = n;
    memcpy(f->text, text, n);
    neb__facts_free(s);
    s->facts = f;
    return NEB_OK;
}

neb_status neb__facts_hash(const neb_session *s, struct neb_hash *out)
{
    const struct neb_job_facts *f = s->facts;
    return neb__hash(f ? f->text : "", f ? f->size : 0, out);
}

neb_status neb__facts_identity(const neb_session *s, struct neb_buf *out)
{
    static const char *const keys[] = {"name", "seed", "task"};
    const struct neb_job_facts *f = s->facts;
    struct line l;
    for (size_t k = 0; f && k < sizeof keys / sizeof *keys; k++) {
        struct line want = {.key = keys[k], .key_size = (int)strlen(keys[k])};
        if (find(f->text, f->size, &want, &l))
            NEB_TRY(neb__buf_printf(out, "%s%s %.*s", out->len ? ", " : "", keys[k], l.value_size, l.value));
    }
    return NEB_OK;
}

static void compare(neb_session *s, uint16_t peer, const uint8_t *bytes, size_t n)
{
    char why[sizeof s->why], name[NEB_NAME_SIZE];
    const struct neb_job_facts *f = s->facts;
    if (!f || n > NEB_FACTS_TEXT_MAX) return;
    neb__members_name(&s->members, peer, name);
    if (neb__facts_differ(f->text, f->size, (const char *)bytes, n, name, why, sizeof why))
        neb__agreement_job(s, peer, why);
}

/* ---- for the driver ------------------------------------------------------------------------------------ */

void neb__facts_peer_up(neb_session *s, uint16_t peer)
{
    const struct neb_job_facts *f = s->facts;
    if (f) neb__session_reach(s, peer, NEB_MSG_FACTS, f->text, f->size);
}

void neb__facts_message(neb_session *s, uint16_t peer, uint32_t kind, const uint8_t *bytes, size_t n)
{
    if (kind == NEB_MSG_FACTS) compare(s, peer, bytes, n);
    if (kind != NEB_MSG_REFUSAL) return;
    char why[sizeof s->why], text[200], name[NEB_NAME_SIZE];
    neb__members_name(&s->members, peer, name);
    snprintf(text, sizeof text, "%.*s", (int)(n < sizeof text ? n : sizeof text - 1), (const char *)bytes);
    neb__text_clean(text);
    snprintf(why, sizeof why, "site '%.31s' cannot start: %s", name, text);
    neb__agreement_job(s, peer, why);
}
