/* test_round_core.c: the round protocol's core, driven by hand: one core alone (a survivor with two votes,
 * which leads itself), or two that get each other's frames. The simulator tests many of them together. */
#include "check.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "solo.h"

#include <stdio.h>
#include <string.h>

/* Another roster of this epoch, by the operator's own hand. */
static void solo_conflict(struct solo *s)
{
    struct neb_members other = solo_status(s).roster;
    other.heavy = NEB_NO_SITE;
    struct neb_order o = solo_order(
        s, (struct neb_order){.op = NEB_OP_FORCE, .epoch = other.epoch, .roster = other}, NEB_BY_OPERATOR);
    solo_frame(s, (struct neb_round_frame){.type = NEB_ROUND_FRAME_FORCE, .from = 1, .order = o});
}

/* A core asks for an update that others are said to have. It waits for an update that is on its way, and does
 * not ask for it again at once. It does not fetch an applied update because of an old report. */
static void updates_are_not_fetched_twice(void **state)
{
    (void)state;
    struct solo s;
    const struct neb_hash hash = {{7}}, applied = {{9}};
    uint64_t refused = 0;
    solo_start(&s);
    solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = 1});
    neb__core_update_heard(s.r, 1, &hash, &refused)->have = neb__bit(1);
    solo_run(&s, s.r->cfg.fetch_ms + 200);
    assert_int_equal(neb__core_update(s.r, &hash, false)->fetch_from, 1);
    solo_event(&s, (struct neb_event){.type = NEB_EV_COMING, .site = 1, .hash = hash});
    solo_run(&s, s.r->cfg.fetch_ms + 500);
    const struct neb_core_update *p = neb__core_update(s.r, &hash, false);
    assert_true(p->fetch_from == NEB_NO_SITE && !p->lack);
    solo_run(&s, s.r->cfg.fetch_ms);
    assert_int_equal(neb__core_update(s.r, &hash, false)->fetch_from, 1); /* it did not arrive */

    struct neb_core_entry *log = s.r->log, entry = {.record = neb__record_new(1)};
    uint64_t cursor = s.r->cursor;
    entry.record->type = NEB_RECORD_ROUND;
    entry.record->update[0].hash = applied;
    s.r->log = &entry, s.r->cursor = 1;
    assert_null(neb__core_update_heard(s.r, 1, &applied, &refused));
    assert_non_null(neb__core_update_heard(s.r, 1, &hash, &refused));
    s.r->log = log, s.r->cursor = cursor;
    neb__free(entry.record);
    solo_stop(&s);
}

/* A site that has just started may have no line yet. It does not take its updates for lost, and asks once there is one. */
static void nobody_in_reach_is_no_answer(void **state)
{
    (void)state;
    struct solo s;
    const struct neb_hash hash = {{7}};
    solo_start(&s);
    neb__core_update(s.r, &hash, true)->needed = true;
    solo_run(&s, 5 * s.r->cfg.fetch_ms);
    assert_false(neb__core_update(s.r, &hash, false)->vain);
    solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = 1});
    solo_run(&s, s.r->cfg.fetch_ms + 200);
    assert_int_equal(neb__core_update(s.r, &hash, false)->fetch_from, 1);
    assert_false(neb__core_update(s.r, &hash, false)->vain);
    solo_run(&s, s.r->cfg.fetch_ms);
    assert_true(neb__core_update(s.r, &hash, false)->vain);
    solo_stop(&s);
}

/* A neighbour once asked for an update that this site needs now. The neighbour may have it by now, or get it from others, and is asked. */
static void who_asked_for_an_update_may_have_it_later(void **state)
{
    (void)state;
    struct solo s;
    const struct neb_hash hash = {{7}};
    solo_start(&s);
    solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = 1});
    struct neb_core_update *p = neb__core_update(s.r, &hash, true);
    p->lack = neb__bit(1);
    neb__core_look_for(s.r, p);
    solo_event(&s, (struct neb_event){.type = NEB_EV_NO_UPDATE, .site = NEB_NO_SITE, .hash = hash});
    solo_run(&s, 200);
    assert_int_equal(neb__core_update(s.r, &hash, false)->fetch_from, 1);
    solo_stop(&s);
}

/* A cell takes long over a slow line. A peer that was asked for a cell is not asked again while it may be
 * sending it; a peer that cannot give it says so. A root that has left the table of the newest still proves a
 * cell that was long on its way. */
