/* test_influence.c: what one site can do to the model under the rule of a roster: its weight, its tokens, the length of
 * its updates, single coordinates. Every site computes the same, and so does a replay. */
#include "check.h"
#include "sites.h"
#include "base/mem.h"
#include "outer/outer.h"
#include "round/influence.h"
#include "run/influence.h"
#include "run/replay.h"
#include "run/session.h"
#include "run/site_status.h"

#include <math.h>
#include <nebula/nebula.h>
#include <stdlib.h>
#include <string.h>

/* ---- the rule ------------------------------------------------------------------------------------------ */

static void rules_are_read_or_refused(void **state)
{
    (void)state;
    struct neb_influence r;
    assert_ok(neb__influence_parse("clip=4", 2, &r));
    assert_true(r.on && r.clip == 4 && r.combine == NEB_COMBINE_MEAN && !r.equal && !r.weight_max);
    assert_ok(neb__influence_parse("combine=trimmed weights=64 bound=1.5 clip=0", 7, &r));
    assert_true(r.combine == NEB_COMBINE_TRIMMED && r.liars == 2 && r.bound == 1.5f && r.clip == 0 &&
                r.equal);
    assert_ok(neb__influence_parse("off", 0, &r));
    assert_false(r.on);
    check_log_quiet();
    static const char *const wrong[] = {
        "clip",     "clip=x",     "clip=0.5",        "clip=nan", "combine=krum",    "liars=0",   "weights=0",
        "bound=-1", "clip=4 off", "clip=4\nbound=2", "klip=4",   "combine=trimmed", "liars=1=2", "=4"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (neb__influence_parse(wrong[i], 3, &r) != NEB_ERR_CONFIG) fail_msg("'%s' was taken", wrong[i]);
    check_log_restore();
}

static struct neb_record *record_of(const uint32_t *weight, const uint32_t *tau, uint32_t n)
{
    struct neb_record *rec = neb__record_new(n);
    rec->type = NEB_RECORD_ROUND;
    for (uint32_t i = 0; i < n; i++)
        rec->update[i] = (struct neb_named){
            .site = (uint16_t)i, .weight = weight[i], .tau = tau[i], .tokens = (uint64_t)weight[i] * tau[i]};
    return rec;
}

static void weights_and_tokens_are_compared_with_the_others(void **state)
{
    (void)state;
    struct neb_influence rule, off = {0};
    uint32_t out[3];
    assert_ok(neb__influence_parse("clip=4", 3, &rule));
    struct neb_record *rec =
        record_of((uint32_t[]){100, 200, UINT32_MAX}, (uint32_t[]){10, 20, UINT32_MAX}, 3);
    neb__influence_weights(&rule, rec, out);
    assert_true(out[0] == 100 && out[1] == 200 && out[2] == 800);
    assert_true(neb__influence_tokens(&rule, rec, 1) == 4000);
    assert_true(neb__influence_tokens(&rule, rec, 2) == 8 * 20 * 800);
    assert_ok(neb__influence_parse("clip=4 steps=16", 3, &rule));
    assert_true(neb__influence_tokens(&rule, rec, 2) == 16 * 20 * 800);
    check_log_quiet();
    assert_status(neb__influence_parse("steps=0", 3, &rule), NEB_ERR_CONFIG);
    assert_status(neb__influence_parse("steps=65", 3, &rule), NEB_ERR_CONFIG);
    check_log_restore();
    rec->update[1].tokens = (uint64_t)1 << 50;
    assert_true(neb__influence_tokens(&rule, rec, 1) == 4000); /* what 20 steps of 200 can have seen */
    neb__influence_weights(&off, rec, out);
    assert_true(out[2] == UINT32_MAX && neb__influence_tokens(&off, rec, 1) == (uint64_t)1 << 50);
    assert_ok(neb__influence_parse("weights=150", 3, &rule));
    neb__influence_weights(&rule, rec, out);
    assert_true(out[0] == 100 && out[1] == 150 && out[2] == 150);
    assert_ok(neb__influence_parse("weights=equal", 3, &rule));
    neb__influence_weights(&rule, rec, out);
    assert_true(out[0] == 1 && out[1] == 1 && out[2] == 1);
    neb__free(rec);
    rec = record_of((uint32_t[]){UINT32_MAX, 50}, (uint32_t[]){1, 1}, 2); /* of two the modest one decides */
    assert_ok(neb__influence_parse("clip=4", 2, &rule));
    neb__influence_weights(&rule, rec, out);
    assert_true(out[0] == 200 && out[1] == 50);
    neb__free(rec);
}

static void a_robust_rule_counts_no_more_tokens_than_the_middle_site(void **state)
{
    (void)state;
    struct neb_influence rule;
    assert_ok(neb__influence_parse("clip=2 combine=trimmed", 4, &rule));
    struct neb_record *rec =
        record_of((uint32_t[]){100, 120, 90, UINT32_MAX}, (uint32_t[]){10, 10, 10, UINT32_MAX}, 4);
    assert_true(neb__influence_tokens(&rule, rec, 0) == 1000 && neb__influence_tokens(&rule, rec, 2) == 900);
    assert_true(neb__influence_tokens(&rule, rec, 1) == 1000 && neb__influence_tokens(&rule, rec, 3) == 1000);
    rec->update[3].reject = NEB_REJECT_NORM; /* then the middle is that of the three others */
    assert_true(neb__influence_tokens(&rule, rec, 1) == 1000);
    neb__free(rec);
}

/* ---- lengths ------------------------------------------------------------------------------------------- */

static void long_updates_are_made_shorter(void **state)
{
    (void)state;
    static struct neb_norms norms;
    const struct neb_norm_rule rule = {.clip = 4}, bounded = {.clip = 4, .bound = 10};
    uint16_t site[4] = {0, 1, 2, 3};
    uint8_t cls[4] = {0};
    double norm[4] = {1, 1.5, 45, 2};
    float scale[4];
    struct neb_norm_step two = {2, site, cls, norm}, four = {4, site, cls, norm},
                         liar = {1, site + 2, cls, norm + 2};
    neb__norms_scales(&norms, &rule, &four, scale);
    assert_true(scale[0] == 1 && scale[1] == 1 && scale[3] == 1);
    assert_true(scale[2] == (float)(4 * 1.5 / 45)); /* the lower one of the two in the middle */
    neb__norms_add(&norms, &four, scale);
    assert_true(norms.last[0][2][0] <= 6.0001f && norms.last[0][2][1] == 0 && norms.last[0][0][0] == 1);
    neb__norms_scales(&norms, &rule, &liar,
                      scale); /* alone in its record: the others' lengths are remembered */
    assert_true(scale[0] <= 0.2f);
    for (int i = 0; i < 20; i++) { /* patience does not help it */
        neb__norms_scales(&norms, &rule, &liar, scale);
        neb__norms_add(&norms, &liar, scale);
    }
    assert_true(norms.last[0][2][0] <= 8.0001f);
    memset(&norms, 0, sizeof norms);
    norm[1] = 1e9;
    neb__norms_scales(&norms, &rule, &two, scale); /* two sites have no middle */
    assert_true(scale[0] == 1 && scale[1] == 1);
    neb__norms_scales(&norms, &bounded, &two, scale);
    assert_true(scale[0] == 1 && scale[1] == 1e-8f);
    cls[1] = cls[2] = cls[3] = 1; /* classes are not compared with each other */
    norm[0] = 1e9, norm[1] = norm[2] = norm[3] = 1;
    neb__norms_scales(&norms, &rule, &four, scale);
    assert_true(scale[0] == 1);
}

/* Sites measure cells in pairs, a replay measures them one by one: a bit's difference would be two histories. */
static void two_lengths_at_a_time_are_those_of_one(void **state)
{
    (void)state;
    enum { N = 1000 };
    static const size_t size[][2] = {{N, N}, {N, 7}, {0, N}, {N, 0}, {1, 2}};
    float a[N], b[N];
    double sum[2];
    for (int i = 0; i < N; i++) a[i] = 1e-3f * (float)(i % 97) - 0.05f, b[i] = 1e4f / (float)(1 + i % 89);
    for (size_t k = 0; k < sizeof size / sizeof *size; k++) {
        neb__norms_squares(a, size[k][0], b, size[k][1], sum);
        assert_true(sum[0] == neb__norms_square(a, size[k][0]) && sum[1] == neb__norms_square(b, size[k][1]));
    }
}

/* Gives a bit for each update that is left out. */
static unsigned outliers(const char *text, uint32_t sites, uint32_t n, const double *norm)
{
    struct neb_influence rule;
    bool out[8];
    unsigned bits = 0;
    assert_ok(neb__influence_parse(text, sites, &rule));
    neb__influence_outliers(&rule, norm, n, out);
    for (uint32_t i = 0; i < n; i++) bits |= (unsigned)out[i] << i;
    return bits;
}

static void a_robust_rule_leaves_out_what_is_far_too_long(void **state)
{
    (void)state;
    const char *trimmed = "clip=2 combine=trimmed";
    assert_true(outliers(trimmed, 4, 4, (double[]){1, 1.5, 30, 1.2}) == 4);
    assert_true(outliers(trimmed, 4, 4, (double[]){1, 1.5, 4, 1.2}) == 0); /* the clip makes it shorter */
    assert_true(outliers(trimmed, 4, 3, (double[]){1, 1.5, 1e9}) == 0);    /* three must stay */
    assert_true(outliers(trimmed, 4, 4, (double[]){1, 9, 1.5, 1e9}) == 8); /* the longest goes first */
    assert_true(outliers(trimmed, 4, 4, (double[]){0, 9, 9, 9}) ==
                0); /* one that sends nothing moves no middle */
    assert_true(outliers(trimmed, 7, 7, (double[]){1, 1, 1, 1e9, 1, 1e8, 1}) == (8 | 32));
    assert_true(outliers("clip=0 combine=trimmed", 4, 4, (double[]){1, 1.5, 30, 1.2}) == 0);
    assert_true(outliers("clip=2", 4, 4, (double[]){1, 1.5, 30, 1.2}) == 0);
}

static void lengths_are_under_the_hash_of_a_cell(void **state)
{
    (void)state;
    float theta[6] = {1, 2, 3, 4, 5, 6}, zero[2] = {0};
    struct neb_outer *plain, *kept, *other;
    struct neb_hash a, b, c, path[NEB_PROOF_MAX];
    static struct neb_norms norms;
    int n;
    assert_ok(neb__outer_create(2, theta, 6, &plain));
    assert_ok(neb__outer_create(2, theta, 6, &kept));
    assert_ok(neb__outer_create(2, theta, 6, &other));
    assert_ok(neb__outer_root(kept, &a));
    assert_ok(neb__outer_root(plain, &b));
    assert_true(neb__hash_equal(&a, &b)); /* without a rule nothing changes */
    assert_ok(neb__outer_keep_norms(kept));
    assert_ok(neb__outer_keep_norms(other));
    norms.last[0][5][0] = 3;
    assert_ok(neb__outer_install(kept, 1, 7, theta, zero, &norms));
    assert_ok(neb__outer_root(kept, &a));
    assert_false(neb__hash_equal(&a, &b));
    assert_ok(neb__outer_prove(kept, 1, path, &n));
    assert_ok(neb__outer_proved(3, 1, 7, theta, zero, 2, &norms, path, n, &c));
    assert_true(neb__hash_equal(&a, &c));
    norms.last[0][5][0] = 4; /* a cell with other lengths does not prove this root */
    assert_ok(neb__outer_proved(3, 1, 7, theta, zero, 2, &norms, path, n, &c));
    assert_false(neb__hash_equal(&a, &c));
    check_log_quiet();
    assert_status(neb__outer_install(other, 1, 7, theta, zero, NULL), NEB_ERR_RANGE);
    norms.last[1][63][3] = NAN;
    assert_status(neb__outer_install(other, 1, 7, theta, zero, &norms), NEB_ERR_RANGE);
    check_log_restore();
    neb__outer_destroy(plain), neb__outer_destroy(kept), neb__outer_destroy(other);
}

/* ---- coordinates --------------------------------------------------------------------------------------- */

static float combined(uint8_t combine, uint8_t liars, uint32_t n, const float *v)
{
    float theta = 0, value[5][1];
    const float *values[5];
    uint32_t weight[5] = {1, 1, 1, 1, 1};
    struct neb_outer *o;
    bool finite;
    for (uint32_t i = 0; i < n; i++) value[i][0] = v[i], values[i] = value[i];
    assert_ok(neb__outer_create(1, &theta, 1, &o));
    struct neb_outer_step step = {.mode = NEB_OUTER_AVERAGE,
                                  .updates = n,
                                  .weight = weight,
                                  .values = values,
                                  .combine = combine,
                                  .liars = liars};
    neb__outer_apply(o, 0, &step, &finite);
    assert_true(finite && o->version[0] == 1);
    theta = o->theta[0];
    neb__outer_destroy(o);
    return theta;
}

static void one_site_moves_no_coordinate_alone(void **state)
{
    (void)state;
    const float v[5] = {1, -30000, 2, 3, 1e30f};
    assert_true(combined(NEB_COMBINE_TRIMMED, 1, 4, v) == 1.5f);
    assert_true(combined(NEB_COMBINE_TRIMMED, 2, 5, v) == 2);
    assert_true(combined(NEB_COMBINE_MEDIAN, 1, 5, v) == 2);
    assert_true(combined(NEB_COMBINE_MEDIAN, 1, 4, v) == 1.5f);
    assert_true(combined(NEB_COMBINE_TRIMMED, 1, 3, v) == 1);
    assert_true(combined(NEB_COMBINE_TRIMMED, 1, 2, v) == 0); /* too few: nothing moves */
    assert_true(combined(NEB_COMBINE_MEAN, 0, 3, v) < -9000);
}

/* ---- whole sites --------------------------------------------------------------------------------------- */

enum { VALUES = 5000, SITES = 4, LIAR = 3 };

struct member {
    neb_session *s;
    float *x;
};

static void begin(struct member *m, const char *folder)
{
    struct neb_session_config c = neb_session_defaults();
    c.interval = 5;
    c.fragments = 1;
    c.round_ms = 2000;
    c.rung = "int8";
    c.archive = true;
    assert_ok(neb_session_open(folder, &c, &m->s));
    struct neb_session_param p = {.name = "p", .ndim = 1, .shape = {VALUES}, .values = m->x};
    assert_ok(neb_session_register(m->s, &p));
    assert_ok(neb_session_start(m->s, 0));
}

static int64_t applied(const struct member *m)
{
    struct neb_session_status st;
    neb_session_get_status(m->s, &st);
    if (st.halted) fail_msg("a site stopped: %s", st.note);
    return st.applied;
}

/* The honest ones pull towards 1. The liar goes the other way, as far as its updates let it. */
static void step(struct member *m, int site)
{
    bool changed;
    for (int v = 0; v < VALUES; v++)
        m->x[v] += site == LIAR ? -30.0f : 0.02f * (1 + 0.01f * (float)site - m->x[v]);
    neb_status st = neb_step_within(m->s, 64, 0.01, &changed);
    assert_true(st == NEB_OK || st == NEB_ERR_AGAIN);
}

/* Until all sites have applied so many records. One that is ahead of another makes no steps: none falls so far behind, on a machine
 * with much to do, that it takes a cell in place of the updates, which a replay of its folder would lack. */
static void walk(struct member *m, int64_t records)
{
    enum { AHEAD = 2 };
    for (;;) {
        int64_t at[SITES], least = INT64_MAX;
        for (int k = 0; k < SITES; k++) {
            at[k] = applied(&m[k]);
            if (at[k] < least) least = at[k];
        }
        if (least >= records) return;
        for (int k = 0; k < SITES; k++)
            if (at[k] <= least + AHEAD) step(&m[k], k);
        sleep_ms(2);
    }
}

struct seen {
    float value; /* of theta */
    struct neb_hash root;
    uint64_t record; /* after which it is so */
};

/* Once the site has walked its whole log, and that is at least so long. */
static struct seen look(struct member *m, uint64_t least)
{
    struct seen seen = {0};
    for (bool whole = false; !whole; sleep_ms(5)) {
        struct neb_round_status st;
        pthread_mutex_lock(&m->s->busy);
        neb__round_status(m->s->core, &st);
        whole = st.whole && st.applied == st.commit && st.commit >= least;
        assert_ok(neb__outer_root(m->s->mirror.outer, &seen.root));
        seen.value = m->s->mirror.outer->theta[VALUES / 2];
        seen.record = st.applied;
        pthread_mutex_unlock(&m->s->busy);
    }
    return seen;
}

static int of_liar(const char *scaled)
{
    const char *liar = strstr(scaled, "s3: ");
    return liar ? atoi(liar + 4) : 0;
}

/* Gives theta where it was farthest from 1. */
static float train_with_a_liar(const char *rule, char *scaled, size_t size)
{
    struct sites sites;
    struct member m[SITES];
    struct neb_site_status st;
    struct seen seen[SITES];
    float worst = 1;
    sites_make(&sites, SITES, NULL);
    sites_rule(&sites, rule);
    check_log_quiet();
    for (int i = 0; i < SITES; i++) {
        m[i].x = neb__calloc(VALUES, sizeof(float));
        begin(&m[i], sites.path[i]);
    }
    walk(m, 20); /* past the first snapshots */
    for (int i = 0; i < SITES; i++) neb_session_close(m[i].s);
    for (int i = 0; i < SITES; i++) {
        memset(m[i].x, 0, VALUES * sizeof(float));
        begin(&m[i], sites.path[i]); /* from a snapshot and the records behind it */
    }
    for (int64_t r = 24; r <= 600; r += 4) { /* until enough of the liar's updates have come in time */
        walk(m, r);
        float value = look(&m[0], 0).value;
        if (fabsf(value - 1) > fabsf(worst - 1)) worst = value;
        neb__session_own_status(m[0].s, &st);
        snprintf(scaled, size, "%s", st.scaled_of);
        if (strcmp(rule, "off") ? of_liar(scaled) >= 10 : fabsf(worst) > 100) break;
    }
    for (int i = 0; i < SITES; i++) seen[i] = look(&m[i], i ? seen[0].record : 0);
    for (int i = 0; i < SITES; i++) {
        neb_session_close(m[i].s);
        neb__free(m[i].x);
    }
    for (int i = 0; i < SITES; i++) {
        struct neb_replay again;
        assert_ok(neb__run_replay(sites.path[i], NULL, seen[i].record, &again));
        assert_true(neb__hash_equal(&seen[i].root, &again.root));
        assert_ok(neb__run_replay(sites.path[(i + 1) % SITES], NULL, seen[0].record,
                                  &again)); /* by another's log */
        assert_true(neb__hash_equal(&seen[0].root, &again.root));
    }
    check_log_restore();
    sites_free(&sites);
    return worst;
}

static void a_site_that_sends_poison(void **state)
{
    (void)state;
    char scaled[160];
    float off = train_with_a_liar("off", scaled, sizeof scaled);
    assert_string_equal(scaled, "");
    if (!(fabsf(off) > 100)) fail_msg("%g", (double)off);
    float clipped = train_with_a_liar("clip=2", scaled, sizeof scaled);
    if (of_liar(scaled) < 10) fail_msg("'%s'", scaled); /* a site that made far more steps is cut as well */
    assert_true(isfinite(clipped) && fabsf(clipped) < 20);
    float trimmed = train_with_a_liar("clip=2 combine=trimmed", scaled, sizeof scaled);
    assert_true(trimmed > -1 && trimmed < 2);
    print_message("theta: %g without a rule, %g with the clip, %g trimmed\n", (double)off, (double)clipped,
                  (double)trimmed);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_are_read_or_refused),
        cmocka_unit_test(weights_and_tokens_are_compared_with_the_others),
        cmocka_unit_test(a_robust_rule_counts_no_more_tokens_than_the_middle_site),
        cmocka_unit_test(long_updates_are_made_shorter),
        cmocka_unit_test(two_lengths_at_a_time_are_those_of_one),
        cmocka_unit_test(a_robust_rule_leaves_out_what_is_far_too_long),
        cmocka_unit_test(lengths_are_under_the_hash_of_a_cell),
        cmocka_unit_test(one_site_moves_no_coordinate_alone),
        cmocka_unit_test(a_site_that_sends_poison),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
