/* stream.c: one end of a stream is opened, asked and closed; this file has the parts that both ends share.
 *
 * Items of a site's stream are numbered by the caller (item n is the n-th micro-batch of a training), so its
 * checkpoint needs no mark of its own, and an item that is put again after a crash is known by its number.
 * Three promises make a crash of either side harmless: an item leaves only when the journal has it; the
 * producer syncs before its checkpoint, so the journal is never behind a checkpoint; the consumer retains
 * only what a checkpoint on disk covers. */
#include "run/stream.h"
#include "base/clamp.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { SLICE_NS = 1000000000 };
enum { ITEMS = 64, ITEMS_MAX = 4096, BYTES = 16 << 20, NUMBER_MAX = 65535 };

/* ---- waiting ------------------------------------------------------------------------------------------- */

int64_t neb__stream_until(double wait_s)
{
    return wait_s < 0 || wait_s > 1e9 ? -1 : neb__now_ns() + (int64_t)(wait_s * 1e9);
}

void neb__stream_goes_on(neb_stream *st)
{
    st->waits = 0;
}

/* The session's note is of the waits of the last seconds, so a long one is cut into short ones. */
bool neb__stream_wait(neb_stream *st, int what, int64_t until_ns)
{
    int64_t start = neb__now_ns(), slice = start + SLICE_NS;
    st->waits = what;
    st->waited_at = start;
    if (until_ns >= 0 && start >= until_ns) return false;
    if (until_ns < 0 || until_ns > slice) until_ns = slice;
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
                             .tv_nsec = (long)(until_ns % 1000000000)};
    pthread_cond_timedwait(&st->changed, &st->lock, &until);
    st->waited_at = neb__now_ns();
    st->wait_s += neb__seconds_since(start);
    return true;
}

struct call {
    neb_stream *st;
    neb_status (*fn)(neb_stream *st);
    neb_status result;
    char why[256]; /* messages belong to a thread */
    bool done;
};

static void run_call(void *arg)
{
    struct call *c = arg;
    c->result = c->fn(c->st);
    if (c->result != NEB_OK) snprintf(c->why, sizeof c->why, "%s", neb_last_error());
    pthread_mutex_lock(&c->st->lock);
    c->done = true;
    pthread_cond_broadcast(&c->st->changed);
    pthread_mutex_unlock(&c->st->lock);
}

neb_status neb__stream_call(neb_stream *st, neb_status (*fn)(neb_stream *st))
{
    struct call c = {.st = st, .fn = fn};
    NEB_TRY(neb__net_post(st->session->net, run_call, &c));
    pthread_mutex_lock(&st->lock);
    while (!c.done) pthread_cond_wait(&st->changed, &st->lock);
    pthread_mutex_unlock(&st->lock);
    return c.result == NEB_OK ? NEB_OK : neb__quiet(c.result, "%s", c.why);
}

void neb__streams_halted(neb_session *s)
{
    for (neb_stream *st = s->streams; st; st = st->next) {
        pthread_mutex_lock(&st->lock);
        st->ended = true;
        st->why = s->mismatch != NEB_OK ? s->mismatch : NEB_ERR_STATE;
        snprintf(st->note, sizeof st->note, "%s", s->why);
        pthread_cond_broadcast(&st->changed);
        pthread_mutex_unlock(&st->lock);
    }
}

neb_status neb__stream_over(neb_stream *st)
{
    if (st->note[0]) return neb__quiet(st->why, "%s", st->note);
    if (st->why == NEB_OK)
        return neb__quiet(NEB_ERR_CANCELLED, "site '%s' has ended the stream after item %" PRIu64, st->name,
                          st->config.produce ? st->received : st->last);
    if (st->why == NEB_ERR_CORRUPT)
        return neb__quiet(
            st->why,
            "stream %u with site '%s': the checkpoints of the two sites do not fit together (one "
            "went back to items that the other has dropped); start both again from the beginning",
            st->config.number, st->name);
    return neb__quiet(st->why, "stream %u with site '%s' has ended: %s", st->config.number, st->name,
                      neb_status_text(st->why));
}

