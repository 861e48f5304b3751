/* A forced roster and a log of a high view of the roster before it.
 *
 * Five sites, of which 3 and 4 are lost. Before that, 2 was with them in a view above that of 0 and 1. The operator forces the roster
 * of 0, 1 and 2 while 2 is out of reach, so 0 and 1 commit in views below that of site 2's log. Their records must stay, whoever is
 * away when 2 comes back. */
#include "check.h"
#include "crowd.h"
#include "round/proof.h"

#include <string.h>

static const struct neb_members five = {1, 31, 31, 31, NEB_NO_SITE}, left = {3, 7, 7, 7, NEB_NO_SITE};

static bool two_leads_far_above(const struct crowd *c)
{
    return c->s[2].r->state == NEB_ROUND_LEAD && c->s[2].r->view > 20 * NEB_SITES_MAX;
}

/* Of 0 and 1 the one that leads, and so commits first. */
static unsigned first_of(const struct crowd *c)
{
    return c->s[1].r->commit > c->s[0].r->commit;
}

static bool one_has_two(const struct crowd *c)
{
    return c->s[first_of(c)].r->commit >= 2;
}

static bool one_has_three(const struct crowd *c)
{
    return c->s[first_of(c)].r->commit >= 3;
}

static bool all_three_have_four(const struct crowd *c)
{
    for (int i = 0; i < 3; i++)
        if (c->s[i].r->commit < 4) return false;
    return true;
}

/* Everybody has record 1. Nobody reaches 0 and 1; the others are in a view far above, and 2 leads it. */
static void rise(struct crowd *c)
{
    crowd_start(c, 5, five);
    crowd_budget(c, crowd_leader(c, 0), 700);
    crowd_run(c, 3000, NULL);
    for (int i = 0; i < 5; i++) assert_int_equal(c->s[i].r->commit, 1);
    crowd_split(c, 3, false);
    for (int turn = 0; turn < 60 && !two_leads_far_above(c);
         turn++) { /* one leader after the other is cut off */
        const int old = (int)crowd_leader(c, turn % 2 ? 3 : 4);
        for (int k = 2; k < 5; k++)
            if (old >= 2 && old < 5 && k != old) crowd_line(c, k, old, false);
        crowd_run(c, 10000, two_leads_far_above);
        for (int k = 2; k < 5; k++)
            if (old >= 2 && old < 5 && k != old) crowd_line(c, k, old, true);
        crowd_run(c, 3000, NULL);
    }
    assert_int_equal(solo_status(&c->s[2]).state, NEB_ROUND_LEAD);
    crowd_run(c, 1000, NULL);
    assert_int_equal(c->s[2].r->commit, 1);
}

/* 2 leads, and has a record that nobody else has seen. Then 3 and 4 are gone. */
static void lose_two(struct crowd *c)
{
    rise(c);
    crowd_line(c, 2, 3, false), crowd_line(c, 2, 4, false);
    crowd_budget(c, 2, 500);
    assert_int_equal(c->s[2].r->head, 2);
    assert_int_equal(c->s[2].r->commit, 1);
}

/* The operator forces the roster at 0 and 1. Gives the one of them that commits it first. */
static unsigned force(struct crowd *c)
{
    struct neb_order o = solo_order(
        &c->s[0], (struct neb_order){.op = NEB_OP_FORCE, .epoch = 3, .roster = left}, NEB_BY_OPERATOR);
    for (int i = 0; i < 2; i++)
        solo_event(&c->s[i], (struct neb_event){.type = NEB_EV_OPERATOR, .order = &o});
    assert_true(crowd_run(c, 30000, one_has_two));
    return first_of(c);
}

