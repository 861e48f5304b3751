/* test_round_sums.c: a leader of secure sums, driven by hand: what it does when a site drops out, and how long it waits. A follower, and
 * leaders that end one attempt after the other without a result. */
#include "check.h"
#include "solo.h"
#include "base/mem.h"

#include <string.h>

enum { SITES = 4 };

/* Four sites train, and site 0 alone votes: it leads, and commits at once. */
static const struct neb_members four = {1, 15, 1, 15, NEB_NO_SITE};

/* All sites say that they are there and take part. */
static void report(struct solo *s)
{
    for (uint16_t i = 1; i < SITES; i++)
        if (s->r->peer[i].up)
            solo_frame(s, (struct neb_round_frame){
                              .type = NEB_ROUND_FRAME_REPORT, .from = i, .flags = NEB_FLAG_CONTRIBUTES});
}

static void start(struct solo *s)
{
    solo_create_secure(s, 0, four);
    for (uint16_t i = 1; i < SITES; i++) solo_event(s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = i});
    solo_run(s, 10000);
    assert_int_equal(solo_status(s).state, NEB_ROUND_LEAD);
    report(s);
}

static void offer(struct solo *s, uint16_t site)
{
    struct neb_contributor entry = {.site = site, .weight = 1};
    solo_event(s, (struct neb_event){
                      .type = NEB_EV_OFFER, .site = site, .attempt = 1, .count = 15, .offer = &entry});
}

/* The masked update of a site is here. */
static void send_update(struct solo *s, uint16_t site)
{
    struct neb_update_header h = {.site = site,
                                  .kind = NEB_UPDATE_MASKED,
                                  .c1 = 1,
                                  .k = 1,
                                  .tau = 5,
                                  .weight = 1,
                                  .tokens = 5,
                                  .attempt = 1};
    struct neb_hash hash = {{(uint8_t)(site + 1)}};
    solo_event(s, (struct neb_event){.type = NEB_EV_UPDATE, .update = &h, .hash = hash});
}

static uint8_t last_type(const struct solo *s)
{
    return s->r->commit ? s->r->log[s->r->commit - 1].record->type : 0;
}

/* Runs until the last record is of this type; returns how long that took. */
static int64_t wait_for(struct solo *s, uint8_t type, int64_t limit)
{
    int64_t begin = s->now;
    while (last_type(s) != type && s->now < begin + limit) {
        report(s);
        solo_run(s, 100);
    }
    assert_int_equal(last_type(s), type);
    return s->now - begin;
}

static void drop(struct solo *s, uint16_t site)
{
    solo_event(s, (struct neb_event){.type = NEB_EV_PEER_DOWN, .site = site});
}

/* A site that is linked is waited for, for a round's time. One that has lost its link is not, at either step. */
static void a_site_without_a_link_is_not_waited_for(void **state)
{
    (void)state;
    for (int away = 0; away < 2; away++) {
        struct solo s;
        start(&s);
        const int64_t round = s.r->cfg.round_ms;
        for (uint16_t i = 0; i < SITES - 1; i++) offer(&s, i);
        if (away) drop(&s, SITES - 1);
        int64_t took = wait_for(&s, NEB_RECORD_OPEN, 4 * round);
        assert_true(away ? took <= 200 : took >= round - 200);
        solo_stop(&s);

        start(&s);
        for (uint16_t i = 0; i < SITES; i++) offer(&s, i);
        assert_true(wait_for(&s, NEB_RECORD_OPEN, 4 * round) <= 200);
        for (uint16_t i = 0; i < SITES - 1; i++) send_update(&s, i);
        if (away) drop(&s, SITES - 1);
        took = wait_for(&s, NEB_RECORD_SURVIVORS, 4 * round);
        assert_true(away ? took <= 200 : took >= round - 200);
        assert_int_equal(s.r->log[s.r->commit - 1].record->updates, SITES - 1);
        solo_stop(&s);
    }
}

/* Its update may be needed: then it is waited for, link or no link, and nothing is given up at once. */
static void a_site_that_is_needed_is_waited_for(void **state)
{
    (void)state;
    struct solo s;
    start(&s);
    const int64_t round = s.r->cfg.round_ms;
    for (uint16_t i = 0; i < SITES; i++) offer(&s, i);
    (void)wait_for(&s, NEB_RECORD_OPEN, 4 * round);
    for (uint16_t i = 0; i < SITES - 2; i++) send_update(&s, i);
    drop(&s, SITES - 1);
    for (int64_t t = 0; t < round; t += 100) report(&s), solo_run(&s, 100);
    assert_int_equal(last_type(&s), NEB_RECORD_OPEN);
    send_update(&s, SITES - 1); /* through another member */
    assert_true(wait_for(&s, NEB_RECORD_SURVIVORS, 4 * round) <= round);
    solo_stop(&s);
}

enum end { RESULT, EMPTY, VOID };

/* A record of leader `by` that ends an attempt so is committed. */
static void append_end(struct solo *s, unsigned by, enum end how)
{
    struct neb_round *r = s->r;
    const uint32_t updates = how == VOID ? 0 : 3;
    struct neb_record *rec = neb__record_new_sum(updates, 0, how == RESULT ? 3 : 0);
    struct neb_buf b;
    neb__buf_init(&b, NEB_RECORD_MAX);
    rec->type = how == VOID ? NEB_RECORD_VOID : NEB_RECORD_ROUND;
    rec->epoch = r->roster.epoch;
    rec->view = 64 * (r->head + 1) + by;
    rec->index = r->head + 1;
    rec->prev = *neb__log_hash(r, r->head);
    rec->c1 = 1;
    rec->attempt = 1;
    rec->owner = NEB_NO_SITE;
    for (uint16_t i = 0; i < updates; i++)
        rec->update[i] = (struct neb_named){.site = i,
                                            .k = 1,
                                            .weight = 1,
                                            .tau = 1,
                                            .length = 1,
                                            .hash = {{(uint8_t)(i + 1)}},
                                            .reject = how == EMPTY ? NEB_REJECT_VOID : NEB_REJECT_NONE};
    assert_ok(neb__record_encode(rec, &b));
    assert_true(neb__log_append(r, b.data, b.len));
    neb__free(rec);
    neb__buf_free(&b);
}

