/* test_session_job.c: sessions as a foreign training loop has them: opened from a job file, values behind callbacks, steps
 * that come back in time, status as JSON; and what is refused before the first step. */
#include "check.h"
#include "sites.h"
#include "base/mem.h"

#include <jansson.h>
#include <math.h>
#include <nebula/nebula.h>
#include <stdio.h>
#include <string.h>

enum { VALUES = 3000 };

/* Parameters that only callbacks reach: doubles, with a sign that keeps them from being taken for floats. */
struct model {
    double x[VALUES];
    int reads, writes;
    neb_status refuse;
    bool refuse_writes;
};

static neb_status get(void *arg, int64_t first, int64_t n, float *out)
{
    struct model *m = arg;
    m->reads++;
    for (int64_t i = 0; i < n; i++) out[i] = (float)-m->x[first + i];
    return m->refuse;
}

static neb_status put(void *arg, int64_t first, int64_t n, const float *in)
{
    struct model *m = arg;
    if (m->refuse_writes) return NEB_ERR_DEVICE;
    m->writes++;
    for (int64_t i = 0; i < n; i++) m->x[first + i] = -(double)in[i];
    return m->refuse;
}

static void write_job(const struct sites *s, const char *names[2], const int folder[2], const char *wan,
                      char path[300])
{
    snprintf(path, 300, "%s/job.yaml", s->dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "wan: {%s}\nsites:\n", wan);
    for (int i = 0; i < 2; i++) fprintf(f, "  - {name: %s, folder: \"%s\"}\n", names[i], s->path[folder[i]]);
    assert_int_equal(fclose(f), 0);
}

static const char *const plain =
    "interval: 5, fragments: 1, round_seconds: 2, rung: fp32, outer_lr: 1, outer_momentum: 0";

static neb_session *open_site(const char *job, const char *site, struct model *m)
{
    neb_session *s;
    assert_ok(neb_session_open_job(job, site, NULL, &s));
    struct neb_session_param p = {
        .name = "w", .ndim = 2, .shape = {VALUES / 3, 3}, .read = get, .write = put, .arg = m};
    assert_ok(neb_session_register(s, &p));
    assert_ok(neb_session_start(s, 0));
    return s;
}

static void jobs_of_other_runs_are_refused(void **state)
{
    (void)state;
    struct sites sites;
    char job[300];
    neb_session *s;
    sites_make(&sites, 2, NULL);
    check_log_quiet();
    write_job(&sites, (const char *[]){"s0", "s1"}, (const int[]){0, 1}, plain, job);
    assert_status(neb_session_open_job("no such job", "s0", NULL, &s), NEB_ERR_NOTFOUND);
    assert_status(neb_session_open_job(job, "s7", NULL, &s), NEB_ERR_CONFIG);
    assert_status(neb_session_open_job(job, NULL, NULL, &s), NEB_ERR_CONFIG);
    assert_status(neb_session_open_job(job, "s0", (const char *[]){"wan.interval=0", NULL}, &s),
                  NEB_ERR_CONFIG);
    assert_status(neb_session_open_job(job, "s0", (const char *[]){"wan.intreval=7", NULL}, &s),
                  NEB_ERR_CONFIG);
    write_job(&sites, (const char *[]){"s0", "s1"}, (const int[]){1, 0}, plain, job);
    assert_status(neb_session_open_job(job, "s0", NULL, &s), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "belongs to site 's1'"));
    write_job(&sites, (const char *[]){"s0", "elsewhere"}, (const int[]){0, 1}, plain, job);
    assert_status(neb_session_open_job(job, "s0", NULL, &s), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "'elsewhere'"));
    check_log_restore();
    sites_free(&sites);
}

