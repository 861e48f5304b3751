/* test_seal.c: keys, identities, site folders, rosters and their chain of epochs. */
#include "check.h"
#include "base/buf.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "seal/site.h"
#include "seal/tls.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_key_roundtrip(void **state)
{
    (void)state;
    char dir[256], path[300];
    struct neb_key *a, *b;
    struct neb_public pa, pb;
    struct neb_signature sig;
    struct stat st;
    check_make_dir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/k", dir);
    assert_ok(neb__key_create(&a));
    assert_ok(neb__key_save(a, path));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    check_log_quiet();
    assert_status(neb__key_save(a, path), NEB_ERR_EXISTS);
    check_log_restore();
    assert_ok(neb__key_load(path, &b));
    neb__key_public(a, &pa);
    neb__key_public(b, &pb);
    assert_true(neb__public_equal(&pa, &pb));
    assert_ok(neb__key_sign(b, "test", "hello", 5, &sig));
    assert_ok(neb__key_verify(&pa, "test", "hello", 5, &sig));
    assert_status(neb__key_verify(&pa, "other", "hello", 5, &sig), NEB_ERR_AUTH);
    assert_status(neb__key_verify(&pa, "test", "hellO", 5, &sig), NEB_ERR_AUTH);
    sig.b[7] ^= 1;
    assert_status(neb__key_verify(&pa, "test", "hello", 5, &sig), NEB_ERR_AUTH);
    check_log_quiet();
    chmod(path, 0644);
    struct neb_key *c = NULL;
    assert_status(neb__key_load(path, &c), NEB_ERR_AUTH);
    check_log_restore();
    neb__key_free(a);
    neb__key_free(b);
    check_remove_dir(dir);
}

static void test_identity(void **state)
{
    (void)state;
    struct neb_public key, back;
    char text[NEB_IDENTITY_SIZE], name[NEB_NAME_SIZE];
    for (int i = 0; i < NEB_PUBLIC_SIZE; i++) key.b[i] = (uint8_t)(i * 7);
    neb__identity_format("site-1", &key, text);
    assert_ok(neb__identity_parse(text, strlen(text), name, &back));
    assert_string_equal(name, "site-1");
    assert_true(neb__public_equal(&key, &back));
    for (size_t i = 0; i < strlen(text); i++) { /* every single mistyped character is noticed */
        char bad[NEB_IDENTITY_SIZE];
        strcpy(bad, text);
        bad[i] = bad[i] == '0' ? '1' : '0';
        if (!strcmp(bad, text)) continue;
        assert_status(neb__identity_parse(bad, strlen(bad), name, &back), NEB_ERR_INVALID);
    }
    for (size_t n = 0; n < strlen(text); n++)
        assert_status(neb__identity_parse(text, n, name, &back), NEB_ERR_INVALID);
    assert_false(neb__name_valid("Upper", 5));
    assert_false(neb__name_valid("-a", 2));
    assert_false(neb__name_valid("", 0));
}

static void test_site_folder(void **state)
{
    (void)state;
    char dir[256], site_dir[300], id[NEB_IDENTITY_SIZE];
    struct neb_site *s, *t = NULL;
    check_make_dir(dir, sizeof dir);
    snprintf(site_dir, sizeof site_dir, "%s/a/b", dir);
    assert_ok(neb__site_init(site_dir, "alpha", id));
    check_log_quiet();
    assert_status(neb__site_init(site_dir, "alpha", id), NEB_ERR_EXISTS);
    assert_status(neb__site_init(site_dir, "Alpha!", id), NEB_ERR_INVALID);
    check_log_restore();
    assert_ok(neb__site_open(site_dir, &s));
    assert_int_equal(s->incarnation, 1);
    check_log_quiet();
    assert_status(neb__site_open(site_dir, &t), NEB_ERR_BUSY);
    pid_t child = fork(); /* and from another process */
    if (!child) _exit(neb__site_open(site_dir, &t) == NEB_ERR_BUSY ? 0 : 1);
    int status;
    waitpid(child, &status, 0);
    check_log_restore();
    assert_int_equal(status, 0);
    uint64_t boot = s->boot;
    neb__site_close(s);
    assert_ok(neb__site_open(site_dir, &s));
    assert_int_equal(s->incarnation, 2);
    assert_true(s->boot != boot);
    neb__site_close(s);
    check_remove_dir(dir);
}

