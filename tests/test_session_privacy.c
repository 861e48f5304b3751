/* test_session_privacy.c: sessions with a privacy budget: what leaves is charged before it leaves, a spent budget stops
 * it, a restored backup does not give it back, and an audit of a folder adds up to the same. */
#include "check.h"
#include "sites.h"
#include "stepping.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "round/certificate.h"
#include "run/audit.h"
#include "run/end.h"
#include "run/session.h"
#include "run/site_status.h"
#include "seal/site.h"
#include "store/disk.h"

#include <nebula/nebula.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { VALUES = 2000, ALLOWED = 6 };

struct member {
    neb_session *session;
    const char *dir;
    float x[VALUES];
    atomic_bool stop;
    neb_status status;
    pthread_t thread;
};

/* ALLOWED updates and no more. */
static struct neb_privacy_rule rule(void)
{
    struct neb_privacy_rule r = {
        .unit = NEB_PRIVACY_SITE, .step = {2, 1}, .clip = 1, .delta = 1e-5, .block = 1};
    assert_ok(neb__privacy_epsilon(&r.step, ALLOWED, r.delta, &r.limit));
    r.limit *= 1 + 1e-9;
    return r;
}

static bool bare; /* sessions without privacy */

static void open_member(struct member *m, const char *dir)
{
    struct neb_session_config c = neb_session_defaults();
    struct neb_privacy_rule r = rule();
    struct neb_session_param p = {.name = "p", .ndim = 1, .shape = {VALUES}, .values = m->x};
    c.interval = 5;
    c.round_ms = 1500;
    c.outer_lr = 1;
    c.outer_momentum = 0;
    c.rung = "int8";
    c.archive = true;
    m->dir = dir;
    atomic_store(&m->stop, false);
    assert_ok(neb_session_open(dir, &c, &m->session));
    if (!bare) assert_ok(neb__session_set_privacy(m->session, &r));
    assert_ok(neb_session_register(m->session, &p));
    assert_ok(neb_session_start(m->session, 0));
}

static void *train(void *arg)
{
    struct member *m = arg;
    while (!atomic_load(&m->stop) && m->status == NEB_OK) {
        for (int i = 0; i < VALUES; i++) m->x[i] += 0.01f * (1 - m->x[i]);
        m->status = step_until(m->session, 64, &m->stop);
        sleep_ms(2);
    }
    return NULL;
}

static void begin(struct member *m, const struct sites *sites)
{
    for (int i = 0; i < 2; i++) open_member(&m[i], sites->path[i]);
    for (int i = 0; i < 2; i++) pthread_create(&m[i].thread, NULL, train, &m[i]);
}

static void end(struct member *m)
{
    for (int i = 0; i < 2; i++) {
        atomic_store(&m[i].stop, true);
        pthread_join(m[i].thread, NULL);
        assert_ok(m[i].status);
    }
    for (int i = 0; i < 2; i++) neb_session_close(m[i].session);
}

static uint64_t charged(struct member *m)
{
    struct neb_privacy_statement s;
    neb__session_privacy_state(m->session, &s);
    assert_true(s.epsilon <= s.limit || s.count > ALLOWED);
    return s.count;
}

/* Until the log says that nothing may leave any more. The driver's thread owns the field while it is busy. */
static void wait_until_shut(struct member *m)
{
    for (bool said = false; !said; sleep_ms(20)) {
        pthread_mutex_lock(&m->session->busy);
        said = m->session->privacy.said;
        pthread_mutex_unlock(&m->session->busy);
    }
}

static void wait_for(struct member *m, uint64_t count)
{
    for (int i = 0; i < 4800 && charged(m) < count; i++) sleep_ms(50);
    if (charged(m) < count)
        fail_msg("only %" PRIu64 " of %" PRIu64 " updates were charged", charged(m), count);
}

static int64_t updates(struct member *m)
{
    struct neb_session_status s;
    neb_session_get_status(m->session, &s);
    return s.updates;
}

/* An update is charged before it counts. */
static void wait_for_updates(struct member *m, int64_t n)
{
    for (int i = 0; i < 4800 && updates(m) < n; i++) sleep_ms(50);
    assert_int_equal(n, updates(m));
}

