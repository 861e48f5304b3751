/* test_round_lies.c: frames that lie. A core checks a frame before it acts on it: no lie may halt the core,
 * displace records that it has acknowledged, or become part of its log. */
#include "check.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "solo.h"

#include <string.h>

static const struct neb_members two = {1, 3, 3, 1, NEB_NO_SITE};

/* A certificate that these sites signed. */
static struct neb_certificate certify(struct solo *s, uint64_t signers, uint64_t index,
                                      const struct neb_hash *hash)
{
    struct neb_certificate c = {0};
    for (unsigned i = 0; i < 8; i++) {
        struct neb_seal seal = {.arg = &i, .sign = test_sign, .verify = test_verify};
        struct neb_said said = {.kind = NEB_SAID_HOLDS,
                                .site = (uint8_t)i,
                                .epoch = s->r->roster.epoch,
                                .view = s->r->view,
                                .normal = s->r->view,
                                .index = index,
                                .hash = *hash};
        if (!(signers & neb__bit(i))) continue;
        if (i ==
            s->self) /* under another lapse: its own signature of a record that it lacks would tell it more */
            said.lapses =
                (struct neb_lapse_table){.n = 1, .of = {{(uint8_t)i, (uint16_t)(s->r->lapse[i] + 9)}}};
        assert_ok(neb__said_sign(&said, &s->r->cfg.genesis, &seal));
        assert_true(neb__certificate_add(&c, &said));
    }
    return c;
}

/* A LOG frame of `from` with one record that is said to be committed, and that these sites certified. */
static void tell_certified(struct solo *s, unsigned from, uint32_t epoch, uint64_t index,
                           const uint8_t *bytes, size_t n, uint64_t signers)
{
    struct neb_buf blob;
    struct neb_hash hash;
    uint8_t length[4];
    neb__buf_init(&blob, 1 << 20);
    neb__put32(length, (uint32_t)n);
    assert_ok(neb__buf_append(&blob, length, 4));
    assert_ok(neb__buf_append(&blob, bytes, n));
    assert_ok(neb__hash(bytes, n, &hash));
    struct neb_round_frame f = {.type = NEB_ROUND_FRAME_LOG,
                                .from = (uint16_t)from,
                                .epoch = epoch,
                                .commit = index,
                                .number = index,
                                .records = 1,
                                .blob = blob.data,
                                .blob_length = blob.len};
    if (signers && index) f.proof = certify(s, signers, index, &hash);
    solo_frame(s, f);
    neb__buf_free(&blob);
}

static void tell(struct solo *s, unsigned from, uint32_t epoch, uint64_t index, const uint8_t *bytes,
                 size_t n)
{
    tell_certified(s, from, epoch, index, bytes, n, 0);
}

static void tell_signed(struct solo *s, unsigned from, uint32_t epoch, struct neb_record rec,
                        uint64_t signers)
{
    struct neb_buf b;
    neb__buf_init(&b, NEB_RECORD_MAX);
    if (!rec.index) rec.index = s->r->commit + 1, rec.prev = *neb__log_hash(s->r, s->r->commit);
    if (!rec.epoch) rec.epoch = s->r->roster.epoch;
    if (!rec.view) rec.view = s->r->view;
    assert_ok(neb__record_encode(&rec, &b));
    tell_certified(s, from, epoch, rec.index, b.data, b.len, signers);
    neb__buf_free(&b);
}

static void tell_record(struct solo *s, unsigned from, uint32_t epoch, struct neb_record rec)
{
    tell_signed(s, from, epoch, rec, 1); /* site 0 alone is a quorum of a lone core */
}

static void give_budget(struct solo *s, uint64_t permille)
{
    struct neb_order o =
        solo_order(s, (struct neb_order){.op = NEB_OP_BUDGET, .value = permille}, NEB_BY_OPERATOR);
    solo_give(s, &o);
}