static void cells_are_waited_for(void **state)
{
    (void)state;
    struct solo s;
    struct neb_hash name;
    solo_start(&s);
    solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = 1});
    s.r->cell[0].fetching = true;
    solo_run(&s, 7 * s.r->cfg.fetch_ms);
    assert_int_equal(s.cells_asked, 1);
    neb__round_cell_name(0, &name);
    solo_event(&s, (struct neb_event){.type = NEB_EV_NO_UPDATE, .site = 1, .hash = name});
    solo_run(&s, s.r->cfg.fetch_ms + 200);
    assert_int_equal(s.cells_asked, 2);
    solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_DOWN, .site = 1});
    solo_event(
        &s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = 1}); /* the question was lost with the link */
    solo_run(&s, 4 * s.r->cfg.fetch_ms + 200);
    assert_int_equal(s.cells_asked, 3);
    s.r->whole = false;
    bool wrong;
    for (uint64_t i = 1; i <= 200; i++) {
        neb__root_own(s.r, i, &name);
        assert_true(neb__root_find(s.r, i, &name)->trusted);
        assert_true(neb__root_trusted(s.r, 1, &name, &wrong));
    }
    assert_false(neb__root_trusted(s.r, 1, &(struct neb_hash){{1}}, &wrong));
    assert_true(wrong);
    solo_stop(&s);
}

/* Site 1 gives updates and says nothing; site 2 catches up itself and says at once that it has no cell, or sends one that is not
 * newer, or one whose root nobody trusts. Site 1 is asked for the cell, also while it is silent. */
static void who_has_no_cell_is_not_asked_before_others(void **state)
{
    (void)state;
    for (int way = 0; way < 4; way++) {
        struct solo s;
        struct neb_hash name, hash = {{7}};
        solo_create(&s, 0, (struct neb_members){1, 7, 1, 7, NEB_NO_SITE});
        for (uint16_t i = 1; i < 3; i++)
            solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = i});
        solo_run(&s, 10000);
        struct neb_core_cell *cell = &s.r->cell[0];
        neb__round_cell_name(0, &name);
        s.r->peer[1].owed = s.now - 2 * s.r->cfg.fetch_ms;
        if (way == 2) { /* what it was asked for comes */
            struct neb_update_header h = {.site = 1, .k = 1, .c1 = 1};
            neb__core_update(s.r, &hash, true)->fetch_from = 1;
            solo_event(&s, (struct neb_event){.type = NEB_EV_UPDATE, .update = &h, .hash = hash});
            assert_int_equal(s.r->peer[1].owed, 0);
        }
        cell->fetching = true;
        solo_run(&s, 200);
        assert_int_equal(cell->asked, neb__bit(way == 2 ? 1 : 2));
        if (way == 0) solo_event(&s, (struct neb_event){.type = NEB_EV_NO_UPDATE, .site = 2, .hash = name});
        if (way == 1) solo_event(&s, (struct neb_event){.type = NEB_EV_CELL, .site = 2});
        if (way == 3)
            solo_event(&s, (struct neb_event){
                               .type = NEB_EV_CELL, .site = 2, .version = 1, .index = 1, .root = {{9}}});
        s.r->peer[1].owed = s.now - 2 * s.r->cfg.fetch_ms;
        solo_run(&s, 2 * s.r->cfg.fetch_ms + 200);
        assert_int_equal(cell->asked, neb__bit(1));
        if (way == 2) { /* it has none either: then the other one */
            solo_event(&s, (struct neb_event){.type = NEB_EV_NO_UPDATE, .site = 1, .hash = name});
            solo_run(&s, s.r->cfg.fetch_ms + 200);
            assert_int_equal(cell->asked, neb__bit(2));
        }
        solo_stop(&s);
    }
}

/* Sites 1 and 3 never answer, and site 2 has no cell at first. When the others have had their time, it is asked again before them. */
static void who_does_not_answer_has_its_turn_behind_the_others(void **state)
{
    (void)state;
    static const uint16_t turns[] = {1, 2, 3, 2};
    struct solo s;
    struct neb_hash name;
    solo_create(&s, 0, (struct neb_members){1, 15, 1, 15, NEB_NO_SITE});
    for (uint16_t i = 1; i < 4; i++) solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = i});
    solo_run(&s, 10000);
    neb__round_cell_name(0, &name);
    struct neb_core_cell *cell = &s.r->cell[0];
    cell->fetching = true;
    for (int asked = 1; asked <= 4; asked++) {
        for (int i = 0; i < 1000 && s.cells_asked < asked; i++) solo_run(&s, 100);
        assert_int_equal(s.cells_asked, asked);
        assert_int_equal(cell->fetch_from, turns[asked - 1]);
        if (asked == 2) solo_event(&s, (struct neb_event){.type = NEB_EV_NO_UPDATE, .site = 2, .hash = name});
    }
    solo_stop(&s);
}

