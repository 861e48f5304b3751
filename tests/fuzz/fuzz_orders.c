/* fuzz_orders.c: any bytes as an order that somebody put into a site's folder. What is accepted has one
 * form, and its parts lie where the file says (the roster in it is fuzz_roster's). */
#include "base/mem.h"
#include "run/orders.h"

#include <nebula/log.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Half of the signatures hold: which of them, the bytes say. */
static bool verify(void *arg, unsigned signer, const char *purpose, const void *p, size_t n,
                   const uint8_t signature[NEB_SEAL_SIZE])
{
    (void)arg, (void)purpose, (void)p, (void)n;
    return (signer ^ signature[0]) & 1;
}

static bool by_operators(void *arg, uint64_t since, const char *purpose, const void *p, size_t n,
                         const struct neb_order *o)
{
    (void)arg, (void)since, (void)purpose, (void)p, (void)n;
    if (o->parts > NEB_PARTS_MAX) abort();
    for (int i = 1; i < o->parts; i++)
        if (o->part[i - 1].who >= o->part[i].who) abort();
    return o->parts & 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct neb_order_file f;
    struct neb_members from = {.epoch = 3, .members = 7, .voters = 7, .trains = 3, .heavy = NEB_NO_SITE}, to;
    const struct neb_seal seal = {.verify = verify, .by_operators = by_operators};
    const struct neb_hash genesis = {{1}};
    uint8_t order[NEB_ORDER_MAX];
    int64_t held = neb__mem_held();
    neb_log_set_level(NEB_LOG_NONE);
    if (!neb__order_file_read(data, size, &f)) return 0;
    size_t n = neb__order_put(&f.order, order);
    if (f.epoch < data || f.epoch + f.epoch_size + n != data + size) abort();
    if (memcmp(order, data + size - n, n)) abort();
    if (!neb__order_same(&f.order, &f.order)) abort();
    neb__order_genuine(&f.order, &genesis, &seal, 0);
    neb__order_may(&f.order, &from);
    if (neb__order_roster(&f.order, &from, &to) && to.epoch != from.epoch + 1) abort();
    if (neb__mem_held() != held) abort();
    return 0;
}