/* The lock is held. */
static bool may_put(const neb_stream *st, uint64_t n)
{
    return st->last + n <= st->received + (uint64_t)st->config.items && st->last + n <= st->limit;
}

neb_status neb__stream_ready(neb_stream *st, int64_t n, double wait_s)
{
    int64_t until = neb__stream_until(wait_s);
    neb_status status = NEB_OK;
    if (st->journal && !st->config.produce && neb__journal_next(st->journal) <= st->last + (uint64_t)n)
        return neb__quiet(NEB_ERR_CANCELLED, "%s ends after item %" PRIu64, st->name,
                          neb__journal_next(st->journal) - 1);
    if (st->journal) return NEB_OK;
    pthread_mutex_lock(&st->lock);
    for (;;) {
        if (st->config.produce ? !st->ended && may_put(st, (uint64_t)n) : st->waiting >= n) break;
        if (st->ended && !(st->config.produce ? 0 : st->waiting)) status = neb__stream_over(st);
        if (status != NEB_OK || st->ended) break;
        if (!neb__stream_wait(st, st->config.produce ? NEB_WAIT_CREDIT : NEB_WAIT_ITEMS, until)) {
            status = neb__quiet(NEB_ERR_TIMEOUT, "no answer from site '%s' in time", st->name);
            break;
        }
    }
    if (status != NEB_ERR_TIMEOUT) neb__stream_goes_on(st);
    pthread_mutex_unlock(&st->lock);
    return status;
}

void neb__stream_window(neb_stream *st, int64_t items)
{
    pthread_mutex_lock(&st->lock);
    st->config.items = neb__clamp_int(items, 1, ITEMS_MAX);
    pthread_cond_broadcast(&st->changed);
    pthread_mutex_unlock(&st->lock);
}

