/* test_round.c: the parts under the round protocol: arithmetic, hashes, records, frames, the
 * ledger on a real and on a failing disk. Single cores are in test_round_core.c; the protocol
 * itself is tested by the simulator. */
#include "check.h"
#include "base/mem.h"
#include "base/rng.h"
#include "outer/arith.h"
#include "outer/outer.h"
#include "outer/site.h"
#include "round/core.h"
#include "sim/sim.h"
#include "sim/simdisk.h"
#include "store/ledger.h"
#include "store/update_files.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void arithmetic_matches_the_golden_vector(void **state)
{
    (void)state;
    assert_ok(neb__arith_self_test());
#if defined(__x86_64__)
    uint32_t saved;
    neb__arith_enter(&saved);
    neb__arith_leave(saved | 0x8040); /* flush to zero, as a library built with fast-math leaves it */
    assert_ok(neb__arith_self_test());
    neb__arith_leave(saved);
#endif
}

static void proofs_lead_to_the_root(void **state)
{
    (void)state;
    for (uint32_t cells = 1; cells <= 9; cells++) {
        float theta[36];
        struct neb_outer *o;
        for (int i = 0; i < 36; i++) theta[i] = (float)i;
        assert_ok(neb__outer_create(4, theta, cells * 4 - 1, &o));
        assert_int_equal(o->cells, cells);
        struct neb_hash root, other, path[NEB_PROOF_MAX];
        assert_ok(neb__outer_root(o, &root));
        for (uint32_t c = 0; c < cells; c++) {
            int n;
            size_t at, values = neb__outer_cell(o, c, &at);
            assert_ok(neb__outer_prove(o, c, path, &n));
            assert_ok(
                neb__outer_proved(cells, c, 0, o->theta + at, o->m + at, values, NULL, path, n, &other));
            assert_true(neb__hash_equal(&root, &other));
            assert_ok(
                neb__outer_proved(cells, c, 1, o->theta + at, o->m + at, values, NULL, path, n, &other));
            assert_false(neb__hash_equal(&root, &other));
            if (n)
                assert_status(neb__outer_proved(cells, c, 0, o->theta + at, o->m + at, values, NULL, path,
                                                n - 1, &other),
                              NEB_ERR_CORRUPT);
        }
        neb__outer_destroy(o);
    }
}

/* A cell is applied in chunks, and the result equals that of the whole cell. An overflow at the cell's end
 * leaves its beginning as it was. `moved` holds the change. */
static void a_cell_is_applied_as_a_whole(void **state)
{
    (void)state;
    enum { N = 5000 };
    static float theta[N], z[2][N], moved[N], g[N], t[N], m[N];
    const float *values[2] = {z[0], z[1]};
    uint32_t weight[2] = {3, 1};
    struct neb_outer *o;
    bool finite;
    for (int i = 0; i < N; i++)
        theta[i] = (float)(i % 17) - 8, z[0][i] = 0.01f * (float)(i % 5), z[1][i] = -0.3f;
    assert_ok(neb__outer_create(N, theta, N, &o));
    struct neb_outer_step step = {
        .eta = 0.7f, .mu = 0.9f, .updates = 2, .weight = weight, .values = values, .moved = moved};
    neb__outer_apply(o, 0, &step, &finite);
    memset(m, 0, sizeof m);
    neb__arith_add(g, z[0], 0.75f, N, true);
    neb__arith_add(g, z[1], 0.25f, N, false);
    static float next[N];
    assert_true(neb__arith_nesterov(theta, m, g, 0.7f, 0.9f, N, t, next));
    assert_memory_equal(o->theta, t, sizeof t);
    assert_memory_equal(o->m, next, sizeof next);
    for (int i = 0; i < N; i++) assert_true(moved[i] == t[i] - theta[i]);
    z[0][N - 1] = z[1][N - 1] = 3e38f;
    o->theta[N - 1] = t[N - 1] = 3e38f;
    neb__outer_apply(o, 0, &step, &finite);
    assert_false(finite);
    assert_memory_equal(o->theta, t, sizeof t);
    for (int i = 0; i < N; i++) assert_true(moved[i] == 0);
    neb__outer_destroy(o);
}