/* Lies of a member, or of a stranger: bytes that are not a record, a record of another index, a version that
 * the cells do not have, an update of a site that does not train, a roster that nobody ordered. */
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
                                        .order = &(struct neb_order){.op = NEB_OP_BUDGET,
                                                                     .value = 1,
                                                                     .epoch = 1,
                                                                     .index = 1,
                                                                     .head = commit,
                                                                     .signer = NEB_BY_OPERATOR}});
        tell_signed(&s, from, epoch, (struct neb_record){.type = NEB_RECORD_END},
                    0); /* nobody certified it */
        tell_signed(&s, from, epoch, (struct neb_record){.type = NEB_RECORD_END}, 2);  /* … too few */
        tell_signed(&s, from, epoch, (struct neb_record){.type = NEB_RECORD_END}, 32); /* … a stranger */
        tell_signed(&s, from, 1, (struct neb_record){.type = NEB_RECORD_END, .index = 1},
                    2); /* cannot halt it */
        struct neb_round_status st = solo_status(&s);
        assert_true(st.commit == 1 && st.head == 1 && st.state == NEB_ROUND_LEAD && !s.halts);
        assert_true(st.roster.epoch == 1 && st.roster.members == 3 && st.budget == 300);
    }
    tell_record(&s, 1, 1, (struct neb_record){.type = NEB_RECORD_END}); /* this record is valid */
    assert_int_equal(solo_status(&s).commit, 2);
    solo_stop(&s);
}

/* Records that a site has acknowledged stay, whatever a frame of one byte says. */
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

/* A liar may show a certified record of an older view after this site has acknowledged another one in a newer view, or while
 * this site starts. Two acknowledgements of one view would convict it, so it leaves the view. */
static void a_displaced_site_acknowledges_no_second_record(void **state)
{
    (void)state;
    for (int starting = 0; starting < 2; starting++) {
        struct solo s[2];
        pair_start(s, two);
        struct neb_order o =
            solo_order(&s[0], (struct neb_order){.op = NEB_OP_BUDGET, .value = 300}, NEB_BY_OPERATOR);
        solo_event(&s[0], (struct neb_event){.type = NEB_EV_OPERATOR, .order = &o});
        deliver(&s[0]);
        solo_run(&s[1], 100);
        struct neb_round *r = s[1].r;
        const uint64_t view = r->view;
        assert_true(r->disk_head == 1 && r->commit == 0 && r->durable.normal == view);
        if (starting) r->state = NEB_ROUND_BOOT, r->greet_phase = 1;
        tell_signed(
            &s[1], 0, 1,
            (struct neb_record){.type = NEB_RECORD_END, .index = 1, .epoch = 1, .view = starting ? view : 1},
            3);
        assert_true(r->commit == 1 && r->log[0].record->type == NEB_RECORD_END && !s[1].halts);
        assert_true(r->view > view && r->normal <= view);
        for (int i = 0; i < 2; i++) solo_stop(&s[i]);
    }
}

static void say(struct solo *s, unsigned site, struct neb_said *said)
{
    struct neb_seal seal = {.arg = &site, .sign = test_sign, .verify = test_verify};
    said->site = (uint8_t)site;
    said->epoch = s->r->roster.epoch;
    assert_ok(neb__said_sign(said, &s->r->cfg.genesis, &seal));
}

/* A leader that begins a view with a shorter log than the best of its votes lies, unless it did so to carry out an operator's
 * roster that this log lacked. That holds for sites, too, that hear of it when the roster has long been in the log. */
static void a_forced_start_convicts_nobody(void **state)
{
    (void)state;
    struct solo s;
    solo_start(&s);
    struct neb_order o = solo_order(
        &s, (struct neb_order){.op = NEB_OP_FORCE, .epoch = 2, .roster = {2, 3, 3, 3, 0}}, NEB_BY_OPERATOR);
    solo_give(&s, &o);
    const struct neb_record *rec = s.r->log[0].record;
    assert_true(s.r->commit == 1 && !s.r->forced && rec->type == NEB_RECORD_FORCED);
    for (int has = 0; has < 2; has++) {
        struct neb_said said[3] = {{.kind = NEB_SAID_STARTS, .view = rec->view + 64}};
        said[0].normal = said[0].view;
        for (unsigned i = 0; i < 2; i++) {
            said[1 + i] = (struct neb_said){
                .kind = NEB_SAID_VOTES, .view = said[0].view, .normal = 1, .index = 5, .hash = {{5}}};
            neb__vote_set_forced(&said[1 + i], has ? 2 : 0);
            say(&s, i, &said[1 + i]);
        }
        assert_true(neb__votes_hash(&said[1], 2, &said[0].more));
        say(&s, 1, &said[0]);
        neb__guilt_look(s.r, said, 3);
        assert_int_equal(s.r->guilty, has ? neb__bit(1) : 0);
    }
    solo_stop(&s);
}