/* Who has left says so. It may still be linked, but whoever lacks a cell asks those that stay, also one that had none at first. */
static void who_has_said_goodbye_is_asked_last(void **state)
{
    (void)state;
    struct solo s;
    struct neb_hash name;
    solo_create(&s, 0, (struct neb_members){1, 7, 1, 7, NEB_NO_SITE});
    for (uint16_t i = 1; i < 3; i++) solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = i});
    solo_run(&s, 10000);
    solo_frame(&s, (struct neb_round_frame){.type = NEB_ROUND_FRAME_GOODBYE, .from = 1});
    neb__round_cell_name(0, &name);
    struct neb_core_cell *cell = &s.r->cell[0];
    cell->fetching = true;
    for (int turn = 0; turn < 3; turn++) {
        solo_run(&s, 2 * s.r->cfg.fetch_ms + 200);
        assert_int_equal(cell->asked, neb__bit(2));
        solo_event(&s, (struct neb_event){.type = NEB_EV_NO_UPDATE, .site = 2, .hash = name});
    }
    solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_DOWN, .site = 2});
    solo_run(&s, 2 * s.r->cfg.fetch_ms + 200);
    assert_int_equal(cell->asked, neb__bit(1));
    solo_stop(&s);
}

/* A follower that leaves the end of the run tells the others. */
static void who_leaves_the_end_says_goodbye(void **state)
{
    (void)state;
    struct solo s[2];
    pair_start(s, (struct neb_members){1, 3, 3, 0, NEB_NO_SITE});
    struct neb_order end = solo_order(&s[0], (struct neb_order){.op = NEB_OP_END}, NEB_BY_OPERATOR);
    solo_event(&s[0], (struct neb_event){.type = NEB_EV_OPERATOR, .order = &end});
    for (int i = 0; i < 600 && !s[1].r->paused_end; i++) pair_run(s, 100);
    assert_true(s[0].r->ended && s[1].r->paused_end);
    assert_true(s[0].r->peer[1].gone);
    for (int i = 0; i < 2; i++) solo_stop(&s[i]);
}

/* A leader knows from its time as a follower that a root is trusted. The only other voter that signed it has lost its disk since:
 * it gets the root with its own consent. */
static void a_trusted_root_is_for_those_who_cannot_sign_it(void **state)
{
    (void)state;
    struct solo s[2];
    const struct neb_hash root = {{5}};
    pair_start(s, (struct neb_members){1, 3, 3, 3, NEB_NO_SITE});
    struct neb_round *r = s[neb__core_leads(s[1].r)].r;
    const unsigned other = 1 - r->self;
    neb__root_own(r, 1, &root);
    struct neb_core_root *at = neb__root_find(r, 1, &root);
    at->trusted = true;
    for (int lost = 0; lost < 2; lost++) {
        r->peer[other].rootless = lost;
        neb__root_own(r, 1, &root);
        assert_int_equal(at->consent, lost ? neb__bit(other) : 0);
    }
    for (int i = 0; i < 2; i++) solo_stop(&s[i]);
}

/* Behind the end a member comes back: the time to wait for it begins anew, once. */
static void who_comes_back_behind_the_end_is_waited_for(void **state)
{
    (void)state;
    struct solo s;
    solo_start(&s);
    const int64_t first = s.r->final_since = s.now;
    for (int again = 0; again < 2; again++) {
        solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_DOWN, .site = 1});
        solo_run(&s, 1000);
        solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = 1});
        assert_int_equal(s.r->final_since, first + 1000);
    }
    solo_stop(&s);
}

/* A leader that is shown another roster of its own epoch, signed by the operator, must not commit any more. A member's word
 * for one is not enough. */
static void two_rosters_of_one_epoch_stop_commits(void **state)
{
    (void)state;
    for (int conflict = 0; conflict < 2; conflict++) {
        struct solo s;
        solo_start(&s);
        if (conflict) solo_conflict(&s);
        if (!conflict)
            solo_frame(
                &s, (struct neb_round_frame){.type = NEB_ROUND_FRAME_GOODBYE, .from = 1, .roster_id = 12345});
        struct neb_order o = solo_order(&s, (struct neb_order){.op = NEB_OP_ADMIT, .site = 2, .flags = 1}, 0);
        solo_give(&s, &o);
        struct neb_round_status st = solo_status(&s);
        assert_int_equal(st.state, NEB_ROUND_LEAD);
        assert_int_equal(st.commit, conflict ? 0 : 1);
        assert_int_equal(s.notes, conflict);
        assert_int_equal(st.roster.epoch, conflict ? 1 : 2);
        solo_stop(&s);
    }
}

