/* test_watch.c: a run as one looks at it from outside. Who is well and who is gone, the forecast, the numbers for
 * Prometheus, a past of a million values in a bounded number of points, what changes between two looks. */
#include "base/file.h"
#include "base/mem.h"
#include "check.h"
#include "serve/serve_internal.h"
#include "store/metrics.h"
#include "watch/alerts.h"
#include "watch/alive.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char dir[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/nebula-test-watch-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

static struct neb_status_file *two_sites(void)
{
    struct neb_status_file *f = NEB_NEW(struct neb_status_file);
    assert_non_null(f);
    f->written = (int64_t)time(NULL);
    f->n = 2;
    for (int i = 0; i < 2; i++) {
        struct neb_site_status *s = &f->site[i];
        snprintf(s->name, sizeof s->name, "%s", i ? "b" : "a");
        snprintf(s->job, sizeof s->job, "two \"sites\"");
        snprintf(s->strategy, sizeof s->strategy, "replica");
        snprintf(s->role, sizeof s->role, "train");
        snprintf(s->state, sizeof s->state, "training");
        snprintf(s->session, sizeof s->session, "training");
        snprintf(s->root, sizeof s->root, "%064d", 7);
        s->root_record = 5;
        s->up = s->member = true;
        s->loss = 3;
        s->step = 100, s->steps_planned = 200, s->trained_tokens = 1000, s->tokens_per_second = 10;
        s->age = i ? 1 : 0;
        s->trainable = 1000, s->own_steps = 100;
    }
    return f;
}

static struct neb_view *look(const struct neb_status_file *f)
{
    struct neb_view *v;
    assert_int_equal(neb__status_file_write(dir, f), NEB_OK);
    assert_int_equal(neb__view_create(&v), NEB_OK);
    assert_int_equal(neb__view_look(v, dir), NEB_OK);
    return v;
}

static enum neb_health health_of_b(const struct neb_status_file *f)
{
    struct neb_view *v = look(f);
    assert_int_equal(v->n, 2);
    enum neb_health h = v->site[1].health;
    neb__view_free(v);
    return h;
}

static void a_site_is_judged_by_what_is_seen(void **state)
{
    (void)state;
    struct neb_status_file *f = two_sites();
    struct neb_site_status *b = &f->site[1];
    assert_int_equal(health_of_b(f), NEB_HEALTH_GOOD);
    b->silent_s = 3; /* it does not answer heartbeats: a cut line, before it is given up */
    assert_int_equal(health_of_b(f), NEB_HEALTH_LATE);
    b->silent_s = 0;
    b->age = 30;
    assert_int_equal(health_of_b(f), NEB_HEALTH_LATE);
    b->up = false; /* also at once: it need not be old */
    b->age = 1;
    assert_int_equal(health_of_b(f), NEB_HEALTH_GONE);
    snprintf(b->state, sizeof b->state, "done"); /* a goodbye */
    assert_int_equal(health_of_b(f), NEB_HEALTH_DONE);
    snprintf(b->state, sizeof b->state, "training");
    b->up = true;
    b->waiting_s = 2;
    assert_int_equal(health_of_b(f), NEB_HEALTH_WAITING);
    b->halted = true;
    assert_int_equal(health_of_b(f), NEB_HEALTH_HALTED);
    *b = (struct neb_site_status){.name = "b"};
    assert_int_equal(health_of_b(f), NEB_HEALTH_UNKNOWN);
    neb__free(f);
}

