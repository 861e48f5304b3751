/* test_round_limits.c: what one member can use up: the lapses of a site whose key it stole, the places for what is kept of others,
 * the time of all for state roots, the numbers of views. */
#include "check.h"
#include "base/bytes.h"
#include "solo.h"

#include <string.h>

static const struct neb_members three = {1, 7, 7, 7, NEB_NO_SITE};

/* A signature of a key that was replaced: the signer's number with NEB_BY_FORMER. */
static unsigned keys_before;
static unsigned former_keys(void *arg, unsigned site)
{
    (void)arg;
    (void)site;
    return keys_before;
}

/* The k-th key of a site may sign so many lapses. Whoever has a replaced one cannot use up those of the next. */
static void a_stolen_key_leaves_lapses(void **state)
{
    (void)state;
    struct neb_hash genesis = {{7}};
    struct neb_seal seal = {.verify = test_verify, .former_keys = former_keys};
    uint32_t before = 0;
    for (keys_before = 0; keys_before < 8; keys_before++) {
        uint32_t present = neb__lapse_limit(&seal, 1, false), former = neb__lapse_limit(&seal, 1, true);
        assert_true(present >= before + 128 && present < NEB_LAPSE_MAX);
        assert_int_equal(former, keys_before ? before : present);
        for (int old = 0; old < 2; old++)
            for (int more = 0; more < 2; more++) {
                unsigned as = 1u | (old ? NEB_BY_FORMER : 0u);
                uint8_t word[NEB_SEAL_SIZE];
                uint32_t lapse = (old ? former : present) + (uint32_t)more;
                struct neb_seal thief = {.arg = &as, .sign = test_sign};
                assert_ok(neb__lapse_sign(&genesis, &thief, 1, lapse, word));
                assert_int_equal(neb__lapse_genuine(&genesis, &seal, 1, lapse, word), !more);
            }
        before = present;
    }
}

/* A site whose lapses are used up stops, and says that a new key brings new ones. With one it starts. */
static void a_new_key_brings_new_lapses(void **state)
{
    (void)state;
    for (keys_before = 0; keys_before < 2; keys_before++) {
        struct solo s;
        unsigned self = 0;
        struct neb_seal owner = {.arg = &self, .sign = test_sign};
        solo_create(&s, 0, three);
        s.r->cfg.seal.former_keys = former_keys;
        struct neb_round_frame f = {
            .type = NEB_ROUND_FRAME_HELLO_OK, .flags = NEB_FLAG_INTACT, .phase = 1, .number = 0x8000};
        assert_ok(neb__lapse_sign(&s.r->cfg.genesis, &owner, 0, 0x8000, f.signature));
        solo_run(&s, 100);
        for (uint16_t from = 1; from < 3; from++) {
            f.from = from;
            f.nonce = s.r->greet_nonce;
            solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = from});
            solo_frame(&s, f);
        }
        assert_int_equal(s.halts, !keys_before);
        assert_int_equal(s.r->greet_lapse, 0x8001);
        assert_int_equal(s.r->greet_phase, keys_before ? 2 : 1);
        if (!keys_before) assert_non_null(strstr(s.r->halt_text, "nebula-i site rekey"));
        solo_stop(&s);
    }
}

static struct neb_said start_of(struct solo *s, unsigned site, uint64_t view)
{
    struct neb_seal seal = {.arg = &site, .sign = test_sign};
    struct neb_said said = {.kind = NEB_SAID_STARTS,
                            .site = (uint8_t)site,
                            .epoch = s->r->roster.epoch,
                            .view = view * NEB_SITES_MAX + site,
                            .normal = view * NEB_SITES_MAX + site};
    assert_ok(neb__said_sign(&said, &s->r->cfg.genesis, &seal));
    return said;
}

static int kept_of(const struct solo *s, unsigned site)
{
    int n = 0;
    for (int i = 0; i < VOTES_KEPT; i++) n += s->r->heard_vote[i].kind && s->r->heard_vote[i].site == site;
    return n;
}

static bool is_kept(const struct solo *s, const struct neb_said *said)
{
    for (int i = 0; i < VOTES_KEPT; i++)
        if (!memcmp(&s->r->heard_vote[i], said, sizeof *said)) return true;
    return false;
}

/* A voter shows any number of statements of its own. They drive out neither what is kept of others nor what came with votes. */
static void a_flood_drives_out_nothing(void **state)
{
    (void)state;
    struct solo s;
    solo_create(&s, 0, three);
    struct neb_said of_other = start_of(&s, 1, 1), with_vote = start_of(&s, 2, 1);
    neb__autograph_heard(s.r, &of_other, false);
    neb__autograph_heard(s.r, &with_vote, false);
    for (uint64_t view = 2; view < 100; view++) {
        struct neb_said flood = start_of(&s, 2, view);
        neb__autograph_heard(s.r, &flood, true);
    }
    assert_true(is_kept(&s, &of_other) && is_kept(&s, &with_vote));
    assert_int_equal(kept_of(&s, 2), VOTES_KEPT / 3);
    for (uint64_t view = 100; view < 200; view++) { /* in its votes: its own oldest ones go */
        struct neb_said flood = start_of(&s, 2, view);
        neb__autograph_heard(s.r, &flood, false);
        assert_true(is_kept(&s, &flood));
    }
    assert_true(is_kept(&s, &of_other) && !is_kept(&s, &with_vote));
    assert_int_equal(kept_of(&s, 2), VOTES_KEPT / 3);
    struct neb_said stranger = start_of(&s, 5, 1); /* no voter, so it leads nothing */
    neb__autograph_heard(s.r, &stranger, false);
    assert_false(is_kept(&s, &stranger));
    solo_stop(&s);
}

