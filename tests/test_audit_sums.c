/* test_audit_sums.c: what an audit finds in records of secure sums that a quorum has signed all the same. */
#include "check.h"
#include "base/mem.h"
#include "run/audit_sums.h"

#include <string.h>

enum { SITES = 4, LEAST = 3 };

struct log {
    struct neb_audit_sums *sums;
    struct neb_members roster;
    struct neb_record *open, *survivors, *result;
    struct neb_record *drop;
    uint8_t seed[SITES][2][NEB_SEED_SIZE]; /* own mask, mask key */
};

static struct neb_record *record_of(int type, uint32_t updates, uint32_t contributors, uint32_t seeds)
{
    struct neb_record *rec = neb__record_new_sum(updates, contributors, seeds);
    assert_non_null(rec);
    rec->type = (uint8_t)type;
    rec->c1 = 1;
    rec->attempt = 1;
    for (uint32_t i = 0; i < updates; i++)
        rec->update[i] =
            (struct neb_named){.site = (uint16_t)(i + 1), .tau = 5, .hash.b = {(uint8_t)(7 + i)}};
    return rec;
}

static int make(void **state)
{
    struct log *l = NEB_NEW(struct log);
    assert_non_null(l);
    l->sums = NEB_NEW(struct neb_audit_sums);
    assert_non_null(l->sums);
    l->roster = (struct neb_members){.members = 0x1e, .voters = 0x1e, .trains = 0x1e};
    l->open = record_of(NEB_RECORD_OPEN, 0, SITES, 0);
    l->open->threshold = 3;
    for (int i = 0; i < SITES; i++) {
        for (int k = 0; k < 2; k++) memset(l->seed[i][k], 16 * i + k, NEB_SEED_SIZE);
        struct neb_contributor *c = &l->open->contributor[i];
        c->site = (uint16_t)(i + 1);
        assert_ok(neb__hash(l->seed[i][0], NEB_SEED_SIZE, &c->own));
        assert_ok(neb__hash(l->seed[i][1], NEB_SEED_SIZE, &c->pair));
    }
    l->survivors = record_of(NEB_RECORD_SURVIVORS, LEAST, 0, 0); /* site 4 has dropped out */
    l->result = record_of(NEB_RECORD_ROUND, LEAST, 0, SITES);
    for (int i = 0; i < SITES; i++) memcpy(l->result->seed[i], l->seed[i][i == 3], NEB_SEED_SIZE);
    l->drop = record_of(NEB_RECORD_VOID, 0, 0, 0);
    *state = l;
    return 0;
}

static int done(void **state)
{
    struct log *l = *state;
    neb__free(l->open);
    neb__free(l->survivors);
    neb__free(l->result);
    neb__free(l->drop);
    neb__free(l->sums);
    neb__free(l);
    return 0;
}

static const char *add(struct log *l, const struct neb_record *rec)
{
    return neb__audit_sums_add(l->sums, rec, &l->roster);
}

/* The records of the next attempt, of version v. */
static void next(struct log *l, uint64_t v)
{
    struct neb_record *all[] = {l->open, l->survivors, l->result, l->drop};
    for (int i = 0; i < 4; i++) {
        all[i]->attempt++;
        all[i]->v = v;
        for (uint32_t k = 0; k < all[i]->updates; k++) all[i]->update[k].b = v;
    }
}

/* RESULT becomes VOID. */
static void empty(struct log *l)
{
    l->result->seeds = 0;
    for (int i = 0; i < LEAST; i++) l->result->update[i].reject = NEB_REJECT_VOID;
}

static void a_whole_attempt_is_in_order(void **state)
{
    struct log *l = *state;
    assert_null(add(l, l->open));
    assert_null(add(l, l->drop));
    next(l, 0);
    assert_null(add(l, l->open));
    assert_null(add(l, l->survivors));
    assert_null(add(l, l->result));
    next(l, 1);
    assert_null(add(l, l->open));
    assert_null(add(l, l->survivors));
    empty(l);
    assert_null(add(l, l->result));
    next(l, 2);
    assert_null(add(l, l->open));
}

/* Its updates have the masks of the first time: two sums with other survivors would show what one site sent. */
static void an_attempt_is_opened_once(void **state)
{
    struct log *l = *state;
    assert_null(add(l, l->open));
    assert_null(add(l, l->drop));
    assert_string_equal("opens a secure sum out of turn: its masks may have been used before",
                        add(l, l->open));
    assert_null(add(l, l->drop));
    next(l, 1);
    assert_non_null(add(l, l->open)); /* nothing has changed the cells since */
}