static void wait_for_steps(struct member *m, int64_t more)
{
    struct neb_session_status s;
    neb_session_get_status(m->session, &s);
    const int64_t until = s.steps + more;
    for (int i = 0; i < 4800 && s.steps < until; i++) {
        sleep_ms(50);
        neb_session_get_status(m->session, &s);
    }
    assert_true(s.steps >= until);
}

static void load(const char *dir, struct neb_buf *out)
{
    char path[300];
    snprintf(path, sizeof path, "%s/run/privacy", dir);
    neb__buf_clear(out);
    assert_ok(neb__file_read(path, out));
}

static void store(const char *dir, const struct neb_buf *b)
{
    char path[300];
    snprintf(path, sizeof path, "%s/run/privacy", dir);
    assert_ok(neb__file_replace(path, b->data, b->len, 0600));
}

static neb_status sign_with(void *key, const char *purpose, const void *p, size_t n,
                            uint8_t out[NEB_SEAL_SIZE])
{
    struct neb_signature given;
    NEB_TRY(neb__key_sign(key, purpose, p, n, &given));
    memcpy(out, given.b, NEB_SEAL_SIZE);
    return NEB_OK;
}

/* Puts two statements of site 2 that contradict each other into the folder of site 1; the key in `signer` signs them. */
static void plant_proof(const struct sites *sites, const struct neb_hash *genesis, const char *signer)
{
    struct neb_key *key;
    struct neb_disk disk;
    struct neb_buf b;
    char dir[300];
    assert_ok(neb__site_key(signer, &key));
    const struct neb_seal seal = {.arg = key, .sign = sign_with};
    neb__buf_init(&b, 1 << 16);
    for (int i = 0; i < 2; i++) {
        struct neb_said s = {.kind = NEB_SAID_HOLDS, .site = 2, .view = 7, .index = 1};
        s.hash.b[0] = (uint8_t)i;
        assert_ok(neb__said_sign(&s, genesis, &seal));
        assert_ok(neb__said_put(&s, &b));
    }
    snprintf(dir, sizeof dir, "%s/run", sites->path[0]);
    assert_ok(neb__disk_open(dir, &disk));
    assert_ok(neb__blob_save(&disk, "guilt-2", b.data, b.len, true));
    neb__disk_close(&disk);
    neb__buf_free(&b);
    neb__key_free(key);
}

/* A file that says guilt in its name names nobody; signatures of the site itself do. */
static void proofs_are_checked(const struct sites *sites, const struct neb_hash *genesis)
{
    for (int i = 0; i < 2; i++) {
        struct neb_audit *a;
        plant_proof(sites, genesis, sites->path[i]);
        assert_ok(neb__run_audit(sites->path[0], NULL, NULL, &a));
        assert_int_equal(1, a->problems);
        assert_int_equal(i == 1, a->site[2].guilty);
        assert_non_null(strstr(a->problem[0], i ? "is proven to lie" : "proves nothing"));
        neb__free(a);
    }
}

/* Both sites signed another first record: then the log in the folder is not the one that they agreed on. */
static void another_history_is_noticed(const struct sites *sites, const struct neb_hash *genesis)
{
    struct neb_certificate c = {.kind = NEB_SAID_HOLDS, .view = 7, .index = 1, .n = 2};
    struct neb_disk disk;
    struct neb_buf b;
    struct neb_audit *a;
    char dir[300];
    bool found = false;
    for (int i = 0; i < 2; i++) c.by[i].site = (uint8_t)(i + 1);
    for (int i = 0; i < 2; i++) {
        struct neb_key *key;
        struct neb_said s;
        assert_ok(neb__site_key(sites->path[i], &key));
        const struct neb_seal seal = {.arg = key, .sign = sign_with};
        neb__certificate_said(&c, i, &s);
        assert_ok(neb__said_sign(&s, genesis, &seal));
        memcpy(c.by[i].signature, s.signature, NEB_SEAL_SIZE);
        neb__key_free(key);
    }
    neb__buf_init(&b, 1 << 16);
    assert_ok(neb__certificate_put(&c, &b));
    snprintf(dir, sizeof dir, "%s/run", sites->path[0]);
    assert_ok(neb__disk_open(dir, &disk));
    assert_ok(neb__blob_save(&disk, "certificate", b.data, b.len, true));
    neb__disk_close(&disk);
    neb__buf_free(&b);
    assert_ok(neb__run_audit(sites->path[0], NULL, NULL, &a));
    for (uint64_t i = 0; i < a->problems; i++)
        found |= strstr(a->problem[i], "certified another record 1") != NULL;
    assert_true(found);
    neb__free(a);
}

