/* report_languages.c: the held-out loss of each language, in the report.
 *
 * A training stores a series for each language, and a note that names them. The report shows the last value of each, one
 * column a site. */
#include "watch/report.h"
#include "store/metrics.h"

#include <stdio.h>
#include <string.h>

static int take_value(void *arg, int64_t step, double time, double value)
{
    (void)step;
    (void)time;
    *(double *)arg = value;
    return 1;
}

static neb_status read_language(struct neb_metrics *m, struct neb_report_site *s, const char *name)
{
    struct neb_report_language *l = &s->language[s->languages];
    char series[64];
    snprintf(l->name, sizeof l->name, "%s", name);
    snprintf(series, sizeof series, "valid/loss/%s", l->name);
    l->loss = -1;
    neb_status status = neb__metrics_each(m, series, take_value, &l->loss);
    if (status == NEB_OK && l->loss >= 0) s->languages++;
    return status == NEB_ERR_NOTFOUND ? NEB_OK : status;
}

neb_status neb__report_read_languages(struct neb_metrics *m, struct neb_report_site *s)
{
    char list[1024], *rest = list, *word;
    if (neb__metrics_get_note(m, NEB_LANGUAGES_NOTE, list, sizeof list) != NEB_OK)
        return NEB_OK; /* one language */
    while ((word = strsep(&rest, " ")))
        if (*word && s->languages < NEB_REPORT_LANGUAGES) NEB_TRY(read_language(m, s, word));
    return NEB_OK;
}

static const struct neb_report_language *find(const struct neb_report_site *s, const char *name)
{
    for (int i = 0; i < s->languages; i++)
        if (!strcmp(s->language[i].name, name)) return &s->language[i];
    return NULL;
}

static neb_status row(const struct neb_report *r, const char *name, struct neb_buf *out)
{
    NEB_TRY(neb__buf_printf(out, "<tr><td>"));
    NEB_TRY(neb__report_html(out, name));
    NEB_TRY(neb__buf_printf(out, "</td>"));
    for (int i = 0; i < r->n; i++) {
        const struct neb_report_language *l = find(&r->site[i], name);
        NEB_TRY(l ? neb__buf_printf(out, "<td>%.4f</td>", l->loss) : neb__buf_printf(out, "<td></td>"));
    }
    return neb__buf_printf(out, "</tr>\n");
}

/* A language gets its row at the first site that has it. */
static bool shown(const struct neb_report *r, int site, const char *name)
{
    for (int i = 0; i < site; i++)
        if (find(&r->site[i], name)) return true;
    return false;
}

neb_status neb__report_languages(const struct neb_report *r, struct neb_buf *out)
{
    int most = 0;
    for (int i = 0; i < r->n; i++) most = r->site[i].languages > most ? r->site[i].languages : most;
    if (!most) return NEB_OK;
    NEB_TRY(neb__buf_printf(
        out, "<figure class=\"wide log\"><h2>Held-out loss by language</h2><p>the last that each site "
             "measured</p><table><tr><th>language</th>"));
    for (int i = 0; i < r->n; i++) {
        NEB_TRY(neb__buf_printf(out, "<th>"));
        NEB_TRY(neb__report_html(out, r->site[i].name));
        NEB_TRY(neb__buf_printf(out, "</th>"));
    }
    NEB_TRY(neb__buf_printf(out, "</tr>\n"));
    for (int i = 0; i < r->n; i++)
        for (int k = 0; k < r->site[i].languages; k++)
            if (!shown(r, i, r->site[i].language[k].name)) NEB_TRY(row(r, r->site[i].language[k].name, out));
    return neb__buf_printf(out, "</table></figure>\n");
}