/* The operator gave a site another key. What it signed before stays proven in certificates and lapses, and nowhere else. */
static void a_replaced_key_still_proves_the_past(void **state)
{
    (void)state;
    struct solo s;
    solo_start(&s);
    unsigned former = 1 | NEB_BY_FORMER, stranger = 5;
    struct neb_seal old = {.arg = &former, .sign = test_sign}, other = {.arg = &stranger, .sign = test_sign};
    struct neb_certificate c = certify(&s, 1, 1, &s.r->cfg.genesis);
    struct neb_said said = {.kind = NEB_SAID_HOLDS, .site = 1, .epoch = 1, .view = c.view, .normal = c.view};
    uint8_t signature[NEB_SEAL_SIZE];
    said.index = 1;
    assert_ok(neb__said_sign(&said, &s.r->cfg.genesis, &old));
    assert_true(neb__certificate_add(&c, &said));
    assert_true(neb__cert_valid_under(s.r, &c, &s.r->roster));
    assert_false(neb__said_genuine(&said, &s.r->cfg.genesis, &s.r->cfg.seal));
    assert_ok(neb__lapse_sign(&s.r->cfg.genesis, &old, 1, 3, signature));
    assert_true(neb__lapse_genuine(&s.r->cfg.genesis, &s.r->cfg.seal, 1, 3, signature));
    assert_ok(neb__said_sign(&said, &s.r->cfg.genesis, &other));
    memcpy(c.by[1].signature, said.signature, NEB_SEAL_SIZE);
    assert_false(neb__cert_valid_under(s.r, &c, &s.r->roster));
    solo_stop(&s);
}

/* Orders that nobody signed are refused. A flood of them does not fill the log of the site. */
static void a_flood_is_noted_once_a_second(void **state)
{
    (void)state;
    struct solo s;
    solo_start(&s);
    const int before = s.notes;
    for (int i = 0; i < 100; i++)
        solo_frame(&s, (struct neb_round_frame){.type = NEB_ROUND_FRAME_REQUEST,
                                                .from = 1,
                                                .order = {.op = NEB_OP_BUDGET, .value = 1, .epoch = 1}});
    assert_int_equal(s.notes, before + 1);
    solo_stop(&s);
}

/* A quorum certified a record behind a predecessor other than the one that this site has committed. So there are two
 * histories, and nobody here can know which is the run's. A member's word alone stops nobody. */
static void another_history_stops_the_site(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) {
        struct solo s;
        solo_start(&s);
        give_budget(&s, 300);
        struct neb_record rec = {.type = NEB_RECORD_END, .index = way ? 2 : 1, .prev = {{1}}};
        tell_signed(&s, 1, 1, rec, 0);
        tell_signed(&s, 1, 1, rec, 2);
        assert_true(s.halts == 0 && solo_status(&s).commit == 1);
        tell_record(&s, 1, 1, rec);
        assert_true(s.halts == 1 && solo_status(&s).state == NEB_ROUND_HALTED);
        solo_stop(&s);
    }
}

