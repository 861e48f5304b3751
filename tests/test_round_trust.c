/* test_round_trust.c: rules of a core that bear liars, lost promises and lines that stay cut, each by hand: what convicts a
 * site, whose log is believed, what a member is given and fetched for. */
#include "check.h"
#include "base/bytes.h"
#include "solo.h"

#include <string.h>

static const struct neb_members two = {1, 3, 3, 1, NEB_NO_SITE};

static void sign_as(struct solo *s, unsigned site, struct neb_said *said)
{
    struct neb_seal seal = {.arg = &site, .sign = test_sign, .verify = test_verify};
    said->site = (uint8_t)site;
    said->epoch = s->r->roster.epoch;
    assert_ok(neb__said_sign(said, &s->r->cfg.genesis, &seal));
}

static struct neb_said acknowledges(struct solo *s, unsigned site, uint64_t view, uint64_t index,
                                    const struct neb_hash *hash)
{
    struct neb_said said = {
        .kind = NEB_SAID_HOLDS, .view = view, .normal = view, .index = index, .hash = *hash};
    uint32_t lapse = s->r->lapse[site];
    if (lapse) said.lapses = (struct neb_lapse_table){.n = 1, .of = {{(uint8_t)site, (uint16_t)lapse}}};
    sign_as(s, site, &said);
    return said;
}

static struct neb_said votes_for(struct solo *s, unsigned site, uint64_t view, uint64_t normal,
                                 uint64_t index, const struct neb_hash *hash)
{
    struct neb_said said = {
        .kind = NEB_SAID_VOTES, .view = view, .normal = normal, .index = index, .hash = *hash};
    sign_as(s, site, &said);
    return said;
}

static struct neb_said votes(struct solo *s, unsigned site, uint64_t view, uint64_t normal)
{
    return votes_for(s, site, view, normal, 0, &(struct neb_hash){{4}});
}

static void give_budget(struct solo *s, uint64_t permille)
{
    struct neb_order o =
        solo_order(s, (struct neb_order){.op = NEB_OP_BUDGET, .value = permille}, NEB_BY_OPERATOR);
    solo_give(s, &o);
}

/* One record behind the committed ones, with its length before it. */
static struct neb_buf blob_of(struct solo *s, struct neb_record rec, struct neb_hash *hash)
{
    struct neb_buf b, blob;
    uint8_t length[4];
    neb__buf_init(&b, NEB_RECORD_MAX);
    neb__buf_init(&blob, NEB_RECORD_MAX);
    rec.index = s->r->commit + 1;
    rec.prev = *neb__log_hash(s->r, s->r->commit);
    rec.epoch = s->r->roster.epoch;
    rec.view = s->r->view;
    assert_ok(neb__record_encode(&rec, &b));
    assert_ok(neb__hash(b.data, b.len, hash));
    neb__put32(length, (uint32_t)b.len);
    assert_ok(neb__buf_append(&blob, length, 4));
    assert_ok(neb__buf_append(&blob, b.data, b.len));
    neb__buf_free(&b);
    return blob;
}

/* Two statements of a site in one view that cannot both be true convict it, at one index or over a stretch of the log; so does
 * a vote with less than was acknowledged. What an honest site says convicts nobody. */