static void orders_are_signed_and_hold_once(void **state)
{
    (void)state;
    struct solo s;
    solo_start(&s);
    struct neb_order budget = solo_order(&s, (struct neb_order){.op = NEB_OP_BUDGET, .value = 300}, 1);
    solo_give(&s, &budget); /* by a site that may not */
    assert_true(solo_status(&s).commit == 0 && s.notes == 1);
    budget = solo_order(&s, budget, NEB_BY_OPERATOR);
    struct neb_order changed = budget;
    changed.value = 900;
    solo_give(&s, &changed); /* the signature is of another value */
    assert_true(solo_status(&s).commit == 0 && s.notes == 2);
    solo_give(&s, &budget);
    assert_true(solo_status(&s).commit == 1 && solo_status(&s).budget == 300 && s.notes == 2);
    solo_give(&s, &budget); /* a second time: it names a record before the last order */
    assert_true(solo_status(&s).commit == 1 && s.notes == 3);
    struct neb_order off = solo_order(&s, (struct neb_order){.op = NEB_OP_SURVIVOR, .site = NEB_NO_SITE}, 0);
    solo_give(&s, &off); /* only the operator changes votes */
    assert_int_equal(solo_status(&s).commit, 1);
    off = solo_order(&s, off, NEB_BY_OPERATOR);
    solo_give(&s, &off);
    assert_true(solo_status(&s).commit == 2 && solo_status(&s).roster.heavy == NEB_NO_SITE);
    solo_stop(&s);
}

/* A site that leaves, or is removed by order, may have the only other copy of a committed update.
 * So its removal waits until the sites that stay have applied everything. There are two cores;
 * core 0 leads and is slow to apply. */
static void removals_wait_for_those_that_stay(void **state)
{
    (void)state;
    static const struct {
        uint8_t op;
        unsigned signer;
    } ways[] = {{NEB_OP_LEAVE, 1}, {NEB_OP_EVICT, NEB_BY_OPERATOR}};
    for (int way = 0; way < 2; way++) {
        struct solo s[2];
        const struct neb_update_header update = {.c1 = 1, .k = 1, .tau = 1, .weight = 1, .length = 10};
        for (unsigned i = 0; i < 2; i++) solo_create(&s[i], i, (struct neb_members){1, 3, 3, 1, NEB_NO_SITE});
        s[0].other = &s[1], s[1].other = &s[0], s[1].applies = true;
        for (int i = 0; i < 2; i++)
            solo_event(&s[i], (struct neb_event){.type = NEB_EV_PEER_UP, .site = (uint16_t)!i});
        pair_run(s, 10000);
        assert_int_equal(solo_status(&s[0]).state, NEB_ROUND_LEAD);
        for (int i = 0; i < 2; i++)
            solo_event(&s[i], (struct neb_event){.type = NEB_EV_UPDATE, .update = &update, .hash = {{7}}});
        pair_run(s, 2000);
        assert_true(solo_status(&s[0]).commit == 1 && solo_status(&s[0]).applied == 0);
        assert_true(solo_status(&s[1]).applied == 1);
        struct neb_order o =
            solo_order(&s[0], (struct neb_order){.op = ways[way].op, .site = 1}, ways[way].signer);
        solo_event(&s[0], (struct neb_event){.type = NEB_EV_OPERATOR, .order = &o});
        pair_run(s, 3000);
        struct neb_round_status st = solo_status(&s[0]);
        if (st.head != 1 || st.roster.members != 3) fail_msg("way %d: removed before all is applied", way);
        solo_event(&s[0], (struct neb_event){.type = NEB_EV_APPLIED, .index = 1});
        pair_run(s, 3000);
        st = solo_status(&s[0]);
        assert_true(st.applied >= 1 && st.commit == 2 && st.roster.epoch == 2);
        assert_true(st.roster.members == 1 && st.roster.voters == 1);
        for (int i = 0; i < 2; i++) solo_stop(&s[i]);
    }
}

