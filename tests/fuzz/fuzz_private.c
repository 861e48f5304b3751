/* fuzz_private.c: any bytes as what members and operators hand in about privacy and keys: the statement before an update's code, whose
 * sums an audit adds up; the packed values of a masked code; a site's request for a new key, for a roster that is held. */
#include "base/mem.h"
#include "privacy/masks.h"
#include "privacy/statement.h"
#include "seal/rekey.h"
#include "seal/site.h"

#include <math.h>
#include <nebula/log.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Statements one after the other, as an audit finds them. What is accepted has one form. */
static void add_statements(const uint8_t *data, size_t size)
{
    static struct neb_privacy_sum sum;
    struct neb_privacy_statement s;
    uint8_t again[NEB_PRIVACY_STATEMENT_SIZE];
    memset(&sum, 0, sizeof sum);
    for (size_t at = 0; at + NEB_PRIVACY_STATEMENT_SIZE <= size; at += NEB_PRIVACY_STATEMENT_SIZE) {
        if (neb__privacy_statement_get(data + at, NEB_PRIVACY_STATEMENT_SIZE, &s) != NEB_OK) return;
        neb__privacy_statement_put(&s, again);
        if (memcmp(again, data + at, sizeof again)) abort();
        if (neb__privacy_sum_add(&sum, &s) != NEB_OK) return;
        if (isnan(sum.epsilon) || sum.epsilon < 0) abort();
    }
}

static void add_codes(const uint8_t *data, size_t size)
{
    uint16_t sum[600] = {0}, v[600];
    const int w = size ? neb__mask_bits(3 + data[0] % 62) : 0;
    size_t n = 0;
    while (w && n < 600 && 1 + neb__packed_size(n + 1, w) <= size) n++;
    if (!n) return;
    neb__packed_get(data + 1, n, w, v);
    neb__packed_add(data + 1, n, w, sum);
    if (memcmp(v, sum, n * sizeof *v)) abort();
}

/* A run of one site, made once. */
static struct neb_chain *held(void)
{
    static struct neb_chain *chain;
    struct neb_member member = {.votes = 1, .addresses = 1};
    char dir[] = "/tmp/fuzz-private-XXXXXX", identity[NEB_IDENTITY_SIZE], command[64];
    if (chain) return chain;
    snprintf(member.address[0], NEB_ADDRESS_SIZE, "127.0.0.1:9000");
    if (!mkdtemp(dir) || neb__site_init(dir, "a", identity) != NEB_OK ||
        neb__site_identity(dir, member.name, &member.key) != NEB_OK ||
        neb__chain_create(&member.key, NULL, 0, &(struct neb_roster){&member, 1}, &chain) != NEB_OK)
        abort();
    snprintf(command, sizeof command, "rm -r %s", dir);
    if (system(command)) abort();
    return chain;
}

/* Nobody has signed it, so no request is accepted. */
static void ask_for_a_key(const uint8_t *data, size_t size)
{
    struct neb_roster roster;
    struct neb_rekey_head head;
    uint16_t site;
    if (neb__rekey_check((const char *)data, size, held(), &roster, &head) == NEB_OK) abort();
    (void)neb__rekey_taken((const char *)data, size, held(), &site);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    neb_log_set_level(NEB_LOG_NONE);
    (void)held();
    int64_t before = neb__mem_held();
    add_statements(data, size);
    add_codes(data, size);
    ask_for_a_key(data, size);
    if (neb__mem_held() != before) abort();
    return 0;
}
