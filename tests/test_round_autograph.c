/* test_round_autograph.c: what a leader signs of its log, and what follows from it; the numbers of a site whose disk may be an
 * old copy; how long a leader that commits nothing stays judged; sites that say nothing. */
#include "check.h"
#include "base/bytes.h"
#include "solo.h"

#include <string.h>

static const struct neb_members two = {1, 3, 3, 1, NEB_NO_SITE}, four = {1, 15, 15, 15, NEB_NO_SITE};

static struct neb_said says(struct solo *s, uint8_t kind, unsigned site, uint64_t view, uint64_t index,
                            const struct neb_hash *hash)
{
    struct neb_seal seal = {.arg = &site, .sign = test_sign, .verify = test_verify};
    struct neb_said said = {.kind = kind,
                            .site = (uint8_t)site,
                            .epoch = s->r->roster.epoch,
                            .view = view,
                            .normal = view,
                            .index = index,
                            .hash = *hash};
    assert_ok(neb__said_sign(&said, &s->r->cfg.genesis, &seal));
    return said;
}

static void under_lapse(struct solo *s, struct neb_said *said, uint16_t lapse)
{
    unsigned site = said->site;
    struct neb_seal seal = {.arg = &site, .sign = test_sign, .verify = test_verify};
    said->lapses = (struct neb_lapse_table){.n = 1, .of = {{said->site, lapse}}};
    assert_ok(neb__said_sign(said, &s->r->cfg.genesis, &seal));
}

/* A LOG frame of the leading site 0 with one record that ends the run. */
static struct neb_round_frame end_of_view(struct solo *s, uint64_t view, struct neb_buf *blob,
                                          struct neb_hash *hash)
{
    struct neb_record rec = {.type = NEB_RECORD_END,
                             .index = s->r->head + 1,
                             .prev = *neb__log_hash(s->r, s->r->head),
                             .epoch = s->r->roster.epoch,
                             .view = view};
    uint8_t length[4] = {0};
    neb__buf_init(blob, NEB_RECORD_MAX);
    assert_ok(neb__buf_append(blob, length, 4));
    assert_ok(neb__record_encode(&rec, blob));
    neb__put32(blob->data, (uint32_t)blob->len - 4);
    assert_ok(neb__hash(blob->data + 4, blob->len - 4, hash));
    return (struct neb_round_frame){.type = NEB_ROUND_FRAME_LOG,
                                    .number = rec.index,
                                    .records = 1,
                                    .blob = blob->data,
                                    .blob_length = blob->len};
}

static struct neb_round_frame end_of_leader(struct solo *s, struct neb_buf *blob, struct neb_hash *hash)
{
    return end_of_view(s, s->r->view, blob, hash);
}

/* A leader writes records of its own view: those of another one would be counted for somebody else. The log with which the view
 * began is of earlier ones. */
static void a_record_bears_its_leaders_view(void **state)
{
    (void)state;
    for (int way = 0; way < 6;
         way++) { /* another view or its own; as it comes, or with a whole log, or in the log of the start */
        struct solo s[2];
        struct neb_hash hash;
        struct neb_buf blob;
        pair_start(s, two);
        struct neb_round *r = s[1].r;
        const bool own = way % 2;
        struct neb_round_frame f = end_of_view(&s[1], r->view - !own, &blob, &hash);
        f.saids = 1;
        f.said[0] = says(&s[1], NEB_SAID_HOLDS, 0, r->view, f.number, &hash);
        f.view = r->view;
        if (way / 2 == 0) solo_frame(&s[1], f);
        if (way / 2 == 1) assert_int_equal(neb__log_install(r, &f, 0, &r->cfg.genesis, true), own);
        if (way / 2 == 2) assert_true(neb__log_install(r, &f, 1, &hash, true));
        assert_int_equal(r->head, own || way / 2 == 2);
        neb__buf_free(&blob);
        for (int k = 0; k < 2; k++) solo_stop(&s[k]);
    }
}

