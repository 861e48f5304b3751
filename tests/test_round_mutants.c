/* test_round_mutants.c: rules of the round protocol that the simulator needs a rare history for. Built from sources with deliberate bugs
 * (base/mutant.h): each scenario runs as it should go, and once more with the mutant that takes its rule out, and then it must go
 * wrong. */
#include "check.h"
#include "crowd.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "base/mutant.h"

enum neb_mutant neb__mutant;

/* `broken`: the rule is taken out, and the scenario must show it. */
static void with_and_without(enum neb_mutant mutant, void (*scenario)(bool broken))
{
    neb__mutant = NEB_MUTANT_none;
    scenario(false);
    neb__mutant = mutant;
    scenario(true);
    neb__mutant = NEB_MUTANT_none;
}

/* A site ends its process, or is cut off from everybody. */
static void leave(struct crowd *c, int site)
{
    for (int i = 0; i < c->sites; i++)
        if (i != site && c->up[site][i]) crowd_line(c, site, i, false);
}

static const struct neb_order end_order = {.op = NEB_OP_END};

/* ---- the end of a run ---------------------------------------------------------------------------------- */

/* Everything that the run has made. */
static bool has_the_end(const struct crowd *c, int site)
{
    const struct neb_round_status st = solo_status(&c->s[site]);
    return st.ended && st.whole && st.applied == st.commit;
}

static bool one_goes(const struct crowd *c)
{
    return c->s[1].ends;
}

/* The leader tells only a quorum of the end, itself and site 1, which goes on its word. (A cut line stands for that lie.) Site 2 hears of
 * the end from site 1, or never. */
static void the_end_is_kept_back(bool broken)
{
    struct crowd c;
    crowd_start(&c, 3, (struct neb_members){1, 7, 7, 0, NEB_NO_SITE});
    const struct neb_round *last = c.s[2].r;
    assert_int_equal(crowd_leader(&c, 1), 0);
    crowd_line(&c, 0, 2, false);
    crowd_order(&c, 0, end_order);
    assert_true(crowd_run(&c, 20000, one_goes));
    assert_false(last->ending);
    crowd_run(&c, 100, NULL); /* what it sent when it went */
    leave(&c, 1);
    crowd_run(&c, 60000, NULL);
    assert_int_equal(last->ended, !broken);
    assert_int_equal(c.s[2].ends, !broken);
    crowd_stop(&c);
}

static void who_goes_shows_the_end(void **state)
{
    (void)state;
    with_and_without(NEB_MUTANT_go_in_silence, the_end_is_kept_back);
}

static const struct neb_hash lacked = {{7}};

/* Time passes. Whoever is asked by site 2 for the update says that it is on its way. */
static void run_while_it_comes(struct crowd *c, int64_t ms)
{
    for (int64_t t = 0; t < ms; t += 500) {
        crowd_run(c, 500, NULL);
        for (uint16_t i = 0; i < 2; i++)
            if (c->up[i][2])
                solo_event(&c->s[2], (struct neb_event){.type = NEB_EV_COMING, .site = i, .hash = lacked});
    }
}

/* Site 3 trained and is away. Its update is at the leader and at site 1, and site 2 lacks it at the end. The leader dies before it has
 * applied everything. */
static void the_leader_dies_at_the_end(bool broken)
{
    static const struct neb_update_header update = {
        .site = 3, .c1 = 1, .k = 1, .tau = 1, .weight = 1, .length = 10};
    const struct neb_event here = {.type = NEB_EV_UPDATE, .update = &update, .hash = lacked};
    struct crowd c;
    crowd_start(&c, 3, (struct neb_members){1, 15, 7, 8, NEB_NO_SITE});
    assert_int_equal(crowd_leader(&c, 1), 0);
    c.s[0].applies = false;
    for (int i = 0; i < 2; i++) solo_event(&c.s[i], here);
    run_while_it_comes(&c, 2000);
    for (int i = 0; i < 3; i++) assert_int_equal(c.s[i].r->commit, 1);
    crowd_order(&c, 0, end_order);
    run_while_it_comes(&c, 15000);
    assert_true(has_the_end(&c, 1) && !c.s[1].ends);
    assert_true(c.s[2].r->ended && !has_the_end(&c, 2));
    leave(&c, 0);
    if (c.s[1].ends) leave(&c, 1);
    run_while_it_comes(&c, 15000);
    assert_int_equal(c.s[1].ends, broken);
    if (c.up[1][2]) solo_event(&c.s[2], here);
    crowd_run(&c, 60000, NULL);
    assert_int_equal(has_the_end(&c, 2), !broken);
    assert_true(c.s[1].ends == 1 && c.s[2].ends == !broken);
    crowd_stop(&c);
}