struct cast {
    struct neb_key *key[4], *operator_key;
    struct neb_member member[4];
    struct neb_roster roster;
    struct neb_public operator_public;
};

static void cast_make(struct cast *c)
{
    memset(c, 0, sizeof *c);
    for (int i = 0; i < 4; i++) {
        assert_ok(neb__key_create(&c->key[i]));
        struct neb_member *m = &c->member[i];
        snprintf(m->name, sizeof m->name, "s%d", i);
        neb__key_public(c->key[i], &m->key);
        m->votes = i < 3;
        m->addresses = 1;
        snprintf(m->address[0], NEB_ADDRESS_SIZE, "10.0.0.%d:7400", i + 1);
    }
    assert_ok(neb__key_create(&c->operator_key));
    neb__key_public(c->operator_key, &c->operator_public);
    c->roster = (struct neb_roster){c->member, 3};
}

static void cast_free(struct cast *c)
{
    for (int i = 0; i < 4; i++) neb__key_free(c->key[i]);
    neb__key_free(c->operator_key);
}

static struct neb_chain *genesis(struct cast *c)
{
    struct neb_fact facts[2] = {{.name = "job", .size = 3, .value = "abc"},
                                {.name = "arith", .size = 1, .value = "1"}};
    struct neb_chain *chain;
    assert_ok(neb__chain_create(&c->operator_public, facts, 2, &c->roster, &chain));
    return chain;
}

static void propose(const struct neb_chain *chain, const struct neb_roster *r,
                    const struct neb_key *const *signers, uint32_t n, struct neb_buf *out)
{
    struct neb_hash head = {{9}};
    neb__buf_init(out, 1 << 20);
    assert_ok(neb__chain_propose(chain, NEB_EPOCH_CHANGE, 7, &head, r, signers, n, out));
}

static struct neb_chain *reread(const struct neb_chain *chain)
{
    struct neb_buf b;
    struct neb_chain *back;
    neb__buf_init(&b, 1 << 20);
    assert_ok(neb__chain_encode(chain, &b));
    assert_ok(neb__chain_decode(b.data, b.len, &back));
    neb__buf_free(&b);
    return back;
}

