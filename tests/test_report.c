/* test_report.c: the report of a run from the metrics of its sites: held-out losses by language. */
#include "check.h"
#include "base/mem.h"
#include "store/metrics.h"
#include "watch/report.h"

#include <stdio.h>
#include <string.h>

/* A site's metrics: names of the note, and a series for each of the languages. */
static void write_site(const char *dir, const char *note, const char *const *languages, double loss)
{
    struct neb_metrics *m;
    char name[64];
    assert_ok(neb__metrics_open(dir, -1, &m));
    for (int64_t step = 1; step <= 3; step++) {
        assert_ok(neb__metrics_put(m, step, "loss", 5));
        for (int i = 0; languages[i]; i++) {
            snprintf(name, sizeof name, "valid/loss/%s", languages[i]);
            assert_ok(neb__metrics_put(m, step, name, loss + i - 0.25 * (double)step));
        }
    }
    if (note) assert_ok(neb__metrics_note(m, NEB_LANGUAGES_NOTE, note));
    assert_ok(neb__metrics_close(m));
}

static void languages_have_rows_and_sites_columns(void **state)
{
    (void)state;
    char dir[256], site[2][300];
    struct neb_buf page;
    struct neb_report *r = NEB_NEW(struct neb_report);
    assert_non_null(r);
    check_make_dir(dir, sizeof dir);
    for (int i = 0; i < 2; i++) snprintf(site[i], sizeof site[i], "%s/%c", dir, 'a' + i);
    /* one name of the note has no values, another one is not for a page as it is */
    write_site(site[0], "de <b> none", (const char *const[]){"de", "<b>", NULL}, 4);
    write_site(site[1], "fr de", (const char *const[]){"fr", "de", NULL}, 6);
    for (int i = 0; i < 2; i++) assert_ok(neb__report_add(r, site[i]));
    neb__report_finish(r);
    assert_int_equal(r->site[0].languages, 2);
    neb__buf_init(&page, 4 << 20);
    assert_ok(neb__report_page(r, &page));
    assert_ok(neb__buf_append(&page, "", 1));
    const char *text = (const char *)page.data;
    assert_non_null(strstr(text, "Held-out loss by language"));
    assert_non_null(strstr(text, "<tr><td>de</td><td>3.2500</td><td>6.2500</td></tr>"));
    assert_non_null(strstr(text, "<tr><td>fr</td><td></td><td>5.2500</td></tr>"));
    assert_non_null(strstr(text, "<tr><td>&lt;b&gt;</td><td>4.2500</td><td></td></tr>"));
    neb__buf_free(&page);
    neb__report_free(r);
    neb__free(r);
    check_remove_dir(dir);
}

static void sites_with_a_language_each_share_a_table(void **state)
{
    (void)state;
    static const char *const lang[][2] = {{"de", NULL}, {"fr", NULL}};
    char dir[256], site[300];
    struct neb_buf page;
    struct neb_report *r = NEB_NEW(struct neb_report);
    assert_non_null(r);
    check_make_dir(dir, sizeof dir);
    for (int i = 0; i < 2; i++) {
        snprintf(site, sizeof site, "%s/%c", dir, 'a' + i);
        write_site(site, lang[i][0], lang[i], 4 + i);
        assert_ok(neb__report_add(r, site));
    }
    neb__report_finish(r);
    neb__buf_init(&page, 4 << 20);
    assert_ok(neb__report_page(r, &page));
    assert_ok(neb__buf_append(&page, "", 1));
    assert_non_null(strstr((const char *)page.data, "<tr><td>de</td><td>3.2500</td><td></td></tr>\n"
                                                    "<tr><td>fr</td><td></td><td>4.2500</td></tr>"));
    neb__buf_free(&page);
    neb__report_free(r);
    neb__free(r);
    check_remove_dir(dir);
}

static void one_language_needs_no_table(void **state)
{
    (void)state;
    char dir[256];
    struct neb_buf page;
    struct neb_report *r = NEB_NEW(struct neb_report);
    assert_non_null(r);
    check_make_dir(dir, sizeof dir);
    write_site(dir, NULL, (const char *const[]){NULL}, 0);
    assert_ok(neb__report_add(r, dir));
    neb__report_finish(r);
    neb__buf_init(&page, 4 << 20);
    assert_ok(neb__report_page(r, &page));
    assert_ok(neb__buf_append(&page, "", 1));
    assert_null(strstr((const char *)page.data, "by language"));
    neb__buf_free(&page);
    neb__report_free(r);
    neb__free(r);
    check_remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(languages_have_rows_and_sites_columns),
                                       cmocka_unit_test(sites_with_a_language_each_share_a_table),
                                       cmocka_unit_test(one_language_needs_no_table)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
