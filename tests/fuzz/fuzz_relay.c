/* fuzz_relay.c: what a guest can say to a relay host, and a relay host to a site: messages cut anywhere, and their bodies. The
 * first byte says how large the pieces are; the second which types are allowed. */
#include "net/relay/relay_wire.h"

#include <nebula/log.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void look_inside(const struct neb_relay_message *m)
{
    struct neb_relay_ask ask;
    struct neb_relay_ring ring;
    struct neb_relay_refusal refusal;
    if (m->size > NEB_RELAY_BODY_MAX) abort();
    if (m->type == NEB_RELAY_ASK && neb__relay_ask_get(m->body, m->size, &ask) == NEB_OK) {
        uint8_t again[NEB_RELAY_ASK_SIZE];
        struct neb_relay_ask twin;
        if (ask.what < NEB_RELAY_STAND || ask.what > NEB_RELAY_MEET) abort();
        neb__relay_ask_put(&ask, again);
        if (neb__relay_ask_get(again, sizeof again, &twin) != NEB_OK || twin.ticket != ask.ticket ||
            twin.peer != ask.peer)
            abort();
    }
    if (m->type == NEB_RELAY_RING && neb__relay_ring_get(m->body, m->size, &ring) != NEB_OK) abort();
    if (m->type == NEB_RELAY_REFUSE) {
        if (neb__relay_refusal_get(m->body, m->size, &refusal) != NEB_OK)
            abort(); /* its length was checked */
        if (strlen(refusal.text) > NEB_RELAY_TEXT_MAX) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct neb_relay_reader reader;
    if (size < 2) return 0;
    neb_log_set_level(NEB_LOG_NONE);
    memset(&reader, 0, sizeof reader);
    uint32_t allowed =
        data[1] ? (uint32_t)data[1] << 1 | (data[1] & 1 ? 1u << NEB_RELAY_SAY : 0) : UINT32_MAX;
    size_t step = data[0] ? data[0] : 1;
    for (size_t at = 2; at < size;) {
        struct neb_relay_message m;
        size_t n = size - at < step ? size - at : step, used;
        neb_status status = neb__relay_reader_feed(&reader, allowed, data + at, n, &used, &m);
        if (used > n || reader.have > sizeof reader.bytes) abort();
        at += used;
        if (status == NEB_OK)
            look_inside(&m);
        else if (status != NEB_ERR_AGAIN)
            return 0;
        else if (used != n)
            abort(); /* it has room for more, and took less */
    }
    return 0;
}
