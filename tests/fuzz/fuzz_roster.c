/* fuzz_roster.c: whole rosters, epochs offered to a chain that is held, and epochs on their way from operator to operator. */
#include "seal/roster.h"
#include "base/mem.h"

#include <nebula/log.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The bytes behind the first 8 as an epoch that an operator is asked to sign. */
static void look(const uint8_t *data, size_t size)
{
    struct neb_roster roster;
    struct neb_operators set = {.count = 0};
    if (size < 8 || neb__epoch_peek(data + 8, size - 8, &roster, &set) != NEB_OK) return;
    if (neb__roster_check(&roster) != NEB_OK || set.count > NEB_OPERATORS_MAX || set.threshold > set.count)
        abort();
    neb__roster_free(&roster);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct neb_chain *chain;
    struct neb_buf out;
    neb_log_set_level(NEB_LOG_NONE);
    look(data, size);
    if (neb__chain_decode(data, size, &chain) != NEB_OK) return 0;
    neb__buf_init(&out, 128 << 20);
    if (neb__chain_encode(chain, &out) != NEB_OK || out.len != size)
        abort(); /* what is accepted has one encoding */
    uint64_t epoch = chain->epoch;
    if (neb__chain_extend(chain, data, size) == NEB_OK) abort(); /* a whole file is no epoch */
    if (neb__chain_extend(chain, chain->tail.data, chain->tail.len) != NEB_OK)
        abort(); /* its own epochs are no news */
    if (chain->epoch != epoch) abort();
    neb__buf_free(&out);
    neb__chain_free(chain);
    return 0;
}
