/* wire.c: frames to bytes and back. The table in docs/links.md and the functions here agree field by field.
 *
 * Every `get` reads all fields first and checks once. Its result is in range: priorities exist, counts and
 * lengths are within their maxima, reserved bytes are zero. Other files judge what a field means (does this
 * message exist?). */
#include "net/wire.h"
#include "base/bytes.h"

#include <string.h>

static const uint8_t magic[8] = {'N', 'E', 'B', 'U', 'L', 'A', '-', 'I'};

void neb__frame_header(uint8_t out[NEB_FRAME_HEADER], enum neb_frame_type type, uint32_t length)
{
    neb__put32(out, length);
    neb__put32(out + 4, (uint32_t)type);
}

void neb__hello_put(const struct neb_hello *h, uint8_t out[NEB_HELLO_SIZE])
{
    memset(out, 0, NEB_HELLO_SIZE);
    memcpy(out, magic, 8);
    neb__put16(out + 8, h->version_min);
    neb__put16(out + 10, h->version_max);
    out[12] = h->role;
    out[13] = h->stripe;
    memcpy(out + 16, h->run_id, NEB_RUN_ID_SIZE);
    memcpy(out + 32, h->genesis.b, NEB_HASH_SIZE);
    neb__put64(out + 64, h->epoch);
    memcpy(out + 72, h->head.b, NEB_HASH_SIZE);
    neb__put64(out + 104, h->incarnation);
    neb__put64(out + 112, h->boot);
    neb__put64(out + 120, h->token);
    for (int i = 0; i < NEB_PRIORITIES; i++) neb__put64(out + 128 + 8 * i, h->window[i]);
    neb__put32(out + 160, h->chunk);
}

neb_status neb__hello_get(const uint8_t *p, size_t n, struct neb_hello *h)
{
    if (n < NEB_HELLO_SIZE || memcmp(p, magic, 8))
        return neb__quiet(NEB_ERR_PROTOCOL, "not a greeting of Nebula-I");
    h->version_min = neb__get16(p + 8);
    h->version_max = neb__get16(p + 10);
    h->role = p[12];
    h->stripe = p[13];
    memcpy(h->run_id, p + 16, NEB_RUN_ID_SIZE);
    memcpy(h->genesis.b, p + 32, NEB_HASH_SIZE);
    h->epoch = neb__get64(p + 64);
    memcpy(h->head.b, p + 72, NEB_HASH_SIZE);
    h->incarnation = neb__get64(p + 104);
    h->boot = neb__get64(p + 112);
    h->token = neb__get64(p + 120);
    for (int i = 0; i < NEB_PRIORITIES; i++) h->window[i] = neb__get64(p + 128 + 8 * i);
    h->chunk = neb__get32(p + 160);
    if (h->version_min > h->version_max) return neb__quiet(NEB_ERR_PROTOCOL, "the greeting names no version");
    if (h->version_min > NEB_WIRE_VERSION || h->version_max < NEB_WIRE_VERSION_MIN)
        return neb__quiet(
            NEB_ERR_VERSION,
            "the peer speaks versions %u to %u of the protocol, this site %d to %d; upgrade the older one",
            h->version_min, h->version_max, NEB_WIRE_VERSION_MIN, NEB_WIRE_VERSION);
    if (h->role > NEB_CONN_STRIPE || h->stripe >= NEB_STRIPES_MAX || h->chunk != NEB_CHUNK)
        return neb__quiet(NEB_ERR_PROTOCOL, "malformed greeting: role %u, stripe %u, chunks of %u bytes",
                          h->role, h->stripe, h->chunk);
    return NEB_OK;
}

void neb__ping_put(const struct neb_ping *p, uint8_t out[NEB_PING_SIZE])
{
    neb__put32(out, p->number);
    neb__put32(out + 4, p->stripes);
    neb__put64(out + 8, p->time);
    neb__put64(out + 16, p->goodput);
    neb__put64(out + 24, p->queued);
}

neb_status neb__ping_get(const uint8_t *p, size_t n, struct neb_ping *out)
{
    if (n != NEB_PING_SIZE) return neb__quiet(NEB_ERR_PROTOCOL, "malformed ping of %zu bytes", n);
    *out = (struct neb_ping){neb__get32(p), neb__get32(p + 4), neb__get64(p + 8), neb__get64(p + 16),
                             neb__get64(p + 24)};
    if (out->stripes > NEB_STRIPES_MAX) out->stripes = NEB_STRIPES_MAX;
    return NEB_OK;
}

void neb__pong_put(const struct neb_pong *p, uint8_t out[NEB_PONG_SIZE])
{
    neb__put32(out, p->number);
    neb__put32(out + 4, p->held);
    neb__put64(out + 8, p->time);
}

neb_status neb__pong_get(const uint8_t *p, size_t n, struct neb_pong *out)
{
    if (n != NEB_PONG_SIZE) return neb__quiet(NEB_ERR_PROTOCOL, "malformed pong of %zu bytes", n);
    *out = (struct neb_pong){neb__get32(p), neb__get32(p + 4), neb__get64(p + 8)};
    return NEB_OK;
}