/* The lock of a process that has ended is free, whatever its file says. */
static void a_dead_process_is_gone_at_once(void **state)
{
    (void)state;
    struct neb_status_file *f = two_sites();
    assert_int_equal(neb__alive_look(dir), NEB_ALIVE_UNKNOWN);
    int lock = neb__alive_hold(dir);
    assert_true(lock >= 0);
    assert_int_equal(neb__alive_look(dir), NEB_ALIVE_YES);
    struct neb_view *v = look(f);
    assert_int_equal(v->site[0].health, NEB_HEALTH_GOOD);
    neb__view_judge(v, v->now + 300); /* a long step */
    assert_int_equal(v->site[0].health, NEB_HEALTH_GOOD);
    neb__view_judge(v, v->now + 400); /* it lives, and hangs */
    assert_int_equal(v->site[0].health, NEB_HEALTH_LATE);
    snprintf(v->site[0].st.state, sizeof v->site[0].st.state, "evaluating");
    neb__view_judge(v, v->now);
    assert_int_equal(v->site[0].health, NEB_HEALTH_GOOD);
    neb__view_free(v);
    v = look(f);
    close(lock);
    neb__view_judge(v, v->now);
    assert_int_equal(v->site[0].health, NEB_HEALTH_GONE);
    assert_string_equal(v->site[0].shown, "gone");
    /* whom only a dead site has seen, nobody sees: it is not called gone as well */
    assert_int_equal(v->site[1].health, NEB_HEALTH_GOOD);
    neb__view_free(v);
    char path[96];
    snprintf(path, sizeof path, "%s/alive", dir);
    unlink(path);
    neb__free(f);
}

static void sums_and_forecast(void **state)
{
    (void)state;
    struct neb_status_file *f = two_sites();
    f->site[0].sent = 500;
    struct neb_view *v = look(f);
    assert_true(v->seconds_left > 99 &&
                v->seconds_left < 101); /* 100 steps of 10 tokens, 10 tokens a second */
    assert_true(v->progress > 0.49 && v->progress < 0.51);
    assert_true(v->fp32 > 799999 && v->fp32 < 800001 && v->sent > 499);
    assert_true(v->roots_agree && v->roots == 2);
    neb__view_free(v);
    f->site[1].root[3] = 'f'; /* the word of a site elsewhere: shown as that, and decides nothing */
    v = look(f);
    assert_true(v->roots_agree && v->roots == 1);
    assert_true(v->site[1].root_differs && !v->site[0].root_differs);
    snprintf(v->site[1].folder, sizeof v->site[1].folder, "%s", dir); /* its own file, here */
    neb__view_judge(v, v->now);
    assert_false(v->roots_agree);
    neb__view_free(v);
    f->site[1].root_record = 6; /* another record: nothing to compare */
    v = look(f);
    assert_true(v->roots_agree && !v->site[1].root_differs);
    neb__view_free(v);
    neb__free(f);
}

/* Another site may say anything of what all share. */
static void a_liar_does_not_move_the_run(void **state)
{
    (void)state;
    struct neb_status_file *f = two_sites();
    f->site[0].run_tokens = 500, f->site[0].token_target = 1000, f->site[0].record = 7;
    f->site[1].run_tokens = f->site[1].token_target = f->site[1].record = INT64_MAX;
    f->site[1].trained_tokens = f->site[1].step = f->site[1].steps_planned = INT64_MAX;
    struct neb_view *v = look(f);
    assert_int_equal(v->tokens, 500);
    assert_int_equal(v->target, 1000);
    assert_int_equal(v->record, 7);
    neb__view_free(v);
    f->site[0].trained_s = 50; /* 500 of 1000 tokens in 50 s; 100 steps of 200, 10 tokens each, 10 a second */
    f->site[1].planned_s = 1e-9,
    f->site[1].trained_s = f->site[1].tokens_per_second = f->site[1].loss = 1e300;
    f->site[1].ended = true;
    v = look(f);
    assert_true(v->seconds_left > 49 && v->seconds_left < 51);
    assert_true(v->progress > 0.49 && v->progress < 0.51);
    assert_true(v->loss > 2.99 && v->loss < 3.01);
    assert_false(v->ended);
    neb__view_free(v);
    f->site[0].ended = true; /* the log here says so */
    v = look(f);
    assert_true(v->ended);
    neb__view_free(v);
    f->site[0].run_tokens = f->site[0].token_target = f->site[0].record = 0;
    v = look(
        f); /* nobody here has committed: what was trained counts, without overflow, and no word of another site */
    assert_true(v->tokens > 0 && !v->target && !v->record);
    neb__view_free(v);
    neb__free(f);
}

