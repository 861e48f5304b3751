/* test_score.c: BLEU and chrF against what sacreBLEU answered (tests/data/scores.txt, by tools/record_scores.py). */
#include "check.h"
#include "base/mem.h"
#include "text/score.h"
#include "text/ter.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_LINES = 400, MAX_REFS = 4 };

struct test_case {
    char name[64];
    int refs, sentences;
    char *hyp[MAX_LINES], *ref[MAX_LINES][MAX_REFS];
};

static double score(const struct test_case *c, const char *metric)
{
    bool lower = strstr(metric, "-lc") != NULL;
    struct neb_bleu b;
    struct neb_chrf f;
    struct neb_ter t;
    char split[16] = "";
    const bool ter = !strncmp(metric, "ter", 3);
    enum neb_word_split how = NEB_WORDS_SPACE;
    if (sscanf(metric, "bleu-%15[^-]", split) == 1) assert_ok(neb__chars_split_parse(split, &how));
    neb__bleu_init(&b, how, lower);
    neb__chrf_init(&f, strstr(metric, "++") ? 2 : 0, lower);
    neb__ter_init(&t, strstr(metric, "-cs") != NULL);
    for (int i = 0; i < c->sentences; i++) {
        const char *const *refs = (const char *const *)c->ref[i];
        if (ter)
            assert_ok(neb__ter_add(&t, c->hyp[i], refs, c->refs));
        else if (*split)
            assert_ok(neb__bleu_add(&b, c->hyp[i], refs, c->refs));
        else
            assert_ok(neb__chrf_add(&f, c->hyp[i], refs, c->refs));
    }
    if (ter) return neb__ter_score(&t);
    return *split ? neb__bleu_score(&b) : neb__chrf_score(&f);
}

static void forget(struct test_case *c)
{
    for (int i = 0; i < c->sentences; i++) {
        free(c->hyp[i]);
        for (int r = 0; r < c->refs; r++) free(c->ref[i][r]);
    }
    c->sentences = 0;
}

static void scores_equal_sacrebleus(void **state)
{
    (void)state;
    static struct test_case c;
    char *line = NULL, metric[32];
    size_t cap = 0;
    int compared = 0, ref = 0;
    double want;
    FILE *f = fopen(NEB_TEST_DATA "/scores.txt", "r");
    assert_non_null(f);
    for (ssize_t n; (n = getline(&line, &cap, f)) > 0;) {
        if (line[n - 1] == '\n') line[n - 1] = 0;
        if (!strncmp(line, "case ", 5)) {
            forget(&c);
            assert_int_equal(sscanf(line, "case %63s %d", c.name, &c.refs), 2);
            assert_in_range(c.refs, 1, MAX_REFS);
        } else if (!strncmp(line, "h ", 2)) {
            assert_true(c.sentences < MAX_LINES);
            c.hyp[c.sentences++] = strdup(line + 2);
            ref = 0;
        } else if (!strncmp(line, "r ", 2)) {
            c.ref[c.sentences - 1][ref++] = strdup(line + 2);
        } else {
            assert_int_equal(sscanf(line, "s %31s %lf", metric, &want), 2);
            double got = score(&c, metric);
            if (fabs(got - want) > 1e-4) fail_msg("%s, %s: %.6f instead of %.6f", c.name, metric, got, want);
            compared++;
        }
    }
    assert_true(compared >= 460);
    forget(&c);
    free(line);
    fclose(f);
}

static void odd_input(void **state)
{
    (void)state;
    struct neb_bleu b;
    struct neb_chrf f;
    struct neb_ter ter;
    neb__ter_init(&ter, false);
    const char *refs[1] = {"\xFF\xFE"}, *empty[1] = {""};
    neb__bleu_init(&b, NEB_WORDS_13A, true);
    neb__chrf_init(&f, 2, true);
    assert_true(neb__bleu_score(&b) == 0 && neb__chrf_score(&f) == 0);
    assert_ok(neb__bleu_add(&b, "\xC3(", refs, 1));
    assert_ok(neb__chrf_add(&f, "", empty, 1));
    enum neb_word_split split;
    check_log_quiet();
    assert_status(neb__bleu_add(&b, "a", refs, 0), NEB_ERR_INVALID);
    assert_status(neb__chars_split_parse("ja", &split), NEB_ERR_CONFIG);
    int64_t held = neb__mem_held();
    for (int64_t k = 1;; k++) { /* each allocation fails once */
        const char *ref[2] = {"a b, c d 5-6 İ.", "x y"};
        neb__mem_fail_at(k);
        neb_status status = neb__bleu_add(&b, "a b c d. 5 İ", ref, 2);
        if (status == NEB_OK) status = neb__chrf_add(&f, "a b c d.", ref, 2);
        if (status == NEB_OK) status = neb__ter_add(&ter, "a b c d.", ref, 2);
        neb__mem_fail_at(0);
        assert_int_equal(neb__mem_held(), held);
        if (status == NEB_OK) break;
        assert_status(status, NEB_ERR_NOMEM);
    }
    check_log_restore();
}

/* Forty equal sentences have one score, however they are drawn; of good and bad ones the interval is wide and holds the score. */
static void an_interval_holds_the_score(void **state)
{
    (void)state;
    enum { N = 40 };
    struct neb_bleu each[N], all;
    const char *ref[1] = {"one two three four five six"};
    double low, high;
    for (int mixed = 0; mixed < 2; mixed++) {
        neb__bleu_init(&all, NEB_WORDS_SPACE, false);
        for (int i = 0; i < N; i++) {
            neb__bleu_init(&each[i], NEB_WORDS_SPACE, false);
            assert_ok(neb__bleu_add(
                &each[i], mixed && i % 2 ? "one three two four five six" : "one two three four five", ref,
                1));
            neb__bleu_sum(&all, &each[i]);
        }
        neb__bleu_interval(each, N, &low, &high);
        if (!mixed)
            assert_true(fabs(low - high) < 1e-9 && fabs(low - neb__bleu_score(&all)) < 1e-9);
        else
            assert_true(low < neb__bleu_score(&all) - 2 && high > neb__bleu_score(&all) + 2 && high < 100);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_equal_sacrebleus),
        cmocka_unit_test(odd_input),
        cmocka_unit_test(an_interval_holds_the_score),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
