/* test_job_facts.c: what sites must have in common, compared as text that a peer made: the first difference is named, and no
 * text makes the comparison read beyond its end or show control characters. */
#include "check.h"
#include "run/job_facts.h"

#include <stdlib.h>
#include <string.h>

static bool differ(const char *mine, const char *theirs, char *why, size_t size)
{
    return neb__facts_differ(mine, strlen(mine), theirs, strlen(theirs), "b", why, size);
}

static void the_first_difference_is_named(void **state)
{
    (void)state;
    char why[256];
    assert_false(differ("a=1\nb=2\n", "b=2\na=1\n", why, sizeof why));
    assert_false(differ("", "", why, sizeof why));
    assert_true(differ("a=1\nb=2\n", "a=1\nb=3\n", why, sizeof why));
    assert_non_null(strstr(why, "site 'b' runs another job: b is '3' there and '2' here"));
    assert_true(differ("a=1\nb=2\n", "a=1\n", why, sizeof why));
    assert_non_null(strstr(why, "b is '2' here and not given there"));
    assert_true(differ("a=1\n", "a=1\nz\n", why, sizeof why));
    assert_non_null(strstr(why, "z is '' there and not given here"));
    assert_true(differ("strategy=pipeline\n", "strategy=auto\n", why, sizeof why));
    assert_non_null(strstr(why, "decided otherwise there: say strategy, or sites[].train.memory"));
    assert_true(differ("seed=1\n", "seed=1\nstrategy=pipeline\n", why, sizeof why)); /* auto is the default */
    assert_non_null(strstr(why, "decided otherwise there"));
    assert_true(differ("strategy=replica\n", "strategy=pipeline\n", why, sizeof why));
    assert_non_null(strstr(why, "use the same job file"));
    assert_true(differ("a=1\n", "a=\033[2J\n", why, sizeof why));
    assert_null(strchr(why, '\033'));
    assert_true(differ("a=1\n",
                       "a=\xc2\x9b"
                       "2J\n",
                       why, sizeof why)); /* U+009B begins a command, too */
    assert_non_null(strstr(why, "'??2J'"));
}

/* A site without text need not agree on corpora, nor on a tokenizer that it has not got; on all else it must. */
static void a_site_without_text_is_not_asked_for_it(void **state)
{
    (void)state;
    char why[256];
    static const char with[] =
        "data[0].use=train\ndata[1].lang=de\nseed=1\ntrain.temperature=2\n(the tokenizer)=aa\n";
    assert_false(differ(with, "seed=1\n" NEB_FACT_TEXTLESS "\n", why, sizeof why));
    assert_false(differ("seed=1\n" NEB_FACT_TEXTLESS "\n", with, why, sizeof why));
    assert_false(differ(with, "data[0].use=valid\nseed=1\n" NEB_FACT_TEXTLESS "\n(the tokenizer)=aa\n", why,
                        sizeof why));
    assert_true(differ(with, "seed=1\n(the tokenizer)=bb\n" NEB_FACT_TEXTLESS "\n", why, sizeof why));
    assert_non_null(strstr(why, "(the tokenizer) is 'bb' there and 'aa' here"));
    assert_true(differ(with, "seed=2\n" NEB_FACT_TEXTLESS "\n", why, sizeof why));
    assert_non_null(strstr(why, "seed is '2' there"));
    assert_true(differ(with, "seed=1\n(the text)=some\n", why, sizeof why));
    assert_true(differ(with, "seed=1\n", why, sizeof why));
}

/* A site may lack what is said of another site, but not the cut that follows from it. */
static void sites_cut_alike(void **state)
{
    (void)state;
    char why[256];
    static const char one[] = "seed=1\nsites[1].train.memory=1GiB\n";
    static const char with[] = "seed=1\nsites[1].train.memory=1GiB\n" NEB_FACT_CUT "=1-3;4-4\n";
    static const char other[] = "seed=1\n" NEB_FACT_CUT "=1-2;3-4\n";
    assert_false(differ(one, "seed=1\n", why, sizeof why));
    assert_false(differ(with, with, why, sizeof why));
    assert_false(differ(with, "seed=1\n" NEB_FACT_CUT "=1-3;4-4\n", why, sizeof why));
    assert_true(differ(with, other, why, sizeof why));
    assert_non_null(strstr(why,
                           "(the cut) is '1-2;3-4' there and '1-3;4-4' here; use one release and the same "
                           "sites[].train and tokenizer.vocab everywhere"));
    assert_true(differ(other, with, why, sizeof why));
    assert_true(differ(with, one, why, sizeof why)); /* an older release */
    assert_non_null(strstr(why, "(the cut) is '1-3;4-4' here and not given there; use one release"));
    assert_true(differ(one, with, why, sizeof why));
    assert_non_null(strstr(why, "use one release"));
}

/* Every cut and many garbled texts, each in memory of exactly its size. */
static void any_text_may_come(void **state)
{
    (void)state;
    static const char good[] = "model.hidden=64\ntrain.lr=1e-3\nx\n=\n\n=y\n";
    size_t n = sizeof good - 1;
    char why[256];
    for (size_t cut = 0; cut <= n; cut++) {
        char *text = malloc(cut ? cut : 1);
        assert_non_null(text);
        memcpy(text, good, cut);
        neb__facts_differ(good, n, text, cut, "b", why, sizeof why);
        for (size_t i = 0; i < cut; i++) {
            char kept = text[i];
            text[i] = (char)(i * 37 + cut);
            neb__facts_differ(good, n, text, cut, "b", why, sizeof why);
            neb__facts_differ(text, cut, good, n, "b", why, sizeof why);
            text[i] = kept;
        }
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_difference_is_named),
        cmocka_unit_test(a_site_without_text_is_not_asked_for_it),
        cmocka_unit_test(sites_cut_alike),
        cmocka_unit_test(any_text_may_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