/* A report of `from` with a root of record `index`, signed by `signer`. */
static void report_root(struct solo *s, unsigned from, uint64_t index, uint8_t root, unsigned signer)
{
    uint8_t b[2 * NEB_HASH_SIZE + 8] = {0};
    struct neb_round_frame f = {.type = NEB_ROUND_FRAME_REPORT,
                                .from = (uint16_t)from,
                                .start = index,
                                .root = {{root}},
                                .flags = NEB_FLAG_NORMAL | NEB_FLAG_WHOLE,
                                .normal = s->r->view,
                                .head = s->r->head,
                                .hash = *neb__log_hash(s->r, s->r->head)};
    neb__put64(b + NEB_HASH_SIZE, index);
    b[NEB_HASH_SIZE + 8] = root;
    assert_ok(test_sign(&signer, "nebula round root", b, sizeof b, f.signature));
    for (uint64_t i = 0; i <= s->r->head; i++) { /* its acknowledgements */
        struct neb_seal seal = {.arg = &from, .sign = test_sign, .verify = test_verify};
        struct neb_said *said = &f.said[f.saids++];
        *said = (struct neb_said){.kind = NEB_SAID_HOLDS,
                                  .site = (uint8_t)from,
                                  .epoch = s->r->roster.epoch,
                                  .view = s->r->view,
                                  .normal = s->r->view,
                                  .index = i,
                                  .hash = *neb__log_hash(s->r, i)};
        uint32_t lapse = s->r->lapse[from];
        if (lapse)
            said->lapses.n = 1, said->lapses.of[0].site = (uint8_t)from,
            said->lapses.of[0].lapse = (uint16_t)lapse;
        assert_ok(neb__said_sign(said, &s->r->cfg.genesis, &seal));
    }
    solo_frame(s, f);
}

/* A root is not kept if its reporter did not sign it, or if its record is not there. A signed root
 * that contradicts a quorum costs its reporter the trust of the others, and costs nobody else
 * anything. Site 0 alone is a quorum. */
static void a_wrong_root_stops_nobody_else(void **state)
{
    (void)state;
    struct solo s;
    const struct neb_hash own = {{1}};
    solo_start(&s);
    report_root(&s, 1, 1, 7, 5);
    report_root(&s, 1, 1, 7, 1);
    for (uint64_t i = 0; i < 2 * ROOTS; i++) report_root(&s, 1, UINT64_MAX - i, 7, 1);
    assert_int_equal(s.r->roots, 0);
    give_budget(&s, 300);
    report_root(&s, 1, 1, 7, 1);
    assert_int_equal(s.r->roots, 1);
    assert_int_equal(s.notes, 0);
    neb__root_own(s.r, 1, &own);
    solo_run(&s, 200);
    assert_true(s.notes == 1 && !s.halts && s.r->peer[1].odd);
    assert_true(neb__root_find(s.r, 1, &own)->trusted);
    report_root(&s, 1, 1, 8, 1);
    const struct neb_hash other = {{8}};
    assert_null(neb__root_find(s.r, 1, &other));
    solo_stop(&s);
}

/* If two of three sites agree, they go on without the third. A leader that both others contradict stops. One false root stops
 * nobody, whoever is down. If all three contradict each other, nobody knows which is right. */
static void the_minority_stops(void **state)
{
    (void)state;
    for (int way = 0; way < 4; way++) {
        struct solo s[2];
        pair_start(s, (struct neb_members){1, 7, 7, 1, NEB_NO_SITE});
        s[1].other = NULL; /* this test writes its reports by hand */
        struct neb_order o =
            solo_order(&s[0], (struct neb_order){.op = NEB_OP_BUDGET, .value = 300}, NEB_BY_OPERATOR);
        solo_event(&s[0], (struct neb_event){.type = NEB_EV_OPERATOR, .order = &o});
        report_root(&s[0], 1, 0, 0, 1);
        assert_int_equal(s[0].r->commit, 1);
        neb__root_own(s[0].r, 1, &(struct neb_hash){{1}});
        if (way < 3) report_root(&s[0], 2, 0, 0, 2); /* site 2 is there */
        report_root(&s[0], 1, 1, way == 1 ? 1 : 9, 1);
        assert_int_equal(s[0].halts, 0); /* also while site 2 is down: it may decide later */
        if (way < 2) report_root(&s[0], 2, 1, way == 1 ? 9 : 1, 2);
        if (way == 2) report_root(&s[0], 2, 1, 9, 2);
        assert_int_equal(s[0].halts, way == 2);
        if (way == 3) report_root(&s[0], 2, 1, 5, 2); /* three roots: none can get a quorum any more */
        assert_int_equal(s[0].halts, way >= 2);
        assert_int_equal(s[0].r->peer[1].odd, way == 0);
        assert_int_equal(s[0].r->peer[2].odd, way == 1);
        for (int i = 0; i < 2; i++) solo_stop(&s[i]);
    }
}

