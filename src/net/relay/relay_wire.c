/* relay_wire.c: the messages of a relay host to bytes and back.
 *
 *     header   u16 length of the body, u8 type, u8 zero
 *     ASK      0 "NEBRELAY", 8 u16 lowest, u16 highest version, 12 u8 what, 3 zero, 16 run or meeting (32), 48 u64 epoch,
 *              56 u16 peer, 6 zero, 64 u64 ticket
 *     HERE, JOINED, PING, PONG, WANT   nothing; JOINED of a meeting: u8, 1: you were there first
 *     RING     0 u64 ticket, 8 u16 caller, 6 zero
 *     REFUSE   u16 code, text of up to 200 bytes
 *     SHOW     u8 last, bytes of the encoded chain
 *     SAY      1 to 4096 bytes
 *
 * All numbers are little-endian. The length is checked against the type's bounds before the body is read, so a reader never
 * holds more than one message. */
#include "net/relay/relay_wire.h"
#include "base/bytes.h"
#include "base/printable.h"

#include <string.h>

static const uint8_t magic[8] = {'N', 'E', 'B', 'R', 'E', 'L', 'A', 'Y'};

void neb__relay_ask_put(const struct neb_relay_ask *a, uint8_t out[NEB_RELAY_ASK_SIZE])
{
    memset(out, 0, NEB_RELAY_ASK_SIZE);
    memcpy(out, magic, sizeof magic);
    neb__put16(out + 8, a->version_min);
    neb__put16(out + 10, a->version_max);
    out[12] = a->what;
    memcpy(out + 16, a->run.b, NEB_HASH_SIZE);
    neb__put64(out + 48, a->epoch);
    neb__put16(out + 56, a->peer);
    neb__put64(out + 64, a->ticket);
}

neb_status neb__relay_ask_get(const uint8_t *p, size_t n, struct neb_relay_ask *out)
{
    struct neb_relay_ask a;
    if (n != NEB_RELAY_ASK_SIZE || memcmp(p, magic, sizeof magic))
        return neb__quiet(NEB_ERR_PROTOCOL, "not a request to a relay host");
    a.version_min = neb__get16(p + 8);
    a.version_max = neb__get16(p + 10);
    a.what = p[12];
    memcpy(a.run.b, p + 16, NEB_HASH_SIZE);
    a.epoch = neb__get64(p + 48);
    a.peer = neb__get16(p + 56);
    a.ticket = neb__get64(p + 64);
    if (a.version_min > NEB_RELAY_VERSION || a.version_max < NEB_RELAY_VERSION_MIN)
        return neb__quiet(
            NEB_ERR_VERSION,
            "the guest speaks versions %u to %u of the relay host's protocol, this host %d to %d; "
            "upgrade the older one",
            a.version_min, a.version_max, NEB_RELAY_VERSION_MIN, NEB_RELAY_VERSION);
    if (a.version_min > a.version_max || a.what < NEB_RELAY_STAND || a.what > NEB_RELAY_MEET)
        return neb__quiet(NEB_ERR_PROTOCOL, "malformed request to a relay host: kind %u", a.what);
    *out = a;
    return NEB_OK;
}

void neb__relay_ring_put(const struct neb_relay_ring *r, uint8_t out[NEB_RELAY_RING_SIZE])
{
    memset(out, 0, NEB_RELAY_RING_SIZE);
    neb__put64(out, r->ticket);
    neb__put16(out + 8, r->caller);
}

neb_status neb__relay_ring_get(const uint8_t *p, size_t n, struct neb_relay_ring *out)
{
    if (n != NEB_RELAY_RING_SIZE) return neb__quiet(NEB_ERR_PROTOCOL, "malformed ring of %zu bytes", n);
    *out = (struct neb_relay_ring){neb__get64(p), neb__get16(p + 8)};
    return NEB_OK;
}

neb_status neb__relay_refusal_get(const uint8_t *p, size_t n, struct neb_relay_refusal *out)
{
    if (n < 2 || n > 2 + NEB_RELAY_TEXT_MAX)
        return neb__quiet(NEB_ERR_PROTOCOL, "malformed refusal of %zu bytes", n);
    out->code = neb__get16(p);
    memcpy(out->text, p + 2, n - 2);
    out->text[n - 2] = 0;
    neb__text_clean(out->text);
    return NEB_OK;
}