/* A site's own side of a record, in one pass: values that were not sent stay. */
static void a_record_takes_what_was_sent(void **state)
{
    (void)state;
    enum { N = 1000 };
    static float x[N], d[N], theta[N], moved[N], decoded[N];
    uint64_t seed = 5;
    for (int i = 0; i < N; i++) {
        seed = neb__mix64(seed);
        x[i] = (float)(seed % 2001) * 1e-3f - 1, theta[i] = (float)(seed >> 20 & 1023) * 1e-3f;
        moved[i] = (float)(seed >> 50 & 63) * 1e-3f;
    }
    memcpy(d, x, sizeof d);
    assert_true(neb__site_delta(d, theta, N));
    for (int i = 0; i < N; i++) decoded[i] = (float)(int)(20 * d[i]) / 20;
    static float edit[N];
    memcpy(edit, d, sizeof d);
    neb__site_take(edit, moved, decoded, N);
    for (int i = 0; i < N; i++) {
        double before = (double)x[i] - theta[i];
        double left = (double)x[i] + edit[i] - (theta[i] + (double)moved[i]);
        assert_true(fabs(before - decoded[i] - left) < 1e-6);
    }
    memcpy(edit, d, sizeof d);
    neb__site_take(edit, moved, NULL, N); /* everything counts as sent */
    for (int i = 0; i < N; i++) assert_true(fabs((double)x[i] + edit[i] - theta[i] - moved[i]) < 1e-6);
    for (int i = 0; i < N; i++) d[i] = i & 1 ? -0.0f : 0, theta[i] = 0; /* -0 counts as nothing to send */
    assert_false(neb__site_delta(d, theta, N));
    d[N - 1] = 1e-40f;
    assert_true(neb__site_delta(d, theta, N));
}

static void overflow_leaves_the_state(void **state)
{
    (void)state;
    float theta[2] = {1, 2}, big[2] = {3e38f, 1}, small[2] = {0.5f, -0.25f};
    const float *values[2] = {big, big};
    uint32_t weight[2] = {1, 1};
    struct neb_outer *o;
    bool finite;
    assert_ok(neb__outer_create(2, theta, 2, &o));
    struct neb_outer_step step = {.eta = 0.7f, .mu = 0.9f, .updates = 2, .weight = weight, .values = values};
    neb__outer_apply(o, 0, &step, &finite);
    assert_false(finite);
    assert_true(o->version[0] == 1 && o->theta[0] == 1 && o->theta[1] == 2 && o->m[0] == 0);
    values[0] = values[1] = small;
    neb__outer_apply(o, 0, &step, &finite);
    assert_true(finite && o->m[0] == 0.5f && o->theta[0] == 1 + 0.7f * (0.5f + 0.9f * 0.5f));
    step.mode = NEB_OUTER_AVERAGE;
    neb__outer_apply(o, 0, &step, &finite);
    assert_true(finite && o->m[0] == 0 && o->version[0] == 3);
    neb__outer_destroy(o);
}

static void merging_conserves_the_work(void **state)
{
    (void)state;
    const float theta[2] = {1, 1}, moved[2] = {1, -1}, sent[2] = {4, 0};
    float x[2] = {6, 3}, d[2] = {6, 3};
    assert_true(neb__site_delta(d, theta, 2) && d[0] == 5 && d[1] == 2);
    x[0] += 7; /* the site trained on while the update travelled */
    neb__site_take(d, moved, sent, 2);
    for (int i = 0; i < 2; i++) x[i] += d[i];
    assert_true(x[0] - (theta[0] + moved[0]) == 5 + 7 - 4 && x[1] - (theta[1] + moved[1]) == 2);
    d[0] = 3, d[1] = 3;
    neb__site_take(d, moved, NULL, 2); /* private: everything counts as sent */
    assert_true(d[0] == -2 && d[1] == -4);
}

