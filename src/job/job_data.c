/* job_data.c: `data` as a section instead of a list.
 *
 *     data:                              data:
 *       - {file: en.txt, lang: en}         temperature: 0.7
 *       - {file: de.txt, lang: de}         corpora:
 *                                            - {file: en.txt, lang: en}
 *                                            - {file: de.txt, lang: de}
 *
 * The entries of the second form are renamed to those of the first before anything is bound. `data.temperature` is the
 * exponent of the languages' sizes, as papers on multilingual models give it; `train.temperature` is its inverse. */
#include "job/job.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static neb_status rename_entry(struct neb_doc_entry *e, const char *path)
{
    char *copy = neb__strdup(path);
    if (!copy) return neb__fail(NEB_ERR_NOMEM, "out of memory for '%s'", path);
    neb__free(e->path);
    e->path = copy;
    return NEB_OK;
}

static neb_status take_temperature(struct neb_doc *d, struct neb_doc_entry *e)
{
    char *end, inverse[32];
    const double exponent = strtod(e->value, &end);
    if (end == e->value || *end || !(exponent >= 0.001 && exponent <= 1))
        return neb__doc_fail(
            d, "data.temperature",
            "data.temperature: '%s' is not a number from 0.001 to 1: a language is drawn in proportion to "
            "its tokens to this power; 1 follows the sizes, 0.3 is nearly even",
            e->value);
    for (int i = 0; i < d->n; i++)
        if (!strcmp(d->list[i].path, "train.temperature"))
            return neb__doc_fail(
                d, "data.temperature",
                "data.temperature and train.temperature, which is its inverse, are both set; leave one out");
    snprintf(inverse, sizeof inverse, "%.9g", 1 / exponent);
    char *value = neb__strdup(inverse);
    if (!value) return neb__fail(NEB_ERR_NOMEM, "out of memory for data.temperature");
    neb__free(e->value);
    e->value = value;
    return rename_entry(e, "train.temperature");
}

neb_status neb__job_gather_data(struct neb_job *j)
{
    static const char corpora[] = "data.corpora";
    const size_t n = sizeof corpora - 1;
    struct neb_doc *d = &j->doc;
    for (int i = 0; i < d->n; i++) {
        struct neb_doc_entry *e = &d->list[i];
        char path[256];
        if (!strcmp(e->path, "data.temperature")) NEB_TRY(take_temperature(d, e));
        if (strncmp(e->path, corpora, n) || (e->path[n] != '[' && e->path[n])) continue;
        snprintf(path, sizeof path, "data%s", e->path + n);
        NEB_TRY(rename_entry(e, path));
    }
    return NEB_OK;
}