/* A follower takes a record only with its leader's own signature of it, and keeps that. */
static void a_record_needs_its_leaders_signature(void **state)
{
    (void)state;
    for (int way = 0; way < 6; way++) {
        struct solo s[2];
        struct neb_hash hash;
        struct neb_buf blob;
        pair_start(s, two);
        struct neb_round *r = s[1].r;
        assert_true(r->leader == 0 && neb__view_joined(r));
        struct neb_round_frame f = end_of_leader(&s[1], &blob, &hash);
        const uint64_t v = r->view, i = f.number;
        f.saids = way != 1;
        f.said[0] = says(&s[1], NEB_SAID_HOLDS, way == 2, v, i, &hash);
        if (way == 3) f.said[0] = says(&s[1], NEB_SAID_HOLDS, 0, v, i, &(struct neb_hash){{9}});
        if (way == 4) f.said[0] = says(&s[1], NEB_SAID_HOLDS, 0, v - 64, i, &hash);
        if (way == 5) f.said[0].signature[0] ^= 1;
        solo_frame(&s[1], f);
        assert_int_equal(r->head, way ? 0 : 1);
        const struct neb_said *kept = &r->autograph[(r->autographs - 1) % AUTOGRAPHS];
        assert_int_equal(kept->kind, way ? NEB_SAID_STARTS : NEB_SAID_HOLDS);
        assert_true(kept->site == 0 && kept->view == v && !r->autograph_unsaved);
        struct neb_round_frame vote = {.saids = 1};
        neb__autograph_vote(r, v, &vote);
        assert_true(vote.saids == 2 && vote.said[1].index == r->head);
        neb__buf_free(&blob);
        for (int k = 0; k < 2; k++) solo_stop(&s[k]);
    }
}

/* A site finds the leaders' signatures on its disk when it starts again. */
static void signatures_outlive_a_start(void **state)
{
    (void)state;
    struct solo s;
    struct neb_buf b;
    static const uint64_t zero;
    static const struct neb_boot_update none;
    struct neb_round *r;
    solo_create(&s, 1, four);
    struct neb_said said = says(&s, NEB_SAID_HOLDS, 0, 64, 1, &(struct neb_hash){{7}});
    neb__buf_init(&b, 1 << 10);
    assert_ok(neb__said_put(&said, &b));
    const size_t one = b.len;
    struct neb_said next = says(&s, NEB_SAID_HOLDS, 1, 65, 2, &(struct neb_hash){{8}});
    assert_ok(neb__said_put(&next, &b));
    const struct neb_round_extra extra[3] = {{NEB_EXTRA_AUTOGRAPH, 1, b.data, one},
                                             {NEB_EXTRA_VOTE, 1, b.data, one},
                                             {NEB_EXTRA_NOTE, 2, b.data + one, b.len - one}};
    struct neb_round_boot boot = {.mark = s.mark.data,
                                  .mark_length = s.mark.len,
                                  .extra = extra,
                                  .extras = 3,
                                  .applied = &zero,
                                  .merged = &zero,
                                  .open = &none,
                                  .work = &zero};
    assert_ok(neb__round_create(&s.r->cfg, &boot, &r));
    assert_true(r->autographs == 2 && r->autograph[0].index == 1 && r->autograph[1].index == 2);
    assert_true(!r->autograph_unsaved);
    next.index++; /* of the same view: it takes the other's place, in memory and as the note of a write */
    neb__autograph_keep(r, &next);
    assert_true(r->autographs == 2 && r->autograph[1].index == 3 && !r->autograph_unsaved);
    next.view += 64; /* of another: the last one of the view before is to be in the ledger for good */
    neb__autograph_keep(r, &next);
    assert_true(r->autographs == 3 && r->autograph_unsaved == 1 << 1);
    assert_true(r->heard_votes == 1 && r->heard_vote[0].index == 1 && !r->vote_unsaved);
    neb__round_destroy(r);
    neb__buf_free(&b);
    solo_stop(&s);
}

/* A site that starts takes a log for one of a view only with the signature of that view's leader, or with a certificate of that view or
 * a later one. */
