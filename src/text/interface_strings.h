/* interface_strings.h: pairs of sentences from Debian's own packages: the translated strings of program interfaces.
 *
 * Writes, for English and each other language L, the files that help_pages.h writes:
 *     en.train.txt, L.train.txt                      sentences of one language, each once
 *     en-L.train.tsv, en-L.valid.tsv, en-L.test.tsv  pairs, tab-separated
 * A sentence of three words or more is held out by the hash of its normalised form. Neither side of a held-out pair
 * has its normalised form in any training file. */
#ifndef NEB_TEXT_INTERFACE_STRINGS_H
#define NEB_TEXT_INTERFACE_STRINGS_H

#include "text/help_pages.h"

/* The packages that are read unless others are named. */
#define NEB_INTERFACE_PACKAGES "libreoffice-l10n-LANG"

/* langs[0] must be "en". `from`: names of packages, separated by commas; LANG in a name becomes each language.
 * NEB_ERR_CONFIG: a package cannot be fetched, or has no strings in a language; NEB_ERR_IO, … */
neb_status neb__interface_corpus(const struct neb_help_cfg *cfg, const char *from,
                                 struct neb_help_stats *stats);

#endif