/* What was opened for one roster, or for other cells, is not summed for another. */
static void survivors_are_of_what_was_opened(void **state)
{
    struct log *l = *state;
    for (int way = 0; way < 5; way++) {
        memset(l->sums, 0, sizeof *l->sums);
        assert_null(add(l, l->open));
        struct neb_record *s = l->survivors;
        s->epoch += way == 0;
        s->c1 += way == 1;
        s->v += way == 2;
        s->update[1].b += way == 3;
        s->update[1].reject = way == 4 ? NEB_REJECT_NORM : NEB_REJECT_NONE;
        assert_non_null(add(l, s));
        s->epoch -= way == 0;
        s->c1 -= way == 1;
        s->v -= way == 2;
        s->update[1].b -= way == 3;
        s->update[1].reject = NEB_REJECT_NONE;
    }
}

/* All updates of a sum count, with the weights and tokens that were named, or none does. */
static void an_end_repeats_what_was_named(void **state)
{
    struct log *l = *state;
    for (int way = 0; way < 7; way++) {
        struct neb_record *end = l->result;
        const uint32_t seeds = end->seeds;
        memset(l->sums, 0, sizeof *l->sums);
        assert_null(add(l, l->open));
        assert_null(add(l, l->survivors));
        if (way == 6) end->seeds = 0; /* as if it were empty, and its updates counted */
        end->update[2].reject = way == 0 ? NEB_REJECT_NORM : NEB_REJECT_NONE;
        end->update[2].tokens += way == 1;
        end->update[2].weight += way == 2;
        end->c1 += way == 3;
        end->v += way == 4;
        end->eta += way == 5;
        assert_non_null(add(l, end));
        end->seeds = seeds;
        end->update[2].reject = NEB_REJECT_NONE;
        end->update[2].tokens -= way == 1;
        end->update[2].weight -= way == 2;
        end->c1 -= way == 3;
        end->v -= way == 4;
        end->eta -= way == 5;
    }
}

static void a_seed_that_was_not_promised(void **state)
{
    struct log *l = *state;
    assert_null(add(l, l->open));
    assert_null(add(l, l->survivors));
    memcpy(l->result->seed[3], l->seed[3][0], NEB_SEED_SIZE); /* the own mask of the site that dropped out */
    assert_string_equal("unmasks a secure sum with other seeds than were promised", add(l, l->result));
}

static void survivors_are_named_once(void **state)
{
    struct log *l = *state;
    assert_non_null(add(l, l->survivors));
    assert_null(add(l, l->open));
    assert_non_null(add(l, l->open));
    assert_null(add(l, l->survivors));
    assert_string_equal("names updates of a secure sum a second time", add(l, l->survivors));
    assert_null(add(l, l->result));
    assert_non_null(add(l, l->result)); /* it has ended */
}

static void too_few(void **state)
{
    struct log *l = *state;
    l->open->threshold = 2;
    assert_non_null(add(l, l->open));
    l->survivors->updates = 2;
    assert_string_equal("makes a secure sum of too few updates", add(l, l->survivors));
}

static void updates_that_hide_nobody(void **state)
{
    struct log *l = *state;
    assert_null(add(l, l->open));
    l->survivors->update[1].tau = 0;
    assert_non_null(add(l, l->survivors));
    l->result->update[1].hash.b[0] ^= 1;
    assert_non_null(add(l, l->result));
    l->result->attempt = 0; /* nothing masks them */
    assert_non_null(add(l, l->result));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_whole_attempt_is_in_order, make, done),
        cmocka_unit_test_setup_teardown(an_attempt_is_opened_once, make, done),
        cmocka_unit_test_setup_teardown(survivors_are_of_what_was_opened, make, done),
        cmocka_unit_test_setup_teardown(an_end_repeats_what_was_named, make, done),
        cmocka_unit_test_setup_teardown(a_seed_that_was_not_promised, make, done),
        cmocka_unit_test_setup_teardown(survivors_are_named_once, make, done),
        cmocka_unit_test_setup_teardown(too_few, make, done),
        cmocka_unit_test_setup_teardown(updates_that_hide_nobody, make, done),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