/* `b` and 2 go on with what was committed, then all three. Nobody is taken for a liar. */
static void all_agree(struct crowd *c, unsigned b, const struct neb_hash *second,
                      const struct neb_hash *third)
{
    crowd_run(c, 60000, NULL);
    assert_true(c->s[b].r->commit >= 2 && c->s[2].r->commit >= 2);
    crowd_split(c, 7, false);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < i; k++) crowd_line(c, i, k, true);
    crowd_run(c, 30000, NULL);
    for (unsigned turn = 0; turn < 3;
         turn++) { /* an order names the last commit, so it may be refused once */
        crowd_budget(c, crowd_leader(c, 0), 300 + turn);
        crowd_run(c, 20000, all_three_have_four);
    }
    for (int i = 0; i < 3; i++) {
        const struct neb_round *r = c->s[i].r;
        assert_true(r->commit >= 3 && r->roster.epoch == 3 && !r->forced);
        assert_int_equal(r->log[1].record->type, NEB_RECORD_FORCED);
        assert_memory_equal(&r->log[1].hash, second, sizeof *second);
        if (third) assert_memory_equal(&r->log[2].hash, third, sizeof *third);
        assert_true(!c->s[i].halts && !r->guilty && r->state != NEB_ROUND_HALTED);
    }
    assert_true(solo_status(&c->s[0]).leader < 3);
}

/* One has committed the forced roster on the other's word, nobody knows of it yet, and it is away. */
static void its_record_stays(void **state)
{
    (void)state;
    struct crowd c;
    lose_two(&c);
    const unsigned a = force(&c), b = !a;
    const struct neb_round *first = c.s[a].r, *other = c.s[b].r;
    const struct neb_hash second = first->log[1].hash;
    crowd_split(&c, neb__bit(a), false);
    assert_true(first->log[1].record->view < c.s[2].r->normal && other->commit == 1 && other->head == 2);
    crowd_line(&c, (int)b, 2, true);
    all_agree(&c, b, &second, NULL);
    crowd_stop(&c);
}

/* 2 has learned that the forced roster is committed. A record behind it is on 0 and 1 only, and the one that knows that it is committed
 * is away. */
static void records_behind_it_stay(void **state)
{
    (void)state;
    struct crowd c;
    lose_two(&c);
    const uint64_t old = c.s[2].r->normal;
    const unsigned a = force(&c), b = !a;
    const struct neb_round *first = c.s[a].r, *other = c.s[b].r;
    crowd_run(&c, 1000, NULL);
    assert_true(other->commit == 2 && crowd_leader(&c, (int)b) == a);
    crowd_line(&c, (int)b, 2, true);
    crowd_run(&c, 1000, NULL);
    assert_true(c.s[2].r->commit == 2 && c.s[2].r->normal < old);
    crowd_line(&c, (int)b, 2, false);
    crowd_budget(&c, a, 900);
    assert_true(crowd_run(&c, 30000, one_has_three));
    crowd_split(&c, neb__bit(a), false);
    const struct neb_hash second = first->log[1].hash, third = first->log[2].hash;
    assert_true(first->commit == 3 && other->commit == 2 && other->head == 3);
    crowd_line(&c, (int)b, 2, true);
    all_agree(&c, b, &second, &third);
    crowd_stop(&c);
}

/* 3 and 4 were not lost, only out of the operator's reach: 2 still leads the old roster's view when it is heard again. */
static void its_old_leader_is_not_followed(void **state)
{
    (void)state;
    struct crowd c;
    rise(&c);
    const unsigned a = force(&c), b = !a;
    const struct neb_round *first = c.s[a].r, *other = c.s[b].r;
    const struct neb_hash second = first->log[1].hash;
    crowd_split(&c, neb__bit(a), false);
    assert_int_equal(c.s[2].r->state, NEB_ROUND_LEAD);
    assert_true(c.s[2].r->normal > other->view && other->commit == 1 && other->head == 2);
    crowd_line(&c, (int)b, 2, true);
    crowd_run(&c, 200, NULL);
    assert_memory_equal(&other->log[1].hash, &second, sizeof second);
    all_agree(&c, b, &second, NULL);
    crowd_stop(&c);
}

/* A second forced roster, whose author had not heard of the first one's record: a log that has the first is still better than one of the
 * old roster. */
