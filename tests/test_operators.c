/* test_operators.c: several operators who must agree, and operators that change: in the chain of rosters, in orders, in the
 * log. */
#include "check.h"
#include "run/operator_parts.h"
#include "seal/roster.h"
#include "solo.h"

#include <stdio.h>
#include <string.h>

enum { KEYS = 6 };

struct people {
    struct neb_key *key[KEYS]; /* 0, 1, 2: operators; 3, 4: the next ones; 5: the only voter */
    struct neb_operators first, next;
    struct neb_member voter;
    struct neb_chain *chain;
};

static void people_make(struct people *p)
{
    struct neb_fact fact;
    struct neb_public name;
    memset(p, 0, sizeof *p);
    for (int i = 0; i < KEYS; i++) assert_ok(neb__key_create(&p->key[i]));
    p->first = (struct neb_operators){.threshold = 2, .count = 3};
    p->next = (struct neb_operators){.threshold = 2, .count = 2};
    for (int i = 0; i < 3; i++) neb__key_public(p->key[i], &p->first.key[i]);
    for (int i = 0; i < 2; i++) neb__key_public(p->key[3 + i], &p->next.key[i]);
    assert_ok(neb__operators_make(&p->first));
    assert_ok(neb__operators_make(&p->next));
    p->voter = (struct neb_member){.name = "v", .votes = 1, .addresses = 1, .address = {"10.0.0.1:7400"}};
    neb__key_public(p->key[5], &p->voter.key);
    assert_ok(neb__fact_operators(&p->first, &fact));
    assert_ok(neb__operators_name(&p->first, &name));
    assert_ok(neb__chain_create(&name, &fact, 1, &(struct neb_roster){&p->voter, 1}, &p->chain));
}

static void people_free(struct people *p)
{
    for (int i = 0; i < KEYS; i++) neb__key_free(p->key[i]);
    neb__chain_free(p->chain);
}

/* An epoch with another address, signed by these; returns what the chain says of it. */
static neb_status change(struct people *p, const char *signers)
{
    const struct neb_key *by[KEYS];
    struct neb_roster next;
    struct neb_buf b;
    uint32_t n = 0;
    const struct neb_hash head = {{9}};
    for (; signers[n]; n++) by[n] = p->key[signers[n] - '0'];
    assert_ok(neb__roster_copy(&p->chain->now, &next));
    snprintf(next.members[0].address[0], NEB_ADDRESS_SIZE, "10.0.0.%d:7400", (int)p->chain->epoch + 2);
    neb__buf_init(&b, 1 << 20);
    neb_status status = neb__chain_propose(p->chain, NEB_EPOCH_CHANGE, 7, &head, &next, by, n, &b);
    if (status == NEB_OK) status = neb__chain_extend(p->chain, b.data, b.len);
    neb__buf_free(&b);
    neb__roster_free(&next);
    return status;
}

static neb_status rotate(struct people *p, const char *signers)
{
    const struct neb_key *by[KEYS];
    struct neb_buf b;
    uint32_t n = 0;
    const struct neb_hash head = {{9}};
    for (; signers[n]; n++) by[n] = p->key[signers[n] - '0'];
    neb__buf_init(&b, 1 << 20);
    neb_status status = neb__chain_propose_operators(p->chain, &p->next, 7, &head, by, n, &b);
    if (status == NEB_OK) status = neb__chain_extend(p->chain, b.data, b.len);
    neb__buf_free(&b);
    return status;
}

static void a_chain_needs_enough_of_them(void **state)
{
    (void)state;
    struct people p;
    people_make(&p);
    check_log_quiet();
    assert_int_equal(p.chain->operators.count, 3);
    assert_status(change(&p, "0"), NEB_ERR_AUTH);
    assert_status(change(&p, "2"), NEB_ERR_AUTH);
    assert_status(change(&p, "03"), NEB_ERR_AUTH);    /* 3 is no operator yet */
    assert_status(change(&p, "00"), NEB_ERR_INVALID); /* one of them, twice */
    assert_ok(change(&p, "02"));
    assert_ok(change(&p, "5")); /* more than half of the votes, as ever */
    assert_ok(change(&p, "210"));
    assert_status(rotate(&p, "1"), NEB_ERR_AUTH);
    assert_status(rotate(&p, "5"), NEB_ERR_AUTH); /* the voters do not choose operators */
    assert_ok(rotate(&p, "01"));
    assert_int_equal(p.chain->operators_epoch, 4);
    assert_true(neb__operators_equal(&p.chain->operators, &p.next));
    assert_status(change(&p, "01"), NEB_ERR_AUTH); /* they were replaced */
    assert_ok(change(&p, "34"));
    check_log_restore();
    struct neb_buf b;
    struct neb_chain *back;
    neb__buf_init(&b, 1 << 20);
    assert_ok(neb__chain_encode(p.chain, &b));
    assert_ok(neb__chain_decode(b.data, b.len, &back)); /* each epoch by the operators of its time */
    assert_true(neb__operators_equal(&back->operators, &p.next) && back->operators_epoch == 4);
    neb__buf_free(&b);
    neb__chain_free(back);
    people_free(&p);
}