static void who_has_everything_stays_for_the_others(void **state)
{
    (void)state;
    with_and_without(NEB_MUTANT_go_with_the_leader, the_leader_dies_at_the_end);
}

/* The leader goes before it has applied everything, and says so. Nobody else is there. */
static void who_is_left_alone_goes_at_once(void **state)
{
    (void)state;
    static const struct neb_update_header update = {
        .site = 2, .c1 = 1, .k = 1, .tau = 1, .weight = 1, .length = 10};
    struct crowd c;
    crowd_start(&c, 2, (struct neb_members){1, 7, 3, 4, NEB_NO_SITE});
    const unsigned leader = crowd_leader(&c, 1), other = !leader;
    c.s[leader].applies = false;
    for (int i = 0; i < 2; i++)
        solo_event(&c.s[i], (struct neb_event){.type = NEB_EV_UPDATE, .update = &update, .hash = lacked});
    crowd_run(&c, 2000, NULL);
    crowd_order(&c, leader, end_order);
    crowd_run(&c, 15000, NULL);
    assert_true(has_the_end(&c, (int)other));
    assert_int_equal(c.s[other].ends, 0);
    solo_frame(&c.s[other],
               (struct neb_round_frame){.type = NEB_ROUND_FRAME_GOODBYE, .from = (uint16_t)leader});
    leave(&c, (int)leader);
    crowd_run(&c, 200, NULL);
    assert_int_equal(c.s[other].ends, 1);
    crowd_stop(&c);
}

/* ---- leaders that are replaced ------------------------------------------------------------------------- */

static bool two_has_it(const struct crowd *c)
{
    return c->s[2].r->commit == 2;
}

/* The leader, site 0, commits a record with site 2 and keeps it from site 1, which sees nothing that waits. Site 2, to which it says
 * nothing any more, needs site 1 for another leader. */
static void a_record_is_kept_back(bool broken)
{
    struct crowd c;
    crowd_start(&c, 3, (struct neb_members){1, 7, 7, 7, NEB_NO_SITE});
    assert_int_equal(crowd_leader(&c, 1), 0);
    crowd_budget(&c, 0, 700);
    crowd_run(&c, 3000, NULL);
    const struct neb_round *kept_from = c.s[1].r;
    assert_int_equal(kept_from->commit, 1);
    const struct neb_round_frame lie = {.type = NEB_ROUND_FRAME_PING,
                                        .view = kept_from->view,
                                        .normal = kept_from->view,
                                        .head = 1,
                                        .commit = 1,
                                        .flags = NEB_FLAG_PROOF | NEB_FLAG_BEGUN,
                                        .number = 700};
    c.up[0][1] = c.up[1][0] = false; /* instead of its own frames there is this one */
    crowd_budget(&c, 0, 500);
    assert_true(crowd_run(&c, 1000, two_has_it));
    crowd_line(&c, 0, 2, false);
    for (int64_t t = 0; t < 2 * kept_from->cfg.idle_ms; t += 1000) {
        solo_frame(&c.s[1], lie);
        crowd_run(&c, 1000, NULL);
    }
    assert_int_equal(kept_from->commit, broken ? 1 : 2);
    assert_int_equal(kept_from->leader == 0, broken);
    assert_int_equal(kept_from->state == NEB_ROUND_LEAD || c.s[2].r->state == NEB_ROUND_LEAD, !broken);
    crowd_stop(&c);
}

static void a_record_that_a_leader_keeps_back_is_given(void **state)
{
    (void)state;
    with_and_without(NEB_MUTANT_ask_leader_only, a_record_is_kept_back);
}

static bool two_have_judged(const struct crowd *c)
{
    return neb__idle_leader(c->s[1].r, 0) && neb__idle_leader(c->s[2].r, 0);
}

static bool one_or_two_leads(const struct crowd *c)
{
    return c->s[1].r->state == NEB_ROUND_LEAD || c->s[2].r->state == NEB_ROUND_LEAD;
}