static void a_claimed_view_needs_its_leaders_signature(void **state)
{
    (void)state;
    struct solo s;
    solo_create(&s, 1, four);
    const struct neb_hash seven = {{7}};
    struct neb_round_frame f = {.type = NEB_ROUND_FRAME_LOG};
    assert_true(neb__autograph_backs(s.r, &f, 0));
    assert_false(neb__autograph_backs(s.r, &f, 64));
    f.saids = 1;
    f.said[0] = says(&s, NEB_SAID_STARTS, 0, 64, 1, &seven);
    assert_true(neb__autograph_backs(s.r, &f, 64) && !neb__autograph_backs(s.r, &f, 128));
    f.said[0].signature[0] ^= 1;
    assert_false(neb__autograph_backs(s.r, &f, 64));
    f.said[0] = says(&s, NEB_SAID_STARTS, 2, 64, 1, &seven); /* it does not lead that view */
    assert_false(neb__autograph_backs(s.r, &f, 64));
    f.said[0] = says(&s, NEB_SAID_VOTES, 0, 64, 1, &seven);
    assert_false(neb__autograph_backs(s.r, &f, 64));
    s.r->newest.n = 1, s.r->newest.view = 128;
    assert_true(neb__autograph_backs(s.r, &f, 128) && !neb__autograph_backs(s.r, &f, 192));
    solo_stop(&s);
}

/* Two voters show two logs of one view, each with the signature of its leader: that one is convicted, whatever lapse it names. Of
 * another site two lapses may be two promises, of which the older is void. */
static void a_leader_with_two_logs_is_convicted(void **state)
{
    (void)state;
    const struct neb_hash one = {{1}}, other = {{2}};
    for (int way = 0; way < 6; way++) {
        struct solo s;
        solo_create(&s, 1, four);
        uint64_t view = way == 3 ? 66 : 64; /* of site 2, of site 0 */
        uint8_t kind = way == 2 ? NEB_SAID_STARTS : NEB_SAID_HOLDS;
        struct neb_said a = says(&s, kind, 0, view, 5, &one);
        struct neb_said b = says(&s, way == 5 ? NEB_SAID_STARTS : kind, 0, view, way == 2 ? 4 : 5, &other);
        if (way == 1 || way == 3) under_lapse(&s, &b, 3);
        if (way == 4) b.signature[3] ^= 1;
        neb__autograph_heard(s.r, &a, false);
        if (way == 3) neb__guilt_vote(s.r, &a, false);
        assert_int_equal(s.r->guilty, 0);
        neb__autograph_heard(s.r, &b, false);
        if (way == 3) (void)neb__guilt_compare(s.r, &b);
        assert_int_equal(s.r->guilty, way == 3 || way == 4 ? 0 : 1);
        solo_stop(&s);
    }
}

/* Somebody shows a vote for less than its author acknowledged, as a certificate here says. */
static void a_vote_is_compared_with_certificates(void **state)
{
    (void)state;
    for (int low = 0; low < 2; low++) {
        struct solo s;
        solo_create(&s, 1, four);
        struct neb_certificate c = {0};
        struct neb_round_frame f = {.type = NEB_ROUND_FRAME_GUILT, .from = 2, .saids = 1, .view = 640};
        struct neb_said ack = says(&s, NEB_SAID_HOLDS, 0, 128, 5, &(struct neb_hash){{1}});
        struct neb_said other = says(&s, NEB_SAID_HOLDS, 2, 128, 5, &(struct neb_hash){{1}});
        assert_true(neb__certificate_add(&c, &ack) && neb__certificate_add(&f.prepared, &other));
        assert_true(neb__cert_store(s.r, &c));
        f.said[0] = says(&s, NEB_SAID_VOTES, 0, 640, 5, &(struct neb_hash){{1}});
        f.said[0].normal = low ? 64 : 128;
        unsigned site = 0;
        struct neb_seal seal = {.arg = &site, .sign = test_sign, .verify = test_verify};
        assert_ok(neb__said_sign(&f.said[0], &s.r->cfg.genesis, &seal));
        solo_frame(&s, f);
        assert_int_equal(s.r->guilty, low);
        solo_stop(&s);
    }
}

