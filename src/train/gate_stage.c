/* gate_stage.c: a stage's messages between the first rank, which computes them, and the gateway, which has the streams.
 *
 * A site of a pipeline between sites may be several processes. Its ranks know nothing of the other sites, as in every site:
 * the gateway has the keys and the links. While the first rank carries out an order of the gateway, a step or an evaluation, it
 * asks the gateway for what neb_stage_ways asks of the streams: whether a message is there, the message, to send one, to add up the
 * stages' numbers, what the batches look like. At the end it hands over its parameters, or asks for those of the other stages. Hidden states cross as floats; the gateway
 * codes and decodes them. What is sent gets no reply: the gateway codes while the ranks compute. Its error comes with the next reply.
 *
 *     ask       struct neb_gate_ask · bytes
 *     reply     struct neb_gate_reply · bytes
 *
 * Both ends are one program. The gateway checks lengths all the same, since a rank may be taken over: what it can do with a stream
 * is what the stage may do. */
#include "train/gate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { VALUES_MAX = 1 << 28, CHUNK = 1 << 20 };

/* ---- the gateway ------------------------------------------------------------------------------------------- */

static neb_status malformed(void)
{
    return neb__fail(NEB_ERR_INTERNAL, "the first rank asks for something that cannot be");
}

static neb_status values_of(const struct neb_stage_message *m, size_t *out)
{
    size_t n = 0;
    if (m->parts < 0 || m->parts > 2 || m->width < 1 || m->width > VALUES_MAX) return malformed();
    for (int i = 0; i < m->parts; i++) {
        if (m->part[i].rows < 0 || m->part[i].used < 0 || m->part[i].used > m->part[i].rows ||
            m->part[i].rows > VALUES_MAX / m->width)
            return malformed();
        n += (size_t)(m->part[i].rows * m->width);
    }
    *out = n;
    return n <= VALUES_MAX ? NEB_OK : malformed();
}

/* How many bytes come along with an ask. */
static neb_status check(const struct neb_gate_ask *q)
{
    size_t n = 0;
    switch (q->kind) {
    case NEB_GATE_ASKS_GIVE:
        NEB_TRY(values_of(&q->message, &n));
        return q->bytes == n * 4 ? NEB_OK : malformed();
    case NEB_GATE_ASKS_TAKE: NEB_TRY(values_of(&q->message, &n)); return q->bytes ? malformed() : NEB_OK;
    case NEB_GATE_ASKS_SUMS: return q->bytes == sizeof(struct neb_stage_sums) ? NEB_OK : malformed();
    case NEB_GATE_ASKS_WANTED:
    case NEB_GATE_ASKS_SPREAD: return q->bytes <= 1 << 16 ? NEB_OK : malformed();
    case NEB_GATE_ASKS_OUT: return q->chunk.n <= CHUNK && q->bytes == q->chunk.n * 4 ? NEB_OK : malformed();
    case NEB_GATE_ASKS_OUTLINE_OUT: return q->bytes <= NEB_STAGE_OUTLINE_MAX ? NEB_OK : malformed();
    case NEB_GATE_ASKS_READY:
    case NEB_GATE_ASKS_OUTLINE_IN:
    case NEB_GATE_ASKS_IN: return q->bytes ? malformed() : NEB_OK;
    default: return malformed();
    }
}