static void a_spent_budget_stops_the_updates(void **state)
{
    (void)state;
    static struct member m[2];
    struct sites sites;
    struct neb_audit *a;
    sites_make(&sites, 2, NULL);
    begin(m, &sites);
    for (int i = 0; i < 2; i++) wait_for(&m[i], ALLOWED);
    for (int i = 0; i < 2; i++) { /* the sites go on to train, and nothing more leaves */
        int64_t made = ALLOWED;
        wait_for_updates(&m[i], made);
        wait_for_steps(&m[i], 40);
        assert_int_equal(made, updates(&m[i]));
        assert_int_equal(ALLOWED, charged(&m[i]));
        wait_until_shut(&m[i]);
    }
    end(m);

    assert_ok(neb__run_audit(sites.path[0], NULL, NULL, &a));
    for (uint64_t i = 0; i < a->problems; i++) fail_msg("the audit says: %s", a->problem[i]);
    assert_true(a->rounds > 0 && a->certified > 0 && a->replayed);
    for (int i = 1; i <= 2; i++) {
        const struct neb_audit_site *s = &a->site[i];
        assert_true(s->seen == s->named && s->named > 0 && s->named <= ALLOWED);
        assert_int_equal(NEB_PRIVACY_SITE, s->unit);
        assert_true(s->privacy.epsilon > 0 && s->privacy.epsilon <= s->privacy.limit);
    }
    proofs_are_checked(&sites, &a->genesis);
    another_history_is_noticed(&sites, &a->genesis);
    neb__free(a);
    sites_free(&sites);
}

/* The account of before comes back; the log has own updates that it does not know. They are charged again, and more. */
static void a_restored_account_learns_from_the_log(void **state)
{
    (void)state;
    static struct member m[2];
    struct sites sites;
    struct neb_buf early;
    struct neb_session_status s;
    neb__buf_init(&early, 1 << 16);
    sites_make(&sites, 2, NULL);
    begin(m, &sites);
    wait_for(&m[0], 1);
    load(sites.path[0], &early);
    wait_for(&m[0], ALLOWED);
    do { /* own updates behind the first one are in the log */
        sleep_ms(50);
        neb_session_get_status(m[0].session, &s);
    } while (s.commits < 4);
    end(m);
    store(sites.path[0], &early);

    check_log_quiet();
    begin(m, &sites);
    wait_for(&m[0], 4); /* by then the log was looked at */
    wait_for_steps(&m[0], 40);
    uint64_t before = charged(&m[0]);
    assert_true(before >= 4);
    end(m);

    /* no account at all, as in a folder that was lost */
    char path[300];
    snprintf(path, sizeof path, "%s/run/privacy", sites.path[0]);
    assert_int_equal(0, unlink(path));
    begin(m, &sites);
    wait_for(&m[0], 4);
    end(m);
    check_log_restore();
    neb__buf_free(&early);
    sites_free(&sites);
}

/* Updates left without noise, then the job got a budget: no number would be true. */
static void a_run_that_began_without_privacy_sends_nothing_more(void **state)
{
    (void)state;
    static struct member m[2];
    struct sites sites;
    struct neb_session_status s;
    sites_make(&sites, 2, NULL);
    bare = true;
    begin(m, &sites);
    do {
        sleep_ms(20);
        neb_session_get_status(m[0].session, &s);
    } while (s.commits < 3);
    end(m);
    bare = false;
    check_log_quiet();
    begin(m, &sites);
    for (int i = 0; i < 2; i++) wait_for_steps(&m[i], 40);
    for (int i = 0; i < 2; i++) wait_until_shut(&m[i]);
    for (int i = 0; i < 2; i++) assert_int_equal(0, charged(&m[i]));
    end(m);
    check_log_restore();
    sites_free(&sites);
}

static atomic_bool half_dropped; /* as if the run had ended, and half of the last work were not in it */

void __real_neb__end_get(const neb_session *s, struct neb_end_state *out);
void __wrap_neb__end_get(const neb_session *s, struct neb_end_state *out);

void __wrap_neb__end_get(const neb_session *s, struct neb_end_state *out)
{
    __real_neb__end_get(s, out);
    if (atomic_load(&half_dropped)) out->dropped = 0.5;
}

