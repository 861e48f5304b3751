/* fuzz_round.c: what members of a run tell each other, as bytes. The first one says what follows: a frame, a record, an
 * update's head, a signed statement or a certificate (what is accepted has one form), or a cell's proof. */
#include "base/bytes.h"
#include "base/mem.h"
#include "outer/outer.h"
#include "round/frame.h"
#include "round/record.h"

#include <nebula/log.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void same(struct neb_buf *b, const uint8_t *data, size_t size)
{
    if (b->len != size || memcmp(b->data, data, size)) abort();
    neb__buf_free(b);
}

static void frame(const uint8_t *data, size_t size)
{
    static struct neb_round_frame_item items[NEB_ROUND_FRAME_LIST];
    static struct neb_round_frame_cert certs[NEB_ROUND_FRAME_CERTS];
    struct neb_round_frame f;
    struct neb_buf b;
    if (neb__round_frame_decode(data, size, items, certs, &f) != NEB_OK) return;
    neb__buf_init(&b, NEB_ROUND_FRAME_MAX);
    if (neb__round_frame_encode(&f, &b) != NEB_OK) abort();
    same(&b, data, size);
}

static void record(const uint8_t *data, size_t size)
{
    struct neb_record *r;
    struct neb_buf b;
    if (neb__record_decode(data, size, &r) != NEB_OK) return;
    neb__buf_init(&b, NEB_RECORD_MAX);
    if (neb__record_encode(r, &b) != NEB_OK) abort();
    for (unsigned i = 0; i < NEB_SITES_MAX; i++)
        if (neb__record_of(r, i) && neb__record_of(r, i)->site != i) abort();
    neb__free(r);
    same(&b, data, size);
}

static void update(const uint8_t *data, size_t size)
{
    struct neb_update_header p;
    uint8_t b[NEB_UPDATE_HEADER_SIZE];
    if (neb__update_header_get(data, size, &p) != NEB_OK) return;
    neb__update_header_put(&p, b);
    if (memcmp(b, data, sizeof b)) abort();
}

/* A cell of four values out of as many cells as the input says, with a path of any length. */
static void proof(const uint8_t *data, size_t size)
{
    float theta[4], m[4];
    struct neb_hash path[NEB_PROOF_MAX], root;
    if (size < 8 + sizeof theta + sizeof m) return;
    uint32_t cells = neb__get32(data), cell = neb__get32(data + 4);
    memcpy(theta, data + 8, sizeof theta);
    memcpy(m, data + 8 + sizeof theta, sizeof m);
    data += 8 + sizeof theta + sizeof m, size -= 8 + sizeof theta + sizeof m;
    size_t n = size / NEB_HASH_SIZE;
    if (!cells || cell >= cells || n > NEB_PROOF_MAX) return;
    memcpy(path, data, n * NEB_HASH_SIZE);
    neb__outer_proved(cells, cell, 1, theta, m, 4, NULL, path, (int)n, &root);
}

static bool nobody(void *arg, unsigned signer, const char *purpose, const void *p, size_t n,
                   const uint8_t signature[NEB_SEAL_SIZE])
{
    (void)arg, (void)signer, (void)purpose, (void)p, (void)n;
    return signature[0] & 1; /* some signatures hold */
}

static const struct neb_hash genesis;
static const struct neb_seal seal = {.arg = NULL, .sign = NULL, .verify = nobody};

static void statement(const uint8_t *data, size_t size)
{
    struct neb_reader in = {data, size, false};
    struct neb_said s[2];
    struct neb_buf b;
    if (!neb__said_get(&in, &s[0]) || in.left) return;
    s[1] = s[0];
    (void)neb__said_genuine(&s[0], &genesis, &seal);
    if (neb__said_void(s, 2)) abort(); /* of itself */
    neb__buf_init(&b, 4096);
    if (neb__said_put(&s[0], &b) != NEB_OK) abort();
    same(&b, data, size);
}

static void certificate(const uint8_t *data, size_t size)
{
    static const struct neb_members m = {1, 255, 127, 255, NEB_NO_SITE};
    struct neb_reader in = {data, size, false};
    struct neb_certificate c;
    struct neb_buf b;
    if (!neb__certificate_get(&in, &c) || in.left) return;
    for (int rule = NEB_QUORUM_OLD; rule <= NEB_QUORUM_BYZANTINE; rule++)
        if (neb__certificate_valid(&c, &m, (enum neb_quorum_rule)rule, &genesis, &seal) && c.n < 4) abort();
    neb__buf_init(&b, NEB_CERTIFICATE_MAX);
    if (neb__certificate_put(&c, &b) != NEB_OK) abort();
    same(&b, data, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const what[])(const uint8_t *, size_t) = {frame, record,    update,
                                                            proof, statement, certificate};
    int64_t held = neb__mem_held();
    neb_log_set_level(NEB_LOG_NONE);
    if (!size || size > 1 << 17) return 0;
    what[data[0] % 6](data + 1, size - 1);
    if (neb__mem_held() != held) abort();
    return 0;
}