static void test_chain(void **state)
{
    (void)state;
    struct cast c;
    cast_make(&c);
    struct neb_chain *chain = genesis(&c), *old = reread(chain);
    assert_int_equal(chain->now.members[2].id, 3);
    assert_string_equal(old->facts[1].name, "job");
    assert_memory_equal(old->facts[1].value, "abc", 3);
    assert_true(neb__hash_equal(&chain->genesis_hash, &old->genesis_hash));

    /* a fourth member, signed by two of three voters */
    struct neb_member four[4];
    memcpy(four, chain->now.members, 3 * sizeof *four);
    four[3] = c.member[3];
    struct neb_roster next = {four, 4};
    const struct neb_key *two[] = {c.key[2], c.key[0]}, *one[] = {c.key[1]}, *op[] = {c.operator_key},
                         *bad[] = {c.key[3]};
    struct neb_buf good, weak;
    propose(chain, &next, two, 2, &good);
    propose(chain, &next, one, 1, &weak);
    assert_status(neb__chain_extend(chain, weak.data, weak.len), NEB_ERR_AUTH);
    assert_int_equal(chain->epoch, 0);
    assert_ok(neb__chain_extend(chain, good.data, good.len));
    assert_int_equal(chain->epoch, 1);
    assert_int_equal(neb__roster_by_name(&chain->now, "s3")->id, 4);
    assert_ok(neb__chain_extend(chain, good.data, good.len)); /* already held: nothing changes */
    assert_int_equal(chain->epoch, 1);
    check_log_quiet();
    struct neb_buf none;
    neb__buf_init(&none, 1 << 20);
    struct neb_hash zero = {{0}};
    assert_status(neb__chain_propose(chain, NEB_EPOCH_CHANGE, 0, &zero, &next, bad, 1, &none), NEB_ERR_AUTH);
    check_log_restore();

    /* the operator evicts s0; a site that missed both epochs catches up from the tail */
    struct neb_roster less = {chain->now.members + 1, 3};
    struct neb_buf evict;
    struct neb_hash before = chain->head;
    propose(chain, &less, op, 1, &evict);
    assert_ok(neb__chain_extend(chain, evict.data, evict.len));
    assert_null(neb__roster_by_key(&chain->now, &c.member[0].key));
    const uint8_t *p;
    size_t n;
    neb__chain_tail(chain, 0, 1 << 20, &p, &n);
    assert_int_equal(n, good.len + evict.len);
    assert_status(neb__chain_extend(old, evict.data, evict.len), NEB_ERR_STATE); /* a gap */
    assert_ok(neb__chain_extend(old, p, n));
    assert_true(neb__hash_equal(&old->head, &chain->head));
    neb__chain_tail(chain, 0, 1, &p, &n); /* at least one whole epoch */
    assert_int_equal(n, good.len);
    neb__chain_tail(chain, 2, 1 << 20, &p, &n);
    assert_int_equal(n, 0);
    struct neb_hash of;
    neb__chain_hash_of(chain, 0, &of);
    assert_true(neb__hash_equal(&of, &chain->genesis_hash));
    neb__chain_hash_of(chain, 1, &of);
    assert_true(neb__hash_equal(&of, &before));
    neb__chain_hash_of(chain, 2, &of);
    assert_true(neb__hash_equal(&of, &chain->head));

    /* an evicted id does not come back under another name */
    struct neb_member again[4];
    memcpy(again, chain->now.members, 3 * sizeof *again);
    memmove(again + 1, again, 3 * sizeof *again);
    again[0] = c.member[0];
    again[0].id = 1;
    struct neb_buf back;
    propose(chain, &(struct neb_roster){again, 4}, op, 1, &back);
    assert_status(neb__chain_extend(chain, back.data, back.len), NEB_ERR_CORRUPT);

    struct neb_chain *copy = reread(chain);
    assert_int_equal(copy->epoch, 2);
    assert_int_equal(copy->last_id, 4);
    neb__chain_free(copy);
    neb__buf_free(&good), neb__buf_free(&weak), neb__buf_free(&evict), neb__buf_free(&back),
        neb__buf_free(&none);
    neb__chain_free(chain);
    neb__chain_free(old);
    cast_free(&c);
}

/* A signature covers the genesis of its run, so two runs under one roster must not share it. */
static void test_runs(void **state)
{
    (void)state;
    struct cast c;
    struct neb_chain *one, *many;
    struct neb_fact runs;
    struct neb_hash first, second, again, none;
    cast_make(&c);
    neb__fact_runs(&runs);
    assert_ok(neb__chain_create(&c.operator_public, NULL, 0, &c.roster, &one));
    assert_ok(neb__chain_create(&c.operator_public, &runs, 1, &c.roster, &many));
    assert_true(neb__chain_names_runs(many) && !neb__chain_names_runs(one));
    assert_ok(neb__chain_run_genesis(many, "first", &first));
    assert_ok(neb__chain_run_genesis(many, "second", &second));
    assert_ok(neb__chain_run_genesis(many, "first", &again));
    assert_ok(neb__chain_run_genesis(many, "", &none));
    assert_true(neb__hash_equal(&first, &again) && !neb__hash_equal(&first, &second));
    assert_true(neb__hash_equal(&none, &many->genesis_hash) && !neb__hash_equal(&none, &first));
    assert_ok(neb__chain_run_genesis(one, "first", &again));
    assert_false(neb__hash_equal(&first, &again));
    neb__chain_free(one);
    neb__chain_free(many);
    cast_free(&c);
}

