/* inbox.c: reassembles messages by offset, in memory that the window bounds.
 *
 * A message's buffer is made when its first chunk begins. A message that does not fit the window together
 * with all other open ones breaks the protocol, since the sender knows the window. If a chunk arrives twice
 * (its first connection was given up), the connection that began last writes it; the earlier writer finds its
 * place gone and discards its bytes. So a buffer is never written after it was handed over, and a connection
 * that dies in the middle of a chunk leaves that chunk missing.
 *
 * Acknowledgements gather here and leave in bundles; neighbouring chunks share an entry. */
#include "net/inbox.h"
#include "base/mem.h"

#include <string.h>

enum { IN_MISSING = 0, IN_HAVE = 255 };

void neb__inbox_init(struct neb_inbox *in, const size_t window[NEB_PRIORITIES])
{
    memset(in, 0, sizeof *in);
    for (int i = 0; i < NEB_PRIORITIES; i++) in->queue[i].window = window[i];
}

static void release(struct neb_in *m)
{
    if (!m) return;
    if (m->state != m->few) neb__free(m->state);
    neb__free(m->data);
    neb__free(m);
}

void neb__inbox_new_session(struct neb_inbox *in)
{
    for (int p = 0; p < NEB_PRIORITIES; p++) {
        struct neb_inbox_queue *q = &in->queue[p];
        for (int i = 0; i < NEB_MESSAGES_OPEN; i++) {
            release(q->open[i]);
            q->open[i] = NULL;
        }
        q->delivered = q->bytes = 0;
    }
    in->ack_count = 0;
    in->progress = false;
}

void neb__inbox_free(struct neb_inbox *in)
{
    neb__inbox_new_session(in);
    neb__free(in->acks);
    in->acks = NULL;
    in->ack_room = 0;
}

static struct neb_in *find(struct neb_inbox_queue *q, uint64_t number)
{
    if (number <= q->delivered || number > q->delivered + NEB_MESSAGES_OPEN) return NULL;
    return q->open[number % NEB_MESSAGES_OPEN];
}

static neb_status open_message(struct neb_inbox_queue *q, const struct neb_chunk *c, struct neb_in **out)
{
    if (c->size > q->window || q->bytes > q->window - c->size)
        return neb__quiet(NEB_ERR_LIMIT, "the peer sends more than its window of %" PRIu64 " bytes",
                          q->window);
    struct neb_in *m = NEB_NEW(struct neb_in);
    if (m) {
        m->number = c->message;
        m->kind = c->kind;
        m->size = c->size;
        m->chunks = (uint32_t)neb__chunks_of(c->size);
        m->state = m->chunks <= sizeof m->few ? m->few : neb__calloc(m->chunks, 1);
        m->data = neb__malloc(c->size ? c->size : 1);
    }
    if (!m || !m->state || !m->data) {
        release(m);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a message of %" PRIu64 " bytes", c->size);
    }
    q->open[c->message % NEB_MESSAGES_OPEN] = m;
    q->bytes += c->size;
    *out = m;
    return NEB_OK;
}

neb_status neb__inbox_begin(struct neb_inbox *in, const struct neb_chunk *c, int slot)
{
    struct neb_inbox_queue *q = &in->queue[c->priority];
    if (c->message <= q->delivered)
        return NEB_OK; /* it comes once more around a resumption, and is not wanted */
    if (c->message > q->delivered + NEB_MESSAGES_OPEN)
        return neb__quiet(NEB_ERR_PROTOCOL,
                          "message %" PRIu64 " begins too early: %" PRIu64 " is the last delivered",
                          c->message, q->delivered);
    struct neb_in *m = find(q, c->message);
    if (!m) NEB_TRY(open_message(q, c, &m));
    if (m->size != c->size || m->kind != c->kind)
        return neb__quiet(NEB_ERR_PROTOCOL, "two chunks of message %" PRIu64 " contradict each other",
                          c->message);
    if (m->state[c->index] != IN_HAVE) m->state[c->index] = (uint8_t)(1 + slot);
    return NEB_OK;
}