/* Sites 1 and 2 judge the leader, site 0, because it names no update: it cannot get any. Site 3 is a liar that has made it go to a higher
 * view, and has left: three votes are needed, and one of them is the old leader's. */
static void a_judged_leader_is_above(bool broken)
{
    static const struct neb_update_header update = {
        .site = 1, .c1 = 1, .k = 1, .tau = 1, .weight = 1, .length = 10};
    struct crowd c;
    crowd_start(&c, 4, (struct neb_members){1, 15, 15, 15, NEB_NO_SITE});
    assert_int_equal(crowd_leader(&c, 1), 0);
    leave(&c, 3);
    for (int i = 1; i < 3; i++)
        solo_event(&c.s[i], (struct neb_event){.type = NEB_EV_UPDATE, .update = &update, .hash = {{7}}});
    const uint64_t view = c.s[0].r->view;
    assert_true(crowd_run(&c, 2 * c.s[0].r->cfg.idle_ms, two_have_judged));
    assert_true(c.s[0].r->state == NEB_ROUND_LEAD && c.s[0].r->view == view);
    solo_frame(&c.s[0], (struct neb_round_frame){
                            .type = NEB_ROUND_FRAME_REPORT, .from = 3, .view = view + 2 * NEB_SITES_MAX});
    assert_true(c.s[0].r->view > view + 2 * NEB_SITES_MAX);
    assert_int_equal(crowd_run(&c, 60000, one_or_two_leads), !broken);
    assert_true(two_have_judged(&c) || !broken);
    crowd_stop(&c);
}

static void a_judged_leader_can_vote_for_the_next(void **state)
{
    (void)state;
    with_and_without(NEB_MUTANT_ask_below, a_judged_leader_is_above);
}

/* ---- what a disk says ---------------------------------------------------------------------------------- */

static bool one_fetches_the_best_log(const struct crowd *c)
{
    return c->s[1].r->state == NEB_ROUND_ELECT && c->s[1].r->ask_phase == 3;
}

static bool two_and_three_have_one(const struct crowd *c)
{
    return c->s[2].r->commit == 1 && c->s[3].r->commit == 1;
}

static bool one_is_reminded(const struct crowd *c)
{
    return c->s[1].r->proven;
}

/* What the leader, site 0, has sent: of that, site 1 gets the records alone. */
static void pass_records(struct crowd *c)
{
    struct neb_buf all = c->s[0].letters, *left = &c->s[0].letters;
    neb__buf_init(left, 1 << 20);
    for (size_t at = 0, n; at < all.len; at += n) {
        n = 8 + neb__get32(all.data + at);
        const bool lost = neb__get32(all.data + at + 4) == 1 && all.data[at + 8] != NEB_ROUND_FRAME_LOG;
        if (!lost) assert_ok(neb__buf_append(left, all.data + at, n));
    }
    neb__buf_free(&all);
}

/* `byzantine`: record 1 is committed, and record 2 is acknowledged by site 1 alone, which does not know of that commit. The votes
 * of the next view are for record 1. A LOG has it and not its certificate, so site 1 cannot lead yet, and it crashes. */
static void a_candidate_crashes(bool broken)
{
    struct crowd c;
    struct neb_buf blob;
    uint8_t length[4];
    crowd_start_by(&c, 4, (struct neb_members){1, 15, 15, 0, NEB_NO_SITE}, NEB_QUORUM_BYZANTINE);
    assert_int_equal(crowd_leader(&c, 1), 0);
    crowd_budget(&c, 0, 700);
    for (int i = 0; i < 20 && !two_and_three_have_one(&c); i++) pass_records(&c), crowd_run(&c, 100, NULL);
    assert_true(two_and_three_have_one(&c));
    crowd_line(&c, 0, 2, false), crowd_line(&c, 0, 3, false);
    crowd_budget(&c, 0, 600);
    pass_records(&c), crowd_run(&c, 100, NULL);
    const struct neb_round *r = c.s[1].r, *other = c.s[2].r;
    assert_true(r->commit == 0 && r->durable.head == 2 && other->head == 1);
    leave(&c, 0);
    for (int i = 1; i < 4; i++) /* so that site 1 is the first to look for another leader */
        solo_frame(&c.s[i], (struct neb_round_frame){.type = NEB_ROUND_FRAME_GOODBYE, .from = 0});
    assert_true(crowd_run(&c, 10000, one_fetches_the_best_log));
    leave(&c, 1);
    neb__buf_init(&blob, NEB_RECORD_MAX);
    neb__put32(length, (uint32_t)other->log[0].length);
    assert_ok(neb__buf_append(&blob, length, sizeof length));
    assert_ok(neb__buf_append(&blob, other->log[0].bytes, other->log[0].length));
    solo_frame(&c.s[1], (struct neb_round_frame){.type = NEB_ROUND_FRAME_LOG,
                                                 .from = 2,
                                                 .number = 1,
                                                 .records = 1,
                                                 .blob = blob.data,
                                                 .blob_length = blob.len});
    neb__buf_free(&blob);
    assert_true(r->state == NEB_ROUND_ELECT && r->commit == 0);
    assert_int_equal(r->durable.head, broken ? 1 : 2); /* its signature says 2 */
    solo_restart(&c.s[1], 0, (struct neb_boot_update){0});
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < i; k++)
            if (!c.up[i][k]) crowd_line(&c, i, k, true);
    assert_int_equal(crowd_run(&c, 2000, one_is_reminded), broken);
    crowd_run(&c, 20000, NULL);
    assert_int_equal(c.s[1].r->commit, 1);
    crowd_stop(&c);
}

