/* fuzz_frames.c: everything a peer can send behind TLS: frames in any order and cut anywhere, chunks into an inbox,
 * acknowledgements into an outbox. The first byte says how large the pieces are. */
#include "net/inbox.h"
#include "net/outbox.h"
#include "base/mem.h"

#include <nebula/log.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WINDOW = 1 << 20 };

struct target {
    struct neb_inbox in;
    struct neb_outbox out;
    int slot, sent;
};

static neb_status on_ack(struct target *t, const uint8_t *body, size_t n)
{
    uint64_t delivered[NEB_PRIORITIES];
    bool resume;
    uint32_t entries;
    NEB_TRY(neb__ack_head_get(body, n, delivered, &resume, &entries));
    for (uint32_t i = 0; i < entries; i++) {
        struct neb_ack a;
        NEB_TRY(neb__ack_get(body + NEB_ACK_HEADER + (size_t)i * NEB_ACK_ENTRY, &a));
        NEB_TRY(neb__outbox_ack(&t->out, &a));
    }
    for (int i = 0; i < NEB_PRIORITIES; i++) NEB_TRY(neb__outbox_delivered(&t->out, i, delivered[i]));
    return NEB_OK;
}

static neb_status on_frame(void *arg, enum neb_frame_type type, const uint8_t *body, size_t n)
{
    struct target *t = arg;
    struct neb_hello hello;
    struct neb_ping ping;
    struct neb_pong pong;
    uint16_t code;
    char text[257];
    switch (type) {
    case NEB_FRAME_HELLO: return neb__hello_get(body, n, &hello);
    case NEB_FRAME_PING: return neb__ping_get(body, n, &ping);
    case NEB_FRAME_PONG: return neb__pong_get(body, n, &pong);
    case NEB_FRAME_REFUSE: return neb__refuse_get(body, n, &code, text);
    case NEB_FRAME_ACK: return on_ack(t, body, n);
    case NEB_FRAME_BYE: /* here: the connection is replaced by another one */
        neb__inbox_drop_slot(&t->in, t->slot);
        neb__outbox_requeue(&t->out, t->slot);
        t->slot = (t->slot + 1) % 4;
        return NEB_OK;
    default: return NEB_OK;
    }
}

static neb_status on_begin(void *arg, const struct neb_chunk *c)
{
    struct target *t = arg;
    return neb__inbox_begin(&t->in, c, t->slot);
}

static uint8_t *on_place(void *arg, const struct neb_chunk *c)
{
    struct target *t = arg;
    return neb__inbox_place(&t->in, c, t->slot);
}

static neb_status on_end(void *arg, const struct neb_chunk *c)
{
    struct target *t = arg;
    NEB_TRY(neb__inbox_end(&t->in, c, t->slot));
    while (neb__inbox_peek(&t->in, c->priority)) neb__inbox_pop(&t->in, c->priority);
    for (int i = 0; i < NEB_PRIORITIES; i++)
        if (t->in.queue[i].bytes > WINDOW) abort(); /* memory is bounded whatever the peer does */
    return NEB_OK;
}

static void sent(void *arg, neb_status status)
{
    struct target *t = arg;
    (void)status;
    t->sent++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct neb_framer_events events = {on_frame, on_begin, on_place, on_end};
    static const size_t window[NEB_PRIORITIES] = {WINDOW, WINDOW, WINDOW, WINDOW};
    static uint8_t skip[4096], payload[3 * NEB_CHUNK];
    static struct target t;
    struct neb_framer f;
    struct neb_chunk c;
    const uint8_t *p;
    if (size < 2) return 0;
    neb_log_set_level(NEB_LOG_NONE);
    int64_t held = neb__mem_held();
    memset(&t, 0, sizeof t);
    neb__inbox_init(&t.in, window);
    neb__outbox_init(&t.out, window);
    for (int i = 0; i < 6; i++)
        if (neb__outbox_push(&t.out, i % NEB_PRIORITIES, 1, payload, (uint64_t)i * NEB_CHUNK / 2, false, sent,
                             &t) != NEB_OK)
            abort();
    for (int i = 0; i < 6; i++) neb__outbox_pick(&t.out, i % 2 ? 0 : NEB_SLOT_CONTROL, &c, &p);
    neb__framer_init(&f, &events, &t, skip, sizeof skip);
    f.allowed = UINT32_MAX;
    size_t step = data[0] ? data[0] : 1, at = 1;
    neb_status status = NEB_OK;
    while (status == NEB_OK && at < size) {
        uint8_t *to;
        size_t n;
        neb__framer_want(&f, &to, &n);
        if (!n) abort();
        if (n > step) n = step;
        if (n > size - at) n = size - at;
        memcpy(to, data + at, n);
        at += n;
        status = neb__framer_got(&f, n);
    }
    neb__framer_free(&f);
    neb__inbox_free(&t.in);
    neb__outbox_free(&t.out, NEB_ERR_CANCELLED);
    if (t.sent != 6) abort(); /* every message ends exactly once */
    if (neb__mem_held() != held) abort();
    return 0;
}
