/* test_rekey.c: a site whose key was stolen. The thief claims a huge incarnation and locks the owner out; with a new key, asked
 * for under both keys and signed by the operator, the owner is back and the thief is nobody. */
#include "check.h"
#include "sites.h"
#include "base/file.h"
#include "base/mem.h"
#include "seal/rekey.h"
#include "seal/site.h"
#include "solo.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static atomic_int ups;
static atomic_ullong seen; /* the incarnation of the peer that came up last */

static void on_up(void *arg, uint16_t peer, uint64_t incarnation)
{
    (void)arg, (void)peer;
    atomic_store(&seen, incarnation);
    atomic_fetch_add(&ups, 1);
}

static void on_down(void *arg, uint16_t peer, neb_status why)
{
    (void)arg, (void)peer, (void)why;
}

static neb_status on_message(void *arg, struct neb_message *m)
{
    (void)arg, (void)m;
    return NEB_OK;
}

static const struct neb_net_events watched = {.peer_up = on_up, .peer_down = on_down, .message = on_message};
static const struct neb_net_events silent = {.peer_down = on_down, .message = on_message};

static void tune(struct neb_net_config *c)
{
    c->dial_max = 0.3;
}

static char elsewhere[32];

static void tune_thief(struct neb_net_config *c)
{
    tune(c);
    c->listen = elsewhere;
}

static bool comes_up(int more)
{
    for (int i = 0; i < 400 && atomic_load(&ups) < more; i++) sleep_ms(50);
    return atomic_load(&ups) >= more;
}

static void copy(const char *from, const char *to, const char *file)
{
    char path[600];
    struct neb_buf b;
    neb__buf_init(&b, 1 << 20);
    snprintf(path, sizeof path, "%s/%s", from, file);
    assert_ok(neb__file_read(path, &b));
    snprintf(path, sizeof path, "%s/%s", to, file);
    assert_ok(neb__file_replace(path, b.data, b.len, 0600));
    neb__buf_free(&b);
}

/* The operator signs what the site in `dir` asks for, and the site takes it. */
static void rekey(const struct sites *s, const char *dir)
{
    struct neb_chain *chain;
    struct neb_roster next;
    struct neb_buf request, epoch;
    struct neb_rekey_head head = {0};
    bool taken;
    neb__buf_init(&request, 4096);
    assert_ok(neb__rekey_request(dir, &head, &request));
    assert_ok(neb__site_roster_load(dir, &chain));
    assert_ok(neb__rekey_take(dir, chain, &taken)); /* nobody has signed it yet */
    assert_false(taken);
    assert_ok(neb__rekey_check((const char *)request.data, request.len, chain, &next, &head));
    sites_sign(s, chain, &next, &epoch);
    assert_ok(neb__chain_extend(chain, epoch.data, epoch.len));
    assert_ok(neb__rekey_take(dir, chain, &taken));
    assert_true(taken);
    assert_ok(neb__rekey_take(dir, chain, &taken)); /* once more changes nothing */
    assert_false(taken);
    assert_ok(neb__site_roster_save(dir, chain));
    neb__roster_free(&next);
    neb__buf_free(&request);
    neb__buf_free(&epoch);
    neb__chain_free(chain);
}

static void a_stolen_key_locks_nobody_out_for_good(void **state)
{
    (void)state;
    struct sites s;
    struct node other, owner, thief;
    char stolen[300];
    sites_make(&s, 2, NULL);
    snprintf(stolen, sizeof stolen, "%s/stolen", s.dir);
    assert_ok(neb__file_make_dir(stolen, 0700));
    for (int i = 0; i < 3; i++) copy(s.path[1], stolen, (const char *[]){"site.key", "site.id", "roster"}[i]);
    snprintf(elsewhere, sizeof elsewhere, "127.0.0.1:%u", free_port());
    check_log_quiet();
    atomic_store(&ups, 0);
    node_open(&other, s.path[0], &watched, NULL, tune);

    struct neb_buf huge;
    char path[320];
    neb__buf_init(&huge, 64);
    assert_ok(neb__buf_printf(&huge, "%llu\n", 1ull << 60));
    snprintf(path, sizeof path, "%s/incarnation", stolen);
    assert_ok(neb__file_replace(path, huge.data, huge.len, 0600));
    neb__buf_free(&huge);
    node_open(&thief, stolen, &silent, NULL, tune_thief);
    assert_true(comes_up(1));
    assert_true(atomic_load(&seen) > 1ull << 59);
    node_close(&thief);

    node_open(&owner, s.path[1], &silent, NULL, tune); /* with the old key it is taken for an old process */
    sleep_ms(600);
    assert_int_equal(1, atomic_load(&ups));
    node_close(&owner);

    rekey(&s, s.path[1]);
    node_open(&owner, s.path[1], &silent, NULL, tune); /* it brings the epoch along */
    assert_true(comes_up(2));
    assert_true(atomic_load(&seen) < 100);
    node_open(&thief, stolen, &silent, NULL, tune_thief);
    sleep_ms(600);
    assert_int_equal(2, atomic_load(&ups));
    node_close(&thief);
    node_close(&owner);
    node_close(&other);
    check_log_restore();
    sites_free(&s);
}

