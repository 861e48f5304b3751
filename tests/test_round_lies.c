/* test_round_lies.c: frames that say what is not so. A core checks what it is told before it acts on it: nothing of this may
 * halt it, displace what it has acknowledged, or become part of its log. */
#include "check.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "solo.h"

#include <string.h>

static const struct neb_members two = {1, 3, 3, 1, NEB_NO_SITE};

/* A LOG frame of `from` with one record, said to be committed. */
static void tell(struct solo *s, unsigned from, uint32_t epoch, uint64_t index, const uint8_t *bytes,
                 size_t n)
{
    struct neb_buf blob;
    uint8_t length[4];
    neb__buf_init(&blob, 1 << 20);
    neb__put32(length, (uint32_t)n);
    assert_ok(neb__buf_append(&blob, length, 4));
    assert_ok(neb__buf_append(&blob, bytes, n));
    solo_frame(s, (struct neb_frame){.type = NEB_FRAME_LOG,
                                     .from = (uint16_t)from,
                                     .epoch = epoch,
                                     .commit = index,
                                     .number = index,
                                     .records = 1,
                                     .blob = blob.data,
                                     .blob_length = blob.len});
    neb__buf_free(&blob);
}

static void tell_record(struct solo *s, unsigned from, uint32_t epoch, struct neb_record rec)
{
    struct neb_buf b;
    neb__buf_init(&b, NEB_RECORD_MAX);
    if (!rec.index) rec.index = s->r->commit + 1, rec.prev = *neb__log_hash(s->r, s->r->commit);
    if (!rec.epoch) rec.epoch = s->r->roster.epoch;
    if (!rec.view) rec.view = s->r->view;
    assert_ok(neb__record_encode(&rec, &b));
    tell(s, from, epoch, rec.index, b.data, b.len);
    neb__buf_free(&b);
}

static void give_budget(struct solo *s, uint64_t permille)
{
    struct neb_order o =
        solo_order(s, (struct neb_order){.op = NEB_OP_BUDGET, .value = permille}, NEB_BY_OPERATOR);
    solo_give(s, &o);
}

/* Of a member or not: bytes that are no record, one of another index, a version that is not the cells', a parcel of one who
 * does not train, a roster that nobody ordered. */
static void a_record_must_follow_from_the_log(void **state)
{
    (void)state;
    struct solo s;
    solo_start(&s);
    give_budget(&s, 300);
    assert_int_equal(s.r->commit, 1);
    const struct neb_hash commit = *neb__log_hash(s.r, 1);
    struct neb_members mine = {2, 33, 32, 32, NEB_NO_SITE};
    for (int way = 0; way < 12; way++) {
        unsigned from = way % 2 ? 1 : 5;
        uint32_t epoch = way % 4 < 2 ? 1 : 9; /* as it says */
        tell(&s, from, epoch, (uint64_t)(way % 3), (const uint8_t *)"\7", 1);
        tell_record(&s, from, epoch, (struct neb_record){.type = NEB_RECORD_ROSTER, .roster = mine});
        tell_record(&s, from, epoch, (struct neb_record){.type = NEB_RECORD_ROUND, .c1 = 1, .v = 7});
        tell_record(&s, from, epoch, (struct neb_record){.type = NEB_RECORD_ROUND, .c1 = 2});
        tell_record(&s, from, epoch, (struct neb_record){.type = NEB_RECORD_END, .epoch = 9});
        tell_record(&s, from, epoch,
                    (struct neb_record){.type = NEB_RECORD_ORDER,
                                        .ordered = true,
                                        .order = {.op = NEB_OP_BUDGET,
                                                  .value = 1,
                                                  .epoch = 1,
                                                  .index = 1,
                                                  .head = commit,
                                                  .signer = NEB_BY_OPERATOR}});
        tell_record(&s, 5, 1, (struct neb_record){.type = NEB_RECORD_END});             /* no member */
        tell_record(&s, 5, 9, (struct neb_record){.type = NEB_RECORD_END, .index = 1}); /* … cannot halt it */
        struct neb_round_status st = solo_status(&s);
        assert_true(st.commit == 1 && st.head == 1 && st.state == NEB_ROUND_LEAD && !s.halts);
        assert_true(st.roster.epoch == 1 && st.roster.members == 3 && st.budget == 300);
    }
    tell_record(&s, 1, 1, (struct neb_record){.type = NEB_RECORD_END}); /* this one is in order */
    assert_int_equal(solo_status(&s).commit, 2);
    solo_stop(&s);
}

/* What a site has acknowledged stays, whatever a frame of one byte says. */
static void acknowledged_records_are_not_displaced(void **state)
{
    (void)state;
    struct solo s[2];
    pair_start(s, two);
    struct neb_order o =
        solo_order(&s[0], (struct neb_order){.op = NEB_OP_BUDGET, .value = 300}, NEB_BY_OPERATOR);
    solo_event(&s[0], (struct neb_event){.type = NEB_EV_OPERATOR, .order = &o});
    deliver(&s[0]);
    solo_run(&s[1], 100);
    assert_true(s[1].r->head == 1 && s[1].r->disk_head == 1 && s[1].r->commit == 0);
    for (unsigned from = 0; from < 6; from++) {
        tell(&s[1], from, 1, 1, (const uint8_t *)"\7", 1);
        tell_record(&s[1], from, 1,
                    (struct neb_record){.type = NEB_RECORD_ROUND, .c1 = 1, .v = 3, .index = 1});
        assert_true(s[1].r->head == 1 && s[1].r->disk_head == 1);
    }
    pair_run(s, 2000);
    assert_true(solo_status(&s[0]).commit == 1 && solo_status(&s[1]).commit == 1 && !s[1].halts);
    for (int i = 0; i < 2; i++) solo_stop(&s[i]);
}

/* A member whose committed record names another one before it than this site has committed: two histories, and nobody here can
 * know which is the run's. */
static void another_history_stops_the_site(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) {
        struct solo s;
        solo_start(&s);
        give_budget(&s, 300);
        struct neb_record rec = {.type = NEB_RECORD_END, .index = way ? 2 : 1, .prev = {{1}}};
        tell_record(&s, 1, 1, rec);
        assert_true(s.halts == 1 && solo_status(&s).state == NEB_ROUND_HALTED);
        solo_stop(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_must_follow_from_the_log),
        cmocka_unit_test(acknowledged_records_are_not_displaced),
        cmocka_unit_test(another_history_stops_the_site),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