static void statements_convict(void **state)
{
    (void)state;
    struct solo s;
    solo_start(&s);
    give_budget(&s, 300);
    give_budget(&s, 400);
    assert_int_equal(s.r->commit, 2);
    const struct neb_hash other = {{9}}, *first = neb__log_hash(s.r, 1), *second = neb__log_hash(s.r, 2);
    const uint64_t v = s.r->view;
    struct neb_said honest[2] = {acknowledges(&s, 1, v, 1, first), acknowledges(&s, 1, v, 2, second)};
    struct neb_said chains[2] = {acknowledges(&s, 1, v, 1, &other), honest[1]};
    struct neb_said later[2] = {acknowledges(&s, 1, v + 64, 1, &other), honest[1]};
    struct neb_said unknown[2] = {chains[0], acknowledges(&s, 1, v, 2, &other)};
    struct neb_said forged[2] = {chains[0], honest[1]};
    forged[0].signature[0] ^= 1;
    neb__guilt_look(s.r, honest, 2);
    neb__guilt_look(s.r, later, 2);
    neb__guilt_look(s.r, unknown, 2); /* this site cannot tell whether the one leads to the other */
    neb__guilt_look(s.r, forged, 2);
    assert_int_equal(s.r->guilty, 0);
    neb__guilt_look(s.r, chains, 2);
    assert_int_equal(s.r->guilty, neb__bit(1));
    for (int way = 0; way < 4; way++) { /* votes that were heard, then what one of them contradicts */
        const bool byzantine = way % 2;
        s.r->guilty = 0;
        s.r->cfg.quorum = byzantine ? NEB_QUORUM_BYZANTINE : NEB_QUORUM_MAJORITY;
        memset(s.r->heard_vote, 0, sizeof s.r->heard_vote);
        struct neb_said fair = votes_for(&s, 1, v + 640, v, 2, second);
        struct neb_said displaced = votes_for(&s, 1, v + 704, v, 1, &other); /* by a certificate */
        struct neb_said low = way < 2 ? votes(&s, 1, v + 640, v - 1) : votes_for(&s, 1, v + 640, v, 1, first);
        neb__guilt_vote(s.r, &fair, false);
        neb__guilt_vote(s.r, &displaced, false);
        assert_true(neb__guilt_compare(s.r, &honest[1]) && !s.r->guilty);
        neb__guilt_vote(s.r, &low, false);
        assert_true(neb__guilt_compare(s.r, &honest[1]));
        assert_int_equal(s.r->guilty, byzantine ? 0 : neb__bit(1));
    }
    solo_stop(&s);
}

/* A certificate is void if one of its signers knew of a newer lapse of another: that one's acknowledgement was forgotten. It is
 * worth nothing with a signature that does not hold, with too few of them, or under another roster. Under `byzantine` three of
 * four are needed. */
static void certificates_that_prove_nothing(void **state)
{
    (void)state;
    static const struct neb_members four = {1, 15, 15, 15, NEB_NO_SITE};
    struct solo s;
    solo_create(&s, 0, four);
    for (int byzantine = 0; byzantine < 2; byzantine++)
        for (int way = 0; way < 5; way++) {
            struct neb_certificate c = {0};
            struct neb_members m = four;
            for (unsigned i = 0; i < (way == 3 ? 2 : 3); i++) {
                struct neb_said said = {.kind = NEB_SAID_HOLDS, .view = 64, .normal = 64, .index = 1};
                said.lapses = (struct neb_lapse_table){.n = 2, .of = {{0, 2}, {1, 2}}};
                if (way == 1 && i == 1) said.lapses.of[0].lapse = 3; /* site 0 has started anew since */
                sign_as(&s, i, &said);
                if (way == 2 && i == 2) said.signature[5] ^= 1;
                assert_true(neb__certificate_add(&c, &said));
            }
            if (way == 4) m.epoch++;
            bool valid =
                neb__certificate_valid(&c, &m, byzantine ? NEB_QUORUM_BYZANTINE : NEB_QUORUM_MAJORITY,
                                       &s.r->cfg.genesis, &s.r->cfg.seal);
            assert_int_equal(valid, way == 0);
        }
    assert_int_equal(neb__quorum_votes(&four, NEB_QUORUM_BYZANTINE), 3);
    assert_int_equal(
        neb__quorum_votes(&(struct neb_members){1, 127, 127, 127, NEB_NO_SITE}, NEB_QUORUM_BYZANTINE), 5);
    solo_stop(&s);
}

/* A certificate with a site's own name, under its present lapse, for a record that it does not have: its disk is an old copy. It
 * must not lead on, and votes only when the others have told it what it forgot. */