neb_status neb__refuse_get(const uint8_t *p, size_t n, uint16_t *code, char text[257])
{
    if (n < 2 || n > NEB_REFUSE_MAX) return neb__quiet(NEB_ERR_PROTOCOL, "malformed refusal of %zu bytes", n);
    *code = neb__get16(p);
    memcpy(text, p + 2, n - 2);
    text[n - 2] = 0;
    return NEB_OK;
}

void neb__chunk_put(const struct neb_chunk *c, uint8_t out[NEB_CHUNK_HEADER])
{
    memset(out, 0, NEB_CHUNK_HEADER);
    out[0] = c->priority;
    neb__put32(out + 4, c->kind);
    neb__put64(out + 8, c->message);
    neb__put64(out + 16, c->size);
    neb__put32(out + 24, c->index);
}

static neb_status chunk_get(const uint8_t *p, uint32_t length, struct neb_chunk *c)
{
    *c = (struct neb_chunk){
        p[0], neb__get32(p + 4), neb__get64(p + 8), neb__get64(p + 16), neb__get32(p + 24), length};
    uint64_t chunks = neb__chunks_of(c->size);
    uint64_t want = c->index + 1 < chunks ? NEB_CHUNK : c->size - (chunks - 1) * NEB_CHUNK;
    if (c->priority >= NEB_PRIORITIES || p[1] || p[2] || p[3] || neb__get32(p + 28) || c->message == 0 ||
        c->size > (uint64_t)1 << 40 || c->index >= chunks || length != want)
        return neb__quiet(NEB_ERR_PROTOCOL,
                          "malformed chunk: priority %u, message %" PRIu64 " of %" PRIu64
                          " bytes, chunk %u of %u bytes",
                          c->priority, c->message, c->size, c->index, length);
    return NEB_OK;
}

void neb__ack_head_put(const uint64_t delivered[NEB_PRIORITIES], bool resume, uint32_t entries,
                       uint8_t out[NEB_ACK_HEADER])
{
    neb__put32(out, resume);
    neb__put32(out + 4, entries);
    for (int i = 0; i < NEB_PRIORITIES; i++) neb__put64(out + 8 + 8 * i, delivered[i]);
}

neb_status neb__ack_head_get(const uint8_t *p, size_t n, uint64_t delivered[NEB_PRIORITIES], bool *resume,
                             uint32_t *entries)
{
    if (n < NEB_ACK_HEADER || neb__get32(p) > 1 || neb__get32(p + 4) > NEB_ACK_ENTRIES_MAX ||
        n != NEB_ACK_HEADER + (size_t)NEB_ACK_ENTRY * neb__get32(p + 4))
        return neb__quiet(NEB_ERR_PROTOCOL, "malformed acknowledgement of %zu bytes", n);
    *resume = neb__get32(p);
    *entries = neb__get32(p + 4);
    for (int i = 0; i < NEB_PRIORITIES; i++) delivered[i] = neb__get64(p + 8 + 8 * i);
    return NEB_OK;
}

/* u8 priority, u56 message, u32 index, u32 count */
void neb__ack_put(const struct neb_ack *a, uint8_t out[NEB_ACK_ENTRY])
{
    neb__put64(out, a->message << 8 | a->priority);
    neb__put32(out + 8, a->index);
    neb__put32(out + 12, a->count);
}

neb_status neb__ack_get(const uint8_t *p, struct neb_ack *a)
{
    *a = (struct neb_ack){p[0], neb__get64(p) >> 8, neb__get32(p + 8), neb__get32(p + 12)};
    if (a->priority >= NEB_PRIORITIES || !a->message || !a->count)
        return neb__quiet(NEB_ERR_PROTOCOL, "malformed entry of an acknowledgement");
    return NEB_OK;
}

/* ---- the reader ---------------------------------------------------------------------------------------- */

static const uint32_t body_min[NEB_FRAME_TYPES] = {
    [NEB_FRAME_HELLO] = NEB_HELLO_SIZE,
    [NEB_FRAME_REFUSE] = 2,
    [NEB_FRAME_CHAIN] = 4,
    [NEB_FRAME_PING] = NEB_PING_SIZE,
    [NEB_FRAME_PONG] = NEB_PONG_SIZE,
    [NEB_FRAME_CHUNK] = NEB_CHUNK_HEADER,
    [NEB_FRAME_ACK] = NEB_ACK_HEADER,
};
static const uint32_t body_max[NEB_FRAME_TYPES] = {
    [NEB_FRAME_HELLO] = NEB_HELLO_MAX,
    [NEB_FRAME_REFUSE] = NEB_REFUSE_MAX,
    [NEB_FRAME_CHAIN] = NEB_EPOCH_BYTES_MAX + 4,
    [NEB_FRAME_PING] = NEB_PING_SIZE,
    [NEB_FRAME_PONG] = NEB_PONG_SIZE,
    [NEB_FRAME_CHUNK] = NEB_CHUNK_HEADER + NEB_CHUNK,
    [NEB_FRAME_ACK] = NEB_ACK_HEADER + NEB_ACK_ENTRY * NEB_ACK_ENTRIES_MAX,
};