/* The signatures of an epoch come one after the other, in any order. */
static void an_epoch_is_signed_by_parts(void **state)
{
    (void)state;
    static const char *const orders[] = {"012", "210", "120"};
    for (size_t way = 0; way < 3; way++) {
        struct people p;
        struct neb_buf b;
        unsigned have = 9;
        const struct neb_hash head = {{9}};
        people_make(&p);
        const struct neb_key *first[] = {p.key[orders[way][0] - '0']};
        neb__buf_init(&b, 1 << 20);
        assert_ok(neb__chain_propose_operators(p.chain, &p.next, 7, &head, first, 1, &b));
        assert_ok(neb__chain_cosign(p.chain, NULL, &b, &have));
        assert_int_equal(have, 1);
        assert_status(neb__chain_extend(p.chain, b.data, b.len), NEB_ERR_AUTH);
        check_log_quiet();
        assert_status(neb__chain_cosign(p.chain, first[0], &b, &have), NEB_ERR_INVALID);
        assert_status(neb__chain_cosign(p.chain, p.key[4], &b, &have), NEB_ERR_AUTH);
        check_log_restore();
        assert_ok(neb__chain_cosign(p.chain, p.key[orders[way][1] - '0'], &b, &have));
        assert_int_equal(have, 2);
        assert_ok(neb__chain_cosign(p.chain, p.key[orders[way][2] - '0'], &b, &have));
        b.data[b.len - 1] ^= 1;
        assert_status(neb__chain_cosign(p.chain, NULL, &b, &have), NEB_ERR_AUTH); /* a damaged one */
        b.data[b.len - 1] ^= 1;
        assert_ok(neb__chain_extend(p.chain, b.data, b.len));
        neb__buf_free(&b);
        people_free(&p);
    }
}

static void a_genesis_names_its_operators_twice(void **state)
{
    (void)state;
    struct people p;
    struct neb_chain *back;
    struct neb_buf b;
    people_make(&p);
    neb__buf_init(&b, 1 << 20);
    assert_ok(neb__chain_encode(p.chain, &b));
    for (size_t i = 12; i < b.len; i++) { /* a bit of the genesis changed: another run, or none */
        b.data[i] ^= 4;
        if (neb__chain_decode(b.data, b.len, &back) == NEB_OK) {
            assert_false(neb__hash_equal(&back->genesis_hash, &p.chain->genesis_hash));
            assert_true(
                neb__operators_equal(&back->operators, &p.first) ||
                neb__public_equal(&back->operators.key[0], &p.chain->operator_key)); /* nobody's key */
            neb__chain_free(back);
        }
        b.data[i] ^= 4;
    }
    neb__buf_free(&b);
    people_free(&p);
}

/* ---- orders -------------------------------------------------------------------------------------------- */

static neb_status sign_as(void *arg, const char *purpose, const void *b, size_t n, uint8_t out[NEB_SEAL_SIZE])
{
    struct neb_signature s;
    NEB_TRY(neb__key_sign(arg, purpose, b, n, &s));
    memcpy(out, s.b, NEB_SEAL_SIZE);
    return NEB_OK;
}

static bool by_set(void *arg, uint64_t since, const char *purpose, const void *b, size_t n,
                   const struct neb_order *o)
{
    (void)since;
    return neb__operators_signed(arg, purpose, b, n, o);
}

static void part(struct people *p, struct neb_order *o, const struct neb_operators *set, int key)
{
    const struct neb_hash genesis = {{1}};
    struct neb_public public;
    neb__key_public(p->key[key], &public);
    assert_ok(neb__order_sign_part(o, (uint8_t)neb__operators_find(set, &public), &genesis,
                                   &(struct neb_seal){.arg = p->key[key], .sign = sign_as}));
}