static void its_own_name_reminds_a_site(void **state)
{
    (void)state;
    for (int lapse = 0; lapse < 2; lapse++) {
        struct solo s;
        struct neb_hash hash;
        solo_start(&s);
        struct neb_buf blob = blob_of(&s, (struct neb_record){.type = NEB_RECORD_END}, &hash);
        struct neb_said said = acknowledges(&s, 0, s.r->view, 1, &hash);
        if (lapse) said.lapses = (struct neb_lapse_table){.n = 1, .of = {{0, 5}}};
        if (lapse) sign_as(&s, 0, &said);
        struct neb_round_frame f = {.type = NEB_ROUND_FRAME_LOG,
                                    .from = 1,
                                    .commit = 1,
                                    .number = 1,
                                    .records = 1,
                                    .blob = blob.data,
                                    .blob_length = blob.len};
        assert_true(neb__certificate_add(&f.proof, &said));
        assert_int_equal(solo_status(&s).state, NEB_ROUND_LEAD);
        solo_frame(&s, f);
        assert_int_equal(solo_status(&s).commit, 1);
        assert_int_equal(solo_status(&s).state, lapse ? NEB_ROUND_LEAD : NEB_ROUND_BOOT);
        assert_int_equal(s.r->forgot, !lapse);
        neb__buf_free(&blob);
        solo_stop(&s);
    }
}

/* A site that starts believes that it has forgotten a promise if its own signature shows so, and nobody's word. A site that knows
 * such a statement shows it to one that greets with less. */
static void only_its_own_signature_reminds(void **state)
{
    (void)state;
    for (int way = 0; way < 5; way++) {
        struct solo s;
        solo_create(&s, 0, (struct neb_members){1, 7, 7, 7, NEB_NO_SITE});
        solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = 1});
        struct neb_round_frame f = {.type = NEB_ROUND_FRAME_GUILT, .from = 1, .saids = 1, .view = 64};
        struct neb_said *said = &f.said[0];
        *said = (struct neb_said){.kind = NEB_SAID_HOLDS, .view = 64, .normal = 64, .index = 1, .life = 1};
        if (way == 1) said->lapses = (struct neb_lapse_table){.n = 1, .of = {{0, 3}}};
        if (way == 2)
            said->view = said->normal = said->index = said->life = 0; /* no more than what is on its disk */
        sign_as(&s, way == 3 ? 1 : 0, said);
        said->site = 0;
        if (way == 4) f.type = NEB_ROUND_FRAME_HELLO_OK, f.nonce = s.r->greet_nonce, f.phase = 1;
        if (way == 4) f.flags = NEB_FLAG_FORGOT, f.saids = 0, s.r->empty = false;
        solo_frame(&s, f);
        assert_int_equal(s.r->forgot, way < 2);
        solo_stop(&s);
    }
    struct solo s[2];
    pair_start(s, two);
    uint32_t lapse = s[0].r->lapse[1];
    for (int less = 0; less < 2; less++) {
        uint64_t sent = s[0].letters.len;
        neb__guilt_remind(s[0].r, 1,
                          &(struct neb_round_frame){.lapse = lapse,
                                                    .start = less ? 1 : 100,
                                                    .view = s[0].r->view,
                                                    .normal = s[0].r->view,
                                                    .head = s[0].r->head});
        solo_run(&s[0], 0);
        solo_event(&s[0], (struct neb_event){.type = NEB_EV_STEP});
        assert_int_equal(s[0].letters.len > sent, less);
    }
    for (int i = 0; i < 2; i++) solo_stop(&s[i]);
}

/* At a first start a member says that a site forgot something. The site believes it until enough voters show that they have promised
 * nothing: then there was nothing to forget. A certificate shows that the run has begun: then an empty disk may have been lost. */