static struct neb_record *sample(void)
{
    struct neb_record *r = neb__record_new(2);
    r->type = NEB_RECORD_ROUND;
    r->epoch = 3, r->view = 65, r->index = 9, r->c0 = 1, r->c1 = 4, r->v = 7, r->eta = 1, r->mu = 2;
    for (uint32_t i = 0; i < 2; i++)
        r->update[i] = (struct neb_named){
            .site = (uint16_t)(i + 3), .k = 5, .b = 6, .weight = 2, .tau = 8, .length = 10, .tokens = 11};
    return r;
}

static void records_have_one_form(void **state)
{
    (void)state;
    struct neb_record *r = sample(), *back;
    struct neb_buf b, again;
    neb__buf_init(&b, NEB_RECORD_MAX);
    neb__buf_init(&again, NEB_RECORD_MAX);
    assert_ok(neb__record_encode(r, &b));
    assert_ok(neb__record_decode(b.data, b.len, &back));
    assert_true(back->v == 7 && back->updates == 2 && back->update[1].site == 4 &&
                neb__record_of(back, 3)->k == 5);
    neb__free(back);
    struct neb_rng g = {7};
    for (int i = 0; i < 20000; i++) { /* bytes that decode encode to the same bytes */
        uint8_t copy[400];
        size_t n = b.len;
        memcpy(copy, b.data, n);
        if (i % 3 == 0) n = neb__rng_below(&g, n + 1);
        for (int k = 0; k < 1 + i % 3; k++) copy[neb__rng_below(&g, b.len)] = (uint8_t)neb__rng_next(&g);
        if (neb__record_decode(copy, n, &back) != NEB_OK) continue;
        neb__buf_clear(&again);
        assert_ok(neb__record_encode(back, &again));
        assert_true(again.len == n && !memcmp(again.data, copy, n));
        neb__free(back);
    }
    neb__buf_free(&b);
    neb__buf_free(&again);
    neb__free(r);
}

static void frames_survive_hostile_bytes(void **state)
{
    (void)state;
    static struct neb_round_frame_item items[NEB_ROUND_FRAME_LIST], in[NEB_ROUND_FRAME_LIST];
    static struct neb_round_frame_cert cert[NEB_ROUND_FRAME_CERTS], certs[NEB_ROUND_FRAME_CERTS];
    struct neb_rng g = {3};
    for (int type = NEB_ROUND_FRAME_HELLO; type <= NEB_ROUND_FRAME_FORCE; type++) {
        struct neb_round_frame f = {
            .type = (uint8_t)type, .from = 5, .epoch = 2, .view = 69, .number = 4, .items = 2, .roots = 1};
        f.item = items;
        f.cert = cert;
        f.certs = 1;
        f.order = (struct neb_order){.op = NEB_OP_EVICT, .site = 2};
        f.lapses[5] = 9;
        struct neb_buf b;
        neb__buf_init(&b, NEB_ROUND_FRAME_MAX);
        assert_ok(neb__round_frame_encode(&f, &b));
        assert_ok(neb__round_frame_decode(b.data, b.len, in, certs, &f));
        for (int i = 0; i < 3000; i++) {
            uint8_t copy[2048];
            memcpy(copy, b.data, b.len);
            copy[neb__rng_below(&g, b.len)] = (uint8_t)neb__rng_next(&g);
            (void)neb__round_frame_decode(copy, i % 2 ? b.len : neb__rng_below(&g, b.len), in, certs, &f);
        }
        neb__buf_free(&b);
    }
}

