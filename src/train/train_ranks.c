/* train_ranks.c: the ranks of a site in a training.
 *
 * The first rank trains as a site of one process does: it shows progress, measures, evaluates, writes
 * checkpoints and the model, and meets the other sites. Whatever all ranks must do together, it announces by an
 * order. The others do nothing but follow orders. A rank that fails says so when the step's results are
 * agreed on; then all of them stop. */
#include "train/train_internal.h"
#include "base/file.h"
#include "base/log.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum order_op { ORDER_STEP = 1, ORDER_SHARE, ORDER_SAVE, ORDER_END };

struct order {
    int64_t op;
    double lr;
};

static neb_status give(struct neb_trainer *t, enum order_op op, double lr)
{
    struct order o = {op, lr};
    return neb__group_broadcast(t->ranks, &o, sizeof o, 0);
}

bool neb__trainer_leads(const struct neb_trainer *t)
{
    return neb__group_rank(t->ranks) == 0;
}

/* ---- what all ranks do together --------------------------------------------------------------------------- */

static neb_status step(struct neb_trainer *t, float lr, struct neb_work_step *out)
{
    neb_status status = neb__work_step(t->work, lr, out);
    t->made++;
    if (neb__group_size(t->ranks) == 1) return status;
    /* not finite: all ranks have the same norm and losses, so all skip the step */
    neb_status agreed = neb__group_agree(t->ranks, status == NEB_ERR_NONFINITE ? NEB_OK : status);
    if (agreed == NEB_OK) agreed = neb__ranks_check(t, false);
    if (agreed != NEB_OK) t->joined = false; /* all ranks know it and stop */
    return agreed == NEB_OK ? status : agreed;
}

/* Every rank gets the first one's trainable parameters. */
static neb_status share(struct neb_trainer *t)
{
    neb_params *ps = neb__work_params(t->work);
    int64_t n;
    float *slab = neb_params_slab(ps, &n);
    NEB_TRY(neb__group_broadcast(t->ranks, slab, (size_t)n * sizeof *slab, 0));
    return neb__group_rank(t->ranks) ? neb_params_refresh(ps, 0, n) : NEB_OK;
}

/* ---- the first rank ---------------------------------------------------------------------------------------- */

neb_status neb__ranks_step(struct neb_trainer *t, float lr, struct neb_work_step *out)
{
    NEB_TRY(give(t, ORDER_STEP, (double)lr));
    return step(t, lr, out);
}

neb_status neb__ranks_share(struct neb_trainer *t)
{
    if (neb__group_size(t->ranks) == 1) return NEB_OK;
    NEB_TRY(give(t, ORDER_SHARE, 0));
    return share(t);
}

neb_status neb__ranks_save(void *arg)
{
    NEB_TRY(give(arg, ORDER_SAVE, 0));
    return neb__ranks_check(arg, true);
}

void neb__ranks_end(struct neb_trainer *t)
{
    if (t->joined && neb__trainer_leads(t)) (void)give(t, ORDER_END, 0);
}

/* ---- the other ranks --------------------------------------------------------------------------------------- */

static neb_status obey(struct neb_trainer *t, const struct order *o)
{
    struct neb_work_step result;
    neb_status status;
    switch (o->op) {
    case ORDER_STEP:
        status = step(t, (float)o->lr, &result);
        return status == NEB_ERR_NONFINITE ? NEB_OK : status;
    case ORDER_SHARE: return share(t);
    case ORDER_SAVE: NEB_TRY(neb__ranks_check(t, true)); return neb__resume_lend(t->work);
    default: return neb__fail(NEB_ERR_INTERNAL, "the first rank gave the unknown order %d", (int)o->op);
    }
}

neb_status neb__ranks_follow(struct neb_trainer *t)
{
    for (;;) {
        struct order o = {0};
        NEB_TRY(neb__group_broadcast(t->ranks, &o, sizeof o, 0));
        if (o.op == ORDER_END) return NEB_OK;
        NEB_TRY(obey(t, &o));
    }
}

/* ---- joining ----------------------------------------------------------------------------------------------- */

/* The log of the first rank is the site's; each other rank has one of its own. */
static neb_status own_log(const struct neb_job *job, int rank)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/ranks", job->out) >= (int)sizeof path - 16)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", job->out);
    NEB_TRY(neb__file_make_dir(job->out, 0700));
    NEB_TRY(neb__file_make_dir(path, 0700));
    snprintf(path + strlen(path), 16, "/%d.log", rank);
    fflush(NULL);
    if (!freopen(path, "a", stderr) || dup2(fileno(stderr), STDOUT_FILENO) < 0)
        return neb__fail(NEB_ERR_IO, "%s cannot be written", path);
    (void)fchmod(fileno(stderr), 0600); /* freopen() leaves that to the umask */
    setvbuf(stderr, NULL, _IOLBF, 0);
    return NEB_OK;
}

neb_status neb__ranks_join(const struct neb_job *job, struct neb_group **out)
{
    int want = neb__job_ranks(job);
    *out = NULL;
    NEB_TRY(neb__job_check_parallel(job));
    if (want == 1 && !neb__group_started()) return NEB_OK;
    NEB_TRY(neb__group_join(job->parallel.timeout, out));
    int have = neb__group_size(*out), rank = neb__group_rank(*out);
    neb_status status = neb__ranks_same(job, *out);
    if (status == NEB_OK && have != want)
        status =
            neb__fail(NEB_ERR_CONFIG,
                      "%d processes were started, but parallel.data is %d: start as many as the job asks "
                      "for, or change parallel.data",
                      have, want);
    if (status == NEB_OK && rank) status = own_log(job, rank);
    status = neb__group_agree(*out, status);
    if (status != NEB_OK) {
        neb__group_close(*out);
        *out = NULL;
    }
    return status;
}

/* All ranks must stand at the same step of the same model. */
neb_status neb__ranks_compare(struct neb_trainer *t)
{
    struct neb_hash model;
    int64_t v[4] = {t->loaded, -t->loaded};
    if (neb__group_size(t->ranks) == 1) return NEB_OK;
    NEB_TRY(neb__work_identity(t->work, &model));
    memcpy(&v[2], model.b, sizeof v[2]);
    v[2] &= INT64_MAX;
    v[3] = -v[2];
    NEB_TRY(neb__group_max(t->ranks, v, 4));
    if (v[0] != -v[1])
        return neb__fail(NEB_ERR_STATE,
                         "the ranks begin at different steps (%" PRId64 " to %" PRId64
                         "): all of them must see the same folder %s",
                         -v[1], v[0], t->checkpoints);
    if (v[2] != -v[3])
        return neb__fail(NEB_ERR_CONFIG, "the ranks have different models: are all job files the same?");
    t->joined = true;
    t->made = t->loaded < 0 ? 0 : t->loaded;
    return NEB_OK;
}