static void force_and_adopt_name_a_history(void **state)
{
    (void)state;
    struct solo s;
    solo_start(&s);
    struct neb_members alone = {3, 1, 1, 1, NEB_NO_SITE};
    struct neb_order force = {.op = NEB_OP_FORCE, .epoch = 3, .roster = alone};
    struct neb_order early = solo_order(&s, force, NEB_BY_OPERATOR);
    struct neb_order budget = solo_order(&s, (struct neb_order){.op = NEB_OP_BUDGET, .value = 300}, 0);
    solo_give(&s, &budget);
    solo_give(&s, &early); /* this site has committed more than the order's author knew */
    assert_true(solo_status(&s).roster.epoch == 1 && s.notes == 1);
    struct neb_order other = force;
    other = solo_order(&s, other, NEB_BY_OPERATOR);
    solo_conflict(&s);
    solo_give(&s, &other); /* only an adoption chooses among contradicting rosters */
    assert_true(solo_status(&s).roster.epoch == 1 && s.notes == 3);
    struct neb_order adopt =
        solo_order(&s, (struct neb_order){.op = NEB_OP_ADOPT, .epoch = 3, .roster = alone}, NEB_BY_OPERATOR);
    solo_give(&s, &adopt);
    solo_run(&s, 10000);
    assert_true(solo_status(&s).roster.epoch == 3 && solo_status(&s).commit == 2 && !s.halts);
    struct neb_order wrong = {
        .op = NEB_OP_ADOPT, .epoch = 5, .roster = {5, 1, 1, 1, NEB_NO_SITE}, .index = 1};
    unsigned operator_id = NEB_BY_OPERATOR;
    struct neb_hash genesis = {{0}};
    wrong.signer = NEB_BY_OPERATOR;
    assert_ok(neb__order_sign(
        &wrong, &genesis, &(struct neb_seal){.arg = &operator_id, .sign = test_sign, .verify = test_verify}));
    solo_give(&s, &wrong); /* another history was adopted */
    assert_true(s.halts == 1 && solo_status(&s).state == NEB_ROUND_HALTED);
    solo_stop(&s);
}

/* A record of type ROSTER or FORCED for the place behind the log's head. */
static void encode_change(const struct solo *s, enum neb_record_type type, const struct neb_order *o,
                          struct neb_members roster, struct neb_buf *out)
{
    struct neb_record *rec = neb__record_new(0);
    assert_non_null(rec);
    rec->type = type;
    rec->ordered = o != NULL;
    if (o) *rec->order = *o;
    rec->roster = roster;
    rec->epoch = roster.epoch;
    rec->index = s->r->head + 1;
    rec->view = s->r->view ? s->r->view : 1;
    rec->prev = *neb__log_hash(s->r, s->r->head);
    neb__buf_init(out, NEB_RECORD_MAX);
    assert_ok(neb__record_encode(rec, out));
    neb__free(rec);
}

/* On the disk a record behind a change of the roster shows that the change is committed. A forced roster does not: it waits for
 * nothing. */
static void a_forced_roster_on_disk_proves_nothing(void **state)
{
    (void)state;
    const struct neb_members three = {1, 7, 7, 7, NEB_NO_SITE}, two = {2, 3, 3, 3, NEB_NO_SITE},
                             alone = {3, 1, 1, 1, NEB_NO_SITE}, pair = {4, 3, 1, 1, NEB_NO_SITE};
    struct solo s;
    struct neb_buf b;
    solo_create(&s, 0, three);
    struct neb_order o =
        solo_order(&s, (struct neb_order){.op = NEB_OP_FORCE, .epoch = 3, .roster = alone}, NEB_BY_OPERATOR);
    s.r->booted = false; /* as when the ledger is read */
    encode_change(&s, NEB_RECORD_ROSTER, NULL, two, &b);
    assert_true(neb__log_append(s.r, b.data, b.len));
    neb__buf_free(&b);
    encode_change(&s, NEB_RECORD_FORCED, &o, alone, &b);
    assert_true(neb__log_append(s.r, b.data, b.len));
    neb__buf_free(&b);
    assert_true(s.r->head == 2 && s.r->commit == 0);
    encode_change(&s, NEB_RECORD_ROSTER, NULL, pair,
                  &b); /* nobody adds this before the forced one is committed */
    assert_true(neb__log_append(s.r, b.data, b.len));
    neb__buf_free(&b);
    assert_true(s.r->head == 3 && s.r->commit == 2);
    solo_stop(&s);
}

/* The author of a forced roster did not know of a record that is committed here, so this site refuses it. Once the operator has
 * forced a newer roster, a log with the older one may be the best of a quorum, and this site takes it: unless it has the newer one's
 * record, which may be committed, or the older order is for another history. */
