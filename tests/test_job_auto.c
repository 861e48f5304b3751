/* test_job_auto.c: what a job leaves to the program: the values, the same at every site, and those of a run whose roster is
 * older than the choice. */
#include "check.h"
#include "sites.h"
#include "base/buf.h"
#include "job/job.h"
#include "run/session.h"
#include "run/settings_fact.h"

#include <stdio.h>
#include <string.h>

static char dir[200], path[256];

static neb_status read_job(const char *text, struct neb_job *j)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "task: causal\nmodel: {hidden: 64, heads: 2}\n%s", text);
    fclose(f);
    return neb__job_read(path, NULL, 0, j);
}

static void is_chosen(const struct neb_job *j, const char *optimizer, double beta2, int64_t interval,
                      double outer_lr)
{
    assert_string_equal(j->train.optimizer, optimizer);
    assert_float_equal(j->train.beta2, beta2, 1e-9);
    assert_int_equal(j->wan.interval, interval);
    assert_float_equal(j->wan.outer_lr, outer_lr, 1e-9);
}

#define TWO "sites: [{name: a}, {name: b}]\n"

static const struct {
    const char *text, *optimizer;
    double beta2;
    int64_t interval;
    double outer_lr;
} cases[] = {
    /* nothing is chosen where no other site trains the same model */
    {"train: {steps: 9000}\n", "adamw", 0.98, 100, 0.7},
    {"train: {steps: 9000}\nsites: [{name: a}, {name: w, role: witness}]\n", "adamw", 0.98, 100, 0.7},
    /* 10 rounds, of 10 to 100 steps; 50 where the sites have different text */
    {"train: {steps: 300, tokens: 256, max_len: 64}\n" TWO, "adamw", 0.98, 30, 0.7},
    {"train: {steps: 4000, tokens: 256, max_len: 64}\n" TWO, "adamw", 1 - 1 / 200.0, 100, 0.7},
    {"train: {steps: 1000, tokens: 256, max_len: 64}\ndata: [{file: x, site: a}]\n" TWO, "adamw", 0.98, 20,
     0.7},
    {"train: {steps: 10000, tokens: 256, max_len: 64}\n" TWO, "adamw", 0.998, 100, 1},
    {"train: {steps: 20000, tokens: 256, max_len: 64}\n" TWO, "adamw", 0.999, 100, 1},
    {"train: {steps: 20000, tokens: 256, max_len: 64}\nwan: {interval: 5}\n" TWO, "adamw", 0.999, 5, 0.7},
    {"train: {steps: 20000, tokens: 256, max_len: 64}\nwan: {interval: 1000}\n" TWO, "adamw", 0.999, 1000,
     0.7},
    /* the job does not say how long it trains, or by the tokens of all sites */
    {"train: {tokens: 256, max_len: 64}\n" TWO, "adamw", 0.999, 100, 0.7},
    {"train: {tokens: 256, max_len: 64}\nwan: {tokens: 512000}\n" TWO, "adamw", 0.98, 100, 0.7},
    /* large batches need no long memory, and Muon pays */
    {"train: {steps: 20000, tokens: 16384}\n" TWO, "muon", 1 - 1 / 512.0, 100, 1},
    {"train: {steps: 20000, tokens: 65536, micro: 8}\n" TWO, "muon", 0.98, 100, 1},
    {"train: {steps: 20000, tokens: 511, max_len: 64}\n" TWO, "adamw", 0.999, 100, 1},
    {"train: {steps: 20000, tokens: 512, max_len: 64}\n" TWO, "muon", 0.999, 100, 1},
    {"train: {steps: 20000, tokens: 2048}\npeft: {method: lora}\n" TWO, "adamw", 0.999, 100, 1},
    {"train: {steps: 20000, tokens: 2048}\nparallel: {offload: moments}\n" TWO, "adamw", 0.999, 100, 1},
    /* what is written counts */
    {"train: {steps: 20000, tokens: 2048, optimizer: adamw, beta2: 0.9}\nwan: {interval: 7, outer_lr: "
     "0.4}\n" TWO,
     "adamw", 0.9, 7, 0.4},
    {"train: {steps: 300, tokens: 2048, optimizer: muon, beta2: auto}\nwan: {interval: auto, outer_lr: "
     "auto}\n" TWO,
     "muon", 0.98, 30, 0.7},
};

