/* train_ranks.c: the ranks of a site in a training.
 *
 * The first rank trains as a site of one process does: it shows progress, measures, evaluates, writes
 * checkpoints and the model, and meets the other sites. Whatever all ranks must do together, it announces by an
 * order. The others do nothing but follow orders. A rank that fails says so when the step's results are
 * agreed on; then all of them stop. */
#include "train/train_internal.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum order_op {
    ORDER_STEP = 1,
    ORDER_SHARE,
    ORDER_COLLECT,
    ORDER_EVAL,
    ORDER_SAVE,
    ORDER_IDLE,
    ORDER_BUSY,
    ORDER_END
};

struct order {
    int64_t op;
    double lr;
    int64_t depth; /* of a step: micro-batches in flight at a stage; 0: as they are */
    int64_t keyed; /* of a private step: it has a key */
    struct neb_step_key key;
    int64_t batches; /* of an evaluation on the text with this use */
    char use[16];
};

static neb_status give(struct neb_trainer *t, struct order o)
{
    return neb__group_broadcast(t->ranks, &o, sizeof o, 0);
}

bool neb__trainer_leads(const struct neb_trainer *t)
{
    return neb__group_rank(t->ranks) == 0;
}

/* ---- what all ranks do together --------------------------------------------------------------------------- */

/* All ranks have the same depth. Where one has no memory for it, all keep that of the step before; stage_control.c sees it. */
static neb_status set_depth(struct neb_trainer *t, int depth)
{
    const int before = neb__work_depth(t->work);
    if (depth == before) return NEB_OK;
    neb_status status = neb__work_set_depth(t->work, depth), agreed = neb__group_agree(t->ranks, status);
    if (agreed != NEB_ERR_NOMEM) return agreed;
    if (status == NEB_ERR_NOMEM)
        status = NEB_OK; /* as it was */
    else if (status == NEB_OK)
        status = neb__work_set_depth(t->work, before);
    if (status == NEB_ERR_NOMEM)
        status = neb__fail(NEB_ERR_STATE, "no memory to go back to %d micro-batches in flight", before);
    return neb__group_agree(t->ranks, status);
}

static neb_status step(struct neb_trainer *t, const struct order *o, struct neb_work_step *out)
{
    if (o->depth) NEB_TRY(set_depth(t, (int)o->depth));
    if (o->keyed) neb__work_set_key(t->work, &o->key);
    neb_status status = neb__work_step(t->work, (float)o->lr, out);
    t->made++;
    if (neb__group_size(t->ranks) == 1) return status;
    /* not finite: all ranks have the same norm and losses, so all skip the step */
    neb_status agreed = neb__group_agree(t->ranks, status == NEB_ERR_NONFINITE ? NEB_OK : status);
    if (agreed == NEB_OK) agreed = neb__ranks_check(t, false);
    /* all ranks know it and stop; a stage that was asked to stop while it waited still saves nothing and ends in order */
    if (agreed != NEB_OK && agreed != NEB_ERR_AGAIN) t->joined = false;
    return agreed == NEB_OK ? status : agreed;
}

/* The ranks of the first copy of the model; the others have nothing to do, unless they hold parameters that are
 * gathered: then they run the same. */
static neb_status eval(struct neb_trainer *t, const char *use, int64_t batches, struct neb_work_eval *out)
{
    const bool all = neb__work_gathers(t->work);
    if (!all && neb__group_rank(t->layout.data)) return NEB_OK;
    neb_status status = neb__work_eval(t->work, use, batches, out);
    bool nothing =
        status == NEB_ERR_NOTFOUND || status == NEB_ERR_RANGE || status == NEB_ERR_AGAIN; /* at every rank */
    if (status != NEB_OK && !nothing) neb__layout_give_up(&t->layout); /* they wait for its values */
    neb_status agreed = neb__group_agree(all ? t->ranks : t->layout.model, nothing ? NEB_OK : status);
    return agreed == NEB_OK ? status : agreed;
}

/* ---- the first rank ---------------------------------------------------------------------------------------- */

neb_status neb__ranks_step(struct neb_trainer *t, float lr, struct neb_work_step *out)
{
    NEB_TRY(neb__trainer_charge(t));
    if (t->gate) return neb__gate_step(t->gate, lr, out);
    struct order o = {
        .op = ORDER_STEP, .lr = (double)lr, .depth = t->depth, .keyed = t->keyed, .key = t->key};
    t->keyed = false;
    neb__step_key_wipe(&t->key);
    neb_status status = give(t, o);
    if (status == NEB_OK) status = step(t, &o, out);
    neb__step_key_wipe(&o.key);
    return status;
}

neb_status neb__ranks_share(struct neb_trainer *t)
{
    if (neb__group_size(t->ranks) == 1) return NEB_OK;
    NEB_TRY(give(t, (struct order){.op = ORDER_SHARE}));
    return neb__work_distribute(t->work);
}

