/* outbox.c: queues of messages, cut into chunks.
 *
 * Invariant: a chunk of a begun message is in exactly one of queued, in flight on one slot, acknowledged.
 * Losing a connection moves its chunks from in flight to queued. An acknowledgement moves a chunk from either
 * state to acknowledged (the chunk may have arrived on a connection that then died).
 *
 * A message is begun (gets its number) only when it fits the peer's window together with all messages that
 * are begun and not yet delivered. So its own window bounds the peer's memory. Within a priority messages are
 * begun and delivered in order. Between priorities the lower number goes first. One turn in sixteen goes to
 * the lowest priority that has something, so that a steady stream cannot starve a state transfer. */
#include "net/outbox.h"
#include "base/mem.h"

#include <string.h>

enum { CHUNK_QUEUED = 0, CHUNK_ACKED = 255, FAIRNESS = 16 };

void neb__outbox_init(struct neb_outbox *o, const size_t window[NEB_PRIORITIES])
{
    memset(o, 0, sizeof *o);
    for (int i = 0; i < NEB_PRIORITIES; i++) {
        o->queue[i].next_number = 1;
        o->queue[i].window = window[i];
    }
}

static void release(struct neb_out *m)
{
    if (m->state != m->few) neb__free(m->state);
    if (m->owned) neb__free((void *)(uintptr_t)m->data);
    neb__free(m);
}

/* The callback may push new messages, so the list is already consistent when it runs. */
static void finish(struct neb_out *list, neb_status status)
{
    while (list) {
        struct neb_out *m = list;
        list = m->next;
        neb_sent_fn sent = m->sent;
        void *arg = m->arg;
        release(m);
        if (sent) sent(arg, status);
    }
}

void neb__outbox_free(struct neb_outbox *o, neb_status status)
{
    for (int i = 0; i < NEB_PRIORITIES; i++) {
        struct neb_out *all = o->queue[i].first;
        memset(&o->queue[i], 0, sizeof o->queue[i]);
        finish(all, status);
    }
}

neb_status neb__outbox_push(struct neb_outbox *o, enum neb_priority priority, uint32_t kind,
                            const uint8_t *data, uint64_t size, bool owned, neb_sent_fn sent, void *arg)
{
    struct neb_outbox_queue *q = &o->queue[priority];
    struct neb_out *m = NEB_NEW(struct neb_out);
    if (!m) return neb__fail(NEB_ERR_NOMEM, "out of memory for a message");
    *m = (struct neb_out){
        .kind = kind, .priority = (uint8_t)priority, .owned = owned, .data = data, .size = size};
    m->chunks = (uint32_t)neb__chunks_of(size);
    m->state = m->chunks <= sizeof m->few ? m->few : neb__calloc(m->chunks, 1);
    m->sent = sent;
    m->arg = arg;
    if (!m->state) {
        neb__free(m);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a message");
    }
    if (q->last)
        q->last->next = m;
    else
        q->first = m;
    q->last = m;
    if (!q->cursor) q->cursor = m;
    q->queued_bytes += size;
    q->unsent += m->chunks;
    return NEB_OK;
}

static bool may_begin(const struct neb_outbox_queue *q, const struct neb_out *m)
{
    return q->next_number - q->delivered <= NEB_MESSAGES_OPEN && q->begun_bytes + m->size <= q->window;
}

/* Returns the first message with a queued chunk that may be sent, or NULL. */
static struct neb_out *candidate(struct neb_outbox_queue *q)
{
    while (q->cursor) {
        struct neb_out *m = q->cursor;
        while (m->scan < m->chunks && m->state[m->scan] != CHUNK_QUEUED) m->scan++;
        if (m->scan < m->chunks) return m->number || may_begin(q, m) ? m : NULL;
        q->cursor = m->next;
    }
    return NULL;
}

static void begin(struct neb_outbox_queue *q, struct neb_out *m)
{
    m->number = q->next_number++;
    q->begun[m->number % NEB_MESSAGES_OPEN] = m;
    q->begun_bytes += m->size;
}

static struct neb_out *choose(struct neb_outbox *o, int slot)
{
    struct neb_out *m = NULL;
    if (slot == NEB_SLOT_CONTROL) return candidate(&o->queue[NEB_CONTROL]);
    if (++o->turn % FAIRNESS == 0) {
        for (int i = NEB_BULK; i > NEB_CONTROL && !m; i--) m = candidate(&o->queue[i]);
        return m;
    }
    for (int i = NEB_STREAM; i < NEB_PRIORITIES && !m; i++) m = candidate(&o->queue[i]);
    return m;
}

bool neb__outbox_pick(struct neb_outbox *o, int slot, struct neb_chunk *chunk, const uint8_t **payload)
{
    struct neb_out *m = choose(o, slot);
    if (!m) return false;
    struct neb_outbox_queue *q = &o->queue[m->priority];
    if (!m->number) begin(q, m);
    uint32_t i = m->scan++;
    uint64_t at = (uint64_t)i * NEB_CHUNK, left = m->size - at;
    m->state[i] = (uint8_t)(1 + slot);
    o->in_flight[slot]++;
    q->unsent--;
    *chunk = (struct neb_chunk){.priority = m->priority,
                                .kind = m->kind,
                                .message = m->number,
                                .size = m->size,
                                .index = i,
                                .length = left < NEB_CHUNK ? (uint32_t)left : NEB_CHUNK};
    *payload = m->data + at;
    return true;
}