static void requests_are_hostile(void **state)
{
    (void)state;
    struct sites s;
    struct neb_chain *chain;
    struct neb_roster next;
    struct neb_buf r;
    struct neb_rekey_head head = {7, {{1, 2, 3}}};
    sites_make(&s, 2, NULL);
    neb__buf_init(&r, 4096);
    assert_ok(neb__rekey_request(s.path[0], &head, &r));
    assert_ok(neb__site_roster_load(s.path[0], &chain));
    check_log_quiet();
    for (size_t n = 0; n + 1 < r.len; n += 7) /* every length */
        assert_int_equal(NEB_ERR_CORRUPT, neb__rekey_check((const char *)r.data, n, chain, &next, &head));
    for (size_t i = 0; i + 1 < r.len; i++) { /* every byte */
        uint8_t was = r.data[i];
        r.data[i] = was == '0' ? '1' : '0';
        assert_true(neb__rekey_check((const char *)r.data, r.len, chain, &next, &head) != NEB_OK);
        r.data[i] = was;
    }
    check_log_restore();
    assert_ok(neb__rekey_check((const char *)r.data, r.len, chain, &next, &head));
    neb__roster_free(&next);
    neb__chain_free(chain);
    neb__buf_free(&r);
    sites_free(&s);
}

/* ---- the log: site 1's updates are those of two cores, which get them by hand ------------------------------------------ */

static uint64_t chain_epoch;

static bool has_epoch(void *arg, uint64_t epoch)
{
    (void)arg;
    return epoch <= chain_epoch;
}

/* Both have an update of site 1. Returns how many records that made. */
static uint64_t offer(struct solo s[2], uint8_t hash, uint64_t k, uint64_t b)
{
    const struct neb_update_header update = {
        .site = 1, .c1 = 1, .k = k, .b = b, .tau = 1, .weight = 1, .length = 10};
    uint64_t before = solo_status(&s[0]).commit;
    for (int i = 0; i < 2; i++)
        solo_event(&s[i], (struct neb_event){.type = NEB_EV_UPDATE, .update = &update, .hash = {{hash}}});
    pair_run(s, 8000);
    assert_int_equal(solo_status(&s[0]).commit, solo_status(&s[1]).commit);
    return solo_status(&s[0]).commit - before;
}

static uint64_t order(struct solo s[2], uint64_t epoch, unsigned signer)
{
    uint64_t before = solo_status(&s[0]).commit;
    struct neb_order o =
        solo_order(&s[0], (struct neb_order){.op = NEB_OP_REKEY, .site = 1, .value = epoch}, signer);
    solo_event(&s[0], (struct neb_event){.type = NEB_EV_OPERATOR, .order = &o});
    pair_run(s, 8000);
    return solo_status(&s[0]).commit - before;
}

/* A thief signs the highest number there is. The owner's updates are out until it has another key; then they count again, and
 * nothing from before the change does. */
static void a_new_key_is_counted_anew(void **state)
{
    (void)state;
    struct solo s[2];
    pair_start(s, (struct neb_members){1, 3, 3, 2, NEB_NO_SITE});
    for (int i = 0; i < 2; i++) s[i].r->cfg.seal.has_epoch = has_epoch;
    chain_epoch = 1;
    assert_int_equal(offer(s, 1, 1, 0), 1);
    assert_int_equal(offer(s, 2, UINT64_MAX, 1), 1); /* the thief */
    assert_int_equal(offer(s, 3, 2, 2), 0);          /* the owner, under the old key */
    assert_int_equal(s[1].r->next_k, UINT64_MAX);
    assert_int_equal(order(s, 2, NEB_BY_OPERATOR), 0); /* nobody knows the new key */
    assert_int_equal(order(s, 1, 1), 0);               /* nor may the site, or who has its key, do that */
    chain_epoch = 2;
    assert_int_equal(order(s, 2, NEB_BY_OPERATOR), 1);
    assert_int_equal(solo_status(&s[0]).roster.epoch, 2);
    assert_int_equal(s[1].r->next_k, s[1].r->first_k); /* the owner's own numbers */
    pair_run(s, 8000);
    assert_int_equal(solo_status(&s[0]).commit, 3); /* update 3 is here, and was signed with the old key */
    assert_int_equal(offer(s, 4, 9, 1), 0);         /* made before: it may have been in a record */
    assert_int_equal(offer(s, 5, 3, 2), 1);         /* the owner, under the new key */
    assert_int_equal(offer(s, 6, 3, 3), 0);         /* the numbers still ascend */
    assert_int_equal(offer(s, 7, 4, 3), 1);
    for (int i = 0; i < 2; i++) solo_stop(&s[i]);
}

/* An update that a thief signed and one site has is worth nothing behind the change, whoever gets it then. */
static void an_old_key_is_worth_nothing(void **state)
{
    (void)state;
    struct solo s[2];
    const struct neb_update_header update = {.site = 1, .c1 = 1, .k = 5, .tau = 1, .weight = 1, .length = 10};
    const struct neb_event have = {.type = NEB_EV_UPDATE, .update = &update, .hash = {{8}}};
    pair_start(s, (struct neb_members){1, 3, 3, 2, NEB_NO_SITE});
    for (int i = 0; i < 2; i++) s[i].r->cfg.seal.has_epoch = has_epoch;
    chain_epoch = 1;
    solo_event(&s[0], have);
    assert_int_equal(order(s, 1, NEB_BY_OPERATOR), 1);
    solo_event(&s[1], have);
    pair_run(s, 8000);
    assert_int_equal(solo_status(&s[0]).commit, 1);
    assert_int_equal(offer(s, 9, 1, 0), 1);
    for (int i = 0; i < 2; i++) solo_stop(&s[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stolen_key_locks_nobody_out_for_good),
        cmocka_unit_test(requests_are_hostile),
        cmocka_unit_test(a_new_key_is_counted_anew),
        cmocka_unit_test(an_old_key_is_worth_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
