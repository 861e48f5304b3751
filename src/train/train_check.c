/* train_check.c: what can be said about a job as soon as it is read, but not by those who read it: src/task knows no codecs. */
#include "codec/codec.h"
#include "train/train.h"

#include <string.h>

neb_status neb__train_check(const struct neb_job *job)
{
    const char *name = job->wan.rung;
    const struct neb_rung *rung = neb__rung_by_name(name);
    if (!strcmp(name, "auto") || (rung && rung->kind != NEB_RUNG_EXTERN)) return NEB_OK;
    return neb__doc_fail(
        &job->doc, "wan.rung",
        "wan.rung: '%s' is not auto, fp32, bf16, int8, int4, int2, sparse4, sparse2 or another rung of "
        "docs/codecs.md",
        name);
}