neb_status neb__relay_send(struct neb_tls *tls, enum neb_relay_type type, const void *body, size_t n)
{
    uint8_t bytes[NEB_RELAY_HEADER + NEB_RELAY_BODY_MAX];
    neb__put16(bytes, (uint16_t)n);
    bytes[2] = (uint8_t)type;
    bytes[3] = 0;
    if (n) memcpy(bytes + NEB_RELAY_HEADER, body, n);
    return neb__tls_write(tls, bytes, NEB_RELAY_HEADER + n);
}

neb_status neb__relay_send_refusal(struct neb_tls *tls, enum neb_relay_refuse_code code, const char *text)
{
    uint8_t body[2 + NEB_RELAY_TEXT_MAX];
    size_t n = strlen(text);
    if (n > NEB_RELAY_TEXT_MAX) n = NEB_RELAY_TEXT_MAX;
    neb__put16(body, (uint16_t)code);
    memcpy(body + 2, text, n);
    return neb__relay_send(tls, NEB_RELAY_REFUSE, body, n + 2);
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static const struct {
    uint16_t least, most;
} bounds[NEB_RELAY_TYPES] = {
    [NEB_RELAY_ASK] = {NEB_RELAY_ASK_SIZE, NEB_RELAY_ASK_SIZE},
    [NEB_RELAY_RING] = {NEB_RELAY_RING_SIZE, NEB_RELAY_RING_SIZE},
    [NEB_RELAY_JOINED] = {0, 1},
    [NEB_RELAY_REFUSE] = {2, 2 + NEB_RELAY_TEXT_MAX},
    [NEB_RELAY_SHOW] = {1, NEB_RELAY_BODY_MAX},
    [NEB_RELAY_SAY] = {1, NEB_RELAY_BODY_MAX},
};

static neb_status check_header(const struct neb_relay_reader *r, uint32_t allowed)
{
    unsigned size = neb__get16(r->bytes), type = r->bytes[2];
    if (r->bytes[3] || type < NEB_RELAY_ASK || type >= NEB_RELAY_TYPES)
        return neb__quiet(NEB_ERR_PROTOCOL, "not a message of a relay host");
    if (!(allowed & 1u << type)) return neb__quiet(NEB_ERR_PROTOCOL, "unexpected message of type %u", type);
    if (size < bounds[type].least || size > bounds[type].most)
        return neb__quiet(NEB_ERR_PROTOCOL, "a message of type %u has %u bytes", type, size);
    return NEB_OK;
}

/* How many bytes the present message lacks; 0: it is whole. */
static neb_status missing(const struct neb_relay_reader *r, uint32_t allowed, size_t *out)
{
    *out = NEB_RELAY_HEADER - r->have;
    if (r->have < NEB_RELAY_HEADER) return NEB_OK;
    NEB_TRY(check_header(r, allowed));
    *out = NEB_RELAY_HEADER + neb__get16(r->bytes) - r->have;
    return NEB_OK;
}

static void take(struct neb_relay_reader *r, struct neb_relay_message *out)
{
    *out = (struct neb_relay_message){r->bytes[2], r->bytes + NEB_RELAY_HEADER, neb__get16(r->bytes)};
    r->have = 0;
}

neb_status neb__relay_next(struct neb_tls *tls, struct neb_relay_reader *r, uint32_t allowed,
                           struct neb_relay_message *out)
{
    for (;;) {
        size_t want, got;
        NEB_TRY(missing(r, allowed, &want));
        if (!want) break;
        NEB_TRY(neb__tls_read(tls, r->bytes + r->have, want, &got));
        r->have += got;
    }
    take(r, out);
    return NEB_OK;
}

neb_status neb__relay_reader_feed(struct neb_relay_reader *r, uint32_t allowed, const uint8_t *p, size_t n,
                                  size_t *used, struct neb_relay_message *out)
{
    *used = 0;
    for (;;) {
        size_t want;
        NEB_TRY(missing(r, allowed, &want));
        if (!want) break;
        if (want > n - *used) want = n - *used;
        if (!want) return NEB_ERR_AGAIN;
        memcpy(r->bytes + r->have, p + *used, want);
        r->have += want;
        *used += want;
    }
    take(r, out);
    return NEB_OK;
}