static void nobodys_word_makes_an_empty_disk_a_lost_one(void **state)
{
    (void)state;
    /* ways: 0 the word of one of two that answer, 1 of one of three, 2 and 3 a certificate */
    for (int way = 0; way < 4; way++) {
        struct solo s;
        const struct neb_hash hash = {{9}};
        solo_create(&s, 0, (struct neb_members){1, 31, 31, 31, NEB_NO_SITE});
        struct neb_round_frame shown = {.type = NEB_ROUND_FRAME_GUILT, .from = 1};
        for (unsigned i = 1; i < 4; i++) {
            struct neb_said said = acknowledges(&s, i, 65, 1, &hash);
            if (way == 3 && i == 3) sign_as(&s, 4, &said), said.site = 3; /* not its signature */
            assert_true(neb__certificate_add(&shown.prepared, &said));
            solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = (uint16_t)i});
        }
        for (int k = 0; k < 100 && s.r->state == NEB_ROUND_BOOT; k++) {
            solo_run(&s, 100);
            if (way >= 2) solo_frame(&s, shown);
            for (uint16_t from = 1; from < (way == 1 ? 4 : 3); from++)
                solo_frame(&s, (struct neb_round_frame){
                                   .type = NEB_ROUND_FRAME_HELLO_OK,
                                   .from = from,
                                   .nonce = s.r->greet_nonce,
                                   .phase = (uint8_t)s.r->greet_phase,
                                   .flags = (uint8_t)(NEB_FLAG_INTACT |
                                                      (way < 2 && from == 1 ? NEB_FLAG_FORGOT : 0))});
        }
        assert_int_equal(s.r->forgot, way == 0 || way == 2);
        assert_int_equal(s.r->state == NEB_ROUND_BOOT, way == 0 || way == 2);
        solo_stop(&s);
    }
}

/* After a greeting a site may have another's log of the present view. It acknowledges none of it before the leader has shown its
 * own; under a new lapse it takes the leader's, else it leaves the view. */
static void the_leaders_log_is_waited_for(void **state)
{
    (void)state;
    for (int fresh = 0; fresh < 2; fresh++) {
        struct solo s[2];
        struct neb_hash hash;
        pair_start(s, two);
        struct neb_round *r = s[1].r;
        const uint64_t view = r->view;
        struct neb_buf blob = blob_of(&s[1], (struct neb_record){.type = NEB_RECORD_END}, &hash);
        r->foreign = true, r->fresh = fresh, r->leader_head = UINT64_MAX;
        assert_true(neb__log_append(r, blob.data + 4, blob.len - 4));
        solo_run(&s[1], 100);
        assert_true(r->disk_head == 1 && s[0].r->commit == 0); /* it is on disk, and yet not acknowledged */
        struct neb_order o =
            solo_order(&s[0], (struct neb_order){.op = NEB_OP_BUDGET, .value = 300}, NEB_BY_OPERATOR);
        solo_event(&s[0], (struct neb_event){.type = NEB_EV_OPERATOR, .order = &o});
        pair_run(s, 20000);
        assert_true(s[0].r->commit >= 1 && r->commit >= 1 && !r->foreign && !s[0].halts && !s[1].halts);
        assert_true(neb__hash_equal(neb__log_hash(r, 1), neb__log_hash(s[0].r, 1)));
        if (fresh) assert_true(r->view == view && r->log[0].record->type == NEB_RECORD_ORDER);
        if (!fresh) assert_true(r->view > view);
        neb__buf_free(&blob);
        for (int i = 0; i < 2; i++) solo_stop(&s[i]);
    }
}

/* A site that was promised a log up to a record takes nothing behind it. */
static void nothing_behind_the_promised_record(void **state)
{
    (void)state;
    struct solo s;
    struct neb_hash hash;
    solo_start(&s);
    give_budget(&s, 300);
    struct neb_buf blob = blob_of(&s, (struct neb_record){.type = NEB_RECORD_END}, &hash);
    struct neb_round_frame f = {.type = NEB_ROUND_FRAME_LOG,
                                .from = 1,
                                .number = 2,
                                .records = 1,
                                .blob = blob.data,
                                .blob_length = blob.len};
    assert_true(neb__log_install(s.r, &f, 1, neb__log_hash(s.r, 1), false));
    assert_int_equal(s.r->head, 1);
    assert_true(neb__log_install(s.r, &f, 2, &hash, false));
    assert_int_equal(s.r->head, 2);
    neb__buf_free(&blob);
    solo_stop(&s);
}

/* byzantine: when a view has begun with another log, a site no longer stands by the record that it had prepared. Nobody may have
 * that record any more, and votes for it would block every election. */