uint8_t *neb__inbox_place(struct neb_inbox *in, const struct neb_chunk *c, int slot)
{
    struct neb_in *m = find(&in->queue[c->priority], c->message);
    if (!m || m->size != c->size || m->state[c->index] != 1 + slot) return NULL;
    return m->data + (uint64_t)c->index * NEB_CHUNK;
}

/* Drops the acknowledgements of delivered messages, since `delivered` covers them. So the chunks of open
 * messages bound the list, even if the peer never reads our acknowledgements. */
static void forget_delivered(struct neb_inbox *in)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < in->ack_count; i++)
        if (in->acks[i].message > in->queue[in->acks[i].priority].delivered) in->acks[n++] = in->acks[i];
    in->ack_count = n;
}

static neb_status add_ack(struct neb_inbox *in, const struct neb_ack *a)
{
    if (in->ack_count) {
        struct neb_ack *last = &in->acks[in->ack_count - 1];
        if (last->priority == a->priority && last->message == a->message &&
            last->index + last->count == a->index) {
            last->count += a->count;
            return NEB_OK;
        }
    }
    if (in->ack_count == in->ack_room) forget_delivered(in);
    if (in->ack_count == in->ack_room) {
        uint32_t room = in->ack_room ? 2 * in->ack_room : 256;
        struct neb_ack *more = neb__realloc(in->acks, room * sizeof *more);
        if (!more) return neb__fail(NEB_ERR_NOMEM, "out of memory for acknowledgements");
        in->acks = more;
        in->ack_room = room;
    }
    in->acks[in->ack_count++] = *a;
    return NEB_OK;
}

neb_status neb__inbox_end(struct neb_inbox *in, const struct neb_chunk *c, int slot)
{
    struct neb_in *m = find(&in->queue[c->priority], c->message);
    if (!m || m->size != c->size || m->state[c->index] != 1 + slot) return NEB_OK;
    m->state[c->index] = IN_HAVE;
    m->have++;
    in->bytes += c->length;
    return add_ack(in, &(struct neb_ack){c->priority, c->message, c->index, 1});
}

void neb__inbox_drop_slot(struct neb_inbox *in, int slot)
{
    for (int p = 0; p < NEB_PRIORITIES; p++)
        for (int i = 0; i < NEB_MESSAGES_OPEN; i++) {
            struct neb_in *m = in->queue[p].open[i];
            if (!m || m->have == m->chunks) continue;
            for (uint32_t k = 0; k < m->chunks; k++)
                if (m->state[k] == 1 + slot) m->state[k] = IN_MISSING;
        }
}

struct neb_in *neb__inbox_peek(struct neb_inbox *in, enum neb_priority priority)
{
    struct neb_inbox_queue *q = &in->queue[priority];
    struct neb_in *m = find(q, q->delivered + 1);
    return m && m->have == m->chunks ? m : NULL;
}

void neb__inbox_pop(struct neb_inbox *in, enum neb_priority priority)
{
    struct neb_inbox_queue *q = &in->queue[priority];
    struct neb_in *m = find(q, q->delivered + 1);
    if (!m) return;
    q->open[m->number % NEB_MESSAGES_OPEN] = NULL;
    q->bytes -= m->size;
    q->delivered++;
    in->progress = true;
    release(m);
}

uint32_t neb__inbox_take_acks(struct neb_inbox *in, struct neb_ack *out, uint32_t max)
{
    forget_delivered(in);
    uint32_t n = in->ack_count < max ? in->ack_count : max;
    if (n) memcpy(out, in->acks, n * sizeof *out);
    in->ack_count -= n;
    if (in->ack_count) memmove(in->acks, in->acks + n, in->ack_count * sizeof *out);
    return n;
}

neb_status neb__inbox_ack_all(struct neb_inbox *in)
{
    in->ack_count = 0;
    for (int p = 0; p < NEB_PRIORITIES; p++)
        for (uint64_t n = in->queue[p].delivered + 1; n <= in->queue[p].delivered + NEB_MESSAGES_OPEN; n++) {
            struct neb_in *m = find(&in->queue[p], n);
            for (uint32_t k = 0; m && k < m->chunks; k++)
                if (m->state[k] == IN_HAVE) NEB_TRY(add_ack(in, &(struct neb_ack){(uint8_t)p, n, k, 1}));
        }
    return NEB_OK;
}