/* What a site tells of itself is not protected by any noise: not the loss, and not how much of its work the end has dropped. */
static void the_others_do_not_hear_of_the_data(void **state)
{
    (void)state;
    static struct member m[2];
    const struct neb_site_status loop = {.step = 7, .loss = 3, .nonfinite = 2, .tokens_per_second = 5};
    struct neb_site_status heard = {0}, own = {0};
    struct sites sites;
    sites_make(&sites, 2, NULL);
    atomic_store(&half_dropped, true);
    begin(m, &sites);
    while (heard.step != 7) {
        pthread_mutex_lock(&m[0].session->busy);
        neb__session_meter.tell(m[0].session, &loop);
        neb__session_tell_soon(m[0].session);
        pthread_mutex_unlock(&m[0].session->busy);
        sleep_ms(20);
        neb__session_own_status(m[0].session, &own);
        if (own.dropped != 0.5 || !neb__session_heard(m[1].session, own.name, &heard)) heard.step = 0;
    }
    assert_true(own.loss == 3 && own.nonfinite == 2); /* the site itself sees them */
    assert_true(heard.loss == 0 && heard.nonfinite == 0 && heard.dropped == 0);
    end(m);
    atomic_store(&half_dropped, false);
    sites_free(&sites);
}

/* Nobody knows what a damaged account has spent. */
static void a_damaged_account_is_refused(void **state)
{
    (void)state;
    static struct member m[2];
    struct sites sites;
    struct neb_buf b;
    neb__buf_init(&b, 1 << 16);
    sites_make(&sites, 2, NULL);
    begin(m, &sites);
    wait_for(&m[0], 1);
    end(m);
    load(sites.path[0], &b);
    b.data[40] ^= 1;
    store(sites.path[0], &b);
    check_log_quiet();
    struct neb_session_config c = neb_session_defaults();
    struct neb_privacy_rule r = rule();
    struct neb_session_param p = {.name = "p", .ndim = 1, .shape = {VALUES}, .values = m[0].x};
    c.rung = "int8";
    assert_ok(neb_session_open(sites.path[0], &c, &m[0].session));
    assert_ok(neb__session_set_privacy(m[0].session, &r));
    assert_ok(neb_session_register(m[0].session, &p));
    assert_int_equal(NEB_ERR_CORRUPT, neb_session_start(m[0].session, 0));
    neb_session_close(m[0].session);
    check_log_restore();
    neb__buf_free(&b);
    sites_free(&sites);
}

/* The fragments of a sweep share the clip, and all of their values get the noise of the whole sweep. */
static void fragments_get_the_noise_of_a_sweep(void **state)
{
    (void)state;
    enum { MANY = 1 << 20, SEEN = 1 << 16 };
    struct neb_session_config c = neb_session_defaults();
    struct neb_privacy_rule r = rule();
    struct neb_session_param p = {.name = "p", .ndim = 1, .shape = {MANY}};
    neb_session *session;
    struct sites sites;
    double squares = 0;
    float *x = p.values = neb__calloc(MANY, sizeof *x), *z = neb__calloc(SEEN, sizeof *z);
    sites_make(&sites, 2, NULL);
    c.fragments = 4;
    c.rung = "int8";
    assert_ok(neb_session_open(sites.path[0], &c, &session));
    assert_ok(neb__session_set_privacy(session, &r));
    assert_ok(neb_session_register(session, &p));
    assert_ok(neb_session_start(session, 0));
    assert_int_equal(session->fragments, 4);
    assert_ok(neb__session_privatize(session, z, SEEN));
    for (int i = 0; i < SEEN; i++) squares += (double)z[i] * (double)z[i];
    double deviation = sqrt(squares / SEEN), wanted = r.step.noise * r.clip;
    if (!(fabs(deviation / wanted - 1) < 0.03)) fail_msg("the deviation is %g, not %g", deviation, wanted);
    neb_session_close(session);
    neb__free(x);
    neb__free(z);
    sites_free(&sites);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fragments_get_the_noise_of_a_sweep),
        cmocka_unit_test(a_spent_budget_stops_the_updates),
        cmocka_unit_test(a_restored_account_learns_from_the_log),
        cmocka_unit_test(a_run_that_began_without_privacy_sends_nothing_more),
        cmocka_unit_test(the_others_do_not_hear_of_the_data),
        cmocka_unit_test(a_damaged_account_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