/* This leader is heard, and shows with its certificate that the records here are committed. */
static void shows(struct solo *s, unsigned leader)
{
    struct neb_round *r = s->r;
    r->commit = r->head;
    r->now += 1000;
    r->leader_heard = r->now;
    r->state = NEB_ROUND_FOLLOW;
    r->leader = (uint16_t)leader;
    r->newest = (struct neb_certificate){.n = 3, .view = 64 * (r->head + 1) + leader};
    r->elect_at = r->now + 100000;
    neb__idle_tick(r);
}

/* An attempt has ended so under this leader, and the follower gets to know it. */
static void ends(struct solo *s, unsigned leader, enum end how)
{
    append_end(s, leader, how);
    shows(s, leader);
}

static void follow(struct solo *s, struct neb_members roster)
{
    solo_create_secure(s, 1, roster);
    s->r->now = 1000;
    ends(s, 0, RESULT); /* what a site finds when it starts is not judged */
}

static const struct neb_members four_vote = {1, 15, 15, 15, NEB_NO_SITE};

/* Four attempts in a row, before or behind SURVIVORS, cost a leader its place. Records behind that do not help it; only time does. */
static void a_leader_of_voids_alone_is_judged(void **state)
{
    (void)state;
    for (int way = EMPTY; way <= VOID + 1; way++) {
        struct solo s;
        follow(&s, four_vote);
        for (int i = 0; i < 4; i++) {
            assert_false(neb__idle_leader(s.r, 0));
            assert_true(s.r->elect_at > s.r->now);
            ends(&s, 0, way > VOID ? (enum end)(EMPTY + i % 2) : (enum end)way);
        }
        assert_true(neb__idle_leader(s.r, 0));
        assert_int_equal(s.r->elect_at, s.r->now);
        ends(&s, 2, RESULT);
        assert_true(neb__idle_leader(s.r, 0) && !neb__idle_leader(s.r, 2));
        s.r->now += 3 * 6 * s.r->cfg.idle_ms;
        assert_false(neb__idle_leader(s.r, 0));
        solo_stop(&s);
    }
}

/* A result between them shows that sums come, whoever led it, and each leader answers for its own attempts. */
static void a_result_between_voids_counts(void **state)
{
    (void)state;
    struct solo s;
    follow(&s, four_vote);
    for (int i = 0; i < 12; i++) ends(&s, 0, i % 4 == 3 ? RESULT : VOID);
    for (int i = 0; i < 12; i++) ends(&s, 0, i % 4 == 3 ? RESULT : EMPTY);
    for (int i = 0; i < 3; i++) ends(&s, 0, VOID);
    ends(&s, 2, RESULT);
    for (int i = 0; i < 3; i++) ends(&s, 0, VOID), ends(&s, 2, VOID), ends(&s, 3, EMPTY);
    for (unsigned i = 0; i < SITES; i++) assert_false(neb__idle_leader(s.r, i));
    ends(&s, 2, VOID);
    for (unsigned i = 0; i < SITES; i++) assert_int_equal(neb__idle_leader(s.r, i), i == 2);
    solo_stop(&s);
}

/* A site that was kept in the dark hears of a leader's voids from the next one, who answers for its own only. */
static void a_leader_answers_for_its_own_records(void **state)
{
    (void)state;
    struct solo s;
    follow(&s, four_vote);
    for (int i = 0; i < 4; i++) append_end(&s, 0, i % 2 ? VOID : EMPTY);
    shows(&s, 2);
    for (unsigned i = 0; i < SITES; i++) assert_int_equal(neb__idle_leader(s.r, i), i == 0);
    solo_stop(&s);
}

/* Where sites drop out every leader has nothing but voids. There is always one that may lead. */
static void judged_sites_leave_a_quorum(void **state)
{
    (void)state;
    static const struct neb_members heavy = {1, 3, 3, 3, 0}, two = {1, 3, 3, 3, NEB_NO_SITE};
    struct solo s;
    follow(&s, four_vote);
    for (int i = 0; i < 20; i++) {
        const unsigned leader = (unsigned)(i / 4 % SITES);
        ends(&s, leader, VOID);
        for (unsigned k = 0; k < SITES && i % 4 == 3; k++)
            assert_int_equal(neb__idle_leader(s.r, k), k == leader);
    }
    solo_stop(&s);
    for (int i = 0; i < 2; i++) { /* without this leader there is no quorum */
        follow(&s, i ? heavy : two);
        for (int k = 0; k < 8; k++) ends(&s, 0, VOID);
        assert_false(neb__idle_leader(s.r, 0));
        solo_stop(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_site_without_a_link_is_not_waited_for),
        cmocka_unit_test(a_site_that_is_needed_is_waited_for),
        cmocka_unit_test(a_leader_of_voids_alone_is_judged),
        cmocka_unit_test(a_result_between_voids_counts),
        cmocka_unit_test(a_leader_answers_for_its_own_records),
        cmocka_unit_test(judged_sites_leave_a_quorum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