bool neb__outbox_has(const struct neb_outbox *o, int slot)
{
    struct neb_outbox *look = (struct neb_outbox *)(uintptr_t)o; /* changes only the cursors */
    if (slot == NEB_SLOT_CONTROL) return candidate(&look->queue[NEB_CONTROL]) != NULL;
    for (int i = NEB_STREAM; i < NEB_PRIORITIES; i++)
        if (candidate(&look->queue[i])) return true;
    return false;
}

static struct neb_out *find(struct neb_outbox_queue *q, uint64_t number)
{
    if (number <= q->delivered || number >= q->next_number) return NULL;
    return q->begun[number % NEB_MESSAGES_OPEN];
}

static void chunk_acked(struct neb_outbox *o, struct neb_out *m, uint32_t i)
{
    if (m->state[i] == CHUNK_ACKED) return;
    if (m->state[i] == CHUNK_QUEUED)
        o->queue[m->priority].unsent--;
    else
        o->in_flight[m->state[i] - 1]--;
    m->state[i] = CHUNK_ACKED;
    m->acked++;
    uint64_t left = m->size - (uint64_t)i * NEB_CHUNK;
    o->acked_bytes += left < NEB_CHUNK ? left : NEB_CHUNK;
}

neb_status neb__outbox_ack(struct neb_outbox *o, const struct neb_ack *a)
{
    struct neb_outbox_queue *q = &o->queue[a->priority];
    if (a->message <= q->delivered) return NEB_OK; /* the peer repeats itself around a resumption */
    struct neb_out *m = find(q, a->message);
    if (!m || a->index >= m->chunks || a->count > m->chunks - a->index)
        return neb__quiet(NEB_ERR_PROTOCOL, "the peer acknowledges a chunk that was never sent");
    for (uint32_t i = 0; i < a->count; i++) chunk_acked(o, m, a->index + i);
    return NEB_OK;
}

neb_status neb__outbox_delivered(struct neb_outbox *o, enum neb_priority priority, uint64_t number)
{
    struct neb_outbox_queue *q = &o->queue[priority];
    if (number <= q->delivered) return NEB_OK;
    if (number >= q->next_number)
        return neb__quiet(NEB_ERR_PROTOCOL,
                          "the peer claims to have message %" PRIu64 ", which was never sent", number);
    struct neb_out *done = q->first, *last = NULL;
    while (q->delivered < number) {
        struct neb_out *m = q->first;
        for (uint32_t i = 0; i < m->chunks; i++) chunk_acked(o, m, i);
        q->delivered++;
        q->begun[m->number % NEB_MESSAGES_OPEN] = NULL;
        q->begun_bytes -= m->size;
        q->queued_bytes -= m->size;
        if (q->cursor == m) q->cursor = m->next;
        q->first = m->next;
        last = m;
    }
    if (!q->first) q->last = NULL;
    if (last) last->next = NULL;
    finish(done, NEB_OK);
    return NEB_OK;
}

static void requeue_message(struct neb_outbox *o, struct neb_out *m, int slot)
{
    for (uint32_t i = m->chunks; i-- > 0;) {
        if (m->state[i] != 1 + slot) continue;
        m->state[i] = CHUNK_QUEUED;
        o->queue[m->priority].unsent++;
        if (i < m->scan) m->scan = i; /* a chunk below it may already be queued */
    }
}

void neb__outbox_requeue(struct neb_outbox *o, int slot)
{
    for (int p = 0; o->in_flight[slot] && p < NEB_PRIORITIES; p++) {
        struct neb_outbox_queue *q = &o->queue[p];
        for (struct neb_out *m = q->first; m && m->number; m = m->next) requeue_message(o, m, slot);
        q->cursor = q->first;
    }
    o->in_flight[slot] = 0;
}

/* Messages that were begun must not outlive the session, nor must those that the links' own layers queued for
 * it (they start anew). */
static bool ends_with_session(const struct neb_out *m)
{
    return m->number || m->kind > NEB_KIND_USER_MAX;
}

static struct neb_out *split_queue(struct neb_outbox_queue *q)
{
    struct neb_out *lost = NULL, **lost_end = &lost, *all = q->first, *next;
    uint64_t window = q->window;
    *q = (struct neb_outbox_queue){.next_number = 1, .window = window};
    for (struct neb_out *m = all; m; m = next) {
        next = m->next;
        m->next = NULL;
        if (ends_with_session(m)) {
            *lost_end = m;
            lost_end = &m->next;
            continue;
        }
        if (q->last)
            q->last->next = m;
        else
            q->first = q->cursor = m;
        q->last = m;
        q->queued_bytes += m->size;
        q->unsent += m->chunks;
    }
    return lost;
}

void neb__outbox_new_session(struct neb_outbox *o)
{
    struct neb_out *lost[NEB_PRIORITIES];
    memset(o->in_flight, 0, sizeof o->in_flight);
    for (int p = 0; p < NEB_PRIORITIES; p++) lost[p] = split_queue(&o->queue[p]);
    for (int p = 0; p < NEB_PRIORITIES; p++) finish(lost[p], NEB_ERR_PEER);
}

uint64_t neb__outbox_bytes(const struct neb_outbox *o)
{
    uint64_t n = 0;
    for (int p = 0; p < NEB_PRIORITIES; p++) n += o->queue[p].queued_bytes;
    return n;
}
