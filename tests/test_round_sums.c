/* test_round_sums.c: a leader of secure sums, driven by hand: what it does when a site drops out, and how long it waits. */
#include "check.h"
#include "solo.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_site_without_a_link_is_not_waited_for),
        cmocka_unit_test(a_site_that_is_needed_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
