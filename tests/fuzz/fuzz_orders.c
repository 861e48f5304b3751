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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct neb_order_file f;
    struct neb_members from = {.epoch = 3, .members = 7, .voters = 7, .trains = 3, .heavy = NEB_NO_SITE}, to;
    const struct neb_seal seal = {.verify = verify};
    const struct neb_hash genesis = {{1}};
    uint8_t order[NEB_ORDER_SIZE];
    int64_t held = neb__mem_held();
    neb_log_set_level(NEB_LOG_NONE);
    if (!neb__order_file_read(data, size, &f)) return 0;
    if (f.epoch < data || f.epoch + f.epoch_size + NEB_ORDER_SIZE != data + size) abort();
    neb__order_put(&f.order, order);
    if (memcmp(order, data + size - sizeof order, sizeof order)) abort();
    neb__order_genuine(&f.order, &genesis, &seal);
    neb__order_may(&f.order, &from);
    if (neb__order_roster(&f.order, &from, &to) && to.epoch != from.epoch + 1) abort();
    if (neb__mem_held() != held) abort();
    return 0;
}