static void members_and_quorums(void **state)
{
    (void)state;
    struct neb_members three = {1, 15, 7, 15, NEB_NO_SITE}, two = {1, 3, 3, 3, NEB_NO_SITE},
                       survivor = {1, 3, 3, 3, 0};
    assert_true(neb__members_quorum(&three) == 2 && neb__members_has_quorum(&three, 3) &&
                !neb__members_has_quorum(&three, 9));
    assert_true(!neb__members_has_quorum(&two, 1) && neb__members_remembers(&two, 0, 2));
    assert_true(neb__members_has_quorum(&survivor, 1) && !neb__members_has_quorum(&survivor, 2));
    assert_true(
        !neb__members_remembers(&survivor, 0, 2)); /* it may have committed alone, and nobody can tell it */
    assert_true(neb__members_remembers(&survivor, 1, 1));
    /* without a vote: either of two voters alone would be enough, and the two would not know of each other */
    assert_true(!neb__members_remembers(&two, 5, 1) && !neb__members_remembers(&two, 5, 2));
    assert_true(neb__members_remembers(&two, 5, 3));
    struct neb_members next = three;
    next.epoch = 2, next.voters = 15;
    assert_true(neb__members_follows(&three, &next));
    next.voters = 3, next.members = 7;
    assert_false(neb__members_follows(&three, &next)); /* two sites changed */
}

static void append(struct neb_ledger *l, uint64_t first, const char *text, uint64_t head, const char *mark,
                   neb_status want)
{
    const uint8_t *rec[8];
    size_t len[8];
    uint64_t n = strlen(text);
    for (uint64_t i = 0; i < n; i++) rec[i] = (const uint8_t *)text + i, len[i] = 1;
    struct neb_ledger_batch b = {first, n, rec, len, head, (const uint8_t *)mark, strlen(mark), NULL, 0};
    assert_status(neb__ledger_append(l, &b), want);
}

static void expect(const struct neb_ledger_found *f, bool damaged, const char *text, const char *mark)
{
    assert_int_equal(f->damaged, damaged);
    assert_int_equal(f->records, strlen(text));
    for (uint64_t i = 0; i < f->records; i++) assert_int_equal(f->bytes.data[f->at[i]], text[i]);
    assert_int_equal(f->mark_length, strlen(mark));
    assert_memory_equal(f->bytes.data + f->mark_at, mark, strlen(mark));
}

static void ledger_on_a_real_folder(void **state)
{
    (void)state;
    char dir[256];
    struct neb_disk d, second;
    struct neb_ledger l;
    struct neb_ledger_found f;
    check_make_dir(dir, sizeof dir);
    assert_ok(neb__disk_open(dir, &d));
    check_log_quiet();
    assert_status(neb__disk_open(dir, &second), NEB_ERR_BUSY);
    assert_ok(neb__ledger_create(&d, (const uint8_t *)"m0", 2));
    assert_status(neb__ledger_create(&d, (const uint8_t *)"m0", 2), NEB_ERR_EXISTS);
    assert_ok(neb__ledger_open(&d, &l, &f));
    expect(&f, false, "", "m0");
    neb__ledger_found_free(&f);
    append(&l, 1, "abc", 3, "m1", NEB_OK);
    append(&l, 2, "xy", 3, "m2", NEB_OK); /* replaces b and c */
    append(&l, 3, "", 2, "m3", NEB_OK);   /* cuts y */
    assert_ok(neb__ledger_open(&d, &l, &f));
    expect(&f, false, "ax", "m3");
    neb__ledger_found_free(&f);
    uint64_t size = l.length;
    assert_ok(d.ops->write(d.ctx, "ledger", size, "garbage", 7)); /* above the mark: it does not count */
    assert_ok(neb__ledger_open(&d, &l, &f));
    expect(&f, false, "ax", "m3");
    neb__ledger_found_free(&f);
    assert_ok(d.ops->write(d.ctx, "ledger", size - 1, "?", 1)); /* below it: damaged */
    assert_ok(neb__ledger_open(&d, &l, &f));
    expect(&f, true, "axy", "m2");
    neb__ledger_found_free(&f);
    check_log_restore();
    neb__disk_close(&d);
    check_remove_dir(dir);
}

/* Appends records, each with a note of its own, until the power goes. */
static uint64_t append_until_dead(struct neb_ledger *l, const struct neb_simdisk *d, uint64_t acked)
{
    while (!d->dead) {
        const uint8_t *rec = (const uint8_t *)"r";
        size_t len = 1;
        char text[16];
        (void)snprintf(text, sizeof text, "note %u", (unsigned)acked + 1);
        const struct neb_ledger_extra note = {NEB_LEDGER_NOTE, acked + 1, (const uint8_t *)text,
                                              strlen(text)};
        struct neb_ledger_batch b = {acked + 1, 1,     &rec, &len, acked + 1, (const uint8_t *)"mark",
                                     4,         &note, 1};
        if (neb__ledger_append(l, &b) == NEB_OK) acked++;
    }
    return acked;
}