static void test_fork(void **state)
{
    (void)state;
    struct cast c;
    cast_make(&c);
    struct neb_chain *left = genesis(&c), *right = reread(left);
    const struct neb_key *op[] = {c.operator_key};
    struct neb_buf a, b;
    propose(left, &(struct neb_roster){left->now.members, 2}, op, 1, &a);
    propose(left, &(struct neb_roster){left->now.members + 1, 2}, op, 1, &b);
    assert_ok(neb__chain_extend(left, a.data, a.len));
    assert_ok(neb__chain_extend(right, b.data, b.len));
    check_log_quiet();
    assert_status(neb__chain_extend(left, b.data, b.len), NEB_ERR_EXISTS);
    check_log_restore();
    b.data[b.len - 1] ^= 1; /* a forged fork is only a bad signature */
    assert_status(neb__chain_extend(left, b.data, b.len), NEB_ERR_AUTH);
    assert_int_equal(left->epoch, 1);
    neb__buf_free(&a), neb__buf_free(&b);
    neb__chain_free(left);
    neb__chain_free(right);
    cast_free(&c);
}

/* Every truncation and every flipped byte of a chain is refused; nothing leaks. */
static void test_chain_damage(void **state)
{
    (void)state;
    struct cast c;
    cast_make(&c);
    struct neb_chain *chain = genesis(&c), *got = NULL;
    const struct neb_key *op[] = {c.operator_key};
    struct neb_buf e, all;
    propose(chain, &(struct neb_roster){chain->now.members, 2}, op, 1, &e);
    assert_ok(neb__chain_extend(chain, e.data, e.len));
    neb__buf_init(&all, 1 << 20);
    assert_ok(neb__chain_encode(chain, &all));
    int64_t held = neb__mem_held();
    size_t genesis_end = 12 + chain->genesis.len;
    for (size_t n = 0; n < all.len; n++) {
        if (n == genesis_end) continue; /* the chain at epoch 0: shorter, and valid */
        assert_true(neb__chain_decode(all.data, n, &got) != NEB_OK);
    }
    for (size_t i = 0; i < all.len; i++) {
        all.data[i] ^= 0x10;
        neb_status status = neb__chain_decode(all.data, all.len, &got);
        /* the epoch's genesis hash binds every byte of the genesis; its signature every byte of the epoch */
        assert_true(status != NEB_OK);
        all.data[i] ^= 0x10;
    }
    assert_int_equal(neb__mem_held(), held);
    for (int64_t n = 1;; n++) { /* each allocation failing in turn */
        check_log_quiet();
        neb__mem_fail_at(n);
        neb_status status = neb__chain_decode(all.data, all.len, &got);
        neb__mem_fail_at(0);
        check_log_restore();
        if (status == NEB_OK) break;
        assert_status(status, NEB_ERR_NOMEM);
        assert_int_equal(neb__mem_held(), held);
    }
    neb__chain_free(got);
    neb__buf_free(&e), neb__buf_free(&all);
    neb__chain_free(chain);
    cast_free(&c);
}

static void test_roster_rules(void **state)
{
    (void)state;
    struct cast c;
    struct neb_chain *chain = NULL;
    cast_make(&c);
    check_log_quiet();
#define REFUSED(change)                                                                                    \
    do {                                                                                                   \
        struct cast d = c;                                                                                 \
        d.roster.members = d.member;                                                                       \
        change;                                                                                            \
        assert_status(neb__chain_create(&d.operator_public, NULL, 0, &d.roster, &chain), NEB_ERR_INVALID); \
    } while (0)
    REFUSED(d.member[1].key = d.member[0].key);
    REFUSED(strcpy(d.member[1].name, "s0"));
    REFUSED(strcpy(d.member[1].name, "S 0"));
    REFUSED(d.member[0].votes = d.member[1].votes = d.member[2].votes = 0);
    REFUSED(d.member[0].votes = 3);
    REFUSED(d.member[0].flags = NEB_MEMBER_LEARNER);
    REFUSED(d.member[0].flags = 64);
    REFUSED(strcpy(d.member[0].address[0], "nowhere"));
    REFUSED(strcpy(d.member[0].address[0], "host:0"));
    REFUSED(strcpy(d.member[0].address[0], "host:65536"));
    REFUSED(strcpy(d.member[0].address[0], "::1:7400"));
    REFUSED(d.roster.count = 0);
    check_log_restore();
    char host[NEB_ADDRESS_SIZE];
    uint16_t port;
    assert_true(neb__address_split("[::1]:7400", host, &port));
    assert_string_equal(host, "::1");
    assert_int_equal(port, 7400);
    assert_int_equal(neb__roster_dialler(&c.member[0], &c.member[1]), 0); /* both ids are 0 here */
    c.member[0].id = 5, c.member[1].id = 3;
    assert_int_equal(neb__roster_dialler(&c.member[0], &c.member[1]), 3);
    c.member[0].addresses = 0;
    assert_int_equal(neb__roster_dialler(&c.member[0], &c.member[1]), 5);
    cast_free(&c);
}