static void prometheus_gets_every_site(void **state)
{
    (void)state;
    struct neb_status_file *f = two_sites();
    struct neb_buf b;
    neb__buf_init(&b, 1 << 20);
    f->site[1].loss = 0; /* a teacher has none */
    struct neb_view *v = look(f);
    assert_int_equal(neb__view_prometheus(v, &b), NEB_OK);
    assert_int_equal(neb__buf_append(&b, "", 1), NEB_OK);
    const char *text = (const char *)b.data;
    assert_non_null(strstr(text, "nebula_run_info{job=\"two \\\"sites\\\"\",strategy=\"replica\""));
    assert_non_null(strstr(text, "# TYPE nebula_site_steps_total counter\n"));
    assert_non_null(strstr(text, "nebula_site_steps_total{site=\"b\"} 100\n"));
    assert_non_null(strstr(text, "nebula_site_loss{site=\"a\"} 3\n"));
    assert_null(strstr(text, "nebula_site_loss{site=\"b\"}"));
    assert_non_null(strstr(text, "nebula_line_up{from=\"a\",to=\"b\"} 1\n"));
    neb__buf_free(&b);
    neb__view_free(v);
    neb__free(f);
}

/* ---- the past ------------------------------------------------------------------------------------------ */

enum { MANY = 100000 };

static void write_past(void)
{
    struct neb_metrics *m;
    assert_int_equal(neb__metrics_open(dir, -1, &m), NEB_OK);
    for (int i = 1; i <= MANY; i++) {
        double spike = i == 77777 ? 50 : 0;
        assert_int_equal(neb__metrics_put(m, i, "loss", 2 + sin(i * 1e-4) + spike), NEB_OK);
    }
    assert_int_equal(neb__metrics_event(m, 1, "start", "all \"sites\" agree"), NEB_OK);
    assert_int_equal(neb__metrics_close(m), NEB_OK);
}

static json_t *ask(struct neb_history *h, const struct neb_history_query *q)
{
    struct neb_buf b;
    neb__buf_init(&b, 16 << 20);
    assert_int_equal(neb__history_json(h, q, &b), NEB_OK);
    json_t *all = json_loadb((const char *)b.data, b.len, 0, NULL);
    assert_non_null(all);
    neb__buf_free(&b);
    return all;
}

static void many_values_are_few_points(void **state)
{
    (void)state;
    struct neb_status_file *f = two_sites();
    struct neb_history *h;
    write_past();
    struct neb_view *v = look(f);
    assert_int_equal(neb__history_create(&h), NEB_OK);
    assert_int_equal(neb__history_update(h, v), NEB_OK);
    json_t *all = ask(h, &(struct neb_history_query){.name = "loss", .points = 300});
    json_t *loss = json_object_get(json_object_get(json_object_get(all, "sites"), "a"), "loss");
    size_t n = json_array_size(json_object_get(loss, "t"));
    assert_in_range(n, 100, 302);
    double high = 0, mean = 0;
    for (size_t i = 0; i < n; i++) {
        high = fmax(high, json_number_value(json_array_get(json_object_get(loss, "high"), i)));
        mean += json_number_value(json_array_get(json_object_get(loss, "v"), i)) / (double)n;
    }
    assert_true(high > 50); /* a single spike is not lost */
    assert_true(mean > 1.5 && mean < 3.2);
    json_decref(all);
    struct neb_buf b;
    neb__buf_init(&b, 1 << 20);
    assert_int_equal(neb__history_events_json(h, 0, &b), NEB_OK);
    json_t *log = json_loadb((const char *)b.data, b.len, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(log, "events")), 1);
    json_decref(log);
    neb__buf_free(&b);
    neb__history_free(h);
    neb__view_free(v);
    neb__free(f);
}