/* Views and lapses that no run reaches are ignored. A site that was never a member has no roster
 * that could contradict this one. */
static void absurd_numbers_are_not_taken(void **state)
{
    (void)state;
    struct solo s[2];
    pair_start(s, two);
    const uint64_t view = s[0].r->view;
    struct neb_round_frame lies[] = {
        {.type = NEB_ROUND_FRAME_REPORT, .view = UINT64_MAX},
        {.type = NEB_ROUND_FRAME_PING, .view = UINT64_MAX - 62},
        {.type = NEB_ROUND_FRAME_ELECT, .number = UINT64_MAX - 62},
        {.type = NEB_ROUND_FRAME_REPORT, .lapses = {[0] = UINT32_MAX, [1] = UINT32_MAX}},
        {.type = NEB_ROUND_FRAME_HELLO, .phase = 2, .number = UINT32_MAX, .nonce = 1},
        {.type = NEB_ROUND_FRAME_GOODBYE, .from = 5, .roster_id = 1},
        {.type = NEB_ROUND_FRAME_REPORT, .roster_id = 1},
        {.type = NEB_ROUND_FRAME_REPORT, .lapses = {[0] = 0xffff, [1] = 0xffff}}, /* nobody's word */
        {.type = NEB_ROUND_FRAME_REPORT, .words = 2, .word = {{0, 0xffff, {1}}, {1, 0xffff, {2}}}},
        {.type = NEB_ROUND_FRAME_HELLO, .phase = 2, .number = 0xffff, .nonce = 1},
        {.type = NEB_ROUND_FRAME_PING, .view = 64 * 40 + 1, .flags = NEB_FLAG_PROOF}, /* no votes */
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        if (!lies[i].from) lies[i].from = 1;
        solo_frame(&s[0], lies[i]);
        pair_run(s, 500);
        assert_true(s[0].r->view == view && s[0].r->state == NEB_ROUND_LEAD && !s[0].r->conflict);
        assert_true(s[0].r->lapse[0] < 9 && s[0].r->lapse[1] < 9);
    }
    neb__view_follow(s[0].r, 0);
    assert_true(s[0].r->view == view);
    for (int i = 0; i < 2; i++) solo_stop(&s[i]);
}

static uint64_t refused_by(struct solo *s, struct neb_round_frame f)
{
    uint64_t before = s->refused;
    solo_frame(s, f);
    return s->refused - before;
}

/* A member names updates that do not exist, as many as it likes. They have a quota of their own, so an honest site's
 * update still finds a place, and the driver hears who it was. */
static void names_of_nothing_fill_no_table(void **state)
{
    (void)state;
    struct solo s[2];
    pair_start(s, (struct neb_members){1, 7, 7, 1, NEB_NO_SITE});
    s[1].other = NULL;
    struct neb_round_frame_item item[NEB_ROUND_FRAME_LIST] = {0};
    struct neb_round_frame f = {.type = NEB_ROUND_FRAME_REPORT,
                                .flags = NEB_FLAG_NORMAL,
                                .normal = s[0].r->view,
                                .items = NEB_ROUND_FRAME_LIST,
                                .item = item};
    uint64_t refused = 0;
    for (unsigned k = 0; k < 40; k++) {
        for (unsigned i = 0; i < NEB_ROUND_FRAME_LIST; i++)
            neb__put32(item[i].hash.b, k << 16 | i), item[i].hash.b[31] = 1, item[i].holders = 2;
        f.from = 1;
        refused += refused_by(&s[0], f);
    }
    assert_true(s[0].r->updates <= NEB_ROUND_FRAME_LIST);
    assert_int_equal(refused, 39 * NEB_ROUND_FRAME_LIST);
    for (unsigned i = 0; i < NEB_ROUND_FRAME_LIST; i++) item[i].hash.b[31] = 2;
    f.from = 2; /* another site */
    assert_int_equal(refused_by(&s[0], f), 0);
    assert_true(neb__core_update(s[0].r, &item[0].hash, false) != NULL);
    solo_run(&s[0], 1000);
    deliver(&s[0]); /* the leader passes few of them on, and is not taken for the one that names them */
    assert_true(s[1].r->updates > 0 && s[1].r->updates <= 16 && !s[1].refused);
    solo_run(&s[0], 60000); /* what nobody can give is forgotten */
    assert_int_equal(s[0].r->updates, 0);
    for (int i = 0; i < 2; i++) solo_stop(&s[i]);
}

