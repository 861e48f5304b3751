/* news.c: see news.h.
 *
 * Most news are read from committed records, so every site tells the same story: a record names the updates that it uses and
 * those that it leaves out with the reason, the order that changed the members, and so the sites whose update it lacks. A site
 * that trains more slowly than the others is missing in many rounds, and in each for a good reason. It is told when that has
 * happened once, twice, four times and so on. */
#include "run/news.h"
#include "run/session.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { BEHIND = 4096 }; /* a site that comes back tells so many records at most */

void neb__news_init(struct neb_news *n)
{
    pthread_mutex_init(&n->lock, NULL);
}

void neb__news_free(struct neb_news *n)
{
    pthread_mutex_destroy(&n->lock);
}

void neb__news_add(neb_session *s, const char *kind, const char *fmt, ...)
{
    struct neb_news *n = &s->news;
    char text[NEB_NEWS_TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&n->lock);
    size_t at = n->n++ % NEB_NEWS;
    snprintf(n->item[at].kind, sizeof n->item[at].kind, "%s", kind);
    memcpy(n->item[at].text, text, sizeof text);
    pthread_mutex_unlock(&n->lock);
}

void neb__news_read(neb_session *s, uint64_t *after,
                    void (*fn)(void *arg, const char *kind, const char *text), void *arg)
{
    struct neb_news *n = &s->news;
    for (;;) {
        char kind[NEB_NEWS_KIND], text[NEB_NEWS_TEXT];
        pthread_mutex_lock(&n->lock);
        if (n->n > NEB_NEWS && *after < n->n - NEB_NEWS) *after = n->n - NEB_NEWS;
        bool more = *after < n->n;
        if (more) {
            memcpy(kind, n->item[*after % NEB_NEWS].kind, sizeof kind);
            memcpy(text, n->item[*after % NEB_NEWS].text, sizeof text);
            ++*after;
        }
        pthread_mutex_unlock(&n->lock);
        if (!more) return;
        fn(arg, kind, text);
    }
}

/* ---- records ------------------------------------------------------------------------------------------- */

static const char *reason_of(uint8_t reject)
{
    switch (reject) {
    case NEB_REJECT_NONFINITE: return "it is not finite";
    case NEB_REJECT_NORM: return "it is longer than the run allows";
    case NEB_REJECT_SIZE: return "it has the wrong size";
    default: return "";
    }
}

static void tell_left_out(neb_session *s, const struct neb_record *rec)
{
    for (uint32_t i = 0; i < rec->updates; i++) {
        const struct neb_named *u = &rec->update[i];
        char name[NEB_NAME_SIZE];
        if (u->reject == NEB_REJECT_NONE || u->site >= NEB_SITES_MAX) continue;
        pthread_mutex_lock(&s->lock);
        int64_t n = ++s->status.rejected;
        pthread_mutex_unlock(&s->lock);
        if (n & (n - 1)) continue; /* once, twice, four times … */
        neb__members_name(&s->members, u->site, name);
        neb__news_add(s, "dropped", "record %llu leaves out the update of %s: %s (%lld so far)",
                      (unsigned long long)rec->index, name, reason_of(u->reject), (long long)n);
    }
}

/* Sites that train and whose update is not in the record. */
static void tell_missing(neb_session *s, const struct neb_record *rec, const struct neb_members *roster)
{
    uint64_t there = 0;
    for (uint32_t i = 0; i < rec->updates; i++)
        if (rec->update[i].site < NEB_SITES_MAX) there |= neb__bit(rec->update[i].site);
    for (uint16_t i = 0; i < NEB_SITES_MAX; i++) {
        char name[NEB_NAME_SIZE];
        if (!(roster->members & roster->trains & neb__bit(i)) || (there & neb__bit(i))) continue;
        uint64_t n = ++s->news.missed[i];
        if (n & (n - 1)) continue;
        neb__members_name(&s->members, i, name);
        neb__news_add(s, "missed", "record %llu closed without the update of %s (%llu rounds so far)",
                      (unsigned long long)rec->index, name, (unsigned long long)n);
    }
}

static void tell_bound(neb_session *s, uint64_t value)
{
    uint32_t bits = (uint32_t)value;
    float bound;
    memcpy(&bound, &bits, sizeof bound);
    if (bits)
        neb__news_add(s, "order", "updates longer than %g are left out from now on", (double)bound);
    else
        neb__news_add(s, "order", "updates may have any length from now on");
}

static void tell_order(neb_session *s, const struct neb_record *rec)
{
    const struct neb_order *o = rec->order;
    unsigned long long at = (unsigned long long)rec->index;
    char name[NEB_NAME_SIZE] = "nobody";
    if (o->site < NEB_SITES_MAX) neb__members_name(&s->members, o->site, name);
    switch (o->op) {
    case NEB_OP_ADMIT: neb__news_add(s, "admitted", "%s is a member from record %llu on", name, at); break;
    case NEB_OP_EVICT:
        neb__news_add(s, "evicted", "the operator removed %s from the run with record %llu", name, at);
        break;
    case NEB_OP_LEAVE: neb__news_add(s, "left", "%s left the run for good with record %llu", name, at); break;
    case NEB_OP_FORCE:
    case NEB_OP_ADOPT:
        neb__news_add(s, "forced", "the operator chose %d members that go on from record %llu",
                      __builtin_popcountll(rec->roster.members), at);
        break;
    case NEB_OP_SURVIVOR: neb__news_add(s, "order", "%s may go on alone: it has two votes", name); break;
    case NEB_OP_END: neb__news_add(s, "order", "the operator ended the run with record %llu", at); break;
    case NEB_OP_BUDGET:
        neb__news_add(s, "order", "rounds may use %.1f %% of the lines", (double)o->value / 10);
        break;
    case NEB_OP_BOUND: tell_bound(s, o->value); break;
    case NEB_OP_REKEY: neb__news_add(s, "order", "%s has a new key from record %llu on", name, at); break;
    case NEB_OP_OPERATORS:
        neb__news_add(s, "order", "other operators give orders from record %llu on", at);
        break;
    default: break;
    }
}

static void tell_record(neb_session *s, const struct neb_record *rec, const struct neb_members *roster)
{
    if (rec->ordered) tell_order(s, rec);
    if (rec->type != NEB_RECORD_ROUND) return;
    tell_left_out(s, rec);
    tell_missing(s, rec, roster);
}

void neb__news_follow(neb_session *s, const struct neb_round_status *st)
{
    struct neb_news *n = &s->news;
    if (!n->begun) n->record = st->commit, n->begun = true;
    if (st->commit > n->record + BEHIND) n->record = st->commit - BEHIND;
    while (n->record < st->commit) {
        const struct neb_record *rec = neb__round_record(s->core, ++n->record);
        if (rec) tell_record(s, rec, &st->roster);
    }
}