/* Alone, at the drift limit: the step comes back in time and counts once. */
static void a_step_comes_back_in_time(void **state)
{
    (void)state;
    struct sites sites;
    struct model *m = NEB_NEW(struct model);
    char job[300], text[4096];
    bool changed;
    sites_make(&sites, 2, NULL);
    write_job(&sites, (const char *[]){"s0", "s1"}, (const int[]){0, 1}, "interval: 2, drift_steps: 3", job);
    neb_session *s = open_site(job, "s0", m);
    neb_status status = NEB_OK;
    for (int i = 0; i < 4000 && status == NEB_OK; i++)
        status = neb_step_within(s, 1, 0.05, &changed), sleep_ms(1);
    assert_int_equal(status, NEB_ERR_AGAIN);
    struct neb_session_status before, after;
    neb_session_get_status(s, &before);
    assert_status(neb_step_within(s, NEB_NO_STEP, 0.05, &changed), NEB_ERR_AGAIN);
    neb_session_get_status(s, &after);
    assert_int_equal(before.steps, after.steps);
    assert_true(after.wait_s > 0);

    size_t n = 10;
    assert_status(neb_session_status_json(s, text, &n), NEB_ERR_NOSPACE);
    assert_true(n > 10 && n <= sizeof text);
    assert_ok(neb_session_status_json(s, text, &n));
    json_t *j = json_loads(text, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(j, "site")), "s0");
    assert_int_equal(json_array_size(json_object_get(j, "sites")), 2);
    assert_int_equal(json_integer_value(json_object_get(j, "steps")), after.steps);
    assert_true(json_is_true(json_object_get(j, "paused")));
    json_decref(j);
    neb_session_close(s);
    neb__free(m);
    sites_free(&sites);
}

/* A step in two halves. The first touches no parameter. */
static neb_status step_in_halves(neb_session *s, struct model *m)
{
    int touched = m->reads + m->writes;
    bool due, changed;
    struct neb_session_status before, after;
    neb_session_get_status(s, &before);
    assert_ok(neb_step_counted(s, 1, &due));
    neb_session_get_status(s, &after);
    assert_int_equal(after.steps, before.steps + 1);
    assert_int_equal(m->reads + m->writes, touched);
    neb_status status = due ? neb_step_within(s, NEB_NO_STEP, 0.01, &changed) : NEB_OK;
    neb_session_get_status(s, &after);
    assert_int_equal(after.steps, before.steps + 1);
    return status;
}

/* Steps of both sites, of the second one in halves, until *st of one is no longer OK, or `merges` were seen at both. */
static void walk(neb_session *s[2], struct model *m[2], int merges, neb_status status[2])
{
    for (int i = 0; i < 4000; i++) {
        struct neb_session_status a, b;
        for (int k = 0; k < 2; k++) {
            bool changed;
            for (int v = 0; v < VALUES; v++) m[k]->x[v] += 0.01 * ((k ? 1 : -0.2) - m[k]->x[v]);
            status[k] = k ? step_in_halves(s[k], m[k]) : neb_step_within(s[k], 1, 0.01, &changed);
            if (status[k] == NEB_ERR_AGAIN) status[k] = NEB_OK;
        }
        neb_session_get_status(s[0], &a);
        neb_session_get_status(s[1], &b);
        if (status[0] != NEB_OK || status[1] != NEB_OK || (a.merges >= merges && b.merges >= merges)) return;
        sleep_ms(5);
    }
    fail_msg("the sites did not get on");
}

static void values_behind_callbacks_meet_and_a_nan_is_named(void **state)
{
    (void)state;
    struct sites sites;
    struct model *m[2] = {NEB_NEW(struct model), NEB_NEW(struct model)};
    char job[300];
    neb_session *s[2];
    neb_status status[2] = {NEB_OK, NEB_OK};
    sites_make(&sites, 2, NULL);
    write_job(&sites, (const char *[]){"s0", "s1"}, (const int[]){0, 1}, plain, job);
    for (int i = 0; i < 2; i++) s[i] = open_site(job, i ? "s1" : "s0", m[i]);
    walk(s, m, 3, status);
    assert_ok(status[0]);
    assert_ok(status[1]);
    /* Both began at 0 and site 0 pulls below: what is above came from site 1, with its sign. */
    assert_true(m[0]->x[7] > 0 && m[0]->x[7] < 1);
    assert_true(m[0]->reads > 1 && m[0]->writes > 1);

    check_log_quiet();
    m[0]->x[VALUES / 2] = (double)NAN;
    walk(s, m, 1 << 30, status);
    assert_int_equal(status[0], NEB_ERR_NONFINITE);
    assert_non_null(strstr(neb_last_error(), "'w'"));
    m[1]->refuse = NEB_ERR_SHAPE; /* what a callback answers comes out of the step */
    size_t n;
    assert_ok(neb_session_save(s[1], NULL, &n));
    void *room = neb__malloc(n);
    assert_status(neb_session_save(s[1], room, &n), NEB_ERR_SHAPE);
    check_log_restore();
    neb__free(room);
    for (int i = 0; i < 2; i++) neb_session_close(s[i]), neb__free(m[i]);
    sites_free(&sites);
}