/* A past that is longer than one update reads comes in pieces, in order and whole. */
static void a_long_past_is_read_in_pieces(void **state)
{
    (void)state;
    char command[128];
    struct neb_status_file *f = two_sites();
    struct neb_history *h;
    struct neb_metrics *m;
    int updates = 1;
    snprintf(command, sizeof command, "rm -f %s/metrics.sqlite*", dir);
    assert_int_equal(system(command), 0);
    assert_int_equal(neb__metrics_open(dir, -1, &m), NEB_OK);
    for (int i = 1; i <= NEB_HISTORY_CATCH_UP + 1000; i++)
        assert_int_equal(neb__metrics_put(m, i, "tokens", i), NEB_OK);
    assert_int_equal(neb__metrics_event(m, 1, "start", "there"), NEB_OK);
    assert_int_equal(neb__metrics_close(m), NEB_OK);
    struct neb_view *v = look(f);
    assert_int_equal(neb__history_create(&h), NEB_OK);
    for (neb_status s; (s = neb__history_update(h, v)) != NEB_OK; updates++)
        assert_int_equal(s, NEB_ERR_AGAIN);
    assert_int_equal(updates, 2);
    json_t *all = ask(h, &(struct neb_history_query){.name = "tokens", .points = 100});
    const json_t *values =
        json_object_get(json_object_get(json_object_get(json_object_get(all, "sites"), "a"), "tokens"), "v");
    double last = json_number_value(json_array_get(values, json_array_size(values) - 1));
    assert_true(last > NEB_HISTORY_CATCH_UP + 999);
    assert_int_equal(neb__history_events(h), 1);
    json_decref(all);
    neb__history_free(h);
    neb__view_free(v);
    neb__free(f);
}

static size_t points_of_a(struct neb_history *h, const struct neb_view *v)
{
    assert_int_equal(neb__history_update(h, v), NEB_OK);
    json_t *all = ask(h, &(struct neb_history_query){.name = "valid/loss"});
    json_t *loss = json_object_get(json_object_get(json_object_get(all, "sites"), "a"), "valid/loss");
    size_t n = json_array_size(json_object_get(loss, "t"));
    json_decref(all);
    return n;
}

static void put_steps(const char *folder, int64_t first, int64_t last)
{
    struct neb_metrics *m;
    assert_int_equal(neb__metrics_open(folder, -1, &m), NEB_OK);
    for (int64_t i = first; i <= last; i++) assert_int_equal(neb__metrics_put(m, i, "valid/loss", 2), NEB_OK);
    assert_int_equal(neb__metrics_close(m), NEB_OK);
}

/* Step 0 counts once. A database that is replaced is read: a newer copy, or a new run in the same folder. */
static void the_past_follows_its_file(void **state)
{
    (void)state;
    char command[400], other[80];
    struct neb_status_file *f = two_sites();
    struct neb_history *h;
    struct neb_view *v = look(f), *nobody;
    assert_int_equal(neb__view_create(&nobody), NEB_OK);
    assert_int_equal(neb__history_create(&h), NEB_OK);
    assert_int_equal(neb__history_update(h, nobody), NEB_OK);
    snprintf(command, sizeof command, "rm -f %s/metrics.sqlite*", dir);
    assert_int_equal(system(command), 0);
    put_steps(dir, 0, 0);
    for (int i = 0; i < 3; i++) assert_int_equal(points_of_a(h, v), 1);
    snprintf(other, sizeof other, "%s-copy", dir);
    snprintf(command, sizeof command, "mkdir %s && cp %s/metrics.sqlite %s", other, dir, other);
    assert_int_equal(system(command), 0);
    put_steps(other, 1, 4);
    snprintf(command, sizeof command, "mv %s/metrics.sqlite %s/metrics.sqlite && rm -r %s", other, dir,
             other);
    assert_int_equal(system(command), 0);
    assert_int_equal(points_of_a(h, v), 5);
    snprintf(command, sizeof command, "rm %s/metrics.sqlite", dir);
    assert_int_equal(system(command), 0);
    put_steps(dir, 0, 1);
    assert_int_equal(points_of_a(h, v), 2);
    neb__history_free(h);
    neb__view_free(nobody);
    neb__view_free(v);
    neb__free(f);
}

/* ---- alerts -------------------------------------------------------------------------------------------- */