/* Everybody who has two certificates that contradict each other shows the signatures of leaders, and compares those of others. */
static void two_histories_show_signatures(void **state)
{
    (void)state;
    struct solo s;
    solo_create(&s, 1, four);
    struct neb_said a = says(&s, NEB_SAID_HOLDS, 0, 64, 5, &(struct neb_hash){{1}});
    struct neb_round_frame f = {.type = NEB_ROUND_FRAME_GUILT, .from = 2, .saids = 1, .view = 64};
    f.said[0] = says(&s, NEB_SAID_HOLDS, 0, 64, 5, &(struct neb_hash){{2}});
    struct neb_said ack = says(&s, NEB_SAID_HOLDS, 2, 64, 5, &(struct neb_hash){{2}});
    assert_true(neb__certificate_add(&f.prepared, &ack));
    neb__autograph_keep(s.r, &a);
    solo_frame(&s, f);
    assert_int_equal(s.r->guilty, 1);
    solo_stop(&s);
}

/* A voter that trusted its disk speaks under an older lapse than it once asked for. The candidate tells it, and it learns its own
 * word from that. */
static void a_void_vote_is_answered(void **state)
{
    (void)state;
    for (int old = 0; old < 2; old++) {
        struct solo s, voter;
        unsigned site = 1;
        uint8_t word[NEB_SEAL_SIZE];
        struct neb_seal seal = {.arg = &site, .sign = test_sign, .verify = test_verify};
        solo_create(&s, 0, four);
        solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = 1});
        struct neb_round *r = s.r;
        assert_ok(neb__lapse_sign(&r->cfg.genesis, &seal, 1, 2, word));
        assert_true(neb__lapse_take(r, 1, 2, word));
        solo_run(&s, 100);
        assert_int_equal(r->durable.lapse[1], 2);
        neb__view_follow(r, 640);
        r->state = NEB_ROUND_ELECT;
        struct neb_round_frame f = {.type = NEB_ROUND_FRAME_VOTE, .from = 1, .number = 640, .saids = 1};
        f.said[0] = says(&s, NEB_SAID_VOTES, 1, 640, 0, &r->cfg.genesis);
        f.said[0].normal = 0;
        under_lapse(&s, &f.said[0], old ? 1 : 2);
        const uint64_t before = s.sent;
        neb__votes_count(r, 1, &f);
        assert_int_equal(r->votes, !old);
        solo_event(&s, (struct neb_event){.type = NEB_EV_STEP});
        assert_int_equal(s.sent > before, old);
        solo_create(&voter, 1, four);
        voter.r->state = NEB_ROUND_FOLLOW;
        struct neb_round_frame report = {.type = NEB_ROUND_FRAME_REPORT, .from = 0, .words = 1};
        report.word[0] = (struct neb_round_frame_word){.site = 1, .lapse = 2};
        memcpy(report.word[0].signature, word, NEB_SEAL_SIZE);
        voter.r->greet_phase = 1;
        solo_frame(&voter, report);
        assert_int_equal(voter.r->lapse[1], 2);
        solo_stop(&voter);
        solo_stop(&s);
    }
}

/* A disk that is trusted may be an old copy. What it counts from now on, its other copy has not counted. */
static void an_old_copy_counts_elsewhere(void **state)
{
    (void)state;
    uint64_t k[3];
    for (uint64_t i = 0; i < 3; i++) {
        struct solo s;
        solo_create(&s, 0, (struct neb_members){1, 3, 3, 3, 0});
        s.r->cfg.seed = 100 + i;
        solo_run(&s, 10000);
        k[i] = s.r->next_k;
        assert_true(k[i] >> 32 == 1 && (uint32_t)k[i] <= UINT32_MAX / 2 + 1); /* life 1, room for as many */
        solo_stop(&s);
    }
    assert_true(k[0] != k[1] && k[1] != k[2] && k[0] != k[2]);
}

/* A leader that was judged stays judged when it is elected again, until something is committed, another one leads, or six times as
 * long has passed. */