/* Two parameters share a cell, get the same steps and so the same merges; one of them refuses some writes. */
static void what_a_failed_write_left_is_merged_once(void **state)
{
    (void)state;
    struct sites sites;
    struct model *m[2][2];
    char job[300];
    neb_session *s[2];
    int refused = 0;
    sites_make(&sites, 2, NULL);
    write_job(&sites, (const char *[]){"s0", "s1"}, (const int[]){0, 1}, plain, job);
    for (int i = 0; i < 2; i++) {
        assert_ok(neb_session_open_job(job, i ? "s1" : "s0", NULL, &s[i]));
        for (int k = 0; k < 2; k++) {
            m[i][k] = NEB_NEW(struct model);
            struct neb_session_param p = {.name = k ? "w" : "u",
                                          .ndim = 1,
                                          .shape = {VALUES},
                                          .read = get,
                                          .write = put,
                                          .arg = m[i][k]};
            assert_ok(neb_session_register(s[i], &p));
        }
        assert_ok(neb_session_start(s[i], 0));
    }
    check_log_quiet();
    for (int step = 0; step < 4000 && refused < 4; step++) {
        for (int i = 0; i < 2; i++) {
            bool changed;
            for (int k = 0; k < 2; k++)
                for (int v = 0; v < VALUES; v++) m[i][k]->x[v] += 0.01 * ((i ? 1 : -0.2) - m[i][k]->x[v]);
            m[0][1]->refuse_writes = true;
            for (int again = 0; again < 3; again++) {
                neb_status status = neb_step_within(s[i], again ? NEB_NO_STEP : 1, 0.01, &changed);
                if (status == NEB_OK || status == NEB_ERR_AGAIN) break;
                assert_int_equal(status, NEB_ERR_DEVICE);
                refused += again == 1;
                m[0][1]->refuse_writes = again == 0;
            }
            assert_memory_equal(m[i][0]->x, m[i][1]->x, sizeof m[i][0]->x);
        }
        sleep_ms(5);
    }
    check_log_restore();
    assert_int_equal(refused, 4);
    for (int i = 0; i < 2; i++) {
        neb_session_close(s[i]);
        for (int k = 0; k < 2; k++) neb__free(m[i][k]);
    }
    sites_free(&sites);
}

static void another_model_in_the_folder_or_other_settings_are_refused(void **state)
{
    (void)state;
    struct sites sites;
    struct model *m[2] = {NEB_NEW(struct model), NEB_NEW(struct model)};
    char job[300];
    neb_session *s[2];
    neb_status status[2] = {NEB_OK, NEB_OK};
    sites_make(&sites, 2, NULL);
    write_job(&sites, (const char *[]){"s0", "s1"}, (const int[]){0, 1}, plain, job);
    for (int i = 0; i < 2; i++) s[i] = open_site(job, i ? "s1" : "s0", m[i]);
    walk(s, m, 1, status);
    for (int i = 0; i < 2; i++) neb_session_close(s[i]);

    check_log_quiet();
    assert_ok(neb_session_open_job(job, "s0", NULL, &s[0]));
    struct neb_session_param p = {
        .name = "v", .ndim = 1, .shape = {VALUES}, .read = get, .write = put, .arg = m[0]};
    assert_ok(neb_session_register(s[0], &p));
    assert_status(neb_session_start(s[0], 0), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "other parameters"));
    neb_session_close(s[0]);

    s[1] = open_site(job, "s1", m[1]);
    assert_ok(neb_session_open_job(job, "s0", (const char *[]){"wan.outer_lr=0.5", NULL}, &s[0]));
    p = (struct neb_session_param){
        .name = "w", .ndim = 2, .shape = {VALUES / 3, 3}, .read = get, .write = put, .arg = m[0]};
    assert_ok(neb_session_register(s[0], &p));
    neb_status first = neb_session_start(s[0], 0);
    for (int i = 0; i < 2000 && first == NEB_OK; i++) {
        bool changed;
        first = neb_step_within(s[0], NEB_NO_STEP, 0.01, &changed);
        if (first == NEB_ERR_AGAIN) first = NEB_OK;
        sleep_ms(5);
    }
    assert_int_equal(first, NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "settings of the run"));
    check_log_restore();
    for (int i = 0; i < 2; i++) neb_session_close(s[i]), neb__free(m[i]);
    sites_free(&sites);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_of_other_runs_are_refused),
        cmocka_unit_test(a_step_comes_back_in_time),
        cmocka_unit_test(values_behind_callbacks_meet_and_a_nan_is_named),
        cmocka_unit_test(what_a_failed_write_left_is_merged_once),
        cmocka_unit_test(another_model_in_the_folder_or_other_settings_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