static void a_superseded_roster_may_stand_in_a_log(void **state)
{
    (void)state;
    enum { UNKNOWN, FORCED, IN_THE_LOG, OTHER_HISTORY, WAYS };
    for (int way = 0; way < WAYS; way++) {
        struct solo s;
        unsigned by = NEB_BY_OPERATOR;
        const struct neb_seal seal = {.arg = &by, .sign = test_sign};
        struct neb_buf record, blob;
        struct neb_hash hash;
        uint8_t length[4];
        const struct neb_members old = {3, 1, 1, 1, NEB_NO_SITE};
        solo_start(&s);
        struct neb_order early = solo_order(
            &s, (struct neb_order){.op = NEB_OP_FORCE, .epoch = 3, .roster = old}, NEB_BY_OPERATOR);
        struct neb_order budget =
            solo_order(&s, (struct neb_order){.op = NEB_OP_BUDGET, .value = 300}, NEB_BY_OPERATOR);
        solo_give(&s, &budget);
        assert_int_equal(s.r->commit, 1);
        if (way != UNKNOWN) s.r->roster = (struct neb_members){4, 3, 3, 3, 0};
        s.r->forced = way == FORCED || way == OTHER_HISTORY; /* not in the log yet */
        early.head.b[0] ^= way == OTHER_HISTORY;
        assert_ok(neb__order_sign(&early, &s.r->cfg.genesis, &seal));
        encode_change(&s, NEB_RECORD_FORCED, &early, old, &record);
        assert_ok(neb__hash(record.data, record.len, &hash));
        neb__buf_init(&blob, NEB_RECORD_MAX + 4);
        neb__put32(length, (uint32_t)record.len);
        assert_ok(neb__buf_append(&blob, length, 4));
        assert_ok(neb__buf_append(&blob, record.data, record.len));
        struct neb_round_frame f = {.number = 2, .records = 1, .blob = blob.data, .blob_length = blob.len};
        assert_int_equal(neb__log_install(s.r, &f, 2, &hash, false), way == FORCED);
        assert_int_equal(s.r->head, way == FORCED ? 2 : 1);
        assert_int_equal(s.r->roster.epoch, way == UNKNOWN ? 1 : 4);
        neb__buf_free(&record);
        neb__buf_free(&blob);
        solo_stop(&s);
    }
}

/* Another log takes the place of a forced roster's record. The roster stays in effect, and the next leader writes it again. */
static void a_forced_roster_is_written_again(void **state)
{
    (void)state;
    struct solo s;
    struct neb_buf b;
    solo_start(&s);
    const struct neb_members alone = {3, 1, 1, 1, NEB_NO_SITE};
    struct neb_order o =
        solo_order(&s, (struct neb_order){.op = NEB_OP_FORCE, .epoch = 3, .roster = alone}, NEB_BY_OPERATOR);
    encode_change(&s, NEB_RECORD_FORCED, &o, alone, &b);
    assert_true(neb__log_append(s.r, b.data, b.len));
    assert_true(s.r->roster.epoch == 3 && !s.r->forced);
    neb__log_cut(s.r, 0);
    assert_true(s.r->roster.epoch == 3 && s.r->forced && neb__order_same(&s.r->force, &o));
    solo_run(&s, 2000);
    assert_true(s.r->commit == 1 && s.r->log[0].record->type == NEB_RECORD_FORCED && !s.r->forced);
    neb__buf_free(&b);
    solo_stop(&s);
}

/* A root that arrives with a ping is trusted only with signatures of voters that form
 * a quorum. Site 0 has two votes. */
static void roots_are_trusted_by_signatures(void **state)
{
    (void)state;
    struct solo s;
    solo_start(&s);
    for (int way = 0; way < 4; way++) { /* none, a forged one, too few votes, enough */
        uint8_t b[2 * NEB_HASH_SIZE + 8] = {0};
        struct neb_round_frame_cert cert = {.site = way == 2 ? 1 : 0};
        struct neb_round_frame f = {
            .type = NEB_ROUND_FRAME_PING, .roots = 1, .certs = way ? 1 : 0, .cert = &cert};
        unsigned signer = cert.site;
        f.trusted[0].index = (uint64_t)way + 1;
        f.trusted[0].root.b[0] = 7;
        neb__put64(b + NEB_HASH_SIZE, f.trusted[0].index);
        b[NEB_HASH_SIZE + 8] = 7;
        assert_ok(test_sign(&signer, "nebula round root", b, sizeof b, cert.signature));
        if (way == 1) cert.signature[3] ^= 1;
        neb__roots_pinged(s.r, &f);
        const struct neb_core_root *at = neb__root_find(s.r, f.trusted[0].index, &f.trusted[0].root);
        assert_int_equal(at && at->trusted, way == 3);
    }
    solo_stop(&s);
}

/* Of three voters one lies and leads. It says that another one consents, and shows the signature of a second member as well:
 * that of an observer is none, that of any other is enough. */
