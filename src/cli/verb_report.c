/* verb_report.c: `nebula-i report FOLDER… [--to FILE]`: a run as one HTML page.
 *
 * A folder is what a site wrote (with metrics.sqlite in it), or holds those of several sites, as `nebula-i lab` makes it.
 * Databases of sites far apart are brought together by copying that one file each. */
#include "cli/verb.h"
#include "base/file.h"
#include "base/mem.h"
#include "watch/report.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    char *to;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, to, NEB_OPT_TEXT, "report.html", NULL, "the page"),
    NEB_OPT_END,
};

/* In the order of their names, so that a site keeps its colour. */
static neb_status add_below(struct neb_report *r, const char *dir)
{
    struct dirent **list;
    int n = scandir(dir, &list, NULL, alphasort);
    neb_status status = NEB_OK;
    for (int i = 0; i < n; i++) {
        char path[PATH_MAX];
        if (status == NEB_OK && list[i]->d_name[0] != '.' &&
            snprintf(path, sizeof path, "%s/%s", dir, list[i]->d_name) < (int)sizeof path) {
            status = neb__report_add(r, path);
            if (status == NEB_ERR_NOTFOUND) status = NEB_OK;
        }
        free(list[i]);
    }
    if (n >= 0) free(list);
    return status;
}

static neb_status add(struct neb_report *r, const char *dir)
{
    int had = r->n;
    neb_status status = neb__report_add(r, dir);
    if (status != NEB_ERR_NOTFOUND) return status;
    NEB_TRY(add_below(r, dir));
    if (r->n > had) return NEB_OK;
    return neb__fail(NEB_ERR_NOTFOUND,
                     "%s: no metrics.sqlite in it, nor in a folder below it; give the `out` of a job", dir);
}

static neb_status run(struct neb_call *c)
{
    const struct options *o = c->options;
    struct neb_report *r = NEB_NEW(struct neb_report);
    struct neb_buf page;
    if (!r) return neb__fail(NEB_ERR_NOMEM, "out of memory for a report");
    neb__buf_init(&page, 64 << 20);
    neb_status status = NEB_OK;
    for (int i = 0; status == NEB_OK && i < c->n; i++) status = add(r, c->words[i]);
    struct neb_view *v = NULL;
    if (status == NEB_OK) {
        neb__report_finish(r);
        if (c->n == 1 && neb__view_create(&v) == NEB_OK && neb__view_look(v, c->words[0]) == NEB_OK)
            r->view = v;
        status = neb__report_page(r, &page);
    }
    if (status == NEB_OK) status = neb__file_replace(o->to, page.data, page.len, 0600);
    if (status == NEB_OK) printf("%s: %d site%s\n", o->to, r->n, r->n == 1 ? "" : "s");
    neb__report_free(r);
    neb__view_free(v);
    neb__free(r);
    neb__buf_free(&page);
    return status;
}

const struct neb_verb neb__verb_report = {
    .name = "report",
    .args = "FOLDER… [--to report.html]",
    .help = "a run as one page with plots",
    .about = "FOLDER is the `out` of a site, or of nebula-i lab: all sites in it.",
    .options = {{table, 0}},
    .size = sizeof(struct options),
    .least = 1,
    .missing = "give the folder of a run: the `out` of its job",
    .most = NEB_ANY_NUMBER,
    .run = run,
};