static void the_job_decides(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct neb_job j;
        print_message("%s", cases[i].text);
        assert_ok(read_job(cases[i].text, &j));
        is_chosen(&j, cases[i].optimizer, cases[i].beta2, cases[i].interval, cases[i].outer_lr);
        neb__job_free(&j);
    }
}

/* Optimizer and outer step are those of all sites; beta2 follows a site's own batch. */
static void one_optimizer_for_all_sites(void **state)
{
    (void)state;
#define SITES(small, more)                                                      \
    "train: {steps: 20000, tokens: 1000, max_len: 64}\ndata: [{file: x}]\n"     \
    "sites: [{name: a, train: {tokens: 824}}, {name: b, train: {tokens: " small \
    "}}, {name: c, train: {beta2: "                                             \
    "0.9, tokens: 100, micro: 2, steps: 100}}" more "]\n"
    static const struct {
        const char *text, *optimizer;
    } jobs[] = {{SITES("512", ""), "muon"}, /* 512 on average, 8 for each hidden value */
                {SITES("511", ""), "adamw"},
                {SITES("512", ", {name: d, role: witness, train: {tokens: 64}}"), "muon"},
                {SITES("512", ", {name: d, train: {tokens: 64}}"), "adamw"},
                {SITES("512", ", {name: d, parallel: {offload: moments}}"), "adamw"}};
    for (size_t t = 0; t < sizeof jobs / sizeof *jobs; t++)
        for (int i = 0; i < 3; i++) {
            struct neb_job j;
            struct neb_buf fact;
            neb__buf_init(&fact, 1000);
            assert_ok(read_job(jobs[t].text, &j));
            assert_ok(neb__job_at(&j, (const char *[]){"a", "b", "c"}[i]));
            is_chosen(&j, jobs[t].optimizer, i < 2 ? 0.999 : 0.9, 100, 1);
            assert_ok(neb__job_settings_fact(&j, &fact));
            assert_ok(neb__buf_append(&fact, "", 1));
            assert_non_null(strstr((const char *)fact.data, jobs[t].optimizer));
            neb__buf_free(&fact);
            neb__job_free(&j);
        }
}

/* A run that began when each site chose by its own batch keeps to that. */
static void an_older_run_keeps_its_rule(void **state)
{
    (void)state;
    static const char text[] =
        "train: {steps: 20000, tokens: 16384}\ndata: [{file: x}]\n"
        "sites: [{name: a}, {name: b, train: {tokens: 2047}}, {name: c, train: {tokens: "
        "2048}}]\n";
    for (int i = 0; i < 3; i++) {
        struct neb_job j;
        struct neb_buf fact;
        neb__buf_init(&fact, 1000);
        assert_ok(read_job(text, &j));
        assert_ok(neb__job_at(&j, (const char *[]){"a", "b", "c"}[i]));
        assert_string_equal(j.train.optimizer, "muon");
        assert_ok(neb__job_set_rules(&j, NEB_SETTINGS_EACH));
        assert_string_equal(j.train.optimizer, i == 1 ? "adamw" : "muon");
        assert_ok(neb__job_settings_fact(&j, &fact));
        assert_int_equal(fact.len, 0);
        neb__job_free(&j);
    }
}

static void the_reasons_are_said(void **state)
{
    (void)state;
    struct neb_job j;
    struct neb_settled list[NEB_SETTLED_MAX];
    assert_ok(read_job("train: {steps: 4000, tokens: 512}\nwan: {outer_lr: 0.5}\n" TWO, &j));
    assert_int_equal(neb__job_settled(&j, list), 3);
    assert_string_equal(list[0].key, "train.optimizer");
    assert_string_equal(list[0].value, "muon");
    assert_non_null(strstr(list[0].why, "from 512 tokens a step (8 for each of 64 hidden values)"));
    assert_string_equal(list[1].key, "train.beta2");
    assert_string_equal(list[1].value, "0.995");
    assert_non_null(strstr(list[1].why, "200 steps of 512 tokens"));
    assert_string_equal(list[2].key, "wan.interval");
    assert_string_equal(list[2].value, "100");
    assert_non_null(strstr(list[2].why, "4000 steps make 40 rounds"));
    neb__job_free(&j);
    assert_ok(read_job("train: {steps: 1000}\n", &j));
    assert_int_equal(neb__job_settled(&j, list), 0);
    neb__job_free(&j);
    assert_ok(read_job("train: {steps: 4000}\nwan: {merge_after: 5, fragments: 1, rung: int4}\n" TWO, &j));
    assert_int_equal(neb__job_settled(&j, list), 4);
    assert_non_null(strstr(list[2].why, "fixed pace"));
    neb__job_free(&j);
}