struct told {
    int begun, ended;
    char kind[24];
};

static void note(void *arg, const struct neb_alert *a, bool begins)
{
    struct told *t = arg;
    t->begun += begins;
    t->ended += !begins;
    snprintf(t->kind, sizeof t->kind, "%s", a->kind);
}

static void an_alert_is_told_once_and_when_it_ends(void **state)
{
    (void)state;
    struct neb_status_file *f = two_sites();
    struct neb_view *v = look(f);
    struct neb_alerts *a = NEB_NEW(struct neb_alerts);
    struct told t = {0};
    assert_non_null(a);
    a->rules = (struct neb_alert_rules){.stalled = 600, .disk = 1e9};
    neb__alerts_check(a, v, note, &t);
    assert_int_equal(t.begun, 0);
    v->site[1].health = NEB_HEALTH_GONE;
    neb__alerts_check(a, v, note, &t);
    assert_int_equal(t.begun, 0); /* a moment is no alert */
    v->now += 4;
    for (int i = 0; i < 3; i++) neb__alerts_check(a, v, note, &t);
    assert_int_equal(t.begun, 1);
    assert_string_equal(t.kind, "site-gone");
    v->site[1].health = NEB_HEALTH_GOOD;
    for (int i = 0; i < 2; i++) neb__alerts_check(a, v, note, &t);
    assert_int_equal(t.ended, 1);
    v->site[0].st.disk_free = 5e8;
    neb__alerts_check(a, v, note, &t);
    assert_string_equal(t.kind, "disk");
    v->site[0].st.disk_free = 5e9;
    v->site[0].st.nonfinite = 1;
    neb__alerts_check(a, v, note, &t);
    assert_string_equal(t.kind, "loss-not-finite");
    v->site[0].st.nonfinite = 0;
    v->site[0].st.loss = 4; /* it was 3 */
    neb__alerts_check(a, v, note, &t);
    v->now += 61;
    neb__alerts_check(a, v, note, &t);
    assert_string_equal(t.kind, "loss-rising");
    v->site[0].st.loss = 3;
    v->now += 600; /* no record came */
    neb__alerts_check(a, v, note, &t);
    assert_int_equal(t.begun, 5);
    assert_int_equal(a->n, 1);
    assert_string_equal(a->list[0].kind, "no-commit");
    neb__free(a);
    neb__view_free(v);
    neb__free(f);
}

/* All sites may be in trouble of every kind at one time. Who leaves the view frees the place that its least loss had. */
static void there_is_room_for_every_alert(void **state)
{
    (void)state;
    struct neb_view *v;
    struct neb_alerts *a = NEB_NEW(struct neb_alerts);
    struct told t = {0};
    assert_non_null(a);
    assert_int_equal(neb__view_create(&v), NEB_OK);
    a->rules.disk = 1e9;
    v->now = 1000, v->n = NEB_STATUS_SITES, v->roots_agree = true;
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < v->n; i++) {
            struct neb_site_status *s = &v->site[i].st;
            snprintf(s->name, sizeof s->name, "%s-%d", turn ? "new" : "old", i);
            v->site[i].health = NEB_HEALTH_HALTED, v->site[i].root_differs = true;
            s->nonfinite = 1, s->disk_full = true, s->loss = 1;
            s->epsilon_limit = 8, s->epsilon_spent = 7.5, s->epsilon_delta = 1e-6;
        }
        neb__alerts_check(a, v, note, &t);
        assert_int_equal(a->n, 5 * NEB_STATUS_SITES);
        for (int i = 0; i < v->n; i++) v->site[i].st.loss = 2;
        neb__alerts_check(a, v, note, &t);
        v->now += 61;
        neb__alerts_check(a, v, note, &t);
        assert_int_equal(a->n, 6 * NEB_STATUS_SITES); /* the loss of each has risen from its own least */
    }
    assert_int_equal(t.begun, 2 * 6 * NEB_STATUS_SITES);
    assert_int_equal(t.ended, 6 * NEB_STATUS_SITES);
    v->n = 1;
    v->site[0].st = (struct neb_site_status){.name = "one", .epsilon_limit = 8, .epsilon_spent = 7};
    v->site[0].health = NEB_HEALTH_GOOD, v->site[0].root_differs = false;
    neb__alerts_check(a, v, note, &t);
    assert_int_equal(a->n, 0); /* an eighth of the budget is left */
    v->site[0].st.epsilon_spent = 8;
    neb__alerts_check(a, v, note, &t);
    assert_int_equal(a->n, 1);
    assert_string_equal(a->list[0].text,
                        "site one has spent epsilon 8 of its privacy budget 8: nothing is left");
    neb__free(a);
    neb__view_free(v);
}