static void a_replaced_record_is_not_voted_for(void **state)
{
    (void)state;
    struct solo s;
    solo_start(&s);
    give_budget(&s, 300);
    s.r->cfg.quorum = NEB_QUORUM_BYZANTINE;
    struct neb_certificate gone = {0}, begun = {0};
    struct neb_said a = acknowledges(&s, 0, s.r->view, 2, &(struct neb_hash){{7}}),
                    b = acknowledges(&s, 0, s.r->view, 1, neb__log_hash(s.r, 1));
    assert_true(neb__certificate_add(&gone, &a) && neb__certificate_add(&begun, &b));
    for (int way = 0; way < 4; way++) {
        s.r->prepared = s.r->prepared_durable = way == 0 ? begun : gone;
        struct neb_certificate c = way == 1 ? begun : gone;
        if (way == 3) c = begun, c.by[0].signature[0] ^= 1;
        neb__prepared_replace(s.r, &c);
        assert_int_equal(s.r->prepared.n, way < 2);
        assert_int_equal(s.r->prepared_durable.n, way < 2);
        if (way < 2) assert_int_equal(s.r->prepared.index, 1);
    }
    solo_stop(&s);
}

/* A question of some bytes has a long answer, so a member is given a limited number of bytes. */
static void a_member_is_given_so_much(void **state)
{
    (void)state;
    struct solo s;
    solo_start(&s);
    solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = 1});
    for (int i = 0; i < 40; i++) give_budget(&s, 300 + (uint64_t)i);
    uint64_t before = s.sent;
    for (int i = 0; i < 3000; i++)
        solo_frame(&s, (struct neb_round_frame){.type = NEB_ROUND_FRAME_GETLOG, .from = 1, .number = 1});
    assert_true(s.sent > before + (1 << 20) && s.sent < before + (5 << 20));
    before = s.sent;
    s.now += 1000;
    for (int i = 0; i < 3000; i++)
        solo_frame(&s, (struct neb_round_frame){.type = NEB_ROUND_FRAME_GETLOG, .from = 1, .number = 1});
    assert_true(s.sent > before + (1 << 19) && s.sent < before + (2 << 20));
    solo_stop(&s);
}

/* The same is not asked for again while the answer may be on its way, and the wait grows. */
static void a_question_is_not_repeated_at_once(void **state)
{
    (void)state;
    struct solo s;
    solo_start(&s);
    solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = 1});
    solo_run(&s, 500);
    int asked = 0;
    for (int i = 0; i < 600; i++) {
        s.now += 10;
        s.r->now = s.now;
        int64_t at = s.r->peer[1].log_asked;
        neb__log_ask(s.r, 1, 7, true);
        asked += s.r->peer[1].log_asked != at;
    }
    assert_int_equal(asked, 4); /* at once, after 0.5, 1.5 and 3.5 s */
    neb__log_answered(s.r, 1, 7);
    neb__log_ask(s.r, 1, 8, true);
    assert_int_equal(s.r->peer[1].log_first, 8);
    s.r->now += 36000000; /* an answer after ten hours: the others do not wait for the next one as long */
    neb__log_answered(s.r, 1, 8);
    neb__log_ask(s.r, 1, 9, false);
    s.r->peer[2].up = true;
    neb__log_ask(s.r, 2, 9, false);
    assert_int_equal(s.r->peer[2].log_first, 0);
    s.r->now += 200000;
    neb__log_ask(s.r, 2, 9, false);
    assert_int_equal(s.r->peer[2].log_first, 9);
    s.now = s.r->now + 20000; /* this process slept: nobody knows how long these answers take */
    solo_event(&s, (struct neb_event){.type = NEB_EV_TICK});
    neb__log_answered(s.r, 2, 9);
    assert_int_equal(s.r->peer[2].log_ms, 0);
    neb__log_ask(s.r, 2, 9, false);
    assert_int_equal(s.r->peer[2].log_first, 9);
    solo_stop(&s);
}