void neb__framer_init(struct neb_framer *f, const struct neb_framer_events *events, void *arg, uint8_t *skip,
                      size_t skip_size)
{
    *f = (struct neb_framer){.events = events, .arg = arg, .skip = skip, .skip_size = skip_size};
    neb__buf_init(&f->body, NEB_EPOCH_BYTES_MAX + 4);
    f->allowed = 1u << NEB_FRAME_HELLO;
}

void neb__framer_free(struct neb_framer *f)
{
    neb__buf_free(&f->body);
}

void neb__framer_want(struct neb_framer *f, uint8_t **p, size_t *n)
{
    switch (f->state) {
    case NEB_FRAMER_HEAD: *p = f->head + f->have, *n = NEB_FRAME_HEADER - f->have; return;
    case NEB_FRAMER_CHUNK_HEAD: *p = f->head + f->have, *n = NEB_CHUNK_HEADER - f->have; return;
    case NEB_FRAMER_BODY: *p = f->body.data + f->have, *n = f->length - f->have; return;
    case NEB_FRAMER_PAYLOAD: break;
    }
    uint8_t *place = f->events->chunk_place(f->arg, &f->chunk);
    *n = f->chunk.length - f->have;
    *p = place ? place + f->have : f->skip;
    if (!place && *n > f->skip_size) *n = f->skip_size;
}

size_t neb__framer_missing(const struct neb_framer *f)
{
    switch (f->state) {
    case NEB_FRAMER_HEAD: return f->have ? NEB_FRAME_HEADER - f->have : 0;
    case NEB_FRAMER_CHUNK_HEAD:
    case NEB_FRAMER_BODY: return f->length - f->have;
    case NEB_FRAMER_PAYLOAD: return f->chunk.length - f->have;
    }
    return 0;
}

uint32_t neb__framer_next_chunk(const struct neb_framer *f)
{
    uint64_t at = ((uint64_t)f->chunk.index + 1) * NEB_CHUNK;
    if (f->state != NEB_FRAMER_HEAD || f->type != NEB_FRAME_CHUNK || at >= f->chunk.size) return 0;
    return f->chunk.size - at < NEB_CHUNK ? (uint32_t)(f->chunk.size - at) : NEB_CHUNK;
}

static neb_status next_frame(struct neb_framer *f)
{
    f->state = NEB_FRAMER_HEAD;
    f->have = 0;
    if (f->body.cap > 65536) neb__buf_free(&f->body); /* a large body is rare: release its memory */
    return NEB_OK;
}

static neb_status chunk_done(struct neb_framer *f)
{
    NEB_TRY(f->events->chunk_end(f->arg, &f->chunk));
    return next_frame(f);
}

static neb_status frame_begun(struct neb_framer *f)
{
    f->length = neb__get32(f->head);
    f->type = f->head[4];
    if (f->head[5] || f->head[6] || f->head[7] || f->type < 1 || f->type >= NEB_FRAME_TYPES)
        return neb__quiet(NEB_ERR_PROTOCOL, "unknown frame");
    if (!(f->allowed >> f->type & 1))
        return neb__quiet(NEB_ERR_PROTOCOL, "unexpected frame of type %u", f->type);
    if (f->length < body_min[f->type] || f->length > body_max[f->type])
        return neb__quiet(NEB_ERR_PROTOCOL, "a frame of type %u has a wrong length: %u bytes", f->type,
                          f->length);
    f->have = 0;
    if (f->type == NEB_FRAME_CHUNK) {
        f->state = NEB_FRAMER_CHUNK_HEAD;
        return NEB_OK;
    }
    neb__buf_clear(&f->body);
    NEB_TRY(neb__buf_reserve(&f->body, f->length));
    f->state = NEB_FRAMER_BODY;
    if (f->length) return NEB_OK;
    f->state = NEB_FRAMER_HEAD;
    return f->events->frame(f->arg, f->type, f->body.data, 0);
}

neb_status neb__framer_got(struct neb_framer *f, size_t n)
{
    f->have += (uint32_t)n;
    switch (f->state) {
    case NEB_FRAMER_HEAD: return f->have == NEB_FRAME_HEADER ? frame_begun(f) : NEB_OK;
    case NEB_FRAMER_CHUNK_HEAD:
        if (f->have < NEB_CHUNK_HEADER) return NEB_OK;
        NEB_TRY(chunk_get(f->head, f->length - NEB_CHUNK_HEADER, &f->chunk));
        NEB_TRY(f->events->chunk_begin(f->arg, &f->chunk));
        f->state = NEB_FRAMER_PAYLOAD;
        f->have = 0;
        return f->chunk.length ? NEB_OK : chunk_done(f);
    case NEB_FRAMER_PAYLOAD: return f->have == f->chunk.length ? chunk_done(f) : NEB_OK;
    case NEB_FRAMER_BODY:
        if (f->have < f->length) return NEB_OK;
        NEB_TRY(f->events->frame(f->arg, f->type, f->body.data, f->length));
        return next_frame(f);
    }
    return NEB_OK;
}