void neb__stream_limit(neb_stream *st, uint64_t item)
{
    pthread_mutex_lock(&st->lock);
    st->limit = item;
    pthread_cond_broadcast(&st->changed);
    pthread_mutex_unlock(&st->lock);
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static neb_status open_links(neb_stream *st)
{
    struct neb_net_stream_producer p = neb__stream_producer;
    struct neb_net_stream_consumer c = neb__stream_consumer;
    p.arg = c.arg = st;
    const struct neb_stream_config *k = &st->config;
    if (!k->produce) {
        NEB_TRY(neb__net_stream_open_consumer(st->session->net, st->peer, k->number, k->mark, k->bytes, &c,
                                              &st->links));
        neb__net_stream_keep(st->links, st->retained);
        return NEB_OK;
    }
    NEB_TRY(neb__net_stream_open_producer(st->session->net, st->peer, k->number, true, k->mark + 1, &p,
                                          &st->links));
    st->last = st->durable = neb__net_stream_next(st->links) - 1;
    return NEB_OK;
}

static neb_status find_site(neb_stream *st)
{
    neb_session *s = st->session;
    if (!s || !s->driver.runs) return neb__fail(NEB_ERR_STATE, "a stream needs a session that has started");
    st->peer = neb__members_find(&s->members, s->self, st->config.site);
    if (st->peer == NEB_NO_SITE)
        return neb__fail(NEB_ERR_NOTFOUND, "the roster has no other site named '%s'", st->config.site);
    snprintf(st->name, sizeof st->name, "%s", st->config.site);
    return NEB_OK;
}

static neb_status open_folder(neb_stream *st)
{
    char name[32];
    snprintf(name, sizeof name, "stream-%u", st->config.number);
    snprintf(st->name, sizeof st->name, "%.39s", st->config.folder);
    NEB_TRY(neb__journal_open(st->config.folder, name, 1, &st->journal));
    if (neb__journal_next(st->journal) <= st->config.mark)
        return neb__fail(
            NEB_ERR_CORRUPT, "%s holds %" PRIu64 " items of stream %u, the checkpoint covers %" PRIu64,
            st->config.folder, neb__journal_next(st->journal) - 1, st->config.number, st->config.mark);
    if (st->config.produce) st->last = st->durable = st->received = neb__journal_next(st->journal) - 1;
    return NEB_OK;
}

static neb_status check(const struct neb_stream_config *c)
{
    if (c->number < 1 || c->number > NUMBER_MAX || c->items < 0 || c->items > ITEMS_MAX ||
        (!c->site && !c->folder))
        return neb__fail(NEB_ERR_INVALID,
                         "stream %u with %" PRId64
                         " items of credit: a site (or a folder), a number of 1 to %d and "
                         "at most %d items are needed",
                         c->number, c->items, NUMBER_MAX, ITEMS_MAX);
    return NEB_OK;
}

static neb_status open_either(neb_stream *st)
{
    if (!st->config.site) return open_folder(st);
    NEB_TRY(find_site(st));
    NEB_TRY(neb__stream_call(st, open_links));
    pthread_mutex_lock(&st->session->lock);
    st->next = st->session->streams;
    st->session->streams = st;
    if (st->session->halted) neb__streams_halted(st->session);
    pthread_mutex_unlock(&st->session->lock);
    return NEB_OK;
}

neb_status neb_stream_open(neb_session *s, const struct neb_stream_config *c, neb_stream **out)
{
    return neb__stream_open_keeping(s, c, c->mark, out);
}

neb_status neb__stream_open_keeping(neb_session *s, const struct neb_stream_config *c, uint64_t retained,
                                    neb_stream **out)
{
    NEB_TRY(check(c));
    neb_stream *st = NEB_NEW(neb_stream);
    if (!st) return neb__fail(NEB_ERR_NOMEM, "out of memory for a stream");
    pthread_condattr_t attr;
    pthread_mutex_init(&st->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&st->changed, &attr);
    pthread_condattr_destroy(&attr);
    neb__buf_init(&st->read, NEB_STREAM_ITEM_MAX);
    st->tail = &st->head;
    st->session = s;
    st->config = *c;
    if (!c->items) st->config.items = ITEMS;
    if (!c->bytes) st->config.bytes = BYTES;
    st->last = st->received = st->retained = c->mark;
    if (!c->produce && retained < c->mark) st->retained = retained;
    st->limit = UINT64_MAX;
    neb_status status = open_either(st);
    if (status != NEB_OK) {
        neb_stream_close(st);
        return status;
    }
    *out = st;
    return NEB_OK;
}

/* ---- the rest ------------------------------------------------------------------------------------------ */

void neb_stream_get_status(neb_stream *st, struct neb_stream_status *out)
{
    pthread_mutex_lock(&st->lock);
    *out = (struct neb_stream_status){.last = st->last,
                                      .received = st->received,
                                      .retained = st->retained,
                                      .bytes = st->bytes,
                                      .wait_s = st->wait_s};
    pthread_mutex_unlock(&st->lock);
    if (!st->journal) out->linked = neb__members_linked(&st->session->members, st->peer);
}

static neb_status close_links(neb_stream *st)
{
    neb__net_stream_close(st->links);
    st->links = NULL;
    neb__stream_forget_notice(st);
    return NEB_OK;
}

static void leave_session(neb_stream *st)
{
    pthread_mutex_lock(&st->session->lock);
    neb_stream **at = &st->session->streams;
    while (*at && *at != st) at = &(*at)->next;
    if (*at) *at = st->next;
    pthread_mutex_unlock(&st->session->lock);
}

void neb_stream_close(neb_stream *st)
{
    if (!st) return;
    if (st->config.site && st->session && st->session->driver.runs) {
        neb__stream_call(st, close_links); /* behind everything that was posted for this stream */
        leave_session(st);
    }
    for (struct neb_entry *e = st->head, *next; e; e = next) {
        next = e->next;
        neb__free(e);
    }
    neb__free(st->current);
    neb__buf_free(&st->read);
    neb__journal_close(st->journal);
    pthread_cond_destroy(&st->changed);
    pthread_mutex_destroy(&st->lock);
    neb__free(st);
}