/* The last record's note is found with it. Notes of earlier records are not, and take no room. */
static void expect_note(const struct neb_ledger_found *f)
{
    char text[16];
    assert_int_equal(f->extras, !!f->records);
    if (!f->records) return;
    (void)snprintf(text, sizeof text, "note %u", (unsigned)f->records);
    assert_true(f->extra->kind == NEB_LEDGER_NOTE && f->extra->index == f->records);
    assert_int_equal(f->extra->length, strlen(text));
    assert_memory_equal(f->extra->bytes, text, strlen(text));
    enum { HEAD = 29, BATCH = HEAD + 1 + HEAD + 4 };
    assert_true(f->mark_at + f->mark_length == HEAD + 1 + f->records * BATCH);
}

static void ledger_survives_every_crash_point(void **state)
{
    (void)state;
    check_log_quiet();
    for (uint64_t seed = 0; seed < 4000; seed++) {
        struct neb_rng rng = {seed};
        struct neb_simdisk d;
        struct neb_ledger l;
        struct neb_ledger_found f;
        neb__simdisk_init(&d, &rng);
        assert_ok(neb__ledger_create(&d.disk, (const uint8_t *)"m", 1));
        assert_ok(neb__ledger_open(&d.disk, &l, &f));
        neb__ledger_found_free(&f);
        uint64_t acked = 0;
        for (int life = 0; life < 4; life++) { /* a power loss shortly after a start, too */
            d.ops_left = 1 + (int64_t)(life ? neb__rng_below(&rng, 8) : seed % 40);
            acked = append_until_dead(&l, &d, acked);
            neb__simdisk_crash(&d, neb__rng_below(&rng, 8));
            assert_ok(neb__ledger_open(&d.disk, &l, &f));
            assert_false(f.damaged);
            assert_true(f.records == acked || f.records == acked + 1);
            expect_note(&f);
            acked = f.records;
            neb__ledger_found_free(&f);
        }
        neb__simdisk_free(&d);
    }
    check_log_restore();
}

static void full_disk_is_tried_again(void **state)
{
    (void)state;
    check_log_quiet();
    struct neb_rng rng = {1};
    struct neb_simdisk d;
    struct neb_ledger l;
    struct neb_ledger_found f;
    neb__simdisk_init(&d, &rng);
    assert_ok(neb__ledger_create(&d.disk, (const uint8_t *)"m", 1));
    assert_ok(neb__ledger_open(&d.disk, &l, &f));
    neb__ledger_found_free(&f);
    d.full = true;
    append(&l, 1, "a", 1, "n", NEB_ERR_NOSPACE);
    d.full = false;
    append(&l, 1, "a", 1, "n", NEB_OK);
    d.fail_sync = true;
    append(&l, 2, "b", 2, "o", NEB_ERR_IO);
    append(&l, 2, "b", 2, "o", NEB_ERR_IO); /* a failed sync is never tried again */
    struct neb_update_files p;
    struct neb_hash h;
    assert_ok(neb__update_files_open(&d.disk, 10, &p));
    assert_ok(neb__hash("12345678", 8, &h));
    assert_status(neb__update_save(&p, &h, "12345679", 8), NEB_ERR_CORRUPT);
    assert_ok(neb__update_save(&p, &h, "12345678", 8));
    assert_ok(neb__hash("abc", 3, &h));
    assert_status(neb__update_save(&p, &h, "abc", 3), NEB_ERR_NOSPACE);
    neb__simdisk_free(&d);
    check_log_restore();
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    check_log_quiet();
    struct neb_sim_result r;
    int64_t held = neb__mem_held();
    struct neb_sim_fault o = {.seed = 5, .sites = 3, .happy = true};
    neb__mem_fail_at(0);
    assert_ok(neb__sim_fault(&o, &r));
    int64_t total = neb__mem_count();
    for (int64_t i = 1; i < total; i += 1 + total / 400) {
        neb__mem_fail_at(i);
        (void)neb__sim_fault(&o, &r);
        neb__mem_fail_at(0);
        assert_int_equal(neb__mem_held(), held);
    }
    check_log_restore();
}