/* Leaves what goes back in `values`. */
static neb_status carry_out(struct neb_stage_site *s, const struct neb_gate_ask *q, struct neb_buf *values,
                            struct neb_gate_reply *r)
{
    const struct neb_stage_ways *w = &s->ways;
    const void *found;
    size_t n = 0;
    switch (q->kind) {
    case NEB_GATE_ASKS_READY:
        return w->ready(w->arg, q->back, isfinite(q->wait_s) && q->wait_s < 1 ? q->wait_s : 1);
    case NEB_GATE_ASKS_TAKE:
        NEB_TRY(values_of(&q->message, &n));
        NEB_TRY(neb__buf_reserve(values, n * sizeof(float)));
        values->len = n * sizeof(float);
        return w->take(w->arg, &q->message, (float *)(void *)values->data);
    case NEB_GATE_ASKS_GIVE:
        NEB_TRY(w->give(w->arg, &q->message, (const float *)(const void *)values->data));
        neb__buf_clear(values);
        return NEB_OK;
    case NEB_GATE_ASKS_SUMS: return w->add_up(w->arg, (struct neb_stage_sums *)(void *)values->data);
    case NEB_GATE_ASKS_SPREAD: return w->spread(w->arg, values->data, values->len);
    case NEB_GATE_ASKS_WANTED: return s->carrier.ask(s->carrier.arg, values->data, values->len);
    case NEB_GATE_ASKS_OUTLINE_IN: return w->take_outline(w->arg, values);
    case NEB_GATE_ASKS_OUTLINE_OUT:
        NEB_TRY(w->give_outline(w->arg, values->data, values->len));
        neb__buf_clear(values);
        return NEB_OK;
    case NEB_GATE_ASKS_OUT:
        NEB_TRY(s->carrier.out(s->carrier.arg, &q->chunk, (const float *)(const void *)values->data));
        neb__buf_clear(values);
        return NEB_OK;
    default:
        NEB_TRY(s->carrier.in(s->carrier.arg, &r->chunk, &found));
        return r->chunk.n ? neb__buf_append(values, found, (size_t)r->chunk.n * sizeof(float)) : NEB_OK;
    }
}

neb_status neb__gate_stage_serve(struct neb_stage_site *s, struct neb_gate_channel *c,
                                 const struct neb_gate_ask *q, struct neb_buf *values, neb_status *pending,
                                 neb_status (*turn)(void *), void *arg)
{
    struct neb_gate_reply r = {0};
    NEB_TRY(check(q));
    neb__buf_clear(values);
    NEB_TRY(neb__buf_reserve(values, q->bytes ? q->bytes : 1));
    values->len = q->bytes;
    if (q->bytes) NEB_TRY(neb__gate_channel_receive(c, values->data, q->bytes, NULL, turn, arg));
    r.status = *pending != NEB_OK ? *pending : carry_out(s, q, values, &r);
    if (r.status == NEB_ERR_PEER) return r.status; /* the ranks were lost while this site waited */
    const bool replies = q->kind != NEB_GATE_ASKS_GIVE;
    if (!replies) *pending = r.status;
    if (!replies) return NEB_OK;
    if (r.status != NEB_OK) neb__buf_clear(values);
    if (r.status != NEB_OK) snprintf(r.why, sizeof r.why, "%s", neb_last_error());
    r.bytes = values->len;
    NEB_TRY(neb__gate_channel_send(c, &r, sizeof r, -1));
    return neb__gate_channel_send_many(c, values->data, values->len, turn, arg);
}

/* ---- the first rank ---------------------------------------------------------------------------------------- */

static neb_status gone(neb_status status)
{
    return status == NEB_ERR_PEER ? neb__fail(status, "the gateway is gone") : status;
}

static neb_status tell(struct neb_gate_channel *c, struct neb_gate_ask q, const void *bytes, size_t n)
{
    q.bytes = n;
    NEB_TRY(gone(neb__gate_channel_send(c, &q, sizeof q, -1)));
    return n ? gone(neb__gate_channel_send(c, bytes, n, -1)) : NEB_OK;
}

/* The reply, and `n` bytes that come with it. */
static neb_status hear(struct neb_gate_channel *c, void *bytes, size_t n)
{
    struct neb_gate_reply r;
    NEB_TRY(gone(neb__gate_channel_receive(c, &r, sizeof r, NULL, NULL, NULL)));
    r.why[sizeof r.why - 1] = '\0';
    if (r.status != NEB_OK) return neb__quiet(r.status, "%s", r.why);
    if (r.bytes != n) return neb__fail(NEB_ERR_INTERNAL, "the gateway replied with other bytes");
    return n ? gone(neb__gate_channel_receive(c, bytes, n, NULL, NULL, NULL)) : NEB_OK;
}

static neb_status ready(void *channel, bool back, double wait_s)
{
    NEB_TRY(tell(channel, (struct neb_gate_ask){.kind = NEB_GATE_ASKS_READY, .back = back, .wait_s = wait_s},
                 NULL, 0));
    return hear(channel, NULL, 0);
}