static void the_first_of_two_stays(void **state)
{
    (void)state;
    struct crowd c;
    const struct neb_members again = {5, 7, 7, 7, NEB_NO_SITE};
    lose_two(&c);
    const unsigned a = force(&c), b = !a;
    const struct neb_hash second = c.s[a].r->log[1].hash;
    crowd_split(&c, neb__bit(a), false);
    struct neb_order o = solo_order(
        &c.s[b], (struct neb_order){.op = NEB_OP_FORCE, .epoch = 5, .roster = again}, NEB_BY_OPERATOR);
    solo_event(&c.s[b], (struct neb_event){.type = NEB_EV_OPERATOR, .order = &o});
    crowd_line(&c, (int)b, 2, true);
    crowd_run(&c, 30000, NULL);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < i; k++)
            if (!c.up[i][k]) crowd_line(&c, i, k, true);
    crowd_run(&c, 60000, NULL);
    for (int i = 0; i < 3; i++) {
        const struct neb_round *r = c.s[i].r;
        assert_true(r->commit >= 2 && !c.s[i].halts && !r->guilty);
        assert_memory_equal(&r->log[1].hash, &second, sizeof second);
    }
    crowd_stop(&c);
}

static bool two_has_a_roster(const struct crowd *c)
{
    const struct neb_round *r = c->s[2].r;
    return neb__view_joined(r) && r->head == 2 && r->durable.head == 2;
}

static bool both_have_two(const struct crowd *c)
{
    return c->s[0].r->commit >= 2 && c->s[1].r->commit >= 2;
}

/* Two rosters of one epoch contradict each other, and the operator adopts the history of 0 and 1. Its records stay, although 2 was in a
 * higher view of the other one. */
static void the_adopted_history_stays(void **state)
{
    (void)state;
    struct crowd c;
    const struct neb_members four = {1, 15, 15, 15, NEB_NO_SITE}, low = {3, 3, 3, 3, NEB_NO_SITE},
                             high = {3, 12, 12, 12, NEB_NO_SITE}, rest = {5, 7, 7, 7, NEB_NO_SITE};
    crowd_start(&c, 4, four);
    crowd_budget(&c, crowd_leader(&c, 0), 700);
    crowd_run(&c, 3000, NULL);
    crowd_split(&c, 3, false);
    for (int i = 0; i < 4; i++) {
        struct neb_order o = solo_order(
            &c.s[i], (struct neb_order){.op = NEB_OP_FORCE, .epoch = 3, .roster = i < 2 ? low : high},
            NEB_BY_OPERATOR);
        solo_event(&c.s[i], (struct neb_event){.type = NEB_EV_OPERATOR, .order = &o});
    }
    crowd_run(&c, 30000, two_has_a_roster);
    crowd_line(&c, 2, 3, false);
    assert_true(crowd_run(&c, 30000, both_have_two));
    crowd_run(&c, 1000, NULL);
    crowd_budget(&c, crowd_leader(&c, 0), 900);
    assert_true(crowd_run(&c, 30000, one_has_three));
    const unsigned a = first_of(&c), b = !a;
    const struct neb_hash third = c.s[a].r->log[2].hash;
    crowd_line(&c, 0, 1, false);
    crowd_line(&c, (int)b, 2, true);
    crowd_run(&c, 3000, NULL);
    struct neb_order o = solo_order(
        &c.s[b], (struct neb_order){.op = NEB_OP_ADOPT, .epoch = 5, .roster = rest}, NEB_BY_OPERATOR);
    solo_event(&c.s[b], (struct neb_event){.type = NEB_EV_OPERATOR, .order = &o});
    crowd_run(&c, 30000, NULL);
    assert_true(c.s[b].r->commit >= 3);
    assert_memory_equal(&c.s[b].r->log[2].hash, &third, sizeof third);
    crowd_stop(&c);
}

/* No roster was ever forced. 1 has acknowledged record 2, and its leader 0 has committed it. A liar's vote for less says that its log has a
 * forced roster, and a LOG without records follows. `ahead`: 1 knows of an order that no log has yet. */