/* One direction of a line between two sessions. */
struct wire {
    struct neb_buf bytes;
    size_t at;
};

/* Moves ciphertext from a session to the wire that the other listens to. */
static void carry(struct neb_tls *from, struct wire *wire)
{
    struct neb_buf *out = neb__tls_out(from);
    neb__buf_clear(&wire->bytes);
    wire->at = 0;
    if (out->len) assert_ok(neb__buf_append(&wire->bytes, out->data, out->len));
    neb__buf_clear(out);
}

static size_t hear(void *arg, uint8_t *to, size_t n)
{
    struct wire *w = arg;
    size_t left = w->bytes.len - w->at, got = n < left ? n : left;
    if (got) memcpy(to, w->bytes.data + w->at, got);
    w->at += got;
    return got;
}

/* A megabyte each way with keys renewed every 100 kB; then one flipped bit. */
static void test_tls(void **state)
{
    (void)state;
    struct neb_key *key[2];
    struct neb_public want, got;
    struct neb_tls_context *ctx[2];
    struct neb_tls *t[2];
    struct wire wire[2] = {{.at = 0}, {.at = 0}}; /* towards 0 and towards 1 */
    static uint8_t data[16384], back[16384];
    size_t n;
    for (int i = 0; i < 2; i++) {
        neb__buf_init(&wire[i].bytes, 1 << 20);
        assert_ok(neb__key_create(&key[i]));
        assert_ok(neb__tls_context_create(key[i], "x", &ctx[i]));
        neb__tls_context_renewal(ctx[i], 100000, 3600);
        assert_ok(neb__tls_open(ctx[i], i, 1 << 20, hear, &wire[i], &t[i]));
    }
    neb_status status[2] = {NEB_ERR_AGAIN, NEB_ERR_AGAIN};
    for (int turn = 0; turn < 6; turn++) {
        int i = turn % 2;
        if (status[i] != NEB_OK) status[i] = neb__tls_handshake(t[i]);
        carry(t[i], &wire[!i]);
    }
    assert_true(status[0] == NEB_OK && status[1] == NEB_OK);
    for (int i = 0; i < 2; i++) { /* each knows the other's key */
        neb__tls_peer(t[i], &got);
        neb__key_public(key[!i], &want);
        assert_true(neb__public_equal(&want, &got));
    }
    for (int k = 0; k < 128; k++) {
        int i = k % 2;
        memset(data, k, sizeof data);
        assert_ok(neb__tls_write(t[i], data, sizeof data));
        carry(t[i], &wire[!i]);
        assert_ok(neb__tls_read(t[!i], back, sizeof back, &n));
        assert_int_equal(n, sizeof data);
        assert_memory_equal(data, back, sizeof data);
        assert_status(neb__tls_read(t[!i], back, sizeof back, &n), NEB_ERR_AGAIN);
    }
    assert_true(neb__tls_renewals(t[0]) >= 8 && neb__tls_renewals(t[1]) >= 8);
    assert_ok(neb__tls_write(t[0], data, 100));
    neb__tls_out(t[0])->data[50] ^= 1;
    carry(t[0], &wire[1]);
    assert_status(neb__tls_read(t[1], back, sizeof back, &n), NEB_ERR_PROTOCOL);
    for (int i = 0; i < 2; i++) {
        neb__tls_close(t[i]);
        neb__tls_context_free(ctx[i]);
        neb__key_free(key[i]);
    }
    for (int i = 0; i < 2; i++) neb__buf_free(&wire[i].bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_key_roundtrip), cmocka_unit_test(test_identity),
        cmocka_unit_test(test_site_folder),   cmocka_unit_test(test_chain),
        cmocka_unit_test(test_fork),          cmocka_unit_test(test_chain_damage),
        cmocka_unit_test(test_roster_rules),  cmocka_unit_test(test_tls),
        cmocka_unit_test(test_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
