/* help_pages.h: aligned text in several languages from Debian's own packages: the help pages of LibreOffice.
 *
 * Writes, for each language L and the first one F:
 *     L.train.txt                          texts of one language, each once
 *     F-L.train.tsv, F-L.valid.tsv, F-L.test.tsv   pairs, tab-separated
 * Pages are held out whole for valid and test, the same ones in every language, and no text of a held-out
 * pair is left in a training file. */
#ifndef NEB_TEXT_HELP_PAGES_H
#define NEB_TEXT_HELP_PAGES_H

#include "base/status.h"

enum { NEB_HELP_LANGS = 16 };

struct neb_help_cfg {
    const char *langs[NEB_HELP_LANGS]; /* en, de, fr, … */
    int n;                             /* 2 at least */
    const char *out;                   /* folder of the result */
    const char *packages;              /* where packages are, or are downloaded to; NULL: OUT/packages */
};

struct neb_help_stats {
    int64_t texts[NEB_HELP_LANGS];
    int64_t train[NEB_HELP_LANGS], valid[NEB_HELP_LANGS],
        test[NEB_HELP_LANGS]; /* pairs with the first language */
};

/* NEB_ERR_CONFIG: a package is missing and cannot be fetched (the message says what to do); NEB_ERR_IO, … */
neb_status neb__help_corpus(const struct neb_help_cfg *cfg, struct neb_help_stats *stats);

/* Writes the folder of one language's pages into `out` (PATH_MAX bytes); fetches and unpacks them if
 * needed. */
neb_status neb__help_pages(const char *packages, const char *lang, char *out);

#endif