static neb_status take(void *channel, const struct neb_stage_message *m, float *values)
{
    size_t n = 0;
    NEB_TRY(values_of(m, &n));
    NEB_TRY(tell(channel, (struct neb_gate_ask){.kind = NEB_GATE_ASKS_TAKE, .message = *m}, NULL, 0));
    return hear(channel, values, n * sizeof *values);
}

static neb_status give(void *channel, const struct neb_stage_message *m, const float *values)
{
    size_t n = 0;
    NEB_TRY(values_of(m, &n));
    return tell(channel, (struct neb_gate_ask){.kind = NEB_GATE_ASKS_GIVE, .message = *m}, values,
                n * sizeof *values);
}

static neb_status add_up(void *channel, struct neb_stage_sums *own)
{
    NEB_TRY(tell(channel, (struct neb_gate_ask){.kind = NEB_GATE_ASKS_SUMS}, own, sizeof *own));
    return hear(channel, own, sizeof *own);
}

static neb_status spread(void *channel, void *bytes, size_t n)
{
    NEB_TRY(tell(channel, (struct neb_gate_ask){.kind = NEB_GATE_ASKS_SPREAD}, bytes, n));
    return hear(channel, bytes, n);
}

static neb_status take_outline(void *channel, struct neb_buf *out)
{
    struct neb_gate_reply r;
    neb__buf_clear(out);
    NEB_TRY(tell(channel, (struct neb_gate_ask){.kind = NEB_GATE_ASKS_OUTLINE_IN}, NULL, 0));
    NEB_TRY(gone(neb__gate_channel_receive(channel, &r, sizeof r, NULL, NULL, NULL)));
    r.why[sizeof r.why - 1] = '\0';
    if (r.status != NEB_OK) return neb__quiet(r.status, "%s", r.why);
    NEB_TRY(neb__buf_reserve(out, (size_t)r.bytes));
    if (r.bytes) NEB_TRY(gone(neb__gate_channel_receive(channel, out->data, r.bytes, NULL, NULL, NULL)));
    out->len = (size_t)r.bytes;
    return NEB_OK;
}

static neb_status give_outline(void *channel, const void *bytes, size_t n)
{
    NEB_TRY(tell(channel, (struct neb_gate_ask){.kind = NEB_GATE_ASKS_OUTLINE_OUT}, bytes, n));
    return hear(channel, NULL, 0);
}

static neb_status carry(void *channel, const struct neb_stage_chunk *k, const float *values)
{
    NEB_TRY(tell(channel, (struct neb_gate_ask){.kind = NEB_GATE_ASKS_OUT, .chunk = *k}, values,
                 (size_t)k->n * sizeof *values));
    return hear(channel, NULL, 0);
}

static neb_status ask(void *channel, uint8_t *bits, size_t n)
{
    NEB_TRY(tell(channel, (struct neb_gate_ask){.kind = NEB_GATE_ASKS_WANTED}, bits, n));
    return hear(channel, bits, n);
}

static neb_status fetch(void *channel, struct neb_stage_chunk *k, const void **values)
{
    static float chunk[CHUNK];
    struct neb_gate_reply r;
    NEB_TRY(tell(channel, (struct neb_gate_ask){.kind = NEB_GATE_ASKS_IN}, NULL, 0));
    NEB_TRY(gone(neb__gate_channel_receive(channel, &r, sizeof r, NULL, NULL, NULL)));
    r.why[sizeof r.why - 1] = '\0';
    if (r.status != NEB_OK) return neb__quiet(r.status, "%s", r.why);
    if (r.bytes > sizeof chunk || r.bytes != r.chunk.n * sizeof *chunk)
        return neb__fail(NEB_ERR_INTERNAL, "the gateway replied with other bytes");
    *k = r.chunk;
    *values = chunk;
    return r.bytes ? gone(neb__gate_channel_receive(channel, chunk, r.bytes, NULL, NULL, NULL)) : NEB_OK;
}

void neb__gate_stage_use(struct neb_stage_site *s, struct neb_gate_channel *c)
{
    s->ways.arg = s->carrier.arg = c;
    s->ways.ready = ready;
    s->ways.take = take;
    s->ways.give = give;
    s->ways.add_up = add_up;
    s->ways.spread = spread;
    s->ways.take_outline = take_outline;
    s->ways.give_outline = give_outline;
    s->carrier.out = carry;
    s->carrier.in = fetch;
    s->carrier.ask = ask;
}
