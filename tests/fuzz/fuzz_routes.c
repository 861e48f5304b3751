/* fuzz_routes.c: what neighbours tell each other about links, and what members pass on, as bytes. Site 1 of four takes
 * messages from site 0 or 2: each is a byte (its type and the sender), a length of two bytes and the message. Every
 * signature holds, so that the checks behind it are reached. */
#include "base/bytes.h"
#include "round/routes.h"

#include <nebula/log.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static neb_status sign(void *arg, const char *purpose, const void *p, size_t n, uint8_t out[NEB_SEAL_SIZE])
{
    (void)arg, (void)purpose, (void)p, (void)n;
    memset(out, 0, NEB_SEAL_SIZE);
    return NEB_OK;
}

static bool verify(void *arg, unsigned signer, const char *purpose, const void *p, size_t n,
                   const uint8_t signature[NEB_SEAL_SIZE])
{
    (void)arg, (void)signer, (void)purpose, (void)p, (void)n, (void)signature;
    return true;
}

static void check(struct neb_routes *r)
{
    unsigned site;
    enum neb_reach was, how;
    struct neb_buf b;
    neb__buf_init(&b, NEB_SITES_MAX * NEB_LINK_STATE_SIZE);
    while (neb__routes_tell(r, &site, &b))
        if (!b.len || b.len % NEB_LINK_STATE_SIZE) abort();
    neb__buf_free(&b);
    while (neb__routes_changed(r, &site, &was, &how))
        if (site == 1) abort();
    for (unsigned i = 0; i < NEB_SITES_MAX; i++) {
        const struct neb_route_peer *p = &r->peer[i];
        if (p->hops && p->path[p->hops - 1] != i) abort();
        if (p->hops > 1 && !(r->links & neb__bit(p->path[0]))) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct neb_routes *r;
    struct neb_routes_config c = {.self = 1, .life = 1, .seal = {.sign = sign, .verify = verify}};
    neb_log_set_level(NEB_LOG_NONE);
    if (neb__routes_create(&c, &r) != NEB_OK) return 0;
    neb__routes_members(r, 15);
    neb__routes_link(r, 1, 0, true);
    neb__routes_link(r, 1, 2, true);
    for (int64_t now = 1; size > 3; now += 100) {
        size_t n = neb__get16(data + 1);
        const uint8_t *bytes = data + 3;
        unsigned from = data[0] & 2;
        if (n > size - 3) n = size - 3;
        if (data[0] & 1) {
            struct neb_relayed m;
            enum neb_relay how = neb__routes_take(r, now, from, bytes, n, &m);
            if (how == NEB_RELAY_DELIVER && (m.bytes < bytes || m.bytes + m.n > bytes + n)) abort();
            if (how == NEB_RELAY_FORWARD && !(r->links & neb__bit(m.next))) abort();
        } else
            (void)neb__routes_hear(r, now, from, bytes, n);
        neb__routes_tick(r, now);
        check(r);
        data = bytes + n, size -= 3 + n;
    }
    neb__routes_destroy(r);
    return 0;
}