static void an_observer_makes_no_root(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) {
        struct solo s;
        uint8_t b[2 * NEB_HASH_SIZE + 8] = {0};
        struct neb_round_frame_cert cert[2] = {{.site = 1}, {.site = 3}};
        struct neb_round_frame f = {.type = NEB_ROUND_FRAME_PING, .roots = 1, .certs = 2, .cert = cert};
        solo_create(&s, 0, (struct neb_members){1, 15, 7, 7, NEB_NO_SITE});
        neb__round_set_observers(s.r, way ? 0 : neb__bit(3));
        f.trusted[0].index = 1;
        f.trusted[0].root.b[0] = b[NEB_HASH_SIZE + 8] = 7;
        f.trusted[0].consent = neb__bit(2);
        neb__put64(b + NEB_HASH_SIZE, 1);
        for (int i = 0; i < 2; i++) {
            unsigned signer = cert[i].site;
            assert_ok(test_sign(&signer, "nebula round root", b, sizeof b, cert[i].signature));
        }
        neb__roots_pinged(s.r, &f);
        assert_int_equal(neb__root_find(s.r, 1, &f.trusted[0].root) != NULL, way == 1);
        solo_stop(&s);
    }
}

/* An empty disk was lost if others know that it held something. Its site does not vote on its own word, even
 * if the others have forgotten everything but the content of their disks. One of three sites answers. */
static void a_lost_disk_is_not_a_first_start(void **state)
{
    (void)state;
    static const struct {
        struct neb_members roster;
        uint64_t number, normal; /* in the other's answer: this site's lapse, its own normal view */
        bool lost;
    } ways[] = {{{1, 7, 7, 7, NEB_NO_SITE}, 0, 0, false},
                {{1, 7, 7, 7, NEB_NO_SITE}, 0, 65, false}, /* the others began without it */
                {{1, 7, 7, 7, NEB_NO_SITE}, 1, 65, true},
                {{1, 3, 3, 3, 0}, 0, 0, false},
                {{1, 3, 3, 3, 0}, 0, 64, true}}; /* a survivor: there is no view without its vote */
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct solo s;
        solo_create(&s, 0, ways[i].roster);
        solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = 1});
        uint8_t word[NEB_SEAL_SIZE]; /* the site's own, of its former life */
        assert_ok(neb__lapse_sign(&s.r->cfg.genesis, &s.r->cfg.seal, 0, (uint32_t)ways[i].number, word));
        for (int k = 0; k < 100; k++) {
            solo_run(&s, 100);
            struct neb_round_frame answer = (struct neb_round_frame){.type = NEB_ROUND_FRAME_HELLO_OK,
                                                                     .from = 1,
                                                                     .nonce = s.r->greet_nonce,
                                                                     .phase = (uint8_t)s.r->greet_phase,
                                                                     .flags = NEB_FLAG_INTACT,
                                                                     .number = ways[i].number,
                                                                     .view = ways[i].normal,
                                                                     .normal = ways[i].normal};
            memcpy(answer.signature, word, sizeof word);
            solo_frame(&s, answer);
        }
        assert_int_equal(solo_status(&s).state == NEB_ROUND_BOOT, ways[i].lost);
        solo_stop(&s);
    }
}

/* After a disk is lost, its site's lives count from one again. Once the site speaks under a new lapse, its
 * old lives are not a reason to doubt it. */
static void lives_of_a_lost_disk_count_anew(void **state)
{
    (void)state;
    static const struct {
        uint64_t life;
        uint32_t disk, lapse; /* the lapse on its disk, and the one under which it then speaks */
        bool forgot;
    } starts[] = {
        {1, 0, 1, false}, {2, 1, 2, false}, {1, 0, 3, true}, {2, 3, 4, false},
        {2, 4, 4, true},  {3, 3, 5, true},  {1, 6, 7, false}}; /* it got the lapse 6 and never spoke under it */
    struct solo s;
    solo_start(&s);
    solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = 1});
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        struct neb_round_frame hello = {.type = NEB_ROUND_FRAME_HELLO,
                                        .from = 1,
                                        .phase = 1,
                                        .nonce = i + 1,
                                        .lapse = starts[i].disk,
                                        .start = starts[i].life,
                                        .head = 9};
        solo_frame(&s, hello);
        if (s.r->peer[1].forgot != starts[i].forgot) fail_msg("start %zu is judged wrongly", i);
        solo_frame(&s, (struct neb_round_frame){.type = NEB_ROUND_FRAME_REPORT,
                                                .from = 1,
                                                .lapse = starts[i].lapse,
                                                .flags = NEB_FLAG_NORMAL,
                                                .normal = s.r->view});
    }
    solo_stop(&s);
}

/* The lapse of site 1 in the last answer to a greeting in `s->letters`; UINT64_MAX: there is no such
 * answer. */
static uint64_t lapse_told(const struct solo *s)
{
    static struct neb_round_frame_item items[NEB_ROUND_FRAME_LIST];
    static struct neb_round_frame_cert certs[NEB_ROUND_FRAME_CERTS];
    uint64_t told = UINT64_MAX;
    for (size_t at = 0, n; at < s->letters.len; at += 8 + n) {
        struct neb_round_frame f;
        n = neb__get32(s->letters.data + at);
        assert_ok(neb__round_frame_decode(s->letters.data + at + 8, n, items, certs, &f));
        if (f.type == NEB_ROUND_FRAME_HELLO_OK) told = f.number;
    }
    return told;
}