/* A site refuses a forced roster whose author did not know what it has committed, and then also the record that carries it. */
static void a_forced_roster_must_be_in_time(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        struct solo s;
        solo_start(&s);
        give_budget(&s, 300);
        struct neb_order o = solo_order(
            &s, (struct neb_order){.op = NEB_OP_FORCE, .epoch = 3, .roster = {3, 1, 1, 1, NEB_NO_SITE}},
            NEB_BY_OPERATOR);
        if (late) give_budget(&s, 400);
        struct neb_record *rec = neb__record_new(0);
        assert_non_null(rec);
        rec->type = NEB_RECORD_FORCED;
        rec->ordered = true;
        *rec->order = o;
        rec->roster = o.roster;
        rec->epoch = 3;
        rec->index = s.r->commit + 1;
        rec->view = s.r->view;
        assert_int_equal(neb__order_explains(s.r, rec, false), !late);
        assert_true(neb__order_explains(s.r, rec, true)); /* what a quorum has committed is so */
        neb__free(rec);
        solo_stop(&s);
    }
}

/* With `byzantine` nobody gets a second vote: two sites could then decide, and one of them may lie. */
static void no_survivor_among_liars(void **state)
{
    (void)state;
    const struct neb_members three = {1, 7, 7, 7, NEB_NO_SITE};
    for (int byzantine = 0; byzantine < 2; byzantine++) {
        struct solo s;
        solo_create(&s, 0, three);
        s.r->cfg.quorum = byzantine ? NEB_QUORUM_BYZANTINE : NEB_QUORUM_MAJORITY;
        struct neb_order o =
            solo_order(&s, (struct neb_order){.op = NEB_OP_SURVIVOR, .site = 1}, NEB_BY_OPERATOR);
        struct neb_record *rec = neb__record_new(0);
        assert_non_null(rec);
        rec->type = NEB_RECORD_ROSTER;
        rec->ordered = true;
        *rec->order = o;
        rec->epoch = rec->index = 1;
        assert_true(neb__order_roster(&o, &three, &rec->roster));
        assert_int_equal(neb__order_explains(s.r, rec, false), !byzantine);
        neb__free(rec);
        solo_stop(&s);
    }
}

/* The roster changed while a candidate fetched the log: votes of the epoch before would convince nobody. */
static void votes_of_another_epoch_do_not_count(void **state)
{
    (void)state;
    struct solo s;
    solo_start(&s);
    struct neb_round *r = s.r;
    neb__view_follow(r, r->view + 64);
    solo_run(&s, 100);
    r->state = NEB_ROUND_ELECT;
    r->ask_phase = 2;
    r->ask_end = s.now + 1000;
    r->votes = 1;
    r->vote[0] = votes(&s, 1, r->view, 0);
    r->vote[0].epoch--;
    r->voted = neb__bit(1);
    neb__view_durable(r);
    assert_false(r->voted & neb__bit(1));
    for (int i = 0; i < r->votes; i++) assert_int_equal(r->vote[i].epoch, r->roster.epoch);
    solo_stop(&s);
}

/* A neighbour asks for an update that a record names and that this site does not have. The neighbour may be linked to nobody
 * else, so this site fetches it, from somebody else. */
static void an_update_is_fetched_for_a_neighbour(void **state)
{
    (void)state;
    struct solo s;
    struct neb_hash hash, update = {{3}}, unknown = {{4}};
    solo_create(&s, 0, (struct neb_members){1, 7, 7, 7, 0});
    s.r->cell[0].replay_until = INT64_MAX;
    for (uint16_t i = 1; i < 3; i++) solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = i});
    solo_run(&s, 10000);
    struct neb_record *rec = neb__record_new(1);
    assert_non_null(rec);
    rec->type = NEB_RECORD_ROUND;
    rec->c1 = 1;
    rec->eta = s.r->cfg.eta, rec->mu = s.r->cfg.mu;
    rec->owner = NEB_NO_SITE;
    rec->index = s.r->head + 1;
    rec->prev = *neb__log_hash(s.r, s.r->head);
    rec->epoch = 1;
    rec->view = s.r->view;
    rec->update[0] =
        (struct neb_named){.site = 2, .k = 1, .weight = 1, .tau = 1, .length = 4, .hash = update};
    struct neb_buf b;
    neb__buf_init(&b, NEB_RECORD_MAX);
    assert_ok(neb__record_encode(rec, &b));
    assert_ok(neb__hash(b.data, b.len, &hash));
    assert_true(neb__log_append(s.r, b.data, b.len));
    neb__log_commit_to(s.r, s.r->head);
    assert_false(neb__round_asked(s.r, 1, &unknown)); /* no record names it */
    assert_true(neb__round_asked(s.r, 1, &update));
    struct neb_core_update *p = neb__core_update(s.r, &update, false);
    assert_true(p && p->needed && (p->lack & neb__bit(1)));
    s.r->peer[2].up = false;
    p->needed = false;
    assert_false(neb__round_asked(s.r, 1, &update)); /* nobody else is there */
    neb__buf_free(&b);
    neb__free(rec);
    solo_stop(&s);
}