static struct neb_round_frame report_of(struct solo *s, unsigned from, unsigned round,
                                        struct neb_round_frame_item *item, int n)
{
    for (int i = 0; i < n; i++) {
        neb__put32(item[i].hash.b, round << 16 | (unsigned)i);
        item[i].hash.b[31] = (uint8_t)from;
    }
    return (struct neb_round_frame){.type = NEB_ROUND_FRAME_REPORT,
                                    .from = (uint16_t)from,
                                    .flags = NEB_FLAG_NORMAL,
                                    .normal = s->r->view,
                                    .items = n,
                                    .item = item};
}

/* A site floods with updates of its own. An honest site holds a few of them at a time and mentions those. Neither when the
 * log moves on fast, nor when this site has seen them, is the honest one blamed. */
static void the_author_answers_for_a_name(void **state)
{
    (void)state;
    enum { HONEST = 1, AUTHOR = 2, AT_A_TIME = 4 };
    struct solo s[2];
    struct neb_round_frame_item item[NEB_ROUND_FRAME_LIST] = {0};
    pair_start(s, (struct neb_members){1, 7, 7, 1, NEB_NO_SITE});
    s[1].other = NULL;
    for (unsigned k = 0; k < 400; k++) { /* within the time after which a name is forgotten */
        assert_int_equal(refused_by(&s[0], report_of(&s[0], HONEST, k, item, AT_A_TIME)), 0);
        for (uint32_t c = 0; c < s[0].r->cfg.cells; c++) s[0].r->cell[c].v_log++;
        s[0].now++;
    }
    assert_true(s[0].r->updates <= 8 * AT_A_TIME);
    for (int i = 0; i < 2; i++) solo_stop(&s[i]);
    pair_start(s, (struct neb_members){1, 7, 7, 1, NEB_NO_SITE});
    s[1].other = NULL;
    for (unsigned k = 0; k < 100; k++) { /* the log stands, and the updates come when this site asks */
        assert_int_equal(refused_by(&s[0], report_of(&s[0], HONEST, k, item, AT_A_TIME)), 0);
        s[0].refused_site = NEB_NO_SITE;
        for (int i = 0; i < AT_A_TIME; i++)
            solo_event(&s[0],
                       (struct neb_event){.type = NEB_EV_UNWANTED, .site = AUTHOR, .hash = item[i].hash});
        assert_int_equal(s[0].refused_site, k < 64 ? NEB_NO_SITE : AUTHOR);
    }
    assert_int_equal(s[0].r->updates, NEB_ROUND_FRAME_LIST);
    assert_true(s[0].refused > 0);
    solo_event(&s[0], (struct neb_event){
                          .type = NEB_EV_UNWANTED, .site = AUTHOR, .hash = {{9}}}); /* nobody named it */
    assert_int_equal(s[0].r->updates, NEB_ROUND_FRAME_LIST);
    for (int i = 0; i < 2; i++) solo_stop(&s[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_must_follow_from_the_log),
        cmocka_unit_test(acknowledged_records_are_not_displaced),
        cmocka_unit_test(a_displaced_site_acknowledges_no_second_record),
        cmocka_unit_test(a_forced_start_convicts_nobody),
        cmocka_unit_test(a_replaced_key_still_proves_the_past),
        cmocka_unit_test(a_flood_is_noted_once_a_second),
        cmocka_unit_test(another_history_stops_the_site),
        cmocka_unit_test(a_wrong_root_stops_nobody_else),
        cmocka_unit_test(the_minority_stops),
        cmocka_unit_test(absurd_numbers_are_not_taken),
        cmocka_unit_test(names_of_nothing_fill_no_table),
        cmocka_unit_test(the_author_answers_for_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