/* A number that a full disk could not store is forgotten in a crash. If it were told
 * before, it could be given twice. */
static void a_lapse_is_told_once_it_is_on_the_disk(void **state)
{
    (void)state;
    struct solo s;
    solo_start(&s);
    s.other = &s; /* keeps the frames that it sends */
    solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = 1});
    struct neb_round_frame hello = {
        .type = NEB_ROUND_FRAME_HELLO, .from = 1, .phase = 2, .number = 4, .nonce = 1, .start = 1};
    unsigned one = 1;
    const struct neb_seal seal = {.arg = &one, .sign = test_sign, .verify = test_verify};
    assert_ok(neb__lapse_sign(&s.r->cfg.genesis, &seal, 1, 4, hello.signature));
    s.full = true;
    solo_frame(&s, hello);
    solo_run(&s, 500);
    assert_true(lapse_told(&s) == UINT64_MAX);
    hello.phase = 1, hello.number = 0, hello.nonce = 2;
    solo_frame(&s, hello);
    solo_run(&s, 500);
    assert_true(lapse_told(&s) == 0);
    s.full = false;
    solo_run(&s, 5000);
    hello.nonce = 3;
    solo_frame(&s, hello);
    assert_true(lapse_told(&s) == 4);
    solo_stop(&s);
}

/* Records that arrive during the greeting do not make a lost disk look like one that was never lost. */
static void an_empty_disk_stays_empty_while_it_greets(void **state)
{
    (void)state;
    struct solo s, leader;
    solo_start(&leader);
    struct neb_order o =
        solo_order(&leader, (struct neb_order){.op = NEB_OP_BUDGET, .value = 300}, NEB_BY_OPERATOR);
    solo_give(&leader, &o);
    uint8_t blob[NEB_RECORD_MAX];
    const struct neb_core_entry *e = &leader.r->log[0];
    neb__put32(blob, (uint32_t)e->length);
    memcpy(blob + 4, e->bytes, e->length);
    solo_create(&s, 1, (struct neb_members){1, 3, 3, 3, 0});
    solo_run(&s, 500);
    solo_frame(&s, (struct neb_round_frame){.type = NEB_ROUND_FRAME_LOG,
                                            .commit = 1,
                                            .number = 1,
                                            .records = 1,
                                            .proof = leader.r->newest,
                                            .blob = blob,
                                            .blob_length = 4 + e->length});
    solo_run(&s, 500);
    assert_true(s.r->state == NEB_ROUND_BOOT && s.r->commit == 1);
    assert_true(s.r->durable.incarnation == 1 && !s.r->disk_head && !s.r->durable.view);
    solo_stop(&s);
    solo_stop(&leader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(updates_are_not_fetched_twice),
        cmocka_unit_test(nobody_in_reach_is_no_answer),
        cmocka_unit_test(who_asked_for_an_update_may_have_it_later),
        cmocka_unit_test(cells_are_waited_for),
        cmocka_unit_test(who_has_no_cell_is_not_asked_before_others),
        cmocka_unit_test(who_does_not_answer_has_its_turn_behind_the_others),
        cmocka_unit_test(who_has_said_goodbye_is_asked_last),
        cmocka_unit_test(who_leaves_the_end_says_goodbye),
        cmocka_unit_test(a_trusted_root_is_for_those_who_cannot_sign_it),
        cmocka_unit_test(who_comes_back_behind_the_end_is_waited_for),
        cmocka_unit_test(two_rosters_of_one_epoch_stop_commits),
        cmocka_unit_test(orders_are_signed_and_hold_once),
        cmocka_unit_test(removals_wait_for_those_that_stay),
        cmocka_unit_test(force_and_adopt_name_a_history),
        cmocka_unit_test(a_forced_roster_on_disk_proves_nothing),
        cmocka_unit_test(a_superseded_roster_may_stand_in_a_log),
        cmocka_unit_test(a_forced_roster_is_written_again),
        cmocka_unit_test(roots_are_trusted_by_signatures),
        cmocka_unit_test(an_observer_makes_no_root),
        cmocka_unit_test(a_lost_disk_is_not_a_first_start),
        cmocka_unit_test(lives_of_a_lost_disk_count_anew),
        cmocka_unit_test(a_lapse_is_told_once_it_is_on_the_disk),
        cmocka_unit_test(an_empty_disk_stays_empty_while_it_greets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