/* A leader that commits nothing is left, also if it is silent now and then (way 1), or has itself elected again (way 2). One that
 * commits stays (way 3). */
static void naps_do_not_keep_an_idle_leader(void **state)
{
    (void)state;
    static const struct neb_members four = {1, 15, 15, 15, NEB_NO_SITE};
    for (int way = 0; way < 4; way++) {
        struct solo s;
        solo_create(&s, 1, four);
        struct neb_round *r = s.r;
        int64_t judged = 0;
        r->now = 1000;
        r->view = r->normal = NEB_SITES_MAX;
        r->state = NEB_ROUND_FOLLOW;
        r->leader = 0;
        for (int64_t i = 0; i < 3 * r->cfg.idle_ms && !judged; i += 500) {
            bool now_and_then = i % (r->cfg.idle_ms / 2) < r->cfg.elect_ms + 1000;
            r->now += 500;
            if (way != 1 || !now_and_then) r->leader_heard = r->now;
            if (way == 2 && now_and_then) neb__view_follow(r, r->view + NEB_SITES_MAX);
            r->state = NEB_ROUND_FOLLOW;
            r->leader = 0;
            r->ending = true; /* there is something to commit */
            if (way == 3 && now_and_then) r->idle_commit = 1000 + (uint64_t)i; /* as if that had changed */
            neb__idle_tick(r);
            if (r->idle) judged = r->now;
        }
        assert_int_equal(judged != 0, way != 3);
        r->ending = false;
        solo_stop(&s);
    }
}

/* A leader that has too few updates for a record by the run's rule waits rightly. So does one that holds what is no site's work
 * of a round. */
static void who_waits_rightly_is_not_idle(void **state)
{
    (void)state;
    static const struct neb_members four = {1, 15, 15, 15, NEB_NO_SITE};
    for (int updates = 0; updates < 5; updates++) {
        struct solo s;
        solo_create(&s, 1, four);
        struct neb_round *r = s.r;
        r->cfg.influence.combine = NEB_COMBINE_MEDIAN;
        r->cfg.influence.liars = 1;
        r->now = 1000;
        r->view = r->normal = NEB_SITES_MAX;
        r->state = NEB_ROUND_FOLLOW;
        r->leader = 0;
        for (int i = 0; i < (updates < 4 ? updates : 3); i++) {
            struct neb_core_update *p = neb__core_update(r, &(struct neb_hash){{(uint8_t)(1 + i)}}, true);
            assert_non_null(p);
            p->held = true;
            p->header =
                (struct neb_update_header){.site = (uint16_t)i,
                                           .k = 1,
                                           .c1 = neb__core_fragment_first(r, 1),
                                           .kind = updates == 4 ? NEB_UPDATE_RESULT : NEB_UPDATE_DELTA};
        }
        for (int64_t i = 0; i < 3 * r->cfg.idle_ms; i += 500) {
            r->now += 500;
            r->leader_heard = r->now;
            neb__idle_tick(r);
        }
        assert_int_equal(r->idle, updates == 3);
        solo_stop(&s);
    }
}