static void a_false_claim(bool ahead)
{
    struct crowd c;
    const struct neb_members three = {1, 7, 7, 7, NEB_NO_SITE};
    crowd_start(&c, 3, three);
    const unsigned leader = crowd_leader(&c, 0), self = (leader + 1) % 3, liar = (leader + 2) % 3;
    struct solo *s = &c.s[self];
    struct neb_round *r = s->r;
    crowd_budget(&c, leader, 700);
    crowd_run(&c, 3000, NULL);
    crowd_split(&c, neb__bit(liar), false);
    crowd_budget(&c, leader, 600);
    for (int i = 0; i < 50 && (c.s[leader].r->commit < 2 || r->durable.head < 2); i++)
        crowd_run(&c, 100, NULL);
    assert_true(c.s[leader].r->commit == 2 && r->durable.head == 2);
    crowd_line(&c, (int)leader, (int)self, false);
    const uint64_t normal = r->normal;
    if (ahead) r->forced_epoch = 1;
    solo_event(s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = (uint16_t)liar});
    for (int i = 0; i < 400 && r->state != NEB_ROUND_ELECT; i++) {
        solo_run(s, 100);
        if (r->ask_phase == 1)
            solo_frame(s, (struct neb_round_frame){.type = NEB_ROUND_FRAME_ASK_OK,
                                                   .from = (uint16_t)liar,
                                                   .number = r->want_view});
    }
    assert_int_equal(r->state, NEB_ROUND_ELECT);
    struct neb_round_frame f = {
        .type = NEB_ROUND_FRAME_VOTE, .from = (uint16_t)liar, .number = r->view, .saids = 1};
    f.said[0] = (struct neb_said){.kind = NEB_SAID_VOTES,
                                  .site = (uint8_t)liar,
                                  .epoch = 1,
                                  .view = r->view,
                                  .normal = 1,
                                  .index = 1,
                                  .hash = r->log[0].hash};
    neb__vote_set_forced(&f.said[0], 1);
    unsigned who = liar;
    for (unsigned i = 0; i < 3; i++)
        if (r->lapse[i])
            f.said[0].lapses.of[f.said[0].lapses.n].site = (uint8_t)i,
            f.said[0].lapses.of[f.said[0].lapses.n++].lapse = (uint16_t)r->lapse[i];
    assert_ok(neb__said_sign(&f.said[0], &r->cfg.genesis,
                             &(struct neb_seal){.arg = &who, .sign = test_sign, .verify = test_verify}));
    solo_frame(s, f);
    solo_frame(s, (struct neb_round_frame){.type = NEB_ROUND_FRAME_LOG, .from = (uint16_t)liar, .number = 2});
    solo_run(s, 100);
    assert_true(r->state != NEB_ROUND_LEAD && r->head == 2 && r->normal == normal);
    solo_event(s, (struct neb_event){.type = NEB_EV_PEER_DOWN, .site = (uint16_t)liar});
    for (int i = 0; i < 3; i++) c.s[i].now = s->now > c.s[i].now ? s->now : c.s[i].now;
    if (ahead) r->forced_epoch = 0;
    crowd_line(&c, (int)leader, (int)self, true);
    crowd_run(&c, 60000, NULL);
    assert_true(r->commit >= 2 && c.s[leader].r->commit >= 2);
    for (int i = 0; i < 3; i++) assert_true(!c.s[i].r->guilty && !c.s[i].halts);
    crowd_stop(&c);
}

static void a_claim_to_a_forced_roster_must_be_true(void **state)
{
    (void)state;
    a_false_claim(false);
    a_false_claim(true);
}

/* Frames of that type that it has sent. */
static int sent(const struct solo *s, uint8_t type)
{
    static struct neb_round_frame_item items[NEB_ROUND_FRAME_LIST];
    static struct neb_round_frame_cert certs[NEB_ROUND_FRAME_CERTS];
    int count = 0;
    for (size_t at = 0, n; at < s->letters.len; at += 8 + n) {
        struct neb_round_frame f;
        n = neb__get32(s->letters.data + at);
        assert_ok(neb__round_frame_decode(s->letters.data + at + 8, n, items, certs, &f));
        count += f.type == type;
    }
    return count;
}

/* A roster that an operator forced may be in no record, as at the end of a run. A site that sees only a newer epoch asks, and is told: also
 * from views far below its own, and if it has committed another record in the place of the forced roster's. Who is only behind is not. */