static void a_candidate_keeps_its_log_until_it_leads(void **state)
{
    (void)state;
    with_and_without(NEB_MUTANT_forget_early, a_candidate_crashes);
}

/* Two records name updates of site 1. The checkpoint was made when they had passed site 0's update by, and before that was discarded. */
static void an_update_is_too_old(bool broken)
{
    struct solo s;
    struct neb_update_header h = {.site = 1, .c1 = 1, .tau = 1, .weight = 1, .length = 10};
    solo_start(&s);
    s.applies = true;
    for (uint8_t i = 1; i <= 2; i++) {
        h.k = i, h.b = i - 1U;
        solo_event(&s, (struct neb_event){.type = NEB_EV_UPDATE, .update = &h, .hash = {{i}}});
        solo_run(&s, 10000);
        assert_true(s.r->commit == i && s.r->cursor == i && !s.captures);
    }
    solo_restart(&s, 2, (struct neb_boot_update){.hash = {{9}}, .k = 1, .b = 0});
    solo_run(&s, 10000);
    assert_int_equal(s.r->state, NEB_ROUND_LEAD);
    solo_event(&s, (struct neb_event){.type = NEB_EV_STEP, .count = 2 * s.r->cfg.nominal});
    solo_run(&s, 60000);
    assert_int_equal(s.discards, !broken);
    assert_int_equal(s.captures, !broken);
    solo_stop(&s);
}

static void a_site_contributes_again_after_a_start(void **state)
{
    (void)state;
    with_and_without(NEB_MUTANT_keep_open, an_update_is_too_old);
}

/* SURVIVORS names updates that may lie on this site's disk since the time before its start. Nobody else may have them any more. */
static void a_sum_has_survivors(bool broken)
{
    struct solo s;
    solo_create_secure(&s, 1, (struct neb_members){1, 15, 15, 15, NEB_NO_SITE});
    solo_run(&s, 1000);
    struct neb_record *rec = neb__record_new_sum(3, 0, 0);
    rec->type = NEB_RECORD_SURVIVORS;
    rec->index = 2, rec->c1 = 1, rec->attempt = 1;
    for (uint16_t i = 0; i < 3; i++)
        rec->update[i] = (struct neb_named){.site = i, .k = 1, .hash = {{(uint8_t)(i + 1)}}};
    neb__sum_committed(s.r, rec);
    solo_run(&s, 10000);
    assert_int_equal(s.looked, broken ? 0 : 3);
    neb__free(rec);
    solo_stop(&s);
}

static void survivors_are_looked_for_on_the_own_disk(void **state)
{
    (void)state;
    with_and_without(NEB_MUTANT_ask_before_looking, a_sum_has_survivors);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_goes_shows_the_end),
        cmocka_unit_test(who_has_everything_stays_for_the_others),
        cmocka_unit_test(who_is_left_alone_goes_at_once),
        cmocka_unit_test(a_record_that_a_leader_keeps_back_is_given),
        cmocka_unit_test(a_judged_leader_can_vote_for_the_next),
        cmocka_unit_test(a_candidate_keeps_its_log_until_it_leads),
        cmocka_unit_test(a_site_contributes_again_after_a_start),
        cmocka_unit_test(survivors_are_looked_for_on_the_own_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
