/* test_eval_languages.c: the held-out loss of each language: of a site with several, and of sites with one each. */
#include "check.h"
#include "world.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void languages_have_losses_of_their_own(void **state)
{
    (void)state;
    struct world w;
    struct neb_work_eval e, again;
    world_open(&w, WORLD_ENCODER, NULL);
    for (int i = 0; i < 20; i++) world_step(&w);
    assert_ok(neb__work_eval(w.work, "valid", 0, &e));
    assert_int_equal(e.languages, 2);
    assert_string_not_equal(e.language[0].name, e.language[1].name);
    const double sum =
        e.language[0].loss * (double)e.language[0].rows + e.language[1].loss * (double)e.language[1].rows;
    assert_true(e.language[0].rows > 0 && e.language[0].rows + e.language[1].rows == e.rows);
    assert_true(fabs(sum / (double)e.rows / e.loss - 1) < 1e-5);
    assert_true(fabs(e.language[0].loss - e.language[1].loss) > 1e-4);
    assert_ok(neb__work_eval(w.work, "valid", 0, &again)); /* the weights are as before */
    assert_true(again.loss == e.loss && again.language[1].loss == e.language[1].loss);
    world_close(&w);
    world_open(&w, WORLD_TRANSLATOR, NULL); /* one language is predicted */
    assert_ok(neb__work_eval(w.work, "valid", 0, &e));
    assert_int_equal(e.languages, 0);
    world_close(&w);
}

/* Side `side` of the pairs. */
static void write_side(const char *pairs, int side, const char *to)
{
    char path[300], line[400];
    world_path(pairs, path);
    FILE *in = fopen(path, "r");
    world_path(to, path);
    FILE *out = fopen(path, "w");
    assert_true(in && out);
    while (fgets(line, sizeof line, in)) {
        char *tab = strchr(line, '\t');
        assert_non_null(tab);
        *tab = 0;
        fprintf(out, "%s%s", side ? tab + 1 : line, side ? "" : "\n");
    }
    fclose(in);
    fclose(out);
}

/* What a site measures of a job of two sites, of which b has a corpus of its own. */
static void eval_at(const char *site, const char *lang_of_b, struct neb_work_eval *e)
{
    struct world w;
    char path[300];
    world_path("job.yaml", path);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, site ? "tokenizer: {file: %s/sites/data/tokenizer.model}\n" : "tokenizer: {vocab: 60}\n# %s\n",
            world_dir);
    fprintf(f,
            "%sout: %s/sites\ndata:\n"
            "  - {file: %s/en.txt, lang: en, site: a}\n  - {file: %s/en.valid.txt, lang: en, use: valid, "
            "site: a}\n"
            "  - {file: %s/de.txt, lang: %s, site: b}\n  - {file: %s/de.valid.txt, lang: %s, use: valid, "
            "site: b}\n"
            "train: {steps: 100, tokens: 128, max_len: 32, threads: 1}\nsites: [{name: a}, {name: b}]\n",
            WORLD_ENCODER, world_dir, world_dir, world_dir, world_dir, lang_of_b, world_dir, lang_of_b);
    fclose(f);
    assert_ok(neb__job_read(path, NULL, 0, &w.job));
    if (site) assert_ok(neb__job_at(&w.job, site));
    assert_ok(neb__data_prepare(&w.job, &w.data));
    assert_ok(neb__work_open(&w.data, 0, 1, NULL, &w.work));
    assert_ok(neb__work_eval(w.work, "valid", 0, e));
    world_close(&w);
}

static void sites_with_a_language_each_record_theirs(void **state)
{
    (void)state;
    struct neb_work_eval e;
    for (int side = 0; side < 2; side++) {
        write_side("train.tsv", side, side ? "de.txt" : "en.txt");
        write_side("valid.tsv", side, side ? "de.valid.txt" : "en.valid.txt");
    }
    eval_at(NULL, "de", &e);
    assert_int_equal(e.languages, 2);
    eval_at("a", "de", &e);
    assert_int_equal(e.languages, 1);
    assert_string_equal(e.language[0].name, "en");
    assert_true(e.language[0].rows == e.rows && fabs(e.language[0].loss / e.loss - 1) < 1e-9);
    eval_at("b", "de", &e);
    assert_int_equal(e.languages, 1);
    assert_string_equal(e.language[0].name, "de");
    eval_at("b", "en", &e); /* the job has one language */
    assert_int_equal(e.languages, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(languages_have_losses_of_their_own),
        cmocka_unit_test(sites_with_a_language_each_record_theirs),
    };
    return cmocka_run_group_tests(tests, world_set_up, world_tear_down);
}