neb_status neb__ranks_fetch(struct neb_trainer *t)
{
    if (!neb__work_lacks_whole(t->work)) return NEB_OK;
    NEB_TRY(give(t, (struct order){.op = ORDER_COLLECT}));
    return neb__work_collect(t->work);
}

neb_status neb__ranks_eval(struct neb_trainer *t, const char *use, int64_t batches, struct neb_work_eval *out)
{
    struct order o = {.op = ORDER_EVAL, .batches = batches};
    if (!neb__work_is_split(t->work)) return neb__work_eval(t->work, use, batches, out);
    snprintf(o.use, sizeof o.use, "%s", use);
    NEB_TRY(give(t, o));
    return eval(t, use, batches, out);
}

/* Ranks of one machine see this rank's beat. The others must hear from it before they lose their patience. */
neb_status neb__ranks_idle(struct neb_trainer *t)
{
    neb__group_beat(t->ranks);
    if (!t->joined || !neb__group_far(t->ranks)) return NEB_OK;
    if (neb__seconds_since(t->idle_ns) < t->job->parallel.timeout / 4) return NEB_OK;
    t->idle_ns = neb__now_ns();
    return give(t, (struct order){.op = ORDER_IDLE});
}

/* The others hear nothing before the next order, however long that takes. */
void neb__ranks_busy(struct neb_trainer *t, bool busy)
{
    neb__group_busy(t->ranks, busy);
    if (busy && t->joined && neb__group_far(t->ranks)) (void)give(t, (struct order){.op = ORDER_BUSY});
}

neb_status neb__ranks_save(void *trainer)
{
    NEB_TRY(give(trainer, (struct order){.op = ORDER_SAVE}));
    return neb__ranks_check(trainer, true);
}

void neb__ranks_end(struct neb_trainer *t)
{
    if (t->joined && neb__trainer_leads(t)) (void)give(t, (struct order){.op = ORDER_END});
}

/* ---- the other ranks --------------------------------------------------------------------------------------- */

static neb_status obey(struct neb_trainer *t, const struct order *o)
{
    struct neb_work_step result;
    neb_status status;
    switch (o->op) {
    case ORDER_STEP:
        status = step(t, o, &result);
        return status == NEB_ERR_NONFINITE || status == NEB_ERR_AGAIN ? NEB_OK : status;
    case ORDER_SHARE: return neb__work_distribute(t->work);
    case ORDER_COLLECT: return neb__work_collect(t->work);
    case ORDER_EVAL:
        status = eval(t, o->use, o->batches, &(struct neb_work_eval){0});
        return status == NEB_ERR_NOTFOUND || status == NEB_ERR_RANGE || status == NEB_ERR_AGAIN ? NEB_OK
                                                                                                : status;
    case ORDER_SAVE: NEB_TRY(neb__ranks_check(t, true)); return neb__resume_lend(t->work);
    case ORDER_IDLE:
    case ORDER_BUSY: return NEB_OK;
    default: return neb__fail(NEB_ERR_INTERNAL, "the first rank gave the unknown order %d", (int)o->op);
    }
}

neb_status neb__ranks_follow(struct neb_trainer *t)
{
    bool busy = false; /* the first rank may take any time, also between the orders that belong to its work */
    for (;;) {
        struct order o = {0};
        NEB_TRY(neb__group_broadcast(t->ranks, &o, sizeof o, 0));
        o.use[sizeof o.use - 1] = 0;
        const bool ends = o.op == ORDER_STEP || o.op == ORDER_IDLE || o.op == ORDER_END;
        if (o.op == ORDER_BUSY ? !busy : busy && ends) neb__group_busy(t->ranks, busy = !busy);
        if (o.op == ORDER_END) return NEB_OK;
        neb_status status = obey(t, &o);
        neb__step_key_wipe(&o.key);
        NEB_TRY(status);
    }
}

/* ---- joining ----------------------------------------------------------------------------------------------- */

static int last_words = -1; /* where the site's log is; the first rank may be the one that is lost */

void neb__ranks_say_lost(struct neb_group *ranks)
{
    const char *why = neb__group_why(ranks);
    if (last_words < 0 || !*why || strstr(why, "another rank")) return; /* that one says it */
    dprintf(last_words, "%s (says rank %d)\n", why, neb__group_rank(ranks));
}

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
    last_words = dup(STDERR_FILENO);
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
        status = neb__fail(NEB_ERR_CONFIG,
                           "%d processes were started, but parallel.data is %" PRId64 ", tensor %" PRId64
                           " and pipeline %" PRId64 ": start %d, or change the layout",
                           have, job->parallel.data, job->parallel.tensor, job->parallel.pipeline, want);
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