/* A site that trains without the others has the usual values, and no roster to give as a reason. */
static void a_site_alone_chooses_nothing(void **state)
{
    (void)state;
    struct neb_job j;
    struct neb_settled list[NEB_SETTLED_MAX];
    assert_ok(read_job("train: {steps: 20000, tokens: 16384}\ndata: [{file: x}]\n" TWO, &j));
    assert_ok(neb__job_at(&j, "a"));
    neb__job_alone(&j);
    assert_ok(neb__job_settle_alone(&j));
    is_chosen(&j, "adamw", 0.98, 100, 0.7);
    assert_int_equal(neb__job_settled(&j, list), 0);
    neb__job_free(&j);
}

static void own_steps_are_seen(void **state)
{
    (void)state;
    struct neb_job j;
    assert_ok(read_job("train: {steps: 300}\n" TWO, &j));
    assert_false(neb__job_has_own_steps(&j));
    neb__job_free(&j);
    assert_ok(read_job("train: {steps: 300}\nsites: [{name: a}, {name: b, train: {steps: 30}}]\n", &j));
    assert_true(neb__job_has_own_steps(&j));
    neb__job_free(&j);
}

static void set_facts(const struct sites *s, const struct neb_fact *fact, uint32_t n)
{
    struct neb_chain *chain, *made;
    assert_ok(neb__site_roster_load(s->path[0], &chain));
    assert_ok(neb__chain_create(&chain->operator_key, fact, n, &chain->now, &made));
    for (int i = 0; i < s->count; i++) assert_ok(neb__site_roster_save(s->path[i], made));
    neb__chain_free(chain);
    neb__chain_free(made);
}

/* A roster from before the choice keeps the values of that time, and one of a later version is refused. */
static void the_roster_says_by_which_rules(void **state)
{
    (void)state;
    struct sites s;
    struct neb_job j;
    struct neb_fact fact;
    char text[700];
    sites_make(&s, 2, NULL);
    snprintf(text, sizeof text,
             "train: {steps: 20000, tokens: 2048}\nsites: [{name: s0, folder: %s}, {name: s1, folder: %s}]\n",
             s.path[0], s.path[1]);
    assert_ok(read_job(text, &j));
    is_chosen(&j, "muon", 0.999, 100, 1);
    assert_ok(neb__session_settings(&j, 0));
    is_chosen(&j, "adamw", 0.98, 100, 0.7);
    struct neb_settled list[NEB_SETTLED_MAX];
    assert_int_equal(neb__job_settled(&j, list), 4);
    assert_non_null(strstr(list[3].why, "roster"));
    neb__settings_fact(&fact);
    set_facts(&s, &fact, 1);
    assert_ok(neb__session_settings(&j, 1));
    is_chosen(&j, "muon", 0.999, 100, 1);
    fact.value[0]++;
    set_facts(&s, &fact, 1);
    check_log_quiet();
    assert_status(neb__session_settings(&j, 1), NEB_ERR_CONFIG);
    check_log_restore();
    is_chosen(&j, "muon", 0.999, 100, 1);
    neb__job_free(&j);
    sites_free(&s);
}

int main(void)
{
    check_make_dir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/job.yaml", dir);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_job_decides),
        cmocka_unit_test(one_optimizer_for_all_sites),
        cmocka_unit_test(an_older_run_keeps_its_rule),
        cmocka_unit_test(the_reasons_are_said),
        cmocka_unit_test(a_site_alone_chooses_nothing),
        cmocka_unit_test(own_steps_are_seen),
        cmocka_unit_test(the_roster_says_by_which_rules),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    check_remove_dir(dir);
    return failed;
}