static void an_order_needs_enough_of_them(void **state)
{
    (void)state;
    struct people p;
    people_make(&p);
    const struct neb_hash genesis = {{1}}, other = {{2}};
    const struct neb_seal seal = {.arg = &p.first, .by_operators = by_set};
    struct neb_order o = {.op = NEB_OP_END, .signer = NEB_BY_OPERATOR, .epoch = 3, .index = 9}, back;
    uint8_t bytes[NEB_ORDER_MAX];
    part(&p, &o, &p.first, 2);
    assert_false(neb__order_genuine(&o, &genesis, &seal, 0));
    part(&p, &o, &p.first, 0);
    assert_true(neb__order_genuine(&o, &genesis, &seal, 0));
    assert_false(neb__order_genuine(&o, &other, &seal, 0)); /* another run */
    size_t n = neb__order_put(&o, bytes);
    assert_int_equal(n, NEB_ORDER_SIZE + 2 * NEB_PART_SIZE);
    struct neb_reader in = {bytes, n, false};
    assert_true(neb__order_get(&in, &back) && !in.left && neb__order_same(&o, &back));
    assert_true(neb__order_genuine(&back, &genesis, &seal, 0));
    back.value = 1;
    assert_false(neb__order_same(&o, &back) || neb__order_genuine(&back, &genesis, &seal, 0));
    for (size_t i = NEB_ORDER_SIZE; i < n; i++) { /* a signature that does not hold spoils all, or the form */
        bytes[i] ^= 1;
        in = (struct neb_reader){bytes, n, false};
        assert_false(neb__order_get(&in, &back) && neb__order_genuine(&back, &genesis, &seal, 0));
        bytes[i] ^= 1;
    }
    for (size_t less = 0; less < n; less++) {
        in = (struct neb_reader){bytes, less, false};
        assert_false(neb__order_get(&in, &back));
    }
    part(&p, &o, &p.first, 1);
    assert_true(neb__order_genuine(&o, &genesis, &seal, 0));
    check_log_quiet();
    assert_status(neb__order_sign_part(&o, 1, &genesis, &(struct neb_seal){.arg = p.key[0], .sign = sign_as}),
                  NEB_ERR_EXISTS);
    check_log_restore();
    people_free(&p);
}

/* ---- the log: toy operators 100, 101 …, one for each set ----------------------------------------------- */

static uint64_t newest;

static bool toy_by(void *arg, uint64_t since, const char *purpose, const void *b, size_t n,
                   const struct neb_order *o)
{
    (void)arg;
    for (uint64_t set = since == NEB_OPERATORS_NEWEST ? newest : since; set <= newest; set++)
        if (test_verify(NULL, 100 + (unsigned)set, purpose, b, n, o->signature)) return true;
    return false;
}

static bool toy_has(void *arg, uint64_t set)
{
    (void)arg;
    return set <= newest;
}

static bool give(struct solo *s, struct neb_order o, unsigned set)
{
    uint64_t head = solo_status(s).commit;
    unsigned signer = 100 + set;
    const struct neb_hash genesis = {{0}};
    o = solo_order(s, o, NEB_BY_OPERATOR);
    assert_ok(neb__order_sign(&o, &genesis, &(struct neb_seal){.arg = &signer, .sign = test_sign}));
    solo_give(s, &o);
    return solo_status(s).commit > head;
}

static void the_log_knows_who_orders(void **state)
{
    (void)state;
    struct solo s;
    const struct neb_order budget = {.op = NEB_OP_BUDGET, .value = 300},
                           force = {.op = NEB_OP_FORCE, .epoch = 5, .roster = {5, 1, 1, 1, NEB_NO_SITE}};
    newest = 0;
    solo_create(&s, 0, (struct neb_members){1, 3, 3, 3, 0});
    s.r->cfg.seal.by_operators = toy_by;
    s.r->cfg.seal.has_operators = toy_has;
    solo_run(&s, 10000);
    assert_true(give(&s, budget, 0));
    assert_false(give(&s, budget, 1));
    assert_false(give(&s, (struct neb_order){.op = NEB_OP_OPERATORS, .value = 1}, 0)); /* nobody knows them */
    newest = 1; /* the chain has them now */
    assert_false(give(&s, (struct neb_order){.op = NEB_OP_OPERATORS, .value = 1}, 7));
    assert_true(give(&s, (struct neb_order){.op = NEB_OP_OPERATORS, .value = 1}, 0));
    assert_false(give(&s, budget, 0)); /* an old key orders nothing any more */
    assert_false(give(&s, (struct neb_order){.op = NEB_OP_OPERATORS, .value = 1}, 1)); /* in force already */
    assert_false(give(&s, (struct neb_order){.op = NEB_OP_OPERATORS, .value = 0}, 1)); /* nor back */
    assert_true(give(&s, budget, 1));
    newest = 2;
    assert_true(give(&s, budget, 2)); /* ahead of the log, and by the newest */
    assert_false(give(&s, budget, 1));
    give(&s, force, 1);
    assert_int_equal(solo_status(&s).roster.epoch, 1);
    give(&s, force, 2);
    assert_int_equal(solo_status(&s).roster.epoch, 5);
    solo_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chain_needs_enough_of_them),
        cmocka_unit_test(an_epoch_is_signed_by_parts),
        cmocka_unit_test(a_genesis_names_its_operators_twice),
        cmocka_unit_test(an_order_needs_enough_of_them),
        cmocka_unit_test(the_log_knows_who_orders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