static void one_seed_one_history(void **state)
{
    (void)state;
    struct neb_sim_result a, b;
    check_log_quiet();
    for (uint64_t seed = 900; seed < 905; seed++) {
        assert_ok(neb__sim_fault(&(struct neb_sim_fault){.seed = seed}, &a));
        assert_ok(neb__sim_fault(&(struct neb_sim_fault){.seed = seed}, &b));
        assert_memory_equal(&a, &b, sizeof a);
    }
    check_log_restore();
}

/* Machines start within half a second of each other. Greeting and election then take a few round trips and
 * syncs (up to 90 ms and 15 ms here), not a timeout of seconds. */
static void a_clean_start_has_a_leader_at_once(void **state)
{
    (void)state;
    check_log_quiet();
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct neb_sim_result r;
        assert_ok(neb__sim_fault(&(struct neb_sim_fault){.seed = seed, .sites = 3, .happy = true}, &r));
        if (r.led_ms > 1500) fail_msg("seed %d: the first leader after %d ms", (int)seed, (int)r.led_ms);
    }
    check_log_restore();
}

static void forecasts_respect_the_line(void **state)
{
    (void)state;
    struct neb_sim_whatif o = {.sites = 4,
                               .rounds = 20,
                               .steps = 10,
                               .params = 124e6,
                               .bits = 4,
                               .up = 1e8,
                               .down = 1e8,
                               .rtt = 0.05,
                               .step = 0.5,
                               .slow = 1};
    struct neb_sim_forecast f;
    assert_ok(neb__sim_whatif(&o, &f));
    assert_true(f.limit_s > 14.8 && f.limit_s < 15 && f.round_s >= f.limit_s && f.round_s < 1.1 * f.limit_s);
    assert_true(f.up_use > 0.9 && f.up_use <= 1.001 && f.updates > 3.9);
    o.steps = 1000; /* the line is idle most of the time */
    assert_ok(neb__sim_whatif(&o, &f));
    assert_true(f.round_s > 500 && f.round_s < 550 && f.up_use < 0.1);
    o.sites = 10000, o.owners = true, o.steps = 100, o.rounds = 3;
    assert_ok(neb__sim_whatif(&o, &f));
    assert_true(f.updates > 9999 && f.bytes_out < 2.01 * 124e6 / 2);
    o.sites = 10, o.owners = false, o.slow = 4, o.slow_share = 0.2;
    assert_ok(neb__sim_whatif(&o, &f));
    assert_true(f.updates < 10);
    check_log_quiet();
    o.sites = 10001;
    assert_status(neb__sim_whatif(&o, &f), NEB_ERR_INVALID);
    check_log_restore();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arithmetic_matches_the_golden_vector),
        cmocka_unit_test(proofs_lead_to_the_root),
        cmocka_unit_test(a_cell_is_applied_as_a_whole),
        cmocka_unit_test(a_record_takes_what_was_sent),
        cmocka_unit_test(overflow_leaves_the_state),
        cmocka_unit_test(merging_conserves_the_work),
        cmocka_unit_test(records_have_one_form),
        cmocka_unit_test(frames_survive_hostile_bytes),
        cmocka_unit_test(members_and_quorums),
        cmocka_unit_test(ledger_on_a_real_folder),
        cmocka_unit_test(ledger_survives_every_crash_point),
        cmocka_unit_test(full_disk_is_tried_again),
        cmocka_unit_test(one_seed_one_history),
        cmocka_unit_test(a_clean_start_has_a_leader_at_once),
        cmocka_unit_test(forecasts_respect_the_line),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