/* A member that never catches up makes all hash every record for a while, later one in four. One that does gets its due again. */
static void roots_are_made_for_so_long(void **state)
{
    (void)state;
    struct solo s;
    solo_start(&s);
    s.r->whole = true;
    int wanted = 0;
    uint64_t commit = s.r->commit;
    for (int i = 0; i < 4096; i++) {
        s.r->commit++;
        s.r->peer[1].heard = s.r->now;
        neb__root_lacks(s.r, 1, true);
        bool needed = neb__root_needed(s.r);
        assert_true(needed || i >= 512);
        wanted += needed;
    }
    assert_in_range(wanted, 512 + (4096 - 512) / 4 - 16, 512 + (4096 - 512) / 4 + 32);
    for (int i = 0; i < 4096; i++) s.r->commit++, neb__root_lacks(s.r, 1, false);
    neb__root_lacks(s.r, 1, true);
    s.r->commit = (s.r->commit / 64 + 1) * 64 + 32; /* where it would have to wait */
    s.r->peer[1].roots_at = s.r->commit;
    assert_true(neb__root_needed(s.r));
    s.r->commit = commit;
    solo_stop(&s);
}

/* A leader answers a member in a higher view by leading one above it. The others ignore views that are too far above their own:
 * a member that names the highest one they still listen to must not make the leader go beyond it. */
static void a_huge_view_shuts_no_leader_out(void **state)
{
    (void)state;
    struct solo s;
    solo_start(&s);
    for (int i = 0; i < 3; i++) {
        uint64_t before = s.r->view;
        solo_frame(
            &s, (struct neb_round_frame){
                    .type = NEB_ROUND_FRAME_REPORT, .from = 1, .view = before + NEB_VIEW_LEAP, .normal = 0});
        solo_run(&s, 100);
        assert_int_equal(solo_status(&s).state, NEB_ROUND_LEAD);
        assert_in_range(s.r->view, before + 1, before + NEB_VIEW_LEAP);
    }
    solo_stop(&s);
}

/* A member names a view as high as the others listen to, or higher, a thousand times in 100 s. A voter without a leader comes up
 * slowly. */
static void nobody_is_pushed_far(void **state)
{
    (void)state;
    for (int way = 0; way < 3; way++) {
        struct solo s[2];
        pair_start(s, three);
        s[0].other = s[1].other = NULL;
        solo_run(&s[1], 60000);
        for (int i = 0; i < 1000; i++) {
            uint64_t before = s[1].r->view,
                     leap = way ? 3 * NEB_VIEW_LEAP : NEB_VIEW_LEAP - 2 * NEB_SITES_MAX;
            uint64_t number = (before + leap) / NEB_SITES_MAX * NEB_SITES_MAX + 2;
            solo_frame(&s[1], (struct neb_round_frame){.type = way == 2 ? NEB_ROUND_FRAME_ASK
                                                                        : NEB_ROUND_FRAME_ELECT,
                                                       .from = 2,
                                                       .view = number,
                                                       .number = number});
            solo_run(&s[1], 1);
            assert_true(s[1].r->view >= before && s[1].r->view <= before + NEB_VIEW_PUSH + NEB_SITES_MAX);
        }
        assert_true(s[1].r->view > NEB_VIEW_PUSH && s[1].r->view < 10 * NEB_VIEW_PUSH);
        for (int i = 0; i < 2; i++) solo_stop(&s[i]);
    }
}

/* A voter that was pushed further above the others than they listen to is not lost: a leader comes up to it, and so does a voter
 * that needs its vote to have a leader. */
static void the_pushed_find_back(void **state)
{
    (void)state;
    const struct neb_members two = {1, 3, 3, 3, NEB_NO_SITE};
    for (int way = 0; way < 2; way++) {
        struct solo s[2];
        pair_start(s, way ? two : (struct neb_members){1, 3, 1, 3, NEB_NO_SITE});
        uint64_t far = s[0].r->view + (way ? NEB_VIEW_LEAP + NEB_VIEW_PUSH : 5 * NEB_VIEW_LEAP);
        neb__view_follow(s[1].r, far);
        pair_run(s, 1800000);
        bool leads[2];
        for (int i = 0; i < 2; i++) leads[i] = solo_status(&s[i]).state == NEB_ROUND_LEAD;
        assert_true(leads[0] || leads[1]);
        assert_true(s[0].r->view == s[1].r->view && s[0].r->view >= far);
        assert_true(neb__view_joined(s[0].r) && neb__view_joined(s[1].r));
        for (int i = 0; i < 2; i++) solo_stop(&s[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stolen_key_leaves_lapses),
        cmocka_unit_test(a_new_key_brings_new_lapses),
        cmocka_unit_test(a_flood_drives_out_nothing),
        cmocka_unit_test(roots_are_made_for_so_long),
        cmocka_unit_test(a_huge_view_shuts_no_leader_out),
        cmocka_unit_test(nobody_is_pushed_far),
        cmocka_unit_test(the_pushed_find_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