static void a_judgement_outlives_an_election(void **state)
{
    (void)state;
    for (int way = 0; way < 4; way++) {
        struct solo s;
        solo_create(&s, 1, four);
        struct neb_round *r = s.r;
        int64_t judged = 0;
        r->now = 1000;
        r->view = r->normal = NEB_SITES_MAX;
        r->ending = true; /* there is something to commit */
        for (int64_t i = 0; i < 5 * r->cfg.idle_ms; i += 500) {
            r->now += 500;
            r->leader_heard = r->now;
            r->state = NEB_ROUND_FOLLOW;
            r->leader = way == 1 && r->idle ? 2 : 0;
            if (r->idle) r->view += NEB_SITES_MAX;
            if (way == 2 && r->idle) r->idle_commit = 9; /* as if that had changed */
            if (way == 3 && r->idle) r->now += 6 * r->cfg.idle_ms;
            bool was = r->idle;
            neb__idle_tick(r);
            if (r->idle && !judged) judged = r->now;
            if (was) assert_int_equal(r->idle, way == 0);
            if (was && way) break;
        }
        assert_true(judged && (way || neb__idle_leader(r, 0)));
        r->ending = false;
        solo_stop(&s);
    }
}

/* A record names an update that nobody gives. One member says that it does not have it, the others say nothing: they may have left.
 * The site then fetches the cell. It asks those first that have answered. */
static void silence_is_an_answer(void **state)
{
    (void)state;
    struct solo s;
    solo_create(&s, 0, (struct neb_members){1, 15, 1, 15, NEB_NO_SITE});
    for (uint16_t i = 1; i < 4; i++) solo_event(&s, (struct neb_event){.type = NEB_EV_PEER_UP, .site = i});
    solo_run(&s, 10000);
    struct neb_round *r = s.r;
    struct neb_record *rec = neb__record_new(1);
    struct neb_buf b;
    assert_non_null(rec);
    rec->type = NEB_RECORD_ROUND;
    rec->c1 = 1;
    rec->eta = r->cfg.eta, rec->mu = r->cfg.mu;
    rec->owner = NEB_NO_SITE;
    rec->index = r->head + 1;
    rec->prev = *neb__log_hash(r, r->head);
    rec->epoch = 1;
    rec->view = r->view;
    rec->update[0] = (struct neb_named){.site = 2, .k = 1, .weight = 1, .tau = 1, .length = 4, .hash = {{3}}};
    neb__buf_init(&b, NEB_RECORD_MAX);
    assert_ok(neb__record_encode(rec, &b));
    assert_true(neb__log_append(r, b.data, b.len));
    neb__log_commit_to(r, r->head);
    struct neb_hash update = {{3}};
    for (int i = 0; i < 200 && !r->cell[0].fetching; i++) {
        solo_run(&s, 100);
        const struct neb_core_update *p = neb__core_update(r, &update, false);
        if (p && p->fetch_from == 1)
            solo_event(&s, (struct neb_event){.type = NEB_EV_NO_UPDATE, .site = 1, .hash = update});
        if (!i) /* it is not on this disk */
            solo_event(&s, (struct neb_event){.type = NEB_EV_NO_UPDATE, .site = NEB_NO_SITE, .hash = update});
    }
    assert_true(r->cell[0].fetching && r->cell[0].asked & neb__bit(1));
    neb__buf_free(&b);
    neb__free(rec);
    solo_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_needs_its_leaders_signature),
        cmocka_unit_test(a_record_bears_its_leaders_view),
        cmocka_unit_test(signatures_outlive_a_start),
        cmocka_unit_test(a_claimed_view_needs_its_leaders_signature),
        cmocka_unit_test(a_leader_with_two_logs_is_convicted),
        cmocka_unit_test(two_histories_show_signatures),
        cmocka_unit_test(a_vote_is_compared_with_certificates),
        cmocka_unit_test(a_void_vote_is_answered),
        cmocka_unit_test(an_old_copy_counts_elsewhere),
        cmocka_unit_test(a_judgement_outlives_an_election),
        cmocka_unit_test(silence_is_an_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
