/* fuzz_net_stream.c: stream messages from a peer, to a producer and a consumer that are open. Input: kind bit and length (one
 * byte), then that many bytes, again and again. */
#include "net/link.h"
#include "base/mem.h"

#include <nebula/log.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct seen {
    uint64_t last;
    bool ended;
};

static neb_status on_item(void *arg, struct neb_net_stream *s, uint64_t item, const uint8_t *data,
                          size_t size)
{
    struct seen *seen = arg;
    (void)s, (void)data;
    if (item != seen->last + 1) abort(); /* once, in order */
    seen->last = item;
    return size == 77 ? NEB_ERR_AGAIN : NEB_OK;
}

static void on_end(void *arg, struct neb_net_stream *s, neb_status why)
{
    struct seen *seen = arg;
    (void)s, (void)why;
    if (seen->ended) abort();
    seen->ended = true;
}

static neb_status remake(void *arg, struct neb_net_stream *s, uint64_t item, struct neb_buf *out)
{
    (void)arg, (void)s;
    return neb__buf_append(out, &item, sizeof item);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct neb_net_events nobody;
    static struct neb_net net;
    static struct neb_site site;
    struct neb_member m = {.id = 2, .name = "peer"};
    struct seen consumed = {0, false}, produced = {0, false};
    struct neb_net_stream *c, *p;
    neb_log_set_level(NEB_LOG_NONE);
    int64_t held = neb__mem_held();
    site.dir = (char *)(uintptr_t) "";
    net = (struct neb_net){.config = NEB_NET_CONFIG};
    net.config.events = &nobody;
    net.config.site = &site;
    if (neb__peer_add(&net, &m) != NEB_OK) abort();
    net.peers->up = true;
    if (neb__net_stream_open_consumer(&net, 2, 1, 0, 4096,
                                      &(struct neb_net_stream_consumer){&consumed, on_item, on_end},
                                      &c) != NEB_OK ||
        neb__net_stream_open_producer(
            &net, 2, 2, false, 5,
            &(struct neb_net_stream_producer){.arg = &produced, .remake = remake, .ended = on_end},
            &p) != NEB_OK)
        abort();
    uint64_t item;
    if (neb__net_stream_produce(p, "item", 4, &item) != NEB_OK || item != 5) abort();
    for (size_t at = 0; at < size;) {
        size_t n = data[at] & 127, left = size - at - 1;
        if (n > left) n = left;
        bool mark = data[at] >> 7;
        struct neb_message msg = {2, mark ? NEB_CONTROL : NEB_STREAM,
                                  mark ? NEB_KIND_STREAM_MARK : NEB_KIND_STREAM_ITEM,
                                  (uint8_t *)(uintptr_t)(data + at + 1), n};
        if (neb__net_stream_message(net.peers, &msg) != NEB_OK) break;
        neb__net_stream_flush(net.peers);
        at += 1 + n;
    }
    neb__peer_remove(net.peers, NEB_ERR_CANCELLED);
    if (neb__mem_held() != held) abort();
    return 0;
}
