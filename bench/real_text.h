/* real_text.h: a masked-language job over real text for the benchmarks that train. */
#ifndef NEB_BENCH_REAL_TEXT_H
#define NEB_BENCH_REAL_TEXT_H

#include "task/data.h"
#include "job/job.h"

struct neb_real_text {
    const char *name, *data, *out, *device, *optimizer; /* NULL: adamw */
    int vocab, lines, hidden, layers, languages;        /* languages: at most 6; 0: 3 */
    int64_t steps, tokens, max_len, threads;
    double lr, beta2;
};

/* Splits DATA/mono/eltec.{en,de,fr,es,cs,ru}.txt, as many as there are languages (a paragraph a line; the last 3 % are held out), writes OUT/job.yaml,
 * reads it and prepares its data. Job and data are owed a free. Returns any status of files, jobs and
 * tokenizers. */
neb_status neb__real_text_open(const struct neb_real_text *t, struct neb_job *job, struct neb_data *data);

/* Says on stderr that a folder with text must be named, and returns the exit status of that. */
int neb__real_text_missing(void);

#endif