/* A note is longer than an alert's text and is cut. What is left must be JSON, or nobody would be told. */
static void an_alert_is_utf8_wherever_it_is_cut(void **state)
{
    (void)state;
    struct neb_status_file *f = two_sites();
    struct neb_view *v = look(f);
    for (int shift = 0; shift < 3; shift++) {
        struct neb_alerts *a = NEB_NEW(struct neb_alerts);
        struct told t = {0};
        char *note_text = v->site[0].st.note;
        assert_non_null(a);
        memset(note_text, 0, sizeof v->site[0].st.note);
        memset(note_text, 'x', (size_t)shift);
        for (int i = 0; i < 80; i++) strcat(note_text, "…");
        v->site[0].health = NEB_HEALTH_HALTED;
        neb__alerts_check(a, v, note, &t);
        assert_string_equal(t.kind, "site-halted");
        json_t *text = json_string(a->list[0].text);
        assert_non_null(text);
        json_decref(text);
        neb__free(a);
    }
    neb__view_free(v);
    neb__free(f);
}

/* ---- changes ------------------------------------------------------------------------------------------- */

static void only_changes_are_told(void **state)
{
    (void)state;
    json_t *a = json_pack("{s:i, s:[{s:i, s:s}, {s:i, s:s}]}", "x", 1, "l", "p", 1, "q", "t", "p", 2, "q",
                          "t"),
           *b = json_pack("{s:i, s:[{s:i, s:s}, {s:i, s:s}]}", "x", 1, "l", "p", 1, "q", "t", "p", 3, "q",
                          "t");
    json_t *d = neb__serve_diff(a, b), *want = json_pack("{s:{s:{s:i}}}", "l", "1", "p", 3);
    assert_true(json_equal(d, want));
    assert_null(neb__serve_diff(a, a));
    json_decref(a), json_decref(b), json_decref(d), json_decref(want);
}

/* ---- who may look -------------------------------------------------------------------------------------- */

static void only_an_address_of_this_machine_is_local(void **state)
{
    (void)state;
    static const char *const here[] = {"127.0.0.1", "127.1.2.3", "::1", "localhost", "LocalHost"},
                             *const elsewhere[] = {"127.example.org",
                                                   "127.0.0.1.example.org",
                                                   "127.",
                                                   "127.1",
                                                   "128.0.0.1",
                                                   "0.0.0.0",
                                                   "",
                                                   "::"};
    for (size_t i = 0; i < sizeof here / sizeof *here; i++) assert_true(neb__serve_is_local(here[i]));
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        assert_false(neb__serve_is_local(elsewhere[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_site_is_judged_by_what_is_seen),
        cmocka_unit_test(a_dead_process_is_gone_at_once),
        cmocka_unit_test(sums_and_forecast),
        cmocka_unit_test(a_liar_does_not_move_the_run),
        cmocka_unit_test(prometheus_gets_every_site),
        cmocka_unit_test(many_values_are_few_points),
        cmocka_unit_test(a_long_past_is_read_in_pieces),
        cmocka_unit_test(the_past_follows_its_file),
        cmocka_unit_test(an_alert_is_told_once_and_when_it_ends),
        cmocka_unit_test(there_is_room_for_every_alert),
        cmocka_unit_test(an_alert_is_utf8_wherever_it_is_cut),
        cmocka_unit_test(only_changes_are_told),
        cmocka_unit_test(only_an_address_of_this_machine_is_local),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