/* A peer that says again and again that an update is on its way, asked or not, keeps nobody from asking another one. */
static void promises_end(void **state)
{
    (void)state;
    static const struct neb_members four = {1, 15, 15, 15, NEB_NO_SITE};
    const struct neb_hash hash = {{7}};
    int64_t first = 0;
    for (int asked = 0; asked < 2; asked++) {
        struct solo s;
        solo_create(&s, 0, four);
        for (uint16_t i = 1; i < 4; i++)
            solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = i});
        for (int again = 0; again < 6; again++) {
            struct neb_core_update *p = neb__core_update(s.r, &hash, true);
            const int64_t begin = s.now;
            p->needed = p->looked = true;
            p->have = neb__bit(asked ? 1 : 2) | neb__bit(2);
            p->lack = 0;
            p->fetch_from = NEB_NO_SITE;
            p->fetch_at = s.now;
            while (p->fetch_from != 2 && s.now - begin < 4 * s.r->cfg.idle_ms) {
                p->seen = s.now;
                solo_run(&s, 100);
                if (asked || s.now == begin + 100)
                    solo_event(&s, (struct neb_event){.type = NEB_EV_COMING, .site = 1, .hash = hash});
                p = neb__core_update(s.r, &hash, false);
                assert_non_null(p);
            }
            assert_int_equal(p->fetch_from, 2);
            if (asked && !again) first = s.now - begin;
            int64_t at = p->fetch_at;
            for (int k = 0; k < 2; k++) /* now it answers for somebody else */
                solo_event(&s, (struct neb_event){
                                   .type = k ? NEB_EV_NO_UPDATE : NEB_EV_COMING, .site = 1, .hash = hash});
            assert_true(p->fetch_from == 2 && p->fetch_at == at);
            if (asked && again == 5) assert_true(s.now - begin < first / 8);
        }
        solo_stop(&s);
    }
}

/* A certificate of another history stops a site. One from before an operator's roster does not: the operator has decided. */
static void the_operator_has_decided(void **state)
{
    (void)state;
    for (int forced = 0; forced < 2; forced++) {
        struct solo s;
        solo_start(&s);
        give_budget(&s, 300);
        give_budget(&s, 400);
        struct neb_said said = acknowledges(&s, 0, s.r->view, 2, &(struct neb_hash){{9}});
        struct neb_round_frame f = {.type = NEB_ROUND_FRAME_GUILT, .from = 1};
        assert_true(neb__certificate_add(&f.prepared, &said));
        struct neb_order o = solo_order(
            &s, (struct neb_order){.op = NEB_OP_FORCE, .epoch = 3, .roster = {3, 1, 1, 1, NEB_NO_SITE}},
            NEB_BY_OPERATOR);
        if (forced) solo_give(&s, &o);
        solo_run(&s, 10000);
        assert_int_equal(s.r->log[s.r->commit - 1].record->type == NEB_RECORD_FORCED, forced);
        f.epoch = s.r->roster.epoch - (uint32_t)forced; /* left out, it does not know the new one */
        solo_frame(&s, f);
        assert_int_equal(s.halts, !forced);
        solo_stop(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statements_convict),
        cmocka_unit_test(certificates_that_prove_nothing),
        cmocka_unit_test(its_own_name_reminds_a_site),
        cmocka_unit_test(only_its_own_signature_reminds),
        cmocka_unit_test(nobodys_word_makes_an_empty_disk_a_lost_one),
        cmocka_unit_test(the_leaders_log_is_waited_for),
        cmocka_unit_test(nothing_behind_the_promised_record),
        cmocka_unit_test(a_replaced_record_is_not_voted_for),
        cmocka_unit_test(a_member_is_given_so_much),
        cmocka_unit_test(a_question_is_not_repeated_at_once),
        cmocka_unit_test(a_forced_roster_must_be_in_time),
        cmocka_unit_test(no_survivor_among_liars),
        cmocka_unit_test(votes_of_another_epoch_do_not_count),
        cmocka_unit_test(an_update_is_fetched_for_a_neighbour),
        cmocka_unit_test(the_operator_has_decided),
        cmocka_unit_test(promises_end),
        cmocka_unit_test(who_waits_rightly_is_not_idle),
        cmocka_unit_test(naps_do_not_keep_an_idle_leader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