static void who_asks_is_told(void **state)
{
    (void)state;
    struct solo s;
    solo_create(&s, 0, (struct neb_members){1, 1, 1, 1, NEB_NO_SITE});
    s.other = &s;
    solo_run(&s, 10000);
    solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = 1});
    struct neb_order o = solo_order(
        &s, (struct neb_order){.op = NEB_OP_FORCE, .epoch = 3, .roster = {3, 3, 1, 1, NEB_NO_SITE}},
        NEB_BY_OPERATOR);
    solo_event(&s, (struct neb_event){.type = NEB_EV_OPERATOR, .order = &o});
    solo_run(&s, 5000);
    assert_true(s.r->commit == 1 && s.r->forced_index == 1 && s.r->roster.epoch == 3);
    struct neb_round_frame ask = {
        .type = NEB_ROUND_FRAME_GETLOG, .from = 1, .epoch = 1, .roster_id = 7, .number = 1};
    int before = sent(&s, NEB_ROUND_FRAME_FORCE);
    solo_frame(&s, ask); /* it is behind: the record tells it */
    assert_int_equal(sent(&s, NEB_ROUND_FRAME_FORCE), before);
    solo_run(&s, 2000);
    ask.commit = 1, ask.number = 2; /* another record in its place */
    solo_frame(&s, ask);
    assert_int_equal(sent(&s, NEB_ROUND_FRAME_FORCE), before + 1);
    solo_run(&s, 2000);
    ask.view = s.r->view + NEB_VIEW_LEAP + 64;
    solo_frame(&s, ask);
    assert_int_equal(sent(&s, NEB_ROUND_FRAME_FORCE), before + 2);
    solo_run(&s, 2000);
    ask.epoch = 3, ask.view = 0, ask.roster_id = 0;
    solo_frame(&s, ask);
    assert_int_equal(sent(&s, NEB_ROUND_FRAME_FORCE), before + 2);
    before = sent(&s, NEB_ROUND_FRAME_GETLOG);
    solo_frame(&s, (struct neb_round_frame){
                       .type = NEB_ROUND_FRAME_PING, .from = 1, .epoch = 4, .commit = s.r->commit});
    assert_int_equal(sent(&s, NEB_ROUND_FRAME_GETLOG), before + 1);
    solo_stop(&s);
}

struct two_records {
    struct neb_hash hash[2];
};

static const struct neb_hash *hash_of(const void *arg, uint64_t index)
{
    return &((const struct two_records *)arg)->hash[index - 1];
}

static uint32_t forced_of(const void *arg, uint64_t index)
{
    (void)arg;
    return index > 1 ? 3 : 0; /* the second record forces a roster */
}

/* A site acknowledges a log in a view of the new roster that began without its record, and then takes the record, which was committed in
 * a lower one. Its vote is of that view, and is no lie: unless it had acknowledged the record, too. */
static void a_vote_with_a_forced_roster_is_judged_by_it(void **state)
{
    (void)state;
    const struct two_records log = {{{{1}}, {{2}}}};
    const struct neb_court c = {.head = 2, .hash = hash_of, .forced = forced_of, .log = &log};
    struct neb_said ack = {.kind = NEB_SAID_HOLDS, .view = 131, .index = 1, .hash = log.hash[0]},
                    vote = {
                        .kind = NEB_SAID_VOTES, .view = 193, .normal = 128, .index = 2, .hash = log.hash[1]};
    assert_true(neb__said_low_vote(&c, &ack, &vote));
    neb__vote_set_forced(&vote, 3);
    assert_false(neb__said_low_vote(&c, &ack, &vote));
    ack.index = 2, ack.hash = log.hash[1];
    assert_true(neb__said_low_vote(&c, &ack, &vote));
    ack.hash.b[0] = 9;
    assert_false(neb__said_low_vote(&c, &ack, &vote));
    vote.index = 1, vote.hash = log.hash[0]; /* a log that has none */
    assert_true(neb__said_low_vote(&c, &ack, &vote));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_record_stays),
        cmocka_unit_test(records_behind_it_stay),
        cmocka_unit_test(its_old_leader_is_not_followed),
        cmocka_unit_test(the_first_of_two_stays),
        cmocka_unit_test(the_adopted_history_stays),
        cmocka_unit_test(a_claim_to_a_forced_roster_must_be_true),
        cmocka_unit_test(who_asks_is_told),
        cmocka_unit_test(a_vote_with_a_forced_roster_is_judged_by_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
